"""Where blocking calls run: worker threads, a bounded number of them, and none of them ever abandoned.

An upload that was begun is either finished or given back, so its waiter cannot walk away from it. Tests run
the calls elsewhere, in an order of their own (`Threads` is what they take the place of).
"""

from collections.abc import Callable
from typing import Protocol, TypeVar

import trio

_OTHER_THREADS = 32

T = TypeVar("T")


class Threads(Protocol):
    """Runs blocking calls for trio tasks."""

    async def run(self, call: Callable[[], T]) -> T:
        """Return what the call returns or raises. Cancellation: only before it has begun."""
        ...


class WorkerThreads:
    """trio's own worker threads.

    Args:
        slots_max: uploads at once. They take minutes, so they must not use up the threads that the rest of the process
            shares; and letting go of a partition does not wait for the uploads of others.
    """

    def __init__(self, slots_max: int) -> None:
        self._limiter = trio.CapacityLimiter(slots_max + _OTHER_THREADS)

    async def run(self, call: Callable[[], T]) -> T:
        """As Threads.run."""
        return await trio.to_thread.run_sync(call, limiter=self._limiter)
