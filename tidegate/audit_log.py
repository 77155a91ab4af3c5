"""The audit log's lines on their way to a file or to standard output (docs/operate/secure.md#who-reads-what).

Rule 1. Lines are made and written in a thread, one batch at a time, so a slow or full disk stops nothing else. What it
        fails to take is dropped and counted, with one log line when that begins and one when it is over.
Rule 2. No more than ROWS_WAITING_MAX wait; what comes beyond is dropped and counted too.
Rule 3. A file is opened for each batch: a rotated one may be renamed at any time, and needs no signal. Several workers
        add to one file, each by whole lines (`storage.owned_file`).
Rule 4. Standard output gets pieces of whole lines that a pipe does not mix with those of other workers. Log lines go to
        standard error, so nothing else is on it.
Rule 5. At the end what has been read is written, within LAST_WRITE_S_MAX.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

import structlog
import trio

from metrics.meters import AuditOutcome
from metrics.process_meters import AuditMeter
from metrics.troubles import TroubleId
from proxy.connection.audit import LINE_BYTES_MAX, ROWS_MAX, Audit, Rows, line_of
from proxy.connection.names import Groups
from proxy.readiness import Readiness
from storage.owned_file import OwnedFile
from tidegate.config.model import STDOUT

ROWS_WAITING_MAX: Final = 2 * ROWS_MAX
"""Those that are being written among them."""

FILE_PIECE_BYTES_MAX: Final = 1024 * 1024

LAST_WRITE_S_MAX: Final = 5.0

_STDOUT_DESCRIPTOR: Final = 1

_log = structlog.get_logger(__name__)


class AuditLog:
    """Owns its `audit`, which connections feed. `run` must be running.

    Args:
        destination: a path, or STDOUT.
        groups, clock: as the audit's.

    Raises:
        OSError: the file cannot be written; names the key.
    """

    def __init__(
        self,
        destination: str,
        meter: AuditMeter,
        groups: Groups,
        readiness: Readiness,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.audit = Audit(self._take, groups, clock)
        self._destination = destination
        self._meter = meter
        self._readiness = readiness
        self._piece_bytes_max = FILE_PIECE_BYTES_MAX
        self._write_piece: Callable[[bytes], None] = OwnedFile(Path(destination)).append
        if destination == STDOUT:
            self._piece_bytes_max, self._write_piece = LINE_BYTES_MAX, _write_stdout
        self._waiting: deque[tuple[int, Rows]] = deque()
        self._rows_waiting = 0
        self._has_rows = trio.Event()
        self._is_ending = False
        self._writing = trio.CancelScope(shield=True)
        self._is_failing = False
        try:
            self._write_piece(b"")
        except OSError as error:
            raise OSError(unwritable(destination, error)) from error

    async def run(self) -> None:
        """Write each minute's lines as it ends, until cancelled; and then those of the last one."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._write_on)
            try:
                while True:
                    left_s = self.audit.flush()
                    await trio.sleep(left_s)
            finally:
                with trio.CancelScope(shield=True):
                    await trio.lowlevel.checkpoint()  # connections that end with us tell what they have sent
                self.audit.flush()
                self._is_ending = True
                self._has_rows.set()
                self._writing.deadline = trio.current_time() + LAST_WRITE_S_MAX

    async def _write_on(self) -> None:
        with self._writing:
            while self._waiting or not self._is_ending:
                await self._has_rows.wait()
                self._has_rows = trio.Event()
                await self._write_waiting()
        if self._rows_waiting:
            self._drop(self._rows_waiting, f"it did not take them within {LAST_WRITE_S_MAX:g} s at the end")

    def _take(self, minute: int, rows: Rows) -> None:
        if self._rows_waiting + len(rows) > ROWS_WAITING_MAX:
            self._drop(len(rows), f"{self._rows_waiting} lines wait for it already")
            return
        self._rows_waiting += len(rows)
        self._waiting.append((minute, rows))
        self._has_rows.set()

    async def _write_waiting(self) -> None:
        while self._waiting:
            minute, rows = self._waiting.popleft()
            written, failure = await trio.to_thread.run_sync(self._write, minute, rows, abandon_on_cancel=True)
            self._rows_waiting -= len(rows)
            self._meter.on_lines(AuditOutcome.WRITTEN, written)
            self._meter.on_lines(AuditOutcome.DROPPED, len(rows) - written)
            if failure is not None:
                self._drop(0, str(failure))
            elif self._is_failing:
                self._is_failing = False
                self._readiness.tell(TroubleId.AUDIT_LOG_FAILS)
                _log.info("audit_log_recovered", destination=self._destination)

    def _write(self, minute: int, rows: Rows) -> tuple[int, OSError | None]:
        """In a thread. How many lines it wrote, and what kept it from the others."""
        lines = (line_of(minute, reader, row, self.audit.group_of(reader)) for reader, row in rows.items())
        written, failure = 0, None
        for piece in _pieces(lines, self._piece_bytes_max):
            try:
                self._write_piece(b"".join(piece))
                written += len(piece)
            except OSError as error:
                failure = error
        return written, failure

    def _drop(self, lines: int, reason: str) -> None:
        self._meter.on_lines(AuditOutcome.DROPPED, lines)
        self._readiness.tell(TroubleId.AUDIT_LOG_FAILS, [f"{self._destination}: {reason}"])
        if not self._is_failing:
            self._is_failing = True
            _log.warning("audit_log_failed", destination=self._destination, reason=reason, key="audit.log")


def unwritable(destination: str, error: OSError) -> str:
    """Return what keeps it from being written, and what to do."""
    return (
        f"cannot write {destination}, which audit.log names: {error.strerror or error}; name a file in a folder that "
        "is there, for the user of serve, or stdout"
    )


def _pieces(lines: Iterable[bytes], bytes_max: int) -> Iterator[list[bytes]]:
    piece: list[bytes] = []
    size_bytes = 0
    for line in lines:
        if piece and size_bytes + len(line) > bytes_max:
            yield piece
            piece, size_bytes = [], 0
        piece.append(line)
        size_bytes += len(line)
    if piece:
        yield piece


def _write_stdout(lines: bytes) -> None:
    left = memoryview(lines)
    while left:
        left = left[os.write(_STDOUT_DESCRIPTOR, left) :]
