"""One limit for all GETs of a store that asks for fewer: how it falls, how it comes back, who waits."""

from collections.abc import Sequence
from contextlib import suppress

import pytest
import trio
import trio.testing

from metrics.cache_meters import GetMeter
from metrics.registry import Registry
from storage.cache.pace import Throttle
from storage.errors import RetriableRemoteStorageError, ThrottledError
from storage.object_store.retries import RETRY_AFTER_S_MAX

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
        """So many more; those that are in flight then."""
        for _ in range(count):
            self._nursery.start_soon(Get().run, self)
        return await self.now()

    async def now(self) -> Sequence["Get"]:
        """Those in flight when all has come to rest."""
        await trio.testing.wait_all_tasks_blocked()
        return tuple(self.in_flight)

    async def end(self, *errors: Exception | None) -> Sequence["Get"]:
        """So many GETs end thus, the oldest first; those in flight then."""
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


async def test_without_a_complaint_nothing_waits(nursery: trio.Nursery, mock_clock: trio.testing.MockClock) -> None:
    world = World(nursery)
    assert len(await world.send(5 * GETS_MAX)) == 5 * GETS_MAX
    await world.end(*[RetriableRemoteStorageError("500")] * 20)
    assert (world.limit, world.throttle.is_on) == (GETS_MAX, False)
    nursery.cancel_scope.cancel()


async def test_a_burst_of_complaints_halves_what_may_be_in_flight_once(
    nursery: trio.Nursery, mock_clock: trio.testing.MockClock
) -> None:
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


async def test_one_get_at_a_time_is_the_least(nursery: trio.Nursery, mock_clock: trio.testing.MockClock) -> None:
    world = World(nursery)
    for _ in range(4):
        await world.send(2)
        mock_clock.jump(0.1)
        await world.end(SLOW_DOWN)
    assert world.limit == 1
    assert len(await world.now()) == 1
    nursery.cancel_scope.cancel()


async def test_a_round_of_successes_allows_about_one_more_until_all_are_allowed(
    nursery: trio.Nursery, mock_clock: trio.testing.MockClock
) -> None:
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


@pytest.mark.parametrize(("asked_s", "waited_s"), [(3.0, 3.0), (3600.0, RETRY_AFTER_S_MAX)])
async def test_retry_after_keeps_all_others_back_too(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock, asked_s: float, waited_s: float
) -> None:
    world = World(nursery)
    await world.send(4)
    await world.end(ThrottledError("503", retry_after_s=asked_s))
    assert [get.sent_s for get in await world.end(None, None, None)] == []
    nursery.start_soon(world.send, 2)
    await trio.sleep(waited_s + 0.1)
    assert [get.sent_s for get in await world.now()] == [waited_s] * 2
    nursery.cancel_scope.cancel()


async def test_who_gives_up_waiting_leaves_nothing_behind(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
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
