"""OpenedSegment and SegmentStream over bytes, for stores that are made for tests.

    opened = OpenedBytes(metadata, lambda: log, indexes.__getitem__, chunk_bytes=1000)
    opened.open_stream(0, 10).read(10) == log[:10]

A log that is shorter than the metadata says ends in CorruptObjectError, as a truncated object does.
"""

from collections.abc import Callable
from dataclasses import dataclass

from storage.errors import CorruptObjectError
from storage.model import IndexType, RemoteLogSegmentMetadata
from storage.remote_storage_manager import SegmentStream

MEMORY_BYTES = 1000


@dataclass(frozen=True, slots=True)
class OpenedBytes:
    """An OpenedSegment. `log` is called at each `open_stream`, and may raise as a store does."""

    metadata: RemoteLogSegmentMetadata
    log: Callable[[], bytes]
    index: Callable[[IndexType], bytes]
    chunk_bytes: int = 1
    memory_bytes: int = MEMORY_BYTES

    def stored_bytes(self, start_position: int, end_position: int) -> int:
        first = start_position // self.chunk_bytes * self.chunk_bytes
        last = -(-end_position // self.chunk_bytes) * self.chunk_bytes
        return min(last, self.metadata.segment_size_bytes) - first

    def open_stream(self, start_position: int, end_position: int) -> SegmentStream:
        if not 0 <= start_position < end_position <= self.metadata.segment_size_bytes:
            raise ValueError(f"{start_position} to {end_position}")
        return StreamOfBytes(self.log()[start_position:end_position], self.metadata, start_position, end_position)

    def fetches_index(self, index_type: IndexType) -> bool:
        """As OpenedSegment.fetches_index."""
        return True

    def fetch_index(self, index_type: IndexType) -> bytes:
        return self.index(index_type)


class StreamOfBytes:
    """A SegmentStream that should give [start, end) and has `data`."""

    def __init__(self, data: bytes, metadata: RemoteLogSegmentMetadata, start: int, end: int) -> None:
        self._data = data
        self._metadata = metadata
        self._start = start
        self._size_bytes = end - start
        self._at = 0
        self._closed = False

    def read(self, size_bytes: int) -> bytes:
        if self._closed or self._at + size_bytes > self._size_bytes:
            raise ValueError(f"{size_bytes} bytes at {self._at} of {self._size_bytes}")
        piece = self._data[self._at : self._at + size_bytes]
        first = self._start + self._at
        if len(piece) < size_bytes:
            raise CorruptObjectError(
                f"segment {self._metadata.segment_id} is truncated: bytes {first} to {first + size_bytes - 1} of "
                f"{self._metadata.segment_size_bytes} wanted, {len(piece)} there"
            )
        self._at += size_bytes
        return piece

    def close(self) -> None:
        self._closed = True
