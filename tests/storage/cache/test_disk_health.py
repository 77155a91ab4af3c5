"""The disk's rests: how long, who tries next, what may be read meanwhile."""

import errno

import pytest

from metrics.cache_meters import CacheMeter, DiskErrorCause
from metrics.registry import Registry
from storage.cache.disk import RETRY_S, DiskHealth, cause_of
from tests.support.disk_cache import Clock


class World:
    def __init__(self) -> None:
        self.registry = Registry()
        self.clock = Clock()
        self.health = DiskHealth(CacheMeter(self.registry), self.clock)

    @property
    def gauge(self) -> float | None:
        return self.registry.sample_value("tidegate_cache_disk_available")


@pytest.mark.parametrize(
    ("number", "cause"),
    [
        (errno.ENOSPC, DiskErrorCause.FULL),
        (errno.EDQUOT, DiskErrorCause.FULL),
        (errno.EROFS, DiskErrorCause.READ_ONLY),
        (errno.ENOENT, DiskErrorCause.MISSING),
        (errno.ESTALE, DiskErrorCause.MISSING),
        (errno.EACCES, DiskErrorCause.DENIED),
        (errno.EIO, DiskErrorCause.OTHER),
        (errno.EMFILE, DiskErrorCause.OTHER),
    ],
)
def test_every_error_has_a_cause(number: int, cause: DiskErrorCause) -> None:
    assert cause_of(OSError(number, "")) is cause


def test_an_error_without_a_number_has_a_cause() -> None:
    assert cause_of(OSError("strange")) is DiskErrorCause.OTHER


def test_a_disk_is_good_until_it_fails() -> None:
    world = World()
    assert world.health.is_good
    assert world.health.may_read
    assert world.health.may_write
    assert world.health.try_write()
    assert world.gauge == 1


@pytest.mark.parametrize("cause", list(DiskErrorCause))
def test_after_trouble_one_write_tries_and_the_rest_follow_when_it_has_succeeded(cause: DiskErrorCause) -> None:
    world = World()
    world.health.on_trouble(cause, "detail")
    assert world.gauge == 0
    assert not world.health.try_write()
    world.clock.now_s += RETRY_S
    assert [world.health.try_write(), world.health.may_write, world.health.try_write()] == [True, False, False]
    world.health.on_written()
    assert world.gauge == 1
    assert [world.health.try_write(), world.health.try_write()] == [True, True]


def test_a_try_that_fails_is_followed_by_another_rest() -> None:
    world = World()
    world.health.on_trouble(DiskErrorCause.FULL, "detail")
    world.clock.now_s += RETRY_S
    assert world.health.try_write()
    world.health.on_trouble(DiskErrorCause.FULL, "detail")
    world.clock.now_s += RETRY_S - 1
    assert not world.health.may_write
    world.clock.now_s += 1
    assert world.health.may_write


@pytest.mark.parametrize("cause", list(DiskErrorCause))
def test_a_full_or_read_only_disk_is_still_read_and_no_other(cause: DiskErrorCause) -> None:
    world = World()
    world.health.on_trouble(cause, "detail")
    assert world.health.may_read == (cause in (DiskErrorCause.FULL, DiskErrorCause.READ_ONLY))
    world.clock.now_s += RETRY_S
    assert world.health.may_read


def test_more_trouble_does_not_make_a_rest_longer() -> None:
    world = World()
    for _ in range(int(RETRY_S)):
        world.health.on_trouble(DiskErrorCause.READ_ONLY, "detail")
        world.clock.now_s += 1
    assert world.health.may_write
    assert world.registry.sample_value("tidegate_cache_disk_errors_total", {"cause": "read_only"}) == RETRY_S


def test_a_clock_that_is_set_back_ends_the_rest() -> None:
    world = World()
    world.health.on_trouble(DiskErrorCause.OTHER, "detail")
    world.clock.now_s -= 1_000_000
    assert world.health.may_write
