"""What a copier deletes and when: waits, shares, holds, truncations, topics that are gone; over a world in memory."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from metrics.copy_meters import CopyMeter
from metrics.registry import Registry
from standalone.copier.clock import ClockGuard
from standalone.copier.copier import Copier
from standalone.copier.seams import Retention
from standalone.copier.waits import Noted
from storage.errors import RemoteStorageError
from storage.model import RemotePartitionDeleteMetadata, RemotePartitionDeleteState, TopicIdPartition
from tests.support.copy_world import PARTITION, CopyWorld, held_segments
from tests.support.running_copier import only, ranges, running, until, value
from tests.support.segments import data_batch, topic_partition

pytestmark = pytest.mark.autojump

FIVE = [
    *(topic_partition("orders", number) for number in range(2)),
    *(topic_partition("payments", number) for number in range(3)),
]


@pytest.fixture
def world(tmp_path: Path) -> CopyWorld:
    return CopyWorld(tmp_path, random.Random(7), FIVE)


async def test_a_branch_that_was_lost_as_a_whole_stays_until_retention_takes_it(world: CopyWorld) -> None:
    """Failed before: an unclean election, or a replica's lost disk, deleted the only copy at once."""
    world.upstream.append(10)
    hands = world.hands()
    async with running(hands, segment_bytes=100_000, delete_grace_ms=0) as copier:
        await until(lambda: world.ledger().end_offset() == 29)
        world.upstream.elect()
        world.upstream.append(10)
        await until(lambda: world.ledger().end_offset() == 59)
        world.upstream.elect(keep=10, epochs=1)
        world.upstream.append(5)
        await until(lambda: (30, 44) in ranges(world))
        await trio.sleep(200)
        assert sorted(ranges(world)) == [(0, 29), (30, 44), (30, 59)]
        assert (only(copier).dead_segments, value(hands, "tidegate_dead_segments", topic="orders")) == (1, 1)
        hands.retention = Retention(retention_ms=100_000)
        await until(lambda: world.finished() == [])
    assert world.store.objects == {}


async def test_a_lost_disk_stops_deletions_until_an_operator_approves(world: CopyWorld) -> None:
    world.upstream.append(60)
    hands = world.hands()
    async with running(hands, delete_grace_ms=0) as copier:
        await until(lambda: world.ledger().end_offset() == 179)
        lost = len(ranges(world))
        world.upstream.elect(keep=0)
        world.upstream.append(20)
        await until(lambda: only(copier).dead_segments == lost)
        hands.retention = Retention(retention_ms=1000)
        await until(lambda: only(copier).deletion is not None)
        await trio.sleep(100)
        deletion = only(copier).deletion
        assert deletion is not None
        assert (deletion.until_ms, deletion.is_alarming) == (None, True)
        assert "truncation" in deletion.why
        assert only(copier).dead_segments == lost
        assert value(hands, "tidegate_delete_alarming_partitions", topic="orders") == 1
        world.notes[PARTITION] = replace(world.notes[PARTITION], approved_ms=world.now_ms())
        await until(lambda: world.finished() == [])


class _Refused(dict[TopicIdPartition, Noted]):
    def __contains__(self, partition: object) -> bool:
        raise RemoteStorageError("Read on group tidegate.deletions is missing")


async def test_notes_that_cannot_be_read_stop_deletions_and_nothing_else(world: CopyWorld) -> None:
    """Failed before: the partition was shown as stalled by upstream or its store."""
    world.notes = _Refused()
    hands = world.hands()
    hands.retention = Retention(retention_ms=1000)
    async with running(hands, delete_grace_ms=0) as copier:
        for _ in range(2):
            world.upstream.append(20)
            await until(lambda: world.ledger().end_offset() == world.upstream.end_offset - 1)
        await until(lambda: "tidegate.deletions" in (only(copier).last_error or ""))
        assert (only(copier).stall, ranges(world)[0][0]) == (None, 0)


async def test_what_is_more_than_a_share_waits_the_grace_across_restarts(world: CopyWorld) -> None:
    world.upstream.append(60)
    async with running(world.hands(), delete_grace_ms=100_000):
        await until(lambda: world.ledger().end_offset() == 179)
    count, hands = len(world.finished()), world.hands()
    hands.retention = Retention(retention_bytes=2000)
    async with running(hands, delete_grace_ms=100_000) as copier:
        await until(lambda: only(copier).deletion is not None)
        began_s = trio.current_time()
        await trio.sleep(60)
        assert (len(world.finished()), world.committed[PARTITION]) == (count, 0)
    again = world.hands()
    again.retention = hands.retention
    async with running(again, generation=2, delete_grace_ms=100_000):
        await until(lambda: len(world.finished()) < count)
        assert 90 <= trio.current_time() - began_s <= 100
        await until(lambda: len(world.finished()) <= 3)


@pytest.mark.parametrize("how", ["held", "stopped", "withdrawn"])
async def test_a_wait_can_be_held_stopped_and_withdrawn(world: CopyWorld, how: str) -> None:
    world.upstream.append(60)
    hands = world.hands()
    async with running(hands, delete_grace_ms=50_000) as copier:
        await until(lambda: world.ledger().end_offset() == 179)
        count = len(world.finished())
        hands.retention = Retention(retention_bytes=2000)
        await until(lambda: PARTITION in world.notes)
        if how == "held":
            world.notes[PARTITION] = replace(world.notes[PARTITION], is_held=True)
        elif how == "stopped":
            hands.deletions_stopped = "the clock is wrong"
        else:
            hands.retention = Retention()
            await until(lambda: only(copier).deletion is None)
            await trio.sleep(45)
            hands.retention = Retention(retention_bytes=2000)  # its wait begins once more
        await trio.sleep(47)
        assert len(world.finished()) == count
        if how == "held":
            world.notes[PARTITION] = replace(world.notes[PARTITION], is_held=False)
        hands.deletions_stopped = None
        await until(lambda: len(world.finished()) <= 3)


async def test_the_log_start_is_committed_before_the_first_object_goes(world: CopyWorld) -> None:
    world.upstream.append(40)
    hands = world.hands()
    seen: list[int | None] = []
    delete_many = world.store.delete_many

    def watched(keys: Any) -> None:
        if any(key in world.store.objects for key in keys):
            seen.append(world.committed.get(PARTITION))
        delete_many(keys)

    world.store.delete_many = watched  # type: ignore[method-assign]  # to see what holds at that moment
    async with running(hands, delete_grace_ms=0):
        await until(lambda: world.ledger().end_offset() == 119)
        hands.retention = Retention(retention_bytes=2000)
        await until(lambda: bool(seen))
        await trio.sleep(5)
    assert seen
    assert set(seen) == {world.finished()[0].start_offset}
    assert world.unsafe_deletions == []


async def test_a_store_that_lets_nobody_delete_is_asked_once_an_hour_and_copying_goes_on(world: CopyWorld) -> None:
    world.upstream.append(40)
    hands = world.hands()
    async with running(hands, delete_grace_ms=0, interval_ms=60_000) as copier:
        await until(lambda: world.ledger().end_offset() == 119, within_s=600)
        world.store.refused.update(world.store.objects)
        hands.retention = Retention(retention_bytes=2000)
        await until(lambda: only(copier).deletion is not None, within_s=600)
        began_s, count = trio.current_time(), len(world.records())
        world.upstream.append(1)
        world.upstream.append_raw(data_batch(123, value_bytes=900), 123, 125)
        await until(lambda: world.ledger().end_offset() > 120, within_s=600)
        await trio.sleep(1000)
        deletions = [each for each in world.records()[count:] if "DELETE" in str(getattr(each, "state", ""))]
        errors = value(hands, "kafka_server_brokertopicmetrics_remotedeleteerrors_total", topic="orders")
        assert (errors, deletions) == (1, [])
        world.store.refused.clear()
        await until(lambda: len(world.finished()) <= 3, within_s=4000)
        assert trio.current_time() - began_s > 3500
    objects = {segment_id for segment_id, _ in held_segments(world.store)}
    assert objects == {segment.segment_id.id for segment in world.ledger().segments()}


async def test_the_partitions_of_a_topic_that_is_gone_are_deleted_after_the_grace(world: CopyWorld) -> None:
    for upstream in world.upstreams.values():
        upstream.append(20)
    hands, gone = world.hands(), FIVE[:2]
    async with running(hands, partitions=FIVE, delete_grace_ms=100_000) as copier:
        await until(lambda: all(world.ledger(each).end_offset() == 59 for each in FIVE))
        await go(world, copier, gone)
        began_s = trio.current_time()
        await until(lambda: all(world.ledger(each).marked_ms for each in gone))
        waiting = copier.gone()[0].deletion
        assert waiting is not None
        assert (waiting.segments, waiting.is_alarming) == (len(world.finished()), True)
        assert value(hands, "tidegate_delete_waiting_segments", topic="orders") == 2 * len(world.finished())
        await until(lambda: not any(world.ledger(each).segments() for each in gone), within_s=200)
        assert 100 <= trio.current_time() - began_s < 105
        await until(lambda: copier.gone() == [])
        assert {progress.topic for progress in copier.progress()} == {"payments"}
    for each in gone:
        states = [
            record.state
            for record in world.records(each)
            if isinstance(record, RemotePartitionDeleteMetadata) and record.topic_id_partition == each
        ]
        assert states == list(RemotePartitionDeleteState)
    kept = {segment.segment_id.id for each in FIVE[2:] for segment in world.finished(each)}
    assert {segment_id for segment_id, _ in held_segments(world.store)} == kept


async def go(world: CopyWorld, copier: Copier, gone: list[TopicIdPartition]) -> None:
    """Their topics are deleted at upstream, and the copier hears of it."""
    for each, upstream in world.upstreams.items():
        upstream.is_gone |= each.topic_id in {partition.topic_id for partition in gone}
    copier.follow_gone(gone)


async def test_the_grace_of_a_gone_topic_outlasts_a_restart(world: CopyWorld) -> None:
    world.upstream.append(20)
    async with running(world.hands(), delete_grace_ms=100_000) as copier:
        await until(lambda: world.ledger().end_offset() == 59)
        await go(world, copier, [PARTITION])
        await until(lambda: world.ledger().marked_ms is not None)
        began_s = trio.current_time()
        await trio.sleep(60)
    assert world.finished() != []
    async with running(world.hands(), partitions=(), delete_grace_ms=100_000) as copier:
        copier.follow_gone([PARTITION])
        await until(lambda: world.store.objects == {})
    assert 100 <= trio.current_time() - began_s < 105


async def test_what_an_operator_holds_is_held_still_when_its_topic_goes(world: CopyWorld) -> None:
    """Failed before: the hold ended with the topic."""
    world.upstream.append(20)
    async with running(world.hands(), delete_grace_ms=10_000) as copier:
        await until(lambda: world.ledger().end_offset() == 59)
        world.notes[PARTITION] = Noted(is_held=True)
        await go(world, copier, [PARTITION])
        await until(lambda: world.ledger().marked_ms is not None)
        await trio.sleep(100)
        waiting = copier.gone()[0].deletion
        assert (waiting.why if waiting else None, len(world.finished()) > 0) == ("an operator holds it", True)


async def test_a_topic_that_is_there_again_is_copied_again_and_its_next_grace_is_whole(world: CopyWorld) -> None:
    world.upstream.append(20)
    async with running(world.hands(), delete_grace_ms=100_000) as copier:
        await until(lambda: world.ledger().end_offset() == 59)
        await go(world, copier, [PARTITION])
        await until(lambda: world.ledger().marked_ms is not None)
        await trio.sleep(60)
        world.upstream.is_gone = False
        copier.follow_gone([])
        world.upstream.append(20)
        await until(lambda: world.ledger().end_offset() == 119)
        await go(world, copier, [PARTITION])
        began_s = trio.current_time()
        await until(lambda: world.store.objects == {}, within_s=200)
        assert trio.current_time() - began_s >= 100


async def test_a_gone_topic_that_one_broker_has_still_is_kept_at_the_last_moment(world: CopyWorld) -> None:
    world.upstream.append(20)
    async with running(world.hands(), delete_grace_ms=10_000) as copier:
        await until(lambda: world.ledger().end_offset() == 59)
        copier.follow_gone([PARTITION])  # nobody confirms it
        world.upstream.append(20)
        await until(lambda: world.ledger().end_offset() == 119)


async def test_a_deletion_that_was_begun_is_ended_by_the_next(world: CopyWorld) -> None:
    world.upstream.append(20)
    async with running(world.hands(), delete_grace_ms=0) as copier:
        await until(lambda: world.ledger().end_offset() == 59)
        world.store.refused.update(world.store.objects)
        await go(world, copier, [PARTITION])
        await until(lambda: world.ledger().is_being_deleted)
        copier.follow_gone([PARTITION])
        await copier.assign([PARTITION], 2)
        assert copier.progress() == []
    world.store.refused.clear()
    async with running(world.hands(), partitions=()) as copier:
        copier.follow_gone([PARTITION])
        await until(lambda: not world.ledger().is_being_deleted)
    assert world.store.objects == {}


def test_a_clock_that_is_an_hour_off_the_stores_deletes_nothing() -> None:
    registry = Registry()
    offsets: list[int | None] = [None, 0, 3_600_000, -3_600_000, 3_660_000, -(2 * 365 * 86_400_000)]
    brokers: list[int | None] = [0, None, 3_600_000, None, 0, 3_660_000]
    clocks = {"the store's": iter(offsets).__next__, "the brokers'": iter(brokers).__next__}
    guard = ClockGuard(clocks, CopyMeter(registry))
    told = [guard.deletions_stopped() for _ in offsets]
    assert told[:4] == [None] * 4
    assert "61 minutes behind" in str(told[4])
    assert "ahead of the store's" in str(told[5])
    assert registry.sample_value("tidegate_copy_clock_offset_seconds") == -2 * 365 * 86_400
    guard = ClockGuard({"the store's": lambda: 0, "the brokers'": lambda: -3_660_000}, CopyMeter(Registry()))
    assert "61 minutes ahead of the brokers'" in str(guard.deletions_stopped())


@pytest.mark.parametrize(
    ("store_ms", "brokers_ms", "time_ms"),
    [
        (None, None, 10**9),
        (None, -7_200_000, 10**9 - 7_200_000),
        (0, -7_200_000, 10**9),
        (9_000_000, 7_200_000, 10**9 + 7_200_000),
    ],
)
def test_the_time_is_our_own_unless_all_others_are_far(
    store_ms: int | None, brokers_ms: int | None, time_ms: int
) -> None:
    clocks = {"the store's": lambda: store_ms, "the brokers'": lambda: brokers_ms}
    assert ClockGuard(clocks, CopyMeter(Registry()), lambda: 10**9).now_ms() == time_ms
