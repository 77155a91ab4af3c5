"""Blocks from the store: what is fetched once, what goes first, what is held, and how it ends."""

import random
import tracemalloc
from contextlib import suppress
from pathlib import Path

import pytest
import trio
import trio.testing

from storage.cache.blocks import BlockGrid, BlockKey, SegmentBlocks
from storage.cache.pace import GETS_START
from storage.errors import CorruptObjectError, RemoteAccessDeniedError, ThrottledError
from storage.log.block import Block
from storage.object_store.retries import CORRUPT_ATTEMPTS_MAX
from tests.storage.formats.aiven.test_opened_segment import write_log
from tests.support.scripted_gets import BLOCK_BYTES, MIB, Gate, GetWorld, Script, ScriptedSegment, expected, until

SMALL_OBJECTS_BYTES = 192 * 1024
"""Threads, ciphers and what else is no buffer: some 150 KiB where a whole run has gone before. Less than the chunk of
256 KiB that a reservation would leave out."""

MEASUREMENTS = 3
"""A thread that an earlier test left behind may allocate beside one of them; what a GET holds it holds in each."""

ONE_BLOCK_BYTES = 2 * MIB + BLOCK_BYTES
"""What a GET of one block holds: the block, and the chunk as it is stored and decrypted."""


@pytest.fixture
def segment() -> ScriptedSegment:
    return ScriptedSegment()


@pytest.fixture
def world(nursery: trio.Nursery) -> GetWorld:
    return GetWorld(nursery)


async def test_a_run_of_blocks_comes_by_one_get(world: GetWorld, segment: ScriptedSegment) -> None:
    for number, flight in enumerate(world.want(segment, range(5))):
        assert bytes((await flight.wait()).data) == segment.block(number)
        assert number in world.numbers(), "a block lands before those who wait wake"
    assert segment.ranges() == [(0, 4)]
    assert [landing.key for landing in world.landed] == [segment.key(number) for number in range(5)]
    assert len(world.gets) == 0
    await until(lambda: world.sample("gets_total", object="log", outcome="ok") == 1)
    assert (world.budget.held, world.gets.slots) == (0, (0, 8, 0))
    assert world.sample("get_bytes_total") == 5 * MIB
    assert (world.sample("cache_fills_total"), world.sample("cache_fill_bytes_total")) == (5, 5 * BLOCK_BYTES)


async def test_blocks_that_are_read_over_neither_land_nor_hold_room(world: GetWorld, segment: ScriptedSegment) -> None:
    stall = Gate()
    segment.script(Script(holds={3: stall}))
    world.gets.fetch(segment.source, range(6), [0, 5])
    await stall.reached()
    await until(lambda: world.budget.held == 3 * BLOCK_BYTES + 2 * MIB)
    # Block 0 has come. Block 4 is read over, and by now somebody wants it: it was here and is evicted.
    assert [world.gets.want_if_under_way(segment.key(number)) for number in (0, 4, 5, 6)] == [False, True, True, False]
    flights = [world.gets.wait_for(segment.key(number)) for number in (4, 5)]
    stall.release()
    assert [bytes((await flight.wait()).data) for flight in flights] == expected(segment, (4, 5))
    await until(lambda: world.budget.held == 0)
    assert world.numbers() == [0, 4, 5]
    assert [world.gets.want_if_under_way(segment.key(number)) for number in range(6)] == [False] * 6


async def test_blocks_behind_the_last_one_wanted_are_not_waited_for(world: GetWorld, segment: ScriptedSegment) -> None:
    """A unit's end may be here already."""
    stall = Gate()
    segment.script(Script(holds={2: stall}))
    world.gets.fetch(segment.source, range(4), [0, 1])
    await world.gets.wait_for(segment.key(1)).wait()
    assert (len(world.gets), world.budget.held, world.gets.slots.busy) == (0, 0, 0)
    stall.release()
    await until(lambda: world.sample("gets_total", outcome="cancelled") == 1)
    assert segment.gets[0].read_bytes < 4 * BLOCK_BYTES  # the third may have come when it heard of it
    assert world.numbers() == [0, 1]


async def test_what_nobody_asked_for_lands_as_such_unless_somebody_did_meanwhile(world: GetWorld) -> None:
    segment, gate = ScriptedSegment(10, unit_blocks=4), Gate()
    segment.script(Script(begins=gate))
    assert world.ahead(segment, range(4, 8))
    assert world.gets.read_ahead_bytes == 4 * BLOCK_BYTES
    await gate.reached()
    world.gets.wait_for(segment.key(5))
    world.want(segment, range(6, 7))
    assert world.gets.read_ahead_bytes == 2 * BLOCK_BYTES
    gate.release()
    await world.landed_at_least(4)
    assert [landing.demanded for landing in world.landed] == [False, True, True, False]
    assert (world.numbers(), world.gets.read_ahead_bytes, world.budget.held) == ([4, 5, 6, 7], 0, 0)


# --- what nobody was told of ---


async def test_blocks_that_nobody_waits_for_are_told_of_together_or_collected(world: GetWorld) -> None:
    told, collected = ScriptedSegment(name="told"), ScriptedSegment(name="collected")
    for segment in (told, collected):
        stall = Gate()
        segment.script(Script(holds={3: stall}))
        assert world.ahead(segment, range(4))
        await stall.reached()
        await trio.testing.wait_all_tasks_blocked()
        assert world.numbers() == []
        if segment is collected:
            for number in (60, 3, 2):
                world.gets.collect(segment.key(number))
            assert world.numbers() == [0, 1, 2]
            assert world.gets.want_if_under_way(segment.key(3))
        assert not any(landing.demanded for landing in world.landed)
        stall.release()
        await world.landed_at_least(4)
        assert world.numbers() == [0, 1, 2, 3]
        world.landed.clear()


async def test_who_waits_for_a_block_that_has_come_gets_it_at_once(world: GetWorld, segment: ScriptedSegment) -> None:
    """The thread appends a block and looks whether anybody waits; between the two somebody may begin to."""
    stall = Gate()
    segment.script(Script(holds={1: stall}))
    assert world.ahead(segment, range(4))
    await stall.reached()
    flight = world.gets.wait_for(segment.key(0))
    await until(lambda: world.numbers() == [0])
    await flight.wait()
    stall.release()
    await world.landed_at_least(4)


# --- slots ---


async def test_as_many_gets_of_read_ahead_as_fill_the_link(nursery: trio.Nursery) -> None:
    world, gate = GetWorld(nursery, gets_max=32), Gate()
    segments = [ScriptedSegment(name=str(number)) for number in range(GETS_START + 1)]
    for segment in segments:
        segment.script(Script(begins=gate))
    for segment in segments[:GETS_START]:
        assert world.may_read_ahead()
        assert world.ahead(segment, range(1))
    assert not world.may_read_ahead()
    world.gets.wait_for(segments[0].key(0))
    assert world.may_read_ahead(), "one of them is read-ahead no more"
    gate.release()
    await world.landed_at_least(GETS_START)


async def throttled_once(world: GetWorld) -> None:
    with suppress(ThrottledError):
        async with world.throttle.admitted():
            raise ThrottledError("503")
    assert world.throttle.gets_max == 1


async def test_what_somebody_waits_for_goes_first_while_the_store_throttles(nursery: trio.Nursery) -> None:
    world, first = GetWorld(nursery), Gate()
    await throttled_once(world)
    ahead, asked = ScriptedSegment(1, name="ahead"), ScriptedSegment(1, name="asked")
    ahead.script(Script(begins=first))
    assert world.ahead(ahead, range(1))
    await first.reached()
    assert not world.may_read_ahead()
    flight = world.want(asked, range(1))[0]
    assert world.gets.slots == (1, 8, 1)
    first.release()
    await flight.wait()
    assert world.numbers() == [0, 0]


async def test_the_line_moves_on_when_the_store_throttles_less(nursery: trio.Nursery) -> None:
    """The limit rose behind the schedule's back: GETs stood in line until the next one ended."""
    world, gate = GetWorld(nursery), Gate()
    await throttled_once(world)
    segments = [ScriptedSegment(1, name=str(number)) for number in range(3)]
    for segment in segments[1:]:
        segment.script(Script(begins=gate))
    for segment in segments:
        world.want(segment, range(1))
    assert world.gets.slots == (1, 8, 2)
    await until(lambda: world.gets.slots == (2, 8, 0))
    await segments[2].asked(1)
    gate.release()
    await world.landed_at_least(3)


# --- bytes ---


@pytest.mark.parametrize("mode", ["zstd", "encrypted", "zstd and encrypted"])
async def test_decoding_holds_no_more_than_was_reserved(nursery: trio.Nursery, tmp_path: Path, mode: str) -> None:
    """Chunks that are compressed and encrypted are held three times: as stored, decrypted, and as plaintext. One of
    them was not counted; nor was the plaintext where a block is not just one chunk."""
    chunk_bytes = 256 * 1024
    # The second chunk is the one that takes most room in the store.
    log = bytes(chunk_bytes) + random.Random(3).randbytes(3 * chunk_bytes)
    opened = write_log(tmp_path, mode, log, chunk_bytes).segment
    opened.open_stream(0, 1).close()  # what is imported and made once
    for block_bytes in (chunk_bytes, 4 * chunk_bytes, chunk_bytes // 4):
        grid = BlockGrid(block_bytes, len(log), unit_blocks=max(1, chunk_bytes // block_bytes))
        source = SegmentBlocks(ScriptedSegment().metadata, opened, grid)
        beyond = [await held_beyond_reservation(nursery, source) for _ in range(MEASUREMENTS)]
        assert min(beyond) <= SMALL_OBJECTS_BYTES, block_bytes


async def held_beyond_reservation(nursery: trio.Nursery, source: SegmentBlocks) -> int:
    """Return how much more was allocated at once than was reserved."""
    world = GetWorld(nursery, land=lambda *_: None)  # nobody else holds what has landed
    numbers = range(source.grid.count)
    tracemalloc.start()
    try:
        world.gets.fetch(source, numbers, numbers)
        for flight in [world.gets.wait_for(source.key(number)) for number in numbers]:
            await flight.wait()
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    return peak_bytes - world.held_bytes_max


async def test_a_get_holds_its_plaintext_and_a_chunk_until_they_land(world: GetWorld, segment: ScriptedSegment) -> None:
    # What the store has as it is needs no chunk beside it.
    for fetched, chunk_bytes in ((segment, 2 * MIB), (ScriptedSegment(name="plain", stored_per_byte=1), 0)):
        begins, stall = Gate(), Gate()
        fetched.script(Script(begins=begins, holds={3: stall}))
        world.want(fetched, range(10))
        await begins.reached()
        assert world.budget.held == 10 * BLOCK_BYTES + chunk_bytes
        begins.release()
        await world.landed_at_least(3)
        assert world.budget.held == 7 * BLOCK_BYTES + chunk_bytes
        stall.release()
        await world.landed_at_least(10)
        assert world.budget.held == 0
        world.landed.clear()


async def test_read_ahead_holds_at_most_half_and_takes_no_place_in_the_line(nursery: trio.Nursery) -> None:
    world, gate = GetWorld(nursery, budget_bytes=8 * MIB + 200), Gate()
    ahead = [ScriptedSegment(name=f"ahead {number}") for number in range(3)]
    for segment in ahead:
        segment.script(Script(begins=gate))
    assert [world.ahead(segment, range(1)) for segment in ahead] == [True, True, False]
    await ahead[1].asked(1)
    assert world.budget.held == 2 * ONE_BLOCK_BYTES
    assert not world.gets.want_if_under_way(ahead[2].key(0))
    assert await world.fetch(ScriptedSegment(name="asked"), range(1)) == expected(ahead[0], [0])
    world.gets.wait_for(ahead[0].key(0))
    assert world.ahead(ahead[2], range(1)), "what somebody waits for is read-ahead no more"
    gate.release()
    await world.landed_at_least(4)
    assert world.budget.held == 0


async def test_read_ahead_takes_no_room_that_somebody_waits_for(nursery: trio.Nursery) -> None:
    world, asked = GetWorld(nursery, budget_bytes=10 * MIB), ScriptedSegment(name="asked")
    assert world.budget.try_acquire(5 * MIB)
    flight = world.want(asked, range(4, 5))[0]
    await flight.wait()
    assert world.budget.try_acquire(4 * MIB)
    flight = world.want(asked, range(1))[0]
    await trio.testing.wait_all_tasks_blocked()
    assert not world.ahead(ScriptedSegment(name="ahead", stored_per_byte=1), range(1)), "it would fit"
    world.budget.release(9 * MIB)
    await flight.wait()


async def test_read_ahead_is_told_when_others_give_room_back(nursery: trio.Nursery, segment: ScriptedSegment) -> None:
    world, told = GetWorld(nursery, budget_bytes=4 * MIB), list[bool]()
    assert world.budget.try_acquire(4 * MIB)
    assert not world.ahead(segment, range(1))
    world.gets.on_room = lambda: told.append(world.ahead(segment, range(1))) if not told else None
    world.budget.release(4 * MIB)
    assert told == [True]
    await world.landed_at_least(1)


# --- ends ---


async def test_a_stream_that_gives_too_little_is_corrupt(world: GetWorld, segment: ScriptedSegment) -> None:
    segment.script(*[Script(short=True)] * CORRUPT_ATTEMPTS_MAX)
    with pytest.raises(CorruptObjectError, match="block 0 has 15 bytes, 16 wanted"):
        await world.fetch(segment, range(2))
    assert (segment.open_gets, world.numbers()) == ([], [])


async def test_a_block_that_cannot_be_kept_is_a_failure(nursery: trio.Nursery, segment: ScriptedSegment) -> None:
    def refuse(key: BlockKey, _block: Block, _demanded: bool) -> None:
        if key.number == 1:
            raise MemoryError("no room")

    flights = GetWorld(nursery, land=refuse).want(segment, range(3))
    with pytest.raises(MemoryError):
        await flights[1].wait()
    await flights[0].wait()
    await flights[2].wait()


async def test_a_failure_reaches_those_whose_blocks_did_not_come(world: GetWorld, segment: ScriptedSegment) -> None:
    denied, stall = RemoteAccessDeniedError("403"), Gate()
    segment.script(Script(holds={2: stall}, fails={2: denied}))
    flights = world.want(segment, range(4))
    other = ScriptedSegment(name="other")
    assert await world.fetch(other, range(4)) == expected(other, range(4))
    stall.release()
    for number, flight in enumerate(flights):
        if number < 2:
            assert bytes((await flight.wait()).data) == segment.block(number)
        else:
            with pytest.raises(RemoteAccessDeniedError):
                await flight.wait()
    assert world.sample("cache_fill_failures_total") == 2
    assert (len(world.gets), world.budget.held, world.gets.slots.busy) == (0, 0, 0)


async def test_a_forgotten_segment_lands_no_more_and_still_answers(nursery: trio.Nursery) -> None:
    world, stall = GetWorld(nursery, gets_max=1), Gate()
    deleted, other = ScriptedSegment(name="deleted"), ScriptedSegment(name="other")
    deleted.script(Script(holds={1: stall}))
    flights = world.want(deleted, range(2)) + world.want(deleted, range(5, 6))
    others = world.want(other, range(1))
    await stall.reached()
    await flights[0].wait()
    world.gets.forget_segment(deleted.metadata.segment_id.id)
    flights += world.want(deleted, range(7, 8))  # by a reader that has begun
    stall.release()
    for flight, number in zip(flights, (0, 1, 5, 7), strict=True):
        assert bytes((await flight.wait()).data) == deleted.block(number)
    await others[0].wait()
    assert [landing.key for landing in world.landed] == [deleted.key(0), other.key(0)]
    assert world.budget.held == 0
