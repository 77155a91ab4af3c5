"""A time → the first record of that time or later in a tier of our own: brokers know what they have not deleted."""

from collections.abc import Sequence
from contextlib import closing

from storage.log.log_walk import Depth, LogWalk, PassedOver
from storage.log.segment_scan import LogWindow
from storage.log.walk_start import walk_start
from storage.log.whole_records import iterate_whole_records
from storage.remote_storage_manager import OpenedSegment, SegmentOpener
from table.planning.partition_view import ServedSegment

PIECE_BYTES = 1024 * 1024
RANGE_BYTES = 4 * 1024 * 1024


def first_offset_at(manager: SegmentOpener, segments: Sequence[ServedSegment], timestamp_ms: int) -> int | None:
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
    segment, size_bytes = served.segment, served.segment.segment_size_bytes
    start, index = walk_start(opened.fetch_index, segment, served.first_offset, timestamp_ms)
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
