"""Blocks in memory: two budgets, what goes when, and what is counted. The stateful test is test_memory_stateful.py."""

from dataclasses import dataclass, field

import pytest

from metrics.cache_meters import CacheMeter, ReadAheadMeter
from metrics.registry import Registry
from storage.cache.blocks import Block, BlockKey, MemoryBlocks
from tests.support.segments import uuid_of

SEGMENT, OTHER_SEGMENT = uuid_of("one"), uuid_of("two")
FIRST, SECOND, THIRD, FOURTH = (BlockKey(SEGMENT, number) for number in range(4))
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

    def read_ahead(self) -> tuple[float, float, float, float]:
        """Bytes that arrived, were used, were wasted, are unread."""
        arrived, used, wasted = (self.count(f"readahead{name}_bytes_total") for name in ("", "_used", "_wasted"))
        return arrived, used, wasted, self.count("readahead_unread_bytes")


def block(size_bytes: int, fill: int = 0) -> Block:
    return Block(memoryview(bytes([fill]) * size_bytes))


@pytest.fixture
def table() -> Table:
    return Table()


def test_a_block_that_nobody_else_used_goes_first(table: Table) -> None:
    table.blocks.put(FIRST, block(10), "one")
    table.blocks.put(SECOND, block(10), "one")
    assert table.blocks.get(FIRST, "two") is not None
    assert table.blocks.get(SECOND, "one") is not None
    table.blocks.put(THIRD, block(10), "one")
    assert table.blocks.get(SECOND) is None
    assert table.blocks.get(FIRST) is not None
    assert table.memory("cache_evictions_total") == 1
    assert table.memory("cache_resident_bytes") == table.blocks.size_bytes == 20


def test_blocks_that_three_readers_share_outlive_a_backfill() -> None:
    table = Table(bytes_max=1000)
    shared = [BlockKey(OTHER_SEGMENT, number) for number in range(30)]
    for reader in range(3):
        for key in shared:
            if table.blocks.get(key, reader) is None:
                table.blocks.put(key, block(10), reader)
    hits = 0
    for number in range(5000):
        key = BlockKey(SEGMENT, number)
        table.blocks.put(key, block(10), "backfill")
        for _ in range(3):
            assert table.blocks.get(key, "backfill") is not None
        if number % 5 == 0:
            turn = number // 5
            hits += table.blocks.get(shared[turn % 30], turn // 30 % 3) is not None
    assert hits / 1000 > 0.95


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


def test_one_bad_block_leaves_the_others_of_its_extent() -> None:
    table = Table(bytes_max=64)
    for number in range(8):
        table.blocks.put(BlockKey(SEGMENT, number), block(1), "backfill")
    table.blocks.drop(BlockKey(SEGMENT, 1))
    assert [table.blocks.contains(BlockKey(SEGMENT, number)) for number in range(4)] == [True, False, True, True]


def test_a_block_larger_than_the_budget_is_not_kept_and_evicts_nothing(table: Table) -> None:
    table.blocks.put(FIRST, block(10))
    table.blocks.put(SECOND, block(21))
    assert table.blocks.get(SECOND) is None
    assert (len(table.blocks), table.memory("cache_evictions_total")) == (1, 0)


def test_a_block_of_the_same_key_takes_the_place_of_the_old_one(table: Table) -> None:
    table.blocks.put(FIRST, block(15, fill=1))
    fresh = block(20, fill=2)
    table.blocks.put(FIRST, fresh)
    assert table.blocks.get(FIRST) is fresh
    assert (table.blocks.size_bytes, table.memory("cache_evictions_total")) == (20, 0)


def test_a_block_that_left_lives_on_for_whoever_holds_it() -> None:
    table = Table(bytes_max=10, unread_bytes_max=10)
    held = [block(10, fill) for fill in range(4)]
    table.blocks.put(FIRST, held[0])
    table.blocks.put(SECOND, held[1])  # evicts
    table.blocks.drop(SECOND)
    table.blocks.put_unread(THIRD, held[2])
    table.blocks.put_unread(FOURTH, held[3])  # wastes
    table.blocks.drop_segment(SEGMENT)
    assert len(table.blocks) == 0
    assert [bytes(kept.data) for kept in held] == [bytes([fill]) * 10 for fill in range(4)]


def test_an_unread_block_that_is_read_moves_over_and_makes_room_there_first(table: Table) -> None:
    table.blocks.put(FIRST, block(10), "one")
    table.blocks.put(SECOND, block(10), "one")
    ahead = block(15)
    table.blocks.put_unread(THIRD, ahead)
    assert table.memory("cache_resident_bytes") == 35
    assert table.blocks.get(THIRD, "one") is ahead
    assert table.blocks.get(THIRD, "one") is ahead
    assert (table.blocks.size_bytes, table.blocks.unread_bytes, len(table.blocks)) == (15, 0, 1)
    assert table.memory("cache_evictions_total") == 2
    assert table.memory("cache_resident_bytes") == 15
    assert table.read_ahead() == (15, 15, 0, 0)
    assert table.wasted == []


def test_who_read_a_block_first_is_known_also_when_it_was_read_ahead(table: Table) -> None:
    table.blocks.put_unread(FIRST, block(10))
    assert table.blocks.get(FIRST, "one") is not None
    table.blocks.put(SECOND, block(10), "one")
    assert table.blocks.get(FIRST, "two") is not None
    table.blocks.put(THIRD, block(10), "one")
    assert (table.blocks.contains(FIRST), table.blocks.contains(SECOND)) == (True, False)


def test_an_unread_block_too_large_for_the_other_budget_is_handed_out_once(table: Table) -> None:
    table.blocks.put(FIRST, block(10))
    ahead = block(25)
    table.blocks.put_unread(SECOND, ahead)
    assert table.blocks.get(SECOND) is ahead
    assert table.blocks.get(SECOND) is None
    assert table.blocks.contains(FIRST)
    assert table.read_ahead() == (25, 25, 0, 0)
    table.blocks.drop_segment(SEGMENT)
    assert len(table.blocks) == 0


def test_the_oldest_unread_block_is_wasted_when_there_is_no_room(table: Table) -> None:
    for key in (FIRST, SECOND, THIRD):
        table.blocks.put_unread(key, block(10))
    table.blocks.put_unread(FOURTH, block(15))
    assert [table.blocks.contains(key) for key in (FIRST, SECOND, THIRD, FOURTH)] == [False, False, True, True]
    assert table.wasted == [FIRST, SECOND]
    assert table.read_ahead() == (45, 0, 20, 25)
    assert table.memory("cache_evictions_total") == 0
    assert table.blocks.unread_bytes == 25


def test_an_unread_block_larger_than_its_budget_is_wasted_at_once(table: Table) -> None:
    table.blocks.put_unread(FIRST, block(10))
    table.blocks.put_unread(SECOND, block(31))
    assert (table.blocks.contains(FIRST), table.blocks.contains(SECOND)) == (True, False)
    assert table.wasted == [SECOND]
    assert table.read_ahead() == (41, 0, 31, 10)


@pytest.mark.parametrize("is_read", [True, False])
def test_a_block_read_ahead_that_is_here_already_is_wasted(table: Table, is_read: bool) -> None:
    first = block(10, fill=1)
    if is_read:
        table.blocks.put(FIRST, first)
    else:
        table.blocks.put_unread(FIRST, first)
    table.blocks.put_unread(FIRST, block(10, fill=2))
    assert table.blocks.peek(FIRST) is first
    assert table.wasted == [FIRST]
    assert table.read_ahead() == ((10, 0, 10, 0) if is_read else (20, 0, 10, 10))


def test_a_block_that_was_asked_for_takes_the_place_of_an_unread_one(table: Table) -> None:
    table.blocks.put_unread(FIRST, block(10))
    fresh = block(10)
    table.blocks.put(FIRST, fresh)
    assert table.blocks.get(FIRST) is fresh
    assert (table.blocks.size_bytes, table.blocks.unread_bytes) == (10, 0)
    assert table.read_ahead() == (10, 0, 10, 0)


def test_a_deleted_segment_leaves_both_and_its_unread_blocks_are_wasted(table: Table) -> None:
    elsewhere = BlockKey(OTHER_SEGMENT, 0)
    table.blocks.put(FIRST, block(10))
    table.blocks.put(elsewhere, block(10))
    table.blocks.put_unread(SECOND, block(10))
    table.blocks.drop_segment(SEGMENT)
    assert [table.blocks.contains(key) for key in (FIRST, SECOND, elsewhere)] == [False, False, True]
    assert table.wasted == [SECOND]
    assert table.read_ahead() == (10, 0, 10, 0)
    assert table.memory("cache_resident_bytes") == 10


def test_peek_and_contains_are_no_use(table: Table) -> None:
    first, ahead = block(10), block(10)
    table.blocks.put(FIRST, first)
    table.blocks.put_unread(THIRD, ahead)
    assert table.blocks.peek(FIRST) is first
    assert table.blocks.peek(THIRD) is ahead
    assert table.blocks.peek(SECOND) is None
    assert table.blocks.contains(FIRST)
    assert table.read_ahead() == (10, 0, 0, 10)
    table.blocks.put(SECOND, block(20))
    assert not table.blocks.contains(FIRST)


def test_what_nobody_used_for_the_retention_time_expires(table: Table) -> None:
    table.blocks.put(FIRST, block(10))
    table.blocks.put(SECOND, block(10))
    table.now_s = 10.0
    table.blocks.put_unread(THIRD, block(10))
    table.now_s = 20.0
    assert table.blocks.get(FIRST) is not None
    table.blocks.put_unread(FOURTH, block(10))
    table.now_s = RETENTION_S + 10.0
    table.blocks.expire()
    assert [table.blocks.contains(key) for key in (FIRST, SECOND, THIRD, FOURTH)] == [True, False, True, True]
    assert table.memory("cache_expired_total") == 1
    table.now_s = RETENTION_S + 11.0
    table.blocks.expire()
    table.blocks.expire()
    assert [table.blocks.contains(key) for key in (FIRST, THIRD, FOURTH)] == [True, False, True]
    assert table.wasted == [THIRD]
    assert table.memory("cache_expired_total") == 2
    assert table.memory("cache_resident_bytes") == 20
    assert table.read_ahead() == (20, 0, 10, 10)


def test_an_unread_block_that_is_read_is_as_fresh_as_that(table: Table) -> None:
    table.blocks.put_unread(FIRST, block(10))
    table.now_s = RETENTION_S
    assert table.blocks.get(FIRST) is not None
    table.now_s = 2 * RETENTION_S
    table.blocks.expire()
    assert table.blocks.contains(FIRST)


def test_without_a_retention_time_nothing_expires() -> None:
    table = Table(retention_s=None)
    table.blocks.put(FIRST, block(10))
    table.now_s = 1e9
    table.blocks.expire()
    assert table.blocks.contains(FIRST)


def test_every_block_has_a_serial_of_its_own() -> None:
    assert block(1).serial != block(1).serial
