"""The idle share is weighted by time and forgets what is older than a minute."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metrics.meters import IdleAverage


class Clock:
    """Seconds that pass only when told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_pool_that_was_never_used_or_has_no_slots_is_idle() -> None:
    clock = Clock()
    idle = IdleAverage(clock)
    assert idle.idle_share() == 1.0
    clock.now += 30
    assert idle.idle_share() == 1.0
    idle.on_slots(0, 0)
    assert idle.idle_share() == 1.0


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


@given(st.lists(st.tuples(st.integers(0, 8), st.floats(0, 90)), max_size=50))
def test_the_share_stays_within_zero_and_one(changes: list[tuple[int, float]]) -> None:
    clock = Clock()
    idle = IdleAverage(clock)
    for busy, elapsed_s in changes:
        idle.on_slots(busy, 8)
        clock.now += elapsed_s
        assert -1e-9 <= idle.idle_share() <= 1 + 1e-9
