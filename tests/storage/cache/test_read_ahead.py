"""Streams and their windows: who gets read-ahead, how much, when it is asked for, and in how large pieces."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from metrics.cache_probes import ReadAheadProbe
from metrics.registry import Registry
from storage.cache.block_grid import BlockGrid, block_grid
from storage.cache.memory import BlockKey
from storage.cache.read_ahead import (
    GET_BYTES,
    IDLE_S,
    SEGMENTS_AHEAD_MAX,
    STREAMS_PER_PARTITION_MAX,
    ReadAhead,
    Want,
)
from storage.model import RemoteLogSegmentId, RemoteLogSegmentMetadata, TopicIdPartition
from tests.support.segments import topic_partition, uuid_of

MIB = 1024 * 1024
START_BYTES = 4 * MIB
GIB = 1024 * MIB
OFFSETS = 1000
PARTITION = topic_partition()


def segment(number: int, size_bytes: int = GIB, partition: TopicIdPartition = PARTITION) -> RemoteLogSegmentMetadata:
    """Offsets number * OFFSETS to (number + 1) * OFFSETS − 1."""
    segment_id = RemoteLogSegmentId(partition, uuid_of(f"{partition} {number}"))
    start = number * OFFSETS
    return RemoteLogSegmentMetadata(segment_id, start, start + OFFSETS - 1, 0, 1, 0, size_bytes, {0: 0})


@dataclass(slots=True)
class World:
    """Read-ahead over the segments of a tier; its wants are taken at once and recorded as (segment, first, end)."""

    segments: list[RemoteLogSegmentMetadata]
    stream_bytes_max: int = 128 * MIB
    total_bytes_max: int = 512 * MIB
    block_bytes: int = MIB
    chunk_bytes: int = 1
    streams_max: int = 10_000
    room_bytes: int = 1024 * GIB
    now_s: float = 0.0
    metrics: Registry = field(default_factory=Registry)
    pieces: list[tuple[int, int, int]] = field(default_factory=list)
    opened: list[int] = field(default_factory=list)
    read_ahead: ReadAhead = field(init=False)

    def __post_init__(self) -> None:
        self.read_ahead = ReadAhead(
            self.stream_bytes_max,
            self.total_bytes_max,
            probe=ReadAheadProbe(self.metrics),
            clock=lambda: self.now_s,
            block_bytes=self.block_bytes,
            start_bytes=START_BYTES,
            streams_max=self.streams_max,
        )

    def following(self, of: RemoteLogSegmentMetadata) -> RemoteLogSegmentMetadata | None:
        return next((candidate for candidate in self.segments if candidate.start_offset > of.end_offset), None)

    def wants(self, index: int, start: int, end: int, *, reader: str = "one", waited: bool = False) -> list[Want]:
        return self.read_ahead.on_read(
            reader,
            self.segments[index],
            start,
            end,
            waited=waited,
            following=self.following,
            room_bytes=lambda: self.room_bytes,
        )

    def grid(self, want: Want) -> BlockGrid:
        return block_grid(self.chunk_bytes, want.segment.segment_size_bytes, self.block_bytes)

    def read(self, index: int, start: int, end: int, *, reader: str = "one", waited: bool = False) -> int:
        """Bytes that were asked for upon this read."""
        asked = 0
        for want in self.wants(index, start, end, reader=reader, waited=waited):
            number, grid = self.segments.index(want.segment), self.grid(want)
            if want.is_first:
                self.opened.append(number)
            numbers = self.read_ahead.take(want, grid, self.room_bytes)
            if numbers:
                piece = (number, grid.start(numbers[0]), grid.end(numbers[-1]))
                self.pieces.append(piece)
                asked += piece[2] - piece[1]
        return asked

    def scan(
        self, index: int, starts: Iterable[int], *, reader: str = "one", waited: bool = False, read_bytes: int = MIB
    ) -> int:
        return sum(self.read(index, at, at + read_bytes, reader=reader, waited=waited) for at in starts)

    def ahead_bytes(self, end: int, index: int = 0) -> int:
        """How far beyond `end` of the segment pieces have gone there."""
        return max((piece[2] for piece in self.pieces if piece[0] == index), default=end) - end

    def streams(self) -> float:
        return next(
            sample.value
            for family in self.metrics.collect()
            for sample in family.samples
            if sample.name == "tidegate_readahead_streams"
        )


def mib(first: int, end: int) -> range:
    """Where reads of 1 MiB begin."""
    return range(first * MIB, end * MIB, MIB)


@pytest.fixture
def world() -> World:
    return World([segment(number) for number in range(3)])


# --- what a stream is ---


def test_random_seeks_cost_nothing(world: World) -> None:
    assert world.scan(0, [500 * MIB, 3 * MIB, 900 * MIB, 40 * MIB, 39 * MIB, 700 * MIB], waited=True) == 0
    assert (world.pieces, world.streams()) == ([], 0)


def test_the_second_sequential_read_opens_a_window(world: World) -> None:
    assert world.read(0, 0, MIB, waited=True) == 0
    assert world.read(0, MIB, 2 * MIB, waited=True) == START_BYTES
    assert world.pieces == [(0, 2 * MIB, 6 * MIB)]
    assert world.streams() == 1


def test_the_first_window_holds_two_blocks() -> None:
    world = World([segment(0)], block_bytes=8 * MIB)
    world.scan(0, mib(0, 2))
    assert world.ahead_bytes(2 * MIB) >= 16 * MIB


def test_an_answer_that_ended_with_a_cut_batch_is_read_on_from_before_its_end(world: World) -> None:
    world.read(0, 0, MIB)
    assert world.read(0, MIB - 300_000, 2 * MIB - 300_000) > 0
    assert len(world.read_ahead) == 1


def test_the_same_read_again_is_the_same_stream_and_not_a_sequence(world: World) -> None:
    assert world.scan(0, [0, 0, 0], waited=True) == 0
    assert len(world.read_ahead) == 1
    assert world.read(0, MIB, 2 * MIB) == START_BYTES


def test_a_gap_or_a_step_back_is_another_stream(world: World) -> None:
    world.scan(0, [10 * MIB, 11 * MIB + 1, 9 * MIB])
    assert (len(world.read_ahead), world.pieces) == (3, [])


def test_streams_of_one_partition_are_told_apart(world: World) -> None:
    for step in range(4):
        world.scan(0, [first + step * MIB for first in (0, 300 * MIB, 600 * MIB)], waited=True)
    assert (len(world.read_ahead), world.streams()) == (3, 3)
    for first in (0, 300 * MIB, 600 * MIB):
        mine = [piece for piece in world.pieces if first <= piece[1] < first + 300 * MIB]
        assert mine[0] == (0, first + 2 * MIB, first + 6 * MIB)
        assert all(before[2] == after[1] for before, after in pairwise(mine))


def test_readers_have_streams_of_their_own(world: World) -> None:
    world.read(0, 0, MIB, reader="one")
    assert world.read(0, MIB, 2 * MIB, reader="two") == 0
    assert world.read(0, MIB, 2 * MIB, reader="one") > 0


def test_a_read_belongs_to_the_stream_that_ended_right_there(world: World) -> None:
    world.scan(0, [0, MIB // 2])
    assert len(world.read_ahead) == 1
    world.scan(0, [4 * MIB, 3 * MIB])
    world.read(0, 4 * MIB, 5 * MIB)  # the third stream's next
    assert len(world.read_ahead) == 3


# --- the window ---


def test_a_consumer_that_never_waits_gets_two_gets_of_full_size_and_no_more(world: World) -> None:
    world.scan(0, mib(0, 4))
    assert world.ahead_bytes(4 * MIB) <= START_BYTES
    world.scan(0, mib(4, 400))
    assert GET_BYTES <= world.ahead_bytes(400 * MIB) <= 2 * GET_BYTES


def test_a_consumer_that_never_waits_costs_few_gets_too(world: World) -> None:
    world.scan(0, mib(0, 100))
    world.pieces.clear()
    world.scan(0, mib(100, 900))
    sizes = [end - start for _, start, end in world.pieces]
    assert len(sizes) / (sum(sizes) / 1e9) <= 80


def test_a_consumer_that_waits_gets_the_largest_window_and_no_more(world: World) -> None:
    world.scan(0, mib(0, 20), waited=True)
    assert 128 * MIB - GET_BYTES <= world.ahead_bytes(20 * MIB) <= 128 * MIB
    world.scan(0, mib(20, 400), waited=True)
    assert world.ahead_bytes(400 * MIB) <= 128 * MIB


def test_the_window_doubles_with_each_wait(world: World) -> None:
    world.scan(0, mib(0, 2))
    reached = []
    for at in mib(2, 7):
        world.read(0, at, at + MIB, waited=True)
        reached.append(world.ahead_bytes(at + MIB) // MIB)
    assert reached == [8, 16, 32, 64, 128]


def test_streams_share_the_budget_of_all_windows() -> None:
    world = World([segment(0)], total_bytes_max=64 * MIB)
    for at in mib(0, 40):
        for reader in ("one", "two", "three", "four"):
            world.read(0, at, at + MIB, reader=reader, waited=True)
    assert world.ahead_bytes(40 * MIB) <= 16 * MIB


def test_a_stream_that_is_alone_again_gets_all_of_it() -> None:
    world = World([segment(0)], total_bytes_max=64 * MIB)
    for at in mib(0, 40):
        for reader in ("one", "two"):
            world.read(0, at, at + MIB, reader=reader, waited=True)
    assert world.ahead_bytes(40 * MIB) <= 32 * MIB
    world.read_ahead.forget_reader("two")
    world.scan(0, mib(40, 42), waited=True)
    assert world.ahead_bytes(42 * MIB) > 50 * MIB


def test_a_wasted_block_halves_the_window_once_for_each_answer(world: World) -> None:
    world.scan(0, mib(0, 20), waited=True)
    key = BlockKey(world.segments[0].segment_id.id, 120)
    for number in (120, 121, 122):
        world.read_ahead.on_wasted(BlockKey(key.segment_id, number))
    world.pieces.clear()
    world.scan(0, mib(20, 120))
    assert 64 * MIB - GET_BYTES <= world.ahead_bytes(120 * MIB) <= 64 * MIB


def test_the_window_never_falls_below_the_first(world: World) -> None:
    world.scan(0, mib(0, 2))
    for at in mib(2, 60):
        world.read(0, at, at + MIB)
        world.read_ahead.on_wasted(BlockKey(world.segments[0].segment_id.id, at // MIB + 1))
    assert world.ahead_bytes(60 * MIB) >= START_BYTES - MIB


def test_a_wasted_block_is_asked_for_again_when_it_comes_near(world: World) -> None:
    world.scan(0, mib(0, 2))
    world.read_ahead.on_wasted(BlockKey(world.segments[0].segment_id.id, 3))
    world.pieces.clear()
    world.read(0, 2 * MIB, 3 * MIB)
    assert world.pieces == [(0, 3 * MIB, 7 * MIB)]


def test_waste_of_what_nobody_wants_any_more_harms_nobody(world: World) -> None:
    world.scan(0, mib(0, 30), waited=True)
    before = world.ahead_bytes(30 * MIB)
    for segment_index, number in ((0, 3), (0, 900), (1, 0)):
        world.read_ahead.on_wasted(BlockKey(world.segments[segment_index].segment_id.id, number))
    world.scan(0, mib(30, 60))
    assert world.ahead_bytes(60 * MIB) >= before - GET_BYTES


def test_no_budget_means_no_read_ahead() -> None:
    for world in (World([segment(0)], stream_bytes_max=0), World([segment(0)], total_bytes_max=0)):
        world.scan(0, mib(0, 50), waited=True)
        assert (world.pieces, len(world.read_ahead)) == ([], 0)


# --- in how large pieces ---


def test_a_gigabyte_takes_at_most_a_hundred_gets() -> None:
    """79 GETs per GB: pieces of 12 MiB and one at each segment's end, once the window has grown."""
    world = World([segment(0, 2 * GIB), segment(1, 2 * GIB)])
    world.scan(0, mib(0, 20), waited=True)
    world.pieces.clear()
    world.scan(0, mib(20, 2048))
    world.scan(1, mib(0, 1000))
    sizes = [end - start for _, start, end in world.pieces]
    per_gb = len(sizes) / (sum(sizes) / 1e9)
    assert sorted(sizes)[1:] == [GET_BYTES] * (len(sizes) - 1)
    assert 75 < per_gb < 81


def test_pieces_are_large_at_every_read_size() -> None:
    for read_bytes in (16_384, 100_000, 1_000_000, 5_000_000):
        world = World([segment(0)])
        world.scan(0, range(0, 20 * read_bytes, read_bytes), waited=True, read_bytes=read_bytes)
        world.pieces.clear()
        world.scan(0, range(20 * read_bytes, 500_000_000, read_bytes), read_bytes=read_bytes)
        sizes = [end - start for _, start, end in world.pieces]
        assert min(sizes) >= GET_BYTES
        assert len(sizes) / (sum(sizes) / 1e9) <= 100


def test_a_small_window_is_filled_by_halves() -> None:
    world = World([segment(0)], stream_bytes_max=START_BYTES)
    world.scan(0, mib(0, 100))
    assert {end - start for _, start, end in world.pieces[1:]} == {3 * MIB}


def test_nothing_is_asked_for_twice(world: World) -> None:
    world.scan(0, mib(0, 1024), waited=True)
    world.scan(1, mib(0, 300), waited=True)
    asked = sorted(world.pieces)
    assert all(before[0] < after[0] or before[2] == after[1] for before, after in pairwise(asked))


@pytest.mark.parametrize(("stream_mib", "expected"), [(64, 280e6), (128, 560e6), (192, 840e6), (288, 1260e6)])
def test_the_window_bounds_what_one_stream_alone_reaches(stream_mib: int, expected: float) -> None:
    """30 ms to first byte, 60 MB/s a connection, GETs of 12 MiB: a window of W bytes yields about W / 0.24 s."""
    world = World([segment(0, 8 * GIB)], stream_bytes_max=stream_mib * MIB)
    arrives_s: dict[int, float] = {}
    ended_s: list[float] = []
    for at in mib(0, 4096):
        ready_s = arrives_s.get(at, world.now_s + 0.03 + MIB / 60e6)
        asked_before = len(world.pieces)
        waited, world.now_s = ready_s > world.now_s, max(world.now_s, ready_s)
        world.read(0, at, at + MIB, waited=waited)
        for _, first, stop in world.pieces[asked_before:]:
            for position in range(first, stop, MIB):
                sent = (position - first) % GET_BYTES + MIB
                arrives_s[position] = world.now_s + 0.03 + sent / 60e6
        ended_s.append(world.now_s)
    rate = (4096 - 1024) * MIB / (ended_s[-1] - ended_s[1023])
    assert rate == pytest.approx(expected, rel=0.14)  # reads come in bursts
    assert ended_s[127] < 0.8, "the ramp"


# --- over the segment's border ---


def test_a_stream_goes_on_into_the_next_segment() -> None:
    world = World([segment(0, 10 * MIB), segment(1, 10 * MIB), segment(2, 200 * MIB)])
    world.scan(0, mib(0, 10), waited=True)
    assert world.ahead_bytes(0, index=1) == 10 * MIB
    assert world.opened == [1, 2]
    world.scan(1, mib(0, 10), waited=True)
    world.scan(2, mib(0, 30), waited=True)
    assert len(world.read_ahead) == 1
    asked = sorted(world.pieces)
    assert sum(end - start for _, start, end in asked) == 8 * MIB + 10 * MIB + world.ahead_bytes(0, index=2)


def test_the_next_segment_is_opened_before_its_blocks_are_wanted(world: World) -> None:
    world.scan(0, mib(0, 1024 - 37))
    assert world.opened == []
    world.scan(0, mib(1024 - 37, 1024 - 25))
    assert world.opened == [1]
    assert world.ahead_bytes(0, index=1) == 0
    world.scan(0, mib(1024 - 25, 1024))
    assert world.opened == [1]
    assert world.ahead_bytes(0, index=1) > 0


def test_a_hole_in_the_offsets_is_stepped_over() -> None:
    world = World([segment(0, 3 * MIB), segment(7, GIB)])
    world.scan(0, mib(0, 3))
    assert world.scan(1, mib(0, 3)) > 0
    assert len(world.read_ahead) == 1


def test_the_start_of_a_segment_that_does_not_follow_is_a_seek() -> None:
    world = World([segment(0, MIB), segment(1, GIB), segment(2, GIB)])
    world.read(0, 0, MIB)
    assert world.read(2, 0, MIB) == 0
    assert world.read(1, 5 * MIB, 6 * MIB) == 0
    assert len(world.read_ahead) == 3
    assert world.read(1, 0, MIB) > 0


def test_a_segment_that_came_after_the_stream_had_reached_the_end_continues_it() -> None:
    world = World([segment(0, 2 * MIB)])
    world.scan(0, mib(0, 2))
    world.segments.append(segment(1))
    assert world.read(1, 0, MIB) > 0


def test_a_next_segment_that_overlaps_is_read_from_its_midst() -> None:
    overlapping = RemoteLogSegmentMetadata(
        RemoteLogSegmentId(PARTITION, uuid_of("overlapping")), OFFSETS // 2, 3 * OFFSETS, 0, 1, 0, GIB, {1: 0}
    )
    world = World([segment(0, 2 * MIB), overlapping])
    world.scan(0, mib(0, 2))
    assert world.read(1, 100 * MIB, 101 * MIB) > 0
    assert len(world.read_ahead) == 1


def test_tiny_segments_are_opened_a_few_at_a_time() -> None:
    world = World([segment(number, 1000) for number in range(100)])
    for number in range(50):
        world.read(number, 0, 1000, waited=True)
        assert max(world.opened, default=0) <= number + SEGMENTS_AHEAD_MAX
    assert world.opened == list(range(2, 50 + SEGMENTS_AHEAD_MAX))
    assert [number for number, _, _ in world.pieces] == world.opened


def test_an_empty_segment_is_passed_over() -> None:
    world = World([segment(0, 2 * MIB), segment(1, 0), segment(2)])
    world.scan(0, mib(0, 2))
    assert world.pieces == [(2, 0, START_BYTES)]


def test_following_that_leads_nowhere_new_ends_the_window() -> None:
    world = World([segment(0, 4 * MIB)])
    wants = []
    for at in mib(0, 4):
        wants += world.read_ahead.on_read(
            "one",
            world.segments[0],
            at,
            at + MIB,
            waited=True,
            following=lambda of: of,
            room_bytes=lambda: GIB,
        )
    assert {want.segment.segment_id for want in wants} == {world.segments[0].segment_id}


# --- blocks and room ---


def test_wants_are_whole_blocks_and_leave_out_the_one_just_read() -> None:
    world = World([segment(0)])
    world.read(0, 100, 1_500_000)
    world.read(0, 1_500_000, 2_500_000)
    (piece,) = world.pieces
    assert piece == (0, 3 * MIB, 7 * MIB)


def test_large_chunks_are_taken_whole() -> None:
    """Chunks of 40 MiB are cut into blocks of 10 MiB that are filled together."""
    world = World([segment(0)], chunk_bytes=40 * MIB)
    world.scan(0, mib(0, 2))
    assert world.pieces == [], "the first chunk was read with its first byte"
    world.scan(0, mib(2, 30), waited=True)
    assert world.pieces[0] == (0, 40 * MIB, 160 * MIB)
    assert all(end % (40 * MIB) == 0 for _, _, end in world.pieces)
    assert world.ahead_bytes(30 * MIB) >= 80 * MIB


def test_no_more_is_asked_for_than_there_is_room(world: World) -> None:
    world.scan(0, mib(0, 2), waited=True)
    world.room_bytes = 20 * MIB + 5
    assert world.scan(0, mib(2, 5), waited=True) <= 3 * (20 * MIB + 5)
    world.room_bytes = 0
    assert world.scan(0, mib(5, 9), waited=True) == 0
    world.room_bytes = MIB  # too little for a GET of its own
    assert world.scan(0, mib(9, 10), waited=True) == 0
    world.room_bytes = -5
    assert world.scan(0, mib(10, 11), waited=True) == 0


def test_what_found_no_room_is_asked_for_when_there_is_some(world: World) -> None:
    world.read(0, 0, MIB)
    (want,) = world.wants(0, MIB, 2 * MIB)
    assert world.read_ahead.take(want, world.grid(want), 2 * MIB + 5) == range(2, 4)
    (want,) = world.wants(0, 2 * MIB, 3 * MIB)
    assert (want.start, want.end) == (4 * MIB, 7 * MIB)
    assert world.read_ahead.take(want, world.grid(want), 0) == range(4, 4)
    (want,) = world.wants(0, 3 * MIB, 4 * MIB)
    assert (want.start, want.end) == (4 * MIB, 8 * MIB)


def test_a_want_that_lost_its_ground_is_not_taken() -> None:
    """The rest of the segment found no room, so what lies behind it is out of turn."""
    world = World([segment(0, 4 * MIB), segment(1)])
    world.read(0, 0, MIB)
    own, beyond = world.wants(0, MIB, 2 * MIB)
    assert (own.start, own.end, beyond.start, beyond.end) == (2 * MIB, 4 * MIB, 0, 2 * MIB)
    assert not world.read_ahead.take(own, world.grid(own), 0)
    for want in (own, beyond):
        assert not world.read_ahead.take(want, world.grid(want), GIB)
    assert world.read(0, 2 * MIB, 3 * MIB) > 0


def test_a_want_that_the_reader_has_passed_is_taken_from_where_it_is(world: World) -> None:
    world.read(0, 0, MIB)
    (want,) = world.wants(0, MIB, 2 * MIB)
    world.wants(0, 2 * MIB, 4 * MIB)
    assert world.read_ahead.take(want, world.grid(want), GIB) == range(4, 6)
    world.wants(0, 4 * MIB, 8 * MIB)
    assert not world.read_ahead.take(want, world.grid(want), GIB)


def test_the_wants_of_a_reader_that_left_are_not_taken(world: World) -> None:
    world.read(0, 0, MIB)
    (want,) = world.wants(0, MIB, 2 * MIB)
    world.read_ahead.forget_reader("one")
    assert not world.read_ahead.take(want, world.grid(want), GIB)


# --- limits and forgetting ---


def test_an_idle_stream_is_forgotten(world: World) -> None:
    world.scan(0, mib(0, 3))
    world.now_s += IDLE_S - 1
    world.read(1, 0, MIB, reader="two")
    assert (len(world.read_ahead), world.streams()) == (2, 1)
    world.now_s += 1
    world.read_ahead.drop_idle()
    assert (len(world.read_ahead), world.streams()) == (1, 0)
    assert world.read(0, 3 * MIB, 4 * MIB) == 0


def test_a_reader_has_at_most_sixteen_streams_in_a_partition(world: World) -> None:
    for number in range(STREAMS_PER_PARTITION_MAX):
        world.read(0, number * 10 * MIB, (number * 10 + 1) * MIB)
    world.read(0, MIB, 2 * MIB)
    world.read(0, 500 * MIB, 501 * MIB)
    assert len(world.read_ahead) == STREAMS_PER_PARTITION_MAX
    assert world.read(0, 11 * MIB, 12 * MIB) == 0, "the least recently read went"
    assert world.read(0, 2 * MIB, 3 * MIB) == 0, "its window is still full"
    assert world.scan(0, mib(3, 6)) > 0, "the one read last but one stayed"


def test_streams_in_all_are_limited() -> None:
    world = World([segment(0)], streams_max=100)
    for reader in range(300):
        world.scan(0, mib(0, 2), reader=str(reader))
    assert (len(world.read_ahead), world.streams()) == (100, 100)
    assert world.read(0, 2 * MIB, 3 * MIB, reader="0") == 0


def test_a_reader_that_left_is_forgotten(world: World) -> None:
    world.scan(0, mib(0, 3), reader="one")
    world.scan(0, mib(0, 3), reader="two")
    world.scan(1, mib(0, 3), reader="one")
    world.read_ahead.forget_reader("one")
    world.read_ahead.forget_reader("stranger")
    assert (len(world.read_ahead), world.streams()) == (1, 1)
    assert world.scan(0, mib(3, 6), reader="two") > 0


def test_a_deleted_segment_ends_the_streams_in_it() -> None:
    world = World([segment(0, 8 * MIB), segment(1, 8 * MIB), segment(2)])
    world.scan(0, mib(0, 7), waited=True, reader="one")
    world.scan(1, mib(0, 3), waited=True, reader="two")
    deleted = world.segments.pop(1)
    world.read_ahead.forget_segment(deleted.segment_id.id)
    assert len(world.read_ahead) == 1
    world.opened.clear()
    world.pieces.clear()
    world.read(0, 7 * MIB, 8 * MIB, waited=True)
    assert world.opened == [1]
    assert {number for number, _, _ in world.pieces} == {1}
