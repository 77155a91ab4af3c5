"""Lockstep and the walk stop at what is no record, whatever the batches' sizes."""

import random

import numpy as np

from table.decoding.record_starts import LANES_MIN, find_starts, walk
from table.decoding.varint_lanes import PADDING_BYTES
from tests.support.for_each import for_each
from tests.support.record_rows import Given


def side_by_side(counts: list[int], *, seed: int = 1) -> tuple[np.ndarray, list[int], list[int], list[list[int]]]:
    """A buffer with so many records in each batch; where the batches begin and end, and their records begin."""
    rng = random.Random(seed)
    data, first, end, starts = bytearray(b"before"), [], [], []
    for count in counts:
        first.append(len(data))
        mine = []
        for number in range(count):
            mine.append(len(data))
            data += Given(number, value=bytes(rng.choice((0, 40, 52, 60, 300, 8_180, 8_200, 20_000)))).plain
        starts.append(mine)
        end.append(len(data))
    return np.frombuffer(bytes(data) + bytes(PADDING_BYTES), np.uint8), first, end, starts


@for_each("lanes", [2, 2 * LANES_MIN])
def test_a_batch_whose_records_do_not_end_where_it_does_is_told(lanes: int) -> None:
    counts = [5] * lanes
    data, first, end, _ = side_by_side(counts)
    data = data.copy()
    wrong = (1, lanes - 1)
    for lane in wrong:
        # Longer than everything, and ending nowhere.
        data[first[lane] : first[lane] + 6] = 0xFF
    _, stops = find_starts(data, np.array(first), np.array(end), np.array(counts))
    assert np.flatnonzero(stops != np.array(end)).tolist() == sorted(set(wrong))
    _, stops = find_starts(data, np.array(first), np.array(end) - 1, np.array(counts))
    assert (stops != np.array(end) - 1).all()


def test_a_walk_stops_before_a_record_that_is_cut() -> None:
    data, first, end, (starts,) = side_by_side([20])
    view = data.data
    assert [starts[:20], end[0]] == [list(walk(view, first[0], end[0], 99)[0]), walk(view, first[0], end[0], 99)[1]]
    for cut in (end[0] - 1, starts[7] + 1, starts[7]):
        found, stop = walk(view, first[0], cut, 99)
        whole = [start for start, following in zip(starts, [*starts[1:], end[0]], strict=True) if following <= cut]
        assert list(found) == whole
        assert stop == starts[len(whole)]
    assert len(walk(view, first[0], end[0], 7)[0]) == 7
