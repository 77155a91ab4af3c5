"""A time → the first record of that time or later in the tier (docs/kafka-tier.md#timestamp-search).

Two steps. `candidate` asks metadata alone, without I/O: which segment decides, if it is the tier's. `search` looks
into that segment, as the broker does: from the place that time index and offset index name, batch headers are
walked over cached blocks, and only inside a batch that can have such a record are records decoded.

Rules kept from the broker:
- The first segment of the lineage, epoch by epoch, that ends at or above the log start and is not older than the time
  decides; whether anything is found in it or not, no later segment of the tier is looked at.
- It decides only where the catalog holds every offset from the log start to it: what is missing may have been older and
  newer at once, and the broker may know it (docs/protocol.md#l2). A tier of our own, whose holes nobody can fill, is
  searched over them.
- A record below the log start is none. Control records count.
- The answer's leader epoch is that of the record's batch.
Added, as in `storage.reading.reader`: batches that are walked over pass their CRC first, a bad block is fetched once
more, an index entry that leads nowhere has the offset index rebuilt. An entry of the time index is believed only if the
batch that holds its offset has its time; otherwise the segment is searched without the index.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

import trio

from protocol.record_batches import COMPRESSION_MASK
from storage.cache.block_cache import BlockCache
from storage.cache.blocks import SegmentBlocks
from storage.cache.held_blocks import AnswerBlocks, Room
from storage.cache.segment_parts import SegmentParts
from storage.errors import CorruptObjectError
from storage.indexes.offset_index import OffsetIndex
from storage.indexes.time_index import NO_TIMESTAMP_MS
from storage.log.batch_records import Record, ScanBudget, iterate_records
from storage.log.batch_walk import (
    FoundBatch,
    IndexMismatchError,
    SegmentWindow,
    SparseIndexError,
    check_index_entry,
    check_walk,
    find_batch_by_time,
    find_first_batch,
)
from storage.log.log_walk import CorruptLogError
from storage.metadata.catalog import Catalog
from storage.metadata.epoch_history import LeaderEpochLineage, filter_epochs
from storage.model import RemoteLogSegmentMetadata, RemoteLogSegmentState, TopicIdPartition
from storage.reading.reader import quarantine_bad, verify
from storage.steps import finish

FIRST_WINDOW_BYTES = 64 * 1024
"""The indexes lead to within 4 KiB of the record, unless times are out of order."""

WINDOW_BYTES_MAX = 4 * 1024 * 1024
"""A scan goes on in windows that double up to this: what it holds at once, a batch larger than that aside."""

IN_THREAD_BYTES = 64 * 1024
"""Larger batches, and compressed ones, are decoded in a thread, and larger windows walked in one; some 1 ms."""

RECORDS_AT_ONCE = 1000
"""Decoded before others have their turn, and a search looks whether anybody still wants it: some 2 ms."""

RECORDS_MAX = 500_000
"""Decoded in one search, in slices that are some 1.2 s together. What has more is the broker's to look through."""

INFLATED_BYTES_MAX = 256 * 1024 * 1024
"""Inflated in one search."""


@dataclass(frozen=True, slots=True)
class FoundTimestamp:
    """The record that was found: its own timestamp, offset, and its batch's leader epoch, −1 below v2."""

    timestamp_ms: int
    offset: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class _Asked:
    timestamp_ms: int
    log_start_offset: int


@dataclass(slots=True)
class _Scan:
    """One search in one segment. `position`: where the next batch begins that is to be looked at.

    `from_offset`: what the offset index was asked for. `largest_bytes`: of the batches that were walked over.
    `time_entry`: of the time index, time and offset, which led here and was not looked at yet.
    """

    source: SegmentBlocks
    asked: _Asked
    from_offset: int
    room: Room
    entry: tuple[int, int]
    position: int
    window: SegmentWindow
    window_bytes: int
    budget: ScanBudget
    time_entry: tuple[int, int] | None
    fetched_anew: set[int] = field(default_factory=set)
    largest_bytes: int = 0


class _TimeIndexMismatchError(Exception):
    """An entry of the time index is not what the log has. Does not leave this file."""


class TimestampSearch:
    """Searches. Owned by the trio thread; safe for any number of tasks."""

    def __init__(self, *, catalog: Catalog, parts: SegmentParts, cache: BlockCache, answers: AnswerBlocks) -> None:
        self._catalog = catalog
        self._parts = parts
        self._cache = cache
        self._answers = answers
        # One slice at a time holds the interpreter, of all searches.
        self._scanning = trio.CapacityLimiter(1)

    def candidate(
        self,
        partition: TopicIdPartition,
        timestamp_ms: int,
        *,
        log_start_offset: int,
        local_log_start_offset: int,
        lineage: LeaderEpochLineage,
        over_holes: bool = False,
    ) -> RemoteLogSegmentMetadata | None:
        """The segment that decides; None if none does, if the broker has it in its local log too, or if something is
        missing before it. No I/O.

        Args:
            over_holes: whatever is missing before it.
        """
        first_epoch = lineage.epoch_for(log_start_offset)
        if first_epoch is None:
            return None

        def is_live(segment: RemoteLogSegmentMetadata) -> bool:
            return lineage.holds(segment, log_start_offset) and _begins_on(lineage, segment, first_epoch)

        for epoch in lineage.epochs:
            if epoch < first_epoch:
                continue
            segment = self._catalog.first_finished(
                partition.topic_id,
                partition.partition,
                epoch,
                end_offset_min=log_start_offset,
                max_timestamp_ms_min=timestamp_ms,
                accepts=is_live,
            )
            if segment is None:
                continue
            is_whole = over_holes or segment.start_offset <= self._catalog.chain_end(
                partition.topic_id,
                partition.partition,
                log_start_offset,
                lineage.ends(),
                lambda each: lineage.holds(each, log_start_offset),
            )
            return segment if is_whole and segment.start_offset < local_log_start_offset else None
        return None

    def is_outdated(self, partition: TopicIdPartition, lineage: LeaderEpochLineage) -> bool:
        """Return whether the tier has a segment that ends behind the lineage's last epoch, as far as that was known."""
        if not lineage.epochs:
            return False
        newest = lineage.epochs[-1]
        end_offset = lineage.end_offset(newest)
        highest = self._catalog.highest_offset_for_epoch(partition.topic_id, partition.partition, newest)
        return end_offset is not None and highest is not None and highest >= end_offset

    def is_gone(self, segment: RemoteLogSegmentMetadata) -> bool:
        """Return whether the segment is not, or no longer, one to read from."""
        known = self._catalog.find_segment(segment.segment_id)
        return known is None or known.state is not RemoteLogSegmentState.COPY_SEGMENT_FINISHED

    async def search(
        self, segment: RemoteLogSegmentMetadata, timestamp_ms: int, *, log_start_offset: int
    ) -> FoundTimestamp | None:
        """The first record in the segment of that time or later, at or above the log start; None if there is none.

        Raises:
            RemoteStorageError: the segment cannot be read.
            ScanLimitError: it takes more than RECORDS_MAX or INFLATED_BYTES_MAX to say.

        Cancellation: fills that were started go on.
        """
        source = self._cache.blocks_of(segment, await self._parts.opened.get(segment))
        time_index = await self._parts.time_indexes.get(segment)
        asked = _Asked(timestamp_ms, log_start_offset)
        entry = time_index.lookup(timestamp_ms)
        from_offset = max(log_start_offset, entry[1])
        time_entry = entry if entry[0] != NO_TIMESTAMP_MS and entry[1] >= log_start_offset else None
        index = await self._parts.offset_indexes.get(segment, from_offset)
        room, is_rebuilt = self._answers.room(), False
        try:
            while True:
                try:
                    return await self._scan(source, index, from_offset, asked, room, time_entry)
                except _TimeIndexMismatchError as error:
                    reason = str(error)
                except (IndexMismatchError, SparseIndexError) as error:
                    # Two GETs gave the same bytes with a mismatch, so the index may be the liar.
                    if is_rebuilt:
                        raise
                    reason, is_rebuilt = str(error), True
                # Out here nothing holds what was walked over.
                room.release()
                if is_rebuilt and not index.is_rebuilt:
                    index = await self._parts.offset_indexes.rebuild(segment, reason, instead_of=index)
                else:
                    await self._parts.time_indexes.distrust(segment, reason)
                    from_offset, time_entry = log_start_offset, None
        finally:
            room.release()

    async def _scan(
        self,
        source: SegmentBlocks,
        index: OffsetIndex,
        from_offset: int,
        asked: _Asked,
        room: Room,
        time_entry: tuple[int, int] | None,
    ) -> FoundTimestamp | None:
        entry = index.lookup(from_offset)
        window = SegmentWindow(source.segment, source.grid.block_bytes)
        budget = ScanBudget(records_max=RECORDS_MAX, bytes_max=INFLATED_BYTES_MAX)
        scan = _Scan(source, asked, from_offset, room, entry, entry[1], window, FIRST_WINDOW_BYTES, budget, time_entry)
        while scan.position < source.grid.size_bytes:
            window_start = scan.position
            try:
                found = await self._scan_window(scan)
            except CorruptLogError as error:
                # Blocks with a bad batch are quarantined, and fetched once more each before it is an error
                # (docs/protocol.md#l5).
                bad = quarantine_bad(self._cache, scan.source, scan.window, window_start, error)
                if bad <= scan.fetched_anew:
                    raise
                scan.fetched_anew |= bad
                scan.position = window_start
                continue
            if found is not None:
                return found
            scan.window_bytes = min(2 * scan.window_bytes, WINDOW_BYTES_MAX)
        return None

    async def _scan_window(self, scan: _Scan) -> FoundTimestamp | None:
        """Look at the batches of one window; afterwards `position` is behind them."""
        block_bytes, asked = scan.source.grid.block_bytes, scan.asked
        window = scan.window = SegmentWindow(scan.source.segment, block_bytes)
        await self._extend(scan, scan.position, scan.position + scan.window_bytes)
        entry_offset, entry_position = scan.entry
        if scan.position == entry_position > 0:
            check_index_entry(window, entry_offset, entry_position)
        if scan.time_entry is not None:
            await self._check_time_entry(scan, *scan.time_entry)
            scan.time_entry = None
        while True:
            start = scan.position
            batch = await self._find(window, start, asked)
            if batch.size_bytes is None:
                # A batch that reaches beyond the window, and does not matter, is not read to its end.
                await finish(verify(window, start, min(batch.position, window.end), IN_THREAD_BYTES))
                scan.position, scan.largest_bytes = batch.position, max(scan.largest_bytes, batch.largest_passed_bytes)
                if 0 <= batch.last_passed_offset < scan.from_offset:
                    check_walk(scan.source.segment, entry_position, batch, scan.largest_bytes)
                return None
            end = batch.position + batch.size_bytes
            await self._extend(scan, start, end)
            await finish(verify(window, start, end, IN_THREAD_BYTES))
            scan.position = end
            found = await self._look_inside(scan, batch.position, end)
            if found is not None or end >= window.end:
                return found

    async def _check_time_entry(self, scan: _Scan, timestamp_ms: int, offset: int) -> None:
        """Check that the batch which holds the offset has that time."""
        position, largest_bytes = scan.position, 0
        while (found := find_first_batch(scan.window, position, offset)).needs_end is not None:
            position, largest_bytes = found.position, max(largest_bytes, found.largest_passed_bytes)
            check_walk(scan.source.segment, scan.position, found, largest_bytes)
            await self._extend(scan, scan.position, found.needs_end)
        header = None if found.size_bytes is None else scan.window.header_at(found.position)
        if header is None or (header.magic >= 2 and header.max_timestamp != timestamp_ms):
            newest = "no batch" if header is None else f"a batch of {header.max_timestamp} ms"
            raise _TimeIndexMismatchError(f"it has {timestamp_ms} ms at offset {offset}, the log {newest} there")

    async def _find(self, window: SegmentWindow, start: int, asked: _Asked) -> FoundBatch:
        """The next batch that may hold the record. A window of the smallest batches has 15,000 headers a MiB."""
        sought = (window, start, asked.timestamp_ms, asked.log_start_offset)
        if window.end - start <= IN_THREAD_BYTES:
            return find_batch_by_time(*sought)
        return await trio.to_thread.run_sync(find_batch_by_time, *sought, limiter=self._scanning)

    async def _look_inside(self, scan: _Scan, position: int, end: int) -> FoundTimestamp | None:
        asked, header = scan.asked, scan.window.header_at(position)
        records = iterate_records(scan.window.views(position, end), scan.budget)
        compressed = bool(header.attributes & COMPRESSION_MASK)
        try:
            while True:
                if compressed or end - position > IN_THREAD_BYTES:
                    found, count = await trio.to_thread.run_sync(look_through, records, asked, limiter=self._scanning)
                else:
                    found, count = look_through(records, asked)
                    await trio.lowlevel.checkpoint()
                scan.budget.take_records(count)
                if found is not None:
                    offset, timestamp_ms = found
                    return FoundTimestamp(timestamp_ms, offset, header.partition_leader_epoch)
                if count < RECORDS_AT_ONCE:
                    return None
        except CorruptObjectError as error:
            # Its CRC is right, so another GET would bring the same.
            raise CorruptObjectError(
                f"segment {scan.source.segment.segment_id}: batch at {position}: {error}"
            ) from error

    async def _extend(self, scan: _Scan, start: int, end: int) -> None:
        window, grid = scan.window, scan.source.grid
        first, last = window.missing(start, end)
        if first > last:
            return
        begins = first if window.is_empty else window.first_block
        await scan.room.reserve(grid.end(last) - grid.start(begins))
        blocks, _ = await self._cache.blocks(scan.source, first, last)
        window.add(first, blocks)


def _begins_on(lineage: LeaderEpochLineage, segment: RemoteLogSegmentMetadata, first_epoch: int) -> bool:
    """Return whether the segment's first epoch of those that count begins in it no earlier than on the lineage
    (docs/kafka-tier.md#lineage-filter)."""
    considered = [(epoch, start) for epoch, start in filter_epochs(segment.segment_leader_epochs).items()]
    epoch, start = min((epoch, start) for epoch, start in considered if epoch >= first_epoch)
    ends = [lineage.end_offset(lower) for lower in lineage.epochs if first_epoch <= lower < epoch]
    return all(end is None or start >= end for end in ends)


def look_through(records: Iterator[Record | None], asked: _Asked) -> tuple[Record | None, int]:
    """The record among the next RECORDS_AT_ONCE, and how many were looked at: fewer if there are no more of them."""
    count = 0
    for record in islice(records, RECORDS_AT_ONCE):
        count += 1
        if record is not None and record[1] >= asked.timestamp_ms and record[0] >= asked.log_start_offset:
            return record, count
    return None, count
