"""Which blocks are fetched together."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.cache.block_grid import BlockGrid
from storage.cache.get_planner import GET_BYTES, GET_BYTES_MIN, MIB, get_bytes, plan_gets, weigher, whole_units


def as_stored(start: int, end: int) -> int:
    return end - start


def sizes_mib(block_mib: float, blocks: int, target_bytes: int = GET_BYTES) -> list[float]:
    block_bytes = int(block_mib * MIB)
    grid = BlockGrid(block_bytes, blocks * block_bytes)
    gets = plan_gets(range(blocks), grid, as_stored, target_bytes)
    return [len(get) * block_mib for get in gets]


@pytest.mark.parametrize(
    ("run_mib", "gets"),
    [
        (1, [1]),
        (12, [12]),
        (16, [16]),
        (17, [9, 8]),
        (24, [12, 12]),
        (28, [14, 14]),
        (29, [10, 10, 9]),
        (64, [13, 13, 13, 13, 12]),
    ],
)
def test_a_run_is_cut_evenly_and_no_small_rest_goes_alone(run_mib: int, gets: list[float]) -> None:
    assert sizes_mib(1, run_mib) == gets


def test_a_gigabyte_takes_about_eighty_gets() -> None:
    assert 75 <= len(sizes_mib(1, 1000)) <= 90
    assert 75 <= len(sizes_mib(4, 250)) <= 90


def test_gets_follow_what_the_store_transfers_rather_than_plaintext() -> None:
    grid = BlockGrid(4 * MIB, 96 * MIB)
    assert len(plan_gets(range(24), grid, lambda start, end: (end - start) // 4)) == 2


def test_what_inflates_a_lot_is_cut_by_its_plaintext() -> None:
    grid = BlockGrid(MIB, 64 * MIB)
    gets = plan_gets(range(64), grid, weigher(lambda start, end: (end - start) // 100, 8 * MIB))
    assert all(len(get) <= 8 * 4 // 3 for get in gets)
    assert weigher(as_stored, 64 * MIB)(0, MIB) == MIB


def test_present_blocks_end_a_run() -> None:
    grid = BlockGrid(MIB, 64 * MIB)
    assert plan_gets([9, 1, 2, 3, 8, 8], grid, as_stored) == [range(1, 4), range(8, 10)]
    assert plan_gets([], grid, as_stored) == []


def test_blocks_that_are_decoded_together_are_fetched_together() -> None:
    grid = BlockGrid(9 * MIB, 9 * 9 * MIB, unit_blocks=2)
    assert whole_units([3, 8], grid) == {2, 3, 8}
    assert plan_gets(range(9), grid, as_stored) == [range(2), range(2, 4), range(4, 6), range(6, 8), range(8, 9)]


def test_a_large_block_goes_alone_and_takes_the_segments_small_rest_along() -> None:
    grid = BlockGrid(16 * MIB, 49 * MIB)
    assert plan_gets(range(4), grid, as_stored) == [range(1), range(1, 2), range(2, 4)]


@pytest.mark.parametrize(
    ("bytes_per_s", "target_bytes"),
    [(None, GET_BYTES), (1e9, GET_BYTES), (20e6, GET_BYTES), (5e6, 5_000_000), (1e6, GET_BYTES_MIN)],
)
def test_a_get_lasts_a_second_at_most_within_bounds(bytes_per_s: float | None, target_bytes: int) -> None:
    assert get_bytes(bytes_per_s) == target_bytes


def test_slow_connections_get_smaller_ranges() -> None:
    assert sizes_mib(1, 12, target_bytes=3 * MIB) == [3, 3, 3, 3]
    assert sizes_mib(4, 4, target_bytes=MIB) == [4, 4, 4, 4]


def test_an_even_share_that_would_be_too_large_is_cut_short() -> None:
    """Behind the first 22 of 61 MiB a third of what is left is 13, and 6 and 11 together would come nearest to it."""
    weights = [12, 4, 6, 6, 11, 12, 10]

    def weigh(start: int, end: int) -> int:
        return sum(weights[start:end]) * MIB

    gets = plan_gets(range(len(weights)), BlockGrid(1, len(weights)), weigh, 12 * MIB)
    assert [number for get in gets for number in get] == [*range(len(weights))]
    assert max(weigh(get.start, get.stop) for get in gets) <= 16 * MIB


@given(
    numbers=st.sets(st.integers(0, 60)),
    unit_blocks=st.integers(1, 4),
    weights=st.lists(st.integers(0, 9 * MIB), min_size=61, max_size=61),
    target_bytes=st.integers(GET_BYTES_MIN, GET_BYTES),
)
def test_every_missing_block_is_in_one_get_of_fitting_size(
    numbers: set[int], unit_blocks: int, weights: list[int], target_bytes: int
) -> None:
    grid = BlockGrid(1, 61, unit_blocks)
    missing = whole_units(numbers, grid)

    def weigh(start: int, end: int) -> int:
        return sum(weights[start:end])

    gets = plan_gets(missing, grid, weigh, target_bytes)
    assert [number for get in gets for number in get] == sorted(missing)
    for get in gets:
        units = [grid.unit(number) for number in get[:: grid.unit_blocks]]
        assert [number for unit in units for number in unit] == list(get), "whole units"
        weight = weigh(get.start, get.stop)
        without_last = weigh(get.start, units[-1].start)
        assert weight <= 4 * target_bytes // 3 or len(units) == 1 or weight - without_last < target_bytes // 3
    for before, after in itertools.pairwise(gets):
        together = weigh(before.start, after.stop)
        assert before.stop != after.start or together > 4 * target_bytes // 3, "neighbours that could have been one"
