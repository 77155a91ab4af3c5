"""One computation per key, however many ask for it; it outlives those who asked.

Rule 1. A flight runs in the application's nursery, never in a client's: a caller that is cancelled stops to
        wait, the flight goes on and the next caller finds its result (design L3).
Rule 2. A failure goes to everyone who waits at that moment and is not kept: the next caller starts afresh.
Rule 3. Only one trio thread touches this object. The computation itself is blocking and runs in a worker
        thread behind a limiter, which is the only bound on parallel work (design L6).
"""

from collections.abc import Callable
from typing import Generic, TypeVar

import trio

K = TypeVar("K")
V = TypeVar("V")


class Flight(Generic[V]):
    """A computation under way."""

    __slots__ = ("_done", "_error", "_value")

    def __init__(self) -> None:
        self._done = trio.Event()
        self._value: V | None = None
        self._error: Exception | None = None

    async def wait(self) -> V:
        """The value, or the error that the computation raised.

        Cancellation: the flight goes on.
        """
        await self._done.wait()
        if self._error is not None:
            # A fresh traceback for every waiter: raising one object from many tasks would grow its own.
            raise self._error.with_traceback(None)
        return self._value  # type: ignore[return-value]  # set before _done whenever there is no error

    def land(self, value: V) -> None:
        self._value = value
        self._done.set()

    def fail(self, error: Exception) -> None:
        self._error = error
        self._done.set()


class SingleFlight(Generic[K, V]):
    """Flights by key."""

    def __init__(self, nursery: trio.Nursery, limiter: trio.CapacityLimiter) -> None:
        self._nursery = nursery
        self._limiter = limiter
        self._flights: dict[K, Flight[V]] = {}

    def __len__(self) -> int:
        return len(self._flights)

    @property
    def limiter(self) -> trio.CapacityLimiter:
        return self._limiter

    def start(self, key: K, compute: Callable[[], V], on_value: Callable[[V], None]) -> Flight[V]:
        """The flight for `key`, started now if there is none.

        `compute` blocks, in a worker thread. `on_value` is called in the trio thread before the waiters wake,
        so that whoever asks next finds the value where it was put.
        """
        flight = self._flights.get(key)
        if flight is None:
            flight = Flight()
            # First, because it raises once the nursery is closed: nobody may find a flight that never starts.
            self._nursery.start_soon(self._run, key, flight, compute, on_value)
            self._flights[key] = flight
        return flight

    async def _run(self, key: K, flight: Flight[V], compute: Callable[[], V], on_value: Callable[[V], None]) -> None:
        try:
            value = await trio.to_thread.run_sync(compute, limiter=self._limiter)
            on_value(value)
        except Exception as error:  # every failure belongs to the waiters; the nursery must live on
            del self._flights[key]
            flight.fail(error)
        except BaseException:  # shutdown: nobody may be left waiting for a flight that no longer exists
            del self._flights[key]
            flight.fail(trio.ClosedResourceError("the application is shutting down"))
            raise
        else:
            del self._flights[key]
            flight.land(value)
