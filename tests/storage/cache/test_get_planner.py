"""Blocks are whole chunks; where the next GET for them begins and ends."""

from storage.cache.block_cache import Place, next_get, weigher
from storage.cache.blocks import BlockGrid, block_grid
from storage.cache.pace import GET_BYTES, MIB

HERE, MISSING, UNDER_WAY = Place.HERE, Place.MISSING, Place.UNDER_WAY
LETTERS = {"h": HERE, ".": MISSING, "u": UNDER_WAY}


def as_stored(start: int, end: int) -> int:
    return end - start


def planned(
    places: str, *, first: int = 0, stop: int | None = None, target: int = 12, gap: int = 3, unit_blocks: int = 1
) -> range | None:
    """Plan over blocks of one byte: `.` is missing, `h` here, `u` under way."""
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


def test_what_inflates_a_lot_is_cut_by_its_plaintext() -> None:
    weigh = weigher(lambda start, end: (end - start) // 100, 8 * MIB)
    assert weigh(MIB, 9 * MIB) == GET_BYTES
    assert weigh(0, 4 * MIB) == GET_BYTES // 2
    assert weigher(as_stored, 64 * MIB)(0, MIB) == MIB


# --- the grid: whole chunks, equally long, each byte in one ---


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
