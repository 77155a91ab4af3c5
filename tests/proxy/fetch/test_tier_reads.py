"""The reads of one Fetch: started, settled after the probe, waited for, given up."""

import math
import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import structlog.testing
import trio
from trio.testing import MockClock

from protocol.client.errors import UpstreamConnectionError
from proxy.connection.client_reads import ClientReads
from proxy.fetch.plan import Share, TierPart
from proxy.fetch.reads import FINISH_S, READS_AT_ONCE_MAX, TierReads
from proxy.turns import LATE_S, TURNS
from storage.cache.byte_budget import ByteBudget
from storage.cache.held_blocks import AnswerBlocks
from storage.errors import RetriableRemoteStorageError
from storage.log.block import Block
from storage.log.log_walk import CorruptLogError
from storage.metadata.catalog import Catalog
from storage.model import TopicIdPartition
from storage.reading.reader import OffsetNotInTierError, ReadTime, TierRecords
from tests.support.fake_wire import BATCH_BYTES
from tests.support.tier_world import NODE_ID, ScriptedReader, TierWorld, ask

pytestmark = pytest.mark.autojump

WAITING = "kafka_server_delayedoperationpurgatory_purgatorysize"


SHARE = Share(1000, may_exceed=True)


async def parts_of(world: TierWorld, count: int, *, offset: int = 17) -> list[TierPart]:
    partitions = [world.add_partition("orders", number) for number in range(count)]
    await world.frontiers.refresh(NODE_ID, partitions)
    parts = []
    for partition in partitions:
        frontier = world.frontiers.get(NODE_ID, partition)
        assert frontier is not None
        parts.append(TierPart(ask(partition, offset), partition, frontier))
    return parts


def reads_of(
    world: TierWorld,
    parts: list[TierPart],
    *,
    share: Share = SHARE,
    wait_s: float = 1.0,
    committed: bool = False,
    is_settled: bool = True,
) -> TierReads:
    """Reads that the broker has vouched for, unless they are to be settled by the test."""
    meter, client = world.meters.tier, ClientReads()
    reads = TierReads(world.tier, meter, client, trio.current_time(), wait_s, committed=committed)
    reads.go_on_in(world.nursery)
    reads.start(parts, dict.fromkeys(parts, share))
    if is_settled:
        settle(reads, parts)
    return reads


def settle(
    reads: TierReads, vouched: Sequence[TierPart], outdated: Sequence[TierPart] = (), share: Share = SHARE
) -> None:
    reads.settle({part: part.frontier for part in vouched}, dict.fromkeys(vouched, share), outdated)


def sizes_of(reads: TierReads, parts: list[TierPart]) -> list[int | None]:
    results = [reads.results.get(part) for part in parts]
    return [result.size_bytes if isinstance(result, TierRecords) else None for result in results]


async def test_reads_that_have_not_begun_when_the_wait_ends_never_do(world: TierWorld) -> None:
    parts = await parts_of(world, READS_AT_ONCE_MAX + 3)
    world.reader.delay_s = 2.0
    reads = reads_of(world, parts)
    await reads.wait_until(1.0)
    reads.stop()
    assert reads.expired == {*parts}
    await trio.sleep(10.0)
    assert len(world.reader.reads) == READS_AT_ONCE_MAX
    assert not reads.pending


async def test_a_read_in_line_that_nobody_wants_any_more_does_not_begin(world: TierWorld) -> None:
    parts = await parts_of(world, READS_AT_ONCE_MAX + 3)
    world.reader.delay_s = 0.1
    reads = reads_of(world, parts, is_settled=False)
    await trio.sleep(0.05)
    *wanted, unwanted = parts
    settle(reads, wanted, parts[-2:-1])
    await reads.wait_until(10.0)
    assert trio.current_time() == pytest.approx(0.2)
    assert sizes_of(reads, parts) == [1000] * len(wanted) + [None]
    assert unwanted.partition not in [partition for partition, *_ in world.reader.reads]
    assert len(world.reader.reads) == len(wanted)  # the one that was to be read again had not begun either


async def test_many_reads_of_what_is_at_hand_let_others_run(world: TierWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = 0

    async def at_hand(*_: object, **wishes: object) -> TierRecords:
        nonlocal begun
        begun += 1
        return TierRecords([memoryview(b"x")], 1)

    monkeypatch.setattr(world.reader, "give", at_hand)
    parts = await parts_of(world, 5 * READS_AT_ONCE_MAX)
    reads = reads_of(world, parts)
    seen = []
    while reads.pending:
        seen.append(begun)
        await trio.lowlevel.checkpoint()
    assert max(after - before for before, after in pairwise([*seen, begun])) <= 2 * READS_AT_ONCE_MAX
    assert begun == len(parts)


async def test_reads_that_have_nothing_at_the_deadline_are_expired(world: TierWorld) -> None:
    parts = await parts_of(world, 2)
    world.reader.delays_s = {parts[1].partition: 10.0}
    reads = reads_of(world, parts, wait_s=1.0)
    await reads.wait_until(reads.deadline_s)
    assert trio.current_time() == 1.0
    assert sizes_of(reads, parts) == [1000, None]
    reads.stop()
    assert reads.expired == {parts[1]}
    assert world.sample("kafka_server_delayedremotefetchmetrics_expires_total") == 1


class CollectingReader(ScriptedReader):
    """Has a batch after 0.1 s, and one more every 0.1 s, up to ten; it takes `finish_s` to check what it has."""

    def __init__(self, catalog: Catalog, finish_s: float = 0.0) -> None:
        super().__init__(catalog)
        self.finish_s = finish_s

    async def give(self, partition: TopicIdPartition, offset: int, **wishes: Any) -> TierRecords:
        time: ReadTime = wishes["time"]
        await trio.sleep(0.1)
        count, time.has_batch = 1, True
        while count < 10 and await time.more(partial(trio.sleep, 0.1)):
            count += 1
        await trio.sleep(self.finish_s)
        return TierRecords([memoryview(bytes(BATCH_BYTES))] * count, count * BATCH_BYTES)


async def test_what_a_read_has_when_it_is_stopped_is_its_result(nursery: trio.Nursery) -> None:
    """It was thrown away: a read had all that it was asked for, or nothing."""
    for stop_s, batches in ((0.05, None), (0.15, 1), (0.45, 4), (2.0, 6)):
        world = TierWorld(nursery, open_reader=CollectingReader)
        parts, began_s = await parts_of(world, 1), trio.current_time()
        async with trio.open_nursery() as world.nursery:
            reads = reads_of(world, parts, wait_s=0.65)
            await reads.wait_until(began_s + stop_s)
            reads.stop()
        assert trio.current_time() - began_s == pytest.approx(min(stop_s, 0.65))
        assert sizes_of(reads, parts) == [None if batches is None else batches * BATCH_BYTES], f"{stop_s=}"


async def test_a_read_that_is_stopped_has_a_moment_to_check_what_it_has(nursery: trio.Nursery) -> None:
    for finish_s, is_there in ((FINISH_S / 2, True), (2 * FINISH_S, False)):
        world = TierWorld(nursery, open_reader=partial(CollectingReader, finish_s=finish_s))
        parts, began_s = await parts_of(world, 1), trio.current_time()
        async with trio.open_nursery() as world.nursery:
            reads = reads_of(world, parts)
            await reads.wait_until(began_s + 0.15)
            reads.stop()
        assert trio.current_time() - began_s == pytest.approx(0.15 + min(finish_s, FINISH_S))
        assert sizes_of(reads, parts) == [BATCH_BYTES if is_there else None], f"{finish_s=}"


async def test_stopped_reads_leave_the_nursery(world: TierWorld) -> None:
    parts = await parts_of(world, 3)
    world.reader.delay_s = 1000.0
    async with trio.open_nursery() as world.nursery:
        reads = reads_of(world, parts, wait_s=1000.0)
        assert world.sample(WAITING, delayedOperation="RemoteFetch") == 1
        await trio.sleep(0.1)
        reads.stop()
        assert world.sample(WAITING, delayedOperation="RemoteFetch") == 0
    assert trio.current_time() == 0.1
    assert not reads.results


async def test_a_fault_is_a_result_and_a_line_and_others_go_on(nursery: trio.Nursery) -> None:
    for fault, level in (
        # Said once a spell, by proxy.fetch.fallback: a client may ask again 200 times a second.
        (RetriableRemoteStorageError("503"), "debug"),
        (CorruptLogError("crc", 0, 1), "debug"),
        (UpstreamConnectionError("no leader"), "debug"),
        (trio.ClosedResourceError("ours"), "error"),
        (ExceptionGroup("two", [ValueError("one")]), "error"),
    ):
        world = TierWorld(nursery)
        parts = await parts_of(world, 2)
        world.reader.failures[parts[0].partition] = fault
        with structlog.testing.capture_logs() as lines:
            reads = reads_of(world, parts)
            await reads.wait_until(math.inf)
        reads.stop()
        assert reads.results[parts[0]] is fault
        assert sizes_of(reads, parts) == [None, 1000], fault
        assert [line["log_level"] for line in lines] == [level], fault
        assert (lines[0]["partition"], lines[0]["offset"]) == (str(parts[0].partition), 17), fault


# --- after the probe ---


async def test_reads_that_nobody_wants_are_given_up(world: TierWorld) -> None:
    parts = await parts_of(world, 3)
    world.reader.delays_s = {parts[1].partition: 10.0, parts[2].partition: 0.2}
    reads = reads_of(world, parts)
    await trio.sleep(0.1)
    assert sizes_of(reads, parts) == [1000, None, None]
    settle(reads, parts[2:])
    assert (reads.pending, reads.any_records) == (True, False)
    await reads.wait_until(100.0)
    assert trio.current_time() == pytest.approx(0.2)
    assert set(reads.results) == {parts[2]}


async def test_a_read_is_started_anew_with_what_is_known_by_then(world: TierWorld) -> None:
    parts = await parts_of(world, 2)
    world.reader.delays_s = {parts[1].partition: 0.3}
    reads = reads_of(world, parts, share=Share(200, may_exceed=True))
    await trio.sleep(0.1)
    settle(reads, parts, share=Share(500))
    await reads.wait_until(100.0)
    assert sizes_of(reads, parts) == [500, 500]
    assert trio.current_time() == pytest.approx(0.4)


class HoldingReader(ScriptedReader):
    """Gives records that hold a block of one byte each; it is too late to cancel a read that began to end."""

    def __init__(self, catalog: Catalog, answers: AnswerBlocks) -> None:
        super().__init__(catalog)
        self._answers = answers

    async def give(self, partition: TopicIdPartition, offset: int, **wishes: Any) -> TierRecords:
        records = await super().give(partition, offset, **wishes)
        with trio.CancelScope(shield=True):
            await trio.sleep(0.01)
        room = self._answers.room()
        assert room.try_reserve(1)
        room.keep([Block(memoryview(b"x"))])
        return replace(records, room=room)


@pytest.fixture
def held() -> ByteBudget:
    """A byte for each answer whose blocks are held."""
    return ByteBudget(10)


@pytest.fixture
def holding(nursery: trio.Nursery, held: ByteBudget) -> TierWorld:
    return TierWorld(nursery, open_reader=partial(HoldingReader, answers=AnswerBlocks(held)))


async def test_what_nobody_wants_holds_nothing(holding: TierWorld, held: ByteBudget) -> None:
    parts = await parts_of(holding, 3)
    holding.reader.delays_s = {parts[2].partition: 0.1}
    reads = reads_of(holding, parts, is_settled=False)
    await trio.sleep(0.105)  # the third has its records by now, and has yet to bring them
    assert held.held == 2
    settle(reads, parts[:1])
    assert held.held == 1
    await trio.sleep(0.1)
    assert held.held == 1


async def test_from_the_deadline_on_nothing_is_held_for_a_word_to_come(holding: TierWorld, held: ByteBudget) -> None:
    parts = await parts_of(holding, 3)
    holding.reader.delays_s = {parts[1].partition: 0.5, parts[2].partition: 100.0}
    reads = reads_of(holding, parts, is_settled=False)
    await trio.sleep(0.999)
    assert (held.held, list(reads.parts)) == (2, parts)
    await trio.sleep(0.002)
    assert (held.held, reads.results, reads.pending, list(reads.parts)) == (0, {}, False, [])
    await trio.sleep(5.0)
    # The word comes: the time begins again, and what is wanted may be started once more.
    settle(reads, parts[:2])
    assert reads.deadline_s == trio.current_time() + 1.0
    reads.start(parts[:2], dict.fromkeys(parts, SHARE))
    await reads.wait_until(math.inf)
    assert sizes_of(reads, parts[:2]) == [1000, 1000]
    assert held.held == 2
    assert not reads.expired


async def test_a_word_at_the_deadline_leaves_nothing_half_done(holding: TierWorld, held: ByteBudget) -> None:
    parts = await parts_of(holding, 2)
    holding.reader.delays_s = {parts[1].partition: 100.0}
    reads = reads_of(holding, parts, is_settled=False)
    await trio.sleep(1.0)
    settle(reads, parts)
    reads.start((part for part in parts if part not in reads.parts), dict.fromkeys(parts, SHARE))
    await reads.wait_until(reads.deadline_s)
    assert trio.current_time() == 2.0
    assert sizes_of(reads, parts) == [1000, None]
    reads.stop()
    assert reads.expired == {parts[1]}
    assert held.held == 1


class PostedReader(ScriptedReader):
    """Waits for what a thread posts, in two steps as reads do: who is woken first wakes the read."""

    def __init__(self, catalog: Catalog) -> None:
        super().__init__(catalog)
        self.fetched, self.posted = threading.Event(), threading.Event()
        self.token = trio.lowlevel.current_trio_token()
        self._landed, self._lands = trio.Event(), trio.Event()

    def fetch(self) -> None:
        """In a thread."""
        self.fetched.wait()
        self.token.run_sync_soon(self._landed.set)
        self.posted.set()

    async def land(self) -> None:
        await self._landed.wait()
        self._lands.set()

    async def give(self, partition: TopicIdPartition, offset: int, **wishes: Any) -> TierRecords:
        await self._lands.wait()
        return await super().give(partition, offset, **wishes)


@pytest.mark.parametrize("is_settled", [True, False])
async def test_what_came_in_time_is_given_however_late_the_loop_is(
    nursery: trio.Nursery, mock_clock: MockClock, is_settled: bool
) -> None:
    """Failed before: the read was cancelled before anybody looked at what had come."""
    for _ in range(20):  # the tasks of one turn run in any order
        world = TierWorld(nursery, open_reader=PostedReader)
        reader = world.reader
        assert isinstance(reader, PostedReader)
        thread = threading.Thread(target=reader.fetch)
        thread.start()
        async with trio.open_nursery() as world.nursery:
            world.nursery.start_soon(reader.land)
            parts = await parts_of(world, 1)
            reads = reads_of(world, parts, is_settled=is_settled)
            await trio.sleep(0.5)
            # All this is one step of some other task: the block comes in time, and the loop is three seconds late.
            reader.fetched.set()
            reader.posted.wait()
            mock_clock.jump(3.0)
            if not is_settled:
                for _ in range(TURNS):
                    await trio.lowlevel.checkpoint()
                assert sizes_of(reads, parts) == [1000]
                settle(reads, parts)
            await reads.wait_until(reads.deadline_s)
            reads.stop()
        thread.join()
        assert sizes_of(reads, parts) == [1000]
        assert not reads.expired


async def test_a_read_is_not_late_where_the_loop_is(world: TierWorld, mock_clock: MockClock) -> None:
    """Failed before: on a starved machine the tier counted as failing, and the broker had to read."""
    world.reader.delay_s = 100.0
    for late_s, is_expired in ((0.0, True), (LATE_S / 2, True), (2 * LATE_S, False), (3.0, False)):
        (part,) = await parts_of(world, 1)
        reads = reads_of(world, [part])
        async with trio.open_nursery() as waiting:
            waiting.start_soon(reads.wait_any_until, reads.deadline_s)
            await trio.sleep(0.5)
            mock_clock.jump(0.5 + late_s)
        await reads.wait_until(reads.deadline_s)  # as who lingers for more
        reads.stop()
        assert (part in reads.expired) == is_expired, late_s


async def test_what_is_settled_before_the_deadline_stays_however_late_the_loop_is(
    world: TierWorld, mock_clock: MockClock
) -> None:
    """Failed before: who waited for the word, and ran only after the deadline, let go of what had been settled. The
    broker had to read it."""
    for _ in range(20):  # the tasks of one turn run in any order
        parts = await parts_of(world, 1)
        reads = reads_of(world, parts, is_settled=False)
        while not reads.results:
            await trio.lowlevel.checkpoint()
        settle(reads, parts)
        mock_clock.jump(5.0)
        await trio.sleep(1.0)
        assert sizes_of(reads, parts) == [1000]
        assert list(reads.parts) == parts


async def test_a_word_in_the_turn_of_the_deadline_finds_what_is_at_hand(holding: TierWorld, held: ByteBudget) -> None:
    """Failed before where the word was taken first: records that were there were thrown away, and read again."""
    word_came_first = 0
    for _ in range(20):
        parts = await parts_of(holding, 1)
        before = len(holding.reader.reads)
        reads = reads_of(holding, parts, is_settled=False)
        await trio.sleep_until(reads.deadline_s)
        is_first = bool(reads.parts)
        word_came_first += is_first
        settle(reads, parts)
        reads.start((part for part in parts if part not in reads.parts), dict.fromkeys(parts, SHARE))
        await reads.wait_until(math.inf)
        assert sizes_of(reads, parts) == [1000]
        assert len(holding.reader.reads) - before == (1 if is_first else 2)
        assert held.held == 1
        settle(reads, [])
        await trio.sleep(1.0)
    assert word_came_first


# --- misses ---


async def test_a_miss_is_tried_once_more_after_the_catalog_caught_up(world: TierWorld) -> None:
    (part,) = await parts_of(world, 1, offset=1050)
    world.tail.delay_s = 0.2
    world.tail.on_catch_up = lambda: world.add_segment(part.partition, 1000, 1099)
    reads = reads_of(world, [part])
    await trio.sleep(0.1)
    # Until then it stands as a miss, so that the broker answers if time runs out.
    assert isinstance(reads.results[part], OffsetNotInTierError)
    assert (reads.pending, reads.any_records) == (True, False)
    await reads.wait_until(1.0)
    assert sizes_of(reads, [part]) == [10 * BATCH_BYTES]


async def test_records_count_from_when_they_may_be_given(world: TierWorld) -> None:
    parts = await parts_of(world, 2)
    world.reader.delays_s = {parts[1].partition: 0.6}
    reads = reads_of(world, parts, is_settled=False)
    await trio.sleep(0.3)
    assert reads.records_since_s == 0.0
    settle(reads, parts)
    assert reads.records_since_s == 0.3
    settle(reads, parts[1:])
    assert reads.records_since_s == math.inf
    await reads.wait_until(10.0)
    assert reads.records_since_s == 0.6


async def test_the_first_that_has_records_ends_the_wait_for_any(world: TierWorld) -> None:
    parts = await parts_of(world, 3)
    world.reader.delays_s = {parts[0].partition: 0.1, parts[1].partition: 0.2, parts[2].partition: 0.3}
    world.reader.failures[parts[0].partition] = RetriableRemoteStorageError("503")
    reads = reads_of(world, parts)
    await reads.wait_any_until(10.0)
    assert trio.current_time() == 0.2
