"""What becomes of a GET that fails or is late: attempts, and second transfers."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from storage.cache.gets import WATCH_S
from storage.cache.pace import LATE, LATE_S_MIN, NEVER, Pace
from storage.errors import (
    RemoteResourceNotFoundError,
    RetriableRemoteStorageError,
    StalledTransferError,
    ThrottledError,
)
from tests.support.scripted_gets import (
    BLOCK_BYTES,
    FINISHED_MS,
    MIB,
    Gate,
    GetWorld,
    Script,
    ScriptedSegment,
    expected,
    until,
)
from tests.support.waiting import wait_until

FIRST_BYTE_S = 0.08
"""What is late by that is found between two looks."""

TROUBLE = RetriableRemoteStorageError("503")


@pytest.fixture(autouse=True)
def still_clock(request: pytest.FixtureRequest) -> None:
    """In these tests time passes only as they say, or as `autojump` does."""
    if not request.node.get_closest_marker("autojump"):
        request.node.add_marker(pytest.mark.trio(run=on_still_clock), append=False)


def on_still_clock(function: Callable[[], Awaitable[object]], **how: Any) -> object:
    return trio.run(function, **{**how, "clock": MockClock()})


@pytest.fixture
def segment() -> ScriptedSegment:
    return ScriptedSegment()


@pytest.fixture
def world(nursery: trio.Nursery) -> GetWorld:
    return GetWorld(nursery)


@pytest.fixture
def hedging(nursery: trio.Nursery) -> GetWorld:
    """It knows when an answer is late."""
    return GetWorld(nursery, pace=knows_answers())


@pytest.fixture
def splitting(nursery: trio.Nursery) -> GetWorld:
    """It knows when a body is late."""
    return GetWorld(nursery, pace=knows_speed())


def knows_answers(gets_per_minute_min: int = 50, gets: int = 100, seen: int = 1) -> Pace:
    """It has seen enough to send a second GET LATE times FIRST_BYTE_S after the first."""
    pace = Pace(16, gets_per_minute_min)
    for _ in range(gets):
        pace.on_sent(0.0)
    for _ in range(seen):
        pace.on_begun(FIRST_BYTE_S)
    return pace


def knows_speed() -> Pace:
    """It knows bodies, and says nothing about answers."""
    pace = Pace(8, 1_000_000)
    pace.on_end(0.0, 100 * MIB, 1.0, all_in_use=False)
    return pace


async def passes(seconds: float) -> None:
    """Let so much time pass, and let all that waited for it run."""
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, MockClock)
    await wait_all_tasks_blocked()
    clock.jump(seconds)
    await wait_all_tasks_blocked()


# --- late answers ---


async def test_a_late_answer_gets_a_second_get_which_wins(hedging: GetWorld, segment: ScriptedSegment) -> None:
    late = Gate()
    segment.script(Script(begins=late))
    flights = hedging.want(segment, range(6))
    await late.reached()
    for _ in range(round(LATE * FIRST_BYTE_S / WATCH_S)):
        await passes(WATCH_S)
    assert len(segment.gets) == 1
    await passes(WATCH_S)
    assert [bytes((await flight.wait()).data) for flight in flights] == expected(segment, range(6))
    assert segment.ranges() == [(0, 5), (0, 5)]
    await segment.gets[1].closed()  # its thread does so after it has posted the last block
    assert not segment.gets[0].is_closed, "the loser has not answered yet"
    late.release()
    await segment.gets[0].closed()
    await until(lambda: hedging.sample("gets_total", object="log") == 2)
    assert hedging.sample("get_first_byte_seconds_count") == 2
    assert segment.gets[0].read_bytes <= BLOCK_BYTES
    assert hedging.numbers() == list(range(6))
    assert (hedging.sample("get_hedges_total"), hedging.sample("get_hedges_won_total")) == (1, 1)
    assert (hedging.sample("gets_total", outcome="ok"), hedging.sample("gets_total", outcome="cancelled")) == (1, 1)
    assert (hedging.budget.held, hedging.gets.slots.busy) == (0, 0)


async def test_a_second_get_that_answers_later_is_stopped(nursery: trio.Nursery) -> None:
    for pace, is_slow_body in ((knows_answers(), False), (knows_speed(), True)):
        world, segment, first, second = GetWorld(nursery, pace=pace), ScriptedSegment(), Gate(), Gate()
        segment.script(Script(holds={3: first}) if is_slow_body else Script(begins=first), Script(begins=second))
        flights = world.want(segment, range(12))
        await first.reached()
        await passes(1)
        await second.reached()
        first.release()
        for flight in flights:
            await flight.wait()
        second.release()
        await segment.gets[1].closed()
        assert segment.gets[1].read_bytes <= BLOCK_BYTES, "it ends between two blocks"
        assert world.numbers() == list(range(12)), is_slow_body
        counted = [world.sample(f"get_{name}_total") for name in ("hedges", "splits", "hedges_won")]
        assert counted == [not is_slow_body, is_slow_body, 0]


async def test_a_late_answer_is_waited_for_when_too_little_is_known_or_nobody_waits(nursery: trio.Nursery) -> None:
    for pace, may_wait in [
        (knows_answers(gets_per_minute_min=1000), True),
        (knows_answers(NEVER), True),
        (knows_answers(0, seen=0), True),
        (knows_answers(), False),
    ]:
        world, segment, late = GetWorld(nursery, pace=pace), ScriptedSegment(), Gate()
        segment.script(Script(begins=late))
        if may_wait:
            world.want(segment, range(1))
        else:
            world.ahead(segment, range(1))
        await late.reached()
        for _ in range(3):
            await passes(20)
        late.release()
        await world.landed_at_least(1)
        assert (len(segment.gets), world.sample("get_hedges_total")) == (1, 0), may_wait


async def test_a_late_answer_is_found_of_a_get_that_stood_in_line(nursery: trio.Nursery) -> None:
    """Nobody looked at it when it took the slot of read-ahead that failed, until somebody else began to wait."""
    world, segment = GetWorld(nursery, gets_max=1, pace=knows_answers()), ScriptedSegment()
    failing, late = Gate(), Gate()
    segment.script(Script(begins=failing, refusal=RemoteResourceNotFoundError("404")), Script(begins=late))
    assert world.ahead(segment, range(1))
    await failing.reached()
    (flight,) = world.want(segment, range(1, 2))
    failing.release()
    await late.reached()
    await passes(1)
    await segment.asked(3)
    await flight.wait()
    late.release()
    assert (segment.ranges(), world.sample("get_hedges_won_total")) == ([(0, 0), (1, 1), (1, 1)], 1)


async def test_when_both_fail_there_is_another_attempt(hedging: GetWorld, segment: ScriptedSegment) -> None:
    first, second = Gate(), Gate()
    segment.script(Script(begins=first, refusal=TROUBLE), Script(begins=second, refusal=TROUBLE))
    flights = hedging.want(segment, range(3))
    await first.reached()
    await passes(1)
    await second.reached()
    first.release()
    await until(lambda: hedging.sample("gets_total", outcome="retriable") == 1)
    second.release()
    await until(lambda: hedging.sample("get_retries_total") == 1)
    await passes(10)
    for flight in flights:
        await flight.wait()
    assert segment.ranges() == [(0, 2)] * 3
    assert hedging.budget.held == 0


# --- slow bodies ---


async def test_a_slow_body_is_gone_on_with_by_a_second_get(splitting: GetWorld, segment: ScriptedSegment) -> None:
    stall = Gate()
    segment.script(Script(holds={3: stall}))
    flights = splitting.want(segment, range(12))
    await flights[2].wait()
    await stall.reached()
    for _ in range(round(LATE_S_MIN / WATCH_S) - 1):
        await passes(WATCH_S)
    assert len(segment.gets) == 1
    await passes(WATCH_S)
    assert [bytes((await flight.wait()).data) for flight in flights] == expected(segment, range(12))
    assert segment.ranges() == [(0, 11), (3, 11)]
    assert (splitting.sample("get_splits_total"), splitting.sample("get_hedges_total")) == (1, 0)
    assert (splitting.budget.held, splitting.gets.slots.busy) == (0, 0)
    stall.release()
    await until(lambda: splitting.sample("gets_total", outcome="cancelled") == 1)
    assert segment.gets[0].read_bytes == 4 * BLOCK_BYTES, "its thread ends between two blocks"
    assert splitting.numbers() == list(range(12)), "what it brings late is not landed again"


async def test_what_the_loser_had_read_does_not_stop_the_winner(splitting: GetWorld, segment: ScriptedSegment) -> None:
    """Both brought blocks in the same turn of the loop: each stopped the other, and nobody brought the rest."""
    first, again, second, on = (Gate() for _ in range(4))
    segment.script(Script(holds={3: first, 6: again}), Script(holds={3: second, 4: on}))
    flights = splitting.want(segment, range(12))
    await first.reached()
    await passes(1)
    await second.reached()
    # Nothing here lets the loop run: it finds block 3 of the second GET, then blocks 3, 4 and 5 of the first.
    second.release()
    wait_until(lambda: on.is_reached, "the winner's block")
    first.release()
    wait_until(lambda: again.is_reached, "the loser's blocks")
    await until(lambda: splitting.numbers() == list(range(6)))
    for gate in (on, again):
        gate.release()
    await flights[11].wait()
    assert splitting.numbers() == list(range(12))
    assert splitting.sample("get_hedges_won_total") == 1
    await until(lambda: not segment.open_gets)
    assert splitting.budget.held == 0


async def test_a_slow_body_is_waited_for_when(nursery: trio.Nursery) -> None:
    for why in ("nobody waits", "the usual speed is unknown", "the store throttles"):
        stall, segment = Gate(), ScriptedSegment()
        world = GetWorld(nursery, pace=Pace(8) if why == "the usual speed is unknown" else knows_speed())
        segment.script(Script(holds={0: stall}))
        if why == "nobody waits":
            world.ahead(segment, range(12))
        else:
            world.want(segment, range(12))
        await stall.reached()
        if why == "the store throttles":
            with pytest.raises(ThrottledError):
                async with world.throttle.admitted():
                    raise ThrottledError("503")
        for _ in range(3):
            await passes(20)
        stall.release()
        await world.landed_at_least(12)
        assert (segment.ranges(), world.sample("get_splits_total")) == ([(0, 11)], 0), why


# --- attempts ---


@pytest.mark.autojump
async def test_a_retry_asks_for_the_rest_and_repeats_nothing(world: GetWorld, segment: ScriptedSegment) -> None:
    segment.script(Script(fails={4: TROUBLE}), Script(refusal=TROUBLE), Script(fails={4: TROUBLE}))
    with pytest.raises(RetriableRemoteStorageError):
        await world.fetch(segment, range(10))
    assert segment.ranges() == [(0, 9), (4, 9), (4, 9)]
    assert world.numbers() == [0, 1, 2, 3]
    assert await world.fetch(segment, range(4, 10)) == expected(segment, range(4, 10))
    assert world.numbers() == list(range(10))
    assert (world.sample("get_retries_total"), world.sample("gets_total", outcome="retriable")) == (2, 3)
    assert world.sample("cache_fill_failures_total") == 6
    assert world.budget.held == 0


@pytest.mark.autojump
async def test_a_fresh_segment_not_there_is_asked_for_again_after_a_pause(
    nursery: trio.Nursery, segment: ScriptedSegment
) -> None:
    world = GetWorld(nursery, now_ms=FINISHED_MS + 10_000)
    segment.script(Script(refusal=RetriableRemoteStorageError("503", retry_after_s=4.0)))
    await world.fetch(segment, range(1))
    assert trio.current_time() == pytest.approx(4.0)
    segment.script(Script(refusal=RemoteResourceNotFoundError("404")))
    await world.fetch(segment, range(2, 3))
    assert world.sample("gets_total", outcome="not_found") == 1
    segment.script(*[Script(refusal=RemoteResourceNotFoundError("404"))] * 3)
    with pytest.raises(RemoteResourceNotFoundError, match="404"):
        await world.fetch(segment, range(1, 2))
    assert world.sample("gets_total", outcome="not_found") == 4


async def test_a_silent_body_is_gone_on_with_by_one_other_get(world: GetWorld, segment: ScriptedSegment) -> None:
    """At once: the clock of this test stands still."""
    silent = StalledTransferError("no byte for 3 s")
    segment.script(Script(fails={4: silent}), Script(fails={6: silent}))
    assert await world.fetch(segment, range(10)) == expected(segment, range(10))
    assert segment.ranges() == [(0, 9), (4, 9), (6, 9)], "what came in between gives the GET its attempts back"
    segment.script(Script(fails={11: silent}), Script(fails={11: silent}))
    with pytest.raises(StalledTransferError):
        await world.fetch(segment, range(10, 14))
    assert segment.ranges()[3:] == [(10, 13), (11, 13)]
    assert (world.budget.held, world.gets.slots.busy) == (0, 0)


# --- a store that asks for fewer GETs ---


@pytest.mark.autojump
async def test_gets_that_are_throttled_together_slow_down_together(world: GetWorld) -> None:
    """Each backed off by itself, for about as long as the others: eight refused GETs were eight GETs again."""
    begin = Gate()
    segments = [ScriptedSegment(2, name=str(number)) for number in range(8)]
    gates = [Gate() for _ in segments]
    for segment, gate in zip(segments, gates, strict=True):
        segment.script(Script(begins=begin, refusal=ThrottledError("503", retry_after_s=1.0)), Script(begins=gate))
    flights = [flight for segment in segments for flight in world.want(segment, range(2))]
    for segment in segments:
        await segment.asked(1)
    begin.release()
    await until(lambda: world.sample("gets_total", outcome="throttled") == 8)
    await trio.sleep(60)  # all that are allowed to be are sent again, and none of them ends
    await until(lambda: sum(len(segment.gets) for segment in segments) >= 12)
    await wait_all_tasks_blocked()
    assert sum(len(segment.gets) == 2 for segment in segments) == 4
    assert world.sample("gets_limit") == 4
    for gate in gates:
        gate.release()
    for flight in flights:
        await flight.wait()
    assert (world.budget.held, world.gets.slots.busy) == (0, 0)
    assert all(len(segment.gets) == 2 for segment in segments)


async def test_a_throttling_store_is_sent_no_second_if_late(hedging: GetWorld, segment: ScriptedSegment) -> None:
    late = Gate()
    segment.script(Script(refusal=ThrottledError("503")), Script(begins=late))
    flight = hedging.want(segment, range(1))[0]
    await until(lambda: hedging.sample("gets_total", outcome="throttled") == 1)
    await passes(1)
    await late.reached()
    for _ in range(3):
        await passes(1)
    late.release()
    await flight.wait()
    assert (len(segment.gets), hedging.sample("get_hedges_total")) == (2, 0)
