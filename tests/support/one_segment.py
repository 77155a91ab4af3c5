"""A tier of one segment in memory, for readers of segments: counts what it is asked, and can be made to lie.

world = OneSegment(filled_segment(), chunk_bytes=1000)
manager = world.manager()
world.log[17] ^= 1
world.indexes[IndexType.OFFSET] = b""            # None: there is none
world.failures = [RetriableRemoteStorageError("503")]   # one a GET of the log
world.gets                                       # (start, end) of each
"""

from storage.errors import CorruptObjectError, RemoteResourceNotFoundError
from storage.model import IndexType, RemoteLogSegmentMetadata
from storage.remote_storage_manager import OpenedSegment, SegmentStream
from tests.support.opened_bytes import MEMORY_BYTES, ReadOnlyManager, StreamOfBytes
from tests.support.segments import SyntheticSegment, metadata_of, topic_partition


class OneSegment:
    """An OpenedSegment. `streams_open` counts those that were not closed."""

    memory_bytes = MEMORY_BYTES

    def __init__(self, segment: SyntheticSegment, *, chunk_bytes: int = 1, topic: str = "orders") -> None:
        self.segment = segment
        self.metadata = metadata_of(topic_partition(topic), segment)
        self.chunk_bytes = chunk_bytes
        self.log = bytearray(segment.log)
        self.indexes: dict[IndexType, bytes | None] = {
            IndexType.OFFSET: segment.offset_index,
            IndexType.TIMESTAMP: segment.time_index,
        }
        self.failures: list[Exception] = []
        self.index_failures: list[Exception] = []
        self.corrupt_chunks: set[int] = set()
        self.gets: list[tuple[int, int]] = []
        self.streams_open = 0

    def manager(self) -> "OneSegmentManager":
        return OneSegmentManager(self)

    def stored_bytes(self, start_position: int, end_position: int) -> int:
        return end_position - start_position

    def open_stream(self, start_position: int, end_position: int) -> SegmentStream:
        size_bytes = self.metadata.segment_size_bytes
        assert 0 <= start_position < end_position <= size_bytes
        assert end_position % self.chunk_bytes == 0 or end_position == size_bytes, "a GET is of whole chunks"
        self.gets.append((start_position, end_position))
        if self.failures:
            raise self.failures.pop(0)
        return CountedStream(self, start_position, end_position)

    def fetches_index(self, index_type: IndexType) -> bool:
        """As OpenedSegment.fetches_index."""
        return True

    def fetch_index(self, index_type: IndexType) -> bytes:
        if self.index_failures:
            raise self.index_failures.pop(0)
        content = self.indexes[index_type]
        if content is None:
            raise RemoteResourceNotFoundError(f"no {index_type.name} index")
        return content


class CountedStream(StreamOfBytes):
    """A SegmentStream of the world's log as it is now. A corrupt chunk fails each read of it.

    `position`: of the byte that is read next.
    """

    def __init__(self, world: OneSegment, start: int, end: int) -> None:
        super().__init__(bytes(world.log[start:end]), world.metadata, start, end)
        self._world = world
        self.position = start
        world.streams_open += 1

    def read(self, size_bytes: int) -> bytes:
        chunk_bytes = self._world.chunk_bytes
        chunks = range(self.position // chunk_bytes, (self.position + size_bytes - 1) // chunk_bytes + 1)
        for chunk in self._world.corrupt_chunks:
            if chunk in chunks:
                raise CorruptObjectError(f"log object: chunk {chunk}: its tag is wrong")
        self.position += size_bytes
        return super().read(size_bytes)

    def close(self) -> None:
        if not self._closed:
            self._world.streams_open -= 1
        super().close()


class OneSegmentManager(ReadOnlyManager):
    """A RemoteStorageManager that opens the one segment; `opened` counts."""

    def __init__(self, opened: OpenedSegment) -> None:
        super().__init__()
        self._opened = opened
        self.opened = 0

    def open_log_segment(self, metadata: RemoteLogSegmentMetadata) -> OpenedSegment:
        self.opened += 1
        return self._opened
