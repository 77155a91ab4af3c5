"""Which missing blocks are fetched by one GET (design §8, §11). Pure.

Rule 1. Every missing block is in exactly one GET; a GET is a run of adjacent blocks.
Rule 2. A run is cut evenly into GETs of 8 to 16 MiB: large enough for 80 a GB, small enough to share a link between
        connections. What is left over is never sent alone while it is small.
Rule 3. Blocks that are decoded together (`BlockGrid.unit`) are fetched together.
Rule 4. On slow connections GETs are smaller, so that one lasts GET_S at most, but never below GET_BYTES_MIN.

Sizes are bytes in the store, since those are what a GET transfers; see `weigher` for what inflates a lot.
"""

from collections.abc import Callable, Iterable

from storage.cache.block_grid import BlockGrid

MIB = 1024 * 1024

GET_BYTES = 12 * MIB
"""What a GET is to transfer: 80 of them make a GB."""

GET_BYTES_MIN = 1 * MIB
"""Below, the first byte's delay outweighs the transfer on any link."""

GET_S = 1.0
"""What a GET is to last at most: far below the five seconds that a reader waits (law L3). Less would cost GETs on links
that are only busy, where more connections make each slower."""

Weigh = Callable[[int, int], int]
"""Bytes that a GET of plaintext [start, end) counts for."""


def plan_gets(numbers: Iterable[int], grid: BlockGrid, weigh: Weigh, target_bytes: int = GET_BYTES) -> list[range]:
    """The GETs, as ranges of block numbers in ascending order, that bring those blocks and no others.

    None weighs more than 4/3 of the target, unless it is one unit, or that and a tail of at most 1/3.
    """
    gets: list[range] = []
    for units in _runs(sorted(set(numbers)), grid):
        weights = [weigh(grid.start(unit.start), grid.end(unit.stop - 1)) for unit in units]
        first = 0
        for count in _cut(weights, target_bytes):
            gets.append(range(units[first].start, units[first + count - 1].stop))
            first += count
    return gets


def whole_units(numbers: Iterable[int], grid: BlockGrid) -> set[int]:
    """Those blocks, and the ones that are decoded together with them."""
    return {together for number in numbers for together in grid.unit(number)}


def get_bytes(bytes_per_s: float | None) -> int:
    """What a GET is to transfer on a connection of that speed; None: not known yet."""
    if bytes_per_s is None:
        return GET_BYTES
    return min(GET_BYTES, max(GET_BYTES_MIN, round(bytes_per_s * GET_S)))


def weigher(stored_bytes: Weigh, plaintext_bytes_max: int) -> Weigh:
    """Weigh by stored bytes, but let no GET of GET_BYTES inflate to more than `plaintext_bytes_max`."""

    def weigh(start: int, end: int) -> int:
        return max(stored_bytes(start, end), (end - start) * GET_BYTES // plaintext_bytes_max)

    return weigh


def _runs(numbers: list[int], grid: BlockGrid) -> list[list[range]]:
    """Runs of adjacent numbers, each as the parts of it that are decoded together."""
    runs: list[list[range]] = []
    for number in numbers:
        follows = bool(runs) and runs[-1][-1].stop == number
        if follows and number in grid.unit(number - 1):
            runs[-1][-1] = range(runs[-1][-1].start, number + 1)
        elif follows:
            runs[-1].append(range(number, number + 1))
        else:
            runs.append([range(number, number + 1)])
    return runs


def _cut(weights: list[int], target_bytes: int) -> list[int]:
    """How many units each GET of a run takes: shares as even as units allow."""
    most_bytes, least_bytes = target_bytes * 4 // 3, target_bytes // 3
    left_bytes = sum(weights)
    counts: list[int] = []
    taken_bytes: list[int] = []
    at = 0
    while at < len(weights):
        gets = max(1, -(-(left_bytes - least_bytes) // target_bytes))
        count, weight = 1, weights[at]
        for more in weights[at + 1 :]:
            # Half of the next unit inside the share: nearer to it with than without.
            if weight + more > most_bytes or (2 * weight + more) * gets > 2 * left_bytes:
                break
            count, weight = count + 1, weight + more
        at += count
        left_bytes -= weight
        counts.append(count)
        taken_bytes.append(weight)
    if len(counts) > 1 and taken_bytes[-1] < least_bytes and sum(taken_bytes[-2:]) <= most_bytes + least_bytes:
        counts[-2:] = [sum(counts[-2:])]
    return counts
