"""What the eviction policy leaves behind: long runs of a scan, never crumbs, however it was read and by whom."""

from collections.abc import Hashable, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.cache.eviction import EXTENT_BYTES, EXTENTS_MIN, ScanResistantPolicy, extent_blocks

MIB = 1024 * 1024
EXTENT = 8
CAPACITY = 16 * EXTENT


class Cache:
    """Blocks of one byte in extents of EXTENT; `fetched` are those that were not there."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.policy = ScanResistantPolicy[int]()
        self.capacity = capacity
        self.fetched: list[int] = []

    def use(self, key: int, reader: Hashable) -> bool:
        if key in self.policy:
            self.policy.touch(key, reader)
            return True
        while self.policy.size_bytes + 1 > self.capacity:
            self.policy.evict()
        self.policy.insert(key, 1, reader, extent=key // EXTENT)
        self.fetched.append(key)
        return False

    def scan(self, keys: Iterable[int], reader: Hashable) -> int:
        """How many of the keys were hits."""
        return sum(self.use(key, reader) for key in keys)

    def runs(self) -> list[range]:
        """Neighbouring blocks that are here, as long as can be."""
        runs: list[range] = []
        for key in sorted(self.policy._blocks):
            if runs and runs[-1].stop == key:
                runs[-1] = range(runs[-1].start, key + 1)
            else:
                runs.append(range(key, key + 1))
        return runs

    def crumbs(self) -> list[range]:
        return [run for run in self.runs() if len(run) < EXTENT]


def test_an_extent_is_about_16_mib_and_no_more_than_a_sixteenth_of_the_cache() -> None:
    large = 1024 * MIB
    assert [extent_blocks(size * MIB, large) for size in (1, 4, 12, 16, 17)] == [16, 4, 1, 1, 1]
    assert extent_blocks(64 * 1024, large) == 256
    assert [extent_blocks(MIB, cache * MIB) for cache in (256, 64, 16, 1, 0)] == [16, 4, 1, 1, 1]
    assert extent_blocks(0, large) == EXTENT_BYTES
    assert EXTENTS_MIN >= 2


def test_of_a_scan_larger_than_the_cache_one_run_stays() -> None:
    cache = Cache()
    cache.scan(range(10 * CAPACITY + 3), "backfill")
    (run,) = cache.runs()
    assert run == range(9 * CAPACITY + 3, 10 * CAPACITY + 3)


@pytest.mark.parametrize(
    ("start", "hits"), [(0, 0), (2 * CAPACITY - EXTENT, EXTENT), (2 * CAPACITY, CAPACITY), (2 * CAPACITY + 3, None)]
)
def test_a_second_scan_finds_long_runs_or_nothing(start: int, hits: int | None) -> None:
    cache = Cache()
    cache.scan(range(3 * CAPACITY), "first")
    cache.fetched.clear()
    found = cache.scan(range(start, 3 * CAPACITY), "second")
    assert found == (3 * CAPACITY - start if hits is None else hits)
    assert cache.fetched == list(range(start, start + len(cache.fetched))), "what it does not find is one piece"


def test_single_blocks_that_somebody_reads_here_and_there_keep_their_neighbours() -> None:
    """Block by block, each of them stayed alone in the main queue: a crumb in the next scan's way."""
    cache = Cache()
    for key in range(4 * CAPACITY):
        cache.use(key, "backfill")
        if key % (2 * EXTENT) == 3:
            cache.use(key, "seeker")
    assert len(cache.crumbs()) <= 1
    assert any(key < 3 * CAPACITY - EXTENT for key in cache.policy._blocks), "reused extents stay longer"


def test_the_oldest_blocks_of_one_extent_go_before_those_of_another() -> None:
    cache = Cache()
    cache.scan(range(CAPACITY), "backfill")
    assert [cache.policy.evict() for _ in range(2 * EXTENT)] == list(range(2 * EXTENT))


def test_an_extent_that_another_reader_enters_is_used_once() -> None:
    cache = Cache()
    cache.scan(range(CAPACITY), "first")
    for key in range(EXTENT):  # in step, and so once
        cache.use(key, "second")
        cache.use(key, "first")
    for reader in ("second", "first", "second"):  # in turn, and so three times
        cache.use(EXTENT, reader)
        cache.use(5 * EXTENT, reader)
    extents = cache.policy._extents
    assert [extents[number].uses for number in (0, 1, 2, 5)] == [2, 3, 0, 3]


def test_a_block_that_is_used_while_its_extent_goes_stays() -> None:
    cache = Cache()
    cache.scan(range(CAPACITY), "first")
    assert cache.policy.evict() == 0
    assert cache.use(5, "second")
    assert [cache.policy.evict() for _ in range(EXTENT)] == [1, 2, 3, 4, 6, 7, EXTENT, EXTENT + 1]
    assert 5 in cache.policy


def test_blocks_that_a_reader_is_on_its_way_to_go_last() -> None:
    cache = Cache()
    cache.scan(range(CAPACITY), "first")
    for key in range(EXTENT, 3 * EXTENT):
        cache.policy.expect(key)
    evicted = [cache.policy.evict() for _ in range(CAPACITY - 1)]
    assert evicted == [*range(EXTENT), *range(3 * EXTENT, CAPACITY - 1), *range(EXTENT, 3 * EXTENT)]


def test_a_block_that_is_expected_while_its_extent_goes_stays() -> None:
    cache = Cache()
    cache.scan(range(CAPACITY), "first")
    assert cache.policy.evict() == 0
    cache.policy.expect(5)
    cache.policy.expect(6)
    assert [cache.policy.evict() for _ in range(EXTENT)] == [1, 2, 3, 4, 7, EXTENT, EXTENT + 1, EXTENT + 2]
    assert cache.runs()[0] == range(5, 7)


def test_a_block_that_comes_back_while_its_extent_goes_is_not_the_next_to_go() -> None:
    cache = Cache()
    cache.scan(range(CAPACITY), "first")
    assert cache.policy.evict() == 0
    cache.policy.insert(0, 1, "second", extent=0)
    assert [cache.policy.evict() for _ in range(EXTENT)] == [*range(1, EXTENT), EXTENT]


def test_a_removed_block_leaves_the_others_of_its_extent() -> None:
    cache = Cache()
    cache.scan(range(CAPACITY), "first")
    cache.policy.remove(1)
    assert (len(cache.policy), cache.policy.size_bytes) == (CAPACITY - 1, CAPACITY - 1)
    assert [cache.policy.evict() for _ in range(3)] == [0, 2, 3]
    cache.policy.remove(4)
    assert cache.policy.evict() == 5


def test_a_reader_keeps_the_block_that_it_is_at_when_there_is_no_room_for_extents() -> None:
    readers = 3
    cache = Cache(capacity=2 * EXTENT)
    for turn in range(4 * 100):
        for reader in range(readers):
            cache.use(10_000 * EXTENT * reader + turn // 4, reader)
    assert len(cache.fetched) == readers * 100, "no block was fetched twice"


STEPS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 4 * EXTENT), st.integers(0, CAPACITY)), min_size=20, max_size=60
)
"""Which reader goes on, by how many blocks, and how far behind it somebody then looks for a block."""


@given(
    starts=st.tuples(*[st.integers(0, 4 * CAPACITY)] * 4),
    steps=STEPS,
    touches=st.integers(1, 3),
    removed=st.sets(st.integers(0, 8 * CAPACITY), max_size=3),
)
def test_after_any_history_what_stays_is_long_runs(
    starts: tuple[int, ...], steps: list[tuple[int, int, int]], touches: int, removed: set[int]
) -> None:
    """Each reader leaves an end where it began and one where it is; one extent is going."""
    cache = Cache()
    at = list(starts)
    for reader, blocks, behind in steps:
        for _ in range(blocks):
            for _ in range(touches):
                cache.use(at[reader], reader)
            at[reader] += 1
        if at[reader] - behind in cache.policy:
            cache.use(at[reader] - behind, "seeker")
    for key in removed:
        cache.policy.remove(key)
    readers = {reader for reader, _, _ in steps}
    assert len(cache.crumbs()) <= 2 * len(readers) + 1 + 2 * len(removed)


@pytest.mark.parametrize("readers", [2, 3])
def test_scans_side_by_side_leave_few_crumbs_beside_what_is_shared(readers: int) -> None:
    cache = Cache()
    shared = range(1_000_000, 1_000_000 + 12 * EXTENT)
    for consumer in "abcd":
        cache.scan(shared, consumer)
    for turn in range(20 * CAPACITY):
        for reader in range(readers):
            cache.use(10_000 * EXTENT * reader + turn, reader)
        if turn % 3 == 0:
            cache.use(shared[turn // 3 % len(shared)], "abcd"[turn // 3 // len(shared) % 4])
    assert len(cache.crumbs()) <= 2 * readers + 1
    assert sum(key in cache.policy for key in shared) > 0.9 * len(shared)
