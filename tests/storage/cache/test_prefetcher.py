"""Streams become opened segments, fetched indexes and GETs, when there is a slot; nothing of it reaches the reader."""

from collections.abc import Iterable
from dataclasses import replace

import pytest
import structlog.testing
import trio
from trio.testing import wait_all_tasks_blocked

from metrics.cache_meters import ReadAheadMeter
from storage.cache.block_cache import BlockCache
from storage.cache.blocks import MemoryBlocks
from storage.cache.pace import Pace
from storage.cache.read_ahead import Prefetcher, Read, ReadAhead
from storage.errors import RemoteResourceNotFoundError
from storage.model import RemoteLogSegmentMetadata
from storage.remote_storage_manager import OpenedSegment
from tests.support.scripted_gets import Gate, GetWorld, Script, ScriptedSegment, until

KIB = 1024
BLOCKS = 64
START_BYTES = 4 * KIB


def segment(number: int) -> ScriptedSegment:
    """Return a segment of 64 blocks of 1 KiB, stored as they are; each begins where the one before it ends."""
    made = ScriptedSegment(BLOCKS, name=f"segment {number}", block_bytes=KIB, stored_per_byte=1)
    made.metadata = replace(made.metadata, start_offset=100 * number, end_offset=100 * number + 99)
    return made


class World:
    """A prefetcher over real read-ahead, cache and GETs; the store is scripted.

    `opens`, `fetches`: segments that were opened and whose indexes were fetched, in the order of the calls.
    `open_gates` hold an opening until they are set; `open_errors` end it.
    """

    def __init__(
        self,
        nursery: trio.Nursery,
        segments: list[ScriptedSegment],
        *,
        stream_bytes_max: int = 16 * KIB,
        total_bytes_max: int = 64 * KIB,
        gets_max: int = 8,
    ) -> None:
        self.segments = segments
        self.opens: list[int] = []
        self.fetches: list[int] = []
        self.open_gates: dict[int, trio.Event] = {}
        self.open_errors: dict[int, Exception] = {}
        sending = GetWorld(nursery, gets_max=gets_max, budget_bytes=1024 * KIB, pace=Pace(gets_max))
        self.gets = sending.gets
        meter, read_ahead_meter = sending.cache_meter, ReadAheadMeter(sending.registry)
        self.read_ahead = ReadAhead(
            stream_bytes_max, total_bytes_max, meter=read_ahead_meter, clock=trio.current_time, start_bytes=START_BYTES
        )
        self.memory = MemoryBlocks(
            1024 * KIB,
            unread_bytes_max=total_bytes_max,
            meter=meter,
            read_ahead_meter=read_ahead_meter,
            on_wasted=self.read_ahead.on_wasted,
        )
        self.cache = BlockCache(memory=self.memory, gets=self.gets, disk=None, block_bytes=KIB, meter=meter)
        self.prefetcher = Prefetcher(
            nursery,
            self.read_ahead,
            cache=self.cache,
            gets=self.gets,
            open_segment=self.open_segment,
            fetch_index=lambda of: self.fetches.append(self.index(of)),
        )

    def index(self, of: RemoteLogSegmentMetadata) -> int:
        return next(index for index, each in enumerate(self.segments) if each.metadata == of)

    async def open_segment(self, opened: RemoteLogSegmentMetadata) -> OpenedSegment:
        number = self.index(opened)
        self.opens.append(number)
        if number in self.open_gates:
            await self.open_gates[number].wait()
        if number in self.open_errors:
            raise self.open_errors[number]
        return self.segments[number]

    def following(self, of: RemoteLogSegmentMetadata) -> RemoteLogSegmentMetadata | None:
        found = (each.metadata for each in self.segments if each.metadata.start_offset > of.end_offset)
        return next(found, None)

    def on_read(self, index: int, at: int, *, reader: str = "one", waited: bool = False, is_cut: bool = True) -> None:
        """A read of one block was answered; it is in memory, and what is wanted now is not asked for yet."""
        source = self.segments[index].source
        self.memory.get(source.key(at), reader)
        self.prefetcher.on_read(Read(reader, source, at * KIB, (at + 1) * KIB, waited, is_cut, self.following))

    async def scan(self, index: int, reads: Iterable[int], *, reader: str = "one", is_cut: bool = True) -> None:
        """Reads of one block each; all GETs end in between."""
        for at in reads:
            self.on_read(index, at, reader=reader, is_cut=is_cut)
            await self.settled()

    async def settled(self) -> None:
        await trio.lowlevel.checkpoint()
        await trio.lowlevel.checkpoint()
        await until(lambda: not len(self.gets))
        await wait_all_tasks_blocked()

    def asked(self, index: int) -> list[int]:
        """Numbers of the blocks that GETs of this segment asked for; threads begin in any order."""
        return sorted(number for get in self.segments[index].gets for number in get.numbers)


@pytest.fixture
def world(nursery: trio.Nursery) -> World:
    return World(nursery, [segment(number) for number in range(3)])


# --- GETs ---


async def test_a_read_that_its_size_cut_has_the_blocks_behind_it_fetched_and_a_seek_none(world: World) -> None:
    await world.scan(0, [5, 3, 60, 20], is_cut=False)
    assert (world.opens, world.fetches, world.asked(0)) == ([], [], [])
    await world.scan(0, [0])
    assert world.asked(0) == [1, 2, 3, 4]
    assert world.memory.unread_bytes == START_BYTES


async def test_each_block_is_fetched_once_by_a_reader_and_the_gets_are_not_small(world: World) -> None:
    await world.scan(0, range(BLOCKS))
    await world.scan(1, range(BLOCKS))
    assert world.asked(0) == list(range(1, BLOCKS))
    assert world.asked(1) == list(range(BLOCKS))
    assert len(world.segments[1].gets) <= BLOCKS // 4


async def test_streams_that_are_read_in_one_turn_are_asked_for_in_turn(nursery: trio.Nursery) -> None:
    """Each has its first GET before any has a second one: otherwise one waits for the other's far future."""
    world = World(nursery, [segment(number) for number in range(3)], gets_max=3)
    gates = [Gate() for _ in range(3)]
    for each, gate in zip(world.segments, gates, strict=True):
        each.script(Script(begins=gate))
    for number in range(3):
        world.on_read(number, 0, reader=str(number))
    for gate in gates:
        await gate.reached()
    await wait_all_tasks_blocked()
    assert [world.asked(number) for number in range(3)] == [[1, 2]] * 3
    for gate in gates:
        gate.release()
    await world.settled()
    assert [world.asked(number) for number in range(3)] == [[1, 2, 3, 4]] * 3


async def test_no_get_is_sent_without_a_slot_and_the_next_one_when_there_is_one(nursery: trio.Nursery) -> None:
    world = World(nursery, [segment(0)], gets_max=1)
    gate = Gate()
    world.segments[0].script(Script(begins=gate))
    world.on_read(0, 0)
    await gate.reached()
    await wait_all_tasks_blocked()
    assert world.asked(0) == [1, 2]
    gate.release()
    await world.settled()
    assert world.asked(0) == [1, 2, 3, 4]


# --- room ---


async def test_what_is_unread_and_under_way_stays_inside_the_budget(nursery: trio.Nursery) -> None:
    world = World(nursery, [segment(0)], total_bytes_max=10 * KIB)
    for reader in range(8):
        await world.scan(0, [reader * 8, reader * 8 + 1], reader=str(reader))
        assert world.memory.unread_bytes + world.gets.read_ahead_bytes <= 10 * KIB
    assert world.memory.unread_bytes > 0


async def test_what_readers_left_behind_takes_no_room_from_others(nursery: trio.Nursery) -> None:
    """Failed before: once readers that had gone left as much as may be unread, nobody was read ahead for any more."""
    world = World(nursery, [segment(0), segment(1)], total_bytes_max=8 * KIB, stream_bytes_max=8 * KIB)
    await world.scan(0, range(8))
    assert world.memory.unread_bytes >= 6 * KIB
    assert world.prefetcher.room_bytes < 2 * KIB
    world.prefetcher.forget_reader("one")
    assert world.prefetcher.room_bytes == 8 * KIB
    await world.scan(1, range(16), reader="two")
    assert world.asked(1) == list(range(1, max(world.asked(1)) + 1))
    assert max(world.asked(1)) >= 18
    assert world.memory.unread_bytes <= 8 * KIB


async def test_a_stream_that_finds_no_room_goes_on_when_its_reader_does(nursery: trio.Nursery) -> None:
    world = World(nursery, [segment(0), segment(1)], total_bytes_max=8 * KIB, stream_bytes_max=8 * KIB)
    await world.scan(0, range(8), reader="one")
    await world.scan(1, [0], reader="two")
    assert world.asked(1) == []
    await world.scan(0, range(8, 12), reader="one")
    assert world.asked(1) != []


# --- reach and guess ---


async def test_a_get_that_somebody_waits_for_reaches_as_far_as_its_streams_next(world: World) -> None:
    source = world.segments[0].source
    reach_bytes = world.prefetcher.reach_bytes
    assert [reach_bytes("one", source, KIB, likely_bytes) for likely_bytes in (0, KIB)] == [0, KIB]
    await world.scan(0, range(3))
    assert reach_bytes("one", source, 3 * KIB, KIB) == 2 * KIB, "half of its window"
    assert reach_bytes("one", source, 3 * KIB, 2**40) == world.prefetcher.room_bytes
    assert reach_bytes("two", source, 3 * KIB, 0) == 0


async def test_a_guess_begins_one_block_before_the_estimate(nursery: trio.Nursery) -> None:
    for position, first in ((0, 0), (500, 0), (30 * KIB + 5, 29), (63 * KIB, 62)):
        world = World(nursery, [segment(number) for number in range(3)])
        world.read_ahead.on_read(Read("far", world.segments[1].source, 0, KIB, False, False, world.following))
        for _ in range(2):  # what is here is not fetched again
            world.prefetcher.guess(world.segments[0].source, position)
            await world.settled()
            assert world.asked(0) == list(range(first, BLOCKS)), position


# --- opening ---


async def test_the_next_segment_is_opened_and_its_index_fetched_before_the_border(world: World) -> None:
    await world.scan(0, [0])
    assert sorted(world.opens) == sorted(world.fetches) == [1, 2], "they begin within the window and two large GETs"
    assert world.asked(1) == []
    await world.scan(0, range(1, BLOCKS))
    assert world.asked(1) != []
    assert sorted(world.opens) == sorted(world.fetches) == [1, 2]


async def test_a_segment_is_opened_by_one_task_while_reads_go_on(world: World) -> None:
    world.open_gates[1] = trio.Event()
    for reader in ("one", "two", "three"):
        await world.scan(0, range(45, BLOCKS), reader=reader)
    assert (world.opens.count(1), world.asked(1), world.asked(0)[-1]) == (1, [], BLOCKS - 1)
    world.open_gates[1].set()
    await world.settled()
    assert (world.opens.count(1), world.fetches.count(1)) == (1, 1)
    asked = world.asked(1)
    assert asked == sorted(set(asked))
    assert asked


async def test_a_segment_that_cannot_be_opened_is_met_by_its_reader(nursery: trio.Nursery) -> None:
    for error, level in ((RemoteResourceNotFoundError("gone"), "debug"), (ValueError("a bug"), "warning")):
        world = World(nursery, [segment(number) for number in range(3)])
        world.open_errors[1] = error
        with structlog.testing.capture_logs() as logs:
            await world.scan(0, range(BLOCKS))
        assert [(entry["event"], entry["log_level"]) for entry in logs] == [("segment_not_read_ahead", level)]
        assert (world.opens.count(1), world.fetches.count(1), world.asked(1)) == (1, 0, [])
        await world.scan(1, range(4))
        assert world.asked(1) != [], "its reader opened it"


async def test_what_was_opened_for_nobody_has_no_index_fetched(world: World) -> None:
    """Its segment was deleted, or its reader has gone. Failed before."""
    world.open_gates[1] = trio.Event()
    await world.scan(0, [0])
    world.read_ahead.forget_segment(world.segments[1].metadata.segment_id.id)
    world.open_gates[1].set()
    await world.settled()
    assert 1 not in world.fetches


# --- what must not reach anybody ---


async def test_a_bug_elsewhere_does_not_reach_the_reader(world: World) -> None:
    def lost(_of: RemoteLogSegmentMetadata) -> RemoteLogSegmentMetadata | None:
        raise KeyError("lost")

    source = world.segments[0].source
    with structlog.testing.capture_logs() as logs:
        for at in range(60, BLOCKS):
            world.prefetcher.on_read(Read("one", source, at * KIB, (at + 1) * KIB, True, True, lost))
    assert {entry["event"] for entry in logs} == {"read_ahead_failed"}
    await world.scan(1, [0], reader="two")
    assert world.asked(1) == [1, 2, 3, 4]


async def test_after_shutdown_nothing_is_started_and_nothing_raised() -> None:
    """Failed before: a GET that was to start once the nursery had closed ended the process, not the read-ahead."""
    async with trio.open_nursery() as application:
        world = World(application, [segment(0)])
        world.on_read(0, 0)
        application.cancel_scope.cancel()
    with structlog.testing.capture_logs() as logs:
        world.on_read(0, 0, reader="another")
        await wait_all_tasks_blocked()
    assert {entry["event"] for entry in logs} == {"read_ahead_failed"}
    assert (world.asked(0), len(world.gets), world.gets.read_ahead_bytes) == ([], 0, 0)
