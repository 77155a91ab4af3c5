"""Rebuilding a segment's offset index from its batches (KIP-405's advice for a lost or broken index).

Synchronous: reads the log once, in order, by GETs of about SCAN_RANGE_BYTES in whole chunks, and looks at batch
headers only; a GET that would bring nothing but the inside of one batch is left out. No more than three pieces of
SCAN_PIECE_BYTES are in memory, whatever the segment's size.
"""

from collections.abc import Callable, Iterator
from contextlib import closing

from protocol.record_batches import HEADER_BYTES, BatchHeader, CorruptBatchError, read_header
from storage.errors import CorruptObjectError
from storage.indexes.offset_index import build_offset_index
from storage.model import RemoteLogSegmentMetadata
from storage.remote_storage_manager import OpenedSegment, SegmentStream

SCAN_RANGE_BYTES = 8 * 1024 * 1024
"""A failure costs one such range, and a connection is not held for a whole segment."""

SCAN_PIECE_BYTES = 1024 * 1024

OnGet = Callable[[int], None]
"""Told of every GET that is sent: its size in the store, in bytes."""


def rebuild_offset_index(
    opened: OpenedSegment, segment: RemoteLogSegmentMetadata, *, on_get: OnGet | None = None
) -> bytes:
    """The index as Kafka would have written it with the default interval.

    Raises:
        CorruptObjectError: a batch header that makes no sense, or a log shorter than the metadata says; names segment
            and position.
        RemoteStorageError: the log cannot be read.
    """
    return build_offset_index(segment.start_offset, scan_batches(opened, segment, on_get=on_get))


def scan_batches(
    opened: OpenedSegment, segment: RemoteLogSegmentMetadata, *, on_get: OnGet | None = None
) -> Iterator[tuple[int, int]]:
    """(position, last offset) of every batch of the segment's log, in order."""
    for position, header in scan_headers(opened, segment, on_get=on_get):
        yield position, header.last_offset


def scan_headers(
    opened: OpenedSegment, segment: RemoteLogSegmentMetadata, *, on_get: OnGet | None = None
) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of every batch of the segment's log, in order. What is inside batches is not looked at.

    Raises:
        CorruptObjectError: a header that makes no sense, or a log shorter than the metadata says.
        RemoteStorageError: the log cannot be read.
    """
    position, size = 0, segment.segment_size_bytes
    with closing(_Headers(opened, size, on_get)) as headers:
        while position < size:
            data, at = headers.at(position)
            try:
                header = read_header(data, at)
            except CorruptBatchError as error:
                raise CorruptObjectError(f"segment {segment.segment_id}, batch at {position}: {error}") from error
            if position + header.size_bytes > size:
                raise CorruptObjectError(
                    f"segment {segment.segment_id}: the batch at {position} reaches beyond its end"
                )
            yield position, header
            position += header.size_bytes


class _Headers:
    """A window that moves over the log, forwards only. `_read_to`: where the window ends."""

    def __init__(self, opened: OpenedSegment, size_bytes: int, on_get: OnGet | None) -> None:
        self._opened = opened
        self._size_bytes = size_bytes
        self._on_get = on_get
        self._range_bytes = opened.chunk_bytes * max(1, SCAN_RANGE_BYTES // opened.chunk_bytes)
        self._stream: SegmentStream | None = None
        self._stream_end = 0
        self._window = memoryview(b"")
        self._read_to = 0

    def at(self, position: int) -> tuple[memoryview, int]:
        """A buffer with the header of the batch at `position` (less when the log ends in it), and where in there."""
        header_end = min(position + HEADER_BYTES, self._size_bytes)
        while self._read_to < header_end:
            if self._stream is None or position >= self._stream_end or self._read_to == self._stream_end:
                self._open_range(position)
            self._read_piece(position)
        return self._window, len(self._window) - (self._read_to - position)

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()

    def _open_range(self, position: int) -> None:
        """Begin the GET of the range that holds `position`, or what follows the window if that is later."""
        self.close()
        self._stream = None
        start = max(position, self._read_to)
        if start > self._read_to:
            self._window, self._read_to = memoryview(b""), start
        end = min(start - start % self._range_bytes + self._range_bytes, self._size_bytes)
        if self._on_get is not None:
            self._on_get(self._opened.stored_bytes(start, end))
        self._stream, self._stream_end = self._opened.open_stream(start, end), end

    def _read_piece(self, position: int) -> None:
        """The stream's next piece; of the window only what is at or after `position` is kept."""
        assert self._stream is not None
        piece = self._stream.read(min(SCAN_PIECE_BYTES, self._stream_end - self._read_to))
        left = (
            self._window[max(0, len(self._window) - (self._read_to - position)) :] if position < self._read_to else b""
        )
        # What is left is shorter than a header, else it would not take another piece.
        self._window = memoryview(b"".join((left, piece)) if left else piece)
        self._read_to += len(piece)
