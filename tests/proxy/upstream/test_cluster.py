"""The cluster's view: brokers that come, go and move, topics by name and id, questions asked again."""

import random
from dataclasses import replace
from typing import Any

import pytest
import structlog
import trio
import trio.testing
from kio.schema.errors import ErrorCode

from protocol.client.cluster_view import BrokerNode, PartitionLeader
from protocol.client.errors import UpstreamAuthenticationError, UpstreamError
from protocol.client.messages import LIST_OFFSETS, METADATA, SASL_HANDSHAKE, Question, Values
from protocol.client.sasl import SaslCredentials
from protocol.client.settings import ClientSettings
from proxy.upstream import cluster as cluster_module
from proxy.upstream.cluster import Cluster
from proxy.upstream.connection import open_broker_connection
from proxy.upstream.first_address import NEXT_ATTEMPT_S
from tests.support.fake_kafka import NO_TIME, FakeBroker, FakeKafka, FakeTopic

pytestmark = pytest.mark.autojump

SETTINGS = ClientSettings(bootstrap_servers=(("a", 1), ("b", 1)), client_host="host", topics_max=3)
ORDERS = b"orders orders id"
OTHER = b"other topic's id"
ASK_OFFSETS: Question[Any] = Question(
    LIST_OFFSETS, {"replica_id": -2, "isolation_level": 0, "timeout": NO_TIME, "topics": ()}
)


@pytest.fixture
def fake(kafka: FakeKafka) -> FakeKafka:
    kafka.topics["orders"] = FakeTopic(ORDERS, [1, 2, -1])
    for node_id, host in ((1, "a"), (2, "b")):
        kafka.add(node_id, host, 1).answer(LIST_OFFSETS, {"topics": ()})
    return kafka


@pytest.fixture
def cluster(fake: FakeKafka, nursery: trio.Nursery) -> Cluster:
    return Cluster(SETTINGS, nursery)


async def test_a_refresh_learns_brokers_and_cluster_id(fake: FakeKafka, cluster: Cluster) -> None:
    fake.stop(1)  # then the next bootstrap server is asked
    await cluster.refresh()
    assert cluster.brokers == {1: BrokerNode(1, "a", 1, "rack-1"), 2: BrokerNode(2, "b", 1, "rack-2")}
    assert cluster.cluster_id == "fake"


async def test_questions_at_once_at_the_start_do_not_close_each_others_connections(
    fake: FakeKafka, nursery: trio.Nursery
) -> None:
    """The first answer retires the bootstrap connections, which another question may be about to use."""
    for checkpoints in range(25, 45):
        cluster = Cluster(ClientSettings(bootstrap_servers=(("a", 1),)), nursery)

        async def ask_later(cluster: Cluster = cluster, checkpoints: int = checkpoints) -> None:
            for _ in range(checkpoints):
                await trio.lowlevel.checkpoint()
            await cluster.refresh()

        async with trio.open_nursery() as asking:
            asking.start_soon(cluster.refresh)
            asking.start_soon(ask_later)
            asking.start_soon(ask_later)


@pytest.mark.usefixtures("fake")
async def test_a_silent_bootstrap_server_is_overtaken(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    # Failed before: it took the whole connect timeout, at each start.
    async def open_or_hang(host: str, *others: Any) -> Any:
        if host == "a":
            await trio.sleep_forever()
        return await open_broker_connection(host, *others)

    monkeypatch.setattr(cluster_module, "open_broker_connection", open_or_hang)
    monkeypatch.setattr(random, "shuffle", lambda servers: None)
    await cluster.refresh()
    assert trio.current_time() == pytest.approx(NEXT_ATTEMPT_S)
    # The named brokers take over; from then on the one that answers is the first that is asked.
    for _ in range(3):
        await cluster.refresh()
    assert trio.current_time() == pytest.approx(2 * NEXT_ATTEMPT_S)


async def test_a_refused_sign_in_is_what_is_reported(fake: FakeKafka, nursery: trio.Nursery) -> None:
    fake.stop(2)
    refusal = {"error_code": ErrorCode.unsupported_sasl_mechanism, "mechanisms": ("PLAIN",)}
    fake.brokers[1].answer(SASL_HANDSHAKE, refusal)
    cluster = Cluster(replace(SETTINGS, sasl=SaslCredentials("SCRAM-SHA-256", "alice", "x")), nursery)
    with pytest.raises(UpstreamAuthenticationError, match="it offers PLAIN"):
        await cluster.refresh()


async def test_topics_are_learned_by_name_and_forgotten_by_id(cluster: Cluster) -> None:
    by_name, unknown = await cluster.learn_topics(["orders", "nope"])
    assert by_name.partitions == {0: PartitionLeader(1, 4), 1: PartitionLeader(2, 4), 2: PartitionLeader(-1, 4)}
    assert (unknown.error_code, unknown.name, unknown.partitions) == (3, "nope", {})
    assert cluster.topic_id("orders") == ORDERS
    assert cluster.topic_id("nope") is None
    cluster.forget_topic(ORDERS)
    assert cluster.leader_of(ORDERS, 1) is None
    assert await cluster.learn_topics(["orders"]) == [by_name]
    assert cluster.leader_of(ORDERS, 1) == PartitionLeader(2, 4)
    assert cluster.leader_of(ORDERS, 9) is None


async def test_names_that_many_ask_for_at_a_time_share_a_question(
    fake: FakeKafka, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.upstream.cluster.NAMES_WAITING_MAX", 3)
    await cluster.refresh()
    gate = trio.Event()

    async def held(request: Any) -> Values:
        await gate.wait()
        return fake.metadata(request)

    await cluster.refresh()
    for broker in fake.brokers.values():
        broker.on(METADATA, held)
    async with trio.open_nursery() as asking:
        asking.start_soon(cluster.learn_names, ["orders"])
        await trio.testing.wait_all_tasks_blocked()
        assert cluster.names_room == 3
        for names in (["orders", "a"], ["b"], ["a", "b"]):
            asking.start_soon(cluster.learn_names, names)
        await trio.testing.wait_all_tasks_blocked()
        assert cluster.names_room == 0
        gate.set()
    assert cluster.topic_id("orders") == ORDERS
    asked = names_asked(fake)
    assert (asked[0], sorted(asked[1]), len(asked)) == (["orders"], ["a", "b", "orders"], 2)


def names_asked(fake: FakeKafka) -> list[list[str]]:
    """Return for each question about topics the names."""
    requests = [request for broker in fake.brokers.values() for request in broker.asked(METADATA)]
    return [[topic.name for topic in request.topics] for request in requests if request.topics]


async def test_a_topic_made_anew_replaces_the_old_one(fake: FakeKafka, cluster: Cluster) -> None:
    await cluster.learn_topics(["orders"])
    fake.topics["orders"] = FakeTopic(OTHER, [2])
    await cluster.learn_topics(["orders"])
    assert cluster.leader_of(ORDERS, 0) is None
    assert cluster.topic_id("orders") == OTHER


async def test_the_topic_not_asked_for_longest_is_forgotten_first(fake: FakeKafka, cluster: Cluster) -> None:
    ids = {name: name.encode() * 16 for name in "wxyz"}
    fake.topics.update({name: FakeTopic(topic_id, [1]) for name, topic_id in ids.items()})
    for name in "wxy":
        await cluster.learn_topics([name])
    assert cluster.leader_of(ids["w"], 0) == PartitionLeader(1, 4)
    await cluster.learn_topics(["z"])
    assert [name for name in "wxyz" if cluster.topic_id(name)] == ["w", "y", "z"]


async def test_a_question_goes_to_the_broker_by_its_id_over_one_connection(fake: FakeKafka, cluster: Cluster) -> None:
    for _ in range(3):
        await cluster.ask(2, "frontier", ASK_OFFSETS)
    assert len(fake.brokers[2].asked(LIST_OFFSETS)) == 3
    assert not fake.brokers[1].asked(LIST_OFFSETS)
    assert fake.brokers[2].client_ids.count("tidegate-frontier-host") == 4


async def test_roles_and_lanes_have_connections_of_their_own(cluster: Cluster) -> None:
    shared = await cluster.connection_to(1, "frontier")
    assert await cluster.connection_to(1, "frontier") is shared
    assert await cluster.connection_to(1, "other") is not shared
    laned = await cluster.connection_to(1, "frontier", lane=1)
    assert laned is not shared
    cluster.drop_connection(1, "frontier", lane=1)
    assert not laned.usable
    assert shared.usable


async def test_a_question_on_a_connection_that_died_meanwhile_is_asked_again(fake: FakeKafka, cluster: Cluster) -> None:
    await cluster.ask(2, "frontier", ASK_OFFSETS)
    connection = fake.brokers[2].connections[-1]

    async def die(_request: object) -> None:
        await trio.lowlevel.checkpoint()
        connection.abort()
        fake.brokers[2].answer(LIST_OFFSETS, {"topics": ()})

    fake.brokers[2].on(LIST_OFFSETS, die)
    await cluster.ask(2, "frontier", ASK_OFFSETS)
    assert len(fake.brokers[2].asked(LIST_OFFSETS)) == 3


async def test_a_broker_that_moved_is_found_at_its_new_address(fake: FakeKafka, cluster: Cluster) -> None:
    await cluster.ask(2, "frontier", ASK_OFFSETS)
    fake.brokers[2].disconnect_all()
    fake.add(2, "b", 2)
    await trio.testing.wait_all_tasks_blocked()
    with pytest.raises(UpstreamError):
        await cluster.ask(2, "frontier", ASK_OFFSETS)
    await cluster.ask(2, "frontier", ASK_OFFSETS)
    assert fake.attempts[-1] == ("b", 2)


async def test_bootstrap_connections_make_way_for_the_named_brokers(fake: FakeKafka, cluster: Cluster) -> None:
    vip = FakeBroker()
    vip.on(METADATA, fake.metadata)
    fake.listening[("vip", 1)] = vip
    cluster.settings = ClientSettings(bootstrap_servers=(("vip", 1),))
    await cluster.refresh()
    await cluster.refresh()
    assert len(vip.asked(METADATA)) == 1


async def test_a_topic_that_we_may_not_describe_is_a_line_once_until_we_may(fake: FakeKafka, cluster: Cluster) -> None:
    # Failed before: only a debug line said why brokers read all of it.
    told = []
    for code in (ErrorCode.topic_authorization_failed,) * 2 + (ErrorCode.none, ErrorCode.topic_authorization_failed):
        fake.topics["orders"].error_code = code
        with structlog.testing.capture_logs() as logs:
            await cluster.learn_topics(["orders"])
        told.append([entry["reason"] for entry in logs if entry["event"] == "topic_not_described"])
    line = [
        "ACL Describe on Topic orders is missing for an anonymous client, so we serve nothing of it: kafka-acls.sh "
        "--bootstrap-server a:1 --add --allow-principal User:ANONYMOUS --operation Describe --topic orders"
    ]
    assert told == [line, [], [], line]
