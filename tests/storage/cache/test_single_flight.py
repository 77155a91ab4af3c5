"""One computation per key: who waits, who leaves, what fails."""

import threading
from collections.abc import Callable

import pytest
import trio
import trio.testing

from storage.cache.single_flight import Flight, SingleFlight
from storage.errors import RetriableRemoteStorageError

Landed = list[int]


@pytest.fixture
def flights(nursery: trio.Nursery) -> SingleFlight[str, int]:
    return SingleFlight(nursery, trio.CapacityLimiter(4))


class Computation:
    """Blocks its thread until it may go on; counts its runs."""

    def __init__(self, value: int = 7) -> None:
        self.runs = 0
        self.may_end = threading.Event()
        self.value = value

    def __call__(self) -> int:
        self.runs += 1
        if not self.may_end.wait(30):
            raise TimeoutError("never released")
        return self.value


def failing(error: Exception) -> Callable[[], int]:
    def compute() -> int:
        raise error

    return compute


def nothing(_value: int) -> None:
    """Keep nothing."""


async def test_all_who_ask_get_the_value_of_one_computation(flights: SingleFlight[str, int]) -> None:
    compute, values = Computation(), list[int]()

    async def ask() -> None:
        values.append(await flights.start("a", compute, nothing).wait())

    async with trio.open_nursery() as askers:
        for _ in range(5):
            askers.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        assert len(flights) == 1
        compute.may_end.set()
    assert (values, compute.runs, len(flights)) == ([7] * 5, 1, 0)


async def test_keys_fly_side_by_side(flights: SingleFlight[str, int]) -> None:
    first, second = Computation(1), Computation(2)
    first_flight, second_flight = flights.start("a", first, nothing), flights.start("b", second, nothing)
    second.may_end.set()
    assert await second_flight.wait() == 2
    first.may_end.set()
    assert await first_flight.wait() == 1


async def test_the_value_is_where_it_belongs_before_anyone_wakes(flights: SingleFlight[str, int]) -> None:
    kept = Landed()
    flight = flights.start("a", lambda: 3, kept.append)
    assert await flight.wait() == 3
    assert kept == [3]


async def test_who_leaves_cancels_nothing(flights: SingleFlight[str, int]) -> None:
    compute, kept = Computation(), Landed()
    with trio.CancelScope() as scope:
        flight = flights.start("a", compute, kept.append)
        scope.cancel()
        await flight.wait()
    assert scope.cancelled_caught
    assert flights.start("a", compute, kept.append) is flight
    compute.may_end.set()
    assert await flight.wait() == 7
    assert (kept, compute.runs) == ([7], 1)


async def test_a_failure_reaches_all_who_wait_and_is_not_kept(flights: SingleFlight[str, int]) -> None:
    error = RetriableRemoteStorageError("503")
    flight, kept = flights.start("a", failing(error), nothing), Landed()
    caught = list[RetriableRemoteStorageError]()

    async def ask() -> None:
        with pytest.raises(RetriableRemoteStorageError, match="503") as info:
            await flight.wait()
        caught.append(info.value)

    async with trio.open_nursery() as askers:
        for _ in range(3):
            askers.start_soon(ask)
    assert (len(caught), len(flights)) == (3, 0)
    assert await flights.start("a", lambda: 4, kept.append).wait() == 4
    assert kept == [4]


async def test_a_failure_that_nobody_waits_for_harms_nobody(flights: SingleFlight[str, int]) -> None:
    flights.start("a", failing(ValueError("a bug")), nothing)
    flight = flights.start("b", lambda: 1, nothing)
    assert await flight.wait() == 1
    while len(flights):
        await trio.lowlevel.checkpoint()


async def test_a_value_that_cannot_be_kept_is_a_failure(flights: SingleFlight[str, int]) -> None:
    def refuse(_value: int) -> None:
        raise MemoryError("no room")

    with pytest.raises(MemoryError):
        await flights.start("a", lambda: 1, refuse).wait()
    assert len(flights) == 0


async def test_the_limiter_bounds_what_runs_at_once(nursery: trio.Nursery) -> None:
    flights: SingleFlight[int, int] = SingleFlight(nursery, trio.CapacityLimiter(2))
    compute = Computation()
    started = [flights.start(key, compute, nothing) for key in range(5)]
    await trio.testing.wait_all_tasks_blocked()
    assert (flights.limiter.borrowed_tokens, flights.limiter.statistics().tasks_waiting) == (2, 3)
    compute.may_end.set()
    assert [await flight.wait() for flight in started] == [7] * 5
    assert compute.runs == 5


async def test_shutdown_leaves_nobody_waiting() -> None:
    compute = Computation()
    waiting: Flight[int]
    async with trio.open_nursery() as application:
        flights: SingleFlight[str, int] = SingleFlight(application, trio.CapacityLimiter(1))
        running = flights.start("a", compute, nothing)
        await trio.testing.wait_all_tasks_blocked()
        waiting = flights.start("b", compute, nothing)
        await trio.testing.wait_all_tasks_blocked()
        application.cancel_scope.cancel()
        compute.may_end.set()
    with pytest.raises(trio.ClosedResourceError):
        await waiting.wait()
    assert (await running.wait(), len(flights), compute.runs) == (7, 0, 1)  # threads are not abandoned


async def test_after_shutdown_a_flight_cannot_start_and_is_not_found() -> None:
    async with trio.open_nursery() as application:
        flights: SingleFlight[str, int] = SingleFlight(application, trio.CapacityLimiter(1))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="Nursery is closed"):
            flights.start("a", lambda: 1, nothing)
    assert len(flights) == 0
