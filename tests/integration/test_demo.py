"""`make demo` as a user runs it: the table, the commands of --keep, and that nothing is ever left behind."""

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.needs import ROOT
from tests.support.waiting import wait_until
from tools.demo.run import RECORDS_MIN

pytestmark = [pytest.mark.integration, pytest.mark.needs("java", "kafka")]

DEMO_TIMEOUT_S = 180.0
END_TIMEOUT_S = 30.0


class RunningDemo:
    """The demo in a process of its own, with a temporary folder of its own."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.temporary = folder / "temporary"
        self.temporary.mkdir()
        self._output, self._errors = folder / "output", folder / "errors"
        command = (sys.executable, "-m", "tools.demo", *arguments)
        environment = {**os.environ, "TMPDIR": str(self.temporary), "COLUMNS": "80"}
        with self._output.open("wb") as output, self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=errors
            )

    @property
    def output(self) -> str:
        return self._output.read_text("utf-8")

    @property
    def errors(self) -> str:
        return self._errors.read_text("utf-8")

    def wait_for(self, text: str) -> None:
        def is_said() -> bool:
            assert self.process.poll() is None, self.errors
            return text in self.output + self.errors

        wait_until(is_said, text, timeout_s=DEMO_TIMEOUT_S)

    def left_processes(self) -> list[str]:
        """Every process with the temporary folder in its command line: the broker and Tidegate have it there."""
        listed = subprocess.run(("ps", "-A", "-ww", "-o", "args"), stdout=subprocess.PIPE, text=True, check=True).stdout
        return [line for line in listed.splitlines() if str(self.temporary) in line]

    def assert_nothing_left(self) -> None:
        assert self.left_processes() == []
        assert [path for path in self.temporary.iterdir() if path.name.startswith("tidegate")] == []


@contextmanager
def running_demo(folder: Path, *arguments: str) -> Iterator[RunningDemo]:
    demo = RunningDemo(folder, *arguments)
    try:
        yield demo
    finally:
        demo.process.kill()
        demo.process.wait()


def test_the_demo_shows_equal_records_and_keeps_everything_running_until_ctrl_c(tmp_path: Path) -> None:
    with running_demo(tmp_path, "--keep", "--records", "60000") as demo:
        demo.wait_for("Ctrl-C stops everything")
        assert_the_table_is_right(demo)
        assert len(demo.left_processes()) >= 2
        consume, _, check = re.findall(r"^(?:java|curl|/).*$", demo.output, re.MULTILINE)
        consumed = subprocess.run(
            shlex.split(consume), stdout=subprocess.PIPE, text=True, timeout=END_TIMEOUT_S, check=True
        )
        assert consumed.stdout.count('{"order_id": "order-') == 5
        subprocess.run(shlex.split(check), cwd=ROOT, stdout=subprocess.DEVNULL, timeout=END_TIMEOUT_S, check=True)
        demo.process.send_signal(signal.SIGINT)
        assert demo.process.wait(END_TIMEOUT_S) == 0
        demo.assert_nothing_left()
    assert "\x1b" not in demo.output + demo.errors


def test_ctrl_c_in_the_middle_leaves_nothing_behind_even_twice(tmp_path: Path) -> None:
    interrupt(tmp_path, "Starting Kafka")


def interrupt(folder: Path, step: str) -> None:
    with running_demo(folder, "--records", str(RECORDS_MIN)) as demo:
        demo.wait_for(step)
        demo.process.send_signal(signal.SIGINT)
        # The other kind: a second SIGINT at once would be the same one, and a late one would find the end. Failed
        # before on a busy machine, with 50 ms between the two.
        demo.process.send_signal(signal.SIGTERM)
        assert demo.process.wait(END_TIMEOUT_S) == 1
        demo.assert_nothing_left()
    assert "interrupted" in demo.errors
    assert "Traceback" not in demo.errors


def assert_the_table_is_right(demo: RunningDemo) -> None:
    rows = {row[0]: row[1:] for row in map(cells, demo.output.splitlines()) if len(row) > 1}
    assert rows["records"] == ["60,000", "60,000"]
    directly, through_tidegate = (number(cell) for cell in rows["of them in the tier only"])
    assert 30_000 < directly == through_tidegate < 60_000
    assert len(set(rows["digest of the records"])) == 1
    assert number(rows["Tidegate served from the tier"][0]) > 10
    before, after = rows["broker's own remote fetches"]
    assert after == f"{before.split()[-1]} -> {before.split()[-1]}"
    assert before.split()[0] == "0" != before.split()[-1]


def cells(line: str) -> list[str]:
    return re.split(r"\s{2,}", line.strip())


def number(cell: str) -> float:
    return float(cell.split()[0].replace(",", ""))
