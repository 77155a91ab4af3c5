"""Time limits on an event loop that may be late: what has come by then counts before the time does.

A loop that is starved wakes long after a limit, with answers in its sockets and threads that came in time. trio cancels
before it looks at them. So a limit first lets those run whom an answer wakes.
"""

from types import TracebackType
from typing import Self

import trio

TURNS = 6
"""From an answer in a socket or thread to the task that waits for it: each task on the way takes one."""

LATE_S = 0.1
"""A loop that wakes so long after the time has too little of its processor: what it waited for may be no slower than it
is. A turn of a loop that keeps up takes some ms."""


async def arrive() -> None:
    """Let what has come reach those who wait for it."""
    for _ in range(TURNS):
        await trio.lowlevel.checkpoint()


class move_on_after:  # in place of trio's
    """Move on as trio does; but what has come in time is not given up, however late the loop is."""

    __slots__ = ("_counting", "_limited", "_seconds")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._limited, self._counting = trio.CancelScope(), trio.CancelScope()

    @property
    def cancelled_caught(self) -> bool:
        """Return whether the time was up."""
        return self._limited.cancelled_caught

    def __enter__(self) -> Self:
        self._limited.__enter__()
        trio.lowlevel.spawn_system_task(self._count, trio.current_time() + self._seconds)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._counting.cancel()
        return self._limited.__exit__(kind, error, trace)

    async def _count(self, time_s: float) -> None:
        with self._counting:
            await trio.sleep_until(time_s)
            await arrive()
            self._limited.cancel()
