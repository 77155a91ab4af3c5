"""Where blocking calls run: worker threads, a bounded number of them, and none of them ever abandoned.

An upload that was begun is either finished or given back, so its waiter cannot walk away from it.
"""

from collections.abc import Callable
from typing import TypeVar

import trio

_OTHER_THREADS = 32

T = TypeVar("T")


class WorkerThreads:
    """trio's own worker threads.

    Args:
        slots_max: uploads at once. They take minutes, so they must not use up the threads that the rest of the process
            shares; and letting go of a partition does not wait for the uploads of others.
    """

    def __init__(self, slots_max: int) -> None:
        self._limiter = trio.CapacityLimiter(slots_max + _OTHER_THREADS)

    async def run(self, call: Callable[[], T]) -> T:
        """Return what the call returns or raises. Cancellation: only before it has begun."""
        return await trio.to_thread.run_sync(call, limiter=self._limiter)
