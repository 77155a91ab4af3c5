"""Parsed transaction indexes, within limits, one fetch each however many ask.

Rules:
1. A segment without aborts has no index: TxnIndexEmpty says so without a fetch, otherwise the object is absent. Absent
   is believed after the attempts that a fresh segment's object gets (`storage.cache.object_gets`), and only where no
   manifest says that there are bytes: an index that is lost is an error, and is not remembered.
2. A corrupt index is fetched once more and then an error, as at the broker. Rejected: rebuilding it as the offset
   index is. Which transaction a marker ends takes the state of all producers since segments before.
3. That an index is empty is remembered apart, by the segment's id alone: brokers before 4.0 never say TxnIndexEmpty,
   and a search for aborts walks over thousands of such segments.
4. A deleted segment's index leaves at once, also one that is under way.
5. What was fetched is kept on disk too, unless it is empty.
"""

from collections.abc import Callable
from functools import partial

import trio

from metrics.get_probe import GetObject, GetProbe
from storage.cache.flight import Flight
from storage.cache.kept_indexes import IndexPart, KeptIndexes
from storage.cache.object_gets import ObjectGets
from storage.cache.opened_segments import OpenedSegments, wall_clock_ms
from storage.cache.segment_entries import ENTRIES_MAX, SegmentEntries
from storage.cache.throttle import Throttle
from storage.errors import RemoteResourceNotFoundError
from storage.indexes.transaction_index import (
    TransactionIndex,
    absent_transaction_index,
    segment_transaction_index,
)
from storage.model import IndexType, RemoteLogSegmentMetadata, Uuid
from storage.remote_storage_manager import OpenedSegment

TRANSACTION_INDEX_BYTES_MAX = 8 * 1024 * 1024
"""Of all parsed transaction indexes: an abort is 34 bytes, so some 240,000 of them."""

EMPTY_MAX = 100_000
"""Segments remembered as having no aborts, the first remembered is forgotten first: 150 bytes each."""

_EMPTY = TransactionIndex(b"")


class TransactionIndexCache:
    """Transaction indexes by segment. Owned by the trio thread.

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
        kept: KeptIndexes | None = None,
        bytes_max: int = TRANSACTION_INDEX_BYTES_MAX,
        indexes_max: int = ENTRIES_MAX,
        now_ms: Callable[[], int] = wall_clock_ms,
        throttle: Throttle | None = None,
    ) -> None:
        self._segments = segments
        self._kept = kept or KeptIndexes(None)
        self._gets = ObjectGets(limiter, gets, now_ms, throttle)
        self._indexes: SegmentEntries[TransactionIndex] = SegmentEntries(
            nursery, bytes_max=bytes_max, entries_max=indexes_max
        )
        self._empty: dict[Uuid, None] = {}

    def __len__(self) -> int:
        """Indexes in memory; those known to be empty are not among them."""
        return len(self._indexes)

    @property
    def size_bytes(self) -> int:
        return self._indexes.size_bytes

    def is_known_empty(self, segment: RemoteLogSegmentMetadata) -> bool:
        """Whether it is known, without a fetch, that the segment has no aborts."""
        return segment.txn_index_empty or segment.segment_id.id in self._empty

    async def get(self, segment: RemoteLogSegmentMetadata) -> TransactionIndex:
        """The index, fetched when it is not in memory.

        Raises:
            CorruptObjectError: it is not the segment's transaction index, fetched twice; or it was lost.
            RemoteStorageError: it cannot be read.

        Cancellation: the fetch goes on.
        """
        if self.is_known_empty(segment):
            return _EMPTY
        segment_id = segment.segment_id.id
        index = self._indexes.resident(segment_id)
        if index is None:
            index = await self.begin(segment).wait()
        if not len(index) and self._indexes.resident(segment_id) is not None:
            self._indexes.drop(segment_id)
            self._remember_empty(segment_id)
        return index

    def begin(self, segment: RemoteLogSegmentMetadata) -> Flight[TransactionIndex]:
        """The fetch under way, started now if there is none; for a `get` that will come."""
        return self._indexes.start(segment.segment_id.id, lambda: self._load(segment))

    def is_resident(self, segment: RemoteLogSegmentMetadata) -> bool:
        """Whether `get` needs no fetch."""
        return self.is_known_empty(segment) or self._indexes.resident(segment.segment_id.id) is not None

    def drop_segment(self, segment_id: Uuid) -> None:
        """Forget a deleted segment's index."""
        self._indexes.drop(segment_id)
        self._empty.pop(segment_id, None)

    async def _load(self, segment: RemoteLogSegmentMetadata) -> tuple[TransactionIndex, int]:
        parse = partial(segment_transaction_index, segment=segment)
        if (kept := await self._kept.read(segment, IndexPart.TRANSACTION, parse)) is not None:
            return kept
        opened = await self._segments.get(segment)  # a segment whose manifest is absent is not one without aborts
        kind = GetObject.INDEX if opened.fetches_index(IndexType.TRANSACTION) else None
        try:
            index, data = await self._gets.run(segment, kind, lambda: self._fetch(opened, segment))
        except RemoteResourceNotFoundError as error:
            return absent_transaction_index(error, segment), 0
        # Not of a segment that was deleted meanwhile.
        if self._indexes.under_way(segment.segment_id.id) is not None:
            self._kept.keep(segment, IndexPart.TRANSACTION, data)
        return index, len(data)

    def _fetch(self, opened: OpenedSegment, segment: RemoteLogSegmentMetadata) -> tuple[TransactionIndex, bytes]:
        """In a worker thread."""
        data = opened.fetch_index(IndexType.TRANSACTION)
        return segment_transaction_index(data, segment), data

    def _remember_empty(self, segment_id: Uuid) -> None:
        self._empty[segment_id] = None
        if len(self._empty) > EMPTY_MAX:
            del self._empty[next(iter(self._empty))]
