"""What connections usually do, and which GET lags behind."""

import pytest

from storage.cache.connection_speed import SAMPLE_BYTES_MIN, WEIGHT, BodyProgress, ConnectionSpeed

MB = 1_000_000


def test_speed_is_unknown_until_a_get_has_ended() -> None:
    assert ConnectionSpeed().bytes_per_s is None


def test_speed_is_a_mean_that_follows_the_latest_gets() -> None:
    speed = ConnectionSpeed()
    speed.on_get(20 * MB, 0.5)
    assert speed.bytes_per_s == 40 * MB
    speed.on_get(20 * MB, 1.0)
    assert speed.bytes_per_s == pytest.approx(40 * MB - WEIGHT * 20 * MB)
    for _ in range(30):
        speed.on_get(20 * MB, 1.0)
    assert speed.bytes_per_s == pytest.approx(20 * MB, rel=0.01)


def test_bodies_that_were_there_at_once_say_nothing() -> None:
    speed = ConnectionSpeed()
    speed.on_get(SAMPLE_BYTES_MIN - 1, 1.0)
    speed.on_get(100 * MB, 0.0)
    assert speed.bytes_per_s is None


def test_a_body_is_slow_below_a_quarter_of_the_usual_speed() -> None:
    progress = BodyProgress(begun_s=10.0)
    progress.on_bytes(10.5, 4 * MB)
    assert not progress.is_slow(10.99, 20 * MB, 1 * MB)
    assert progress.is_slow(10.99, 21 * MB, 1 * MB)
    assert not progress.is_slow(10.99, None, 1 * MB)


def test_half_a_second_must_pass_before_a_body_is_slow() -> None:
    progress = BodyProgress(begun_s=10.0)
    assert not progress.is_slow(10.49, 1e12, 1)
    assert progress.is_slow(10.5, 1e12, 1)


def test_a_block_that_takes_long_at_any_speed_is_no_stall() -> None:
    progress = BodyProgress(begun_s=0.0)
    assert not progress.is_slow(3.9, 16 * MB, 16 * MB)
    assert progress.is_slow(4.1, 16 * MB, 16 * MB)


def test_only_the_latest_half_second_counts() -> None:
    progress = BodyProgress(begun_s=0.0)
    progress.on_bytes(1.0, 1000 * MB)
    assert not progress.is_slow(1.4, 40 * MB, MB)
    progress.on_bytes(1.4, 1 * MB)
    assert progress.is_slow(1.6, 40 * MB, MB)
    progress.restart(1.6)
    assert not progress.is_slow(2.0, 40 * MB, MB)
    assert progress.is_slow(2.2, 40 * MB, MB)
