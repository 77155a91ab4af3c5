"""Which topics are copied and which are gone, as a fake cluster tells it."""

from collections.abc import Collection
from typing import Any

import pytest
import trio
from kio.schema.errors import ErrorCode
from structlog.testing import capture_logs

from protocol.client.messages import METADATA, Values
from protocol.client.settings import ClientSettings
from proxy.upstream.cluster import Cluster
from proxy.upstream.metadata_topic import METADATA_TOPIC
from standalone.copier.config import CopyConfig, parse_topic_names
from standalone.copier.seams import KEEP, Retention
from standalone.copy_topics import CopyTopics
from storage.model import TopicIdPartition, Uuid
from tests.support.fake_kafka import FakeKafka, FakeTopic

ORDERS = TopicIdPartition(Uuid(b"orders orders id"), 0, "orders")
PAYMENTS = TopicIdPartition(Uuid(b"payments pays id"), 0, "payments")


def settings(topics: str, **keys: Any) -> CopyConfig:
    defaults: dict[str, Any] = {
        "is_enabled": True,
        "group_id": "copiers",
        "interval_ms": 1000,
        "concurrent_max": 1,
        "bytes_per_second_max": None,
        "lag_ms": 0,
        "lag_bytes": 0,
        "segment_bytes": 1,
        "segment_ms": 1,
        "staging_path": None,
        "is_disabled": False,
        "retention_ms": 1000,
        "retention_bytes": 2000,
        "retention_from_topic": False,
    }
    return CopyConfig(topics=parse_topic_names(topics), **defaults | keys)


class World:
    """One broker; topics' configurations by name, and those that may not be described."""

    def __init__(self, fake: FakeKafka, nursery: trio.Nursery) -> None:
        self.fake = fake
        self.configs: dict[str, dict[str, str]] = {}
        self.denied: set[str] = set()
        self.in_tier: list[TopicIdPartition] = []
        self.tier_cluster_id: str | None = "another cluster"
        fake.add(1, "a").describe_configs(self._describe_configs)
        for partition in (ORDERS, PAYMENTS):
            fake.add_log(partition)
        self.cluster = Cluster(ClientSettings(bootstrap_servers=(("a", 1),)), nursery)

    def topics(self, names: str, **keys: Any) -> CopyTopics:
        return CopyTopics(self.cluster, settings(names, **keys), lambda: self.in_tier, lambda: self.tier_cluster_id)

    def _describe_configs(self, topic: str) -> dict[str, str] | ErrorCode:
        if topic in self.denied:
            return ErrorCode.topic_authorization_failed
        return {"cleanup.policy": "delete", "retention.ms": "-1", **self.configs.get(topic, {})}


@pytest.fixture
def world(kafka: FakeKafka, nursery: trio.Nursery) -> World:
    return World(kafka, nursery)


async def test_topics_are_meant_by_name_and_by_expression(world: World) -> None:
    """An expression means neither the metadata topic nor Kafka's own; a name that is not there may come."""
    world.fake.topics[METADATA_TOPIC] = FakeTopic(b"metadata topicid", [1])
    topics = world.topics("later,^(pay|__).*")
    assert await topics.look() == []
    assert ([*topics.copied()], topics.refused) == (["payments"], {})
    world.fake.add_log(TopicIdPartition(Uuid(b"later later's id"), 0, "later"))
    await topics.look()
    assert [*topics.copied()] == ["later", "payments"]


async def test_a_topic_that_cannot_be_copied_is_refused_and_the_others_go_on(world: World) -> None:
    refused = {
        ("cleanup.policy", "compact"): "it has cleanup.policy=compact: compacted topics cannot be in a tier",
        ("cleanup.policy", "compact,delete"): "it has cleanup.policy=compact,delete: compacted topics cannot be",
        ("remote.storage.enable", "true"): "it has remote.storage.enable=true: the brokers copy it themselves",
    }
    for (key, value), reason in refused.items():
        world.configs["orders"] = {key: value}
        topics = world.topics("orders,payments")
        await topics.look()
        assert [*topics.copied()] == ["payments"], value
        assert topics.refused["orders"].startswith(reason)
        del world.configs["orders"]
        await topics.look()
        assert ([*topics.copied()], topics.refused) == (["orders", "payments"], {})


async def test_what_is_not_known_is_not_copied(world: World) -> None:
    """Without DescribeConfigs nobody knows whether a topic is compacted; the metadata topic is nobody's to copy."""
    world.denied.add("orders")
    world.fake.topics[METADATA_TOPIC] = FakeTopic(b"metadata topicid", [1])
    world.fake.topics["secret"] = FakeTopic(b"secret secret id", [1])
    world.fake.topics["secret"].error_code = ErrorCode.topic_authorization_failed
    world.fake.topics["old"] = FakeTopic(bytes(16), [1])
    topics = world.topics(f"orders,secret,old,{METADATA_TOPIC}")
    await topics.look()
    assert [*topics.copied()] == []
    assert topics.refused == {
        METADATA_TOPIC: "it is the tier's own metadata topic",
        "old": "it has no topic id: Kafka 2.8 or later is needed",
        "orders": "ACL DescribeConfigs on Topic orders is missing; whether it may be copied is not known",
        "secret": "ACL Describe on Topic secret is missing",
    }


async def test_retention_is_the_keys_own_unless_the_topics_is_asked_for(world: World) -> None:
    world.configs["orders"] = {"retention.ms": "5000", "retention.bytes": "7000"}
    topics = world.topics("orders,payments")
    await topics.look()
    assert topics.retention_of("orders") == Retention(retention_ms=1000, retention_bytes=2000)
    assert topics.upstream_retention("orders") == Retention(retention_ms=5000, retention_bytes=7000)
    assert topics.upstream_retention("unknown") == Retention()
    of_topic = world.topics("orders,payments", retention_from_topic=True)
    assert of_topic.retention_of("orders") == Retention(retention_ms=KEEP, retention_bytes=KEEP)  # not seen yet
    await of_topic.look()
    assert of_topic.retention_of("orders") == Retention(retention_ms=5000, retention_bytes=7000)
    assert of_topic.retention_of("payments") == Retention()
    world.configs["orders"]["cleanup.policy"] = "compact"
    await of_topic.look()
    assert of_topic.retention_of("orders") == Retention(), "brokers do not go by it either"


async def test_a_topic_is_gone_when_no_broker_has_it(world: World) -> None:
    world.in_tier = [ORDERS, PAYMENTS]
    topics = world.topics("orders")
    del world.fake.topics["orders"]
    assert await topics.look() == [ORDERS]


async def test_a_broker_that_does_not_know_itself_says_nothing(world: World) -> None:
    """One that has just begun, or that the controller has fenced, may know of no topic."""
    world.in_tier = [ORDERS, PAYMENTS]
    world.fake.add(2, "b")
    world.fake.brokers[2].on(METADATA, lambda request: metadata_of(world.fake, request, {"orders"}, names=(1,)))
    topics = world.topics("orders")
    del world.fake.topics["orders"]
    assert await topics.look() == []
    assert "broker 2 (b:1) does not name itself among the brokers" in (topics.kept or "")
    world.fake.brokers[2].on(METADATA, world.fake.metadata)
    assert await topics.look() == [ORDERS]


@pytest.mark.parametrize("metadata_version_max", [11, 13], ids=["asked by name", "asked by id"])
async def test_a_topic_that_one_broker_still_has_is_kept_whatever_another_says(
    world: World, metadata_version_max: int
) -> None:
    """Failed before: a broker that was cut off from its controller was asked twice, and the tier was deleted."""
    world.in_tier = [ORDERS, PAYMENTS]
    world.fake.add(2, "b")
    for broker in world.fake.brokers.values():
        broker.versions[METADATA.key] = (METADATA.version_min, metadata_version_max)
    world.fake.brokers[1].on(METADATA, lambda request: metadata_of(world.fake, request, {"orders"}))
    topics = world.topics("orders")
    assert [await topics.look() for _ in range(3)] == [[], [], []]
    assert "topics orders seem deleted, and stay in the tier: broker 2 (b:1) has them" in (topics.kept or "")
    world.fake.stop(2)
    with capture_logs() as logs:
        assert [await topics.look() for _ in range(2)] == [[], []], "who does not answer may have it"
    assert [line["topics"] for line in logs if line["event"] == "copy_topics_kept"] == [["orders"]], "once a spell"
    assert "broker 2 (b:1) does not say so: cannot connect to b:1" in (topics.kept or "")
    world.fake.add(2, "b")
    # Who may have it is named by one of the others alone.
    world.fake.add(3, "c").versions[METADATA.key] = (METADATA.version_min, metadata_version_max)
    world.fake.brokers[1].on(METADATA, lambda request: metadata_of(world.fake, request, {"orders"}, names=(1, 2)))
    world.fake.brokers[2].on(METADATA, lambda request: metadata_of(world.fake, request, {"orders"}, names=(1, 2, 3)))
    assert [await topics.look() for _ in range(2)] == [[], []]
    assert await topics.confirm_gone([ORDERS]) == []
    world.fake.leave(3)
    del world.fake.topics["orders"]
    assert await topics.look() == [ORDERS]
    assert topics.kept is None
    assert await topics.confirm_gone([ORDERS, PAYMENTS]) == [ORDERS]


def metadata_of(fake: FakeKafka, request: Any, unknown: Collection[str], names: Collection[int] = (1, 2)) -> Values:
    """The cluster's answer by a broker that does not know all topics, and names those brokers that it knows."""
    answer: dict[str, Any] = dict(fake.metadata(request))
    for topic in answer["topics"]:
        if topic["name"] in unknown:
            is_by_id = request.topics is not None and request.topics[0].name is None
            topic["error_code"] = ErrorCode.unknown_topic_id if is_by_id else ErrorCode.unknown_topic_or_partition
    return {**answer, "brokers": [each for each in answer["brokers"] if each["node_id"] in names]}


async def test_a_topic_that_was_made_again_is_gone_and_one_that_came_back_is_not(world: World) -> None:
    world.in_tier = [ORDERS, PAYMENTS]
    topics = world.topics("orders")
    del world.fake.topics["orders"]
    assert await topics.look() == [ORDERS]
    world.fake.add_log(ORDERS)
    assert await topics.look() == []
    world.fake.add_log(TopicIdPartition(Uuid(b"another topic id"), 0, "orders"))
    assert await topics.look() == [ORDERS]


async def test_topics_of_the_tier_that_are_not_copied_any_more_are_held(world: World) -> None:
    """Failed before: nobody owned their partitions, and nothing of them was deleted."""
    world.in_tier = [ORDERS, PAYMENTS]
    topics = world.topics("payments")
    await topics.look()
    assert topics.left == {"orders": None}
    assert topics.held() == {"orders": ORDERS.topic_id}
    assert ([*topics.copied()], topics.refused) == (["payments"], {})
    assert (topics.is_copied("orders"), topics.is_copied("payments")) == (False, True)
    assert topics.partitions(topics.held()) == {("orders", 0)}
    world.configs["payments"] = {"cleanup.policy": "compact"}
    with capture_logs() as logs:
        await topics.look()
        await topics.look()
    assert topics.left == {"orders": None, "payments": None}
    assert [line["topic"] for line in logs if line["event"] == "copy_topic_left"] == ["payments"]
    del world.fake.topics["orders"]
    await topics.look()
    assert topics.left == {"payments": None}


async def test_a_tier_that_may_be_the_brokers_is_left_alone(world: World) -> None:
    """Also if `copy.topics` does not name the topic."""
    world.in_tier = [ORDERS, PAYMENTS]
    world.configs["orders"] = {"remote.storage.enable": "true"}
    world.denied.add("payments")
    for named in ("orders,payments", "other"):
        topics = world.topics(named)
        await topics.look()
        assert topics.left == {
            "orders": "it has remote.storage.enable=true: the brokers delete from its tier",
            "payments": "its configuration is not known: ACL DescribeConfigs on Topic payments may be missing",
        }
        assert topics.held() == {}


async def test_a_missing_right_says_nothing_of_a_topic(world: World) -> None:
    world.in_tier = [ORDERS, PAYMENTS]
    topics = world.topics("payments")
    world.fake.topics["orders"].error_code = ErrorCode.topic_authorization_failed
    assert [await topics.look() for _ in range(3)] == [[], [], []]


@pytest.mark.parametrize("in_tier", [[ORDERS], [ORDERS, PAYMENTS]], ids=["one topic", "several"])
async def test_nothing_is_gone_when_everything_is(world: World, in_tier: list[TopicIdPartition]) -> None:
    """Given other brokers than those that the tier is of, then no topic of it is taken for deleted, until another one
    of them is there. Failed before: a tier of a single topic went."""
    world.in_tier = in_tier
    topics = world.topics("orders")
    world.fake.topics.clear()
    assert [await topics.look() for _ in range(3)] == [[], [], []]
    assert "they are all that the tier has" in (topics.kept or "")
    world.fake.add_log(PAYMENTS)
    world.in_tier = [ORDERS, PAYMENTS]
    assert await topics.look() == [ORDERS]


@pytest.mark.parametrize("in_tier", [[ORDERS], [ORDERS, PAYMENTS]], ids=["one topic", "several"])
async def test_all_may_be_gone_where_the_tiers_metadata_is(world: World, in_tier: list[TopicIdPartition]) -> None:
    """Failed before: a tier's only topic, deleted while no copier ran, stayed until another one had been copied."""
    world.in_tier = in_tier
    topics = world.topics("orders")
    world.fake.topics.clear()
    await topics.look()
    world.tier_cluster_id = topics.cluster.cluster_id
    assert await topics.look() == in_tier
    assert topics.kept is None


@pytest.mark.parametrize("in_tier", [[ORDERS], [ORDERS, PAYMENTS]], ids=["one topic", "several"])
async def test_what_was_seen_before_may_be_deleted_to_the_last_topic(
    world: World, in_tier: list[TopicIdPartition]
) -> None:
    """Given topics that were there, then they are gone when they are deleted, also all at once."""
    world.in_tier = in_tier
    topics = world.topics("orders")
    assert await topics.look() == []
    world.fake.topics.clear()
    assert await topics.look() == in_tier
    assert topics.kept is None


def test_a_client_id_tells_which_topics_a_copier_was_given() -> None:
    """On whatever host, and in whatever order they were named."""
    ours = parse_topic_names("orders,^pay.*")
    assert ours.marks(parse_topic_names("^pay.*, orders").mark("tidegate-copier-host-b"))
    for other in (parse_topic_names("orders").mark("tidegate-copier-host-a"), "tidegate-copier-host-a", "rdkafka"):
        assert not ours.marks(other)
