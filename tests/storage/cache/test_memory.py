"""Blocks in memory: never over budget, never a wrong block, least recently used goes first."""

from collections import OrderedDict

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from storage.cache.memory import Block, BlockKey, MemoryBlocks
from tests.support.segments import uuid_of

SEGMENTS = [uuid_of("one"), uuid_of("two"), uuid_of("three")]
KEYS = st.builds(BlockKey, st.sampled_from(SEGMENTS), st.integers(0, 5))
FIRST, SECOND, THIRD = (BlockKey(SEGMENTS[0], number) for number in range(3))


def block(size_bytes: int, fill: int = 0) -> Block:
    return Block(memoryview(bytes([fill]) * size_bytes))


class MemoryBlocksMachine(RuleBasedStateMachine):
    """Against the plainest model of a least-recently-used table: an ordered dictionary."""

    @initialize(bytes_max=st.integers(0, 60))
    def begin(self, bytes_max: int) -> None:
        self.table = MemoryBlocks(bytes_max)
        self.model: OrderedDict[BlockKey, Block] = OrderedDict()
        self.evictions = 0

    @rule(key=KEYS, size_bytes=st.integers(0, 40))
    def put(self, key: BlockKey, size_bytes: int) -> None:
        new = block(size_bytes)
        self.table.put(key, new)
        self.model.pop(key, None)
        if size_bytes > self.table.bytes_max:
            return
        while sum(len(kept.data) for kept in self.model.values()) + size_bytes > self.table.bytes_max:
            self.model.popitem(last=False)
            self.evictions += 1
        self.model[key] = new

    @rule(key=KEYS)
    def get(self, key: BlockKey) -> None:
        assert self.table.get(key) is self.model.get(key)
        if key in self.model:
            self.model.move_to_end(key)

    @rule(key=KEYS)
    def drop(self, key: BlockKey) -> None:
        self.table.drop(key)
        self.model.pop(key, None)

    @rule(segment_id=st.sampled_from(SEGMENTS))
    def drop_segment(self, segment_id: bytes) -> None:
        self.table.drop_segment(next(known for known in SEGMENTS if known == segment_id))
        for key in [key for key in self.model if key.segment_id == segment_id]:
            del self.model[key]

    @invariant()
    def is_the_model_and_within_budget(self) -> None:
        assert self.table.size_bytes == sum(len(kept.data) for kept in self.model.values()) <= self.table.bytes_max
        assert len(self.table) == len(self.model)
        assert self.table.evictions == self.evictions


TestMemoryBlocks = MemoryBlocksMachine.TestCase


def test_what_was_used_last_stays_longest() -> None:
    table = MemoryBlocks(20)
    table.put(FIRST, block(10))
    table.put(SECOND, block(10))
    assert table.get(FIRST) is not None
    table.put(THIRD, block(10))
    assert table.get(SECOND) is None
    assert table.get(FIRST) is not None


def test_a_block_larger_than_the_budget_is_not_kept_and_evicts_nothing() -> None:
    table = MemoryBlocks(20)
    table.put(FIRST, block(10))
    table.put(SECOND, block(21))
    assert table.get(SECOND) is None
    assert (len(table), table.evictions) == (1, 0)


def test_a_block_of_the_same_key_takes_the_place_of_the_old_one() -> None:
    table = MemoryBlocks(20)
    table.put(FIRST, block(15, fill=1))
    fresh = block(20, fill=2)
    table.put(FIRST, fresh)
    assert table.get(FIRST) is fresh
    assert (table.size_bytes, table.evictions) == (20, 0)


def test_an_evicted_block_lives_on_for_whoever_holds_it() -> None:
    table = MemoryBlocks(10)
    held = block(10, fill=7)
    table.put(FIRST, held)
    table.put(SECOND, block(10))
    assert table.get(FIRST) is None
    assert bytes(held.data) == b"\x07" * 10


def test_every_block_has_a_serial_of_its_own() -> None:
    assert block(1).serial != block(1).serial
