"""What calls in tasks of their own come to, for tests that look at several at a time.

async with outcomes() as got:
    got.start(pool.get, opener, times=5)
    await trio.testing.wait_all_tasks_blocked()
    gate.set()
assert [str(error) for error in got.raised] == ["refused"] * 5
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio


class Outcomes:
    def __init__(self, nursery: trio.Nursery) -> None:
        self.returned: list[Any] = []
        self.raised: list[Exception] = []
        self.nursery = nursery

    def start(self, call: Callable[..., Awaitable[Any]], *arguments: object, times: int = 1) -> None:
        for _ in range(times):
            self.nursery.start_soon(self._run, call, arguments)

    async def _run(self, call: Callable[..., Awaitable[Any]], arguments: tuple[object, ...]) -> None:
        try:
            self.returned.append(await call(*arguments))
        except Exception as error:
            self.raised.append(error)


@asynccontextmanager
async def outcomes() -> AsyncIterator[Outcomes]:
    """Leaving the block waits for all calls."""
    async with trio.open_nursery() as nursery:
        yield Outcomes(nursery)
