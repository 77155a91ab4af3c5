"""Unmodified clients of five kinds through Tidegate: what they read is what they read from the broker itself.

Each whole read is also weighed: Tidegate must have relayed or served at least the bytes of the topic, or the client
went past it (after one FindCoordinator answer with a broker's own address, librdkafka does so and nobody notices);
the tier's part must have come from Tidegate, so the broker's own count of remote reads stands still.
"""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its re-exports are not marked as such
    AdminClient,
    ConfigResource,
    ResourceType,
)
from confluent_kafka.cimpl import NewTopic

from tests.support.digests import (
    Isolation,
    Read,
    TopicDigest,
    confluent_consumer,
    java_client,
    read_with_aiokafka,
    read_with_confluent,
    read_with_confluent_group,
    read_with_java,
    read_with_kafka_python,
    read_with_kcat,
)
from tests.support.filled_topics import (
    ABORTED_TRANSACTIONS,
    CODECS,
    RECORDS_PER_PARTITION,
    RECORDS_PER_TRANSACTION,
    TRANSACTIONS,
    FilledTopic,
)
from tests.support.kafka import fresh_name, orders, small_segments, tiered_topic
from tests.support.tidegate import RunningTidegate
from tests.support.waiting import wait_until
from tools.demo.kafka_cluster import KafkaCluster

pytestmark = [pytest.mark.integration, pytest.mark.needs("java", "kafka")]

READ_UNCOMMITTED: Isolation = "read_uncommitted"
READ_COMMITTED: Isolation = "read_committed"


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


def new_producer(tidegate: RunningTidegate, settings: dict[str, str | int | float | bool]) -> Producer:
    return Producer({"bootstrap.servers": tidegate.bootstrap_servers, "linger.ms": 5, **settings})


READERS = [
    pytest.param(read_with_confluent, id="confluent-assign"),
    pytest.param(partial(read_with_confluent_group, protocol="classic"), id="confluent-group"),
    pytest.param(partial(read_with_confluent_group, protocol="consumer"), id="confluent-group-kip848"),
    pytest.param(read_with_kafka_python, id="kafka-python"),
    pytest.param(read_with_aiokafka, id="aiokafka"),
    pytest.param(read_with_java, id="java"),
    pytest.param(read_with_kcat, id="kcat", marks=pytest.mark.needs("kcat")),
]


@pytest.mark.parametrize("isolation", [READ_UNCOMMITTED, READ_COMMITTED])
@pytest.mark.parametrize("read", READERS)
def test_a_whole_read_through_tidegate_is_the_direct_read(
    read: Read, isolation: Isolation, tidegate: RunningTidegate, kafka: KafkaCluster, codecs: FilledTopic
) -> None:
    if isinstance(read, partial):
        read = partial(read, group=fresh_name("group"))
    with weighed(tidegate, kafka, codecs):
        digests = read(tidegate.bootstrap_servers, codecs.name, codecs.ends, isolation)
    assert digests == codecs.direct[isolation]
    assert [each.records for each in digests.values()] == [RECORDS_PER_PARTITION] * len(CODECS)


def test_a_group_of_two_divides_the_topic_and_loses_nothing(
    tidegate: RunningTidegate, kafka: KafkaCluster, codecs: FilledTopic
) -> None:
    digest, group = TopicDigest(codecs.ends), fresh_name("group")
    left = dict(codecs.ends)
    with weighed(tidegate, kafka, codecs):
        members = [Member(tidegate, codecs.name, group)]
        try:
            wait_until(lambda: members[0].take(digest, left), "the first member reads")
            members.append(Member(tidegate, codecs.name, group))

            def take() -> bool:
                return sum(member.take(digest, left) for member in members) >= 0

            wait_until(lambda: take() and all(member.partitions for member in members), "both have a share")
            wait_until(lambda: take() and not any(left.values()), "the whole topic is read")
            shares = [member.partitions for member in members]
        finally:
            for member in members:
                member.consumer.close()
    assert digest.result() == codecs.direct[READ_UNCOMMITTED]
    assert sorted(itertools.chain(*shares)) == sorted(codecs.ends)


class Member:
    """A member of a group that commits what it has read when it must give it up."""

    def __init__(self, tidegate: RunningTidegate, topic: str, group: str) -> None:
        self.partitions: set[int] = set()
        settings = {"group.id": group, "auto.offset.reset": "earliest", "heartbeat.interval.ms": 200}
        settings |= {"enable.partition.eof": False, "queued.max.messages.kbytes": 64}
        self.consumer = confluent_consumer(tidegate.bootstrap_servers, READ_UNCOMMITTED, settings)
        self.consumer.subscribe([topic], on_assign=self._assigned, on_revoke=self._revoked)

    def take(self, digest: TopicDigest, left: dict[int, int]) -> int:
        """Read for a moment, one record at a time: a batch may mix records from before and after a rebalance."""
        for count in range(200):
            message = self.consumer.poll(0.02)
            if message is None:
                return count
            assert message.error() is None, str(message.error())
            partition, _ = digest.add_message(message)
            left[partition] -= 1
        return 200

    def _assigned(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.partitions = {each.partition for each in partitions}

    def _revoked(self, consumer: Consumer, _partitions: list[TopicPartition]) -> None:
        try:
            consumer.commit(asynchronous=False)
        except KafkaException as error:
            if error.args[0].code() != KafkaError._NO_OFFSET:
                raise
        self.partitions = set()


@pytest.mark.parametrize("isolation", [READ_UNCOMMITTED, READ_COMMITTED])
@pytest.mark.parametrize("read", [read_with_confluent, read_with_java])
def test_transactions_are_read_back_as_the_broker_gives_them(
    read: Read, isolation: Isolation, tidegate: RunningTidegate, transactions: FilledTopic
) -> None:
    before = tidegate.process.counters(transactions.name)
    digests = read(tidegate.bootstrap_servers, transactions.name, transactions.ends, isolation)
    grown = tidegate.process.counters(transactions.name) - before
    assert digests == transactions.direct[isolation]
    committed = (TRANSACTIONS - ABORTED_TRANSACTIONS) * RECORDS_PER_TRANSACTION
    assert digests[0].records == (committed if isolation == READ_COMMITTED else TRANSACTIONS * RECORDS_PER_TRANSACTION)
    assert grown.relayed_bytes + grown.served_tier_bytes >= transactions.tier_bytes + transactions.local_bytes


def test_aborted_records_are_not_the_same_as_committed_ones(transactions: FilledTopic) -> None:
    assert transactions.direct[READ_UNCOMMITTED] != transactions.direct[READ_COMMITTED]


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"acks": 0}, id="acks-0"),
        pytest.param({"acks": 1}, id="acks-1"),
        pytest.param({"acks": -1}, id="acks-all"),
        pytest.param({"enable.idempotence": True}, id="idempotent"),
        pytest.param({"acks": -1, "compression.type": "zstd"}, id="zstd"),
    ],
)
def test_what_is_produced_through_tidegate_is_read_back(
    settings: dict[str, str | int | float | bool], tidegate: RunningTidegate, kafka: KafkaCluster
) -> None:
    topic = fresh_name("clients-produced")
    kafka.create_topic(topic, 2)
    count = 2000
    producer = new_producer(tidegate, settings)
    for record in orders(count, 2):
        producer.produce(topic, record.value, record.key, record.partition, headers=list(record.headers))
    assert producer.flush(30) == 0
    # Nobody acknowledges acks=0: the records arrive a moment later.
    wait_until(lambda: high_watermarks(kafka, topic) == [count // 2] * 2, "all records have arrived")
    ends = {0: count // 2, 1: count // 2}
    direct = read_with_confluent(kafka.bootstrap_servers, topic, ends, READ_UNCOMMITTED)
    assert read_with_confluent(tidegate.bootstrap_servers, topic, ends, READ_UNCOMMITTED) == direct
    assert [each.records for each in direct.values()] == [count // 2] * 2


def high_watermarks(kafka: KafkaCluster, topic: str) -> list[int]:
    return [each.high_watermark for _, each in sorted(kafka.partition_offsets(topic).items())]


@pytest.fixture
def admin(tidegate: RunningTidegate) -> AdminClient:
    return AdminClient({"bootstrap.servers": tidegate.bootstrap_servers})


def test_a_topic_made_through_tidegate_is_there(admin: AdminClient, kafka: KafkaCluster) -> None:
    topic = fresh_name("clients-made")
    admin.create_topics([NewTopic(topic, num_partitions=3, config={"retention.ms": "12345"})])[topic].result(30)
    wait_until(lambda: len(kafka.partition_offsets(topic)) == 3, "three leaders")
    resource = ConfigResource(ResourceType.TOPIC, topic)
    assert admin.describe_configs([resource])[resource].result(30)["retention.ms"].value == "12345"


def test_the_cluster_is_described_with_tidegates_addresses(
    admin: AdminClient, tidegate: RunningTidegate, kafka: KafkaCluster
) -> None:
    cluster = admin.describe_cluster().result(30)
    assert cluster.cluster_id == kafka.cluster_id
    assert [node.id for node in cluster.nodes] == [1]
    own_ports = {kafka.broker(1).port, kafka.plan.controller_port}
    assert not own_ports & {node.port for node in (*cluster.nodes, cluster.controller)}
    listed = admin.list_topics(timeout=20)
    assert {node.port for node in cluster.nodes} == {broker.port for broker in listed.brokers.values()}


def test_kafkas_own_admin_client_describes_quorum_and_cluster(tidegate: RunningTidegate, kafka: KafkaCluster) -> None:
    said = [line.split() for line in java_client("admin", tidegate.bootstrap_servers)]
    assert ["quorum", "1"] in said
    ports = {int(words[3]) for words in said if words[0] in ("node", "controller")}
    assert len(ports) == 1
    assert not ports & {kafka.broker(1).port, kafka.plan.controller_port}


def test_groups_are_listed(admin: AdminClient, tidegate: RunningTidegate, codecs: FilledTopic) -> None:
    group = fresh_name("group")
    consumer = confluent_consumer(tidegate.bootstrap_servers, READ_UNCOMMITTED, {"group.id": group})
    try:
        consumer.commit(offsets=[TopicPartition(codecs.name, 0, 1)], asynchronous=False)
    finally:
        consumer.close()
    listed = admin.list_consumer_groups(request_timeout=20).result(30)
    assert group in [each.group_id for each in listed.valid]
    assert not listed.errors


def test_records_deleted_through_tidegate_are_gone_from_the_tier_too(
    admin: AdminClient, tidegate: RunningTidegate, kafka: KafkaCluster
) -> None:
    topic = tiered_topic(
        kafka,
        fresh_name("clients-deleted"),
        records=orders(2000, 1),
        configs=small_segments(batches=4),
        batch_num_messages=100,
    )
    middle = topic.offsets[0].local_log_start_offset // 2
    assert first_offset(tidegate, topic.name, 0) == 0
    low = admin.delete_records([TopicPartition(topic.name, 0, middle)])
    (answer,) = [future.result(30) for future in low.values()]
    assert answer.low_watermark == middle
    with pytest.raises(KafkaException) as caught:
        first_offset(tidegate, topic.name, middle - 1)
    # "error" is the consumer's reset policy: it turns OFFSET_OUT_OF_RANGE into this.
    assert caught.value.args[0].code() == KafkaError._AUTO_OFFSET_RESET
    assert first_offset(tidegate, topic.name, middle) == middle


def first_offset(tidegate: RunningTidegate, topic: str, offset: int) -> int | None:
    """The offset of the first record that a consumer gets from there on."""
    consumer = confluent_consumer(tidegate.bootstrap_servers, READ_UNCOMMITTED)
    try:
        consumer.assign([TopicPartition(topic, 0, offset)])
        message = consumer.poll(20)
        assert message is not None, "neither a record nor an error in 20 s"
        error = message.error()
        if error is not None:
            raise KafkaException(error)
        return message.offset()
    finally:
        consumer.close()
