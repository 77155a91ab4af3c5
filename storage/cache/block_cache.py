"""Blocks by segment and number: memory first, then disk, then one GET that everyone shares.

A hit in memory costs one dict look-up in the trio thread and no await. A miss starts one load in the application's
nursery; whoever leaves does not cancel it. What comes from the store goes to memory at once and to disk behind
the readers' backs.
"""

import time
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from metrics.cache_probes import CacheLevel, CacheProbe
from storage.cache.block_grid import BlockGrid, block_grid
from storage.cache.disk import DiskBlockKey
from storage.cache.disk_level import DiskLevel
from storage.cache.fills import Fills
from storage.cache.flight import Flight
from storage.cache.memory import Block, BlockKey, MemoryBlocks
from storage.model import RemoteLogSegmentMetadata, Uuid
from storage.remote_storage_manager import OpenedSegment

PLACES_MAX = 10_000
"""Segments with blocks under way; more cannot be, so what is beyond is old."""


@dataclass(frozen=True, slots=True)
class SegmentBlocks:
    """A segment as the cache sees it: how to read it, and where its blocks are."""

    segment: RemoteLogSegmentMetadata
    opened: OpenedSegment
    grid: BlockGrid

    def key(self, number: int) -> BlockKey:
        """The cache's key of a block."""
        return BlockKey(self.segment.segment_id.id, number)


class BlockCache:
    """The cache. Owned by the trio thread.

    Args:
        fills: whatever they bring must be handed to `land`.
        disk: None for none.
    """

    def __init__(
        self, *, memory: MemoryBlocks, fills: Fills, disk: DiskLevel | None, block_bytes: int, probe: CacheProbe
    ) -> None:
        self._memory = memory
        self._fills = fills
        self._disk = disk
        self._block_bytes = block_bytes
        self._probe = probe
        self._first_readers: dict[BlockKey, Hashable] = {}
        self._places: OrderedDict[Uuid, tuple[Uuid, BlockGrid]] = OrderedDict()

    def blocks_of(self, segment: RemoteLogSegmentMetadata, opened: OpenedSegment) -> SegmentBlocks:
        """The segment, cut into blocks."""
        grid = block_grid(opened.chunk_bytes, segment.segment_size_bytes, self._block_bytes)
        return SegmentBlocks(segment, opened, grid)

    async def blocks(
        self, source: SegmentBlocks, first: int, last: int, reader: Hashable = None
    ) -> tuple[list[Block], bool]:
        """Blocks first to last, inclusive, and whether any had to be waited for; missing ones are loaded side by side.

        Args:
            reader: who reads; blocks that several read are kept longer.

        Raises:
            RemoteStorageError: as the storage manager raises it.
        """
        with self.ask(source, first, last, reader) as asked:
            return [await asked.next() for _ in range(first, last + 1)], asked.waited

    @contextmanager
    def ask(self, source: SegmentBlocks, first: int, last: int, reader: Hashable = None) -> Iterator["AskedBlocks"]:
        """The same blocks one by one, as they come; those that nobody takes any more come all the same."""
        found: list[Block | None] = [self._resident(source, number, reader) for number in range(first, last + 1)]
        missing = [first + at for at, block in enumerate(found) if block is None]
        if not missing:
            yield AskedBlocks(self._memory, deque(found), deque(), reader)
            return
        keys = [source.key(number) for number in missing]
        asked_at = time.monotonic()
        joined = {key for key in keys if self._first_readers.setdefault(key, reader) != reader}
        try:
            flights = zip(keys, self._load(source, missing, reader), strict=True)
            flying = deque((flight, key if key in joined else None) for key, flight in flights)
            yield (asked := AskedBlocks(self._memory, deque(found), flying, reader))
        finally:
            for key in keys:
                self._first_readers.pop(key, None)
        if asked.waited:
            self._probe.on_fill_waited(time.monotonic() - asked_at)

    def ahead(self, source: SegmentBlocks, numbers: Sequence[int]) -> None:
        """Have those blocks fetched that are neither here nor under way; returns at once."""
        wanted = [number for number in numbers if not self._is_near(source, number)]
        if wanted:
            self._fill(source, wanted, demanded=False)

    def land(self, key: BlockKey, block: Block, demanded: bool) -> None:
        """A block has come from the store."""
        reader = self._first_readers.get(key)
        if demanded:
            self._memory.put(key, block, reader)
        else:
            self._memory.put_unread(key, block)
        place = self._places.get(key.segment_id)
        if self._disk is not None and place is not None:
            self._disk.write_soon(_disk_key(*place, key), block, reader)

    def quarantine(self, source: SegmentBlocks, number: int, block: Block) -> None:
        """Drop a block that turned out bad; the next request for it is a fresh GET (design L5).

        Only that very block: another reader may have found the same and put a fresh one in its place.
        """
        key = source.key(number)
        resident = self._memory.peek(key)
        if resident is not None and resident is not block:
            return
        self._memory.drop(key)
        self._probe.on_quarantined()
        if self._disk is not None:
            self._disk.drop(_disk_key(source.segment.topic_id_partition.topic_id, source.grid, key))

    def drop_segment(self, segment_id: Uuid) -> None:
        """Forget a deleted segment's blocks, also those on their way."""
        self._fills.forget_segment(segment_id)
        self._memory.drop_segment(segment_id)
        self._places.pop(segment_id, None)
        if self._disk is not None:
            self._disk.drop_segment(segment_id)

    def expire(self) -> None:
        """Drop from memory what nobody has read for `cache.retention.ms`."""
        self._memory.expire()

    def _resident(self, source: SegmentBlocks, number: int, reader: Hashable) -> Block | None:
        block = self._memory.get(source.key(number), reader)
        if block is None:
            self._probe.on_miss(CacheLevel.MEMORY)
        else:
            self._probe.on_hit(CacheLevel.MEMORY, len(block.data))
        return block

    def _is_near(self, source: SegmentBlocks, number: int) -> bool:
        key = source.key(number)
        if self._memory.contains(key) or self._fills.is_under_way(key):
            return True
        return self._disk is not None and self._disk.holds(
            _disk_key(source.segment.topic_id_partition.topic_id, source.grid, key)
        )

    def _load(self, source: SegmentBlocks, numbers: Sequence[int], reader: Hashable) -> list[Flight[Block]]:
        disk = self._disk
        if disk is None:
            return self._fill(source, numbers, demanded=True)
        topic_id = source.segment.topic_id_partition.topic_id
        disk_keys = {number: _disk_key(topic_id, source.grid, source.key(number)) for number in numbers}
        on_disk = {
            number: disk_key
            for number, disk_key in disk_keys.items()
            if disk.holds(disk_key) and not self._fills.is_under_way(source.key(number))
        }
        absent = [number for number in numbers if number not in on_disk]
        for number in absent:
            if not self._fills.is_under_way(source.key(number)):
                self._probe.on_miss(CacheLevel.DISK)
        flights = dict(zip(absent, self._fill(source, absent, demanded=True), strict=True))
        for number, disk_key in on_disk.items():
            flights[number] = self._read_disk(disk, disk_key, source, number, reader)
        return [flights[number] for number in numbers]

    def _read_disk(
        self, disk: DiskLevel, disk_key: DiskBlockKey, source: SegmentBlocks, number: int, reader: Hashable
    ) -> Flight[Block]:
        return disk.read(
            disk_key,
            reader,
            land=lambda block: self._memory.put(source.key(number), block, reader),
            otherwise=lambda: self._fill(source, [number], demanded=True)[0],
        )

    def _fill(self, source: SegmentBlocks, numbers: Sequence[int], *, demanded: bool) -> list[Flight[Block]]:
        if not numbers:
            return []
        segment = source.segment
        segment_id = segment.segment_id.id
        self._places[segment_id] = (segment.topic_id_partition.topic_id, source.grid)
        self._places.move_to_end(segment_id)
        if len(self._places) > PLACES_MAX:
            self._places.popitem(last=False)
        return self._fills.want(segment, source.opened, source.grid, numbers, demanded=demanded)


class AskedBlocks:
    """Blocks in the order of their numbers. `waited`: one that was taken was not in memory when it was asked for."""

    __slots__ = ("_flying", "_found", "_memory", "_reader", "waited")

    def __init__(
        self,
        memory: MemoryBlocks,
        found: deque[Block | None],
        flying: deque[tuple[Flight[Block], BlockKey | None]],
        reader: Hashable,
    ) -> None:
        self.waited = False
        self._memory = memory
        self._found = found
        self._flying = flying
        self._reader = reader

    def __len__(self) -> int:
        """Blocks that were not taken yet."""
        return len(self._found)

    async def next(self) -> Block:
        """The next block. It is taken once this has returned it.

        Raises:
            RemoteStorageError: as the storage manager raises it.
        """
        if (block := self._found[0]) is None:
            self.waited = True
            flight, joined = self._flying[0]
            block = await flight.wait()
            self._flying.popleft()
            if joined is not None:
                self._memory.get(joined, self._reader)  # several consumers in step are several all the same
        self._found.popleft()
        return block


def _disk_key(topic_id: Uuid, grid: BlockGrid, key: BlockKey) -> DiskBlockKey:
    start = grid.start(key.number)
    return DiskBlockKey(topic_id, key.segment_id, grid.block_bytes, key.number, grid.end(key.number) - start)
