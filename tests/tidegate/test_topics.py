"""Which topics are asked for, and what becomes of those that upstream does not describe."""

import pytest
import structlog
import trio
from kio.schema.errors import ErrorCode
from trio.testing import MockClock

from metrics.meters import FallbackReason, Meters
from metrics.registry import Registry
from protocol.client.messages import METADATA
from protocol.client.settings import ClientSettings
from proxy.fetch.fallback import Fallback, FallbackSettings
from proxy.upstream.cluster import TOPICS_MAX, Cluster
from storage.metadata.catalog import Catalog
from storage.model import TopicIdPartition
from tests.support.fake_kafka import FakeKafka, FakeTopic
from tests.support.metadata_records import (
    DELETE_FINISHED,
    DELETE_STARTED,
    apply_all,
    finish,
    forget,
    moved,
    named_uuid,
    started,
)
from tests.support.waiting import settled
from tidegate import topics

DENIED = ErrorCode.topic_authorization_failed
GRANT = "kafka-acls.sh --bootstrap-server a:1 --add --allow-principal User:ANONYMOUS --operation Describe --topic "


class World:
    """A catalog and a fake upstream of one broker, with the catalog's topics followed."""

    def __init__(self, kafka: FakeKafka, nursery: trio.Nursery) -> None:
        self.kafka = kafka
        kafka.add(1, "a")
        self.registry = Registry()
        self.cluster = Cluster(ClientSettings(bootstrap_servers=(("a", 1),)), nursery)
        self.catalog = Catalog()
        self.fallback = Fallback(
            FallbackSettings(1.0, 8), Meters(self.registry).fallback, left_to="left to the brokers"
        )
        nursery.start_soon(topics.follow_topics, self.cluster, self.catalog, self.fallback)

    def tier(self, topic: str, partition: int = 0) -> TopicIdPartition:
        """The tier has a segment of it."""
        found = TopicIdPartition(named_uuid(topic), partition, topic)
        finish(self.catalog, started(f"{topic}-{partition}", 0, 9, partition=found))
        return found

    def upstream(self, topic: str, code: ErrorCode = ErrorCode.none) -> None:
        self.kafka.topics[topic] = FakeTopic(named_uuid(topic), [1], code)

    @property
    def gauge(self) -> float | None:
        return self.registry.sample_value("tidegate_fallback_partitions", {"reason": "not_described"})

    def asked(self) -> list[list[str]]:
        """The names in each question about topics up to now."""
        questions = [[topic.name for topic in request.topics] for request in self.kafka.brokers[1].asked(METADATA)]
        return [names for names in questions if names]


@pytest.fixture
async def world(kafka: FakeKafka, nursery: trio.Nursery, mock_clock: MockClock) -> World:
    """With nothing in the tier when it begins."""
    world = World(kafka, nursery)
    await settled()
    return world


async def step(clock: MockClock, seconds: float) -> None:
    clock.jump(seconds)
    await settled()


async def test_a_topic_of_the_tier_is_asked_for_once_it_appears(world: World, mock_clock: MockClock) -> None:
    """Failed before: only when a client read it by name."""
    world.upstream("orders")
    world.tier("orders")
    await step(mock_clock, topics.NEW_TOPICS_INTERVAL_S)
    assert world.cluster.topic_id("orders") == named_uuid("orders")
    world.upstream("payments")
    world.tier("payments")
    for _ in range(3):
        await step(mock_clock, topics.NEW_TOPICS_INTERVAL_S)
    assert world.asked() == [["orders"], ["payments"]]


async def test_a_topic_that_we_may_not_describe_is_told_until_we_may(world: World, mock_clock: MockClock) -> None:
    """Failed before: ready, not degraded, fallback 0 for every reason, while brokers served all of it."""
    world.upstream("secret", DENIED)
    partitions = [world.tier("secret", number) for number in range(2)]
    world.upstream("orders")
    open_one = world.tier("orders")
    with structlog.testing.capture_logs() as logs:
        await step(mock_clock, topics.NEW_TOPICS_INTERVAL_S)
    assert [entry["event"] for entry in logs if entry["log_level"] == "warning"] == [
        "topic_not_described",
        "tier_fallback_begun",
    ]
    (complaint,) = world.fallback.complaints().values()
    assert "tier reads of 2 partitions are left to the brokers (not_described)" in complaint
    assert "ACL Describe on Topic secret is missing for an anonymous client" in complaint
    assert complaint.endswith(f"{GRANT}secret")
    assert world.gauge == 2
    assert [world.fallback.reason_of(each) for each in (*partitions, open_one)] == [
        FallbackReason.NOT_DESCRIBED,
        FallbackReason.NOT_DESCRIBED,
        None,
    ]
    assert all(map(world.fallback.reads_tier, partitions)), "nothing of them is put off for it"

    partitions.append(world.tier("secret", 2))
    await step(mock_clock, topics.NEW_TOPICS_INTERVAL_S)
    assert world.gauge == 3
    await step(mock_clock, 1000.0)
    assert world.fallback.complaints(), "it does not end because nobody reads"

    world.upstream("secret")
    await step(mock_clock, topics.TOPICS_INTERVAL_S)
    await step(mock_clock, topics.NEW_TOPICS_INTERVAL_S)
    assert (world.fallback.complaints(), world.gauge) == ({}, 0)
    assert world.fallback.reason_of(partitions[0]) is None


async def test_a_right_that_goes_is_told_and_a_topic_that_leaves_the_tier_is_not(
    world: World, mock_clock: MockClock
) -> None:
    world.upstream("secret")
    partition = world.tier("secret")
    await step(mock_clock, topics.NEW_TOPICS_INTERVAL_S)
    world.upstream("secret", DENIED)
    await step(mock_clock, topics.TOPICS_INTERVAL_S)
    await step(mock_clock, topics.NEW_TOPICS_INTERVAL_S)
    assert world.gauge == 1
    segment = started("secret-0", 0, 9, partition=partition)
    apply_all(world.catalog, *(moved(segment, state) for state in (DELETE_STARTED, DELETE_FINISHED)))
    forget(world.catalog, partition.topic_id, 0)
    await step(mock_clock, topics.NEW_TOPICS_INTERVAL_S)
    assert (world.fallback.complaints(), world.gauge) == ({}, 0)


async def test_of_many_topics_some_are_named(world: World, mock_clock: MockClock) -> None:
    for number in range(7):
        world.upstream(f"secret-{number}", DENIED)
        world.tier(f"secret-{number}")
    await step(mock_clock, topics.NEW_TOPICS_INTERVAL_S)
    (complaint,) = world.fallback.complaints().values()
    assert "Topic secret-0, secret-1, secret-2, secret-3, secret-4 and 2 more is missing" in complaint
    assert complaint.endswith(f"{GRANT}'*'")


async def test_an_upstream_that_is_away_is_asked_again(world: World, mock_clock: MockClock) -> None:
    world.upstream("orders")
    world.kafka.stop(1)
    world.tier("orders")
    await step(mock_clock, topics.NEW_TOPICS_INTERVAL_S)
    assert world.cluster.topic_id("orders") is None
    world.kafka.add(1, "a")
    for _ in range(3):  # the pooled connection has a back-off
        await step(mock_clock, topics.NEW_TOPICS_INTERVAL_S)
    assert world.cluster.topic_id("orders") == named_uuid("orders")


async def test_topics_are_asked_for_again_in_small_requests_spread_over_the_interval(
    world: World, mock_clock: MockClock
) -> None:
    """Those that upstream does not know as well: one may come back. Failed before: all, up to 100,000, in one."""
    names = [f"t{number:04}" for number in range(2 * TOPICS_MAX + 1)]
    for name in names:
        world.tier(name)
    world.upstream(names[0])
    await step(mock_clock, topics.NEW_TOPICS_INTERVAL_S)
    first = world.asked()
    assert sorted(map(len, first)) == [1, TOPICS_MAX, TOPICS_MAX]
    await step(mock_clock, topics.TOPICS_INTERVAL_S)
    assert len(world.asked()) == 4
    for number in range(5, 8):
        await step(mock_clock, topics.TOPICS_INTERVAL_S / 3)
        assert len(world.asked()) == number
    assert sorted(name for part in world.asked()[3:6] for name in part) == names
