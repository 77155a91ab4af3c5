"""Streams and their windows: who gets read-ahead, how much, in which order, and what is left of those that go."""

import itertools

import pytest

from storage.cache.pace import GET_BYTES
from storage.cache.read_ahead import SEGMENTS_AHEAD_MAX, START_ANSWERS, STREAMS_PER_PARTITION_MAX, Read
from storage.model import RemoteLogSegmentId, RemoteLogSegmentMetadata
from tests.support.read_ahead_world import (
    GIB,
    MIB,
    OFFSETS,
    PARTITION,
    START_BYTES,
    World,
    assert_nothing_is_left,
    mib,
    segment,
)
from tests.support.segments import uuid_of


@pytest.fixture
def world() -> World:
    return World([segment(number) for number in range(3)])


# --- what a stream is ---


def test_a_read_that_its_size_did_not_cut_and_that_continues_nothing_costs_nothing(world: World) -> None:
    for at in (500, 3, 900, 40, 39, 700):
        assert world.read(0, at * MIB, (at + 1) * MIB, waited=True, is_cut=False) == 0
    assert (world.pieces, world.streams()) == ([], 0)


def test_the_first_read_that_its_size_cut_opens_a_window_or_else_the_second(world: World) -> None:
    assert world.read(0, 0, MIB, reader="cut") == START_BYTES
    assert (world.pieces[0][:2], world.ahead_bytes(MIB), world.streams()) == ((0, MIB), START_BYTES, 1)
    assert world.read(0, 0, MIB, is_cut=False) == 0
    assert world.read(0, MIB, 2 * MIB, is_cut=False) == START_BYTES
    assert world.streams() == 2
    # The first window is some answers, within bounds.
    for answer_bytes, window_bytes in [(20_000, 2 * MIB), (100_000, 3_200_000), (MIB, 4 * MIB)]:
        world = World([segment(0)])
        world.read(0, 0, answer_bytes)
        assert world.read_ahead.reach("one", world.blocks(world.segments[0]), answer_bytes) is not None
        (stream,) = world.read_ahead.recent
        assert stream.window_bytes == window_bytes == max(2 * MIB, min(START_BYTES, START_ANSWERS * answer_bytes))


def test_a_read_that_waits_opens_its_window_before_its_answer(world: World) -> None:
    """Failed before: of a slow connection's first answer, which took half a second, nothing else was under way."""
    assert world.read(0, 0, MIB, is_begun=True) == START_BYTES
    (stream,) = world.read_ahead.recent
    assert world.read(0, 100_000, MIB + 100_000, waited=True) <= MIB, "its answer is no second read"
    assert (stream.window_bytes, len(world.read_ahead.recent)) == (START_BYTES, 1)
    assert world.read(0, MIB, 2 * MIB, is_begun=True) == 0, "a stream that is open goes by what is answered"
    world.read(0, MIB + 100_000, 2 * MIB, waited=True)
    assert stream.window_bytes == 2 * START_BYTES


def test_an_answer_that_ended_with_a_cut_batch_is_read_on_from_before_its_end(world: World) -> None:
    world.read(0, 0, MIB, is_cut=False)
    assert world.read(0, MIB - 300_000, 2 * MIB - 300_000, is_cut=False) > 0
    assert len(world.read_ahead.recent) == 1


def test_the_same_read_again_is_the_same_stream_and_not_a_sequence(world: World) -> None:
    assert sum(world.read(0, 0, MIB, waited=True, is_cut=False) for _ in range(3)) == 0
    assert len(world.read_ahead.recent) == 1
    world.read(0, MIB, 2 * MIB)
    assert [world.read(0, MIB, 2 * MIB, waited=True) for _ in range(3)] == [0, 0, 0], "nor does its window grow"


def test_a_gap_a_step_back_or_another_reader_is_another_stream(world: World) -> None:
    world.read(0, 0, MIB, reader="one", is_cut=False)
    assert world.read(0, MIB, 2 * MIB, reader="two", is_cut=False) == 0
    assert world.read(0, MIB, 2 * MIB, reader="one", is_cut=False) > 0
    world.scan(0, [10 * MIB, 11 * MIB + 1, 9 * MIB])
    assert len(world.read_ahead.recent) == 5


def test_a_read_belongs_to_the_stream_that_ended_right_there(world: World) -> None:
    world.scan(0, [0, MIB // 2])
    assert len(world.read_ahead.recent) == 1
    world.scan(0, [4 * MIB, 3 * MIB])
    world.read(0, 4 * MIB, 5 * MIB)  # the third stream's next
    assert len(world.read_ahead.recent) == 3


# --- the window ---


def test_the_window_doubles_with_each_wait_up_to_the_largest(world: World) -> None:
    never_waits = World(world.segments)
    never_waits.scan(0, mib(0, 3))
    assert never_waits.ahead_bytes(3 * MIB) <= START_BYTES
    never_waits.scan(0, mib(3, 400))
    assert GET_BYTES <= never_waits.ahead_bytes(400 * MIB) <= 2 * GET_BYTES, "two GETs of full size and no more"
    world.read(0, 0, MIB)
    (stream,) = world.read_ahead.recent
    windows = []
    for at in mib(1, 8):
        world.read(0, at, at + MIB, waited=True)
        windows.append(stream.window_bytes // MIB)
        assert stream.window_bytes // 2 < stream.ahead_bytes <= stream.window_bytes
    assert windows == [8, 16, 32, 64, 128, 128, 128]
    world.scan(0, mib(8, 400), waited=True)
    assert 128 * MIB - GET_BYTES <= world.ahead_bytes(400 * MIB) <= 128 * MIB


def test_a_wasted_block_halves_the_window_once_for_each_answer(world: World) -> None:
    world.scan(0, mib(0, 20), waited=True)
    for number in (120, 121, 122):
        world.wasted(number)
    world.pieces.clear()
    world.scan(0, mib(20, 84))
    assert 64 * MIB - GET_BYTES <= world.ahead_bytes(84 * MIB) <= 64 * MIB
    world.wasted(125)
    world.pieces.clear()
    world.scan(0, mib(84, 120))
    assert 32 * MIB - GET_BYTES <= world.ahead_bytes(120 * MIB) <= 32 * MIB


def test_a_wasted_or_evicted_block_is_asked_for_again_and_none_before_it() -> None:
    for is_evicted in (False, True):
        world = World([segment(number) for number in range(2)])
        world.scan(0, mib(0, 20), waited=True)
        before = world.read_ahead.ahead_bytes
        for index, number in ((0, 3), (0, 900), (1, 0)):  # nobody wants those any more
            (world.evicted if is_evicted else world.wasted)(number, index)
        assert world.read_ahead.ahead_bytes == before
        (world.evicted if is_evicted else world.wasted)(100)
        world.pieces.clear()
        world.scan(0, mib(20, 100))
        assert world.pieces[0][:2] == (0, 100 * MIB)
        is_window_whole = world.ahead_bytes(100 * MIB) > 128 * MIB - GET_BYTES
        assert is_window_whole == is_evicted, "an eviction costs no window"


def test_no_budget_means_no_read_ahead() -> None:
    for world in (World([segment(0)], stream_bytes_max=0), World([segment(0)], total_bytes_max=0)):
        world.scan(0, mib(0, 50), waited=True)
        assert world.pieces == []
        assert_nothing_is_left(world.read_ahead)


# --- in how large pieces ---


def test_pieces_are_large_at_every_read_size() -> None:
    for waited, read_bytes in itertools.product([True, False], [16_384, 100_000, 1_000_000, 5_000_000]):
        world = World([segment(0)])
        world.scan(0, range(0, 100_000_000, read_bytes), waited=waited, read_bytes=read_bytes)
        world.pieces.clear()
        world.scan(0, range(100_000_000, 400_000_000, read_bytes), waited=waited, read_bytes=read_bytes)
        sizes = [end - start for _, start, end in world.pieces]
        assert min(sizes) >= GET_BYTES - MIB, (waited, read_bytes)
        assert len(sizes) / (sum(sizes) / 1e9) <= 65


# --- who comes first ---


def test_the_stream_with_the_least_ahead_comes_first(world: World) -> None:
    world.scan(0, mib(0, 40), reader="far", waited=True)
    world.pulls = False
    for number, reader in enumerate(("one", "two", "three")):
        world.read(0, number * 100 * MIB, number * 100 * MIB + MIB, reader=reader)
    world.scan(0, mib(40, 60), reader="far")
    world.pieces.clear()
    world.pull(gets=3)
    assert [piece[1] for piece in world.pieces] == [MIB, 101 * MIB, 201 * MIB], "each has its first before any more"
    world.pull()
    assert world.pieces[-1][1] > 128 * MIB


def test_of_many_streams_each_is_asked_for_in_turn() -> None:
    world = World([segment(0, 4 * GIB)], pulls=False, total_bytes_max=4 * GIB)
    for number in range(200):
        world.read(0, number * 20 * MIB, number * 20 * MIB + MIB, reader=str(number))
    world.pull(gets=200)
    assert sorted(start for _, start, _ in world.pieces) == [number * 20 * MIB + MIB for number in range(200)]


# --- reach ---


def test_a_read_reaches_as_far_as_its_stream(world: World) -> None:
    """Failed before: the missing block begins behind the end of the last read, so no stream was found for it, and a
    reader that had overtaken its read-ahead fetched block by block."""
    world.scan(0, mib(0, 3))
    source = world.blocks(world.segments[0])
    (stream,) = world.read_ahead.recent
    for position in (2 * MIB + 1, 3 * MIB, 4 * MIB, 7 * MIB):
        assert world.read_ahead.reach("one", source, position) is stream
    for position in (0, 8 * MIB, 500 * MIB):
        assert world.read_ahead.reach("one", source, position) is None, "it is another's, or a seek"
    assert world.read_ahead.reach("two", source, 3 * MIB) is None


def test_reach_goes_over_the_border_and_picks_the_nearest_stream() -> None:
    world = World([segment(0, 8 * MIB), segment(1, 8 * MIB)])
    world.scan(0, [0, 6 * MIB])
    near, far = (world.read_ahead.reach("one", world.blocks(world.segments[0]), at) for at in (7 * MIB, MIB))
    assert near is not None
    assert far is not None
    assert near is not far
    assert world.read_ahead.reach("one", world.blocks(world.segments[1]), MIB) is near


def test_without_a_window_nothing_is_reached(world: World) -> None:
    world.read(0, 0, MIB, is_cut=False)
    assert world.read_ahead.reach("one", world.blocks(world.segments[0]), MIB) is None


# --- over the segment's border ---


def test_a_stream_goes_on_into_the_next_segment() -> None:
    world = World([segment(0, 10 * MIB), segment(1, 10 * MIB), segment(2, 200 * MIB)])
    world.scan(0, mib(0, 10), waited=True)
    assert world.ahead_bytes(0, index=1) == 10 * MIB
    assert world.opened == [1, 2]
    world.scan(1, mib(0, 10), waited=True)
    world.scan(2, mib(0, 30), waited=True)
    assert len(world.read_ahead.recent) == 1
    assert sum(end - start for _, start, end in world.pieces) == 9 * MIB + 10 * MIB + world.ahead_bytes(0, index=2)


def test_the_next_segment_that_there_is_continues_a_stream() -> None:
    overlapping = RemoteLogSegmentMetadata(
        RemoteLogSegmentId(PARTITION, uuid_of("overlapping")), OFFSETS // 2, 3 * OFFSETS, 0, 1, 0, GIB, {1: 0}
    )
    for following, start, is_there in (
        (segment(7), 0, True),  # behind a hole in the offsets
        (overlapping, 100 * MIB, True),  # read from its midst
        (segment(1), 0, False),  # it came after the stream had reached the end
    ):
        world = World([segment(0, 2 * MIB), *([following] if is_there else [])])
        world.scan(0, mib(0, 2))
        world.segments[1:] = [following]
        reads = [world.read(1, at, at + MIB, is_cut=False) for at in range(start, start + 3 * MIB, MIB)]
        assert sum(reads) > 0, following
        assert len(world.read_ahead.recent) == 1


def test_the_start_of_a_segment_that_does_not_follow_is_a_seek() -> None:
    world = World([segment(0, MIB), segment(1, GIB), segment(2, GIB)])
    for index, start in ((0, 0), (2, 0), (1, 5 * MIB)):
        world.read(index, start, start + MIB, is_cut=False)
    assert (len(world.read_ahead.recent), world.pieces) == (3, [])
    assert world.read(1, 0, MIB, is_cut=False) > 0


def test_many_small_segments_are_opened_a_few_at_a_time() -> None:
    world = World([segment(number, 1000) for number in range(200)])
    for number in range(100):
        world.read(number, 0, 1000, waited=True)
        assert max(world.opened, default=0) <= number + SEGMENTS_AHEAD_MAX
    assert world.opened == list(range(1, 100 + SEGMENTS_AHEAD_MAX))
    assert [number for number, _, _ in world.pieces] == world.opened


def test_an_empty_segment_is_passed_over() -> None:
    world = World([segment(0, 2 * MIB), segment(1, 0), segment(2)])
    world.scan(0, mib(0, 2))
    assert {piece[0] for piece in world.pieces} == {0, 2}
    assert world.ahead_bytes(0, index=2) > 0


def test_following_that_leads_nowhere_new_ends_the_window() -> None:
    world = World([segment(0, 4 * MIB)])
    source = world.blocks(world.segments[0])
    for at in mib(0, 4):
        assert world.read_ahead.on_read(Read("one", source, at, at + MIB, True, True, lambda of: of)) == []


def test_a_reader_has_at_most_sixteen_streams_in_a_partition(world: World) -> None:
    for number in range(STREAMS_PER_PARTITION_MAX):
        world.read(0, number * 10 * MIB, (number * 10 + 1) * MIB)
    world.read(0, MIB, 2 * MIB)
    world.read(0, 500 * MIB, 501 * MIB)
    assert len(world.read_ahead.recent) == STREAMS_PER_PARTITION_MAX == world.streams()
    assert world.read(0, 11 * MIB, 12 * MIB, is_cut=False) == 0, "the least recently read went"
    assert world.scan(0, mib(2, 6)) > 0, "the one read last but one stayed"


def test_streams_in_all_are_limited() -> None:
    world = World([segment(0)], streams_max=100)
    for reader in range(300):
        world.scan(0, mib(0, 2), reader=str(reader))
    assert (len(world.read_ahead.recent), world.streams()) == (100, 100)
    assert world.read(0, 2 * MIB, 3 * MIB, reader="0", is_cut=False) == 0
