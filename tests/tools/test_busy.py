"""A command is run as often as asked, beside loops that end with it."""

import sys
from pathlib import Path

import pytest

from tools.busy import main

COUNT = "import pathlib, sys; p = pathlib.Path(sys.argv[1]); p.write_text(p.read_text() + 'x'); sys.exit({code})"


@pytest.mark.parametrize(("code", "runs"), [(0, 3), (7, 1)])
def test_the_first_failure_ends_it(code: int, runs: int, tmp_path: Path) -> None:
    file = tmp_path / "runs"
    file.write_text("")
    command = [sys.executable, "-c", COUNT.format(code=code), str(file)]
    assert main(["--loops", "1", "--times", "3", *command]) == code
    assert file.read_text() == "x" * runs
