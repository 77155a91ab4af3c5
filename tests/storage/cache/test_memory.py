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


def test_who_read_a_block_first_is_known_also_when_it_was_read_ahead(table: Table) -> None:
    table.blocks.put_unread(FIRST, block(10))
    assert table.blocks.get(FIRST, "one") is not None
    table.blocks.put(SECOND, block(10), "one")
    assert table.blocks.get(FIRST, "two") is not None
    table.blocks.put(THIRD, block(10), "one")
    assert (table.blocks.contains(FIRST), table.blocks.contains(SECOND)) == (True, False)


def test_without_a_retention_time_nothing_expires() -> None:
    table = Table(retention_s=None)
    table.blocks.put(FIRST, block(10))
    table.now_s = 1e9
    table.blocks.expire()
    assert table.blocks.contains(FIRST)


def test_every_block_has_a_serial_of_its_own() -> None:
    assert block(1).serial != block(1).serial
