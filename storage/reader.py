"""Offset → batches: one read from the tier (spec/kafka-remote.md §3.4).

The path: lineage says which epoch an offset was written in, the catalog which segment holds it, the offset
index where to look, the cache hands out blocks, and the batch headers say where the answer begins. What is
returned is the segment's own bytes as views into cached blocks: never joined, never decoded (design L5).

Rules kept from the broker:
- The first batch returned is the first whose last offset is at or above the fetch offset; it may begin below.
- One oversize first batch is returned whole if `minimum_one_batch`; otherwise the answer is empty.
- An answer ends with its segment; its tail may be a part of a batch, which clients discard.
- An offset in a hole (compaction) is answered from the next segment.
Added: the CRC of every whole batch is checked the first time it is handed out, and an entry of the offset index is
believed only if it leads to a batch of its offset.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field, replace

import trio

from storage.aborted_transactions import AbortSearch, TierAborts
from storage.batch_walk import (
    CorruptLogError,
    IndexMismatchError,
    SegmentWindow,
    check_index_entry,
    find_first_batch,
    unverified_bytes,
    verify_batches,
)
from storage.cache.answer_blocks import AnswerBlocks, Room
from storage.cache.block_cache import BlockCache, SegmentBlocks
from storage.cache.index_cache import OffsetIndexCache
from storage.cache.opened_segments import OpenedSegments
from storage.cache.prefetcher import Prefetcher
from storage.cache.transaction_index_cache import TransactionIndexCache
from storage.indexes.offset_index import OffsetIndex
from storage.leader_epoch_lineage import LeaderEpochLineage
from storage.metadata.catalog import Catalog
from storage.model import RemoteLogSegmentMetadata, RemoteLogSegmentState, TopicIdPartition

VERIFY_IN_THREAD_BYTES = 256 * 1024
"""From here on CRC-32C runs in a thread (design §5): below, the hop costs more than the sum."""

LOOK_AHEAD_BYTES = 64 * 1024
"""How far beyond the index position the first read asks: an index entry every 4 KiB, batches mostly below 64 KiB."""


class OffsetNotInTierError(Exception):
    """No FINISHED segment on the lineage holds the offset, nor any after it. What that means is the caller's to say."""


@dataclass(frozen=True, slots=True)
class TierRecords:
    """One answer: views whose concatenation is a run of raw batches. Empty when one batch would not fit.

    `room`: the blocks that the views keep alive; whoever sends the answer releases it then.
    `aborts`: what the tier knows of the answer's aborted transactions, of a READ_COMMITTED read that has records.
    """

    buffers: list[memoryview]
    size_bytes: int
    first_batch_too_large: bool = False
    room: Room | None = field(default=None, compare=False)
    aborts: TierAborts | None = None

    def release(self) -> None:
        """The answer is sent, or nobody wants it. Idempotent."""
        if self.room is not None:
            self.room.release()


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a read wants of its segment."""

    offset: int
    max_bytes: int
    minimum_one_batch: bool
    committed: bool


@dataclass(slots=True)
class _Read:
    """One read of one segment: what it asks, what it has so far."""

    source: SegmentBlocks
    window: SegmentWindow
    room: Room
    reader: Hashable
    waited: bool = False


class TierReader:
    """Reads batches. Owned by the trio thread; safe for any number of tasks.

    Args:
        prefetcher: None for no read-ahead.
    """

    def __init__(
        self,
        *,
        catalog: Catalog,
        opened: OpenedSegments,
        indexes: OffsetIndexCache,
        transaction_indexes: TransactionIndexCache,
        cache: BlockCache,
        answers: AnswerBlocks,
        prefetcher: Prefetcher | None,
    ) -> None:
        self._catalog = catalog
        self._opened = opened
        self._indexes = indexes
        self._cache = cache
        self._answers = answers
        self._prefetcher = prefetcher
        self._abort_search = AbortSearch(transaction_indexes, self._find_segment, self._is_finished)
        self._given_up: dict[Hashable, set[TopicIdPartition]] = {}
        """Reads that were not waited for to the end: the next finds the blocks, and has waited all the same."""

    async def read(
        self,
        partition: TopicIdPartition,
        offset: int,
        *,
        max_bytes: int,
        minimum_one_batch: bool,
        lineage: LeaderEpochLineage,
        reader: Hashable = None,
        committed: bool = False,
    ) -> TierRecords:
        """The batches from `offset` on, at most max_bytes of them.

        Args:
            reader: whose read it is: sequential reads of one reader are read ahead for.
            committed: READ_COMMITTED: with what the tier knows of the answer's aborted transactions.

        Raises:
            OffsetNotInTierError: the tier does not hold the offset.
            RemoteStorageError: it should, and cannot be read.

        Cancellation: fills that were started go on.
        """
        while True:
            segment = self.segment_for(partition, offset, lineage)
            asked = _Asked(offset, max_bytes, minimum_one_batch, committed)
            answer = await self._read_segment(segment, asked, lineage, reader)
            if answer is not None:
                return answer
            offset = segment.end_offset + 1

    def segment_for(
        self, partition: TopicIdPartition, offset: int, lineage: LeaderEpochLineage
    ) -> RemoteLogSegmentMetadata:
        """The FINISHED segment on the lineage that holds `offset`.

        Raises:
            OffsetNotInTierError: there is none.
        """
        segment = self._find_segment(partition, offset, lineage)
        if segment is None:
            raise OffsetNotInTierError(f"{partition}: no segment holds offset {offset}")
        return segment

    def forget_reader(self, reader: Hashable) -> None:
        """A reader has gone: nothing is read ahead for it any more."""
        self._given_up.pop(reader, None)
        if self._prefetcher is not None:
            self._prefetcher.forget_reader(reader)

    def _find_segment(
        self, partition: TopicIdPartition, offset: int, lineage: LeaderEpochLineage
    ) -> RemoteLogSegmentMetadata | None:
        epoch = lineage.epoch_for(offset)
        topic_id, number = partition.topic_id, partition.partition
        segment = None if epoch is None else self._catalog.lookup(topic_id, number, epoch, offset)
        return segment if segment is not None and lineage.holds(segment, offset) else None

    def _is_finished(self, segment: RemoteLogSegmentMetadata) -> bool:
        now = self._catalog.find_segment(segment.segment_id)
        return now is not None and now.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED

    async def _read_segment(
        self, segment: RemoteLogSegmentMetadata, asked: _Asked, lineage: LeaderEpochLineage, reader: Hashable
    ) -> TierRecords | None:
        """The answer from one segment; None if all its batches end below the offset."""
        source = self._cache.blocks_of(segment, await self._opened.get(segment))
        index = await self._indexes.get(segment)
        room = self._answers.room()
        try:
            try:
                read, records, start = await self._read_checked(source, index, asked, room, reader)
            except IndexMismatchError:
                # Two GETs gave the same bytes, so the index may be the liar.
                index = await self._indexes.rebuild(segment)
                read, records, start = await self._read_checked(source, index, asked, room, reader)
            if asked.committed and records is not None and records.size_bytes:
                records = replace(records, aborts=await self._aborts(read, index, start, records.size_bytes, lineage))
        except BaseException as error:
            room.release()
            if isinstance(error, trio.Cancelled):
                self._given_up.setdefault(reader, set()).add(segment.topic_id_partition)
            raise
        read.waited |= self._gave_up_before(reader, segment.topic_id_partition)
        if records is None or not records.size_bytes:
            room.release()
            return records
        self._read_ahead(read, start, start + records.size_bytes, lineage)
        return records

    async def _aborts(
        self, read: _Read, index: OffsetIndex, start: int, size_bytes: int, lineage: LeaderEpochLineage
    ) -> TierAborts:
        """Of an answer that begins at the byte position `start`. Where it ends, a cut batch included, the offset index
        has its upper bound (spec/kafka-remote.md §3.6)."""
        segment = read.source.segment
        upper_bound_offset = index.fetch_upper_bound_offset(start + size_bytes)
        if upper_bound_offset is None:
            upper_bound_offset = segment.end_offset + 1
        base_offset = read.window.header_at(start).base_offset
        return await self._abort_search.search(segment, base_offset, upper_bound_offset, lineage)

    def _gave_up_before(self, reader: Hashable, partition: TopicIdPartition) -> bool:
        partitions = self._given_up.get(reader)
        if partitions is None or partition not in partitions:
            return False
        partitions.discard(partition)
        if not partitions:
            del self._given_up[reader]
        return True

    def _read_ahead(self, read: _Read, start: int, end: int, lineage: LeaderEpochLineage) -> None:
        if self._prefetcher is None:
            return
        partition = read.source.segment.topic_id_partition

        def following(segment: RemoteLogSegmentMetadata) -> RemoteLogSegmentMetadata | None:
            return self._find_segment(partition, segment.end_offset + 1, lineage)

        self._prefetcher.on_read(read.reader, read.source.segment, start, end, waited=read.waited, following=following)

    async def _read_checked(
        self, source: SegmentBlocks, index: OffsetIndex, asked: _Asked, room: Room, reader: Hashable
    ) -> tuple[_Read, TierRecords | None, int]:
        """The same; blocks with a bad batch are quarantined, and fetched once more each before it is an error (L5)."""
        entry = index.lookup(asked.offset)
        fetched_anew: set[int] = set()
        waited = False
        while True:
            window = SegmentWindow(source.segment, source.grid.block_bytes)
            read = _Read(source, window, room, reader, waited)
            try:
                records, start = await self._answer(read, entry, asked)
                return read, records, start
            except CorruptLogError as error:
                bad = self._quarantine(source, window, entry[1], error)
                if bad <= fetched_anew:
                    raise
                fetched_anew |= bad
                waited = read.waited

    async def _answer(self, read: _Read, entry: tuple[int, int], asked: _Asked) -> tuple[TierRecords | None, int]:
        """The records, or None; and where in the log they begin."""
        window, max_bytes, size_bytes = read.window, asked.max_bytes, read.source.grid.size_bytes
        entry_offset, walk_start = entry
        position = walk_start
        # All that the answer is likely to need is asked for at once: its fills run side by side.
        await self._extend(read, position, position + max(max_bytes, LOOK_AHEAD_BYTES))
        if position > 0:
            check_index_entry(window, entry_offset, position)
        while (found := find_first_batch(window, position, asked.offset)).needs_end is not None:
            await self._extend(read, found.position, found.needs_end)
            position = found.position
        if found.size_bytes is None:
            await self._verify(window, walk_start, size_bytes)
            return None, found.position
        if found.size_bytes > max_bytes:
            if not asked.minimum_one_batch:
                return TierRecords([], 0, first_batch_too_large=True), found.position
            max_bytes = found.size_bytes
        end = min(found.position + max_bytes, size_bytes)
        await self._extend(read, found.position, end)
        # What was walked over too: a bad batch there would be a silent skip.
        await self._verify(window, walk_start, end)
        read.room.keep([block for _, block in window.numbered_blocks(found.position, end)])
        return TierRecords(window.views(found.position, end), end - found.position, room=read.room), found.position

    async def _extend(self, read: _Read, start: int, end: int) -> None:
        window = read.window
        first, last = window.missing(start, end)
        if first > last:
            return
        begins = first if window.is_empty else window.first_block
        await read.room.reserve(read.source.grid.end(last) - read.source.grid.start(begins))
        blocks, waited = await self._cache.blocks(read.source, first, last, read.reader)
        read.waited |= waited
        window.add(first, blocks)

    def _quarantine(
        self, source: SegmentBlocks, window: SegmentWindow, walked_from: int, error: CorruptLogError
    ) -> set[int]:
        """The numbers of the blocks that are not to be believed."""
        start = error.position if error.follows_verified else walked_from
        blocks = window.numbered_blocks(start, error.end)
        for number, block in blocks:
            self._cache.quarantine(source, number, block)
        return {number for number, _ in blocks}

    async def _verify(self, window: SegmentWindow, start: int, end: int) -> None:
        unverified = unverified_bytes(window, start, end)
        if unverified >= VERIFY_IN_THREAD_BYTES:
            await trio.to_thread.run_sync(verify_batches, window, start, end)
        elif unverified:
            verify_batches(window, start, end)
