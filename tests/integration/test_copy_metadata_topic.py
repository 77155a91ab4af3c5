"""The metadata topic from its writer's side, before a Kafka that has none: made, made by two at once, published to."""

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource  # type: ignore[attr-defined]  # re-exports, not marked

from standalone.copier.config import MetadataTopicConfig
from standalone.copier.librdkafka import Properties, client_properties
from standalone.copier.metadata_topic import MetadataPublisher, create_metadata_topic
from storage.config.model import (
    ClientSecurity,
    ClientTls,
    HostPort,
    SaslCredentials,
    SaslMechanism,
    SecurityProtocol,
    UpstreamConfig,
)
from storage.errors import MetadataLogError, RetriableRemoteStorageError
from tests.support.kafka import fresh_name
from tests.support.plain_kafka import own_plain_cluster
from tests.support.secured_kafka import HOST, WRITE, SecuredKafka, password
from tests.support.waiting import wait_until
from tools.demo.kafka_cluster import KafkaCluster

pytestmark = [pytest.mark.integration, pytest.mark.needs("java", "kafka")]


def properties_of(kafka: KafkaCluster) -> Properties:
    servers = tuple(HostPort(HOST, broker.port) for broker in kafka.brokers)
    return client_properties(UpstreamConfig(bootstrap_servers=servers, security=ClientSecurity()), "test")


def configs_of(kafka: KafkaCluster, topic: str) -> Mapping[str, str]:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    [future] = admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, topic)]).values()
    return {name: entry.value for name, entry in future.result(20).items()}


def partition_count(kafka: KafkaCluster, topic: str) -> int:
    """As the broker says once it has heard of the topic from the controller."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    return wait_until(lambda: len(admin.list_topics(topic, timeout=20).topics[topic].partitions), "it is known")


def test_a_broker_fewer_than_was_counted_means_a_replica_fewer(plain_kafka: KafkaCluster) -> None:
    topic = fresh_name("metadata")
    assert create_metadata_topic(
        properties_of(plain_kafka), MetadataTopicConfig(partition_count=2), topic=topic, broker_count=3
    )


def test_replicas_that_are_asked_for_are_not_made_fewer(plain_kafka: KafkaCluster) -> None:
    wanted = MetadataTopicConfig(partition_count=2, replication_factor=3)
    with pytest.raises(MetadataLogError, match=r"cannot be made: .*replication factor"):
        create_metadata_topic(properties_of(plain_kafka), wanted, topic=fresh_name("metadata"), broker_count=3)


def test_of_several_who_make_it_at_once_one_does_and_nobody_fails(plain_kafka: KafkaCluster) -> None:
    topic, together = fresh_name("metadata"), threading.Barrier(4)
    wanted = MetadataTopicConfig(partition_count=3, retention_ms=86_400_000)

    def make() -> bool:
        together.wait()
        return create_metadata_topic(properties_of(plain_kafka), wanted, topic=topic, broker_count=1)

    with ThreadPoolExecutor(4) as threads:
        made = [future.result() for future in [threads.submit(make) for _ in range(4)]]
    assert sorted(made) == [False, False, False, True]
    assert (partition_count(plain_kafka, topic), configs_of(plain_kafka, topic)["retention.ms"]) == (3, "86400000")


def test_records_are_published_into_their_partition_in_order(plain_kafka: KafkaCluster) -> None:
    """Given publishers in several threads, then each offset is the record's, without a key, and of one thread's records
    the order is kept."""
    topic = fresh_name("metadata")
    plain_kafka.create_topic(topic, partitions=3)
    publisher = MetadataPublisher(properties_of(plain_kafka), topic=topic)

    def publish(partition: int) -> list[int]:
        return [publisher.publish(partition, f"{partition}/{number}".encode()) for number in range(20)]

    with ThreadPoolExecutor(3) as threads:
        offsets = list(threads.map(publish, range(3)))
    publisher.close()
    publisher.close()
    assert offsets == [list(range(20))] * 3
    with pytest.raises(MetadataLogError, match="closed"):
        publisher.publish(0, b"too late")
    consumer = Consumer({"bootstrap.servers": plain_kafka.bootstrap_servers, "group.id": topic})
    consumer.assign([TopicPartition(topic, 1, 0)])
    found = consumer.consume(20, timeout=20)
    consumer.close()
    assert [(each.offset(), each.key(), each.value()) for each in found] == [
        (number, None, f"1/{number}".encode()) for number in range(20)
    ]
    assert found[0].timestamp()[0] != TIMESTAMP_NOT_AVAILABLE


def test_a_topic_that_is_deleted_under_the_publisher_stays_deleted() -> None:
    """Failed before: the producer had the brokers make the topic again, with their own partitions and retention."""
    topic = fresh_name("metadata")
    with own_plain_cluster(properties={"auto.create.topics.enable": "true"}) as kafka:
        kafka.create_topic(topic, partitions=3)
        publisher = MetadataPublisher(properties_of(kafka), topic=topic, delivery_timeout_ms=3000)
        assert publisher.publish(0, b"before") == 0
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        admin.delete_topics([topic], operation_timeout=30)[topic].result(30)
        second = MetadataPublisher(properties_of(kafka), topic=topic, delivery_timeout_ms=3000)
        for each in (publisher, second, publisher):
            with pytest.raises(RetriableRemoteStorageError, match=f"{topic}-0: not published"):
                each.publish(0, b"after")
        publisher.close()
        second.close()
        assert topic not in admin.list_topics(timeout=20).topics


def test_a_broker_that_is_away_is_an_error_that_may_pass(plain_kafka: KafkaCluster) -> None:
    away = properties_of(plain_kafka) | {"bootstrap.servers": f"{HOST}:1"}
    publisher = MetadataPublisher(away, topic="metadata", delivery_timeout_ms=1000)
    with pytest.raises(RetriableRemoteStorageError, match="metadata-0: not published"):
        publisher.publish(0, b"lost")
    publisher.close()
    publisher_of_too_much = MetadataPublisher(properties_of(plain_kafka), topic="metadata")
    with pytest.raises(MetadataLogError, match="metadata-0: not published"):
        publisher_of_too_much.publish(0, bytes(2_000_000))
    publisher_of_too_much.close()


@pytest.fixture
def signed_in(guarded: SecuredKafka) -> Callable[[str], Properties]:
    """Properties of a user, by SCRAM over TLS with a PEM."""

    def properties(user: str) -> Properties:
        tls = ClientTls(ca_certificates_pem=guarded.certificate.read_bytes())
        sasl = SaslCredentials(mechanism=SaslMechanism.SCRAM_SHA_256, username=user, password=password(user))
        security = ClientSecurity(protocol=SecurityProtocol.SASL_SSL, tls=tls, sasl=sasl)
        servers = (HostPort(HOST, guarded.ports["SASL_SSL"]),)
        return client_properties(UpstreamConfig(bootstrap_servers=servers, security=security), "test")

    return properties


def test_rights_that_are_missing_are_named(guarded: SecuredKafka, signed_in: Callable[[str], Properties]) -> None:
    """Given a user without Create, and then without Write, then the ACL is named; with Write it is published."""
    topic = fresh_name("metadata")
    with pytest.raises(MetadataLogError, match=f"ACL Create on Topic {topic} is missing"):
        create_metadata_topic(signed_in("checker"), MetadataTopicConfig(), topic=topic, broker_count=1)
    guarded.cluster.create_topic(topic)
    publisher = MetadataPublisher(signed_in("checker"), topic=topic, delivery_timeout_ms=5000)
    with pytest.raises(MetadataLogError, match=f"{topic}-0: not published: ACL Write on Topic {topic} is missing"):
        publisher.publish(0, b"denied")
    guarded.allow("checker", WRITE, topic)
    assert publisher.publish(0, b"allowed") == 0
    publisher.close()
    guarded.withdraw("checker", WRITE, topic)
