"""What clients write and ask for besides records goes through Tidegate as it goes to the broker."""

from contextlib import ExitStack, closing

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic  # type: ignore[attr-defined]  # not marked so

from tests.broker.sides import Sides, kafka_python_is_quiet, wait_for
from tests.support.digests import fields_of, read_with_confluent
from tests.support.kafka import fresh_name, orders

pytestmark = [pytest.mark.needs("java", "kafka"), kafka_python_is_quiet]

RECORDS = 300
WAYS_TO_PRODUCE: tuple[dict[str, str | int | float | bool], ...] = (
    {"acks": 0},
    {"acks": 1, "compression.type": "gzip"},
    {"acks": -1, "compression.type": "zstd"},
    {"enable.idempotence": True, "compression.type": "lz4"},
)


@pytest.fixture
def topic(sides: Sides) -> str:
    """This test has it alone, without a tier."""
    name = fresh_name("written")
    sides.cluster.create_topic(name)
    return name


def wait_arrived(sides: Sides, topic: str, count: int) -> None:
    """Nobody acknowledges acks=0: such records arrive a moment later."""
    wait_for(lambda: sides.cluster.partition_offsets(topic)[0].high_watermark == count, f"{count} records in {topic}")


def check_read_back(sides: Sides, topic: str, end: int, visible: int) -> None:
    direct = read_with_confluent(sides.cluster.bootstrap_servers, topic, {0: end}, "read_committed")
    assert read_with_confluent(sides.gate.bootstrap_servers, topic, {0: end}, "read_committed") == direct
    assert direct[0].records == visible


def test_what_librdkafka_produces_is_read_back(sides: Sides, topic: str) -> None:
    for number, settings in enumerate(WAYS_TO_PRODUCE, start=1):
        producer = Producer({"bootstrap.servers": sides.gate.bootstrap_servers, "linger.ms": 5, **settings})
        for record in orders(RECORDS, 1):
            producer.produce(topic, record.value, record.key, record.partition, headers=list(record.headers))
        assert producer.flush(60) == 0, settings
        wait_arrived(sides, topic, number * RECORDS)
    end = RECORDS * len(WAYS_TO_PRODUCE)
    check_read_back(sides, topic, end, visible=end)


def test_what_kafka_python_produces_is_read_back(sides: Sides, topic: str) -> None:
    import kafka

    with closing(
        kafka.KafkaProducer(bootstrap_servers=sides.gate.bootstrap_servers, compression_type="gzip")
    ) as producer:
        sent = [
            producer.send(topic, record.value, record.key, list(record.headers), record.partition)
            for record in orders(RECORDS, 1)
        ]
        assert [each.get(60).offset for each in sent] == [*range(RECORDS)]
    check_read_back(sides, topic, RECORDS, visible=RECORDS)


def test_a_transaction_with_offsets_of_a_group_is_committed_or_aborted_whole(sides: Sides, topic: str) -> None:
    """Given a consumer and a producer through Tidegate, when one transaction of offsets and records is committed and
    one aborted, then the group's offset and the records that are read are the committed one's."""
    settings = {"bootstrap.servers": sides.gate.bootstrap_servers}
    producer = Producer({**settings, "transactional.id": topic})
    producer.init_transactions(60)
    with closing(Consumer({**settings, "group.id": topic, "enable.auto.commit": False})) as consumer:
        for number, is_committed in enumerate((True, False), start=1):
            producer.begin_transaction()
            producer.produce(topic, f"{number}", partition=0)
            offsets = [TopicPartition(topic, 0, number)]
            producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), 60)
            producer.commit_transaction(60) if is_committed else producer.abort_transaction(60)
        (committed,) = consumer.committed([TopicPartition(topic, 0)], 60)
    assert committed.offset == 1
    check_read_back(sides, topic, end=4, visible=1)


def test_a_consumer_at_the_end_is_given_what_comes(sides: Sides, topic: str) -> None:
    """Given consumers that wait at the end of a log, at the broker and through Tidegate, when a record is produced,
    then both have it."""
    settings = {"group.id": "none", "fetch.wait.max.ms": 10_000}
    with ExitStack() as stack:
        direct, through = (
            stack.enter_context(closing(Consumer({"bootstrap.servers": each, **settings})))
            for each in (sides.cluster.bootstrap_servers, sides.gate.bootstrap_servers)
        )
        for consumer in (direct, through):
            consumer.assign([TopicPartition(topic, 0, 0)])
            assert consumer.poll(0.5) is None
        producer = Producer({"bootstrap.servers": sides.gate.bootstrap_servers})
        producer.produce(topic, b"news", b"key", 0)
        assert producer.flush(60) == 0
        expected, got = direct.poll(60), through.poll(60)
        assert expected is not None
        assert got is not None
        assert fields_of(got) == fields_of(expected)


def test_the_cluster_is_described_with_tidegates_addresses_alone(sides: Sides) -> None:
    admin = AdminClient({"bootstrap.servers": sides.gate.bootstrap_servers})
    described = admin.describe_cluster().result(60)
    listed = admin.list_topics(timeout=60)
    assert (described.cluster_id, [node.id for node in described.nodes]) == (sides.cluster.cluster_id, [1])
    told = {node.port for node in (*described.nodes, described.controller, *listed.brokers.values())}
    assert told == {sides.gate.listener()[1]}


def test_topics_are_made_described_and_deleted(sides: Sides) -> None:
    name = fresh_name("administered")
    admin = AdminClient({"bootstrap.servers": sides.gate.bootstrap_servers})
    made = NewTopic(name, num_partitions=2, replication_factor=1, config={"retention.ms": "12345"})
    admin.create_topics([made])[name].result(60)
    with pytest.raises(KafkaException, match="TOPIC_ALREADY_EXISTS"):
        admin.create_topics([made])[name].result(60)
    (configs,) = admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, name)]).values()
    assert configs.result(60)["retention.ms"].value == "12345"
    assert len(admin.list_topics(name, timeout=60).topics[name].partitions) == 2
    admin.delete_topics([name])[name].result(60)
    wait_for(lambda: name not in admin.list_topics(timeout=60).topics, f"{name} to be gone")
