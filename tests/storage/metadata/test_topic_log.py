"""The topic's log against a scripted topic, under trio's autojump clock: no real time passes.

The seam's rules are in storage/metadata/event_log.py.
"""

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from storage.errors import (
    MetadataLogError,
    MetadataNotReadyError,
    MetadataOffsetOutOfRange,
    RetriableRemoteStorageError,
)
from storage.metadata.event_log import DELIVERY_RECORDS_MAX
from storage.metadata.reading import NO_TOPIC_ID, MetadataEvent, PartitionReading, TopicDescription
from storage.metadata.topic_log import FetchedRecords, TopicMetadataEventLog
from tests.support.metadata_topic import FakeMetadataTopic

pytestmark = pytest.mark.autojump

LOST_LEADER = RetriableRemoteStorageError("leader moved")


class Seen:
    """What a subscriber was handed."""

    def __init__(self) -> None:
        self.offsets: dict[int, list[int]] = {}
        self.progress: dict[int, list[tuple[int, int]]] = {}

    def deliver(self, reading: PartitionReading, events: Sequence[MetadataEvent]) -> None:
        assert len(events) <= DELIVERY_RECORDS_MAX
        assert {event.partition for event in events} == {reading.number}
        assert reading.position <= events[0].offset, "it stands before them"
        self.offsets.setdefault(events[0].partition, []).extend(event.offset for event in events)

    def advance(self, reading: PartitionReading) -> None:
        assert reading.end_offset is not None
        self.progress.setdefault(reading.number, []).append((reading.position, reading.end_offset))


@pytest.fixture
def topic() -> FakeMetadataTopic:
    return FakeMetadataTopic()


@pytest.fixture
def seen() -> Seen:
    return Seen()


@asynccontextmanager
async def running(topic: FakeMetadataTopic) -> AsyncIterator[TopicMetadataEventLog]:
    log = TopicMetadataEventLog(topic, jitter_source=random.Random(7))
    async with trio.open_nursery() as nursery:
        await nursery.start(log.run)
        yield log
        nursery.cancel_scope.cancel()


async def settle() -> None:
    """Let everything happen that needs no time."""
    await trio.testing.wait_all_tasks_blocked(0.001)


async def test_each_partition_is_read_and_followed(topic: FakeMetadataTopic, seen: Seen) -> None:
    topic.append(0, *[b"x"] * 5)
    topic.append(2, b"y")
    async with running(topic) as log:
        log.subscribe(dict.fromkeys(range(3), 0), seen.deliver, seen.advance)
        await settle()
        topic.append(1, b"late")
        await settle()

    assert seen.offsets == {0: [0, 1, 2, 3, 4], 1: [0], 2: [0]}
    assert seen.progress == {0: [(0, 5), (5, 5)], 1: [(0, 0), (1, 0)], 2: [(0, 1), (1, 1)]}


async def test_a_lost_leader_is_a_problem_until_it_is_read_again(topic: FakeMetadataTopic, seen: Seen) -> None:
    topic.append(0, b"a", b"b")
    topic.faults["fetch"] = [None, LOST_LEADER, LOST_LEADER, OSError("reset")]
    with capture_logs() as logs:
        async with running(topic) as log:
            log.subscribe({0: 0}, seen.deliver, seen.advance)
            await settle()
            assert log.problems() == {0: "leader moved"}
            topic.append(0, b"c")
            await trio.sleep(0.2)
            assert log.problems() == {0: "leader moved"}
            await trio.sleep(10)
            assert log.problems() == {}
            assert log.failure() is None

    assert seen.offsets == {0: [0, 1, 2]}
    events = [entry["event"] for entry in logs]
    assert events == ["metadata_partition_in_trouble", "metadata_partition_read_again"]


async def test_one_partition_in_trouble_does_not_hold_up_the_others(topic: FakeMetadataTopic, seen: Seen) -> None:
    topic.append(0, b"a")
    topic.append(1, b"b")
    topic.faults["offsets"] = [LOST_LEADER, None]
    async with running(topic) as log:
        log.subscribe({0: 0, 1: 0}, seen.deliver, seen.advance)
        await settle()
        troubled = set(log.problems())
        assert len(troubled) == 1
        assert set(seen.offsets) == {0, 1} - troubled
        await trio.sleep(1)

    assert seen.offsets == {0: [0], 1: [0]}


async def test_answers_from_below_the_asked_offset_deliver_nothing_twice(topic: FakeMetadataTopic, seen: Seen) -> None:
    topic.append(0, *[b"x"] * 25)
    async with running(topic) as log:
        log.subscribe({0: 13}, seen.deliver, seen.advance)
        await settle()
        for _ in range(3):
            topic.append(0, b"y")
            await settle()

    assert seen.offsets == {0: list(range(13, 28))}


async def test_a_long_answer_lets_other_tasks_run_between_its_slices(topic: FakeMetadataTopic) -> None:
    topic.append(0, *[b"x"] * (DELIVERY_RECORDS_MAX * 4))
    order: list[str] = []

    async def bystander() -> None:
        while len(order) < 12:
            order.append("other")
            await trio.lowlevel.checkpoint()

    async with running(topic) as log:
        log.subscribe({0: 0}, lambda _reading, _events: order.append("slice"), lambda _reading: None)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bystander)

    first, last = order.index("slice"), len(order) - 1 - order[::-1].index("slice")
    assert order.count("slice") == 4
    assert "other" in order[first:last]


async def test_a_closed_subscription_is_not_fetched_for_any_more(topic: FakeMetadataTopic, seen: Seen) -> None:
    async with running(topic) as log:
        other = Seen()
        close = log.subscribe({0: 0}, seen.deliver, seen.advance)
        log.subscribe({1: 0}, other.deliver, other.advance)
        await settle()
        assert topic.fetches_open == {0, 1}

        close()
        close()
        topic.append(0, b"x")
        topic.append(1, b"x")
        await settle()
        assert topic.fetches_open == {1}

    assert (seen.offsets, other.offsets) == ({}, {1: [0]})


async def test_one_that_was_closed_is_read_again_from_its_offset_once(topic: FakeMetadataTopic, seen: Seen) -> None:
    topic.append(0, *[b"x"] * 30)
    async with running(topic) as log:
        close = log.subscribe({0: 0}, seen.deliver, seen.advance)
        await settle()
        seen.offsets.clear()
        for _ in range(3):  # the loops of the earlier ones end only later
            close()
            close = log.subscribe({0: 5}, seen.deliver, seen.advance)
        topic.append(0, b"y")
        await settle()

    assert seen.offsets == {0: list(range(5, 31))}


async def test_a_receiver_may_close_what_it_is_being_handed(topic: FakeMetadataTopic, seen: Seen) -> None:
    topic.append(0, *[b"x"] * (DELIVERY_RECORDS_MAX + 1))

    def deliver(reading: PartitionReading, events: Sequence[MetadataEvent]) -> None:
        seen.deliver(reading, events)
        close()

    async with running(topic) as log:
        close = log.subscribe({0: 0}, deliver, seen.advance)
        await settle()
        topic.append(0, b"y")
        await settle()

    assert seen.offsets == {0: list(range(DELIVERY_RECORDS_MAX))}
    assert seen.progress == {0: [(0, DELIVERY_RECORDS_MAX + 1)]}


async def test_a_receiver_that_fails_is_logged_and_reading_goes_on(topic: FakeMetadataTopic, seen: Seen) -> None:
    def deliver(reading: PartitionReading, events: Sequence[MetadataEvent]) -> None:
        seen.deliver(reading, events)
        raise KeyError("broken")

    with capture_logs() as logs:
        async with running(topic) as log:
            log.subscribe({0: 0}, deliver, seen.advance)
            topic.append(0, b"a")
            await settle()
            topic.append(0, b"b")
            await settle()

    assert seen.offsets == {0: [0, 1]}
    assert seen.progress == {0: [(0, 1), (1, 1), (2, 1)]}
    assert [(entry["event"], entry["error"]) for entry in logs] == [
        ("metadata_receiver_failed", "KeyError('broken')")
    ] * 2


async def test_a_partition_that_does_not_exist_is_not_followed(topic: FakeMetadataTopic, seen: Seen) -> None:
    async with running(topic) as log:
        for number in (-1, 3):
            with pytest.raises(MetadataLogError, match="does not exist"):
                log.subscribe({0: 0, number: 0}, seen.deliver, seen.advance)
        await settle()
        assert topic.fetches_open == set()


async def test_cancelling_the_log_ends_its_fetches_and_closes_the_client(topic: FakeMetadataTopic, seen: Seen) -> None:
    async with running(topic) as log:
        close = log.subscribe({0: 0, 1: 0}, seen.deliver, seen.advance)
        await settle()

    assert topic.closed
    assert topic.fetches_open == set()
    close()
    with pytest.raises(MetadataLogError, match="not running"):
        log.subscribe({0: 0}, seen.deliver, seen.advance)


async def test_a_topic_that_comes_late_is_waited_for(topic: FakeMetadataTopic) -> None:
    topic.faults["describe"] = [MetadataLogError("no such topic"), ValueError("a bug"), LOST_LEADER]
    async with running(topic) as log:
        assert log.partition_count() == 3
        assert log.failure() is None


async def test_a_zero_topic_id_is_not_ready_until_the_brokers_know_better(topic: FakeMetadataTopic) -> None:
    topic.topic_id = bytes(16)
    log = TopicMetadataEventLog(topic)
    with capture_logs() as logs:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(log.run)
            await trio.sleep(100)
            assert log.failure() == f"the metadata topic {NO_TOPIC_ID}"
            with pytest.raises(MetadataNotReadyError):
                log.partition_count()

            topic.topic_id = b"metadata-topic-1"
            await trio.sleep(15)
            assert log.failure() is None
            assert log.partition_count() == 3
            nursery.cancel_scope.cancel()

    assert [entry["event"] for entry in logs] == ["metadata_topic_not_usable"]


@pytest.mark.parametrize(
    ("topic_id", "partition_count", "reason"),
    [
        (b"metadata-topic-1", 4, "went from 3 to 4 partitions"),
        (b"metadata-topic-2", 3, "deleted and created again"),
        (bytes(16), 3, "has lost its topic id"),
    ],
)
async def test_a_topic_that_changes_is_one_log_line_and_never_trusted_again(
    topic: FakeMetadataTopic, seen: Seen, topic_id: bytes, partition_count: int, reason: str
) -> None:
    with capture_logs() as logs:
        async with running(topic) as log:
            log.subscribe({0: 0}, seen.deliver, seen.advance)
            await trio.sleep(130)
            topic.faults["describe"] = [LOST_LEADER]
            topic.topic_id, topic.partition_count = topic_id, partition_count
            await trio.sleep(200)
            failure = log.failure()
            topic.topic_id, topic.partition_count = b"metadata-topic-1", 3
            await trio.sleep(200)
            assert log.failure() == failure

    assert failure is not None
    assert reason in failure
    assert [entry["event"] for entry in logs] == ["metadata_topic_not_described", "metadata_topic_not_usable"]
    assert logs[1]["reason"] == failure


async def test_what_retention_took_is_stepped_over(topic: FakeMetadataTopic, seen: Seen) -> None:
    topic.append(0, *[b"x"] * 30)
    topic.delete_records(0, 20)
    async with running(topic) as log:
        log.subscribe({0: 0}, seen.deliver, seen.advance)
        await settle()

    assert seen.offsets == {0: list(range(20, 30))}
    assert seen.progress == {0: [(20, 30), (30, 30)]}


async def test_a_truncated_log_is_a_problem_and_not_a_step_back(topic: FakeMetadataTopic, seen: Seen) -> None:
    topic.append(0, *[b"x"] * 10)
    async with running(topic) as log:
        log.subscribe({0: 0}, seen.deliver, seen.advance)
        await settle()
        del topic.logs[0][5:]
        topic.faults["fetch"] = [MetadataOffsetOutOfRange("offset 10")]
        await trio.sleep(60)
        assert "log ends at 5" in log.problems()[0]

    assert seen.offsets == {0: list(range(10))}
    assert [position for position, _ in seen.progress[0]] == [0, 10]


async def test_a_tail_without_records_is_stepped_over(seen: Seen) -> None:
    """Control batches or compaction may leave the last offsets without records; readiness must not wait for them."""

    class CompactedTail(FakeMetadataTopic):
        def answer(self, partition: int, offset: int) -> FetchedRecords:
            whole = super().answer(partition, offset)
            return FetchedRecords(whole.records[:3], whole.high_watermark, next_offset=8)

    compacted = CompactedTail()
    compacted.append(0, *[b"x"] * 8)
    async with running(compacted) as log:
        log.subscribe({0: 0}, seen.deliver, seen.advance)
        await settle()

    assert seen.offsets == {0: [0, 1, 2]}
    assert seen.progress[0][-1] == (8, 8)


async def test_high_watermarks_can_be_asked_for(topic: FakeMetadataTopic) -> None:
    topic.append(1, b"x")
    async with running(topic) as log:
        assert await log.sample_high_watermarks() == {0: 0, 1: 1, 2: 0}


async def test_nothing_is_delivered_while_delivery_is_held(topic: FakeMetadataTopic, seen: Seen) -> None:
    topic.append(0, *[b"r"] * (DELIVERY_RECORDS_MAX + 1))
    async with running(topic) as log:
        async with log.delivery_held():
            close = [log.subscribe({number: 0}, seen.deliver, seen.advance) for number in range(2)]
            await trio.sleep(60)
            topic.append(1, b"r")
            await settle()
            assert seen.offsets == {}
        await settle()
        assert seen.offsets == {0: list(range(DELIVERY_RECORDS_MAX + 1)), 1: [0]}

        async with log.delivery_held():
            topic.append(0, b"r")
            topic.append(1, b"r")
            await settle()
            close[0]()
        await settle()
        assert seen.offsets[0][-1] == DELIVERY_RECORDS_MAX
        assert seen.offsets[1] == [0, 1]


async def test_a_log_that_ends_does_not_wait_for_who_holds_it(topic: FakeMetadataTopic, seen: Seen) -> None:
    topic.append(0, b"r")
    log = TopicMetadataEventLog(topic)
    async with log.delivery_held(), trio.open_nursery() as nursery:
        await nursery.start(log.run)
        log.subscribe({0: 0}, seen.deliver, seen.advance)
        await settle()
        nursery.cancel_scope.cancel()
    assert topic.closed
    assert seen.offsets == {}


async def test_it_says_what_it_follows(topic: FakeMetadataTopic) -> None:
    log = TopicMetadataEventLog(topic)
    with pytest.raises(MetadataNotReadyError):
        log.description()
    topic.append(1, b"r", b"r")
    topic.delete_records(1, 1)
    async with running(topic) as log:
        assert log.description() == TopicDescription(topic.topic_id, 3)
        assert await log.sample_ranges([1, 2]) == {1: (1, 2), 2: (0, 0)}
