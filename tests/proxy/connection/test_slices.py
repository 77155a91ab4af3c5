"""Long work: what never waits, who goes meanwhile, and whose turn it is."""

import threading

import pytest
import trio

from proxy.connection.slices import ITEMS_AT_ONCE, each_slice, off_loop


async def beside(log: list[str], times: int) -> None:
    for _ in range(times):
        log.append("other")
        await trio.lowlevel.checkpoint()


async def test_small_work_is_done_here_without_a_checkpoint() -> None:
    with trio.CancelScope() as scope:
        scope.cancel()  # the first checkpoint would raise
        assert await off_loop(False, threading.get_ident) == threading.get_ident()
        assert await each_slice([1] * ITEMS_AT_ONCE, len) == [ITEMS_AT_ONCE]
    assert not scope.cancelled_caught


async def test_large_work_is_done_in_a_thread_and_its_errors_are_the_callers() -> None:
    assert await off_loop(True, threading.get_ident) != threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        await off_loop(True, lambda: 1 // 0)


async def test_others_go_between_two_slices(nursery: trio.Nursery) -> None:
    log: list[str] = []
    nursery.start_soon(beside, log, 20)
    await each_slice(range(5 * ITEMS_AT_ONCE), lambda _: log.append("work"))
    runs = "".join(entry[0] for entry in log).split("o")
    assert "".join(runs) == "wwwww"
    assert max(map(len, runs)) <= 2, "in each look at what is ready both have one go, in any order"


async def test_one_large_work_is_under_way_at_a_time() -> None:
    """A hundred clients with large requests have one between two looks at the network, not a hundred."""
    log: list[str] = []
    running = threading.Semaphore(1)

    def work() -> None:
        assert running.acquire(blocking=False), "another one is under way"
        running.release()

    async with trio.open_nursery() as nursery:
        for name in "abc":
            nursery.start_soon(off_loop, True, work)
            nursery.start_soon(each_slice, range(3 * ITEMS_AT_ONCE), lambda _, name=name: log.append(name))
    assert len(log) == 9
    assert all(log[at : at + 3] == [log[at]] * 3 for at in (0, 3, 6))
