"""GETs of manifests and indexes: what fails is counted, and what may pass is tried again."""

import threading
from collections.abc import Callable

import pytest
import trio
import trio.testing

from metrics.get_meter import GetMeter, GetObject, GetOutcome
from metrics.registry import Registry
from storage.cache.gets import outcome_of
from storage.cache.object_gets import ObjectGets
from storage.cache.throttle import Throttle
from storage.errors import (
    CorruptObjectError,
    InvalidRangeError,
    RemoteAccessDeniedError,
    RemoteResourceNotFoundError,
    RetriableRemoteStorageError,
    StalledTransferError,
    ThrottledError,
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


async def test_what_passes_is_tried_again_where_more_than_one_attempt_is_wanted() -> None:
    world, once = World(), World(age_ms=0)
    trouble = [RetriableRemoteStorageError("503")] * (ATTEMPTS_MAX - 1)
    assert await world.gets.run(METADATA, INDEX, world.failing(*trouble)) == "in thread True"
    assert (world.ended(GetOutcome.RETRIABLE), world.ended(GetOutcome.OK)) == (ATTEMPTS_MAX - 1, 1)
    assert world.registry.sample_value("tidegate_get_retries_total", {}) == ATTEMPTS_MAX - 1
    with pytest.raises(RemoteResourceNotFoundError, match="404"):
        await once.gets.run_once(INDEX, once.failing(RemoteResourceNotFoundError("404")))
    assert (once.attempts, once.ended(GetOutcome.NOT_FOUND)) == (1, 1)


async def test_what_stays_is_raised_after_its_attempts() -> None:
    for error, attempts in [
        (RetriableRemoteStorageError("503"), ATTEMPTS_MAX),
        (CorruptObjectError("bytes"), CORRUPT_ATTEMPTS_MAX),
        (RemoteResourceNotFoundError("404"), 1),
        (RemoteAccessDeniedError("403"), 1),
    ]:
        world = World()
        with pytest.raises(type(error)) as caught:
            await world.gets.run(METADATA, INDEX, world.failing(*[error] * 9))
        assert caught.value is error
        assert world.attempts == attempts


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


def test_the_cause_is_the_errors_class() -> None:
    for error, cause in [
        (RemoteResourceNotFoundError("404"), GetOutcome.NOT_FOUND),
        (RetriableRemoteStorageError("500"), GetOutcome.RETRIABLE),
        (ThrottledError("503"), GetOutcome.THROTTLED),
        (StalledTransferError("silence"), GetOutcome.RETRIABLE),
        (RemoteAccessDeniedError("403"), GetOutcome.DENIED),
        (CorruptObjectError("bytes"), GetOutcome.CORRUPT),
        (InvalidRangeError("416"), GetOutcome.ERROR),
        (ZeroDivisionError(), GetOutcome.ERROR),
    ]:
        assert outcome_of(error) is cause
