"""GETs: of manifests and indexes, what fails is counted and what may pass is tried again; of a log, one GET in one
thread: what it hands over, when it tells, when it ends."""

import threading
from collections.abc import Callable

import pytest
import trio
import trio.testing

from metrics.cache_meters import GetMeter, GetObject, GetOutcome
from metrics.registry import Registry
from storage.cache.gets import POST_BYTES, Transfer, outcome_of
from storage.cache.pace import Throttle
from storage.cache.segment_parts import ObjectGets
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
from tests.support.cases import case
from tests.support.samples import sum_of
from tests.support.scripted_gets import Script, ScriptedSegment, expected
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


class Listener:
    """Takes what it is told of, unless it `keeps_out`; `told`: the last block by then, of each telling."""

    def __init__(self, at_block: Callable[[int], None] = lambda _: None, *, keeps_out: bool = False) -> None:
        self.at_block = at_block
        self.keeps_out = keeps_out
        self.begun = 0
        self.told = list[int]()
        self.blocks: dict[int, bytes] = {}

    def on_begun(self, transfer: Transfer) -> None:
        self.begun += 1

    def on_blocks(self, transfer: Transfer) -> None:
        self.told.append(transfer.numbers_read[-1])
        if not self.keeps_out:
            self.blocks.update((number, bytes(block.data)) for number, block in transfer.take())
        self.at_block(self.told[-1])


def post(call: Callable[..., None], *args: object) -> None:
    call(*args)


@pytest.fixture
def segment() -> ScriptedSegment:
    return ScriptedSegment(10)


def transfer_of(segment: ScriptedSegment, numbers: range = range(2, 8), *, is_waited_for: bool = True) -> Transfer:
    transfer = Transfer(segment.source, numbers)
    transfer.is_waited_for = is_waited_for
    return transfer


def test_blocks_that_nobody_waits_for_are_posted_every_few_mib() -> None:
    segment = ScriptedSegment(7, block_bytes=POST_BYTES // 2)
    listener = Listener()
    transfer_of(segment, range(7), is_waited_for=False).run(post, listener)
    assert listener.told == [1, 3, 5, 6], "and at the end of what is left"
    assert list(listener.blocks.values()) == expected(segment, range(7))
    transfer = transfer_of(segment, range(7), is_waited_for=False)

    def begin_to_wait(number: int) -> None:
        transfer.is_waited_for = True

    listener = Listener(begin_to_wait)
    transfer.run(post, listener)
    assert listener.told == [1, 2, 3, 4, 5, 6]


def test_one_that_is_stopped_was_cut_unless_that_is_at_its_end(segment: ScriptedSegment) -> None:
    transfer, listener = transfer_of(segment), Listener()
    transfer.stop()
    transfer.run(post, listener)
    assert (list(transfer.numbers_read), transfer.was_cut, listener.begun, segment.gets) == ([], True, 0, [])
    transfer = transfer_of(segment)

    def post_and_stop(call: Callable[..., None], *args: object) -> None:
        call(*args)
        transfer.stop()

    transfer.run(post_and_stop, listener)
    assert (list(transfer.numbers_read), transfer.was_cut) == ([], True), "as its answer begins"
    assert (listener.begun, listener.blocks, segment.gets[0].read_bytes) == (1, {}, 0)
    assert segment.open_gets == []
    last = transfer_of(segment)
    last.run(post, Listener(lambda number: last.stop() if number == 7 else None))
    assert (last.is_stopped, last.was_cut) == (True, False)


def test_blocks_before_a_failure_are_handed_over(segment: ScriptedSegment) -> None:
    for is_waited_for in [True, False]:
        segment.script(Script(fails={5: RetriableRemoteStorageError("reset")}))
        transfer, listener = transfer_of(segment, is_waited_for=is_waited_for), Listener()
        with case(is_waited_for), pytest.raises(RetriableRemoteStorageError):
            transfer.run(post, listener)
        assert list(listener.blocks) == list(transfer.numbers_read) == [2, 3, 4]
        assert listener.told == ([2, 3, 4] if is_waited_for else [4])
        assert not transfer.was_cut
        assert segment.open_gets == []


def test_a_stream_that_gives_too_little_is_corrupt(segment: ScriptedSegment) -> None:
    segment.script(Script(short=True))
    with pytest.raises(CorruptObjectError, match="block 2 has 15 bytes, 16 wanted"):
        transfer_of(segment).run(post, Listener())
    assert segment.open_gets == []
