"""Lines for standard error, written by a thread: a slow reader of them, or none, stops nothing else.

A terminal that is held (Ctrl-S) and a container's log driver that waits for its disk take nothing for as long as they
like. A pipe holds 64 KiB for them.

Rule 1. No more than WAITING_BYTES_MAX wait; lines beyond are lost and counted, and when lines are taken again one says
        how many.
Rule 2. At the end LAST_WRITE_S_MAX is waited for what is left.
Rule 3. A process that is to be forked has no thread yet: until `lines_in_thread`, and after it, lines are written at
        once.
"""

import io
import os
import select
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import structlog

WAITING_BYTES_MAX: Final = 1024 * 1024
"""Those that are being written among them."""

LAST_WRITE_S_MAX: Final = 2.0

_log = structlog.get_logger(__name__)


class LineWriter:
    """Thread-safe. `close` must follow."""

    def __init__(self, descriptor: int) -> None:
        self.lost = 0
        """Lines."""
        self._descriptor = descriptor
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._is_ending = False
        self._changed = threading.Condition()
        # It may be stuck for ever, and the process is to end all the same.
        self._thread = threading.Thread(target=self._run, name="log lines", daemon=True)
        self._thread.start()

    def put(self, text: str) -> None:
        """Write whole lines soon, or lose them."""
        data = text.encode("utf-8", "backslashreplace")
        with self._changed:
            if self._is_ending or self._waiting_bytes + len(data) > WAITING_BYTES_MAX:
                self.lost += 1
                return
            self._waiting.append(data)
            self._waiting_bytes += len(data)
            self._changed.notify()

    def close(self) -> bool:
        """Return whether everything was written in time."""
        with self._changed:
            self._is_ending = True
            self._changed.notify()
        self._thread.join(LAST_WRITE_S_MAX)
        return not self._thread.is_alive()

    def _run(self) -> None:
        told = 0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_ending)
                lines, self._waiting = self._waiting, []
            if not lines:
                return
            for line in lines:
                try:
                    _write(self._descriptor, line)
                except OSError:  # only the count can say so
                    with self._changed:
                        self.lost += 1
                with self._changed:
                    self._waiting_bytes -= len(line)
            if self.lost > told:
                lost, told = self.lost - told, self.lost
                _log.warning("log_lines_lost", lines=lost, reason="standard error took none for too long")


def _write(descriptor: int, line: bytes) -> None:
    left = memoryview(line)
    while left:
        try:
            left = left[os.write(descriptor, left) :]
        except BlockingIOError:  # somebody whose it is, too, has set it so
            poll = select.poll()
            poll.register(descriptor, select.POLLOUT)
            poll.poll()


class StandardError:
    """A stream of whole lines, by way of the writer if there is one."""

    def __init__(self) -> None:
        self.writer: LineWriter | None = None

    def write(self, lines: str) -> None:
        """Write whole lines."""
        if self.writer is None:
            sys.stderr.write(lines)
        else:
            self.writer.put(lines)

    def flush(self) -> None:
        """Nothing waits here."""
        if self.writer is None:
            sys.stderr.flush()


STANDARD_ERROR: Final = StandardError()


def lines_lost() -> int:
    """Lines that were lost up to now."""
    return 0 if STANDARD_ERROR.writer is None else STANDARD_ERROR.writer.lost


@contextmanager
def lines_in_thread() -> Iterator[None]:
    """Until the block ends, nobody waits for the reader of standard error; where a program has put something without a
    descriptor in its place, that is written to as before."""
    sys.stderr.flush()
    try:
        descriptor = sys.stderr.fileno()
    except io.UnsupportedOperation:
        yield
        return
    writer = STANDARD_ERROR.writer = LineWriter(descriptor)
    try:
        yield
    finally:
        if writer.close():
            STANDARD_ERROR.writer = None  # otherwise what else is said is lost, too
