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

from dataclasses import dataclass

import trio

from storage.batch_walk import (
    CorruptLogError,
    IndexMismatchError,
    SegmentWindow,
    check_index_entry,
    find_first_batch,
    unverified_bytes,
    verify_batches,
)
from storage.cache.block_cache import BlockCache
from storage.cache.index_cache import OffsetIndexCache
from storage.indexes.offset_index import OffsetIndex
from storage.leader_epoch_lineage import LeaderEpochLineage
from storage.metadata.catalog import Catalog
from storage.model import RemoteLogSegmentMetadata, TopicIdPartition

VERIFY_IN_THREAD_BYTES = 256 * 1024
"""From here on CRC-32C runs in a thread (design §5): below, the hop costs more than the sum."""

LOOK_AHEAD_BYTES = 64 * 1024
"""How far beyond the index position the first read asks: an index entry every 4 KiB, batches mostly below 64 KiB."""


class OffsetNotInTierError(Exception):
    """No FINISHED segment on the lineage holds the offset, nor any after it. What that means is the caller's to say."""


@dataclass(frozen=True, slots=True)
class TierRecords:
    """One answer: views whose concatenation is a run of raw batches. Empty when one batch would not fit."""

    buffers: list[memoryview]
    size_bytes: int
    first_batch_too_large: bool = False


class TierReader:
    """Reads batches. Owned by the trio thread; safe for any number of tasks."""

    def __init__(self, catalog: Catalog, indexes: OffsetIndexCache, cache: BlockCache) -> None:
        self._catalog = catalog
        self._indexes = indexes
        self._cache = cache

    async def read(
        self,
        partition: TopicIdPartition,
        offset: int,
        *,
        max_bytes: int,
        minimum_one_batch: bool,
        lineage: LeaderEpochLineage,
    ) -> TierRecords:
        """The batches from `offset` on, at most max_bytes of them.

        Raises:
            OffsetNotInTierError: the tier does not hold the offset.
            RemoteStorageError: it should, and cannot be read.

        Cancellation: fills that were started go on.
        """
        while True:
            segment = self.segment_for(partition, offset, lineage)
            answer = await self._read_segment(segment, offset, max_bytes, minimum_one_batch)
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
        epoch = lineage.epoch_for(offset)
        topic_id, number = partition.topic_id, partition.partition
        segment = None if epoch is None else self._catalog.lookup(topic_id, number, epoch, offset)
        if segment is None or not lineage.holds(segment, offset):
            raise OffsetNotInTierError(f"{partition}: no segment holds offset {offset}")
        return segment

    async def _read_segment(
        self, segment: RemoteLogSegmentMetadata, offset: int, max_bytes: int, minimum_one_batch: bool
    ) -> TierRecords | None:
        """The answer from one segment; None if all its batches end below the offset."""
        index = await self._indexes.get(segment)
        try:
            return await self._read_checked(segment, index, offset, max_bytes, minimum_one_batch)
        except IndexMismatchError:
            # Two GETs gave the same bytes, so the index may be the liar.
            index = await self._indexes.rebuild(segment)
        return await self._read_checked(segment, index, offset, max_bytes, minimum_one_batch)

    async def _read_checked(
        self,
        segment: RemoteLogSegmentMetadata,
        index: OffsetIndex,
        offset: int,
        max_bytes: int,
        minimum_one_batch: bool,
    ) -> TierRecords | None:
        """The same; blocks with a bad batch are quarantined, and fetched once more before it is an error (L5)."""
        entry = index.lookup(offset)
        is_retry = False
        while True:
            window = SegmentWindow(segment, self._cache.block_bytes)
            try:
                return await self._answer(segment, window, entry, offset, max_bytes, minimum_one_batch)
            except CorruptLogError as error:
                self._quarantine(segment, window, entry[1], error)
                if is_retry:
                    raise
                is_retry = True

    async def _answer(
        self,
        segment: RemoteLogSegmentMetadata,
        window: SegmentWindow,
        entry: tuple[int, int],
        offset: int,
        max_bytes: int,
        minimum_one_batch: bool,
    ) -> TierRecords | None:
        entry_offset, walk_start = entry
        position = walk_start
        # All that the answer is likely to need is asked for at once: its fills run side by side.
        await self._extend(segment, window, position, position + max(max_bytes, LOOK_AHEAD_BYTES))
        if position > 0:
            check_index_entry(window, entry_offset, position)
        while (found := find_first_batch(window, position, offset)).needs_end is not None:
            await self._extend(segment, window, found.position, found.needs_end)
            position = found.position
        if found.size_bytes is None:
            await self._verify(window, walk_start, segment.segment_size_bytes)
            return None
        if found.size_bytes > max_bytes:
            if not minimum_one_batch:
                return TierRecords([], 0, first_batch_too_large=True)
            max_bytes = found.size_bytes
        end = min(found.position + max_bytes, segment.segment_size_bytes)
        await self._extend(segment, window, found.position, end)
        # What was walked over too: a bad batch there would be a silent skip.
        await self._verify(window, walk_start, end)
        return TierRecords(window.views(found.position, end), end - found.position)

    async def _extend(self, segment: RemoteLogSegmentMetadata, window: SegmentWindow, start: int, end: int) -> None:
        first, last = window.missing(start, end)
        if first <= last:
            window.add(first, await self._cache.blocks(segment, first, last))

    def _quarantine(
        self, segment: RemoteLogSegmentMetadata, window: SegmentWindow, walked_from: int, error: CorruptLogError
    ) -> None:
        start = error.position if error.follows_verified else walked_from
        for number, block in window.numbered_blocks(start, error.end):
            self._cache.quarantine(segment, number, block)

    async def _verify(self, window: SegmentWindow, start: int, end: int) -> None:
        unverified = unverified_bytes(window, start, end)
        if unverified >= VERIFY_IN_THREAD_BYTES:
            await trio.to_thread.run_sync(verify_batches, window, start, end)
        elif unverified:
            verify_batches(window, start, end)
