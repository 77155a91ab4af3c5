"""Parsed offset indexes, within limits, one fetch each however many ask.

Rules:
1. A missing or corrupt index is not an error, nor is one that lacks entries or does not agree with the log, which its
   readers find out: it is rebuilt from the segment's own batches in one pass, as KIP-405 advises, and counted. Only the
   log itself must be there.
2. Trouble that may pass is raised and nothing is rebuilt for it: a store that fails, and an index that is absent soon
   after FINISHED.
3. A log that cannot be indexed is not read again for every client that comes back: the failure is remembered for
   FAILURE_AGE_S_MAX. Only that of the log: an index that is there after all is used at once.
4. A deleted segment's index leaves at once, also one that is under way.
5. What was fetched or rebuilt is kept on disk too, and a rebuilt one comes first there.
"""

import time
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Self

import structlog
import trio

from metrics.cache_probes import CacheProbe
from metrics.get_probe import GetObject, GetOutcome, GetProbe
from storage.cache.kept_indexes import IndexPart, KeptIndexes
from storage.cache.object_gets import ObjectGets
from storage.cache.opened_segments import OpenedSegments, wall_clock_ms
from storage.cache.segment_entries import ENTRIES_MAX, SegmentEntries
from storage.cache.throttle import Throttle
from storage.errors import CorruptObjectError, RemoteResourceNotFoundError
from storage.indexes.offset_index import OffsetIndex
from storage.indexes.rebuild import rebuild_offset_index
from storage.model import IndexType, RemoteLogSegmentMetadata, Uuid
from storage.object_store.retries import outcome_of
from storage.remote_storage_manager import OpenedSegment

INDEX_BYTES_MAX = 32 * 1024 * 1024
"""Of all parsed offset indexes where nothing else is said. One of a 1 GiB segment has up to 2 MiB."""

FAILURE_AGE_S_MAX = 30.0

FAILURES_MAX = 1000
"""Of logs that are remembered as broken; the oldest is forgotten first."""

_ABOVE_ALL_OFFSETS = 2**63 - 1

_log = structlog.get_logger(__name__)


class OffsetIndexCache:
    """Offset indexes by segment. Owned by the trio thread.

    Args:
        segments: opens them.
        nursery: the application's; fetches and rebuilds live in it.
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
        self._get_probe = gets
        self._probe = probe
        self._gets = ObjectGets(limiter, gets, now_ms, throttle)
        self._indexes: SegmentEntries[OffsetIndex] = SegmentEntries(
            nursery, bytes_max=bytes_max, entries_max=indexes_max
        )
        self._walks: dict[Uuid, dict[int, int]] = {}
        """Of indexes being rebuilt that lack entries: positions that they led to, each with the offset walked to."""
        self._failures: OrderedDict[Uuid, tuple[float, str]] = OrderedDict()

    @property
    def size_bytes(self) -> int:
        return self._indexes.size_bytes

    def resident(self, segment: RemoteLogSegmentMetadata) -> OffsetIndex | None:
        """The index if it is in memory."""
        return self._indexes.resident(segment.segment_id.id)

    def batch_start(self, segment: RemoteLogSegmentMetadata, position: int) -> int | None:
        """Where in the segment's log a batch begins at or behind that position, if the index is in memory and says."""
        index = self.resident(segment)
        return (None if position else 0) if index is None else index.batch_start_at_or_above(position)

    def fetch_soon(self, segment: RemoteLogSegmentMetadata) -> None:
        """Have the index fetched that will be wanted. Nobody waits, and a failure is met by who does: one that is
        missing or corrupt is not rebuilt before it is needed, since that takes a GET of the whole log."""
        if self.resident(segment) is None:
            self._indexes.start(segment.segment_id.id, lambda: self._fetch_only(segment))

    async def get(self, segment: RemoteLogSegmentMetadata, offset: int | None = None) -> OffsetIndex:
        """The index, fetched or rebuilt when it is not in memory.

        Args:
            offset: what it is wanted for. Where it is known not to lead near that, and is being rebuilt, the new one is
                waited for.

        Raises:
            RemoteStorageError: neither the index nor the log can be read, or a later attempt may do better.

        Cancellation: the fetch or the rebuild goes on.
        """
        index, rebuilding = self.resident(segment), self._indexes.under_way(segment.segment_id.id)
        while index is None:
            try:
                return await self._indexes.start(segment.segment_id.id, lambda: self._load(segment)).wait()
            except _NotFetchedError:
                continue  # it was only fetched for later; now it is needed
        if rebuilding is not None and offset is not None:
            position, walks = index.lookup(offset)[1], self._walks.get(segment.segment_id.id, {})
            if offset > walks.get(position, offset):
                return await rebuilding.wait()
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
                opened = await self._segments.get(segment)
                return await self._rebuild(opened, segment, reason)
            finally:
                self._walks.pop(segment.segment_id.id, None)

        segment_id = segment.segment_id.id
        while True:
            known = self.resident(segment)
            if known is not None and known.is_rebuilt and instead_of not in (None, known):
                return known
            if self._indexes.under_way(segment_id) is None:
                self._walks[segment_id] = {}
            if walked is not None and segment_id in self._walks:
                self._walks[segment_id][walked[0]] = walked[1]
            try:
                index = await self._indexes.start(segment_id, load).wait()
            except _NotFetchedError:
                continue
            if index.is_rebuilt:
                return index
            # It was being fetched once more.

    def drop_segment(self, segment_id: Uuid) -> None:
        """Forget a deleted segment's index."""
        self._indexes.drop(segment_id)
        self._failures.pop(segment_id, None)

    async def _load(self, segment: RemoteLogSegmentMetadata) -> tuple[OffsetIndex, int]:
        try:
            return await self._fetch_only(segment)
        except _NotFetchedError as error:
            return await self._rebuild(error.opened, segment, str(error))

    async def _fetch_only(self, segment: RemoteLogSegmentMetadata) -> tuple[OffsetIndex, int]:
        for part in (IndexPart.REBUILT_OFFSET, IndexPart.OFFSET):
            parse = partial(_kept_index, segment, part)
            if (kept := await self._kept.read(segment, part, parse)) is not None:
                return kept
        opened = await self._segments.get(segment)
        kind = GetObject.INDEX if opened.fetches_index(IndexType.OFFSET) else None
        try:
            index, data = await self._gets.run(segment, kind, lambda: self._fetch(opened, segment))
        except (RemoteResourceNotFoundError, CorruptObjectError) as error:
            raise _NotFetchedError(str(error), opened) from error
        self._keep(segment, IndexPart.OFFSET, data)
        return index, len(data)

    def _keep(self, segment: RemoteLogSegmentMetadata, part: IndexPart, data: bytes) -> None:
        # Not of a segment that was deleted meanwhile.
        if self._indexes.under_way(segment.segment_id.id) is not None:
            self._kept.keep(segment, part, data)

    def _fetch(self, opened: OpenedSegment, segment: RemoteLogSegmentMetadata) -> tuple[OffsetIndex, bytes]:
        """In a worker thread."""
        name = f"offset index of {segment.segment_id}"
        data = opened.fetch_index(IndexType.OFFSET)
        index = OffsetIndex(data, segment.start_offset, name)
        _check_borders(index, segment, name)
        return index, data

    async def _rebuild(
        self, opened: OpenedSegment, segment: RemoteLogSegmentMetadata, reason: str
    ) -> tuple[OffsetIndex, int]:
        self._raise_known_failure(segment)
        try:
            # Once: it may be a GiB, and whoever asked for the index will ask again.
            index, data = await self._gets.run_once(None, lambda: self._scan(opened, segment))
        except CorruptObjectError as error:
            self._remember_failure(segment, error)
            raise
        self._probe.on_index_rebuilt("offset")
        _log.warning("index_rebuilt", segment=str(segment.segment_id), index="offset", reason=reason)
        self._keep(segment, IndexPart.REBUILT_OFFSET, data)
        return index, len(data)

    def _scan(self, opened: OpenedSegment, segment: RemoteLogSegmentMetadata) -> tuple[OffsetIndex, bytes]:
        """In a worker thread."""
        with _ScanGets(self._get_probe) as gets:
            data = rebuild_offset_index(opened, segment, on_get=gets.on_get)
        name = f"rebuilt offset index of {segment.segment_id}"
        return OffsetIndex(data, segment.start_offset, name, is_rebuilt=True), data

    def _remember_failure(self, segment: RemoteLogSegmentMetadata, error: CorruptObjectError) -> None:
        self._failures.pop(segment.segment_id.id, None)
        self._failures[segment.segment_id.id] = (trio.current_time(), str(error))
        while len(self._failures) > FAILURES_MAX:
            self._failures.popitem(last=False)

    def _raise_known_failure(self, segment: RemoteLogSegmentMetadata) -> None:
        failed_at, message = self._failures.get(segment.segment_id.id, (None, ""))
        if failed_at is None:
            return
        if trio.current_time() - failed_at < FAILURE_AGE_S_MAX:
            raise CorruptObjectError(message)
        del self._failures[segment.segment_id.id]


def _kept_index(segment: RemoteLogSegmentMetadata, part: IndexPart, data: bytes | bytearray) -> OffsetIndex:
    is_rebuilt = part is IndexPart.REBUILT_OFFSET
    return OffsetIndex(data, segment.start_offset, is_rebuilt=is_rebuilt, is_checked=True)


class _NotFetchedError(Exception):
    """The index is missing or corrupt, and nobody has begun to rebuild it. Does not leave this file."""

    def __init__(self, reason: str, opened: OpenedSegment) -> None:
        super().__init__(reason)
        self.opened = opened


class _ScanGets:
    """Counts the GETs of a scan, which follow each other in one thread: each when the next begins, or the scan ends."""

    def __init__(self, probe: GetProbe) -> None:
        self._probe = probe
        self._sent_s = 0.0
        self._stored_bytes: int | None = None

    def on_get(self, stored_bytes: int) -> None:
        self._end(GetOutcome.OK, self._stored_bytes or 0)
        self._stored_bytes = stored_bytes
        self._sent_s = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception):
            self._end(outcome_of(error), 0)
        else:
            self._end(GetOutcome.OK, self._stored_bytes or 0)

    def _end(self, outcome: GetOutcome, received_bytes: int) -> None:
        if self._stored_bytes is not None:
            self._probe.on_end(GetObject.LOG, outcome, time.monotonic() - self._sent_s, received_bytes)


def _check_borders(index: OffsetIndex, segment: RemoteLogSegmentMetadata, name: str) -> None:
    """An index that leads out of its segment is some other segment's, or garbage that happens to ascend."""
    offset, position = index.lookup(_ABOVE_ALL_OFFSETS)
    if len(index) and not (offset <= segment.end_offset and position < segment.segment_size_bytes):
        raise CorruptObjectError(f"{name}: its last entry, offset {offset} at {position}, lies outside the segment")
