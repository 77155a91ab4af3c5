"""Where in a segment's log a walk may begin that looks for an offset, or a time. Indexes only make it shorter: without
one that is missing or corrupt it begins earlier, at the log's start at worst."""

from collections.abc import Callable
from typing import TypeVar

from storage.errors import CorruptObjectError, RemoteResourceNotFoundError
from storage.indexes.offset_index import OffsetIndex
from storage.indexes.time_index import TimeIndex
from storage.model import IndexType, RemoteLogSegmentMetadata

T = TypeVar("T")


def walk_start(
    fetch: Callable[[IndexType], bytes], segment: RemoteLogSegmentMetadata, offset: int, timestamp_ms: int | None
) -> tuple[int, OffsetIndex | None]:
    """The position of a batch at or before the first at `offset` or above that may have such a time, and the index.

    Raises:
        RemoteStorageError: the store's trouble.
    """
    index = _sound(lambda: OffsetIndex(fetch(IndexType.OFFSET), segment.start_offset))
    if index is None:
        return 0, None
    if timestamp_ms is not None:
        times = _sound(lambda: TimeIndex(fetch(IndexType.TIMESTAMP), segment.start_offset))
        # No record before an entry is newer than the entry.
        offset = offset if times is None else max(offset, times.lookup(timestamp_ms - 1)[1])
    return index.lookup(offset)[1], index


def _sound(load: Callable[[], T]) -> T | None:
    try:
        return load()
    except (RemoteResourceNotFoundError, CorruptObjectError):
        return None  # `verify` tells of it
