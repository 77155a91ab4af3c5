"""Tidegate as users have it: the wheel, installed, run from a folder outside the checkout, beside strangers' packages.

What these tests start is that one, also where they are those of tests/integration: `tests.support.program` says which
Python has it.
"""

import subprocess
from pathlib import Path

import pytest

from tests.support.built import Installed, install, wheel_of_the_tree
from tests.support.program import PYTHON_VARIABLE


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("installed")
    return install(wheel_of_the_tree(folder), folder / "environment")


@pytest.fixture(autouse=True)
def outside(installed: Installed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on the installed one is started."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", str(installed.extra))
    monkeypatch.setenv(PYTHON_VARIABLE, str(installed.python))
    command: list[str | Path] = [installed.python, "-c", "import tidegate; print(tidegate.__file__)"]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert Path(found).is_relative_to(installed.python.parents[1])
