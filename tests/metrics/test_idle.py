"""The idle share is weighted by time and forgets what is older than a minute."""

import pytest

from metrics.idle_share import IdleAverage


class Clock:
    """Seconds that pass only when told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_the_share_is_weighted_by_time() -> None:
    clock = Clock()
    idle = IdleAverage(clock)
    idle.on_slots(4, 4)
    clock.now += 10
    idle.on_slots(2, 4)
    clock.now += 20
    idle.on_slots(0, 4)
    clock.now += 10
    assert idle.idle_share() == pytest.approx(1 - (10 + 10) / 40)


def test_a_busy_minute_long_past_does_not_count() -> None:
    clock = Clock()
    idle = IdleAverage(clock)
    idle.on_slots(4, 4)
    clock.now += 100
    idle.on_slots(0, 4)
    for _ in range(200):
        clock.now += 0.5
        idle.idle_share()
    assert idle.idle_share() == pytest.approx(1.0)
