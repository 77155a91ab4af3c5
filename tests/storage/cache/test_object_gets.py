"""GETs of manifests and indexes: what fails is counted, what may pass is tried again."""

import threading
from collections.abc import Callable

import pytest
import trio
import trio.testing

from metrics.cache_meters import GetMeter, GetObject, GetOutcome
from metrics.registry import Registry
from storage.cache.pace import Throttle
from storage.cache.segment_parts import ObjectGets
from storage.errors import (
    CorruptObjectError,
    RemoteAccessDeniedError,
    RemoteResourceNotFoundError,
    RetriableRemoteStorageError,
)
from storage.object_store.retries import ATTEMPTS_MAX, CORRUPT_ATTEMPTS_MAX
from tests.support.samples import sum_of
from tests.support.segments import FIRST_TIMESTAMP_MS, filled_segment, metadata_of, topic_partition

pytestmark = pytest.mark.autojump

INDEX = GetObject.INDEX
METADATA = metadata_of(topic_partition(), filled_segment(0, batch_count=1))


class World:
    """GETs under a clock, and what they were counted as."""

    def __init__(self, age_ms: int = 3_600_000) -> None:
        self.registry = Registry()
        self.attempts = 0
        self.limiter = trio.CapacityLimiter(1)
        meter = GetMeter(self.registry)
        self.gets = ObjectGets(self.limiter, meter, Throttle(32, meter), lambda: FIRST_TIMESTAMP_MS + age_ms)

    def failing(self, *errors: Exception) -> Callable[[], str]:
        left = list(errors)

        def get() -> str:
            self.attempts += 1
            if left:
                raise left.pop(0)
            return f"in thread {threading.current_thread() is not threading.main_thread()}"

        return get

    def ended(self, outcome: GetOutcome) -> float:
        return sum_of(self.registry, "tidegate_gets_total", {"object": INDEX, "outcome": outcome})


async def test_what_passes_is_tried_again() -> None:
    world = World()
    trouble = [RetriableRemoteStorageError("503")] * (ATTEMPTS_MAX - 1)
    assert await world.gets.run(METADATA, INDEX, world.failing(*trouble)) == "in thread True"
    assert world.ended(GetOutcome.RETRIABLE) == ATTEMPTS_MAX - 1
    assert world.ended(GetOutcome.OK) == 1
    assert world.registry.sample_value("tidegate_get_retries_total", {}) == ATTEMPTS_MAX - 1


@pytest.mark.parametrize(
    ("error", "attempts"),
    [
        (RetriableRemoteStorageError("503"), ATTEMPTS_MAX),
        (CorruptObjectError("bytes"), CORRUPT_ATTEMPTS_MAX),
        (RemoteResourceNotFoundError("404"), 1),
        (RemoteAccessDeniedError("403"), 1),
    ],
)
async def test_what_stays_is_raised_after_its_attempts(error: Exception, attempts: int) -> None:
    world = World()
    with pytest.raises(type(error)) as caught:
        await world.gets.run(METADATA, INDEX, world.failing(*[error] * 9))
    assert caught.value is error
    assert world.attempts == attempts


async def test_one_attempt_is_one() -> None:
    world = World(age_ms=0)
    with pytest.raises(RemoteResourceNotFoundError, match="404"):
        await world.gets.run_once(INDEX, world.failing(RemoteResourceNotFoundError("404")))
    assert (world.attempts, world.ended(GetOutcome.NOT_FOUND)) == (1, 1)


async def test_who_waits_for_the_next_attempt_holds_no_place(nursery: trio.Nursery) -> None:
    world = World()
    nursery.start_soon(
        world.gets.run, METADATA, INDEX, world.failing(RetriableRemoteStorageError("503", retry_after_s=5))
    )
    await tried(world, 1)
    assert world.limiter.borrowed_tokens == 0
    await trio.sleep(5)
    await tried(world, 2)


async def tried(world: World, attempts: int) -> None:
    """Wait until so many attempts have ended; the clock does not wait for worker threads."""
    while world.attempts < attempts or world.limiter.borrowed_tokens:
        await trio.lowlevel.checkpoint()
