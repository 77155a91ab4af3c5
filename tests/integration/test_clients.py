"""Unmodified clients through Tidegate: what they read is what they read from the broker itself.

Each whole read is also weighed: Tidegate must have relayed or served at least the bytes of the topic, or the client
went past it (after one FindCoordinator answer with a broker's own address, librdkafka does so and nobody notices);
the tier's part must have come from Tidegate, so the broker's own count of remote reads stands still.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from tests.support.digests import Read, read_with_confluent, read_with_confluent_group, read_with_kcat
from tests.support.filled_topics import CODECS, ISOLATIONS, RECORDS_PER_PARTITION, FilledTopic
from tests.support.kafka import fresh_name, orders
from tests.support.tidegate import RunningTidegate
from tests.support.waiting import wait_until
from tools.demo.kafka_cluster import KafkaCluster

pytestmark = [pytest.mark.integration, pytest.mark.needs("java", "kafka")]


@contextmanager
def weighed(tidegate: RunningTidegate, kafka: KafkaCluster, topic: FilledTopic) -> Iterator[None]:
    """The reads inside went through Tidegate, and the tier's part of them not through the broker."""
    counters = tidegate.process.counters(topic.name)
    remote_fetches = kafka.broker(1).remote_fetch_requests(topic.name)
    yield
    grown = tidegate.process.counters(topic.name) - counters
    assert grown.served_tier_bytes >= topic.tier_bytes > 0
    assert grown.relayed_bytes + grown.served_tier_bytes >= topic.tier_bytes + topic.local_bytes
    assert grown.remote_fetch_bytes >= topic.tier_bytes
    assert kafka.broker(1).remote_fetch_requests(topic.name) == remote_fetches


# Those whose scenarios are in test_client_scenarios.py are not here again.
@pytest.mark.parametrize(
    "read",
    [
        pytest.param(partial(read_with_confluent_group, protocol="classic"), id="confluent-group"),
        pytest.param(partial(read_with_confluent_group, protocol="consumer"), id="confluent-group-kip848"),
        pytest.param(read_with_kcat, id="kcat", marks=pytest.mark.needs("kcat")),
    ],
)
def test_a_whole_read_through_tidegate_is_the_direct_read(
    read: Read, tidegate: RunningTidegate, kafka: KafkaCluster, codecs: FilledTopic
) -> None:
    for isolation in ISOLATIONS:
        by = partial(read, group=fresh_name("group")) if isinstance(read, partial) else read
        with weighed(tidegate, kafka, codecs):
            digests = by(tidegate.bootstrap_servers, codecs.name, codecs.ends, isolation)
        assert digests == codecs.direct[isolation], isolation
        assert [each.records for each in digests.values()] == [RECORDS_PER_PARTITION] * len(CODECS)


def test_what_is_produced_through_tidegate_is_read_back(tidegate: RunningTidegate, kafka: KafkaCluster) -> None:
    each_way: list[dict[str, str | int | float | bool]] = [
        {"acks": 0},
        {"acks": 1},
        {"acks": -1},
        {"enable.idempotence": True},
        {"acks": -1, "compression.type": "zstd"},
    ]
    for settings in each_way:
        topic, count = fresh_name("clients-produced"), 2000
        kafka.create_topic(topic, 2)
        producer = Producer({"bootstrap.servers": tidegate.bootstrap_servers, "linger.ms": 5, **settings})
        for record in orders(count, 2):
            producer.produce(topic, record.value, record.key, record.partition, headers=list(record.headers))
        assert producer.flush(30) == 0, settings
        # Nobody acknowledges acks=0: the records arrive a moment later.
        wait_until(partial(has_records, kafka, topic, count // 2), f"all records of {settings}")
        ends = {0: count // 2, 1: count // 2}
        direct = read_with_confluent(kafka.bootstrap_servers, topic, ends, "read_uncommitted")
        assert read_with_confluent(tidegate.bootstrap_servers, topic, ends, "read_uncommitted") == direct, settings
        assert [each.records for each in direct.values()] == [count // 2] * 2


def has_records(kafka: KafkaCluster, topic: str, count: int) -> bool:
    return [each.high_watermark for each in kafka.partition_offsets(topic).values()] == [count] * 2


def test_the_cluster_is_described_with_tidegates_addresses(tidegate: RunningTidegate, kafka: KafkaCluster) -> None:
    admin = AdminClient({"bootstrap.servers": tidegate.bootstrap_servers})
    cluster = admin.describe_cluster().result(30)
    assert cluster.cluster_id == kafka.cluster_id
    assert [node.id for node in cluster.nodes] == [1]
    own_ports = {kafka.broker(1).port, kafka.plan.controller_port}
    assert not own_ports & {node.port for node in (*cluster.nodes, cluster.controller)}
    listed = admin.list_topics(timeout=20)
    assert {node.port for node in cluster.nodes} == {broker.port for broker in listed.brokers.values()}
