"""Lines for standard error: nobody waits for who reads them, and what is lost is counted and said."""

import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.support.waiting import wait_until
from tidegate import log_lines
from tidegate.config.model import LogFormat
from tidegate.log_lines import STANDARD_ERROR, WAITING_BYTES_MAX, LineWriter
from tidegate.logs import configure_logs

pytestmark = pytest.mark.usefixtures("restored_logging")

LINE = "x" * 1023 + "\n"


@dataclass
class Pipe:
    """A writer into a pipe, whose other end nobody reads by itself."""

    reader: int
    end: int
    writer: LineWriter

    def read(self) -> str:
        return os.read(self.reader, 1024 * 1024).decode()


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    reader, end = os.pipe()
    made = Pipe(reader, end, LineWriter(end))
    yield made
    os.close(reader)
    made.writer.close()
    os.close(end)


def test_lines_come_whole_and_in_order(pipe: Pipe) -> None:
    for number in range(100):
        pipe.writer.put(f"line {number} \u00e9\ud800\n")
    read = ""
    while read.count("\n") < 100:
        read += pipe.read()
    assert [line.split()[1] for line in read.splitlines()] == [str(number) for number in range(100)]
    assert pipe.writer.close()


def test_nobody_waits_for_who_does_not_read(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    """Failed before: after 64 KiB each thread that logged stood still."""
    monkeypatch.setattr(STANDARD_ERROR, "writer", pipe.writer)
    configure_logs("info", LogFormat.JSON)
    puts = 2 * WAITING_BYTES_MAX // len(LINE)
    for _ in range(puts):
        pipe.writer.put(LINE)
    lost = pipe.writer.lost
    assert 0 < lost < puts

    read = ""
    while "log_lines_lost" not in read:
        read += pipe.read()
    assert read.count(LINE) == puts - lost
    assert f'"lines": {lost}' in read.splitlines()[-1]
    pipe.writer.put("next\n")
    assert pipe.read() == "next\n"


def test_the_end_is_waited_for_no_longer_than_a_while(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_lines, "LAST_WRITE_S_MAX", 0.01)
    for _ in range(100):
        pipe.writer.put(LINE)
    assert not pipe.writer.close()
    pipe.writer.put(LINE)
    assert pipe.writer.lost == 1


def test_a_pipe_that_does_not_block_gets_all_lines(pipe: Pipe) -> None:
    """The process at the other end of a terminal may have set it so, too."""
    fcntl.fcntl(pipe.end, fcntl.F_SETFL, os.O_NONBLOCK)
    for _ in range(100):
        pipe.writer.put(LINE)
    read = ""
    while len(read) < 100 * len(LINE):
        read += pipe.read()
    assert read == 100 * LINE
    assert pipe.writer.lost == 0


def test_lines_for_nobody_are_lost_and_counted() -> None:
    reader, end = os.pipe()
    os.close(reader)
    writer = LineWriter(end)
    writer.put(LINE)
    writer.put(LINE)
    wait_until(lambda: writer.lost == 2, "both lost")
    assert writer.close()
    os.close(end)
