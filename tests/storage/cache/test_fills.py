"""Blocks from the store: what is fetched once, what goes first, what is held."""

import random
import tracemalloc
from contextlib import suppress
from pathlib import Path

import pytest
import trio
import trio.testing

from storage.cache.block_grid import BlockGrid
from storage.cache.memory import Block, BlockKey
from storage.errors import RemoteAccessDeniedError, ThrottledError
from tests.storage.formats.aiven.test_opened_segment import write_log
from tests.support.scripted_gets import BLOCK_BYTES, MIB, FillWorld, Gate, Script, ScriptedSegment, expected, until

SMALL_OBJECTS_BYTES = 192 * 1024
"""Threads, ciphers and what else is no buffer: some 150 KiB where a whole run has gone before. Less than the chunk of
256 KiB that a reservation would leave out."""


@pytest.fixture
def segment() -> ScriptedSegment:
    return ScriptedSegment()


@pytest.fixture
def world(nursery: trio.Nursery) -> FillWorld:
    return FillWorld(nursery)


async def test_adjacent_blocks_come_by_one_get(world: FillWorld, segment: ScriptedSegment) -> None:
    numbers = [0, 1, 2, 7, 8]
    assert await world.fetch(segment, numbers) == expected(segment, numbers)
    assert sorted(segment.ranges()) == [(0, 2), (7, 8)]
    assert {landing.key for landing in world.landed} == {segment.key(number) for number in numbers}
    assert len(world.fills) == 0
    await until(lambda: world.budget.held == 0)
    assert world.sample("gets_total", object="log") == 2
    assert world.sample("get_bytes_total") == 5 * MIB
    assert (world.sample("cache_fills_total"), world.sample("cache_fill_bytes_total")) == (5, 5 * BLOCK_BYTES)


async def test_a_block_is_there_before_its_get_has_ended(world: FillWorld, segment: ScriptedSegment) -> None:
    stall = Gate()
    segment.script(Script(holds={5: stall}))
    flights = world.want(segment, range(10))
    for number in range(5):
        assert bytes((await flights[number].wait()).data) == segment.block(number)
    assert [world.fills.is_under_way(segment.key(number)) for number in (4, 5, 9, 10)] == [False, True, True, False]
    assert len(world.fills) == 5
    stall.open()
    await flights[9].wait()


async def test_a_block_lands_before_those_who_wait_wake(world: FillWorld, segment: ScriptedSegment) -> None:
    for number, flight in enumerate(world.want(segment, range(10))):
        await flight.wait()
        assert number in world.numbers()


async def test_a_block_under_way_is_not_fetched_again(world: FillWorld, segment: ScriptedSegment) -> None:
    gate = Gate()
    segment.script(Script(begins=gate))
    first = world.want(segment, range(4, 8))
    second = world.want(segment, range(2, 10))
    assert second[2:6] == first
    gate.open()
    for flight in second:
        await flight.wait()
    assert sorted(segment.ranges()) == [(2, 3), (4, 7), (8, 9)]
    assert sorted(world.numbers()) == list(range(2, 10))


async def test_who_leaves_cancels_nothing(world: FillWorld, segment: ScriptedSegment) -> None:
    gate = Gate()
    segment.script(Script(begins=gate))
    with trio.CancelScope() as scope:
        flight = world.want(segment, [0])[0]
        scope.cancel()
        await flight.wait()
    gate.open()
    await flight.wait()
    assert world.numbers() == [0]


async def test_blocks_that_are_decoded_together_land_together(world: FillWorld) -> None:
    segment = ScriptedSegment(10, unit_blocks=4)
    assert await world.fetch(segment, [5]) == [segment.block(5)]
    await world.landed_at_least(4)
    assert [(landing.key.number, landing.demanded) for landing in world.landed] == [
        (4, False),
        (5, True),
        (6, False),
        (7, False),
    ]


async def test_what_somebody_asked_for_meanwhile_lands_as_demanded(world: FillWorld, segment: ScriptedSegment) -> None:
    gate = Gate()
    segment.script(Script(begins=gate))
    world.want(segment, range(4), demanded=False)
    assert world.fills.read_ahead_bytes == 4 * BLOCK_BYTES
    await gate.reached()
    world.want(segment, [2])
    assert world.fills.read_ahead_bytes == 3 * BLOCK_BYTES
    gate.open()
    await world.landed_at_least(4)
    assert [landing.demanded for landing in world.landed] == [False, False, True, False]
    assert world.fills.read_ahead_bytes == 0


# --- slots ---


async def test_what_is_demanded_overtakes_read_ahead(nursery: trio.Nursery) -> None:
    world, gate = FillWorld(nursery, gets_max=2), Gate()
    busy, ahead, soon, asked = (ScriptedSegment(name=name) for name in ("busy", "ahead", "soon", "asked"))
    busy.script(Script(begins=gate))
    world.want(busy, [0])
    await gate.reached()
    world.want(ahead, [0], demanded=False)
    world.want(soon, [0], demanded=False)
    await trio.testing.wait_all_tasks_blocked()
    assert world.sample("gets_queued") == 2
    assert ahead.gets == [], "the second slot is kept free"
    await world.fetch(soon, [0])
    await world.fetch(asked, [0])
    assert ahead.gets == []
    gate.open()
    await ahead.asked(1)
    await world.landed_at_least(4)
    assert [landing.demanded for landing in world.landed].count(False) == 1


async def test_no_more_gets_run_at_once_than_may(nursery: trio.Nursery) -> None:
    world, gate = FillWorld(nursery, gets_max=3), Gate()
    segments = [ScriptedSegment(name=str(number)) for number in range(6)]
    for segment in segments:
        segment.script(Script(begins=gate))
        world.want(segment, [0])
    await gate.reached()
    await trio.testing.wait_all_tasks_blocked()
    assert (world.sample("gets_in_flight"), world.sample("gets_queued")) == (3, 3)
    await until(lambda: sum(len(segment.gets) for segment in segments) >= 3)
    assert sum(len(segment.gets) for segment in segments) == 3
    gate.open()
    await world.landed_at_least(6)
    await until(lambda: world.sample("gets_in_flight") == 0)
    assert world.sample("gets_queued") == 0


async def test_read_ahead_runs_with_a_single_slot_too(nursery: trio.Nursery, segment: ScriptedSegment) -> None:
    world = FillWorld(nursery, gets_max=1)
    world.want(segment, range(3), demanded=False)
    await world.landed_at_least(3)


async def test_on_slow_connections_more_gets_share_the_blocks(nursery: trio.Nursery) -> None:
    world = FillWorld(nursery, gets_max=8)
    world.fills.speed.on_get(2 * MIB, 1.0)
    quick, busy = ScriptedSegment(name="quick"), ScriptedSegment(name="busy")
    await world.fetch(quick, range(12))
    assert sorted(quick.ranges()) == [(0, 1), (2, 3), (4, 5), (6, 7), (8, 9), (10, 11)]
    gate = Gate()
    for number in range(5):
        busy.script(Script(begins=gate))
        world.want(busy, [2 * number])
    await busy.asked(5)
    world.want(busy, range(20, 32), demanded=False)
    await busy.asked(6)
    assert busy.ranges()[5] == (20, 31), "no more than half of the slots were free"
    gate.open()
    await world.landed_at_least(29)


async def test_what_somebody_waits_for_goes_first_while_the_store_throttles(nursery: trio.Nursery) -> None:
    world, first = FillWorld(nursery), Gate()
    with suppress(ThrottledError):
        async with world.throttle.admitted():
            raise ThrottledError("503")
    assert world.throttle.gets_max == 1
    ahead = [ScriptedSegment(1, name=f"ahead {number}") for number in range(4)]
    ahead[0].script(Script(begins=first))
    for segment in ahead:
        world.want(segment, [0], demanded=False)
    await first.reached()
    asked = ScriptedSegment(1, name="asked")
    flight = world.want(asked, [0])[0]
    first.open()
    await flight.wait()
    await world.landed_at_least(5)
    assert [landing.key for landing in world.landed[:2]] == [ahead[0].key(0), asked.key(0)]


# --- bytes ---


async def test_a_get_holds_its_plaintext_and_a_chunk_until_they_land(
    world: FillWorld, segment: ScriptedSegment
) -> None:
    begins, stall = Gate(), Gate()
    segment.script(Script(begins=begins, holds={3: stall}))
    world.want(segment, range(10))
    await begins.reached()
    assert world.budget.held == 10 * BLOCK_BYTES + 2 * MIB
    begins.open()
    await world.landed_at_least(3)
    assert world.budget.held == 7 * BLOCK_BYTES + 2 * MIB
    stall.open()
    await world.landed_at_least(10)
    await until(lambda: world.budget.held == 0)


@pytest.mark.parametrize("mode", ["zstd", "encrypted", "zstd and encrypted"])
@pytest.mark.parametrize("block_chunks", [1, 4, 0.25], ids=["a chunk", "four chunks", "a part of a chunk"])
async def test_decoding_holds_no_more_than_was_reserved(
    nursery: trio.Nursery, tmp_path: Path, mode: str, block_chunks: float
) -> None:
    """Chunks that are compressed and encrypted are held three times: as stored, decrypted, and as plaintext. One of
    them was not counted; nor was the plaintext where a block is not just one chunk."""
    chunk_bytes = 256 * 1024
    block_bytes = int(chunk_bytes * block_chunks)
    # The second chunk is the one that takes most room in the store.
    log = bytes(chunk_bytes) + random.Random(3).randbytes(3 * chunk_bytes)
    opened = write_log(tmp_path, mode, log, chunk_bytes).segment
    grid = BlockGrid(block_bytes, len(log), unit_blocks=max(1, chunk_bytes // block_bytes))
    world = FillWorld(nursery, land=lambda *_: None)  # nobody else holds what has landed
    opened.open_stream(0, 1).close()  # what is imported and made once
    tracemalloc.start()
    try:
        flights = world.fills.want(ScriptedSegment().metadata, opened, grid, range(grid.count), demanded=True)
        for flight in flights:
            await flight.wait()
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes <= world.held_bytes_max + SMALL_OBJECTS_BYTES


async def test_what_the_store_has_as_it_is_needs_no_chunk_beside_it(world: FillWorld) -> None:
    segment, gate = ScriptedSegment(stored_per_byte=1), Gate()
    segment.script(Script(begins=gate))
    world.want(segment, range(10))
    await gate.reached()
    assert world.budget.held == 10 * BLOCK_BYTES
    gate.open()
    await world.landed_at_least(10)


async def test_gets_wait_for_room(nursery: trio.Nursery) -> None:
    world, gate = FillWorld(nursery, budget_bytes=4 * MIB + 100), Gate()
    segments = [ScriptedSegment(name=str(number)) for number in range(4)]
    for segment in segments:
        segment.script(Script(begins=gate))
        world.want(segment, [0])
    await gate.reached()
    await trio.testing.wait_all_tasks_blocked()
    await until(lambda: sum(len(segment.gets) for segment in segments) >= 2)
    assert world.budget.held == 2 * (2 * MIB + BLOCK_BYTES)
    gate.open()
    await world.landed_at_least(4)
    assert world.held_bytes_max == 2 * (2 * MIB + BLOCK_BYTES)


async def test_read_ahead_holds_at_most_half_and_takes_no_place_in_the_line(nursery: trio.Nursery) -> None:
    world, gate = FillWorld(nursery, budget_bytes=8 * MIB + 200), Gate()
    ahead = [ScriptedSegment(name=f"ahead {number}") for number in range(3)]
    for segment in ahead:
        segment.script(Script(begins=gate))
        world.want(segment, [0], demanded=False)
    await ahead[1].asked(1)
    await trio.testing.wait_all_tasks_blocked()
    assert world.budget.held == 2 * (2 * MIB + BLOCK_BYTES)
    assert ahead[2].gets == []
    assert await world.fetch(ScriptedSegment(name="asked"), [0]) == expected(ahead[0], [0])
    gate.open()
    await world.landed_at_least(4)


async def test_read_ahead_goes_on_when_others_give_room_back(nursery: trio.Nursery, segment: ScriptedSegment) -> None:
    world = FillWorld(nursery, budget_bytes=4 * MIB)
    assert world.budget.try_acquire(4 * MIB)
    world.want(segment, [0], demanded=False)
    await trio.testing.wait_all_tasks_blocked()
    assert segment.gets == []
    world.budget.release(4 * MIB)
    await world.landed_at_least(1)


async def test_what_is_larger_than_the_budget_goes_alone(nursery: trio.Nursery) -> None:
    world = FillWorld(nursery, budget_bytes=100)
    for number, demanded in enumerate((True, False, True, False)):
        world.want(ScriptedSegment(name=str(number)), [0], demanded=demanded)
    await world.landed_at_least(4)
    assert world.held_bytes_max == 2 * MIB + BLOCK_BYTES


# --- ends ---


async def test_a_block_that_cannot_be_kept_is_a_failure(nursery: trio.Nursery, segment: ScriptedSegment) -> None:
    def refuse(key: BlockKey, _block: Block, _demanded: bool) -> None:
        if key.number == 1:
            raise MemoryError("no room")

    flights = FillWorld(nursery, land=refuse).want(segment, range(3))
    with pytest.raises(MemoryError):
        await flights[1].wait()
    await flights[0].wait()
    await flights[2].wait()


async def test_a_failure_that_nobody_waits_for_harms_nobody(world: FillWorld, segment: ScriptedSegment) -> None:
    segment.script(Script(refusal=RemoteAccessDeniedError("403")))
    world.want(segment, range(3), demanded=False)
    await until(lambda: len(world.fills) == 0)
    await trio.testing.wait_all_tasks_blocked()
    assert (world.fills.read_ahead_bytes, world.budget.held) == (0, 0)
    assert world.sample("cache_fill_failures_total") == 3


async def test_a_forgotten_segment_lands_no_more_and_still_answers(nursery: trio.Nursery) -> None:
    world, stall = FillWorld(nursery, gets_max=1), Gate()
    deleted, other = ScriptedSegment(name="deleted"), ScriptedSegment(name="other")
    deleted.script(Script(holds={1: stall}))
    flights = world.want(deleted, [0, 1, 5])
    others = world.want(other, [0])
    await stall.reached()
    await flights[0].wait()
    world.fills.forget_segment(deleted.metadata.segment_id.id)
    stall.open()
    for flight, number in zip(flights, (0, 1, 5), strict=True):
        assert bytes((await flight.wait()).data) == deleted.block(number)
    await others[0].wait()
    assert [landing.key for landing in world.landed] == [deleted.key(0), other.key(0)]


async def test_shutdown_leaves_nobody_waiting(segment: ScriptedSegment) -> None:
    stall = Gate()
    async with trio.open_nursery() as application:
        world = FillWorld(application, gets_max=1, budget_bytes=10 * MIB)
        segment.script(Script(holds={1: stall}))
        running = world.want(segment, [0, 1, 2])
        queued = world.want(segment, [5])
        ahead = world.want(segment, [9], demanded=False)
        await stall.reached()
        await running[0].wait()
        application.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            for flight in (*running[1:], *queued, *ahead):
                with pytest.raises(trio.ClosedResourceError):
                    await flight.wait()
        stall.open()
    assert (len(world.fills), world.budget.held, segment.open_gets) == (0, 0, [])
    assert (segment.ranges(), world.numbers()) == ([(0, 2)], [0])
    assert segment.gets[0].read_bytes == 2 * BLOCK_BYTES, "the thread ends between two blocks"


async def test_shutdown_ends_what_waits_for_room(segment: ScriptedSegment) -> None:
    async with trio.open_nursery() as application:
        world = FillWorld(application, budget_bytes=MIB)
        assert world.budget.try_acquire(MIB)
        flights = world.want(segment, [0]) + world.want(segment, [5], demanded=False)
        await trio.testing.wait_all_tasks_blocked()
        application.cancel_scope.cancel()
    for flight in flights:
        with pytest.raises(trio.ClosedResourceError):
            await flight.wait()
    assert world.budget.held == MIB


async def test_after_shutdown_a_fill_cannot_start_and_is_not_found(segment: ScriptedSegment) -> None:
    async with trio.open_nursery() as application:
        world = FillWorld(application)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="Nursery is closed"):
            world.want(segment, [0])
    assert (len(world.fills), world.fills.is_under_way(segment.key(0))) == (0, False)
