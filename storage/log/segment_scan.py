"""Scanning a segment: a window that moves over its log drives a walk (`storage.log.log_walk`) over a stream.

Synchronous, in bounded memory. GETs are of whole chunks, read piece by piece, tried again where that may help. A window
that reads ahead has one piece fetched by a thread of its own while its reader works: two pieces and what the reader
still refers to are in memory, else one.

Bytes that cannot be had (a chunk that does not decode, a truncated object) fail the reader, or are a hole
(`has_holes`): the reader is told, and may go on behind it.
"""

import threading
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from storage.errors import CorruptObjectError
from storage.log.log_walk import Found, Steps, UnreadableBytesError, Wanted
from storage.model import RemoteLogSegmentMetadata
from storage.object_store.retries import ATTEMPTS_MAX, Wait, call_with_retries
from storage.remote_storage_manager import OpenedSegment, SegmentStream

HOLE_BYTES = 64 * 1024
"""Where a format has no chunks, so much is given up at once."""

HOLES_MAX = 16
"""After so many in a row the rest is taken to be one: a truncated object would cost a few GETs for each."""

_GAP_BYTES_MAX = 1024 * 1024
"""Bytes that nobody wants are read in parts of this size, where the GET under way has what is behind them."""

R = TypeVar("R")

OnGet = Callable[[int], None]
"""Told of every GET that is sent: its size in the store, in bytes."""


class LogWindow:
    """The log of a segment. Belongs to one thread; `close` ends what it has under way.

    Args:
        end: what is fetched ahead ends here, save for the rest of a chunk; beyond it only what is asked for.
        piece_bytes: of one piece, at most.
        range_bytes: of one GET, about; whole chunks, at least one.
        reads_ahead: the next piece is fetched while the reader works.
        has_holes: bytes that cannot be had raise UnreadableBytesError, and only they do; otherwise the store's
            CorruptObjectError, whatever it concerns of the piece.
        wait: before a GET is tried again; None: until the window is closed.
    """

    def __init__(
        self,
        opened: OpenedSegment,
        segment: RemoteLogSegmentMetadata,
        end: int,
        *,
        piece_bytes: int,
        range_bytes: int,
        reads_ahead: bool = False,
        has_holes: bool = False,
        attempts_max: int = ATTEMPTS_MAX,
        wait: Wait | None = None,
        on_get: OnGet | None = None,
    ) -> None:
        self._opened, self._segment = opened, segment
        self._fetch_end = end
        self._piece_bytes = piece_bytes
        self._chunk_bytes = opened.chunk_bytes
        self._range_bytes = self._chunk_bytes * max(1, range_bytes // self._chunk_bytes)
        self._has_holes = has_holes
        self._closing = threading.Event()
        self._attempts_max, self._wait = attempts_max, wait or self._closing.wait
        self._on_get = on_get
        # The reader's side.
        self._parts: deque[memoryview] = deque()  # contiguous, from _start on
        self._start = self._end = 0
        self._hole: UnreadableBytesError | None = None
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="segment-scan") if reads_ahead else None
        self._ahead: Future[bytes | bytearray | UnreadableBytesError] | None = None
        # The GET under way: one thread at a time, the reader's or the one that reads ahead.
        self._stream: SegmentStream | None = None
        self._position = self._stream_end = 0
        self._holes = 0

    def drive(self, steps: Steps[R]) -> Generator[Found, None, R]:
        """What a walk finds; it is sent the bytes that it wants.

        Raises:
            RemoteStorageError: as the store answers, and what the walk raises.
        """
        try:
            step = next(steps)
            while True:
                if isinstance(step, Wanted):
                    step = self._send(steps, step)
                else:
                    yield step
                    del step  # or two lists of batches would be held
                    step = next(steps)
        except StopIteration as stop:
            result: R = stop.value
            return result

    def answer(self, steps: Steps[R]) -> R:
        """The answer of a walk that finds nothing else. Raises as `drive`."""
        try:
            found = next(self.drive(steps))
        except StopIteration as stop:
            result: R = stop.value
            return result
        raise AssertionError(f"it has found {found}")

    def view(self, position: int, size_bytes: int) -> memoryview:
        """The bytes from `position` on, at least `size_bytes`, which must lie inside the segment.

        To go back costs a GET. The view stays valid as long as it is referenced. Bytes are copied only where they
        straddle two pieces.

        Raises:
            RemoteStorageError: as the store answers.
            UnreadableBytesError: see `has_holes`.
        """
        if self._hole is not None and self._hole.start <= position < self._hole.end:
            raise self._hole
        self._move_to(position)
        while not self._parts:
            self._pull(position + size_bytes)
        if len(self._parts[0]) < size_bytes:
            self._join(position + size_bytes)
        return self._parts[0]

    def close(self) -> None:
        """End the GET under way; returns when its thread has ended. Idempotent."""
        self._closing.set()
        if self._executor is not None:
            self._executor.shutdown(wait=True, cancel_futures=True)
        self._ahead = None
        self._parts.clear()
        self._end_get()

    def _send(self, steps: Steps[R], wanted: Wanted) -> Wanted | Found:
        if wanted.can_wait and wanted.position + wanted.size_bytes > self._end:
            return steps.send(None)
        try:
            data = self.view(wanted.position, wanted.size_bytes)
        except UnreadableBytesError as error:
            return steps.throw(error)
        return steps.send(data)

    def _move_to(self, position: int) -> None:
        """Let go of what lies before `position`."""
        if not self._start <= position <= self._end:
            self._parts.clear()
            if self._ahead is not None:
                # Nobody asked for these bytes yet, so that what went wrong with them does not matter.
                self._ahead.exception()
                self._ahead = None
            self._start = self._end = position
        while self._parts and self._start + len(self._parts[0]) <= position:
            self._start += len(self._parts.popleft())
        if self._parts:
            self._parts[0] = self._parts[0][position - self._start :]
        self._start = position

    def _join(self, end: int) -> None:
        """Make the first part reach to `end`. Each piece is let go of as soon as it is copied."""
        joined = bytearray(end - self._start)
        filled_bytes = 0
        while filled_bytes < len(joined):
            if not self._parts:
                self._pull(end)
            part = self._parts.popleft()
            taken = part[: len(joined) - filled_bytes]
            joined[filled_bytes : filled_bytes + len(taken)] = taken
            filled_bytes += len(taken)
            if len(taken) < len(part):
                self._parts.appendleft(part[len(taken) :])
        self._parts.appendleft(memoryview(joined).toreadonly())

    def _pull(self, wanted_end: int) -> None:
        """Take the next piece, and have the one behind it fetched."""
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            piece = self._fetch(self._end, min(self._end + self._piece_bytes, max(wanted_end, self._fetch_end)))
        else:
            piece = ahead.result()
        if isinstance(piece, UnreadableBytesError):
            self._parts.clear()
            self._start = self._end = piece.end
            self._hole = piece
            raise piece
        self._parts.append(memoryview(piece).toreadonly())
        self._end += len(piece)
        if self._executor is not None and self._end < self._fetch_end:
            ahead_end = min(self._end + self._piece_bytes, self._fetch_end)
            self._ahead = self._executor.submit(self._fetch, self._end, ahead_end)

    # --- the GET under way ---

    def _fetch(self, start: int, end: int) -> bytes | bytearray | UnreadableBytesError:
        """The bytes from `start` on, at most to `end`; at least one. What is corrupt is narrowed down to a hole: a
        chunk, of which no part can be decoded, or HOLE_BYTES."""
        try:
            data = self._retried(start, end)
        except CorruptObjectError:
            if not self._has_holes:
                raise
            hole_end = self._chunk_end(start + 1) if self._chunk_bytes > 1 else min(end, start + HOLE_BYTES)
            try:
                data = self._retried(start, min(end, hole_end))
            except CorruptObjectError as error:
                self._holes += 1
                if self._holes >= HOLES_MAX:
                    hole_end = self._segment.segment_size_bytes
                hole = UnreadableBytesError(str(error), start, hole_end)
                hole.__cause__ = error
                return hole
        self._holes = 0
        return data

    def _retried(self, start: int, end: int) -> bytes | bytearray:
        return call_with_retries(
            lambda: self._read(start, end), self._segment, self._wait, attempts_max=self._attempts_max
        )

    def _read(self, start: int, end: int) -> bytes | bytearray:
        stream = self._stream_at(start, end)
        size_bytes = min(end, self._stream_end) - start
        try:
            while (gap_bytes := start - self._position) > 0:
                self._position += len(stream.read(min(gap_bytes, _GAP_BYTES_MAX)))
            data = stream.read(size_bytes)
        except BaseException:
            self._end_get()
            raise
        self._position = start + size_bytes
        if self._position == self._stream_end:
            self._end_get()
        return data

    def _stream_at(self, start: int, end: int) -> SegmentStream:
        """The GET under way, if it has or will have the byte at `start`; else a new one."""
        if self._stream is None or not self._position <= start < self._stream_end:
            self._end_get()
            range_end = start - start % self._chunk_bytes + self._range_bytes
            self._stream_end = min(range_end, self._chunk_end(max(end, self._fetch_end)))
            if self._on_get is not None:
                self._on_get(self._opened.stored_bytes(start, self._stream_end))
            self._stream, self._position = self._opened.open_stream(start, self._stream_end), start
        return self._stream

    def _chunk_end(self, position: int) -> int:
        chunks = -(-position // self._chunk_bytes)
        return min(chunks * self._chunk_bytes, self._segment.segment_size_bytes)

    def _end_get(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()
