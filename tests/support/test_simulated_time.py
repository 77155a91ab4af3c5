"""Virtual time for the trio thread and worker threads: order, cancellation, and runs that are stuck."""

import threading
from collections.abc import Awaitable, Callable

import pytest
import trio

from tests.support.simulated_link import LinkProfile, SimulatedLink
from tests.support.simulated_time import Simulation, SimulationStuckError, simulate

FAST = LinkProfile(first_byte_s=1.0, connection_bytes_per_s=1e6, link_bytes_per_s=1e9)


def receive(link: SimulatedLink, simulation: Simulation, size_bytes: int) -> float:
    """In a worker thread: one body; when it has come."""
    connection = link.open(size_bytes)
    connection.want(size_bytes, link.now_s)
    simulation.threads.wait(lambda: connection.has_wanted)
    return link.now_s


def test_threads_and_tasks_wait_for_their_own_moments() -> None:
    """Given bodies that end at 3 and 2 s and sleepers for 2.5 and 1.5 s, then all see their moments in that order."""
    link, seen = SimulatedLink(FAST), list[tuple[str, float]]()

    async def main(simulation: Simulation) -> None:
        async def thread(name: str, size_bytes: int) -> None:
            seen.append((name, await trio.to_thread.run_sync(receive, link, simulation, size_bytes)))

        async def sleeper(name: str, seconds: float) -> None:
            await trio.sleep(seconds)
            seen.append((name, trio.current_time()))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(thread, "large", 2_000_000)
            nursery.start_soon(thread, "small", 1_000_000)
            nursery.start_soon(sleeper, "long", 2.5)
            nursery.start_soon(sleeper, "short", 1.5)

    simulate(main, link)
    assert [name for name, _ in seen] == ["short", "small", "long", "large"]
    assert [at_s for _, at_s in seen] == pytest.approx([1.5, 2.0, 2.5, 3.0])


def test_what_a_thread_posts_is_done_at_its_moment() -> None:
    """Given a thread that posts to trio between two bodies, then the post runs while the second is under way."""
    link, posted_s = SimulatedLink(FAST), list[float]()

    async def main(simulation: Simulation) -> None:
        post = trio.lowlevel.current_trio_token().run_sync_soon

        def work() -> None:
            receive(link, simulation, 1_000_000)
            post(lambda: posted_s.append(trio.current_time()))
            receive(link, simulation, 1_000_000)

        await trio.to_thread.run_sync(work)
        assert trio.current_time() == pytest.approx(4.0)

    simulate(main, link)
    assert posted_s == pytest.approx([2.0])


def test_a_call_ends_behind_what_its_thread_posted() -> None:
    """Given a thread that posts and ends at once, then its caller finds the posts done, as with trio's own threads."""
    posted = list[int]()

    async def main(simulation: Simulation) -> None:
        post = trio.lowlevel.current_trio_token().run_sync_soon

        def work() -> None:
            for number in range(3):
                post(posted.append, number)

        await trio.to_thread.run_sync(work)
        assert posted == [0, 1, 2]

    simulate(main)


def test_results_and_errors_come_back() -> None:
    def fail() -> None:
        raise KeyError("gone")

    async def main(simulation: Simulation) -> int:
        with pytest.raises(KeyError, match="gone"):
            await trio.to_thread.run_sync(fail)
        return await trio.to_thread.run_sync(lambda: 17)

    assert simulate(main) == 17


@pytest.mark.parametrize(("abandon", "ended_s"), [(False, 2.0), (True, 1.5)])
def test_a_cancelled_call_waits_for_its_thread_unless_it_may_be_abandoned(abandon: bool, ended_s: float) -> None:
    link = SimulatedLink(FAST)

    async def main(simulation: Simulation) -> float:
        limiter = trio.CapacityLimiter(1)

        def work() -> None:
            receive(link, simulation, 1_000_000)

        with trio.move_on_after(1.5):
            await trio.to_thread.run_sync(work, abandon_on_cancel=abandon, limiter=limiter)
        at_s = trio.current_time()
        await trio.sleep(10)
        assert limiter.borrowed_tokens == 0
        return at_s

    assert simulate(main, link) == pytest.approx(ended_s)


async def wait_for_ever(simulation: Simulation) -> None:
    await trio.sleep_forever()


async def wait_for_ever_in_a_thread(simulation: Simulation) -> None:
    await trio.to_thread.run_sync(simulation.threads.wait, lambda: False)


def assert_stuck(error: ExceptionGroup[Exception]) -> None:
    stuck, others = error.split(SimulationStuckError)
    assert (stuck is not None, others) == (True, None)


@pytest.mark.parametrize("main", [wait_for_ever, wait_for_ever_in_a_thread])
def test_a_run_in_which_nothing_is_due_fails(main: Callable[[Simulation], Awaitable[None]]) -> None:
    with pytest.raises(ExceptionGroup) as caught:
        simulate(main)
    assert_stuck(caught.value)


def test_a_thread_that_waits_for_something_else_fails_the_run() -> None:
    """Given a worker thread that waits for trio, which stands still meanwhile, then the run ends with an error."""
    event = threading.Event()

    async def main(simulation: Simulation) -> None:
        await trio.to_thread.run_sync(event.wait)

    with pytest.raises(ExceptionGroup) as caught:
        simulate(main, stuck_s=0.05)
    assert_stuck(caught.value)
    event.set()
