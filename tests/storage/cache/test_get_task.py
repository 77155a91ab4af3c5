"""One GET: its hedge, its retries, the split of its rest; seen through Fills."""

import pytest
import trio
import trio.testing

from storage.cache.hedging import NEVER, Hedging
from storage.errors import (
    CorruptObjectError,
    RemoteAccessDeniedError,
    RemoteResourceNotFoundError,
    RetriableRemoteStorageError,
    StalledTransferError,
    ThrottledError,
)
from tests.support.scripted_gets import FINISHED_MS, MIB, FillWorld, Gate, Script, ScriptedSegment, expected, until

FIRST_BYTE_S = 0.03
TROUBLE = RetriableRemoteStorageError("503")


@pytest.fixture
def segment() -> ScriptedSegment:
    return ScriptedSegment()


def busy_hedging(gets_per_minute_min: int = 50, gets: int = 100) -> Hedging:
    """A policy that has seen enough to hedge after FIRST_BYTE_S."""
    hedging = Hedging(gets_per_minute_min)
    for _ in range(gets):
        hedging.on_get()
        hedging.on_first_byte(FIRST_BYTE_S)
    return hedging


# --- hedges ---


async def test_a_late_answer_gets_a_second_get_which_wins(
    nursery: trio.Nursery, mock_clock: trio.testing.MockClock, segment: ScriptedSegment
) -> None:
    world, late = FillWorld(nursery, hedging=busy_hedging()), Gate()
    segment.script(Script(begins=late))
    flights = world.want(segment, range(6))
    await late.reached()
    await trio.testing.wait_all_tasks_blocked()
    mock_clock.jump(FIRST_BYTE_S - 0.001)
    await trio.testing.wait_all_tasks_blocked()
    assert len(segment.gets) == 1
    mock_clock.jump(0.002)
    assert [bytes((await flight.wait()).data) for flight in flights] == expected(segment, range(6))
    assert segment.ranges() == [(0, 5), (0, 5)]
    await segment.gets[1].closed()  # its thread does so after it has posted the last block
    assert not segment.gets[0].is_closed, "the loser has not answered yet"
    late.open()
    await until(lambda: world.sample("get_first_byte_seconds_count") == 2)
    await segment.gets[0].closed()
    assert segment.gets[0].read_bytes == 0
    assert world.numbers() == list(range(6))
    assert (world.sample("get_hedges_total"), world.sample("get_hedges_won_total")) == (1, 1)
    await until(lambda: world.sample("gets_total", object="log") == 2)
    assert (world.sample("gets_total", outcome="ok"), world.sample("gets_total", outcome="cancelled")) == (1, 1)
    assert world.sample("get_bytes_total") == world.sample("get_bytes_total", outcome="ok") > 0


async def test_a_hedge_that_answers_later_is_closed(
    nursery: trio.Nursery, mock_clock: trio.testing.MockClock, segment: ScriptedSegment
) -> None:
    world, first, second = FillWorld(nursery, hedging=busy_hedging()), Gate(), Gate()
    segment.script(Script(begins=first), Script(begins=second))
    flights = world.want(segment, range(6))
    await first.reached()
    await trio.testing.wait_all_tasks_blocked()
    mock_clock.jump(1)
    await second.reached()
    first.open()
    for flight in flights:
        await flight.wait()
    second.open()
    await segment.gets[1].closed()
    assert segment.gets[1].read_bytes == 0
    assert world.numbers() == list(range(6))
    assert (world.sample("get_hedges_total"), world.sample("get_hedges_won_total")) == (1, 0)


@pytest.mark.parametrize(
    "hedging",
    [busy_hedging(gets_per_minute_min=1000), busy_hedging(NEVER), Hedging(0)],
    ids=["below its rate", "turned off", "too little seen"],
)
async def test_without_a_hedge_a_late_answer_is_waited_for(
    nursery: trio.Nursery, mock_clock: trio.testing.MockClock, segment: ScriptedSegment, hedging: Hedging
) -> None:
    world, late = FillWorld(nursery, hedging=hedging), Gate()
    segment.script(Script(begins=late))
    flight = world.want(segment, [0])[0]
    await late.reached()
    await trio.testing.wait_all_tasks_blocked()
    mock_clock.jump(60)
    await trio.testing.wait_all_tasks_blocked()
    late.open()
    await flight.wait()
    assert (len(segment.gets), world.sample("get_hedges_total")) == (1, 0)


async def test_a_store_that_is_slow_for_all_is_not_asked_twice_as_much(
    nursery: trio.Nursery, mock_clock: trio.testing.MockClock
) -> None:
    world = FillWorld(nursery, gets_max=16, hedging=busy_hedging(0, gets=30))
    segments, gates = [ScriptedSegment(1, name=str(number)) for number in range(10)], list[Gate]()
    for segment in segments:
        gates += [first := Gate(), second := Gate()]
        segment.script(Script(begins=first), Script(begins=second))
        world.want(segment, [0])
    for first in gates[::2]:
        await first.reached()
    await trio.testing.wait_all_tasks_blocked()
    mock_clock.jump(10)
    await trio.testing.wait_all_tasks_blocked()
    assert world.sample("get_hedges_total") == 2, "forty GETs so far, one hedge for twenty"
    for gate in gates:
        gate.open()
    await world.landed_at_least(10)


async def test_a_refused_get_does_not_fail_while_its_hedge_may_answer(
    nursery: trio.Nursery, mock_clock: trio.testing.MockClock, segment: ScriptedSegment
) -> None:
    world, first, second = FillWorld(nursery, hedging=busy_hedging()), Gate(), Gate()
    segment.script(Script(begins=first, refusal=TROUBLE), Script(begins=second))
    flight = world.want(segment, [0])[0]
    await first.reached()
    await trio.testing.wait_all_tasks_blocked()
    mock_clock.jump(1)
    await second.reached()
    first.open()
    await until(lambda: world.sample("gets_total", outcome="retriable") == 1)
    second.open()
    await flight.wait()
    assert (len(segment.gets), world.sample("get_retries_total")) == (2, 0)


# --- retries ---


async def test_a_retry_asks_for_the_rest_and_loses_and_repeats_nothing(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock, segment: ScriptedSegment
) -> None:
    world = FillWorld(nursery)
    segment.script(Script(fails={4: TROUBLE}), Script(refusal=TROUBLE), Script(fails={4: TROUBLE}))
    with pytest.raises(RetriableRemoteStorageError):
        await world.fetch(segment, range(10))
    assert segment.ranges() == [(0, 9), (4, 9), (4, 9)]
    assert world.numbers() == [0, 1, 2, 3]
    assert await world.fetch(segment, range(4, 10)) == expected(segment, range(4, 10))
    assert world.numbers() == list(range(10))
    assert (world.sample("get_retries_total"), world.sample("gets_total", outcome="retriable")) == (2, 3)
    assert world.sample("cache_fill_failures_total") == 6
    await until(lambda: world.budget.held == 0)


async def test_progress_gives_a_get_its_attempts_back(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock, segment: ScriptedSegment
) -> None:
    world = FillWorld(nursery)
    segment.script(*[Script(fails={number: TROUBLE}) for number in range(1, 9)])
    assert await world.fetch(segment, range(10)) == expected(segment, range(10))
    assert world.numbers() == list(range(10))


async def test_the_store_is_left_alone_as_long_as_it_asks(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock, segment: ScriptedSegment
) -> None:
    segment.script(Script(refusal=RetriableRemoteStorageError("503", retry_after_s=4.0)))
    await FillWorld(nursery).fetch(segment, [0])
    assert trio.current_time() == pytest.approx(4.0)


async def test_a_fresh_segment_that_is_not_there_yet_is_asked_for_again(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock, segment: ScriptedSegment
) -> None:
    world = FillWorld(nursery, now_ms=FINISHED_MS + 10_000)
    segment.script(Script(refusal=RemoteResourceNotFoundError("404")))
    await world.fetch(segment, [0])
    assert world.sample("gets_total", outcome="not_found") == 1
    segment.script(*[Script(refusal=RemoteResourceNotFoundError("404"))] * 3)
    with pytest.raises(RemoteResourceNotFoundError, match="404"):
        await world.fetch(segment, [1])
    assert world.sample("gets_total", outcome="not_found") == 4


async def test_a_silent_body_is_gone_on_with_by_one_other_get(nursery: trio.Nursery, segment: ScriptedSegment) -> None:
    """At once: the clock of this test stands still."""
    world, silent = FillWorld(nursery), StalledTransferError("no byte for 3 s")
    segment.script(Script(fails={4: silent}), Script(fails={6: silent}))
    assert await world.fetch(segment, range(10)) == expected(segment, range(10))
    assert segment.ranges() == [(0, 9), (4, 9), (6, 9)], "what came in between gives the GET its attempts back"
    segment.script(Script(fails={11: silent}), Script(fails={11: silent}))
    with pytest.raises(StalledTransferError):
        await world.fetch(segment, range(10, 14))
    assert segment.ranges()[3:] == [(10, 13), (11, 13)]
    await until(lambda: world.budget.held == 0 and world.fills.slots.busy == 0)


@pytest.mark.parametrize("error", [RemoteResourceNotFoundError("404"), RemoteAccessDeniedError("403"), OSError("?")])
async def test_what_will_not_pass_fails_at_once(
    nursery: trio.Nursery, segment: ScriptedSegment, error: Exception
) -> None:
    segment.script(Script(refusal=error))
    world = FillWorld(nursery)
    with pytest.raises(type(error)):
        await world.fetch(segment, range(3))
    assert segment.ranges() == [(0, 2)]
    assert await world.fetch(segment, [0]) == [segment.block(0)], "nothing is remembered"


async def test_bad_bytes_are_fetched_afresh_once(nursery: trio.Nursery, segment: ScriptedSegment) -> None:
    world, bad = FillWorld(nursery), Script(fails={2: CorruptObjectError("bad tag")})
    segment.script(bad)
    assert await world.fetch(segment, range(4)) == expected(segment, range(4))
    assert segment.ranges() == [(0, 3), (2, 3)]
    segment.script(bad, bad)
    with pytest.raises(CorruptObjectError):
        await world.fetch(segment, [2, 3])
    assert world.numbers() == [0, 1, 2, 3]
    assert world.sample("gets_total", outcome="corrupt") == 3


# --- a store that asks for fewer GETs ---


async def test_gets_that_are_throttled_together_slow_down_together(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    """Each backed off by itself, for about as long as the others: eight refused GETs were eight GETs again."""
    world, begin = FillWorld(nursery), Gate()
    segments = [ScriptedSegment(2, name=str(number)) for number in range(8)]
    gates = [Gate() for _ in segments]
    for segment, gate in zip(segments, gates, strict=True):
        segment.script(Script(begins=begin, refusal=ThrottledError("503", retry_after_s=1.0)), Script(begins=gate))
    flights = [world.want(segment, [0, 1])[0] for segment in segments]
    for segment in segments:
        await segment.asked(1)
    begin.open()
    await until(lambda: world.sample("gets_total", outcome="throttled") == 8)
    await trio.sleep(60)  # all that are allowed to be are sent again, and none of them ends
    await until(lambda: sum(len(segment.gets) for segment in segments) >= 12)
    await trio.testing.wait_all_tasks_blocked()
    again = [number for number, segment in enumerate(segments) if len(segment.gets) == 2]
    assert len(again) == 4
    assert world.sample("gets_limit") == 4
    for gate in gates:
        gate.open()
    for flight in flights:
        await flight.wait()
    await until(lambda: world.budget.held == 0 and world.fills.slots.busy == 0)
    assert all(len(segment.gets) == 2 for segment in segments)


async def test_a_store_that_asks_for_fewer_gets_is_not_sent_a_hedge(
    nursery: trio.Nursery, mock_clock: trio.testing.MockClock, segment: ScriptedSegment
) -> None:
    world, late = FillWorld(nursery, hedging=busy_hedging()), Gate()
    segment.script(Script(refusal=ThrottledError("503")), Script(begins=late))
    flight = world.want(segment, [0])[0]
    await until(lambda: world.sample("gets_total", outcome="throttled") == 1)
    await trio.testing.wait_all_tasks_blocked()
    mock_clock.jump(1)
    await late.reached()
    await trio.testing.wait_all_tasks_blocked()
    mock_clock.jump(1)
    await trio.testing.wait_all_tasks_blocked()
    late.open()
    await flight.wait()
    assert (len(segment.gets), world.sample("get_hedges_total")) == (2, 0)


# --- splits ---


async def test_the_rest_of_a_slow_body_goes_to_other_connections(
    nursery: trio.Nursery, mock_clock: trio.testing.MockClock, segment: ScriptedSegment
) -> None:
    world, stall = FillWorld(nursery), Gate()
    world.fills.speed.on_get(100 * MIB, 1.0)
    segment.script(Script(holds={3: stall}))
    flights = world.want(segment, range(12))
    await flights[2].wait()
    await stall.reached()
    for given in (range(8, 12), range(6, 8), range(5, 6), range(4, 5)):
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(0.6)
        for number in given:
            assert bytes((await flights[number].wait()).data) == segment.block(number)
        assert segment.gets[-1].numbers == given
        await until(lambda: world.sample("gets_in_flight") == 1)
    await trio.testing.wait_all_tasks_blocked()
    mock_clock.jump(60)
    await trio.testing.wait_all_tasks_blocked()
    assert world.sample("get_splits_total") == 4
    stall.open()
    await flights[3].wait()
    assert sorted(world.numbers()) == list(range(12))
    await until(lambda: world.budget.held == 0)
    assert (len(world.fills), len(segment.gets)) == (0, 5)


async def test_a_split_rest_that_fails_fails_its_own_blocks_only(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock, segment: ScriptedSegment
) -> None:
    world, stall = FillWorld(nursery), Gate()
    world.fills.speed.on_get(100 * MIB, 1.0)
    segment.script(Script(holds={0: stall}), Script(refusal=RemoteAccessDeniedError("403")))
    flights = world.want(segment, [0, 1])
    with pytest.raises(RemoteAccessDeniedError):
        await flights[1].wait()
    stall.open()
    await flights[0].wait()
    await until(lambda: world.budget.held == 0)
    assert world.numbers() == [0]


@pytest.mark.parametrize("why", ["nobody waits", "no slot is free", "the usual speed is unknown", "no memory is left"])
async def test_a_slow_body_is_not_split_when(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock, segment: ScriptedSegment, why: str
) -> None:
    stall = Gate()
    world = FillWorld(
        nursery,
        gets_max=1 if why == "no slot is free" else 8,
        budget_bytes=MIB + 12 * 16 if why == "no memory is left" else 1024 * MIB,
    )
    if why != "the usual speed is unknown":
        world.fills.speed.on_get(100 * MIB, 1.0)
    segment.script(Script(holds={0: stall}))
    world.want(segment, range(12), demanded=why != "nobody waits")
    await stall.reached()
    await trio.sleep(60)
    stall.open()
    await world.landed_at_least(12)
    assert (segment.ranges(), world.sample("get_splits_total")) == ([(0, 11)], 0)
