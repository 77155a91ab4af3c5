"""A window that moves over a segment's log, forwards only, one piece ahead of its reader.

`LogWindow` is the reader's side: bytes at a position, contiguous. `_Gets` is the side of the one background thread:
GETs of whole chunks, read piece by piece, tried again where that may help. At most one piece is fetched while its
reader works, so that two pieces and what the reader still refers to are in memory.

Bytes that cannot be had (a chunk that does not decode, a truncated object) fail the reader, or are stepped over as a
hole: the reader is told, and may go on behind it.
"""

import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from storage.errors import CorruptObjectError
from storage.model import RemoteLogSegmentMetadata
from storage.object_store.retries import call_with_retries
from storage.remote_storage_manager import OpenedSegment, SegmentStream

HOLE_BYTES = 64 * 1024
"""Where a format has no chunks, so much is given up at once."""

HOLES_MAX = 16
"""After so many in a row the rest is taken to be one: a truncated object would cost a few GETs for each."""


class UnreadableBytesError(CorruptObjectError):
    """Bytes of the log cannot be had. `start` and `end` bound them; reading may go on at `end`."""

    def __init__(self, message: str, start: int, end: int) -> None:
        super().__init__(message)
        self.start = start
        self.end = end


class LogWindow:
    """The log of a segment from `start` on. Belongs to one thread; `close` ends what it has under way.

    Args:
        end: what is fetched ahead ends here, save for the rest of a chunk; beyond it only what is asked for.
        piece_bytes: of one piece, at most.
        range_bytes: of one GET, about; whole chunks, at least one.
        has_holes: bytes that cannot be had raise UnreadableBytesError, and only they do; otherwise the store's
            CorruptObjectError, whatever it concerns of the piece.
    """

    def __init__(
        self,
        opened: OpenedSegment,
        segment: RemoteLogSegmentMetadata,
        start: int,
        end: int,
        *,
        piece_bytes: int,
        range_bytes: int,
        has_holes: bool = False,
    ) -> None:
        self._closing = threading.Event()
        self._gets = _Gets(opened, segment, end, range_bytes, self._closing)
        self._read = self._gets.read_or_hole if has_holes else self._gets.read
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="segment-window")
        self._fetch_end = end
        self._size_bytes = segment.segment_size_bytes
        self._piece_bytes = piece_bytes
        self._parts: deque[memoryview] = deque()  # contiguous, from _start on
        self._start = self._end = start
        self._ahead: Future[bytes | bytearray | _Hole] | None = None

    def holds(self, position: int, size_bytes: int) -> bool:
        """Whether these bytes are here already."""
        return position + size_bytes <= self._end

    def view(self, position: int, size_bytes: int) -> memoryview:
        """[position, position + size_bytes), which must lie inside the segment, and not before what was last asked for.

        It stays valid as long as it is referenced. Bytes are copied only where they straddle two pieces.

        Raises:
            RemoteStorageError: as the store answers.
            UnreadableBytesError: see `has_holes`.
        """
        self._move_to(position)
        while not self._parts:
            self._pull(position + size_bytes)
        if len(self._parts[0]) < size_bytes:
            self._join(position + size_bytes)
        return self._parts[0][:size_bytes]

    def close(self) -> None:
        """End the GET under way; returns when its thread has ended. Idempotent."""
        self._closing.set()
        self._executor.shutdown(wait=True, cancel_futures=True)
        self._ahead = None
        self._parts.clear()
        self._gets.close()

    def _move_to(self, position: int) -> None:
        """Let go of what lies before `position`."""
        while self._parts and self._start + len(self._parts[0]) <= position:
            self._start += len(self._parts.popleft())
        if self._parts:
            self._parts[0] = self._parts[0][position - self._start :]
        elif position != self._end:
            self._discard_ahead()
            self._end = position
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
        future = self._ahead or self._submit(wanted_end)
        self._ahead = None
        piece = future.result()
        if isinstance(piece, _Hole):
            self._parts.clear()
            self._start = self._end = piece.end
            raise UnreadableBytesError(str(piece.error), piece.start, piece.end) from piece.error
        self._parts.append(memoryview(piece).toreadonly())
        self._end += len(piece)
        if self._end < self._fetch_end:
            self._ahead = self._submit(self._fetch_end)

    def _submit(self, wanted_end: int) -> "Future[bytes | bytearray | _Hole]":
        return self._executor.submit(
            self._read, self._end, min(self._end + self._piece_bytes, max(wanted_end, self._fetch_end))
        )

    def _discard_ahead(self) -> None:
        if self._ahead is not None:
            # Nobody asked for these bytes yet, so that what went wrong with them does not matter.
            self._ahead.exception()
            self._ahead = None


@dataclass(frozen=True, slots=True)
class _Hole:
    start: int
    end: int
    error: CorruptObjectError


class _Gets:
    """One GET after the other, in one thread at a time. `_position` and `_stream_end` are the open stream's."""

    def __init__(
        self,
        opened: OpenedSegment,
        segment: RemoteLogSegmentMetadata,
        fetch_end: int,
        range_bytes: int,
        closing: threading.Event,
    ) -> None:
        self._opened = opened
        self._segment = segment
        self._chunk_bytes = opened.chunk_bytes
        self._fetch_end = fetch_end
        self._range_bytes = self._chunk_bytes * max(1, range_bytes // self._chunk_bytes)
        self._closing = closing
        self._stream: SegmentStream | None = None
        self._position = 0
        self._stream_end = 0
        self._holes = 0

    def read(self, start: int, end: int) -> bytes | bytearray:
        """The bytes from `start` on, at most to `end`; at least one."""
        return call_with_retries(lambda: self._read(start, end), self._segment, self._closing.wait)

    def read_or_hole(self, start: int, end: int) -> bytes | bytearray | _Hole:
        """As `read`; bytes that are corrupt are narrowed down to a chunk, or HOLE_BYTES."""
        try:
            data = self.read(start, end)
        except CorruptObjectError:
            return self._narrow(start, end)
        self._holes = 0
        return data

    def close(self) -> None:
        """End the GET under way."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    def _narrow(self, start: int, end: int) -> bytes | bytearray | _Hole:
        first_end = min(end, self._chunk_end(start + 1) if self._chunk_bytes > 1 else start + HOLE_BYTES)
        try:
            data = self.read(start, first_end)
        except CorruptObjectError as error:
            self._holes += 1
            is_last = self._holes >= HOLES_MAX
            return _Hole(start, self._segment.segment_size_bytes if is_last else first_end, error)
        self._holes = 0
        return data

    def _read(self, start: int, end: int) -> bytes | bytearray:
        if self._stream is None or self._position != start or self._stream_end <= start:
            self.close()
            self._stream_end = self._range_end(start, end)
            self._stream = self._opened.open_stream(start, self._stream_end)
        size_bytes = min(end, self._stream_end) - start
        try:
            data = self._stream.read(size_bytes)
        except BaseException:
            self.close()
            raise
        self._position = start + size_bytes
        if self._position == self._stream_end:
            self.close()
        return data

    def _range_end(self, start: int, end: int) -> int:
        """Where a GET that begins at `start` ends."""
        range_end = start - start % self._chunk_bytes + self._range_bytes
        return min(range_end, self._chunk_end(max(end, self._fetch_end)))

    def _chunk_end(self, position: int) -> int:
        chunks = -(-position // self._chunk_bytes)
        return min(chunks * self._chunk_bytes, self._segment.segment_size_bytes)
