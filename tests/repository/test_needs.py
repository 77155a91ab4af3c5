"""A skip says what is lacking: tests/support/needs.py."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import needs

INI = """\
[pytest]
addopts = --import-mode=importlib --strict-markers
filterwarnings = error
markers =
    needs
"""
SKIPPING = """\
import pytest

@pytest.mark.needs("vectors")
def test_for_want_of_what_may_lack(): ...

@pytest.mark.needs("kcat")
def test_for_want_of_a_tool(): ...

def test_for_no_good_reason():
    pytest.skip("not today")

def test_that_runs(): ...
"""


@pytest.mark.parametrize("workers", [0, 2])
def test_skips_are_judged_and_counted_in_however_many_workers(tmp_path: Path, workers: int) -> None:
    done = run_pytest(tmp_path, workers)
    assert done.returncode == 1, done.stdout
    # In the set-up and in the test itself: what pytest calls an error, and a failure. What may lack is left out.
    assert re.search(r"1 failed, 1 passed, (1 deselected, )?1 error", done.stdout)
    assert "was skipped under TIDEGATE_REQUIRE_ALL: needs kcat: " in done.stdout
    assert "was skipped under TIDEGATE_REQUIRE_ALL: not today" in done.stdout
    assert "kcat: 1 not run; install kcat" in done.stdout
    assert "vectors: 1 not run; point TIDEGATE_VECTORS at the shared vectors" in done.stdout


def run_pytest(folder: Path, workers: int) -> subprocess.CompletedProcess[str]:
    """Our conftest, on files of its own, where all is required and neither vectors nor kcat are to be had."""
    tests = folder / "some"
    tests.mkdir()
    (tests / "pytest.ini").write_text(INI)
    (tests / "conftest.py").write_text("from tests.conftest import *")
    (tests / "test_skipping.py").write_text(SKIPPING)
    options = ("--basetemp", str(folder / "base"), "--numprocesses", str(workers))
    environ = {
        **os.environ,
        "PATH": str(folder),
        "PYTHONPATH": str(needs.ROOT),
        "TIDEGATE_REQUIRE_ALL": "1",
        "TIDEGATE_VECTORS": str(folder / "absent"),
    }
    return subprocess.run(
        (sys.executable, "-m", "pytest", *options, "--dist", "loadgroup", str(tests)),
        cwd=folder,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )


def test_a_quick_suite_loads_nothing_of_the_others_folders() -> None:
    """Failed before: `make test` of a fresh clone ended with errors, as a conftest of tests/spark imported pyspark."""
    without_spark = "import sys, pytest; sys.modules['pyspark'] = None; sys.exit(pytest.main(sys.argv[1:]))"
    options = ["--suite", "quick", "--collect-only", "-q", "-n0", "tests/spark"]
    done = subprocess.run([sys.executable, "-c", without_spark, *options], capture_output=True, text=True, check=False)
    assert done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED, done.stdout + done.stderr
