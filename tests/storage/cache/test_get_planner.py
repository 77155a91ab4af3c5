"""Where the next GET begins and ends."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.cache.block_cache import TAIL_FRACTION, Place, next_get, weigher
from storage.cache.blocks import BlockGrid
from storage.cache.pace import GET_BYTES, MIB

HERE, MISSING, UNDER_WAY = Place.HERE, Place.MISSING, Place.UNDER_WAY
LETTERS = {"h": HERE, ".": MISSING, "u": UNDER_WAY}


def as_stored(start: int, end: int) -> int:
    return end - start


def planned(
    places: str,
    *,
    first: int = 0,
    stop: int | None = None,
    target: int = 12,
    gap: int = 3,
    unit_blocks: int = 1,
    last_block_bytes: int = 1,
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


@pytest.mark.parametrize(
    ("places", "get"),
    [
        ("......", range(6)),
        ("hh....", range(2, 6)),
        ("uu....", range(2, 6)),
        ("huhu..", range(4, 6)),
        ("....hh", range(4)),
        ("hhhhhh", None),
        ("uhuhuh", None),
        ("", None),
    ],
)
def test_a_get_is_what_is_missing_from_the_first_such_block_on(places: str, get: range | None) -> None:
    assert planned(places) == get


def test_it_begins_and_ends_within_what_is_asked_for() -> None:
    assert planned("." * 40, first=7, stop=11) == range(7, 11)
    assert planned("....", first=4) is None
    assert planned("....", first=3, stop=3) is None


def test_it_is_as_large_as_its_target() -> None:
    assert planned("." * 40, first=3) == range(3, 15)


@pytest.mark.parametrize(
    ("places", "get"),
    [
        ("..hhh..", range(7)),
        ("..hhhh..", range(2)),
        (".h.h.h.h", range(7)),
        ("..hhh", range(2)),
        ("..hhhu.", range(2)),
    ],
)
def test_small_gaps_of_what_is_here_are_read_over(places: str, get: range) -> None:
    assert planned(places) == get


def test_a_gap_counts_for_what_a_get_transfers() -> None:
    assert planned("..hhh" * 8) == range(12)
    assert planned("..hhh" * 8, target=11) == range(11)
    assert planned("..hhh" * 8, target=10) == range(7), "it does not end with what is here"


def test_it_ends_before_what_is_under_way() -> None:
    assert planned("...u...") == range(3)
    assert planned("...hu...") == range(3)


def test_blocks_that_are_decoded_together_are_fetched_together() -> None:
    assert planned("hhhh.hhhhhh", first=4, stop=5, unit_blocks=3) == range(3, 6)
    assert planned("......" * 4, unit_blocks=3, target=11) == range(9)
    assert planned("...hhh.hhhhhhh", unit_blocks=3) == range(9)
    assert planned("." * 20, unit_blocks=5, target=1) == range(5), "one at least"
    assert planned("." * 7, first=6, unit_blocks=5) == range(5, 7), "the last may be short"


@pytest.mark.parametrize(
    ("blocks", "first", "stop", "end"),
    [
        (16, 0, 16, 16),  # four are left, a third of a GET
        (17, 0, 17, 12),
        (16, 0, 15, 12),  # the reader does not come so far
        (28, 12, 28, 28),
    ],
)
def test_the_segments_small_rest_is_taken_along(blocks: int, first: int, stop: int, end: int) -> None:
    assert planned("." * blocks, first=first, stop=stop) == range(first, end)


@pytest.mark.parametrize("place", ["h", "u"])
def test_a_rest_that_is_not_all_missing_is_left(place: str) -> None:
    assert planned("." * 13 + place + "..", gap=0) == range(12)


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


def test_a_gigabyte_takes_about_sixty_gets() -> None:
    grid = BlockGrid(MIB, 1000 * MIB)
    gets = covering([MISSING] * 1000, grid, [MIB] * 1000, 0, 1000, GET_BYTES, 0)
    assert 55 <= len(gets) <= 65


def covering(
    places: list[Place], grid: BlockGrid, weights: list[int], first: int, stop: int, target_bytes: int, gap_bytes: int
) -> list[range]:
    """All GETs, each under way when the next is planned."""
    gets = list[range]()
    while True:
        get = next_get(
            first,
            stop,
            grid=grid,
            place=lambda number: places[number],
            weigh=lambda start, end: sum(weights[grid.number_at(start) : grid.number_at(end - 1) + 1]),
            target_bytes=target_bytes,
            gap_bytes=gap_bytes,
        )
        if get is None:
            return gets
        check(get, places, grid, weights, stop, target_bytes, gap_bytes)
        gets.append(get)
        places[get.start : get.stop] = [UNDER_WAY] * len(get)


def check(
    get: range,
    places: list[Place],
    grid: BlockGrid,
    weights: list[int],
    stop: int,
    target_bytes: int,
    gap_bytes: int,
) -> None:
    """What is so of each GET when it is planned."""
    units = list(dict.fromkeys(grid.unit(number) for number in get))
    assert [number for unit in units for number in unit] == list(get), "whole units"
    missing = {number for number in get if places[number] is MISSING}
    assert missing & set(units[0]), "it begins with what is missing"
    assert missing & set(units[-1]), "and ends so"
    for unit in units:
        assert missing & set(unit) or all(places[number] is not UNDER_WAY for number in unit)
    weight = sum(weights[number] for number in get)
    if weight > target_bytes and len(units) > 1:
        assert get.stop == grid.count <= stop, "only a tail makes it larger"
        rest = 0
        for unit in reversed(units[1:]):
            rest += sum(weights[number] for number in unit)
            if weight - rest <= target_bytes:
                break
        assert rest * TAIL_FRACTION <= target_bytes
    gap = 0
    for number in get:
        gap = gap + grid.block_bytes if number not in missing and grid.unit_blocks == 1 else 0
        assert gap <= gap_bytes


@given(
    places=st.lists(st.sampled_from(Place), min_size=1, max_size=60),
    weights=st.lists(st.integers(0, 9), min_size=60, max_size=60),
    block_bytes=st.integers(1, 5),
    target_bytes=st.integers(1, 40),
    gap_bytes=st.integers(0, 20),
    span=st.tuples(st.integers(0, 60), st.integers(0, 60)),
)
def test_repeated_gets_cover_just_what_is_missing(
    places: list[Place],
    weights: list[int],
    block_bytes: int,
    target_bytes: int,
    gap_bytes: int,
    span: tuple[int, int],
) -> None:
    grid = BlockGrid(block_bytes, block_bytes * len(places))
    first, stop = min(span[0], len(places)), min(span[1], len(places))
    before = list(places)
    gets = covering(places, grid, weights, first, stop, target_bytes, gap_bytes)
    covered = [number for get in gets for number in get]
    assert len(set(covered)) == len(covered), "nothing twice"
    assert all(before[number] is not UNDER_WAY for number in covered)
    missing = [number for number in range(first, stop) if before[number] is MISSING]
    assert [number for number in covered if before[number] is MISSING] == missing


@given(
    unit_places=st.lists(st.lists(st.sampled_from([HERE, MISSING]), min_size=3, max_size=3), min_size=1, max_size=20),
    under_way=st.sets(st.integers(0, 19)),
    weights=st.lists(st.integers(0, 9), min_size=60, max_size=60),
    last_unit=st.integers(1, 3),
    target_bytes=st.integers(1, 40),
    gap_bytes=st.integers(0, 12),
    span=st.tuples(st.integers(0, 60), st.integers(0, 60)),
)
def test_with_units_too(
    unit_places: list[list[Place]],
    under_way: set[int],
    weights: list[int],
    last_unit: int,
    target_bytes: int,
    gap_bytes: int,
    span: tuple[int, int],
) -> None:
    """Blocks of a unit are under way together: one GET brings them."""
    places = [UNDER_WAY if at in under_way else place for at, unit in enumerate(unit_places) for place in unit]
    places = places[: len(places) - 3 + last_unit]
    grid = BlockGrid(1, len(places), unit_blocks=3)
    first, stop = min(span[0], len(places)), min(span[1], len(places))
    before = list(places)
    gets = covering(places, grid, weights, first, stop, target_bytes, gap_bytes)
    covered = [number for get in gets for number in get]
    assert len(set(covered)) == len(covered), "nothing twice"
    assert all(before[number] is not UNDER_WAY for number in covered)
    assert {number for number in range(first, stop) if before[number] is MISSING} <= set(covered)
