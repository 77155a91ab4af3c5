"""Blocks: whole chunks, equally long, each byte in one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.cache.blocks import BLOCK_BYTES_MAX, BlockGrid, block_grid

MIB = 1024 * 1024

GRIDS = st.builds(
    block_grid,
    st.one_of(st.just(1), st.integers(1, 40 * MIB), st.integers(1, 64).map(lambda count: count * MIB)),
    st.integers(0, 300 * MIB),
    st.integers(1, BLOCK_BYTES_MAX),
)


@pytest.mark.parametrize(
    ("chunk_bytes", "block_bytes", "expected"),
    [
        (1, 1 * MIB, (1 * MIB, 1)),  # no chunks: the grid itself
        (1, 1, (1, 1)),
        (300_000, 1 * MIB, (1_200_000, 1)),  # the fewest chunks that cover a block
        (4 * MIB, 1 * MIB, (4 * MIB, 1)),
        (16 * MIB, 1 * MIB, (16 * MIB, 1)),
        (32 * MIB, 1 * MIB, (16 * MIB, 2)),  # cut, and filled together
        (40 * MIB, 1 * MIB, (40 * MIB // 4, 4)),  # not into three: that has a rest
        (17 * MIB + 7, 1 * MIB, ((17 * MIB + 7) // 3, 3)),
        (33_554_467, 1 * MIB, (33_554_467, 1)),  # a prime cannot be cut
    ],
)
def test_blocks_are_runs_of_whole_chunks_or_equal_parts_of_one(
    chunk_bytes: int, block_bytes: int, expected: tuple[int, int]
) -> None:
    grid = block_grid(chunk_bytes, 300 * MIB, block_bytes)
    assert (grid.block_bytes, grid.unit_blocks) == expected


def test_the_last_block_ends_with_the_segment() -> None:
    grid = BlockGrid(100, 250)
    assert grid.count == 3
    assert [(grid.start(number), grid.end(number)) for number in range(3)] == [(0, 100), (100, 200), (200, 250)]
    assert [grid.number_at(position) for position in (0, 99, 100, 249)] == [0, 0, 1, 2]


def test_the_last_unit_may_have_fewer_blocks() -> None:
    grid = BlockGrid(100, 450, unit_blocks=3)
    assert [grid.unit(number) for number in range(5)] == [range(3)] * 3 + [range(3, 5)] * 2


def test_an_empty_segment_has_no_blocks() -> None:
    assert block_grid(1, 0, 1000).count == 0


@given(GRIDS)
def test_each_byte_is_in_one_block(grid: BlockGrid) -> None:
    borders = [grid.start(number) for number in range(min(grid.count, 50))]
    for number, start in enumerate(borders):
        end = grid.end(number)
        assert start < end <= grid.size_bytes
        assert end == grid.start(number + 1) or number == grid.count - 1
        assert grid.number_at(start) == grid.number_at(end - 1) == number
    assert grid.count == 0 or grid.end(grid.count - 1) == grid.size_bytes


@given(GRIDS, st.integers(0, 10_000))
def test_units_divide_the_blocks(grid: BlockGrid, number: int) -> None:
    if number >= grid.count:
        return
    unit = grid.unit(number)
    assert number in unit
    assert len(unit) <= grid.unit_blocks
    assert unit.start % grid.unit_blocks == 0
    assert all(grid.unit(other) == unit for other in unit)


@given(st.integers(1, 100 * MIB), st.integers(1, BLOCK_BYTES_MAX))
def test_a_unit_is_whole_chunks(chunk_bytes: int, block_bytes: int) -> None:
    grid = block_grid(chunk_bytes, 300 * MIB, block_bytes)
    unit_bytes = grid.block_bytes * grid.unit_blocks
    assert unit_bytes % chunk_bytes == 0
    assert unit_bytes >= min(block_bytes, chunk_bytes)
    if chunk_bytes <= BLOCK_BYTES_MAX:
        assert block_bytes <= grid.block_bytes < block_bytes + chunk_bytes
    elif grid.unit_blocks > 1:
        assert grid.block_bytes <= BLOCK_BYTES_MAX
        assert unit_bytes == chunk_bytes
