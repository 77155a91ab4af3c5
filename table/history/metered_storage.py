"""What a read takes from the store: GETs and bytes, counted where segments are opened. Thread-safe."""

import threading
from dataclasses import dataclass, field

from storage.model import IndexType, RemoteLogSegmentMetadata
from storage.remote_storage_manager import OpenedSegment, RemoteStorageManager, SegmentStream
from table.tasks import TailTask, Task


@dataclass(slots=True)
class StoreMeter:
    """Bytes are those of log and indexes as the brokers wrote them; a manifest counts as a GET alone. `segments`: of
    which log was read. `offsets`: that were passed, each once."""

    gets: int = 0
    offsets: int = 0
    bytes_read: int = 0
    segments: set[bytes] = field(default_factory=set)
    _reached: dict[tuple[str, int], int] = field(default_factory=dict, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def on_get(self) -> None:
        """A GET begins."""
        with self._lock:
            self.gets += 1

    def on_bytes(self, count: int) -> None:
        """Count bytes that came."""
        with self._lock:
            self.bytes_read += count

    def on_rows(self, task: Task, end_offset: int) -> None:
        """The rows of a task below this offset have been read; a partition's tasks one after the other."""
        key = (task.topic, task.partition)
        ranges = [task] if isinstance(task, TailTask) else task.parts
        with self._lock:
            reached = self._reached.get(key, 0)
            for each in ranges:
                first, end = max(reached, each.first_offset), min(end_offset, each.end_offset)
                if first < end:
                    self.offsets += end - first
                    reached = end
            self._reached[key] = reached

    def on_end(self, task: Task) -> None:
        """A task has been read to its end. Where a segment's bytes are cut, the offset there is not known."""
        if isinstance(task, TailTask):
            self.on_rows(task, task.end_offset)
        elif task.parts[-1].end_position >= task.parts[-1].segment.segment_size_bytes:
            self.on_rows(task, task.parts[-1].end_offset)

    def on_segment(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Log of a segment is read."""
        with self._lock:
            self.segments.add(metadata.segment_id.id)


class MeteredStorage:
    """Opens segments of a manager, and tells a meter."""

    def __init__(self, manager: RemoteStorageManager, meter: StoreMeter) -> None:
        self._manager, self._meter = manager, meter

    def open_log_segment(self, metadata: RemoteLogSegmentMetadata) -> OpenedSegment:
        """As RemoteStorageManager.open_log_segment."""
        if self._manager.has_manifests:
            self._meter.on_get()
        return _MeteredSegment(self._manager.open_log_segment(metadata), metadata, self._meter)


class _MeteredSegment:
    """An OpenedSegment."""

    def __init__(self, opened: OpenedSegment, metadata: RemoteLogSegmentMetadata, meter: StoreMeter) -> None:
        self._opened, self._metadata, self._meter = opened, metadata, meter

    @property
    def chunk_bytes(self) -> int:
        return self._opened.chunk_bytes

    @property
    def memory_bytes(self) -> int:
        return self._opened.memory_bytes

    def stored_bytes(self, start_position: int, end_position: int) -> int:
        return self._opened.stored_bytes(start_position, end_position)

    def fetches_index(self, index_type: IndexType) -> bool:
        """As OpenedSegment.fetches_index."""
        return self._opened.fetches_index(index_type)

    def open_stream(self, start_position: int, end_position: int) -> SegmentStream:
        self._meter.on_get()
        self._meter.on_segment(self._metadata)
        return _MeteredStream(self._opened.open_stream(start_position, end_position), self._meter)

    def fetch_index(self, index_type: IndexType) -> bytes:
        if self._opened.fetches_index(index_type):
            self._meter.on_get()
        content = self._opened.fetch_index(index_type)
        self._meter.on_bytes(len(content))
        return content


class _MeteredStream:
    """A SegmentStream."""

    def __init__(self, stream: SegmentStream, meter: StoreMeter) -> None:
        self._stream, self._meter = stream, meter

    def read(self, size_bytes: int) -> bytes | bytearray:
        data = self._stream.read(size_bytes)
        self._meter.on_bytes(len(data))
        return data

    def close(self) -> None:
        self._stream.close()
