"""Parts of segments in memory: manifests, offset, time and transaction indexes, what is open at their end; each fetched
once however many ask.

Rules for all of them:
1. One load at a time for each segment and kind (`storage.cache.segment_entries`); a failure is not kept.
2. Trouble that may pass is raised: a store that fails, and an object that is absent soon after FINISHED, since a store
   may show it later than it took it (`ObjectGets`).
3. A deleted segment's parts leave at once, also those that are under way.
4. Each kind has a share of the bytes. What was fetched of an index is kept on disk too (`KeptIndexes`).

What is each kind's own stands with its class: what it means that an index is missing or corrupt.
"""

import abc
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

import structlog
import trio

from metrics.cache_meters import CacheMeter
from metrics.get_meter import GetMeter, GetObject, GetOutcome
from storage.bounded_map import BoundedMap
from storage.cache.disk_level import DiskLevel
from storage.cache.gets import outcome_of
from storage.cache.kept_indexes import IndexPart, KeptIndexes, Parse
from storage.cache.object_gets import ObjectGets
from storage.cache.segment_entries import Flight, SegmentEntries
from storage.errors import CorruptObjectError, RemoteResourceNotFoundError
from storage.indexes.offset_index import OffsetIndex
from storage.indexes.producer_snapshot import parse_producer_snapshot
from storage.indexes.time_index import TimeIndex
from storage.indexes.transaction_index import TransactionIndex, absent_transaction_index, segment_transaction_index
from storage.log.rebuilt_offset_index import rebuild_offset_index
from storage.log.segment_scan import OnGet
from storage.model import IndexType, RemoteLogSegmentMetadata, Uuid
from storage.remote_storage_manager import OpenedSegment, RemoteStorageManager
from storage.steps import Steps, finish, waited
from storage.tasks import TaskNursery

FAILURE_AGE_S_MAX = 30.0

FAILURES_MAX = 1000
"""So many logs and producer snapshots are remembered as broken; the oldest is forgotten first."""

LOST_S_MAX = 60.0

EMPTY_MAX = 100_000
"""Segments remembered as having no aborts, the first remembered is forgotten first: 150 bytes each."""

_ABOVE_ALL = 2**63 - 1
"""Offset or time."""

_NO_ABORTS = TransactionIndex(b"")

V = TypeVar("V")

_log = structlog.get_logger(__name__)


class SegmentParts:
    """All kinds. Owned by the trio thread.

    Args:
        nursery: the application's; loads live in it.
        gets: runs the GETs.
        meter: counts opened segments and indexes that were rebuilt.
        disk: where indexes are kept; None: nowhere.
        bytes_max: half of it is for offset indexes, a quarter for manifests, an eighth for time indexes, a sixteenth
            each for what is about transactions. An offset index of a 1 GiB segment has up to 2 MiB, a time index
            0.8 MiB; a manifest some 4 KiB; an abort 34 bytes, a producer 46.
    """

    def __init__(
        self,
        storage_manager: RemoteStorageManager,
        *,
        nursery: TaskNursery,
        gets: ObjectGets,
        meter: CacheMeter,
        bytes_max: int,
        disk: DiskLevel | None = None,
    ) -> None:
        shared = _Shared(nursery, gets, meter, KeptIndexes(disk))
        self.opened = OpenedSegments(shared, bytes_max // 4, storage_manager)
        self.offset_indexes = OffsetIndexes(shared, bytes_max // 2, self.opened)
        self.time_indexes = TimeIndexes(shared, bytes_max // 8, self.opened)
        self.transaction_indexes = TransactionIndexes(shared, bytes_max // 16, self.opened)
        self.open_transactions = OpenTransactions(shared, bytes_max // 16, self.opened)

    def drop_segment(self, segment_id: Uuid) -> None:
        """Forget a deleted segment."""
        indexes = (self.offset_indexes, self.time_indexes, self.transaction_indexes, self.open_transactions)
        for part in (self.opened, *indexes):
            part.drop_segment(segment_id)


@dataclass(frozen=True, slots=True)
class _Shared:
    """What all kinds load with."""

    nursery: TaskNursery
    gets: ObjectGets
    meter: CacheMeter
    kept: KeptIndexes


class _Part(abc.ABC, Generic[V]):
    """One kind of part, by segment."""

    def __init__(self, shared: _Shared, bytes_max: int, on_change: Callable[[int], None] | None = None) -> None:
        self._shared = shared
        self._entries: SegmentEntries[V] = SegmentEntries(shared.nursery, bytes_max=bytes_max, on_change=on_change)

    @property
    def size_bytes(self) -> int:
        return self._entries.size_bytes

    def resident(self, segment: RemoteLogSegmentMetadata) -> V | None:
        """The part if it is in memory."""
        return self._entries.resident(segment.segment_id.id)

    async def get(self, segment: RemoteLogSegmentMetadata, offset: int | None = None) -> V:
        """The part; no await when it is in memory.

        Args:
            offset: what it is wanted for.

        Raises:
            RemoteStorageError: it cannot be read, or a later attempt may do better.

        Cancellation: the load goes on.
        """
        return await finish(self.in_steps(segment, offset))

    def in_steps(self, segment: RemoteLogSegmentMetadata, offset: int | None = None) -> Steps[V]:
        """The same in steps."""
        value = self.at_hand(segment, offset)
        return (yield from waited(self.begin(segment).wait)) if value is None else value

    def at_hand(self, segment: RemoteLogSegmentMetadata, offset: int | None = None) -> V | None:
        """The part if `get` gives it without an await."""
        return self.resident(segment)

    def begin(self, segment: RemoteLogSegmentMetadata) -> Flight[V]:
        """The load under way, started now if there is none; for a `get` that will come."""
        return self._entries.start(segment.segment_id.id, lambda: self._load(segment))

    def drop_segment(self, segment_id: Uuid) -> None:
        """Forget a deleted segment's."""
        self._entries.drop(segment_id)

    @abc.abstractmethod
    async def _load(self, segment: RemoteLogSegmentMetadata) -> tuple[V, int]:
        """The part and its size in bytes."""


class OpenedSegments(_Part[OpenedSegment]):
    """Segments with their manifests, for formats that have some. An absent one is never remembered as absent."""

    def __init__(self, shared: _Shared, bytes_max: int, storage_manager: RemoteStorageManager) -> None:
        super().__init__(shared, bytes_max, shared.meter.on_opened_segments)
        self._storage_manager = storage_manager
        self._get_kind = GetObject.MANIFEST if storage_manager.has_manifests else None

    async def _load(self, segment: RemoteLogSegmentMetadata) -> tuple[OpenedSegment, int]:
        opened = await self._shared.gets.run(
            segment, self._get_kind, lambda: self._storage_manager.open_log_segment(segment)
        )
        return opened, opened.memory_bytes


@dataclass(frozen=True, slots=True)
class _IndexKind(Generic[V]):
    """`kept_as`: what was fetched, on disk. `kept`: what may be on disk, in the order in which it is looked for."""

    index_type: IndexType
    parse_fetched: Parse[V]
    kept_as: IndexPart
    kept: Mapping[IndexPart, Parse[V]]


class _Index(_Part[V]):
    """One kind of index."""

    def __init__(self, shared: _Shared, bytes_max: int, opened: OpenedSegments, kind: _IndexKind[V]) -> None:
        super().__init__(shared, bytes_max)
        self._opened = opened
        self._kind = kind

    async def _load(self, segment: RemoteLogSegmentMetadata) -> tuple[V, int]:
        try:
            return await self._fetch(segment)
        except _NotFetchedError as error:
            lost = error
        return await self._stand_in(segment, lost)

    @abc.abstractmethod
    async def _stand_in(self, segment: RemoteLogSegmentMetadata, lost: "_NotFetchedError") -> tuple[V, int]:
        """Return what takes the place of an index that is missing or corrupt, and its size in bytes."""

    async def _fetch(self, segment: RemoteLogSegmentMetadata) -> tuple[V, int]:
        """From disk, or from the store. Raises _NotFetchedError if it is missing or corrupt."""
        kind, shared = self._kind, self._shared
        for part, parse in kind.kept.items():
            if (kept := await shared.kept.read(segment, part, parse)) is not None:
                return kept
        opened = await self._opened.get(segment)

        def fetch() -> tuple[V, bytes]:
            data = opened.fetch_index(kind.index_type)
            return kind.parse_fetched(data, segment), data

        counted_as = GetObject.INDEX if opened.fetches_index(kind.index_type) else None
        try:
            index, data = await shared.gets.run(segment, counted_as, fetch)
        except (RemoteResourceNotFoundError, CorruptObjectError) as error:
            raise _NotFetchedError(error, opened) from error
        self._keep(segment, kind.kept_as, data)
        return index, len(data)

    def _keep(self, segment: RemoteLogSegmentMetadata, part: IndexPart, data: bytes) -> None:
        # Not of a segment that was deleted meanwhile.
        if self._entries.under_way(segment.segment_id.id) is not None:
            self._shared.kept.keep(segment, part, data)

    def _count_rebuilt(self, segment: RemoteLogSegmentMetadata, name: str, reason: str) -> None:
        self._shared.meter.on_index_rebuilt(name)
        _log.warning("index_rebuilt", segment=str(segment.segment_id), index=name, reason=reason)


class _NotFetchedError(Exception):
    """The index is missing or corrupt, as `error` says, and nothing took its place. Does not leave this file."""

    def __init__(self, error: RemoteResourceNotFoundError | CorruptObjectError, opened: OpenedSegment) -> None:
        super().__init__(str(error))
        self.error = error
        self.opened = opened


class TimeIndexes(_Index[TimeIndex]):
    """One that is missing, corrupt, or found by its readers not to agree with the log, is not an error: an empty one
    stands in for it, so that a look-up by time scans from the segment's start, and it is counted. Rebuilding it would
    be that very scan."""

    def __init__(self, shared: _Shared, bytes_max: int, opened: OpenedSegments) -> None:
        super().__init__(shared, bytes_max, opened, _TIME)

    async def distrust(self, segment: RemoteLogSegmentMetadata, reason: str) -> None:
        """It does not agree with the log: an empty one takes its place."""

        async def load() -> tuple[TimeIndex, int]:
            return self._empty(segment, reason)

        await self._entries.start(segment.segment_id.id, load).wait()

    async def _stand_in(self, segment: RemoteLogSegmentMetadata, lost: _NotFetchedError) -> tuple[TimeIndex, int]:
        return self._empty(segment, str(lost))

    def _empty(self, segment: RemoteLogSegmentMetadata, reason: str) -> tuple[TimeIndex, int]:
        self._count_rebuilt(segment, "time", reason)
        return TimeIndex(b"", segment.start_offset), 0


class TransactionIndexes(_Index[TransactionIndex]):
    """Rules of their own:

    1. A segment without aborts has no index: TxnIndexEmpty says so without a fetch, otherwise the object is absent.
       Absent is believed after the attempts that a fresh segment's object gets, and only where no manifest says that
       there are bytes: an index that is lost is an error, and is not remembered.
    2. A corrupt index is fetched once more and then an error; so is one that readers find not to agree with the log.
       Rejected: rebuilding it. Which transaction a marker ends takes the state of all producers since segments before.
    3. That an index is empty is remembered apart, by the segment's id alone: brokers before 4.0 never say
       TxnIndexEmpty, and a search for aborts walks over thousands of such segments.
    """

    def __init__(self, shared: _Shared, bytes_max: int, opened: OpenedSegments) -> None:
        super().__init__(shared, bytes_max, opened, _TRANSACTION)
        self._empty: BoundedMap[Uuid, None] = BoundedMap(EMPTY_MAX)

    def is_known_empty(self, segment: RemoteLogSegmentMetadata) -> bool:
        """Return whether it is known, without a fetch, that the segment has no aborts."""
        return segment.txn_index_empty or segment.segment_id.id in self._empty

    def at_hand(self, segment: RemoteLogSegmentMetadata, offset: int | None = None) -> TransactionIndex | None:
        if self.is_known_empty(segment):
            return _NO_ABORTS
        index = self.resident(segment)
        if index is not None and not len(index):
            self._entries.drop(segment.segment_id.id)
            self._empty[segment.segment_id.id] = None
        return index

    def in_steps(self, segment: RemoteLogSegmentMetadata, offset: int | None = None) -> Steps[TransactionIndex]:
        """The index.

        Raises:
            CorruptObjectError: it is not the segment's transaction index, fetched twice; or it was lost.
            RemoteStorageError: it cannot be read.

        Cancellation: the fetch goes on.
        """
        index = yield from super().in_steps(segment)
        self.at_hand(segment)  # which remembers it apart if it is empty
        return index

    def distrust(self, segment: RemoteLogSegmentMetadata) -> None:
        """It does not agree with the log: the next question has it fetched once more."""
        self._entries.drop(segment.segment_id.id)
        self._shared.kept.drop(segment, IndexPart.TRANSACTION)

    def drop_segment(self, segment_id: Uuid) -> None:
        super().drop_segment(segment_id)
        self._empty.pop(segment_id, None)

    async def _stand_in(
        self, segment: RemoteLogSegmentMetadata, lost: _NotFetchedError
    ) -> tuple[TransactionIndex, int]:
        if isinstance(lost.error, RemoteResourceNotFoundError):
            return absent_transaction_index(lost.error, segment), 0
        raise lost.error


OpenAtEnd = tuple[tuple[int, int], ...]
"""Transactions that are open at a segment's end: (producer id, first offset)."""


class OpenTransactions(_Index[OpenAtEnd]):
    """Segments' producer snapshots. A missing or corrupt one is an error for LOST_S_MAX: somebody may bring it back.
    Then nobody can say any more what was open, and nothing counts as open; that is counted."""

    def __init__(self, shared: _Shared, bytes_max: int, opened: OpenedSegments) -> None:
        super().__init__(shared, bytes_max, opened, _PRODUCERS)
        self._lost: BoundedMap[Uuid, float] = BoundedMap(FAILURES_MAX)

    async def _stand_in(self, segment: RemoteLogSegmentMetadata, lost: _NotFetchedError) -> tuple[OpenAtEnd, int]:
        now_s = trio.current_time()
        if now_s - self._lost.setdefault(segment.segment_id.id, now_s) < LOST_S_MAX:
            raise lost.error
        self._shared.meter.on_index_rebuilt("producer")
        _log.warning(
            "open_transactions_lost",
            partition=str(segment.topic_id_partition),
            offset=segment.end_offset,
            reason=f"{lost}: what was open there counts as committed",
        )
        return (), 0


class OffsetIndexes(_Index[OffsetIndex]):
    """Rules of their own:

    1. A missing or corrupt index is not an error, nor is one that lacks entries or does not agree with the log, which
       its readers find out: it is rebuilt from the segment's own batches in one pass, as KIP-405 advises, and counted.
       Only the log itself must be there.
    2. Nothing is rebuilt for trouble that may pass.
    3. A log that cannot be indexed is not read again for every client that comes back: the failure is remembered for
       FAILURE_AGE_S_MAX. Only that of the log: an index that is there after all is used at once.
    4. On disk a rebuilt index comes first.
    """

    def __init__(self, shared: _Shared, bytes_max: int, opened: OpenedSegments) -> None:
        super().__init__(shared, bytes_max, opened, _OFFSET)
        self._walks: dict[Uuid, dict[int, int]] = {}
        """For indexes being rebuilt that lack entries: positions that they led to, each with the offset walked to."""
        self._failures: BoundedMap[Uuid, tuple[float, str]] = BoundedMap(FAILURES_MAX)

    def batch_start(self, segment: RemoteLogSegmentMetadata, position: int) -> int | None:
        """Return where in the segment's log a batch begins at or behind that position, if the index in memory says."""
        index = self.resident(segment)
        return (None if position else 0) if index is None else index.batch_start_at_or_above(position)

    def fetch_soon(self, segment: RemoteLogSegmentMetadata) -> None:
        """Fetch the index that will be wanted. Nobody waits, and a failure is met by who does: one that is
        missing or corrupt is not rebuilt before it is needed, since that takes a GET of the whole log."""
        if self.resident(segment) is None:
            self._entries.start(segment.segment_id.id, lambda: self._fetch(segment))

    def in_steps(self, segment: RemoteLogSegmentMetadata, offset: int | None = None) -> Steps[OffsetIndex]:
        """The index, fetched or rebuilt when it is not in memory.

        Args:
            offset: what it is wanted for. Where it is known not to lead near that, and is being rebuilt, the new one is
                waited for.

        Raises:
            RemoteStorageError: neither the index nor the log can be read, or a later attempt may do better.

        Cancellation: the fetch or the rebuild goes on.
        """
        while (index := self.at_hand(segment, offset)) is None:
            with suppress(_NotFetchedError):  # it was only fetched for later; now it is needed
                return (yield from waited(self.begin(segment).wait))
        return index

    def at_hand(self, segment: RemoteLogSegmentMetadata, offset: int | None = None) -> OffsetIndex | None:
        index = self.resident(segment)
        if index is not None and offset is not None and (walks := self._walks.get(segment.segment_id.id)):
            return None if offset > walks.get(index.lookup(offset)[1], offset) else index
        return index

    async def rebuild(
        self,
        segment: RemoteLogSegmentMetadata,
        reason: str,
        *,
        instead_of: OffsetIndex | None = None,
        walked: tuple[int, int] | None = None,
    ) -> OffsetIndex:
        """The index made again from the log, once for all who ask meanwhile.

        Args:
            instead_of: the one that misled. Where another has taken its place already, that is the answer.
            walked: from a position that it led to, up to this offset a walk is short enough meanwhile.

        Raises:
            RemoteStorageError: the log cannot be read, or is itself corrupt.

        Cancellation: the rebuild goes on.
        """

        async def load() -> tuple[OffsetIndex, int]:
            try:
                return await self._rebuild(await self._opened.get(segment), segment, reason)
            finally:
                self._walks.pop(segment.segment_id.id, None)

        segment_id = segment.segment_id.id
        while True:
            known = self.resident(segment)
            if known is not None and known.is_rebuilt and instead_of not in (None, known):
                return known
            if self._entries.under_way(segment_id) is None:
                self._walks[segment_id] = {}
            if walked is not None and segment_id in self._walks:
                self._walks[segment_id][walked[0]] = walked[1]
            try:
                index = await self._entries.start(segment_id, load).wait()
            except _NotFetchedError:
                continue
            if index.is_rebuilt:
                return index
            # It was being fetched once more.

    def drop_segment(self, segment_id: Uuid) -> None:
        super().drop_segment(segment_id)
        self._failures.pop(segment_id, None)

    async def _stand_in(self, segment: RemoteLogSegmentMetadata, lost: _NotFetchedError) -> tuple[OffsetIndex, int]:
        return await self._rebuild(lost.opened, segment, str(lost))

    async def _rebuild(
        self, opened: OpenedSegment, segment: RemoteLogSegmentMetadata, reason: str
    ) -> tuple[OffsetIndex, int]:
        def scan() -> tuple[OffsetIndex, bytes]:
            with _counted(self._shared.gets.meter) as on_get:
                data = rebuild_offset_index(opened, segment, on_get=on_get)
            name = f"rebuilt offset index of {segment.segment_id}"
            return OffsetIndex(data, segment.start_offset, name, is_rebuilt=True), data

        self._raise_known_failure(segment)
        try:
            # Once: it may be a GiB, and the caller will ask for the index again.
            index, data = await self._shared.gets.run_once(None, scan)
        except CorruptObjectError as error:
            self._failures[segment.segment_id.id] = (trio.current_time(), str(error))
            raise
        self._count_rebuilt(segment, "offset", reason)
        self._keep(segment, IndexPart.REBUILT_OFFSET, data)
        return index, len(data)

    def _raise_known_failure(self, segment: RemoteLogSegmentMetadata) -> None:
        failed_at, message = self._failures.get(segment.segment_id.id, (None, ""))
        if failed_at is None:
            return
        if trio.current_time() - failed_at < FAILURE_AGE_S_MAX:
            raise CorruptObjectError(message)
        del self._failures[segment.segment_id.id]


@contextmanager
def _counted(meter: GetMeter) -> Iterator[OnGet]:
    """Counts the GETs of a scan, which follow each other in one thread: each when the next begins, or the scan ends."""
    under_way: list[tuple[float, int]] = []

    def end(outcome: GetOutcome) -> None:
        for sent_s, stored_bytes in under_way:
            received_bytes = stored_bytes if outcome is GetOutcome.OK else 0
            meter.on_end(GetObject.LOG, outcome, time.monotonic() - sent_s, received_bytes)

    def on_get(stored_bytes: int) -> None:
        end(GetOutcome.OK)
        under_way[:] = [(time.monotonic(), stored_bytes)]

    try:
        yield on_get
    except Exception as error:
        end(outcome_of(error))
        raise
    end(GetOutcome.OK)


def _offset_index(data: bytes | bytearray, segment: RemoteLogSegmentMetadata) -> OffsetIndex:
    """An index that leads out of its segment is some other segment's, or garbage that happens to ascend."""
    name = f"offset index of {segment.segment_id}"
    index = OffsetIndex(data, segment.start_offset, name)
    offset, position = index.lookup(_ABOVE_ALL)
    if len(index) and not (offset <= segment.end_offset and position < segment.segment_size_bytes):
        raise CorruptObjectError(f"{name}: its last entry, offset {offset} at {position}, lies outside the segment")
    return index


def _time_index(data: bytes | bytearray, segment: RemoteLogSegmentMetadata) -> TimeIndex:
    name = f"time index of {segment.segment_id}"
    index = TimeIndex(data, segment.start_offset, name)
    timestamp_ms, offset = index.lookup(_ABOVE_ALL)
    if len(index) and offset > segment.end_offset:
        raise CorruptObjectError(f"{name}: its last entry, {timestamp_ms} at {offset}, lies outside the segment")
    return index


def _open_at_end(data: bytes | bytearray, segment: RemoteLogSegmentMetadata) -> OpenAtEnd:
    states = parse_producer_snapshot(bytes(data), f"producer snapshot of {segment.segment_id}")
    opened = ((state.producer_id, state.current_transaction_first_offset) for state in states)
    return tuple(each for each in opened if each[1] >= 0)


# What is read back from disk was whole and right when it was written: its checksum says that it still is.
_OFFSET: _IndexKind[OffsetIndex] = _IndexKind(
    IndexType.OFFSET,
    _offset_index,
    IndexPart.OFFSET,
    {
        IndexPart.REBUILT_OFFSET: lambda data, segment: OffsetIndex(
            data, segment.start_offset, is_rebuilt=True, is_checked=True
        ),
        IndexPart.OFFSET: lambda data, segment: OffsetIndex(data, segment.start_offset, is_checked=True),
    },
)
_TIME: _IndexKind[TimeIndex] = _IndexKind(
    IndexType.TIMESTAMP,
    _time_index,
    IndexPart.TIMESTAMP,
    {IndexPart.TIMESTAMP: lambda data, segment: TimeIndex(data, segment.start_offset)},
)
_PRODUCERS: _IndexKind[OpenAtEnd] = _IndexKind(
    IndexType.PRODUCER_SNAPSHOT, _open_at_end, IndexPart.PRODUCERS, {IndexPart.PRODUCERS: _open_at_end}
)
_TRANSACTION: _IndexKind[TransactionIndex] = _IndexKind(
    IndexType.TRANSACTION,
    segment_transaction_index,
    IndexPart.TRANSACTION,
    {IndexPart.TRANSACTION: segment_transaction_index},
)
