"""The pipeline's blocking client against real brokers: the same answers as others get, every way to sign in, rights."""

import ssl
from dataclasses import replace

import pytest
import trio

from pipeline.brokers.client import BrokerClient
from pipeline.brokers.metadata_topic import METADATA_TOPIC, MetadataFollower
from protocol.client.connection import ClientSettings
from protocol.client.errors import OffsetOutOfRangeError, TopicAuthorizationError, UnknownTopicError, UpstreamTlsError
from protocol.client.messages import FETCH
from protocol.client.sasl import SaslCredentials
from proxy.upstream.cluster import Cluster
from proxy.upstream.metadata_topic import KafkaMetadataTopicClient
from storage.metadata.catalog import Catalog
from storage.metadata.manager import TopicBasedRemoteLogMetadataManager
from storage.metadata.topic_log import TopicMetadataEventLog
from storage.model import TopicIdPartition, Uuid
from tests.support.filled_topics import FilledTopic
from tests.support.kafka import TieredTopic
from tests.support.raw_client import RawClient
from tests.support.secured_kafka import HOST, READ, SecuredKafka, password
from tests.support.waiting import wait_until
from tools.demo.kafka_cluster import KafkaCluster

FETCH_VERSION, LIST_OFFSETS_VERSION = 17, 10
BYTES_MAX = 300_000
LATEST, EARLIEST, EARLIEST_LOCAL = -1, -2, -4


def settings_of(
    address: tuple[str, int], *, sasl: SaslCredentials | None = None, tls: ssl.SSLContext | None = None
) -> ClientSettings:
    return ClientSettings(bootstrap_servers=(address,), deadline_s=20, sasl=sasl, tls=tls)


def direct(kafka: KafkaCluster) -> tuple[str, int]:
    return HOST, kafka.broker(1).port


def test_offsets_are_what_the_cluster_and_a_plain_client_say(kafka: KafkaCluster, tiered: TieredTopic) -> None:
    partitions = [(tiered.name, partition) for partition in range(tiered.partitions)]
    with BrokerClient(settings_of(direct(kafka))) as client, RawClient(*direct(kafka)) as plain:
        middle_ms = plain.list_offsets(LIST_OFFSETS_VERSION, [(tiered.name, 0, 0)])[0].timestamp_ms + 1
        for stamp in (LATEST, EARLIEST, EARLIEST_LOCAL, 0, middle_ms, 10**15):
            said = plain.list_offsets(LIST_OFFSETS_VERSION, [(*partition, stamp) for partition in partitions])
            answers = client.list_offsets(dict.fromkeys(partitions, stamp))
            assert {
                (*key, answer.offset, answer.timestamp_ms, answer.leader_epoch) for key, answer in answers.items()
            } == {(each.topic, each.partition, each.offset, each.timestamp_ms, each.leader_epoch) for each in said}
        starts = client.list_offsets(dict.fromkeys(partitions, EARLIEST_LOCAL))
    expected = {partition: offsets.local_log_start_offset for partition, offsets in tiered.offsets.items()}
    assert {partition: answer.offset for (_, partition), answer in starts.items()} == expected


def test_topics_and_leader_epochs_are_told(kafka: KafkaCluster, tiered: TieredTopic) -> None:
    with BrokerClient(settings_of(direct(kafka))) as client, RawClient(*direct(kafka)) as plain:
        described = client.topics([tiered.name, "no-such-topic"])
        assert list(described) == [tiered.name]
        assert described[tiered.name].topic_id == plain.topic_id(tiered.name)
        assert list(described[tiered.name].partitions) == list(range(tiered.partitions))
        assert {tiered.name, METADATA_TOPIC} <= set(client.topics())
        ends = client.leader_epoch_ends(tiered.name, 0, [0, 1])
    assert (ends.leader_epoch, ends.answers) == (0, {0: (0, tiered.records // tiered.partitions), 1: (-1, -1)})


@pytest.mark.parametrize("version_max", [12, 18], ids=["by-name", "by-id"])
def test_fetched_bytes_are_the_brokers(
    kafka: KafkaCluster, tiered: TieredTopic, version_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("protocol.client.leaders.FETCH", replace(FETCH, version_max=version_max))
    start_offset = tiered.offsets[0].local_log_start_offset
    with BrokerClient(settings_of(direct(kafka))) as client, RawClient(*direct(kafka)) as plain:
        answer = client.fetch(
            tiered.name, 0, start_offset + 7, max_bytes=BYTES_MAX, read_committed=False, max_wait_ms=500
        )
        target = (tiered.name, plain.topic_id(tiered.name), 0, start_offset + 7, BYTES_MAX)
        (said,) = plain.fetch(FETCH_VERSION, [target]).partitions
        with pytest.raises(OffsetOutOfRangeError, match=f"{tiered.name}-0 does not hold offset 1000000"):
            client.fetch(tiered.name, 0, 1_000_000, max_bytes=1, read_committed=False, max_wait_ms=0)
        with pytest.raises(UnknownTopicError):
            client.fetch(tiered.name, 77, 0, max_bytes=1, read_committed=False, max_wait_ms=0)
    assert answer.data == said.records
    assert len(answer.data) > 100_000
    assert answer.high_watermark == said.high_watermark


def test_aborted_transactions_are_named_for_read_committed(kafka: KafkaCluster, transactions: FilledTopic) -> None:
    name = transactions.name
    with BrokerClient(settings_of(direct(kafka))) as client, RawClient(*direct(kafka)) as plain:
        start_offset = client.list_offsets({(name, 0): EARLIEST_LOCAL})[name, 0].offset
        target = (name, plain.topic_id(name), 0, start_offset, BYTES_MAX)
        (said,) = plain.fetch(FETCH_VERSION, [target], isolation=1).partitions
        answer = client.fetch(name, 0, start_offset, max_bytes=BYTES_MAX, read_committed=True, max_wait_ms=500)
        plain_answer = client.fetch(name, 0, start_offset, max_bytes=BYTES_MAX, read_committed=False, max_wait_ms=500)
    assert list(answer.aborted) == said.aborted
    assert answer.data == said.records
    assert plain_answer.aborted == ()


async def test_the_followers_catalog_is_the_managers(
    kafka: KafkaCluster, tiered: TieredTopic, nursery: trio.Nursery
) -> None:
    cluster = Cluster(ClientSettings(bootstrap_servers=(direct(kafka),)), nursery)
    event_log = TopicMetadataEventLog(KafkaMetadataTopicClient(cluster))
    managers_catalog, catalog = Catalog(), Catalog()
    manager = TopicBasedRemoteLogMetadataManager(event_log, managers_catalog)
    await nursery.start(event_log.run)
    manager.follow_all()

    def follow() -> tuple[int, int, bytes]:
        with BrokerClient(settings_of(direct(kafka))) as client:
            follower = MetadataFollower(client, catalog)
            read = follower.catch_up()
            assert follower.undecodable_records == follower.rejected_records == 0
            return read, sum(follower.positions.values()), client.topics([tiered.name])[tiered.name].topic_id

    read, positions, topic_id = await trio.to_thread.run_sync(follow)
    assert read == positions > 0  # nothing but records is in the topic, from offset 0 on
    partitions = [TopicIdPartition(Uuid(topic_id), partition, tiered.name) for partition in range(tiered.partitions)]
    await trio.to_thread.run_sync(
        wait_until, lambda: all(manager.is_ready(partition) for partition in partitions), "the manager's catalog"
    )
    for partition in range(tiered.partitions):
        mine, theirs = (
            sorted(each.list_segments(topic_id, partition), key=lambda segment: segment.start_offset)
            for each in (catalog, managers_catalog)
        )
        assert mine == theirs
        assert mine[-1].end_offset == tiered.offsets[partition].latest_tiered_offset
    nursery.cancel_scope.cancel()


def test_every_way_to_sign_in_works(guarded: SecuredKafka) -> None:
    over_tls = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
    for mechanism, protocol in (("PLAIN", "SASL_PLAINTEXT"), *((each, "SASL_SSL") for each in over_tls)):
        with BrokerClient(secured_settings(guarded, mechanism, protocol, "tidegate")) as client:
            assert list(client.topics([guarded.topic.name])[guarded.topic.name].partitions) == [0], mechanism


def test_a_certificate_of_an_unknown_authority_is_said_at_once(guarded: SecuredKafka) -> None:
    settings = secured_settings(guarded, "PLAIN", "SASL_SSL", "tidegate")
    with (
        BrokerClient(replace(settings, tls=ssl.create_default_context())) as client,
        pytest.raises(
            UpstreamTlsError, match=r"TLS handshake with 127\.0\.0\.1:\d+ failed: .*CERTIFICATE_VERIFY_FAILED"
        ),
    ):
        client.topics()


def test_a_right_that_is_missing_is_named_with_principal_and_partition(guarded: SecuredKafka) -> None:
    topic = guarded.topic.name
    with BrokerClient(secured_settings(guarded, "SCRAM-SHA-256", "SASL_SSL", "tidegate")) as client:
        with pytest.raises(
            TopicAuthorizationError,
            match=rf"broker 1 .*: Fetch of {topic}-0 is denied to 'tidegate': ACL Read on Topic {topic} is missing",
        ):
            client.fetch(topic, 0, 0, max_bytes=1000, read_committed=False, max_wait_ms=0)
        catalog = Catalog()
        assert MetadataFollower(client, catalog).catch_up() > 0
        assert catalog.segment_count > 0
    with BrokerClient(secured_settings(guarded, "PLAIN", "SASL_PLAINTEXT", "outsider")) as client:
        with pytest.raises(TopicAuthorizationError, match=f"Metadata of {topic} is denied to 'outsider': ACL Describe"):
            client.list_offsets({(topic, 0): LATEST})
        assert topic not in client.topics()


def test_a_right_that_was_given_meanwhile_counts(guarded: SecuredKafka) -> None:
    topic = guarded.topic.name
    with BrokerClient(secured_settings(guarded, "PLAIN", "SASL_SSL", "reader")) as client:
        with pytest.raises(TopicAuthorizationError):
            client.fetch(topic, 0, 0, max_bytes=1000, read_committed=False, max_wait_ms=0)
        guarded.allow("reader", READ, topic)
        try:
            assert client.fetch(topic, 0, 0, max_bytes=1000, read_committed=False, max_wait_ms=1000).data
        finally:
            guarded.withdraw("reader", READ, topic)


def secured_settings(guarded: SecuredKafka, mechanism: str, protocol: str, user: str) -> ClientSettings:
    return settings_of(
        (HOST, guarded.ports[protocol]),
        sasl=SaslCredentials(mechanism, user, password(user)),
        tls=guarded.trusting if protocol == "SASL_SSL" else None,
    )
