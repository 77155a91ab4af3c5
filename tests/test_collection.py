"""The suite's own ids: the same in every process that collects it, and short enough to read.

pytest-xdist's workers each collect the whole suite, and none of it runs if they disagree: so no id may hold the time,
an address, a set's order, a folder or anything else that two processes on two machines do not share.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ID_CHARACTERS_MAX = 300
"""Path, names and parameters. pytest prints it, and so do reports and shells that run one test."""

SHOWN_MAX = 20
TIMEOUT_S = 600.0

COLLECT = """
import json, socket, sys, time

shift_s = int(sys.argv[1])
for name, unit in (("time", 1), ("time_ns", 10**9)):
    def shifted(real=getattr(time, name), unit=unit):
        return real() + shift_s * unit
    setattr(time, name, shifted)
for name in ("gmtime", "localtime"):
    def at(seconds=None, real=getattr(time, name)):
        return real(time.time() if seconds is None else seconds)
    setattr(time, name, at)
socket.gethostname = lambda: f"host-{shift_s}"

import pytest

class Ids:
    def pytest_collection_finish(self, session):
        with open(sys.argv[2], "w") as file:
            json.dump([item.nodeid for item in session.items], file)

sys.exit(pytest.main(["--collect-only", "-qq", *sys.argv[3:]], plugins=[Ids()]))
"""
# Without randomly, which seeds from the clock, and without rewritten asserts, which cost half of the time.
OPTIONS = ("-m", "", "--assert=plain", "-p", "no:randomly", "-p", "no:xdist", "-p", "no:cacheprovider")


def collected(folder: Path, tests: Sequence[Path] = (), *, root: Path = ROOT) -> tuple[list[str], list[str]]:
    """The ids in two processes of their own, side by side, that share nothing but the files."""
    surroundings: Sequence[tuple[int, Mapping[str, str]]] = (
        (0, {"PYTHONHASHSEED": "1", "TZ": "UTC"}),
        (-400 * 86_400 + 12_345, {"PYTHONHASHSEED": "4711", "TZ": "Asia/Kathmandu"}),
    )
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    processes, files = [], []
    for number, (shift_s, environ) in enumerate(surroundings):
        home = folder / f"home-{number}"
        home.mkdir()
        files.append(home / "ids")
        processes.append(
            subprocess.Popen(
                [sys.executable, "-c", COLLECT, str(shift_s), str(files[-1]), *OPTIONS, *map(str, tests)],
                cwd=root,
                env={**inherited, "HOME": str(home), "TMPDIR": str(home), **environ},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    try:
        for process in processes:
            output, _ = process.communicate(timeout=TIMEOUT_S)
            assert process.returncode == pytest.ExitCode.OK, output[-4000:]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    first, second = (json.loads(file.read_text()) for file in files)
    return first, second


def differing(first: Sequence[str], second: Sequence[str]) -> list[str]:
    """Ids that one of them lacks; without any, those that are not at the same place."""
    return sorted({*first} ^ {*second}) or [one for one, other in zip(first, second, strict=True) if one != other]


def shown(ids: Sequence[str]) -> str:
    return "\n".join([f"{len(ids)} ids, among them:", *(each[:ID_CHARACTERS_MAX] for each in ids[:SHOWN_MAX])])


def test_every_process_collects_the_same_short_ids(tmp_path: Path) -> None:
    first, second = collected(tmp_path)
    assert len(first) > 10_000
    if changed := differing(first, second):
        pytest.fail(f"depend on time, process or machine: {shown(changed)}", pytrace=False)
    if long := [each for each in first if len(each) > ID_CHARACTERS_MAX]:
        pytest.fail(f"longer than {ID_CHARACTERS_MAX} characters: {shown(long)}", pytrace=False)
    if placed := [each for each in first if str(ROOT) in each or str(tmp_path) in each]:
        pytest.fail(f"hold a folder of this machine: {shown(placed)}", pytrace=False)


UNSTEADY = {
    # How it failed: gzip writes the second into its header, so workers that started apart collected different tests.
    "gzip": "[gzip.compress(b'some bytes')]",
    "clock": "[time.localtime().tm_yday]",
    "set": "{'one', 'two', 'three', 'four', 'five', 'six'}",
    "process": "[os.getpid()]",
    "folder": "[tempfile.gettempdir()]",
    "host": "[socket.gethostname()]",
}


def test_ids_that_two_processes_do_not_share_are_found(tmp_path: Path) -> None:
    file = tmp_path / "test_unsteady.py"
    tests = [
        f"@pytest.mark.parametrize('x', {values})\ndef test_{kind}(x):\n    pass\n" for kind, values in UNSTEADY.items()
    ]
    file.write_text("\n".join(["import gzip, os, socket, tempfile, time, pytest", *tests]))
    first, second = collected(tmp_path, [file], root=tmp_path)
    of_kind = {
        kind: [[each for each in ids if f"test_{kind}[" in each] for ids in (first, second)] for kind in UNSTEADY
    }
    assert [kind for kind, (one, other) in of_kind.items() if not differing(one, other)] == []
