"""The audit log's way to its file: minute by minute, whatever the disk does, and the last lines at the end."""

import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import structlog
import trio
from trio.testing import wait_all_tasks_blocked

from metrics.meters import AuditOutcome, Meters
from proxy.connection.audit import LINE_BYTES_MAX, ROWS_MAX, Reader
from proxy.connection.names import Groups
from proxy.readiness import Readiness
from storage.owned_file import OwnedFile
from tests.support.segments import topic_partition
from tests.tidegate.test_application import config_of
from tidegate import exit_codes
from tidegate.audit_log import LAST_WRITE_S_MAX, ROWS_WAITING_MAX, AuditLog
from tidegate.serve import serve

START_S = 29_000_000 * 60.0
PARTITION = topic_partition("orders", 3)


class Log:
    """One that writes to a file, and what it tells of itself. The clock is trio's."""

    def __init__(self, destination: Path | str) -> None:
        self.meters, self.readiness = Meters(), Readiness(logs=False)
        self.began_s = trio.current_time()
        self.log = AuditLog(str(destination), self.meters.audit, Groups(), self.readiness, self.clock)

    def clock(self) -> float:
        return START_S + trio.current_time() - self.began_s

    def count(self, clients: int = 1, size: int = 10) -> None:
        for number in range(clients):
            self.log.audit.count(Reader("10.0.0.1:5", None, f"c{number}", PARTITION), 0, 1, size)

    def lines(self, outcome: AuditOutcome) -> int:
        return int(self.meters.registry.sample_value("tidegate_audit_lines_total", {"outcome": outcome.value}) or 0)

    @property
    def counted(self) -> tuple[int, int]:
        """Written and dropped."""
        return self.lines(AuditOutcome.WRITTEN), self.lines(AuditOutcome.DROPPED)

    def has_counted(self, written: int, dropped: int) -> Callable[[], bool]:
        return lambda: self.counted == (written, dropped)


def written(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


async def until(is_so: Callable[[], bool]) -> None:
    """Threads write beside trio's clock, which must not run ahead of them."""
    while not is_so():
        await trio.lowlevel.checkpoint()


async def test_the_last_lines_are_written_at_the_end(tmp_path: Path, nursery: trio.Nursery) -> None:
    log = Log(tmp_path / "log")
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600
    async with trio.open_nursery() as running:
        running.start_soon(log.log.run)
        await wait_all_tasks_blocked()
        log.count(2)
        running.cancel_scope.cancel()
    assert [line["client_id"] for line in written(tmp_path / "log")] == ["c0", "c1"]
    assert log.counted == (2, 0)


async def test_what_cannot_be_written_is_counted_and_said_once(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    log = Log(folder / "log")
    with structlog.testing.capture_logs() as said:
        async with trio.open_nursery() as running:
            running.start_soon(log.log.run)
            shutil.rmtree(folder)
            for minute in range(2):
                log.count(3)
                mock_clock.jump(60)
                await until(log.has_counted(0, 3 * minute + 3))
            (trouble,) = [each for each in log.readiness.troubles if each["id"] != "starting"]
            assert (trouble["id"], "No such file" in trouble["what"]) == ("audit_log_fails", True)
            folder.mkdir()
            log.count()
            mock_clock.jump(60)
            await until(lambda: len(said) > 1)
            assert {each["id"] for each in log.readiness.troubles} == {"starting"}
            running.cancel_scope.cancel()
    assert [entry["event"] for entry in said] == ["audit_log_failed", "audit_log_recovered"]
    assert said[0]["key"] == "audit.log"
    assert "No such file" in said[0]["reason"]
    assert log.counted == (1, 6)


async def test_a_disk_that_hangs_stops_nothing_and_costs_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    freed, begun = threading.Event(), threading.Event()

    def hang(file: OwnedFile, lines: bytes) -> None:
        begun.set()
        assert freed.wait(60), "nobody ended the wait"

    log = Log(tmp_path / "log")
    monkeypatch.setattr(log.log, "_write_piece", lambda lines: hang(OwnedFile(tmp_path / "log"), lines))
    with structlog.testing.capture_logs() as said:
        try:
            async with trio.open_nursery() as running:
                running.start_soon(log.log.run)
                await wait_all_tasks_blocked()
                # Each full table is handed over as the next row comes: the third finds no room.
                log.count(3 * ROWS_MAX + 1)
                assert log.counted == (0, ROWS_MAX)
                running.cancel_scope.cancel()
            ended_s = trio.current_time() - log.began_s
        finally:
            freed.set()
    assert ended_s == LAST_WRITE_S_MAX
    assert [entry["event"] for entry in said] == ["audit_log_failed"]
    assert log.lines(AuditOutcome.DROPPED) >= ROWS_MAX + 1
    assert 2 * ROWS_MAX == ROWS_WAITING_MAX


async def test_standard_output_gets_pieces_that_a_pipe_does_not_mix(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    pieces: list[bytes] = []
    monkeypatch.setattr("tidegate.audit_log._STDOUT_DESCRIPTOR", writing)
    write = os.write

    def note(descriptor: int, data: memoryview) -> int:
        if descriptor == writing:  # a thread that another test has given up may write, too
            pieces.append(bytes(data))
        return write(descriptor, data)

    log = Log("stdout")
    monkeypatch.setattr(os, "write", note)
    async with trio.open_nursery() as running:
        running.start_soon(log.log.run)
        await wait_all_tasks_blocked()
        log.count(50)
        running.cancel_scope.cancel()
    monkeypatch.undo()
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        lines = pipe.read().splitlines()
    assert [json.loads(line)["client_id"] for line in lines] == [f"c{number}" for number in range(50)]
    assert len(pieces) > 1
    assert all(len(piece) <= LINE_BYTES_MAX and piece.endswith(b"\n") for piece in pieces)


@pytest.mark.usefixtures("restored_logging")
def test_a_file_that_cannot_be_written_is_one_line_with_its_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "no" / "folder"
    assert trio.run(serve, config_of(tmp_path, f"audit.log={path}\n")) == exit_codes.FOUND_WRONG
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("tidegate:")]
    assert "audit.log" in line
    assert str(path) in line
    assert "No such file" in line
