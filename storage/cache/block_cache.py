"""Blocks by segment and number: memory first, then disk, then one GET that everyone shares.

A hit in memory costs one dict look-up in the trio thread and no await. A miss starts one load in the application's
nursery; a caller that leaves does not cancel it. What comes from the store goes to memory at once and to disk behind
the readers' backs.

Where a GET begins and ends (docs/protocol.md#read-ahead):

Rule 1. A GET is a run of adjacent blocks. It begins at a missing one and goes on until it is large enough.
Rule 2. It goes on over blocks that are here already where the gap is small: reading on costs less than another GET. So
        a range of which every other block is cached is read as if none were.
Rule 3. It ends before a block that is under way: nothing is transferred twice at once.
Rule 4. Blocks that are decoded together (`BlockGrid.unit`) are fetched together.
Rule 5. What would be left of a segment is taken along while it is small.

Sizes are bytes in the store, since those are what a GET transfers; see `weigher` for what inflates a lot.
"""

import enum
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import cast

from metrics.cache_meters import CacheLevel, CacheMeter
from storage.bounded_map import BoundedMap
from storage.cache.blocks import BlockGrid, BlockKey, MemoryBlocks, SegmentBlocks, block_grid
from storage.cache.disk import DiskBlockKey
from storage.cache.disk_level import DiskLevel
from storage.cache.disk_reads import DiskReads
from storage.cache.gets import Gets
from storage.cache.pace import GET_BYTES
from storage.cache.segment_entries import Flight
from storage.log.block import Block
from storage.model import RemoteLogSegmentMetadata, Uuid
from storage.remote_storage_manager import OpenedSegment

PLACES_MAX = 10_000
"""Segments with blocks under way; more cannot be, so what is beyond is old."""

DISK_RUN_BYTES = 8 * 1024 * 1024
"""For blocks that are read from disk by one thread, one after another."""

GAP_FRACTION = 4
"""A GET goes on over blocks that are here as long as they are less than one part in so many of it."""

TAIL_FRACTION = 3
"""What is left of a segment is small when it is less than one part in so many of a GET."""

Weigh = Callable[[int, int], int]
"""Bytes that a GET of plaintext [start, end) counts for."""


class Place(enum.Enum):
    """Where a block is."""

    MISSING = enum.auto()
    HERE = enum.auto()
    ON_DISK = enum.auto()
    UNDER_WAY = enum.auto()


class BlockCache:
    """The cache. Owned by the trio thread.

    Args:
        gets: whatever they bring is handed to `land`.
        disk: None for none.
    """

    def __init__(
        self, *, memory: MemoryBlocks, gets: Gets, disk: DiskLevel | None, block_bytes: int, meter: CacheMeter
    ) -> None:
        self.memory = memory
        self._gets = gets
        self._reach_bytes: Callable[[Hashable, SegmentBlocks, int, int], int] = lambda *_: 0
        self._disk = disk
        self._disk_reads = (
            None
            if disk is None
            else DiskReads(disk, land=self._keep, otherwise=self._read_anew, walk_from=gets.walk_from)
        )
        self._block_bytes = block_bytes
        self.meter = meter
        self.first_readers: dict[BlockKey, Hashable] = {}
        self.places: BoundedMap[Uuid, SegmentBlocks] = BoundedMap(PLACES_MAX)
        gets.land = self.land

    def reach_by(self, reach_bytes: Callable[[Hashable, SegmentBlocks, int, int], int]) -> None:
        """Set what says how far beyond the byte at a position a GET may go on that this reader waits for, which is
        likely to ask for so much."""
        self._reach_bytes = reach_bytes

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
        asked = self.ask(source, first, last, reader)
        try:
            blocks = asked.take()
            while len(asked):
                await asked.wait()
                blocks += asked.take()
            return blocks, asked.waited
        finally:
            asked.close()

    def ask(
        self, source: SegmentBlocks, first: int, last: int, reader: Hashable = None, *, likely_bytes: int = 0
    ) -> "AskedBlocks":
        """The same blocks as they come; those that nobody takes any more come all the same. To be closed.

        Args:
            likely_bytes: what the reader is likely to ask for next, so that a GET may bring it too.
        """
        found = [self._resident(source, number, reader) for number in range(first, last + 1)]
        asked = AskedBlocks(self, found, reader)
        if None not in found:
            return asked
        asked.asked_at_s = time.monotonic()
        # A thread hands over several blocks at once: one that was not there yet may have come with one behind it.
        found[:] = [block or self.memory.get(source.key(first + at), reader) for at, block in enumerate(found)]
        missing = [first + at for at, block in enumerate(found) if block is None]
        asked.keys = [source.key(number) for number in missing]
        joined = {key for key in asked.keys if self.first_readers.setdefault(key, reader) != reader}
        try:
            flights = zip(asked.keys, self._load(source, missing, reader, likely_bytes), strict=True)
            asked.flying.extend((flight, key if key in joined else None) for key, flight in flights)
        except BaseException:
            asked.close()
            raise
        return asked

    @property
    def read_ahead_bytes(self) -> int:
        """Plaintext of blocks under way that nobody has asked for yet."""
        return self._gets.read_ahead_bytes + (0 if self._disk_reads is None else self._disk_reads.undemanded_bytes)

    def fetch_ahead(
        self, source: SegmentBlocks, start: int, end: int, target_bytes: int, room_bytes: int
    ) -> tuple[int, int] | None:
        """Fetch the next blocks of plaintext [start, end) that are not in memory by one GET that nobody waits
        for, or read from disk in one run; returns at once.

        Args:
            target_bytes: what it is to transfer.
            room_bytes: of plaintext, that it may bring.

        Returns:
            The position below which everything is here or under way now, and the bytes that were asked for, as stored.
            None: there is no room.
        """
        grid = source.grid
        first, stop = grid.number_at(start), grid.number_at(end - 1) + 1
        while first < stop and (self.memory.expect(key := source.key(first)) or self._want_if_under_way(key)):
            first += 1
        if first < stop and self._is_on_disk(source, first):
            stop = min(stop, first + room_bytes // grid.block_bytes)
            return (grid.end(self._read_disk(source, first, stop, None).stop - 1), 0) if first < stop else None
        numbers = self._next_get(source, first, stop, target_bytes)
        if numbers is None:
            return end, 0
        missing = self._missing(source, numbers)
        if sum(map(source.size_bytes, missing)) > room_bytes:
            return None
        self.places[source.segment.segment_id.id] = source
        if not self._gets.fetch_ahead(source, numbers, missing):
            return None
        return max(start, grid.end(numbers.stop - 1)), source.stored_bytes(numbers)

    def land(self, key: BlockKey, block: Block, demanded: bool) -> None:
        """A block has come from the store."""
        self._keep(key, block, demanded)
        source = self.places.get(key.segment_id)
        if self._disk is not None and source is not None:
            self._disk.write_soon(_disk_key(source, key.number), block, self.first_readers.get(key))

    def quarantine(self, source: SegmentBlocks, number: int, block: Block) -> None:
        """Drop a block that turned out bad; the next request for it is a fresh GET (docs/protocol.md#l5).

        Only that very block: another reader may have found the same and put a fresh one in its place.
        """
        key = source.key(number)
        resident = self.memory.peek(key)
        if resident is not None and resident is not block:
            return
        self.memory.drop(key)
        self.meter.on_quarantined()
        if self._disk is not None:
            self._disk.drop(_disk_key(source, number))

    def drop_segment(self, segment_id: Uuid) -> None:
        """Forget a deleted segment's blocks, also those on their way."""
        self._gets.forget_segment(segment_id)
        self.memory.drop_segment(segment_id)
        self.places.pop(segment_id, None)
        if self._disk is not None:
            self._disk.drop_segment(segment_id)

    def _resident(self, source: SegmentBlocks, number: int, reader: Hashable) -> Block | None:
        key = source.key(number)
        block = self.memory.get(key, reader)
        if block is None and self._gets.want_if_under_way(key):
            self._gets.collect(key)
            block = self.memory.get(key, reader)
        if block is None:
            self.meter.on_miss(CacheLevel.MEMORY)
        else:
            self.meter.on_hit(CacheLevel.MEMORY, len(block.data))
        return block

    def _place(self, source: SegmentBlocks, number: int) -> Place:
        key = source.key(number)
        if self.memory.contains(key):
            return Place.HERE
        if self._want_if_under_way(key):
            return Place.UNDER_WAY
        return Place.ON_DISK if self._is_on_disk(source, number) else Place.MISSING

    def _want_if_under_way(self, key: BlockKey) -> bool:
        return self._gets.want_if_under_way(key) or (
            self._disk_reads is not None and self._disk_reads.is_under_way(key)
        )

    def _is_on_disk(self, source: SegmentBlocks, number: int) -> bool:
        return self._disk is not None and self._disk.holds(_disk_key(source, number))

    def _load(
        self, source: SegmentBlocks, numbers: Sequence[int], reader: Hashable, likely_bytes: int
    ) -> list[Flight[Block]]:
        """A flight for each of these blocks, none of which is in memory."""
        flights = []
        for number in numbers:
            key = source.key(number)
            if not self._want_if_under_way(key):
                if self._is_on_disk(source, number):
                    stop = self._stop(source, number, numbers[-1], reader, likely_bytes)
                    self._read_disk(source, number, stop, reader)
                else:
                    self._fetch(source, number, numbers, reader, likely_bytes)
            flights.append(self._wait_for(key))
        return flights

    def _wait_for(self, key: BlockKey) -> Flight[Block]:
        if self._disk_reads is not None and self._disk_reads.is_under_way(key):
            return self._disk_reads.wait_for(key)
        return self._gets.wait_for(key)

    def _read_disk(self, source: SegmentBlocks, first: int, stop: int, reader: Hashable) -> range:
        """Read the run of blocks from `first` on that are on disk and not in memory, below `stop`; which these are."""
        assert self._disk_reads is not None, "something is on disk"
        end = first + 1
        stop = min(stop, first + max(1, DISK_RUN_BYTES // source.grid.block_bytes))
        while end < stop and self._place(source, end) is Place.ON_DISK:
            end += 1
        numbers = range(first, end)
        self._disk_reads.read(source, [_disk_key(source, number) for number in numbers], reader)
        return numbers

    def _keep(self, key: BlockKey, block: Block, demanded: bool) -> None:
        """A block has come."""
        if demanded:
            self.memory.put(key, block, self.first_readers.get(key))
        else:
            self.memory.put_unread(key, block)

    def _read_anew(self, source: SegmentBlocks, number: int) -> Flight[Block]:
        """The store's, of a block that the disk did not give: with those behind it, whose files may be no better."""
        key = source.key(number)
        if (block := self.memory.peek(key)) is not None:  # another GET has read over it meanwhile
            flight: Flight[Block] = Flight()
            flight.land(block)
            return flight
        if not self._gets.want_if_under_way(key):
            grid = source.grid
            stop = min(grid.count, number + max(1, self._gets.pace.get_bytes(0) // grid.block_bytes))
            behind = range(number + 1, stop)
            end = next((at for at in behind if self._place(source, at) is Place.UNDER_WAY), stop)
            self._start(source, range(grid.unit(number).start, grid.unit(end - 1).stop))
        return self._gets.wait_for(key)

    def _stop(self, source: SegmentBlocks, first: int, last: int, reader: Hashable, likely_bytes: int) -> int:
        """The block up to which to fetch or read when `first` to `last` are asked for."""
        reach_bytes = self._reach(source, first, reader, likely_bytes)
        reach_end = min(source.grid.start(first) + reach_bytes, source.grid.size_bytes)
        return max(last + 1, source.grid.number_at(reach_end - 1) + 1)

    def _reach(self, source: SegmentBlocks, first: int, reader: Hashable, likely_bytes: int) -> int:
        likely_bytes = min(likely_bytes, self._gets.pace.get_bytes(0))
        return self._reach_bytes(reader, source, source.grid.start(first), likely_bytes)

    def _fetch(
        self, source: SegmentBlocks, first: int, asked: Sequence[int], reader: Hashable, likely_bytes: int
    ) -> None:
        """Start the GET that brings block `first`, which is missing, and as many behind it as one GET should."""
        target_bytes = max(self._reach(source, first, reader, likely_bytes), self._gets.pace.get_bytes(0))
        numbers = self._next_get(
            source, first, self._stop(source, first, asked[-1], reader, likely_bytes), target_bytes
        )
        assert numbers is not None, "the first one is missing"
        missing = self._start(source, numbers)
        if self._disk is not None:
            for _ in set(asked).intersection(missing):
                self.meter.on_miss(CacheLevel.DISK)

    def _start(self, source: SegmentBlocks, numbers: range) -> Sequence[int]:
        missing = self._missing(source, numbers)
        self.places[source.segment.segment_id.id] = source
        self._gets.fetch(source, numbers, missing)
        return missing

    def _next_get(self, source: SegmentBlocks, first: int, stop: int, target_bytes: int) -> range | None:
        return next_get(
            first,
            stop,
            grid=source.grid,
            place=lambda number: self._place(source, number),
            weigh=weigher(source.opened.stored_bytes, self._gets.plaintext_bytes_max, target_bytes),
            target_bytes=target_bytes,
            gap_bytes=max(self._gets.pace.delay_bytes, target_bytes // GAP_FRACTION),
        )

    def _missing(self, source: SegmentBlocks, numbers: range) -> list[int]:
        """Blocks of a GET that are not in memory. Those that are on disk come anyway, so that they need not be read."""
        return [
            number
            for number in numbers
            if not self.memory.contains(key := source.key(number)) and not self._want_if_under_way(key)
        ]


class AskedBlocks:
    """Blocks in the order of their numbers. `waited`: one that was taken was not in memory when it was asked for."""

    __slots__ = ("_cache", "_found", "_reader", "asked_at_s", "flying", "keys", "waited")

    def __init__(self, cache: BlockCache, found: list[Block | None], reader: Hashable) -> None:
        self.waited = False
        self.keys: Sequence[BlockKey] = ()
        """The keys of those that were not here."""
        self.flying: deque[tuple[Flight[Block], BlockKey | None]] = deque()
        self._cache = cache
        self._found = found
        self._reader = reader
        self.asked_at_s = 0.0

    def __len__(self) -> int:
        """Blocks that were not taken yet."""
        return len(self._found)

    def take(self) -> list[Block]:
        """The next blocks, as many as are here."""
        count = self._found.index(None) if None in self._found else len(self._found)
        here, self._found = self._found[:count], self._found[count:]
        return cast(list[Block], here)

    async def wait(self) -> None:
        """Return when the next block, which is not here, has come.

        Raises:
            RemoteStorageError: as the storage manager raises it.
        """
        self.waited = True
        flight, joined = self.flying[0]
        self._found[0] = await flight.wait()
        self.flying.popleft()
        if joined is not None:
            self._cache.memory.get(joined, self._reader)  # several consumers in step are several all the same

    def close(self) -> None:
        """Nobody takes any more of them. Idempotent."""
        keys, self.keys = self.keys, ()
        for key in keys:
            self._cache.first_readers.pop(key, None)
        if keys and self.waited:
            self._cache.meter.on_fill_waited(time.monotonic() - self.asked_at_s)


def _disk_key(source: SegmentBlocks, number: int) -> DiskBlockKey:
    topic_id = source.segment.topic_id_partition.topic_id
    return DiskBlockKey(
        topic_id, source.segment.segment_id.id, source.grid.block_bytes, number, source.size_bytes(number)
    )


def next_get(
    first: int,
    stop: int,
    *,
    grid: BlockGrid,
    place: Callable[[int], Place],
    weigh: Weigh,
    target_bytes: int,
    gap_bytes: int,
) -> range | None:
    """The next GET for blocks from `first` on, below `stop`; None if none of those is missing.

    Args:
        place: of a block, by its number.
        target_bytes: what it is to transfer. It does not exceed that unless it is one unit, or that and a tail.
        gap_bytes: of plaintext that is here, which it may go over.
    """
    while first < stop and place(first) is not Place.MISSING:
        first += 1
    if first >= stop:
        return None
    unit = grid.unit(first)
    begin, end = unit.start, unit.stop
    number = end
    while number < stop:
        found = place(number)
        if found is Place.MISSING:
            unit_end = grid.unit(number).stop
            if weigh(grid.start(begin), grid.end(unit_end - 1)) > target_bytes:
                break
            number = end = unit_end
        elif found is Place.UNDER_WAY or grid.end(number) - grid.start(end) > gap_bytes:
            break
        else:
            number += 1
    if end < grid.count <= stop and weigh(grid.start(end), grid.size_bytes) * TAIL_FRACTION <= target_bytes:
        tail = range(end, grid.count)
        if all(place(number) is Place.MISSING for number in tail):
            end = tail.stop
    return range(begin, end)


def weigher(stored_bytes: Weigh, plaintext_bytes_max: int, target_bytes: int = GET_BYTES) -> Weigh:
    """Weigh by stored bytes, but let no GET of `target_bytes` inflate to more than `plaintext_bytes_max`."""

    def weigh(start: int, end: int) -> int:
        return max(stored_bytes(start, end), (end - start) * target_bytes // plaintext_bytes_max)

    return weigh
