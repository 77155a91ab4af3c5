"""A speed is what came lately, in bursts or not, and nothing once nothing comes."""

import pytest

from storage.cache.recent_speed import WINDOW_S, RecentSpeed


def test_bursts_count_as_what_they_are_over_time() -> None:
    """How it failed: answers of 2 MiB in bursts, one each ten seconds, were shown as gigabytes a second."""
    speed, now_s = RecentSpeed(0.0), 0.0
    for _ in range(6):
        for _ in range(3):
            now_s += 0.0003
            speed.add(now_s, 2_000_000)
        now_s += WINDOW_S
    assert speed.at(now_s) == pytest.approx(600_000, rel=0.01)


def test_a_reader_that_stops_goes_down_to_nothing() -> None:
    speed = RecentSpeed(0.0)
    for second in range(20):
        speed.add(float(second), 1000)
    assert speed.at(19.5) == pytest.approx(1000, rel=0.1)
    speeds = [speed.at(20.0 + second) for second in range(0, 25, 5)]
    assert speeds == sorted(speeds, reverse=True)
    assert speeds[-1] == 0
