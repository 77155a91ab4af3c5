"""LogWindow: contiguous bytes, forwards, one piece ahead; bytes that cannot be had are holes."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import CorruptObjectError
from storage.log.log_walk import UnreadableBytesError
from storage.log.segment_scan import HOLES_MAX, LogWindow
from tests.support.one_segment import OneSegment
from tests.support.segments import filled_segment

LOG_BYTES = len(filled_segment().log)


def window_of(world: OneSegment, end: int = LOG_BYTES, **how: Any) -> LogWindow:
    how = {"piece_bytes": 1000, "range_bytes": 3000} | how
    return LogWindow(world, world.metadata, end, **how)


@given(
    steps=st.lists(st.tuples(st.integers(-500, 3000), st.integers(1, 3000)), max_size=10),
    chunk_bytes=st.sampled_from([1, 100, 700, 4000]),
    end=st.integers(1, LOG_BYTES),
    gets_ahead_max=st.integers(0, 3),
)
def test_a_view_is_the_log_wherever_it_begins(
    steps: list[tuple[int, int]], chunk_bytes: int, end: int, gets_ahead_max: int
) -> None:
    world = OneSegment(filled_segment(), chunk_bytes=chunk_bytes)
    window = window_of(world, end, gets_ahead_max=gets_ahead_max)
    position, views = 0, []
    for forwards, size_bytes in steps:
        position = max(0, position + forwards)
        if position + size_bytes <= LOG_BYTES:
            views.append((position, size_bytes, window.view(position, size_bytes)))
    window.close()

    for at, size_bytes, view in views:  # they stay valid
        assert len(view) >= size_bytes
        assert view == world.segment.log[at : at + len(view)]
    assert world.streams_open == 0


def test_what_lies_in_one_piece_is_not_copied_and_cannot_be_changed() -> None:
    world = OneSegment(filled_segment())
    window = window_of(world)

    views = [window.view(0, 500), window.view(0, 1000), window.view(900, 300), window.view(1200, 100)]
    window.close()

    assert views[0].obj is views[1].obj
    assert views[2].obj not in (views[0].obj, views[3].obj)
    assert all(view.readonly for view in views)


def test_nothing_is_fetched_ahead_of_the_end_and_beyond_it_what_is_asked_for() -> None:
    world = OneSegment(filled_segment())
    window = window_of(world, 1500, gets_ahead_max=2)

    window.view(0, 1500)
    window.view(1400, 150)
    window.view(5000, 10)
    window.close()

    assert world.gets == [(0, 1000), (1000, 1500), (1500, 1550), (5000, 5010)]


def test_a_chunk_that_cannot_be_had_is_a_hole_behind_which_reading_goes_on() -> None:
    world = OneSegment(filled_segment(), chunk_bytes=700)
    world.corrupt_chunks = {1}
    window = window_of(world, has_holes=True)

    assert window.view(0, 700)[:700] == world.segment.log[:700]
    with pytest.raises(UnreadableBytesError, match="its tag is wrong") as hole:
        window.view(600, 200)
    assert (hole.value.start, hole.value.end) == (700, 1400)
    gets = len(world.gets)
    with pytest.raises(UnreadableBytesError):
        window.view(1399, 1)
    assert len(world.gets) == gets, "a hole is remembered"
    assert window.view(1400, 1000)[:1000] == world.segment.log[1400:2400]
    window.close()
    assert world.streams_open == 0


def test_after_many_holes_in_a_row_the_rest_is_one() -> None:
    world = OneSegment(filled_segment(), chunk_bytes=100)
    world.corrupt_chunks = set(range(1000))
    window = window_of(world, has_holes=True)

    position, holes = 0, 0
    while position < LOG_BYTES:
        with pytest.raises(UnreadableBytesError) as hole:
            window.view(position, 1)
        position, holes = hole.value.end, holes + 1
    window.close()

    assert holes == HOLES_MAX


def test_where_holes_are_not_wanted_the_stores_error_is_raised() -> None:
    world = OneSegment(filled_segment(), chunk_bytes=700)
    world.corrupt_chunks = {1}
    window = window_of(world)

    with pytest.raises(CorruptObjectError, match="its tag is wrong") as error:
        window.view(0, 10)
    window.close()

    assert not isinstance(error.value, UnreadableBytesError)
    assert world.streams_open == 0


def test_a_chunk_larger_than_a_piece_is_one_hole() -> None:
    world = OneSegment(filled_segment(), chunk_bytes=5000)
    world.corrupt_chunks = {0}
    window = window_of(world, has_holes=True)

    with pytest.raises(UnreadableBytesError) as hole:
        window.view(100, 1)
    window.close()

    assert (hole.value.start, hole.value.end) == (100, 5000)


def test_a_gap_is_read_by_the_get_under_way_and_not_behind_its_end() -> None:
    world = OneSegment(filled_segment())
    window = window_of(world)

    for position in (0, 2500, 2999, 6500):
        window.view(position, 1)
    window.close()

    assert world.gets == [(0, 3000), (6500, 9500)]
