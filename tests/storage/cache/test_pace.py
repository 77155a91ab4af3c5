"""How many GETs at once, how large, when one is late, and one limit for all when the store asks for fewer."""

from collections.abc import Sequence
from contextlib import suppress

import pytest
import trio
from hypothesis import example, given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from metrics.get_meter import GetMeter
from metrics.registry import Registry
from storage.cache.pace import (
    BEST_PERIOD_S,
    FULL,
    GET_BYTES,
    GET_BYTES_MIN,
    GET_PART,
    GET_S,
    GETS_MIN,
    GETS_START,
    LATE,
    LATE_S_MIN,
    MIB,
    NEVER,
    SMALL_BYTES,
    Pace,
)
from storage.cache.throttle import Throttle
from storage.errors import RetriableRemoteStorageError, ThrottledError
from storage.object_store.retries import RETRY_AFTER_S_MAX

MB = 1_000_000
NOW_S = 1000.0


def ends(pace: Pace, bytes_per_s: float, times: int = 1, *, now_s: float = NOW_S, all_in_use: bool = True) -> None:
    """GETs of a second end at that speed."""
    for _ in range(times):
        pace.on_end(now_s, bytes_per_s, 1.0, all_in_use=all_in_use)


@pytest.fixture
def pace() -> Pace:
    return Pace(32)


# --- how fast a connection is ---


def test_speed_is_unknown_until_a_get_has_ended_that_took_its_time(pace: Pace) -> None:
    assert (pace.connection_bytes_per_s, pace.delay_bytes) == (None, 0)
    pace.on_end(NOW_S, SMALL_BYTES - 1, 1.0, all_in_use=True)
    pace.on_end(NOW_S, 100 * MB, 0.0, all_in_use=True)
    assert (pace.connection_bytes_per_s, pace.gets) == (None, GETS_START), "those were there at once"
    ends(pace, 60 * MB)
    assert pace.delay_bytes == 0, "no answer was seen yet"
    pace.on_begun(0.03)
    assert pace.delay_bytes == round(0.03 * 60 * MB), "what comes in an answer's delay is read, not asked for"


# --- how many GETs ---


def test_gets_are_added_while_connections_stay_fast_and_all_are_used() -> None:
    fast, slower, unused, few = Pace(32), Pace(32), Pace(32), Pace(10)
    assert (fast.gets, Pace(2).gets, few.gets) == (GETS_START, 2, 10)
    ends(fast, 60 * MB, 10)
    assert fast.gets == GETS_START + 3, "as fast as ever: a third each"
    ends(slower, 60 * MB, 30, all_in_use=False)
    ends(slower, 54 * MB, 60, all_in_use=False)
    ends(slower, 54 * MB, 11)
    assert slower.gets == GETS_START + 2, "a little slower: a fifth each"
    ends(unused, 60 * MB, 20, all_in_use=False)
    assert unused.gets == GETS_START
    ends(few, 60 * MB, 100)
    assert few.gets == 10, "no more than there may be"


def test_gets_are_taken_away_once_connections_are_crowded_down_to_a_few() -> None:
    for gets_max, least in ((32, GETS_MIN), (2, 2)):
        pace = Pace(gets_max)
        ends(pace, 60 * MB)
        ends(pace, 2 * MB, 100)
        assert pace.gets == least
    for fraction, change in [(FULL + 0.05, 1), (FULL - 0.05, -1)]:
        pace = Pace(32)
        ends(pace, 100 * MB, all_in_use=False)
        ends(pace, fraction * 100 * MB, 10, all_in_use=False)  # the mean is near that part of the best now
        ends(pace, fraction * 100 * MB, 90)
        assert (pace.gets > GETS_START) - (pace.gets < GETS_START) == change, fraction


def test_on_a_full_link_the_number_settles_where_connections_are_a_quarter_slower() -> None:
    pace = Pace(64)
    ends(pace, 60 * MB, all_in_use=False)
    for _ in range(500):
        ends(pace, min(60 * MB, 900 * MB / pace.gets))
    assert abs(pace.gets - 900 / 60 / FULL) <= 2


def test_the_best_is_forgotten_after_a_minute_or_so() -> None:
    """A link that has become slower for good is full at another speed."""
    pace, idle = Pace(32), Pace(32)
    ends(pace, 100 * MB)
    ends(pace, 20 * MB, 60, now_s=NOW_S + BEST_PERIOD_S + 1)
    assert pace.gets == GETS_MIN
    ends(pace, 20 * MB, 1, now_s=NOW_S + 2 * (BEST_PERIOD_S + 1))
    assert pace.gets == GETS_MIN, "the period before began with what it had from the one before that"
    ends(pace, 20 * MB, 40, now_s=NOW_S + 3 * (BEST_PERIOD_S + 1))
    assert pace.gets > GETS_MIN
    ends(idle, 100 * MB)
    ends(idle, 20 * MB, 4, now_s=NOW_S + 2 * BEST_PERIOD_S)
    assert idle.gets == GETS_START, "after a long pause nothing is known of the best"


# --- how large ---


def test_gets_grow_with_what_their_stream_has_asked_for() -> None:
    for asked_bytes, size_bytes in [
        (0, GET_BYTES_MIN),
        (GET_PART * GET_BYTES_MIN, GET_BYTES_MIN),
        (GET_PART * 6 * MIB, 6 * MIB),
        (GET_PART * GET_BYTES, GET_BYTES),
        (10**12, GET_BYTES),
    ]:
        assert Pace(32).get_bytes(asked_bytes) == size_bytes


def test_as_many_gets_as_there_may_be_fit_into_the_windows() -> None:
    pace = Pace(32)
    assert pace.get_bytes(10**12, 10 * GETS_START * MIB) == 10 * MIB
    ends(pace, 60 * MB, 50)
    assert pace.get_bytes(10**12, 320 * MIB) == 10 * MIB, "32 of them by now"
    assert pace.get_bytes(10**12, MIB) == GET_BYTES_MIN


def test_a_get_lasts_half_a_second_at_most_within_bounds() -> None:
    for bytes_per_s, size_bytes in [(1e9, GET_BYTES), (40e6, GET_BYTES), (5e6, round(5e6 * GET_S)), (1e5, SMALL_BYTES)]:
        pace = Pace(32)
        pace.on_end(NOW_S, 2 * MIB, 2 * MIB / bytes_per_s, all_in_use=True)
        assert pace.get_bytes(10**12) == size_bytes


# --- what is late ---


def hedging(gets_per_minute_min: int = 0, sent: int = 100) -> Pace:
    """Answers usually begin after 0.1 s, and connections bring 40 MB/s."""
    pace = Pace(32, gets_per_minute_min)
    pace.on_begun(0.1)
    ends(pace, 40 * MB)
    for _ in range(sent):
        pace.on_sent(NOW_S)
    return pace


def late_s(pace: Pace, after_s: float = 0.0, *, has_begun: bool = False, next_bytes: int = 1) -> float | None:
    return pace.late_after_s(NOW_S + after_s, has_begun, next_bytes)


def test_what_takes_four_times_as_long_as_usual_is_late() -> None:
    pace = hedging()
    assert late_s(pace) == pytest.approx(LATE * 0.1)
    assert late_s(pace, has_begun=True, next_bytes=16 * MB) == pytest.approx(LATE * 16 / 40)
    assert late_s(pace, has_begun=True) == LATE_S_MIN, "a second GET is not worth it for less"
    for _ in range(100):
        pace.on_begun(1.0)
    assert late_s(pace) == pytest.approx(LATE * 1.0, rel=0.01), "a store that is slow for everybody is not late"


def test_nothing_is_late_while_nothing_is_known_to_be_usual(pace: Pace) -> None:
    new, off = Pace(32, 0), hedging(NEVER)
    assert [late_s(each, has_begun=has_begun) for each in (new, off) for has_begun in (False, True)] == [None] * 4
    assert (new.sends_seconds, off.sends_seconds, pace.sends_seconds) == (True, False, False)


def test_no_answer_is_late_below_a_rate_of_gets_and_a_body_may_be() -> None:
    pace = hedging(30, sent=0)
    for second in range(29):
        pace.on_sent(NOW_S + second)
    assert (late_s(pace, 28), late_s(pace, 28, has_begun=True)) == (None, LATE_S_MIN)
    pace.on_sent(NOW_S + 29)
    assert late_s(pace, 29) is not None
    assert late_s(pace, 59) is not None
    assert late_s(pace, 60) is None, "the first is a minute old"


@given(
    gets_max=st.integers(1, 64),
    samples=st.lists(
        st.tuples(st.floats(0, 100), st.integers(0, 64 * MIB), st.floats(0, 10), st.booleans()), max_size=60
    ),
)
@example(gets_max=8, samples=[(0.0, 64 * MIB, 1e-305, True), (0.0, 64 * MIB, 1e-305, True)])
def test_what_it_says_stays_within_bounds(gets_max: int, samples: list[tuple[float, int, float, bool]]) -> None:
    pace, now_s = Pace(gets_max), 0.0
    for pause_s, size_bytes, body_s, all_in_use in samples:
        now_s += pause_s
        pace.on_end(now_s, size_bytes, body_s, all_in_use=all_in_use)
        assert min(GETS_MIN, gets_max) <= pace.gets <= gets_max
        assert SMALL_BYTES <= pace.get_bytes(size_bytes) <= GET_BYTES


# --- one limit for all GETs of a store that asks for fewer: how it falls, how it comes back, who waits ---


GETS_MAX = 16
SLOW_DOWN = ThrottledError("503")


class World:
    """GETs that begin when they may and end when the test says so."""

    def __init__(self, nursery: trio.Nursery, gets_max: int = GETS_MAX) -> None:
        self.registry = Registry()
        self.throttle = Throttle(gets_max, GetMeter(self.registry))
        self.in_flight: list[Get] = []
        self._nursery = nursery

    async def send(self, count: int) -> Sequence["Get"]:
        """Send so many more; return those that are in flight then."""
        for _ in range(count):
            self._nursery.start_soon(Get().run, self)
        return await self.now()

    async def now(self) -> Sequence["Get"]:
        """Those in flight when all has come to rest."""
        await wait_all_tasks_blocked()
        return tuple(self.in_flight)

    async def end(self, *errors: Exception | None) -> Sequence["Get"]:
        """End so many GETs thus, the oldest first; return those in flight then."""
        for get, error in zip(await self.now(), errors, strict=False):
            get.end(error)
        return await self.now()

    @property
    def limit(self) -> float | None:
        return self.registry.sample_value("tidegate_gets_limit", {})


class Get:
    def __init__(self) -> None:
        self._ended = trio.Event()
        self._error: Exception | None = None
        self.sent_s = 0.0

    def end(self, error: Exception | None) -> None:
        self._error = error
        self._ended.set()

    async def run(self, world: World) -> None:
        with suppress(RetriableRemoteStorageError):  # what it was told to end with
            async with world.throttle.admitted():
                self.sent_s = trio.current_time()
                world.in_flight.append(self)
                try:
                    await self._ended.wait()
                finally:
                    world.in_flight.remove(self)
                if self._error is not None:
                    raise self._error


async def test_a_burst_of_complaints_halves_the_limit_once(nursery: trio.Nursery, mock_clock: MockClock) -> None:
    """Each GET waited by itself and was sent again with all others: the store met the same burst as before."""
    world = World(nursery)
    await world.send(12)
    await world.send(12)
    mock_clock.jump(0.1)
    assert len(await world.end(*[SLOW_DOWN] * 24)) == 0
    assert (world.limit, world.throttle.is_on) == (12, True)
    mock_clock.jump(0.1)
    assert len(await world.send(24)) == 12
    mock_clock.jump(0.1)
    await world.end(SLOW_DOWN)
    assert world.limit == 6
    assert len(await world.end(*[SLOW_DOWN] * 11)) == 6, "of the same round trip"
    assert world.limit == 6
    nursery.cancel_scope.cancel()


async def test_a_round_of_successes_allows_about_one_more(nursery: trio.Nursery, mock_clock: MockClock) -> None:
    world = World(nursery, gets_max=6)
    await world.send(4)
    mock_clock.jump(0.1)
    await world.end(*[SLOW_DOWN] * 4)
    limits = []
    while world.throttle.is_on:
        limits.append(world.limit)
        mock_clock.jump(0.1)
        in_flight = await world.send(10 - len(world.in_flight))
        mock_clock.jump(0.1)
        await world.end(*[None] * len(in_flight))
    assert limits == [2, 2, 3, 4, 5]
    assert world.limit == 6
    assert len(await world.send(20)) >= 20
    nursery.cancel_scope.cancel()


async def test_retry_after_keeps_all_others_back_too(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    for asked_s, waited_s in [(3.0, 3.0), (3600.0, RETRY_AFTER_S_MAX)]:
        world = World(nursery)
        await world.send(4)
        await world.end(ThrottledError("503", retry_after_s=asked_s))
        assert [get.sent_s for get in await world.end(None, None, None)] == []
        nursery.start_soon(world.send, 2)
        await trio.sleep(waited_s + 0.1)
        assert [get.sent_s for get in await world.now()] == [waited_s] * 2
        nursery.cancel_scope.cancel()


async def test_who_gives_up_waiting_leaves_nothing_behind(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    world = World(nursery)
    await world.send(2)
    await world.end(SLOW_DOWN)
    with trio.move_on_after(1) as scope:
        async with world.throttle.admitted():
            raise AssertionError("the other GET is in flight")
    assert scope.cancelled_caught
    await world.end(None)
    async with world.throttle.admitted():
        pass
