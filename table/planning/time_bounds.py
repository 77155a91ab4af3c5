"""Where a read that ends at a time may end in the log: `timestamp < noon` costs the morning, not the day.

Nothing in the tier proves that. Metadata and indexes know newest records alone, and any later record may be an old one:
a producer's clock may say anything. Times of brokers (LogAppendTime) prove it of their own batch and of no other: a
topic can become LogAppendTime or CreateTime at any time, so that old records may lie between and behind such batches.

So a read has an end only where the user declares an order: `disorder_ms`, no record is older by more than that than a
record before it in its partition. Rows can be missing only where that is not true. Rules:
1. The end is behind the first batch that has a record newer than the time and the disorder together: what follows is
   too new. The time index of the first segment with such a record leads there.
2. Transaction markers always have the times of brokers: they say nothing of records.
3. Where a later segment is older than an earlier one by more than the disorder, there is no such order, and no end.
4. An index that is missing or corrupt gives no end.
"""

from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import groupby

import structlog

from protocol.record_batches import BatchHeader, CorruptBatchError
from storage.errors import CorruptObjectError, RemoteResourceNotFoundError
from storage.indexes.offset_index import OffsetIndex
from storage.indexes.time_index import TimeIndex
from storage.log.log_walk import Depth, LogWalk, PassedOver
from storage.log.segment_scan import LogWindow
from storage.model import IndexType
from storage.object_store.retries import call_with_retries
from storage.remote_storage_manager import SegmentOpener
from table.planning.partition_view import ServedSegment, WantedOffsets

WALK_BYTES_MAX = 1024 * 1024
"""Behind the index's place: some batches, and the markers among them."""

GET_BYTES = 128 * 1024

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


def ended_by_time(
    wanted: Iterable[WantedOffsets], manager: SegmentOpener, *, timestamp_max_ms: int | None, disorder_ms: int | None
) -> tuple[WantedOffsets, ...]:
    """Return what is wanted, up to where all records of its partition are newer than a time.

    Args:
        wanted: those of one partition one after the other, in order of offset.
        timestamp_max_ms: the newest that is wanted; None: any is.
        disorder_ms: None: none is declared.

    Raises:
        RemoteStorageError: the store's trouble.
    """
    if timestamp_max_ms is None or disorder_ms is None:
        return tuple(wanted)
    ended: list[WantedOffsets] = []
    for _, group in groupby(wanted, lambda want: want.view.key):
        wants = list(group)
        all_ = replace(wants[0], tier_end_offset=wants[-1].tier_end_offset, end_offset=wants[-1].end_offset)
        end = _end(all_, manager, timestamp_max_ms, disorder_ms)
        ended += wants if end is None else [_up_to(end, want) for want in wants if want.first_offset < end]
    return tuple(ended)


def _up_to(end: int, want: WantedOffsets) -> WantedOffsets:
    return replace(want, tier_end_offset=min(want.tier_end_offset, end), end_offset=min(want.end_offset, end))


def _end(want: WantedOffsets, manager: SegmentOpener, timestamp_max_ms: int, disorder_ms: int) -> int | None:
    """The offset behind which all records are newer; None: it is not known."""
    newest_ms = timestamp_max_ms + disorder_ms
    served = [each for each in want.view.segments if _is_wanted(each, want)]
    newer = next((each for each in served if each.segment.max_timestamp_ms > newest_ms), None)
    if newer is None:
        return None
    if not _ascend(served, disorder_ms):
        _log.warning("timestamps_not_in_order", partition=want.view.name, disorder_ms=disorder_ms)
        return None
    try:
        batch = _first_newer(manager, newer, want.first_offset, newest_ms)
    except (RemoteResourceNotFoundError, CorruptObjectError, CorruptBatchError) as error:
        _log.warning("time_range_not_ended", partition=want.view.name, reason=str(error))
        return None
    return None if batch is None else batch.last_offset + 1


def _is_wanted(served: ServedSegment, want: WantedOffsets) -> bool:
    return served.first_offset < want.tier_end_offset and served.end_offset > want.first_offset


def _ascend(served: Sequence[ServedSegment], disorder_ms: int) -> bool:
    """Return whether no segment's newest record denies the order (rule 3)."""
    newest_ms = -1
    for each in served:
        if each.segment.max_timestamp_ms + disorder_ms < newest_ms:
            return False
        newest_ms = max(newest_ms, each.segment.max_timestamp_ms)
    return True


def _first_newer(
    manager: SegmentOpener, served: ServedSegment, first_offset: int, newest_ms: int
) -> BatchHeader | None:
    """The segment's first batch with a newer record, from this offset on; None: it is not near where the index says."""
    segment = served.segment
    opened = call_with_retries(lambda: manager.open_log_segment(segment), segment)

    def fetched(kind: IndexType) -> bytes:
        return call_with_retries(lambda: opened.fetch_index(kind), segment)

    index = OffsetIndex(fetched(IndexType.OFFSET), segment.start_offset)
    newer_offset = TimeIndex(fetched(IndexType.TIMESTAMP), segment.start_offset).first_above(newest_ms)
    if newer_offset is None:
        return None
    first_offset = max(first_offset, served.first_offset)
    start = index.lookup(max(newer_offset, first_offset))[1]
    end = min(start + WALK_BYTES_MAX, segment.segment_size_bytes)
    walk = LogWalk(segment, start, end, Depth.BATCHES, index=index)
    window = LogWindow(opened, segment, end, start=start, piece_bytes=GET_BYTES, range_bytes=GET_BYTES)
    with closing(window):
        for found in window.drive(walk.steps()):
            for batch in () if isinstance(found, PassedOver) else found:
                header = batch.header
                is_newer = header.max_timestamp > newest_ms and header.last_offset >= first_offset
                if is_newer and not header.is_control:
                    return header
    return None
