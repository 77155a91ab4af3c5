"""Blocks: how a segment's log is cut into them (docs/protocol.md#blocks), what one is, and those in memory.

A block is a run of whole format chunks that covers at least `expert.cache.block.bytes`; formats without chunks have
that grid itself. A chunk larger than BLOCK_BYTES_MAX is cut into blocks of its own: they are filled together, since
one GET decodes them all. Either way blocks of one segment are equally long, save the last, so that position and
number are one division apart.

In memory they have two byte budgets: one for blocks that were read, one for those read ahead that nobody has read yet.

Rule 1. Neither budget is exceeded at any moment: room is made before a block goes in. A block larger than its whole
        budget is not kept.
Rule 2. The policy decides which read block goes (`eviction`): what stays are runs of neighbouring blocks. The oldest
        unread block goes first, and is wasted: its reader has fallen behind or gone away, and the others are what
        it would want next.
Rule 3. Every block read ahead is counted as arrived, and later either as used or as wasted, once.
Rule 4. A block that a response still holds lives on by its reference until sent; it only leaves this table.
Rule 5. A block's bytes never change. Quarantine drops the block; the fresh one is another object, with another
        serial.
"""

import itertools
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import NamedTuple

from metrics.cache_meters import CacheLevel, CacheMeter, ReadAheadMeter
from storage.cache.eviction import ScanResistantPolicy, extent_blocks
from storage.log.block import Block
from storage.model import RemoteLogSegmentMetadata, Uuid
from storage.remote_storage_manager import OpenedSegment

BLOCK_BYTES_MAX = 16 * 1024 * 1024
"""Larger chunks are cut; so large is `expert.cache.block.bytes` at most."""


class BlockKey(NamedTuple):
    """A block of a segment's log: bytes [number * block_bytes, (number + 1) * block_bytes)."""

    segment_id: Uuid
    number: int


@dataclass(frozen=True, slots=True)
class BlockGrid:
    """The blocks of one segment: `block_bytes` each, of `size_bytes` in all.

    `unit_blocks`: blocks n * unit_blocks to (n + 1) * unit_blocks − 1 are filled together.
    """

    block_bytes: int
    size_bytes: int
    unit_blocks: int = 1

    @property
    def count(self) -> int:
        return -(-self.size_bytes // self.block_bytes)

    def start(self, number: int) -> int:
        """Return where the block begins."""
        return number * self.block_bytes

    def end(self, number: int) -> int:
        """Return where it ends, exclusive."""
        return min((number + 1) * self.block_bytes, self.size_bytes)

    def number_at(self, position: int) -> int:
        """The block that holds the byte at `position`."""
        return position // self.block_bytes

    def unit(self, number: int) -> range:
        """The blocks that are filled together with this one, itself among them."""
        first = number - number % self.unit_blocks
        return range(first, min(first + self.unit_blocks, self.count))


def block_grid(chunk_bytes: int, size_bytes: int, block_bytes: int) -> BlockGrid:
    """The grid of a segment of `size_bytes`, in chunks of `chunk_bytes` (1: none), for `expert.cache.block.bytes`."""
    if chunk_bytes <= BLOCK_BYTES_MAX:
        return BlockGrid(chunk_bytes * max(1, -(-block_bytes // chunk_bytes)), size_bytes)
    # The fewest equal parts; a chunk size without such a divisor (a prime, say) stays whole.
    fewest = -(-chunk_bytes // BLOCK_BYTES_MAX)
    parts = next((parts for parts in range(fewest, 64 * fewest) if chunk_bytes % parts == 0), None)
    if parts is None:
        return BlockGrid(chunk_bytes, size_bytes)
    return BlockGrid(chunk_bytes // parts, size_bytes, unit_blocks=parts)


@dataclass(frozen=True, slots=True)
class SegmentBlocks:
    """A segment as the cache sees it: how to read it, and where its blocks are."""

    segment: RemoteLogSegmentMetadata
    opened: OpenedSegment
    grid: BlockGrid

    def key(self, number: int) -> BlockKey:
        """The cache's key of a block."""
        return BlockKey(self.segment.segment_id.id, number)

    def size_bytes(self, number: int) -> int:
        """A block's plaintext."""
        return min(self.grid.block_bytes, self.grid.size_bytes - number * self.grid.block_bytes)

    def positions(self, numbers: range) -> tuple[int, int]:
        """Return where a run of blocks begins, and ends, exclusive."""
        return self.grid.start(numbers.start), self.grid.end(numbers.stop - 1)

    def stored_bytes(self, numbers: range) -> int:
        """Return what a GET of a run of blocks transfers."""
        return self.opened.stored_bytes(*self.positions(numbers))

    def reservation_bytes(self, numbers: range) -> int:
        """Return what a GET of a run of blocks holds at most: the blocks, and what decoding a chunk holds beside them
        if the format has to: the chunk as it is stored, decrypted but not decompressed, and its plaintext, if that is
        not the very block.

        Nothing says whether chunks are encrypted, compressed or both, so it is counted as both.
        """
        start, end = self.positions(numbers)
        stored_bytes, chunk_bytes = self.opened.stored_bytes, self.opened.chunk_bytes
        if stored_bytes(start, end) == end - start:
            return end - start
        # The buffer for stored chunks grows to the largest of the GET.
        firsts = range(start - start % chunk_bytes, end, chunk_bytes)
        largest_bytes = max(stored_bytes(first, min(first + chunk_bytes, self.grid.size_bytes)) for first in firsts)
        return end - start + 2 * largest_bytes + (0 if self.grid.block_bytes == chunk_bytes else chunk_bytes)


class MemoryBlocks:
    """The table. Not thread-safe: the trio thread owns it.

    Args:
        bytes_max: of blocks that were read (`cache.memory.bytes`).
        unread_bytes_max: of blocks that nobody has read yet (`expert.readahead.total.max.bytes`).
        retention_s: `expire` drops what was not used for longer; None: nothing (`cache.retention.ms`).
        on_wasted: called with the key of each block that is wasted, after it has left; it must not call back here.
        on_evicted: the same of each block that was read and leaves for want of room.
    """

    def __init__(
        self,
        bytes_max: int,
        *,
        unread_bytes_max: int,
        retention_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        meter: CacheMeter,
        read_ahead_meter: ReadAheadMeter,
        on_wasted: Callable[[BlockKey], None] = lambda key: None,
        on_evicted: Callable[[BlockKey], object] = lambda key: None,
    ) -> None:
        self.bytes_max = bytes_max
        self.unread_bytes_max = unread_bytes_max
        self._retention_s = retention_s
        # Asked with each block that comes or is read, for `expire` alone.
        self._clock = clock if retention_s is not None else lambda: 0.0
        self._meter = meter
        self._read_ahead_meter = read_ahead_meter
        self._on_wasted = on_wasted
        self._on_evicted = on_evicted
        self.read: dict[BlockKey, Block] = {}
        self._policy: ScanResistantPolicy[BlockKey] = ScanResistantPolicy()
        self.unread: OrderedDict[BlockKey, _Unread] = OrderedDict()
        self._unread_bytes = 0
        self.numbers_of: dict[Uuid, set[int]] = {}

    def __len__(self) -> int:
        return len(self.read) + len(self.unread)

    @property
    def size_bytes(self) -> int:
        """Bytes of blocks that were read."""
        return self._policy.size_bytes

    @property
    def unread_bytes(self) -> int:
        """Bytes of blocks that nobody has read yet."""
        return self._unread_bytes

    def get(self, key: BlockKey, reader: Hashable = None) -> Block | None:
        """The block, now used by this reader; an unread one counts as read from here on.

        `reader` tells sequences of reads apart, see `eviction`.
        """
        block = self.read.get(key)
        if block is not None:
            self._policy.touch(key, reader, self._clock())
            return block
        if key not in self.unread:
            return None
        block = self._take_unread(key)
        self._read_ahead_meter.on_used(len(block.data))
        self._keep_read(key, block, reader)
        self._report()
        return block

    def peek(self, key: BlockKey) -> Block | None:
        """The block, read or unread; it does not count as a use."""
        unread = self.unread.get(key)
        return self.read.get(key) if unread is None else unread.block

    def contains(self, key: BlockKey) -> bool:
        """Return whether the block is here, read or unread; it does not count as a use."""
        return key in self.read or key in self.unread

    def expect(self, key: BlockKey) -> bool:
        """A reader is on its way to the block; return whether it is here."""
        if is_read := key in self.read:
            self._policy.expect(key)
        return is_read or key in self.unread

    def put(self, key: BlockKey, block: Block, reader: Hashable = None) -> None:
        """Keep a block that `reader` has asked for, in place of what was here."""
        self._forget(key)
        self._keep_read(key, block, reader)
        self._report()

    def put_unread(self, key: BlockKey, block: Block) -> None:
        """Keep a block that was read ahead; wasted if there is one already, which stays as it is."""
        size = len(block.data)
        self._read_ahead_meter.on_arrived(size)
        if self.contains(key) or size > self.unread_bytes_max:
            self._count_wasted(key, block)
            return
        while self._unread_bytes + size > self.unread_bytes_max:
            self._waste(next(iter(self.unread)))
        self.unread[key] = _Unread(block, self._clock())
        self._unread_bytes += size
        self.numbers_of.setdefault(key.segment_id, set()).add(key.number)
        self._report()

    def drop(self, key: BlockKey) -> None:
        """Forget a block, if it is here; an unread one is wasted."""
        self._forget(key)
        self._report()

    def drop_segment(self, segment_id: Uuid) -> None:
        """Forget all blocks of a segment, at once when it is deleted; unread ones are wasted."""
        for number in tuple(self.numbers_of.get(segment_id, ())):
            self._forget(BlockKey(segment_id, number))
        self._report()

    def expire(self) -> None:
        """Forget what nobody has used for longer than `retention_s`, or, unread, since it came; that is wasted."""
        if self._retention_s is None:
            return
        before_s = self._clock() - self._retention_s
        idle = self._policy.idle_since(before_s)
        idle.extend(itertools.takewhile(lambda key: self.unread[key].arrived_at_s < before_s, self.unread))
        if not idle:
            return
        for key in idle:
            self._forget(key)
        self._meter.on_expired(CacheLevel.MEMORY, len(idle))
        self._report()

    def _keep_read(self, key: BlockKey, block: Block, reader: Hashable) -> None:
        size = len(block.data)
        if size > self.bytes_max:
            return
        evicted = 0
        while self._policy.size_bytes + size > self.bytes_max:
            self._unlist(victim := self._policy.evict())
            del self.read[victim]
            self._on_evicted(victim)
            evicted += 1
        if evicted:
            self._meter.on_evicted(CacheLevel.MEMORY, evicted)
        self.read[key] = block
        self._policy.insert(key, size, reader, self._clock(), extent=self._extent(key, size))
        self.numbers_of.setdefault(key.segment_id, set()).add(key.number)

    def _extent(self, key: BlockKey, size_bytes: int) -> Hashable:
        # A segment's last block is shorter than the others and may make an extent by itself.
        blocks = extent_blocks(size_bytes, self.bytes_max)
        return key.segment_id, blocks, key.number // blocks

    def _forget(self, key: BlockKey) -> None:
        if key in self.unread:
            self._waste(key)
        elif self.read.pop(key, None) is not None:
            self._policy.remove(key)
            self._unlist(key)

    def _waste(self, key: BlockKey) -> None:
        self._count_wasted(key, self._take_unread(key))

    def _count_wasted(self, key: BlockKey, block: Block) -> None:
        self._read_ahead_meter.on_wasted(len(block.data))
        self._on_wasted(key)

    def _take_unread(self, key: BlockKey) -> Block:
        block = self.unread.pop(key).block
        self._unread_bytes -= len(block.data)
        self._unlist(key)
        return block

    def _unlist(self, key: BlockKey) -> None:
        numbers = self.numbers_of[key.segment_id]
        numbers.discard(key.number)
        if not numbers:
            del self.numbers_of[key.segment_id]

    def _report(self) -> None:
        self._meter.on_resident(CacheLevel.MEMORY, self.size_bytes + self._unread_bytes)
        self._read_ahead_meter.on_unread(self._unread_bytes)


class _Unread(NamedTuple):
    block: Block
    arrived_at_s: float
