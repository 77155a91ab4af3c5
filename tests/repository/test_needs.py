"""Skips are told apart by what is lacking: tests/support/needs.py."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.markers import Marker

from tests.support import needs

OLD_CLIENT_LOCKS = needs.ROOT / "tests" / "integration" / "python" / "clients"
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


@pytest.mark.parametrize(
    ("reason", "name"),
    [
        (needs.kind("kcat").reason, "kcat"),
        # A helper may skip in its own words.
        ("shared vectors absent: kafka/some.json (set TIDEGATE_VECTORS)", "vectors"),
        ("not today", None),
    ],
)
def test_a_skip_for_want_of_a_kind_is_known_by_its_reason(reason: str, name: str | None) -> None:
    assert getattr(needs.kind_of_skip(reason), "name", None) == name


def test_absent_vectors_are_excused_and_absent_tools_are_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TIDEGATE_VECTORS", str(tmp_path / "absent"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not needs.kind("kcat").is_present()
    assert not needs.kind("kcat").is_excused
    assert needs.kind("vectors").is_excused


def test_vectors_that_are_there_excuse_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TIDEGATE_VECTORS", str(tmp_path))
    assert not needs.kind("vectors").is_excused


@pytest.mark.parametrize("lock", sorted(OLD_CLIENT_LOCKS.glob("*.txt")), ids=lambda lock: lock.stem)
def test_an_old_client_may_lack_just_where_its_lock_has_nothing_for_this_python(lock: Path) -> None:
    markers = re.findall(r"^[\w-]+==[\d.]+(?: ; (.+?))? \\$", lock.read_text(), re.MULTILINE)
    assert markers
    is_to_be_had = any(not marker or Marker(marker).evaluate() for marker in markers)
    assert needs.kind(lock.stem).may_lack is not is_to_be_had


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


@pytest.mark.parametrize(
    ("target", "required", "brought"),
    [
        ("test-all", "1", {"versitygw", "fake-gcs-server", "azurite"}),
        ("test-all", "0", set()),
        # It needs no more than the demo.
        ("test", "1", set()),
    ],
)
def test_make_brings_what_tests_may_not_skip(tmp_path: Path, target: str, required: str, brought: set[str]) -> None:
    """Failed before: whoever had not run `make test-tools` had every test of GCS and Azure fail for want of a store."""
    command = ("make", "--dry-run", target, f"TOOLS={tmp_path}")
    outer = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    environ = {**outer, "TIDEGATE_REQUIRE_ALL": required}
    done = subprocess.run(command, cwd=needs.ROOT, env=environ, capture_output=True, text=True, check=True)
    told = set(re.findall(r"tools: (versitygw|fake-gcs-server|azurite)", done.stdout))
    assert told == brought
    assert f"--suite {'all' if target == 'test-all' else 'quick'}" in done.stdout


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
