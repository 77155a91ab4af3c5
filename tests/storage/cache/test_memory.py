"""Blocks in memory: two budgets, what goes when, and what is counted; then all of it against a dictionary.

Which read block is evicted is the policy's matter: the model takes that from the table, and checks that blocks went
only when room was needed. All else it predicts.
"""

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import cast

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from metrics.cache_meters import CacheLevel, CacheMeter, ReadAheadMeter
from metrics.registry import Registry
from storage.cache import blocks
from storage.cache.blocks import BlockKey, MemoryBlocks
from storage.log.block import Block
from tests.support.segments import uuid_of

SEGMENT = uuid_of("one")
FIRST, SECOND, THIRD = (BlockKey(SEGMENT, number) for number in range(3))
RETENTION_S = 60.0


@dataclass(slots=True)
class Table:
    """A table of 20 bytes of read blocks and 30 of unread ones, with a clock to set and its counts to read."""

    bytes_max: int = 20
    unread_bytes_max: int = 30
    retention_s: float | None = RETENTION_S
    now_s: float = 0.0
    registry: Registry = field(default_factory=Registry)
    wasted: list[BlockKey] = field(default_factory=list)
    blocks: MemoryBlocks = field(init=False)

    def __post_init__(self) -> None:
        self.blocks = MemoryBlocks(
            self.bytes_max,
            unread_bytes_max=self.unread_bytes_max,
            retention_s=self.retention_s,
            clock=lambda: self.now_s,
            meter=CacheMeter(self.registry),
            read_ahead_meter=ReadAheadMeter(self.registry),
            on_wasted=self.wasted.append,
        )

    def count(self, name: str, **labels: str) -> float:
        return self.registry.sample_value(f"tidegate_{name}", labels) or 0

    def memory(self, name: str) -> float:
        return self.count(name, level="memory")


def block(size_bytes: int) -> Block:
    return Block(memoryview(bytes(size_bytes)))


@pytest.fixture
def table() -> Table:
    return Table()


def test_of_what_nobody_else_used_whole_runs_go_and_whole_runs_stay() -> None:
    table = Table(bytes_max=64)  # so an extent has four blocks of one byte
    for number in range(60):
        table.blocks.put(BlockKey(SEGMENT, number), block(1), "backfill")
    assert table.blocks.get(BlockKey(SEGMENT, 5), "seeker") is not None
    for number in range(60, 108):
        table.blocks.put_unread(BlockKey(SEGMENT, number), block(1))
        assert table.blocks.get(BlockKey(SEGMENT, number), "backfill") is not None
    here = [number for number in range(108) if table.blocks.contains(BlockKey(SEGMENT, number))]
    assert here == [*range(4, 8), *range(48, 108)]
    assert table.memory("cache_evictions_total") == 108 - 64


def test_who_read_a_block_first_is_known_also_when_it_was_read_ahead(table: Table) -> None:
    table.blocks.put_unread(FIRST, block(10))
    assert table.blocks.get(FIRST, "one") is not None
    table.blocks.put(SECOND, block(10), "one")
    assert table.blocks.get(FIRST, "two") is not None
    table.blocks.put(THIRD, block(10), "one")
    assert (table.blocks.contains(FIRST), table.blocks.contains(SECOND)) == (True, False)


SEGMENTS = [uuid_of("one"), uuid_of("two"), uuid_of("three")]
KEYS = st.builds(BlockKey, st.sampled_from(SEGMENTS), st.integers(0, 5))
READERS = st.sampled_from([None, "x", "y"])
SIZES = st.integers(0, 40)
IDLE_S = 10


class Watch:
    """Looks at the table at every verb and every callback, which is also in the middle of its methods."""

    table: MemoryBlocks | None = None

    def look(self) -> None:
        table = self.table
        if table is None:
            return
        assert table.size_bytes <= table.bytes_max
        assert table.unread_bytes <= table.unread_bytes_max
        assert sum(len(block.data) for block in table.read.values()) <= table.bytes_max
        assert sum(len(unread.block.data) for unread in table.unread.values()) == table.unread_bytes


class WatchingCacheMeter:
    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.evicted = self.expired = self.resident_bytes = 0

    def on_evicted(self, level: CacheLevel, blocks: int = 1) -> None:
        assert level is CacheLevel.MEMORY
        self.watch.look()
        self.evicted += blocks

    def on_expired(self, level: CacheLevel, blocks: int = 1) -> None:
        assert level is CacheLevel.MEMORY
        self.watch.look()
        self.expired += blocks

    def on_resident(self, level: CacheLevel, resident_bytes: int) -> None:
        assert level is CacheLevel.MEMORY
        self.watch.look()
        self.resident_bytes = resident_bytes


class WatchingReadAheadMeter:
    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.arrived = self.used = self.wasted = self.unread_bytes = 0

    def on_arrived(self, block_bytes: int) -> None:
        self.watch.look()
        self.arrived += block_bytes

    def on_used(self, block_bytes: int) -> None:
        self.watch.look()
        self.used += block_bytes

    def on_wasted(self, block_bytes: int) -> None:
        self.watch.look()
        self.wasted += block_bytes

    def on_unread(self, unread_bytes: int) -> None:
        self.watch.look()
        self.unread_bytes = unread_bytes


def size_of(blocks: dict[BlockKey, Block]) -> int:
    return sum(len(block.data) for block in blocks.values())


class MemoryBlocksMachine(RuleBasedStateMachine):
    """`read` and `unread` are the model: what must be here, oldest first; `used_at_s` when each was last used."""

    @initialize(
        bytes_max=st.integers(0, 60), unread_bytes_max=st.integers(0, 60), extent_bytes=st.sampled_from([1, 10, 40])
    )
    def begin(self, bytes_max: int, unread_bytes_max: int, extent_bytes: int) -> None:
        self.now_s = 0.0
        self.watch = Watch()
        self.meter = WatchingCacheMeter(self.watch)
        self.read_ahead_meter = WatchingReadAheadMeter(self.watch)
        self.told_wasted: Counter[BlockKey] = Counter()
        self.told_evicted: list[BlockKey] = []
        # Extents of that size also in a budget so small that a block would be one by itself.
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(blocks, "extent_blocks", lambda size_bytes, _: max(1, extent_bytes // max(1, size_bytes)))
        self.watch.table = self.table = MemoryBlocks(
            bytes_max,
            unread_bytes_max=unread_bytes_max,
            retention_s=IDLE_S,
            clock=lambda: self.now_s,
            meter=cast(CacheMeter, self.meter),
            read_ahead_meter=cast(ReadAheadMeter, self.read_ahead_meter),
            on_wasted=self.hear_wasted,
            on_evicted=self.told_evicted.append,
        )
        self.read: dict[BlockKey, Block] = {}
        self.unread: dict[BlockKey, Block] = {}
        self.used_at_s: dict[BlockKey, float] = {}
        self.wasted: Counter[BlockKey] = Counter()
        self.evicted = self.expired = self.used = self.arrived = self.wasted_bytes = 0

    def teardown(self) -> None:
        self.patch.undo()

    def hear_wasted(self, key: BlockKey) -> None:
        self.watch.look()
        self.told_wasted[key] += 1

    def waste(self, key: BlockKey, block: Block) -> None:
        self.wasted[key] += 1
        self.wasted_bytes += len(block.data)

    def forget(self, key: BlockKey) -> None:
        self.read.pop(key, None)
        if key in self.unread:
            self.waste(key, self.unread.pop(key))

    def keep_read(self, key: BlockKey, block: Block) -> None:
        """The model after `block` went in among the read ones: the table says which others made room."""
        assert self.table.contains(key) == (len(block.data) <= self.table.bytes_max)
        if not self.table.contains(key):
            return
        gone = {victim: kept for victim, kept in self.read.items() if not self.table.contains(victim)}
        over = size_of(self.read) + len(block.data) - self.table.bytes_max
        assert size_of(gone) >= over
        # No more than were needed: without the last to go, whichever it was, there would not have been room.
        assert not gone or size_of(gone) - max(len(victim.data) for victim in gone.values()) < over
        assert sorted(self.told_evicted) == sorted(gone)
        self.told_evicted.clear()
        for victim in gone:
            del self.read[victim]
        self.evicted += len(gone)
        self.read[key] = block
        self.used_at_s[key] = self.now_s

    @rule(key=KEYS, size_bytes=SIZES, reader=READERS)
    def put(self, key: BlockKey, size_bytes: int, reader: Hashable) -> None:
        new = Block(memoryview(bytes(size_bytes)))
        self.table.put(key, new, reader)
        self.forget(key)
        self.keep_read(key, new)

    @rule(key=KEYS, size_bytes=SIZES)
    def put_unread(self, key: BlockKey, size_bytes: int) -> None:
        new = Block(memoryview(bytes(size_bytes)))
        self.table.put_unread(key, new)
        self.arrived += size_bytes
        if key in self.read or key in self.unread or size_bytes > self.table.unread_bytes_max:
            self.waste(key, new)
            return
        while size_of(self.unread) + size_bytes > self.table.unread_bytes_max:
            self.forget(next(iter(self.unread)))
        self.unread[key] = new
        self.used_at_s[key] = self.now_s

    @rule(key=KEYS, reader=READERS)
    def get(self, key: BlockKey, reader: Hashable) -> None:
        found = self.table.get(key, reader)
        if key in self.unread:
            block = self.unread.pop(key)
            assert found is block
            self.used += len(block.data)
            self.keep_read(key, block)
        else:
            assert found is self.read.get(key)
            self.used_at_s[key] = self.now_s

    @rule(key=KEYS)
    def drop(self, key: BlockKey) -> None:
        self.table.drop(key)
        self.forget(key)

    @rule(segment=st.sampled_from(range(len(SEGMENTS))))
    def drop_segment(self, segment: int) -> None:
        self.table.drop_segment(SEGMENTS[segment])
        for key in [*self.read, *self.unread]:
            if key.segment_id == SEGMENTS[segment]:
                self.forget(key)

    @rule(seconds=st.integers(1, IDLE_S + 2))
    def wait_and_expire(self, seconds: int) -> None:
        self.now_s += seconds
        self.table.expire()
        for key in [*self.read, *self.unread]:
            if self.now_s - self.used_at_s[key] > IDLE_S:
                self.forget(key)
                self.expired += 1

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        self.watch.look()
        every_key = [BlockKey(segment_id, number) for segment_id in SEGMENTS for number in range(6)]
        for key in every_key:
            assert self.table.peek(key) is self.read.get(key, self.unread.get(key))
        assert len(self.table) == len(self.read) + len(self.unread)
        assert self.table.size_bytes == size_of(self.read)
        assert self.table.unread_bytes == size_of(self.unread)
        listed = {BlockKey(segment, number) for segment, numbers in self.table.numbers_of.items() for number in numbers}
        assert listed == self.read.keys() | self.unread.keys()
        assert all(self.table.numbers_of.values())

    @invariant()
    def tells_what_happened(self) -> None:
        assert (self.meter.evicted, self.meter.expired) == (self.evicted, self.expired)
        assert self.meter.resident_bytes == self.table.size_bytes + self.table.unread_bytes
        read_ahead = self.read_ahead_meter
        assert (read_ahead.arrived, read_ahead.used, read_ahead.wasted) == (self.arrived, self.used, self.wasted_bytes)
        assert read_ahead.arrived == read_ahead.used + read_ahead.wasted + self.table.unread_bytes
        assert read_ahead.unread_bytes == self.table.unread_bytes
        assert self.told_wasted == self.wasted


TestMemoryBlocks = MemoryBlocksMachine.TestCase
