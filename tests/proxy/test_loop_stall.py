"""A late waking is measured; a punctual one counts as none."""

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from metrics.meters import Meters
from proxy.process.upkeep import watch_loop


def value(meters: Meters, name: str) -> float | None:
    return meters.registry.sample_value(f"tidegate_loop_stall_{name}")


async def test_punctual_wakings_are_counted_without_lateness(autojump_clock: MockClock) -> None:
    meters = Meters()
    with trio.move_on_after(1.05):
        await watch_loop(meters.loop)
    assert value(meters, "seconds_count") == 10
    assert value(meters, "max_seconds") == 0


async def test_a_blocked_loop_shows_as_lateness(mock_clock: MockClock, nursery: trio.Nursery) -> None:
    meters = Meters()
    nursery.start_soon(watch_loop, meters.loop)
    await wait_all_tasks_blocked()
    mock_clock.jump(0.35)  # the sleeper was due after 0.1
    await wait_all_tasks_blocked()
    lateness_s = value(meters, "max_seconds")
    assert lateness_s is not None
    assert abs(lateness_s - 0.25) < 1e-9
    assert value(meters, "seconds_count") == 1


async def test_the_interval_is_counted_from_the_waking(mock_clock: MockClock, nursery: trio.Nursery) -> None:
    meters = Meters()
    nursery.start_soon(watch_loop, meters.loop)
    await wait_all_tasks_blocked()
    mock_clock.jump(5.0)
    await wait_all_tasks_blocked()
    mock_clock.jump(0.1)
    await wait_all_tasks_blocked()
    assert value(meters, "seconds_count") == 2  # one stall is one observation, not fifty


async def test_the_tasks_of_the_loop_are_counted(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    meters = Meters()
    nursery.start_soon(watch_loop, meters.loop)
    await trio.sleep(0.15)
    before = meters.registry.sample_value("tidegate_tasks")
    assert before is not None
    for _ in range(7):
        nursery.start_soon(trio.sleep, 0.2)
    await trio.sleep(0.1)
    assert meters.registry.sample_value("tidegate_tasks") == before + 7
    await trio.sleep(0.2)
    assert meters.registry.sample_value("tidegate_tasks") == before
    nursery.cancel_scope.cancel()
