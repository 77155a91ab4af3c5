"""Opened segments: the manifest of one that is read again and again is fetched once.

Rules:
1. One opening at a time for each segment, whoever asks (`storage.cache.segment_entries`); a failure is not kept.
2. A manifest that is absent soon after FINISHED is asked for again (`storage.cache.object_gets`): a store may show an
   object later than it took it. It is never remembered as absent.
3. A deleted segment leaves at once, also one whose opening is under way.
"""

import time
from collections.abc import Callable

import trio

from metrics.cache_probes import CacheProbe
from metrics.get_probe import GetObject, GetProbe
from storage.cache.object_gets import ObjectGets
from storage.cache.segment_entries import ENTRIES_MAX, SegmentEntries
from storage.cache.throttle import Throttle
from storage.model import RemoteLogSegmentMetadata, Uuid
from storage.remote_storage_manager import OpenedSegment, RemoteStorageManager

OPENED_BYTES_MAX = 32 * 1024 * 1024
"""Of all opened segments: a manifest with 256 chunk sizes and a data key costs some 4 KiB, so thousands of them."""


def wall_clock_ms() -> int:
    """The time of day, as the metadata of segments has it."""
    return time.time_ns() // 1_000_000


class OpenedSegments:
    """Opened segments by id. Owned by the trio thread.

    Args:
        nursery: the application's; openings live in it.
        limiter: bounds GETs in flight.
        now_ms: the clock that `event_timestamp_ms` of a segment is compared with.
    """

    def __init__(
        self,
        storage_manager: RemoteStorageManager,
        *,
        nursery: trio.Nursery,
        limiter: trio.CapacityLimiter,
        gets: GetProbe,
        cache: CacheProbe,
        bytes_max: int = OPENED_BYTES_MAX,
        segments_max: int = ENTRIES_MAX,
        now_ms: Callable[[], int] = wall_clock_ms,
        throttle: Throttle | None = None,
    ) -> None:
        self._storage_manager = storage_manager
        self._get_kind = GetObject.MANIFEST if storage_manager.has_manifests else None
        self._gets = ObjectGets(limiter, gets, now_ms, throttle)
        self._entries: SegmentEntries[OpenedSegment] = SegmentEntries(
            nursery, bytes_max=bytes_max, entries_max=segments_max, on_change=cache.on_opened_segments
        )

    @property
    def size_bytes(self) -> int:
        return self._entries.size_bytes

    def resident(self, segment: RemoteLogSegmentMetadata) -> OpenedSegment | None:
        """The segment if it is open."""
        return self._entries.resident(segment.segment_id.id)

    async def get(self, segment: RemoteLogSegmentMetadata) -> OpenedSegment:
        """The opened segment; no await when it is open already.

        Raises:
            RemoteStorageError: as RemoteStorageManager.open_log_segment.

        Cancellation: the opening goes on.
        """
        opened = self.resident(segment)
        if opened is None:
            opened = await self._entries.start(segment.segment_id.id, lambda: self._open(segment)).wait()
        return opened

    def drop_segment(self, segment_id: Uuid) -> None:
        """Forget a deleted segment."""
        self._entries.drop(segment_id)

    async def _open(self, segment: RemoteLogSegmentMetadata) -> tuple[OpenedSegment, int]:
        opened = await self._gets.run(segment, self._get_kind, lambda: self._storage_manager.open_log_segment(segment))
        return opened, opened.memory_bytes
