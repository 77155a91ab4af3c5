"""A time → the first record of that time or later in a tier of our own: brokers know nothing of what they have deleted.

Time index and offset index only say where to begin. Without them a segment is read from its start.
"""

from collections.abc import Sequence
from contextlib import closing

from pipeline.planning.partition_view import ServedSegment
from storage.errors import CorruptObjectError, RemoteResourceNotFoundError
from storage.indexes.offset_index import OffsetIndex
from storage.indexes.time_index import TimeIndex
from storage.log.log_walk import Depth, LogWalk, PassedOver
from storage.log.segment_scan import LogWindow
from storage.log.whole_records import iterate_whole_records
from storage.model import IndexType
from storage.remote_storage_manager import OpenedSegment, RemoteStorageManager

PIECE_BYTES = 1024 * 1024
RANGE_BYTES = 4 * 1024 * 1024


def first_offset_at(manager: RemoteStorageManager, segments: Sequence[ServedSegment], timestamp_ms: int) -> int | None:
    """Its offset; None if these segments, which ascend, have none.

    Raises:
        RemoteStorageError: a segment cannot be read.
    """
    for served in segments:
        if served.segment.max_timestamp_ms >= timestamp_ms:
            found = _first_in(manager.open_log_segment(served.segment), served, timestamp_ms)
            if found is not None:
                return found
    return None


def _first_in(opened: OpenedSegment, served: ServedSegment, timestamp_ms: int) -> int | None:
    segment, index = served.segment, _index(opened, served)
    size_bytes, start = segment.segment_size_bytes, 0
    if index is not None:
        start = index.lookup(_begin(opened, served, timestamp_ms))[1]
    walk = LogWalk(segment, start, size_bytes, Depth.BATCHES, index=index)
    window = LogWindow(opened, segment, size_bytes, start=start, piece_bytes=PIECE_BYTES, range_bytes=RANGE_BYTES)
    with closing(window):
        for found in window.drive(walk.steps()):
            for batch in () if isinstance(found, PassedOver) else found:
                if batch.header.max_timestamp < timestamp_ms:
                    continue
                for record in iterate_whole_records(batch.header, batch.data):
                    is_served = served.first_offset <= record.offset < served.end_offset
                    if is_served and record.timestamp_ms >= timestamp_ms:
                        return record.offset
    return None


def _index(opened: OpenedSegment, served: ServedSegment) -> OffsetIndex | None:
    try:
        return OffsetIndex(opened.fetch_index(IndexType.OFFSET), served.segment.start_offset)
    except (RemoteResourceNotFoundError, CorruptObjectError):
        return None


def _begin(opened: OpenedSegment, served: ServedSegment, timestamp_ms: int) -> int:
    try:
        index = TimeIndex(opened.fetch_index(IndexType.TIMESTAMP), served.segment.start_offset)
    except (RemoteResourceNotFoundError, CorruptObjectError):
        return served.first_offset
    return max(served.first_offset, index.lookup(timestamp_ms - 1)[1])
