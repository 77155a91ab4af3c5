"""The own upstream client against a real broker: sign-in by every mechanism, frontiers, the metadata topic."""

import ssl
from dataclasses import replace

import pytest
import trio
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._scram import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from protocol.client.connection import ClientSettings
from protocol.client.errors import UpstreamAuthenticationError, UpstreamConnectionError
from protocol.client.leaders import AskNode
from protocol.client.messages import CONSUMER_REPLICA, LIST_OFFSETS, OffsetQuery, offset_questions
from protocol.client.sasl import SaslCredentials
from protocol.list_offsets import OffsetTimestamp
from proxy.upstream.cluster import Cluster, FrontierClient
from proxy.upstream.metadata_topic import KafkaMetadataTopicClient
from storage.errors import MetadataLogError, MetadataOffsetOutOfRange
from storage.metadata.serde import decode
from storage.model import (
    RemoteLogSegmentMetadata,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
    TopicIdPartition,
    Uuid,
)
from storage.writing.metadata_records import encode
from tests.support.kafka import TieredTopic, fresh_name, orders, produce
from tests.support.secured_kafka import HOST, SecuredKafka, password
from tests.support.waiting import HANG_S_MAX
from tools.demo.kafka_cluster import KafkaCluster

SESSION_LIFETIME_MS = 2000
ALICE, DORA = SaslCredentials("PLAIN", "alice", password("alice")), SaslCredentials("SCRAM-SHA-256", "dora", "ª ﬁ")
"""SASLprep would make "a fi" of the password."""

pytestmark = [pytest.mark.integration, pytest.mark.needs("java", "kafka")]


def settings_of(guarded: SecuredKafka, protocol: str, sasl: SaslCredentials) -> ClientSettings:
    return ClientSettings(bootstrap_servers=((HOST, guarded.ports[protocol]),), sasl=sasl)


@pytest.fixture(scope="module")
def brief(moody: KafkaCluster) -> KafkaCluster:
    """It ends sessions soon; alice signs in by PLAIN, dora by SCRAM."""
    scram = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    admin = AdminClient({"bootstrap.servers": moody.bootstrap_servers})
    change = UserScramCredentialUpsertion(DORA.username, scram, DORA.password.encode())
    for future in admin.alter_user_scram_credentials([change]).values():
        future.result(30)
    return moody


def signing_in(brief: KafkaCluster, sasl: SaslCredentials) -> ClientSettings:
    return ClientSettings(bootstrap_servers=((HOST, brief.broker(1).sasl_port),), sasl=sasl)


@pytest.mark.parametrize("sasl", [ALICE, DORA], ids=lambda sasl: sasl.mechanism)
async def test_signing_in(sasl: SaslCredentials, brief: KafkaCluster, nursery: trio.Nursery) -> None:
    """Over TLS: test_own_identity.py and, with the same core, test_pipeline_broker_client.py."""
    cluster = Cluster(signing_in(brief, sasl), nursery)
    with trio.fail_after(HANG_S_MAX):
        while True:  # a SCRAM user is in the metadata log at once, and in the broker a moment later
            try:
                await cluster.refresh()
                break
            except UpstreamAuthenticationError:
                await trio.sleep(0.1)
    assert cluster.cluster_id == brief.cluster_id
    assert cluster.brokers[1].port == brief.broker(1).sasl_port


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
async def test_a_wrong_password_names_principal_and_mechanism(
    mechanism: str, guarded: SecuredKafka, nursery: trio.Nursery
) -> None:
    settings = settings_of(guarded, "SASL_PLAINTEXT", SaslCredentials(mechanism, "tidegate", "wr0ng"))
    with pytest.raises(UpstreamAuthenticationError, match=f"{mechanism} for 'tidegate' failed") as caught:
        await Cluster(settings, nursery).refresh()
    assert "wr0ng" not in str(caught.value)


async def test_a_mechanism_that_the_listener_lacks_lists_those_it_has(
    guarded: SecuredKafka, nursery: trio.Nursery
) -> None:
    settings = settings_of(guarded, "SASL_PLAINTEXT", SaslCredentials("OAUTHBEARER", "svc", "a.b.c"))
    with pytest.raises(UpstreamAuthenticationError, match=r"offers .*SCRAM-SHA-256"):
        await Cluster(settings, nursery).refresh()


async def test_a_certificate_of_an_unknown_authority_is_refused(guarded: SecuredKafka, nursery: trio.Nursery) -> None:
    settings = replace(settings_of(guarded, "SASL_SSL", ALICE), tls=ssl.create_default_context())
    with pytest.raises(UpstreamConnectionError, match="certificate"):
        await Cluster(settings, nursery).refresh()


async def test_a_session_that_ends_is_replaced_before_the_broker_ends_it(
    brief: KafkaCluster, nursery: trio.Nursery
) -> None:
    cluster = Cluster(signing_in(brief, ALICE), nursery)
    first = await cluster.connection_to(1, "frontier")
    usable_before = first.usable
    await trio.sleep(SESSION_LIFETIME_MS / 1000)
    assert (usable_before, first.usable) == (True, False)
    assert await cluster.connection_to(1, "frontier") is not first
    await cluster.refresh()


def cluster_of(kafka: KafkaCluster, nursery: trio.Nursery) -> Cluster:
    return Cluster(ClientSettings(bootstrap_servers=tuple((HOST, broker.port) for broker in kafka.brokers)), nursery)


async def test_frontiers_are_what_the_cluster_itself_says(
    kafka: KafkaCluster, tiered: TieredTopic, nursery: trio.Nursery
) -> None:
    client = FrontierClient(cluster_of(kafka, nursery))
    starts = await client.local_log_starts(1, [(tiered.name, partition) for partition in range(tiered.partitions)])
    stamps = (
        OffsetTimestamp.EARLIEST,
        OffsetTimestamp.EARLIEST_LOCAL,
        OffsetTimestamp.LATEST_TIERED,
        OffsetTimestamp.LATEST,
    )
    for partition, expected in tiered.offsets.items():
        assert starts[(tiered.name, partition)].offset == expected.local_log_start_offset
        answers = await client.list_offsets(1, [(tiered.name, partition, stamp) for stamp in stamps])
        offsets = [answers[(tiered.name, partition, stamp)].offset for stamp in stamps]
        high_watermark = tiered.records // tiered.partitions
        assert offsets == [0, expected.local_log_start_offset, expected.latest_tiered_offset, high_watermark]
        epochs = (await client.epoch_end_offsets(1, {(tiered.name, partition): [0, 1]}))[tiered.name, partition]
        assert (epochs[0].leader_epoch, epochs[0].end_offset) == (0, high_watermark)
        assert (epochs[1].error_code, epochs[1].leader_epoch, epochs[1].end_offset) == (0, -1, -1)


async def test_the_metadata_topic_is_read_from_the_beginning(
    kafka: KafkaCluster, tiered: TieredTopic, nursery: trio.Nursery
) -> None:
    client = KafkaMetadataTopicClient(cluster_of(kafka, nursery))
    description = await client.describe()
    assert any(description.topic_id)
    offsets = await client.offsets(range(description.partition_count))
    topics: set[str] = set()
    for partition, (log_start, end) in offsets.items():
        position = log_start
        while position < end:
            fetched = await client.fetch(partition, position, 0)
            assert fetched.records[0].offset == position
            assert fetched.high_watermark >= end
            for event in fetched.records:
                record = decode(event.value or b"")
                if isinstance(record, RemoteLogSegmentMetadata):
                    topics.add(record.topic_id_partition.topic)
            position = fetched.next_offset
    assert tiered.name in topics
    with pytest.raises(MetadataOffsetOutOfRange):
        await client.fetch(0, 10**9, 0)


async def test_a_produced_record_is_what_the_waiting_fetch_gets(
    kafka: KafkaCluster, tiered: TieredTopic, nursery: trio.Nursery
) -> None:
    client = KafkaMetadataTopicClient(cluster_of(kafka, nursery))
    assert tiered.offsets, "the broker makes the metadata topic with its first tiered topic"
    nobodys = TopicIdPartition(Uuid(b"nobody's topicid"), 0, "nobody")
    marked = RemotePartitionDeleteState.DELETE_PARTITION_MARKED
    value = encode(RemotePartitionDeleteMetadata(nobodys, marked, 1, 1))
    [(_, position)] = (await client.offsets([1])).values()
    received: dict[int, bytes | None] = {}
    produced: list[int] = []

    async def produce_later() -> None:
        await trio.sleep(0.2)
        produced.append(await client.produce(1, value))

    async with trio.open_nursery() as producing:
        producing.start_soon(produce_later)
        while value not in received.values():  # others' tests may add records of their own
            fetched = await client.fetch(1, position, 30_000)
            received |= {event.offset: event.value for event in fetched.records}
            position = fetched.next_offset
    assert received[produced[0]] == value


async def test_compressed_and_transactional_records_of_others(kafka: KafkaCluster, nursery: trio.Nursery) -> None:
    topic = fresh_name("metadata-like")
    kafka.create_topic(topic, 3)
    for partition, codec in enumerate(("gzip", "zstd", "lz4")):
        await trio.to_thread.run_sync(_produce_transaction, kafka.bootstrap_servers, topic, partition, codec)
    client = KafkaMetadataTopicClient(cluster_of(kafka, nursery), topic)
    for partition in (0, 1):
        fetched = await client.fetch(partition, 0, 1000)
        assert [event.value for event in fetched.records] == [b"x" * 1000] * 5
        assert fetched.next_offset == 6  # the transaction's marker has the last offset
    with pytest.raises(MetadataLogError, match=f"{topic}-2: batch at offset 0: compression lz4"):
        await client.fetch(2, 0, 1000)


def _produce_transaction(servers: str, topic: str, partition: int, codec: str) -> None:
    producer = Producer(
        {"bootstrap.servers": servers, "transactional.id": f"{topic}-{codec}", "compression.type": codec}
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    for _ in range(5):
        producer.produce(topic, b"x" * 1000, partition=partition)
    producer.commit_transaction(30)


def test_followers_answer_frontiers_and_a_moved_broker_is_found(pair: KafkaCluster) -> None:
    topic = fresh_name("replicated")
    pair.create_topic(topic, 1)
    produce(pair, topic, orders(100, 1))
    trio.run(_ask_both_and_move_one, pair, topic)


async def _until_end_is(client: FrontierClient, node_id: int, query: OffsetQuery, offset: int) -> None:
    """A follower has what the leader acknowledged, but its own end is told a moment later."""
    with trio.fail_after(HANG_S_MAX):
        while True:
            if (await client.list_offsets(node_id, [query]))[query].offset >= offset:
                return
            await trio.sleep(0.05)


async def _ask_both_and_move_one(kafka: KafkaCluster, topic: str) -> None:
    async with trio.open_nursery() as nursery:
        cluster = cluster_of(kafka, nursery)
        client = FrontierClient(cluster)
        [found] = await cluster.learn_topics([topic])
        leader = found.partitions[0].leader_id
        follower = 3 - leader
        query = (topic, 0, OffsetTimestamp.LATEST)
        for node_id in (leader, follower):
            await _until_end_is(client, node_id, query, 100)
            assert (await client.local_log_starts(node_id, [(topic, 0)]))[(topic, 0)].offset == 0
        [question] = offset_questions([query], replica_id=CONSUMER_REPLICA, isolation_level=0, timeout_s=5)
        [body] = await cluster.ask_all("frontier", [AskNode(follower, question)])
        assert question.read(body, "follower")[query].error_code == 6
        assert (await client.epoch_end_offsets(follower, {(topic, 0): [0]}))[topic, 0][0].error_code == 6
        old_port = cluster.brokers[follower].port
        await trio.to_thread.run_sync(lambda: kafka.restart_broker(follower, new_port=True))
        with trio.fail_after(HANG_S_MAX):
            while cluster.brokers.get(follower) is None or cluster.brokers[follower].port == old_port:
                await cluster.refresh()
                await trio.sleep(0.2)
        connection = await cluster.connection_to(follower, "frontier")
        assert connection.versions[LIST_OFFSETS.key][1] >= 8
        nursery.cancel_scope.cancel()
