"""The own upstream client against a real broker: sign-in by every mechanism, frontiers, the metadata topic."""

import ssl
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest
import trio
from confluent_kafka import Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its re-exports are not marked as such
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

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
from tests.support.certificates import server_certificate
from tests.support.kafka import TieredTopic, fresh_name, orders, own_cluster, produce
from tests.support.needs import JARS
from tools.demo.kafka_cluster import KafkaCluster, free_port

HOST = "127.0.0.1"
SESSION_LIFETIME_MS = 2000


@dataclass(frozen=True, slots=True)
class SecuredKafka:
    """One broker with all four security protocols; alice by PLAIN, carol and dora by SCRAM."""

    cluster: KafkaCluster
    ports: dict[str, int]
    certificate: Path

    @property
    def trusting(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.certificate))

    def settings(self, protocol: str, sasl: SaslCredentials | None = None) -> ClientSettings:
        return ClientSettings(
            bootstrap_servers=((HOST, self.ports[protocol]),),
            tls=self.trusting if protocol.endswith("SSL") else None,
            sasl=sasl,
        )

    @property
    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.cluster.bootstrap_servers})


@pytest.fixture(scope="module")
def secured() -> Iterator[SecuredKafka]:
    with tempfile.TemporaryDirectory(prefix="tidegate-kafka-") as folder:
        work = Path(folder)
        certificate, key = server_certificate(work)
        keystore = work / "keystore.pem"
        keystore.write_bytes(key.read_bytes() + certificate.read_bytes())
        cluster = KafkaCluster(jars=JARS, work=work, sasl_plain_users={"alice": "alice-secret"})
        ports = {"PLAINTEXT": cluster.broker(1).port, "SASL_PLAINTEXT": cluster.broker(1).sasl_port}
        ports |= {"SSL": free_port(), "SASL_SSL": free_port()}
        # the plan is read when a node is launched: only now are the ports known that the listeners name
        cast("dict[str, str]", cluster.plan.properties).update(_listeners(cluster, ports, keystore))
        with cluster:
            secured = SecuredKafka(cluster, ports, certificate)
            _add_scram_user(secured.admin, "carol", "carol-secret")
            _add_scram_user(secured.admin, "dora", "ª ﬁ")  # SASLprep would make "a fi" of it
            yield secured


def _listeners(cluster: KafkaCluster, ports: dict[str, int], keystore: Path) -> dict[str, str]:
    listeners = ",".join(f"{name}://{HOST}:{port}" for name, port in ports.items())
    properties = {
        "listeners": f"{listeners},CONTROLLER://{HOST}:{cluster.plan.controller_port}",
        "advertised.listeners": listeners,
        "listener.security.protocol.map": ",".join(f"{name}:{name}" for name in ports) + ",CONTROLLER:PLAINTEXT",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(keystore),
        "listener.name.sasl_ssl.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "listener.name.sasl_ssl.plain.connections.max.reauth.ms": str(SESSION_LIFETIME_MS),
    }
    plain = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="alice-secret";'
    properties["listener.name.sasl_ssl.plain.sasl.jaas.config"] = plain
    for mechanism in ("scram-sha-256", "scram-sha-512"):
        module = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        properties[f"listener.name.sasl_ssl.{mechanism}.sasl.jaas.config"] = module
    return properties


def _add_scram_user(admin: AdminClient, name: str, password: str) -> None:
    changes = [
        UserScramCredentialUpsertion(name, ScramCredentialInfo(mechanism, 4096), password.encode())
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
    ]
    for change in changes:
        for future in admin.alter_user_scram_credentials([change]).values():
            future.result(30)


ALICE = SaslCredentials("PLAIN", "alice", "alice-secret")

pytestmark = [pytest.mark.integration, pytest.mark.needs("java", "kafka")]


@pytest.mark.parametrize(
    ("protocol", "sasl"),
    [
        ("PLAINTEXT", None),
        ("SSL", None),
        ("SASL_PLAINTEXT", ALICE),
        ("SASL_PLAINTEXT", SaslCredentials("SCRAM-SHA-256", "carol", "carol-secret")),
        ("SASL_PLAINTEXT", SaslCredentials("SCRAM-SHA-512", "carol", "carol-secret")),
        ("SASL_PLAINTEXT", SaslCredentials("SCRAM-SHA-256", "dora", "ª ﬁ")),
        ("SASL_SSL", ALICE),
        ("SASL_SSL", SaslCredentials("SCRAM-SHA-256", "carol", "carol-secret")),
        ("SASL_SSL", SaslCredentials("SCRAM-SHA-512", "carol", "carol-secret")),
    ],
)
async def test_signing_in(
    protocol: str, sasl: SaslCredentials | None, secured: SecuredKafka, nursery: trio.Nursery
) -> None:
    cluster = Cluster(secured.settings(protocol, sasl), nursery)
    await _until_propagated(cluster)
    assert cluster.cluster_id == secured.cluster.cluster_id
    assert cluster.brokers[1].port == secured.ports[protocol]


async def _until_propagated(cluster: Cluster) -> None:
    """A SCRAM user is in the metadata log at once, and in the broker a moment later."""
    with trio.fail_after(10):
        while True:
            try:
                return await cluster.refresh()
            except UpstreamAuthenticationError:
                await trio.sleep(0.1)


@pytest.mark.parametrize(
    "sasl", [SaslCredentials("PLAIN", "alice", "wr0ng"), SaslCredentials("SCRAM-SHA-512", "carol", "wr0ng")]
)
async def test_a_wrong_password_names_principal_and_mechanism(
    sasl: SaslCredentials, secured: SecuredKafka, nursery: trio.Nursery
) -> None:
    with pytest.raises(UpstreamAuthenticationError, match=f"{sasl.mechanism} for '{sasl.username}' failed") as caught:
        await Cluster(secured.settings("SASL_PLAINTEXT", sasl), nursery).refresh()
    assert "wr0ng" not in str(caught.value)


async def test_a_mechanism_that_the_listener_lacks_lists_those_it_has(
    secured: SecuredKafka, nursery: trio.Nursery
) -> None:
    sasl = SaslCredentials("OAUTHBEARER", "svc", "a.b.c")
    with pytest.raises(UpstreamAuthenticationError, match=r"offers .*SCRAM-SHA-256"):
        await Cluster(secured.settings("SASL_PLAINTEXT", sasl), nursery).refresh()


async def test_a_certificate_of_an_unknown_authority_is_refused(secured: SecuredKafka, nursery: trio.Nursery) -> None:
    settings = ClientSettings(bootstrap_servers=((HOST, secured.ports["SSL"]),), tls=ssl.create_default_context())
    with pytest.raises(UpstreamConnectionError, match="certificate"):
        await Cluster(settings, nursery).refresh()


async def test_a_session_that_ends_is_replaced_before_the_broker_ends_it(
    secured: SecuredKafka, nursery: trio.Nursery
) -> None:
    cluster = Cluster(secured.settings("SASL_SSL", ALICE), nursery)
    first = await cluster.connection_to(1, "frontier")
    usable_before = first.usable
    await trio.sleep(SESSION_LIFETIME_MS / 1000)
    assert (usable_before, first.usable) == (True, False)
    assert await cluster.connection_to(1, "frontier") is not first
    await cluster.refresh()


async def test_frontiers_are_what_the_cluster_itself_says(
    kafka: KafkaCluster, tiered: TieredTopic, nursery: trio.Nursery
) -> None:
    cluster = Cluster(ClientSettings(bootstrap_servers=((HOST, kafka.broker(1).port),)), nursery)
    client = FrontierClient(cluster)
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
    cluster = Cluster(ClientSettings(bootstrap_servers=((HOST, kafka.broker(1).port),)), nursery)
    client = KafkaMetadataTopicClient(cluster)
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
    cluster = Cluster(ClientSettings(bootstrap_servers=((HOST, kafka.broker(1).port),)), nursery)
    client = KafkaMetadataTopicClient(cluster)
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


async def test_compressed_and_transactional_records_of_others(secured: SecuredKafka, nursery: trio.Nursery) -> None:
    topic = fresh_name("metadata-like")
    secured.cluster.create_topic(topic, 3)
    for partition, codec in enumerate(("gzip", "zstd", "lz4")):
        await trio.to_thread.run_sync(_produce_transaction, secured.cluster.bootstrap_servers, topic, partition, codec)
    client = KafkaMetadataTopicClient(Cluster(secured.settings("PLAINTEXT"), nursery), topic)
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


def test_followers_answer_frontiers_and_a_moved_broker_is_found() -> None:
    with own_cluster(brokers=2) as cluster:
        topic = fresh_name("replicated")
        cluster.create_topic(topic, 1)
        produce(cluster, topic, orders(100, 1))
        trio.run(_ask_both_and_move_one, cluster, topic)


async def _until_end_is(client: FrontierClient, node_id: int, query: OffsetQuery, offset: int) -> None:
    """A follower has what the leader acknowledged, but its own end is told a moment later."""
    with trio.fail_after(10):
        while True:
            if (await client.list_offsets(node_id, [query]))[query].offset >= offset:
                return
            await trio.sleep(0.05)


async def _ask_both_and_move_one(kafka: KafkaCluster, topic: str) -> None:
    async with trio.open_nursery() as nursery:
        servers = tuple((HOST, broker.port) for broker in kafka.brokers)
        cluster = Cluster(ClientSettings(bootstrap_servers=servers), nursery)
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
        deadline = time.monotonic() + 60
        while cluster.brokers.get(follower) is None or cluster.brokers[follower].port == old_port:
            assert time.monotonic() < deadline, "the moved broker was not found"
            await cluster.refresh()
            await trio.sleep(0.2)
        connection = await cluster.connection_to(follower, "frontier")
        assert connection.versions[LIST_OFFSETS.key][1] >= 8
        nursery.cancel_scope.cancel()
