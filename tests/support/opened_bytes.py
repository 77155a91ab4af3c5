"""OpenedSegment and SegmentStream over bytes, and what else stores have in common that are made for tests.

    opened = OpenedBytes(metadata, lambda: log, indexes.__getitem__, chunk_bytes=1000)
    opened.open_stream(0, 10).read(10) == log[:10]

A log that is shorter than the metadata says ends in TruncatedObjectError, as a truncated object does.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from storage.errors import TruncatedObjectError
from storage.model import IndexType, LogSegmentData, RemoteLogSegmentMetadata
from storage.remote_storage_manager import OpenedSegment, SegmentInspection, SegmentStream, StoredObject

MEMORY_BYTES = 1000


class ReadOnlyManager:
    """A RemoteStorageManager but for what a store says itself; who asks for the rest has its test fail."""

    has_manifests = False

    def __init__(self, identity: str = "made for tests") -> None:
        self.identity = identity

    def clock_offset_ms(self) -> int | None:
        return None

    def warm_up(self) -> None:
        """Nothing to load."""

    def ask(self) -> None:
        """It answers."""

    def close(self) -> None:
        """Nothing is held."""

    def open_log_segment(self, metadata: RemoteLogSegmentMetadata) -> OpenedSegment:
        raise NotImplementedError

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> bytes:
        raise NotImplementedError("readers open a segment")

    def fetch_log_segment(
        self, metadata: RemoteLogSegmentMetadata, start_position: int, end_position: int | None = None
    ) -> bytes:
        raise NotImplementedError("readers open a segment")

    def copy_log_segment_data(self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData) -> None:
        raise NotImplementedError("tests put objects there themselves")

    def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        raise NotImplementedError("nothing that reads asks for this")

    def inspect_segment(self, metadata: RemoteLogSegmentMetadata) -> SegmentInspection:
        raise NotImplementedError("nothing that reads asks for this")

    def list_objects(self, topic: str | None = None) -> Iterator[StoredObject]:
        raise NotImplementedError("nothing that reads asks for this")


class StreamOfBytes:
    """A SegmentStream that should give [start, end) and has `data`."""

    def __init__(self, data: bytes, metadata: RemoteLogSegmentMetadata, start: int, end: int) -> None:
        self._data = data
        self._metadata = metadata
        self._start = start
        self._size_bytes = end - start
        self._at = 0
        self._closed = False

    @property
    def left(self) -> range:
        """Positions of the bytes that are still to be read."""
        return range(self._start + self._at, self._start + self._size_bytes)

    def read(self, size_bytes: int) -> bytes:
        if self._closed or self._at + size_bytes > self._size_bytes:
            raise ValueError(f"{size_bytes} bytes at {self._at} of {self._size_bytes}")
        piece = self._data[self._at : self._at + size_bytes]
        first = self._start + self._at
        if len(piece) < size_bytes:
            raise TruncatedObjectError(
                f"segment {self._metadata.segment_id} is truncated: bytes {first} to {first + size_bytes - 1} of "
                f"{self._metadata.segment_size_bytes} wanted, {len(piece)} there",
                first + len(piece),
            )
        self._at += size_bytes
        return piece

    def close(self) -> None:
        self._closed = True


@dataclass(frozen=True, slots=True)
class OpenedBytes:
    """An OpenedSegment. `log` is called at each `open_stream`, and may raise as a store does."""

    metadata: RemoteLogSegmentMetadata
    log: Callable[[], bytes]
    index: Callable[[IndexType], bytes]
    chunk_bytes: int = 1
    memory_bytes: int = MEMORY_BYTES
    streams: Callable[[bytes, RemoteLogSegmentMetadata, int, int], SegmentStream] = StreamOfBytes
    """What `open_stream` gives of the bytes."""

    def stored_bytes(self, start_position: int, end_position: int) -> int:
        first = start_position // self.chunk_bytes * self.chunk_bytes
        last = -(-end_position // self.chunk_bytes) * self.chunk_bytes
        return min(last, self.metadata.segment_size_bytes) - first

    def open_stream(self, start_position: int, end_position: int) -> SegmentStream:
        if not 0 <= start_position < end_position <= self.metadata.segment_size_bytes:
            raise ValueError(f"{start_position} to {end_position}")
        return self.streams(self.log()[start_position:end_position], self.metadata, start_position, end_position)

    def fetches_index(self, index_type: IndexType) -> bool:
        """As OpenedSegment.fetches_index."""
        return True

    def fetch_index(self, index_type: IndexType) -> bytes:
        return self.index(index_type)
