"""Waiting for threads while the clock stands still."""

import threading

import trio
from trio.testing import MockClock

from tests.support.waiting import settled, until


async def test_a_thread_is_waited_for_while_the_clock_stands_still(autojump_clock: MockClock) -> None:
    begun, go_on, found = threading.Event(), threading.Event(), list[int]()

    def work() -> int:
        begun.set()
        assert go_on.wait(30)
        return 7

    async def ask() -> None:
        found.append(await trio.to_thread.run_sync(work))
        found.append(await trio.to_thread.run_sync(int))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep, 1000)
        nursery.start_soon(ask)
        await until(begun.is_set)
        assert found == []
        go_on.set()
        await settled()
        assert found == [7, 0], "what the thread found has been taken, and the thread after it has run"
        assert trio.current_time() == 0
        nursery.cancel_scope.cancel()
