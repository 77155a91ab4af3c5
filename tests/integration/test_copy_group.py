"""Membership of the copiers' group at a real broker: assignments with their generation, revocation, loss, leaving."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupState
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from standalone.copier.librdkafka import client_properties
from standalone.copier.membership import Membership
from storage.config.model import ClientSecurity, HostPort, UpstreamConfig
from storage.model import TopicIdPartition, Uuid
from tests.support.kafka import fresh_name, orders, produce
from tests.support.secured_kafka import HOST
from tests.support.waiting import wait_until
from tools.demo.kafka_cluster import KafkaCluster

pytestmark = [pytest.mark.integration, pytest.mark.needs("java", "kafka")]

SESSION_TIMEOUT_MS = 6000
"""The least that a broker allows (`group.min.session.timeout.ms`)."""
STATISTICS_MS = 200


def upstream(kafka: KafkaCluster) -> UpstreamConfig:
    servers = tuple(HostPort(HOST, broker.port) for broker in kafka.brokers)
    return UpstreamConfig(bootstrap_servers=servers, security=ClientSecurity())


def ids_of(topics: Sequence[str]) -> Mapping[str, Uuid]:
    return {topic: Uuid(topic.encode().ljust(16, b"-")[-16:]) for topic in topics}


@dataclass
class Copier:
    """Notes what it hears. `taking`, `letting_go`: what assignment and revocation wait for."""

    owned: dict[TopicIdPartition, int] = field(default_factory=dict)
    lost_partitions: list[TopicIdPartition] = field(default_factory=list)
    taking: Callable[[], object] = lambda: None
    letting_go: Callable[[], object] = lambda: None

    @property
    def told(self) -> dict[str, Any]:
        return {"on_assigned": self.assigned, "on_revoked": self.revoked, "on_lost": self.lost}

    def assigned(self, partitions: Sequence[TopicIdPartition], generation: int) -> None:
        self.taking()
        self.owned |= dict.fromkeys(partitions, generation)

    def revoked(self, partitions: Sequence[TopicIdPartition]) -> None:
        self.letting_go()
        for partition in partitions:
            del self.owned[partition]

    def lost(self, partitions: Sequence[TopicIdPartition]) -> None:
        self.lost_partitions += partitions
        for partition in partitions:
            del self.owned[partition]


@contextmanager
def running(membership: Membership) -> Iterator[None]:
    raised: list[BaseException] = []

    def run() -> None:
        try:
            membership.run()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        membership.stop()
        thread.join(60)
    assert not thread.is_alive()
    assert raised == []


@contextmanager
def member(
    kafka: KafkaCluster, group: str, topics: Sequence[str], copier: Copier, **options: Any
) -> Iterator[Membership]:
    membership = Membership(
        client_properties(upstream(kafka), "copier"),
        group,
        **copier.told,
        session_timeout_ms=SESSION_TIMEOUT_MS,
        **options,
    )
    membership.subscribe(ids_of(topics))
    with running(membership):
        yield membership


def test_two_copiers_share_the_partitions_and_the_generation_rises(kafka: KafkaCluster) -> None:
    """Given one copier with all partitions, when a second one comes, then each partition is one's alone, and those that
    moved have a higher generation; when the second leaves, then the first has all again, higher once more."""
    topics, group = [fresh_name("copied"), fresh_name("copied")], fresh_name("copiers")
    for topic in topics:
        kafka.create_topic(topic, partitions=2)
    first, second = Copier(), Copier()
    with member(kafka, group, topics, first) as one:
        wait_until(lambda: len(first.owned) == 4, "the first has all partitions")
        assert {each.topic for each in first.owned} == set(topics)
        assert {each.topic_id for each in first.owned} == set(ids_of(topics).values())
        alone = dict(first.owned)
        with member(kafka, group, topics, second):
            wait_until(lambda: len(first.owned) == len(second.owned) == 2, "each has half of them")
            assert first.owned.keys() | second.owned.keys() == alone.keys()
            assert min(second.owned.values()) > max(alone.values())
            assert first.owned.items() <= alone.items()  # what stays goes on as it was
            between = max(second.owned.values())
        assert second.owned == {}
        wait_until(lambda: len(first.owned) == 4, "the first has all again, at once: the second has left")
        assert all(first.owned[each] > between for each in alone if first.owned[each] != alone[each])
        assert one.trouble is None
        assert sorted(one.owned(), key=str) == sorted(first.owned, key=str)


def test_partitions_that_a_topic_gets_later_are_copied_soon(kafka: KafkaCluster) -> None:
    """Failed before: the group heard of them after five minutes, and their records may be gone by then."""
    topic, copier = fresh_name("copied"), Copier()
    kafka.create_topic(topic)
    with member(kafka, fresh_name("copiers"), [topic], copier, refresh_ms=500):
        wait_until(lambda: len(copier.owned) == 1, "it has the first")
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        admin.create_partitions([NewPartitions(topic, 3)])[topic].result(20)
        wait_until(lambda: len(copier.owned) == 3, "it has those that came later")


def test_revocation_waits_until_the_copier_has_let_go(kafka: KafkaCluster) -> None:
    """Given a copier that is in the middle of a copy, when another one comes, then that one gets no partition before
    the first has let go."""
    topic, group = fresh_name("copied"), fresh_name("copiers")
    kafka.create_topic(topic, partitions=2)
    asked, may_go = threading.Event(), threading.Event()

    def let_go() -> None:
        asked.set()
        assert may_go.wait(60)

    first, second = Copier(letting_go=let_go), Copier()
    with member(kafka, group, [topic], first):
        wait_until(lambda: len(first.owned) == 2, "the first has both")
        with member(kafka, group, [topic], second):
            assert asked.wait(60)
            assert (len(first.owned), second.owned) == (2, {})
            may_go.set()
            wait_until(lambda: len(second.owned) == 1, "the second has what the first gave")


def test_nothing_is_fetched_and_nothing_committed(kafka: KafkaCluster) -> None:
    """Given a copier that is a member, when records come to the topic, then the broker gives it none."""
    topic, group = fresh_name("copied"), fresh_name("copiers")
    kafka.create_topic(topic)
    received: list[str] = []
    properties: Any = client_properties(upstream(kafka), "copier") | {
        "statistics.interval.ms": STATISTICS_MS,
        "stats_cb": received.append,
    }
    copier = Copier()
    membership = Membership(properties, group, **copier.told)
    membership.subscribe(ids_of([topic]))
    with running(membership):
        wait_until(lambda: copier.owned, "it has the partition")
        produce(kafka, topic, orders(100, 1))
        before = len(received)
        wait_until(lambda: len(received) > before + 5, "it has been there for a while")
    assert '"rxmsgs":0,' in received[-1]
    assert '"rxmsgs":100' not in received[-1]
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    described = admin.describe_consumer_groups([group])[group].result(20)
    assert (described.state, described.members) == (ConsumerGroupState.EMPTY, [])  # it has left, and was not timed out


def test_topics_may_come_and_go_and_be_made_again(kafka: KafkaCluster) -> None:
    """When the topic is another one under its name, then its partitions are revoked, and assigned with the new id;
    failed before: they stayed with the old id for ever. When it is not wanted any more they are given back."""
    topic, other = fresh_name("copied"), fresh_name("copied")
    for each in (topic, other):
        kafka.create_topic(each, partitions=2)
    copier = Copier()
    with member(kafka, fresh_name("copiers"), [topic], copier) as membership:
        wait_until(lambda: len(copier.owned) == 2, "it has them")
        generations = set(copier.owned.values())
        again = {topic: Uuid(b"made again again")}
        membership.subscribe(again)
        wait_until(lambda: {each.topic_id for each in copier.owned} == {*again.values()}, "those of the new topic")
        assert (len(copier.owned), set(copier.owned.values())) == (2, generations)
        assert sorted(membership.owned(), key=str) == sorted(copier.owned, key=str)
        membership.subscribe(ids_of([other]))
        wait_until(lambda: {each.topic for each in copier.owned} == {other}, "the other one")
        membership.subscribe({})
        wait_until(lambda: not copier.owned, "none is left")


def test_partitions_of_a_copier_that_was_away_are_lost(kafka: KafkaCluster) -> None:
    """Given a copier whose thread stood still beyond `max.poll.interval.ms`, then it hears that its partitions are
    lost, without being waited for, and gets others with a higher generation."""
    topic = fresh_name("copied")
    kafka.create_topic(topic)
    may_go_on = threading.Event()
    may_go_on.set()
    copier = Copier(taking=lambda: may_go_on.wait(60))
    properties = client_properties(upstream(kafka), "copier") | {"max.poll.interval.ms": SESSION_TIMEOUT_MS}
    membership = Membership(properties, fresh_name("copiers"), **copier.told, session_timeout_ms=SESSION_TIMEOUT_MS)
    other = fresh_name("copied")
    membership.subscribe(ids_of([topic]))
    with running(membership):
        wait_until(lambda: copier.owned, "it has the partition")
        [generation] = copier.owned.values()
        kafka.create_topic(other)
        may_go_on.clear()
        membership.subscribe(ids_of([topic, other]))  # it hears of the other one, and does not come back
        threading.Timer(2 * SESSION_TIMEOUT_MS / 1000, may_go_on.set).start()
        wait_until(lambda: copier.lost_partitions, "it has lost them")
        wait_until(lambda: len(copier.owned) == 2, "it has them again")
        assert min(copier.owned.values()) > generation
