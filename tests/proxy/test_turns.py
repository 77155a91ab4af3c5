"""A time limit gives up nothing that came in time, however late the loop looks at it."""

import pytest
import trio
from trio.testing import MockClock

from proxy.turns import move_on_after

pytestmark = pytest.mark.autojump


async def test_what_comes_in_the_turn_of_the_limit_counts(mock_clock: MockClock) -> None:
    for _ in range(20):  # the tasks of one turn run in any order
        first, second, third = trio.Event(), trio.Event(), trio.Event()

        async def pass_on(heard: trio.Event, told: trio.Event) -> None:
            await heard.wait()
            told.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(pass_on, first, second)
            nursery.start_soon(pass_on, second, third)
            with move_on_after(1.0) as limited:
                await trio.sleep(0.5)
                trio.lowlevel.current_trio_token().run_sync_soon(first.set)
                mock_clock.jump(3.0)
                await third.wait()
        assert not limited.cancelled_caught


async def test_the_limit_ends_what_does_not_come() -> None:
    began_s = trio.current_time()
    with move_on_after(1.0) as limited:
        await trio.sleep_forever()
    assert limited.cancelled_caught
    assert trio.current_time() == began_s + 1.0


async def test_what_leaves_in_time_is_not_ended_later() -> None:
    with pytest.raises(ValueError, match="as it came"), move_on_after(1.0):
        raise ValueError("as it came")
    before = trio.lowlevel.current_statistics().tasks_living
    with move_on_after(1.0):
        await trio.lowlevel.checkpoint()
    await trio.sleep(2.0)
    assert trio.lowlevel.current_statistics().tasks_living < before
