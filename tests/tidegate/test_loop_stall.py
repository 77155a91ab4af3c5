"""A late waking is measured; a punctual one counts as none."""

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from metrics.meters import Meters
from tidegate.loop_stall import watch_loop


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


async def test_lost_log_lines_are_counted(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    meters, lost = Meters(), [2, 2, 5]
    monkeypatch.setattr("tidegate.loop_stall.lines_lost", lambda: lost.pop(0) if len(lost) > 1 else lost[0])
    with trio.move_on_after(0.55):
        await watch_loop(meters.loop)
    assert meters.registry.sample_value("tidegate_log_lines_lost_total") == 5
