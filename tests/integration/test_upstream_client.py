"""The own upstream client against a real broker: sign-in by every mechanism, frontiers, the metadata topic."""

import pytest
import trio
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._scram import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from protocol.client.connection import ClientSettings
from protocol.client.errors import UpstreamAuthenticationError
from protocol.client.leaders import AskNode
from protocol.client.messages import CONSUMER_REPLICA, LIST_OFFSETS, OffsetQuery, offset_questions
from protocol.client.sasl import SaslCredentials
from protocol.list_offsets import OffsetTimestamp
from proxy.upstream.cluster import Cluster, FrontierClient
from proxy.upstream.metadata_topic import KafkaMetadataTopicClient
from storage.errors import MetadataLogError
from tests.support.kafka import fresh_name, orders, produce
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


async def test_signing_in(brief: KafkaCluster, nursery: trio.Nursery) -> None:
    """Over TLS: test_own_identity.py and, with the same core, test_pipeline_broker_client.py."""
    for sasl in (ALICE, DORA):
        cluster = Cluster(signing_in(brief, sasl), nursery)
        with trio.fail_after(HANG_S_MAX):
            while True:  # a SCRAM user is in the metadata log at once, and in the broker a moment later
                try:
                    await cluster.refresh()
                    break
                except UpstreamAuthenticationError:
                    await trio.sleep(0.1)
        assert cluster.cluster_id == brief.cluster_id, sasl.mechanism
        assert cluster.brokers[1].port == brief.broker(1).sasl_port


async def test_a_mechanism_that_the_listener_lacks_lists_those_it_has(
    guarded: SecuredKafka, nursery: trio.Nursery
) -> None:
    settings = settings_of(guarded, "SASL_PLAINTEXT", SaslCredentials("OAUTHBEARER", "svc", "a.b.c"))
    with pytest.raises(UpstreamAuthenticationError, match=r"offers .*SCRAM-SHA-256"):
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
