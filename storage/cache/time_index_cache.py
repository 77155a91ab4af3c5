"""Parsed time indexes, within limits, one fetch each however many ask.

Rules:
1. A missing or corrupt index is not an error: an empty one stands in for it, so that a look-up by time scans from
   the segment's start, and it is counted. Rebuilding it would be that very scan, of the whole segment.
2. Trouble that may pass is raised: a store that fails, and an index that is absent soon after FINISHED.
3. A deleted segment's index leaves at once, also one that is under way.
4. What was fetched is kept on disk too.
"""

from collections.abc import Callable

import structlog
import trio

from metrics.cache_probes import CacheProbe
from metrics.get_probe import GetObject, GetProbe
from storage.cache.kept_indexes import IndexPart, KeptIndexes
from storage.cache.object_gets import ObjectGets
from storage.cache.opened_segments import OpenedSegments, wall_clock_ms
from storage.cache.segment_entries import ENTRIES_MAX, SegmentEntries
from storage.cache.throttle import Throttle
from storage.errors import CorruptObjectError, RemoteResourceNotFoundError
from storage.indexes.time_index import TimeIndex
from storage.model import IndexType, RemoteLogSegmentMetadata, Uuid
from storage.remote_storage_manager import OpenedSegment

INDEX_BYTES_MAX = 16 * 1024 * 1024
"""Of all parsed time indexes: a 1 GiB segment of 16 KiB batches has 0.8 MiB of index. Look-ups by time are rare."""

_MAX_TIMESTAMP_MS = 2**63 - 1

_log = structlog.get_logger(__name__)


class TimeIndexCache:
    """Time indexes by segment. Owned by the trio thread.

    Args:
        segments: opens them.
        nursery: the application's; fetches live in it.
        limiter: bounds GETs in flight.
        kept: indexes on disk; None: none.
        now_ms: the clock that `event_timestamp_ms` of a segment is compared with.
    """

    def __init__(
        self,
        segments: OpenedSegments,
        *,
        nursery: trio.Nursery,
        limiter: trio.CapacityLimiter,
        gets: GetProbe,
        probe: CacheProbe,
        kept: KeptIndexes | None = None,
        bytes_max: int = INDEX_BYTES_MAX,
        indexes_max: int = ENTRIES_MAX,
        now_ms: Callable[[], int] = wall_clock_ms,
        throttle: Throttle | None = None,
    ) -> None:
        self._segments = segments
        self._kept = kept or KeptIndexes(None)
        self._probe = probe
        self._gets = ObjectGets(limiter, gets, now_ms, throttle)
        self._indexes: SegmentEntries[TimeIndex] = SegmentEntries(nursery, bytes_max=bytes_max, entries_max=indexes_max)

    @property
    def size_bytes(self) -> int:
        return self._indexes.size_bytes

    def resident(self, segment: RemoteLogSegmentMetadata) -> TimeIndex | None:
        """The index if it is in memory."""
        return self._indexes.resident(segment.segment_id.id)

    async def get(self, segment: RemoteLogSegmentMetadata) -> TimeIndex:
        """The index, fetched when it is not in memory; an empty one if there is none to be had.

        Raises:
            RemoteStorageError: the segment cannot be opened, or a later attempt may do better.

        Cancellation: the fetch goes on.
        """
        index = self.resident(segment)
        if index is None:
            index = await self._indexes.start(segment.segment_id.id, lambda: self._load(segment)).wait()
        return index

    def drop_segment(self, segment_id: Uuid) -> None:
        """Forget a deleted segment's index."""
        self._indexes.drop(segment_id)

    async def _load(self, segment: RemoteLogSegmentMetadata) -> tuple[TimeIndex, int]:
        kept = await self._kept.read(segment, IndexPart.TIMESTAMP, lambda data: TimeIndex(data, segment.start_offset))
        if kept is not None:
            return kept
        opened = await self._segments.get(segment)
        kind = GetObject.INDEX if opened.fetches_index(IndexType.TIMESTAMP) else None
        try:
            index, data = await self._gets.run(segment, kind, lambda: self._fetch(opened, segment))
        except (RemoteResourceNotFoundError, CorruptObjectError) as error:
            self._probe.on_index_rebuilt("time")
            _log.warning("index_rebuilt", segment=str(segment.segment_id), index="time", reason=str(error))
            return TimeIndex(b"", segment.start_offset), 0
        # Not of a segment that was deleted meanwhile.
        if self._indexes.under_way(segment.segment_id.id) is not None:
            self._kept.keep(segment, IndexPart.TIMESTAMP, data)
        return index, len(data)

    def _fetch(self, opened: OpenedSegment, segment: RemoteLogSegmentMetadata) -> tuple[TimeIndex, bytes]:
        """In a worker thread."""
        name = f"time index of {segment.segment_id}"
        data = opened.fetch_index(IndexType.TIMESTAMP)
        index = TimeIndex(data, segment.start_offset, name)
        timestamp_ms, offset = index.lookup(_MAX_TIMESTAMP_MS)
        if len(index) and offset > segment.end_offset:
            raise CorruptObjectError(f"{name}: its last entry, {timestamp_ms} at {offset}, lies outside the segment")
        return index, data
