"""Blocks are whole chunks; where the next GET for them begins and ends."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from storage.cache.block_cache import TAIL_FRACTION, Place, next_get, weigher
from storage.cache.blocks import BLOCK_BYTES_MAX, BlockGrid, block_grid
from storage.cache.pace import GET_BYTES, MIB

HERE, MISSING, UNDER_WAY = Place.HERE, Place.MISSING, Place.UNDER_WAY
LETTERS = {"h": HERE, ".": MISSING, "u": UNDER_WAY}


def as_stored(start: int, end: int) -> int:
    return end - start


def planned(
    places: str, *, first: int = 0, stop: int | None = None, target: int = 12, gap: int = 3, unit_blocks: int = 1
) -> range | None:
    """Of blocks of one byte: `.` is missing, `h` here, `u` under way."""
    grid = BlockGrid(1, len(places), unit_blocks)
    return next_get(
        first,
        len(places) if stop is None else stop,
        grid=grid,
        place=lambda number: LETTERS[places[number]],
        weigh=as_stored,
        target_bytes=target,
        gap_bytes=gap,
    )


def test_a_get_is_what_is_missing_from_the_first_such_block_on() -> None:
    for places, get in [
        ("......", range(6)),
        ("hh....", range(2, 6)),
        ("uu....", range(2, 6)),
        ("huhu..", range(4, 6)),
        ("....hh", range(4)),
        ("hhhhhh", None),
        ("uhuhuh", None),
        ("", None),
    ]:
        assert planned(places) == get


def test_it_begins_and_ends_within_what_is_asked_for_and_is_as_large_as_its_target() -> None:
    assert planned("." * 40, first=7, stop=11) == range(7, 11)
    assert planned("....", first=4) is planned("....", first=3, stop=3) is None
    assert planned("." * 40, first=3) == range(3, 15)
    assert planned("...u...") == planned("...hu...") == range(3), "it ends before what is under way"
    # A gap counts for what a GET transfers.
    assert planned("..hhh" * 8) == range(12)
    assert planned("..hhh" * 8, target=11) == range(11)
    assert planned("..hhh" * 8, target=10) == range(7), "it does not end with what is here"


def test_small_gaps_of_what_is_here_are_read_over() -> None:
    for places, get in [
        ("..hhh..", range(7)),
        ("..hhhh..", range(2)),
        (".h.h.h.h", range(7)),
        ("..hhh", range(2)),
        ("..hhhu.", range(2)),
    ]:
        assert planned(places) == get


def test_blocks_that_are_decoded_together_are_fetched_together() -> None:
    assert planned("hhhh.hhhhhh", first=4, stop=5, unit_blocks=3) == range(3, 6)
    assert planned("......" * 4, unit_blocks=3, target=11) == range(9)
    assert planned("...hhh.hhhhhhh", unit_blocks=3) == range(9)
    assert planned("." * 20, unit_blocks=5, target=1) == range(5), "one at least"
    assert planned("." * 7, first=6, unit_blocks=5) == range(5, 7), "the last may be short"


def test_the_segments_small_rest_is_taken_along() -> None:
    for blocks, first, stop, end in [
        (16, 0, 16, 16),  # four are left, a third of a GET
        (17, 0, 17, 12),
        (16, 0, 15, 12),  # the reader does not come so far
        (28, 12, 28, 28),
    ]:
        assert planned("." * blocks, first=first, stop=stop) == range(first, end)
    for place in ("h", "u"):
        assert planned("." * 13 + place + "..", gap=0) == range(12), "a rest that is not all missing is left"


def test_gets_follow_what_the_store_transfers_rather_than_plaintext() -> None:
    grid = BlockGrid(4 * MIB, 96 * MIB)
    get = next_get(
        0,
        24,
        grid=grid,
        place=lambda _: MISSING,
        weigh=lambda start, end: (end - start) // 4,
        target_bytes=12 * MIB,
        gap_bytes=0,
    )
    assert get == range(12)


def test_what_inflates_a_lot_is_cut_by_its_plaintext() -> None:
    weigh = weigher(lambda start, end: (end - start) // 100, 8 * MIB)
    assert weigh(MIB, 9 * MIB) == GET_BYTES
    assert weigh(0, 4 * MIB) == GET_BYTES // 2
    assert weigher(as_stored, 64 * MIB)(0, MIB) == MIB


@dataclass
class Plan:
    """Blocks: where they are, what they weigh, and how GETs for them are planned."""

    places: list[Place]
    grid: BlockGrid
    weights: list[int]
    target_bytes: int
    gap_bytes: int

    def gets(self, first: int, stop: int) -> list[range]:
        """All GETs, each under way when the next is planned."""
        gets = list[range]()
        while (get := self.next(first, stop)) is not None:
            self.check(get, stop)
            gets.append(get)
            self.places[get.start : get.stop] = [UNDER_WAY] * len(get)
        return gets

    def next(self, first: int, stop: int) -> range | None:
        return next_get(
            first,
            stop,
            grid=self.grid,
            place=lambda number: self.places[number],
            weigh=lambda start, end: sum(self.weights[self.grid.number_at(start) : self.grid.number_at(end - 1) + 1]),
            target_bytes=self.target_bytes,
            gap_bytes=self.gap_bytes,
        )

    def check(self, get: range, stop: int) -> None:
        """What is so of each GET when it is planned."""
        units = list(dict.fromkeys(self.grid.unit(number) for number in get))
        assert [number for unit in units for number in unit] == list(get), "whole units"
        missing = {number for number in get if self.places[number] is MISSING}
        assert missing & set(units[0]), "it begins with what is missing"
        assert missing & set(units[-1]), "and ends so"
        for unit in units:
            assert missing & set(unit) or all(self.places[number] is not UNDER_WAY for number in unit)
        weight = sum(self.weights[number] for number in get)
        if weight > self.target_bytes and len(units) > 1:
            assert get.stop == self.grid.count <= stop, "only a tail makes it larger"
            rest = 0
            for unit in reversed(units[1:]):
                rest += sum(self.weights[number] for number in unit)
                if weight - rest <= self.target_bytes:
                    break
            assert rest * TAIL_FRACTION <= self.target_bytes
        gap = 0
        for number in get:
            gap = gap + self.grid.block_bytes if number not in missing and self.grid.unit_blocks == 1 else 0
            assert gap <= self.gap_bytes


def test_a_gigabyte_takes_about_sixty_gets() -> None:
    plan = Plan([MISSING] * 1000, BlockGrid(MIB, 1000 * MIB), [MIB] * 1000, GET_BYTES, 0)
    assert 55 <= len(plan.gets(0, 1000)) <= 65


@st.composite
def plans(draw: st.DrawFn, unit_blocks: int) -> Plan:
    """Blocks of a unit are under way together: one GET brings them. The last unit may be short."""
    unit = st.lists(st.sampled_from([HERE, MISSING]), min_size=unit_blocks, max_size=unit_blocks)
    units = draw(st.lists(unit, min_size=1, max_size=60 // unit_blocks))
    under_way = draw(st.sets(st.integers(0, len(units) - 1)))
    places = [UNDER_WAY if at in under_way else place for at, unit in enumerate(units) for place in unit]
    places = places[: len(places) - draw(st.integers(0, unit_blocks - 1))]
    block_bytes = draw(st.integers(1, 5))
    grid = BlockGrid(block_bytes, block_bytes * len(places), unit_blocks)
    weights = draw(st.lists(st.integers(0, 9), min_size=60, max_size=60))
    return Plan(places, grid, weights, draw(st.integers(1, 40)), draw(st.integers(0, 20)))


@given(data=st.data())
def test_repeated_gets_cover_just_what_is_missing(data: st.DataObject) -> None:
    unit_blocks = data.draw(st.sampled_from([1, 3]))
    plan = data.draw(plans(unit_blocks))
    first, stop = (min(data.draw(st.integers(0, 60)), len(plan.places)) for _ in range(2))
    before = [*plan.places]
    covered = [number for get in plan.gets(first, stop) for number in get]
    assert len(set(covered)) == len(covered), "nothing twice"
    assert all(before[number] is not UNDER_WAY for number in covered)
    missing = [number for number in range(first, stop) if before[number] is MISSING]
    assert set(missing) <= set(covered)
    if unit_blocks == 1:
        assert [number for number in covered if before[number] is MISSING] == missing


# --- the grid: whole chunks, equally long, each byte in one ---

GRIDS = st.builds(
    block_grid,
    st.one_of(st.just(1), st.integers(1, 40 * MIB), st.integers(1, 64).map(lambda count: count * MIB)),
    st.integers(0, 300 * MIB),
    st.integers(1, BLOCK_BYTES_MAX),
)


def test_blocks_are_whole_chunks_or_parts_of_one() -> None:
    for chunk_bytes, block_bytes, expected in [
        (1, 1 * MIB, (1 * MIB, 1)),  # no chunks: the grid itself
        (1, 1, (1, 1)),
        (300_000, 1 * MIB, (1_200_000, 1)),  # the fewest chunks that cover a block
        (4 * MIB, 1 * MIB, (4 * MIB, 1)),
        (16 * MIB, 1 * MIB, (16 * MIB, 1)),
        (32 * MIB, 1 * MIB, (16 * MIB, 2)),  # cut, and filled together
        (40 * MIB, 1 * MIB, (40 * MIB // 4, 4)),  # not into three: that has a rest
        (17 * MIB + 7, 1 * MIB, ((17 * MIB + 7) // 3, 3)),
        (33_554_467, 1 * MIB, (33_554_467, 1)),  # a prime cannot be cut
    ]:
        grid = block_grid(chunk_bytes, 300 * MIB, block_bytes)
        assert (grid.block_bytes, grid.unit_blocks) == expected


def test_the_last_block_ends_with_the_segment_and_the_last_unit_may_be_short() -> None:
    grid, units = BlockGrid(100, 250), BlockGrid(100, 450, unit_blocks=3)
    assert (grid.count, block_grid(1, 0, 1000).count) == (3, 0)
    assert [(grid.start(number), grid.end(number)) for number in range(3)] == [(0, 100), (100, 200), (200, 250)]
    assert [grid.number_at(position) for position in (0, 99, 100, 249)] == [0, 0, 1, 2]
    assert [units.unit(number) for number in range(5)] == [range(3)] * 3 + [range(3, 5)] * 2


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
