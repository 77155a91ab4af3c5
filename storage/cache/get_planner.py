"""Where the next GET begins and ends (design §8). Pure.

Rule 1. A GET is a run of adjacent blocks. It begins at a missing one and goes on until it is large enough.
Rule 2. It goes on over blocks that are here already where the gap is small: reading on costs less than another GET. So
        a range of which every other block is cached is read as if none were.
Rule 3. It ends before a block that is under way: nothing is transferred twice at once.
Rule 4. Blocks that are decoded together (`BlockGrid.unit`) are fetched together.
Rule 5. What would be left of a segment is taken along while it is small.

Sizes are bytes in the store, since those are what a GET transfers; see `weigher` for what inflates a lot.
"""

import enum
from collections.abc import Callable

from storage.cache.block_grid import BlockGrid
from storage.cache.pace import GET_BYTES

TAIL_FRACTION = 3
"""What is left of a segment is small when it is less than one part in so many of a GET."""

Weigh = Callable[[int, int], int]
"""Bytes that a GET of plaintext [start, end) counts for."""


class Place(enum.Enum):
    """Where a block is."""

    MISSING = enum.auto()
    HERE = enum.auto()
    ON_DISK = enum.auto()
    UNDER_WAY = enum.auto()


def next_get(
    first: int,
    stop: int,
    *,
    grid: BlockGrid,
    place: Callable[[int], Place],
    weigh: Weigh,
    target_bytes: int,
    gap_bytes: int,
) -> range | None:
    """The next GET for blocks from `first` on, below `stop`; None if none of those is missing.

    Args:
        place: of a block, by its number.
        target_bytes: what it is to transfer. It does not exceed that unless it is one unit, or that and a tail.
        gap_bytes: of plaintext that is here, which it may go over.
    """
    while first < stop and place(first) is not Place.MISSING:
        first += 1
    if first >= stop:
        return None
    unit = grid.unit(first)
    begin, end = unit.start, unit.stop
    number = end
    while number < stop:
        found = place(number)
        if found is Place.MISSING:
            unit_end = grid.unit(number).stop
            if weigh(grid.start(begin), grid.end(unit_end - 1)) > target_bytes:
                break
            number = end = unit_end
        elif found is Place.UNDER_WAY or grid.end(number) - grid.start(end) > gap_bytes:
            break
        else:
            number += 1
    if end < grid.count <= stop and weigh(grid.start(end), grid.size_bytes) * TAIL_FRACTION <= target_bytes:
        tail = range(end, grid.count)
        if all(place(number) is Place.MISSING for number in tail):
            end = tail.stop
    return range(begin, end)


def weigher(stored_bytes: Weigh, plaintext_bytes_max: int, target_bytes: int = GET_BYTES) -> Weigh:
    """Weigh by stored bytes, but let no GET of `target_bytes` inflate to more than `plaintext_bytes_max`."""

    def weigh(start: int, end: int) -> int:
        return max(stored_bytes(start, end), (end - start) * target_bytes // plaintext_bytes_max)

    return weigh
