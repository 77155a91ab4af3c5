"""The cluster's view without any retry: who is asked for metadata, what is remembered and when it is forgotten."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from kio.schema.errors import ErrorCode

from pipeline.brokers.cluster import BrokerCluster, PartitionLeader, code_name
from pipeline.brokers.errors import BrokerAuthenticationError, BrokerConnectionError, BrokerError, BrokerRefusedError
from pipeline.brokers.settings import ClientSettings
from protocol.client.messages import METADATA, SASL_HANDSHAKE
from protocol.client.sasl import SaslCredentials
from storage.model import Uuid
from tests.support.blocking_broker import BlockingBroker

ORDERS = Uuid(b"orders-topic-id1")
NOBODY = ("127.0.0.1", 1)


@pytest.fixture
def broker() -> Iterator[BlockingBroker]:
    with BlockingBroker() as running:
        running.serve_metadata({1: running.address}, {"orders": (ORDERS, [1, -1])})
        yield running


@pytest.fixture
def cluster(broker: BlockingBroker) -> Iterator[BrokerCluster]:
    made = BrokerCluster(ClientSettings(bootstrap_servers=(NOBODY, broker.address)))
    yield made
    made.close()


def test_a_bootstrap_server_that_is_down_is_passed_over(cluster: BrokerCluster) -> None:
    assert [entry.name for entry in cluster.describe(None)] == ["orders"]


def test_a_leader_is_asked_for_once_until_it_is_forgotten(cluster: BrokerCluster, broker: BlockingBroker) -> None:
    for _ in range(3):
        assert cluster.leader_of("orders", 0) == PartitionLeader(1, 4, ORDERS)
    assert len(broker.asked(METADATA)) == 1
    cluster.forget("orders")
    cluster.leader_of("orders", 0)
    cluster.forget_all()
    cluster.leader_of("orders", 0)
    assert len(broker.asked(METADATA)) == 3


def test_a_partition_without_a_leader_may_have_one_later(cluster: BrokerCluster) -> None:
    with pytest.raises(BrokerRefusedError, match="orders-1 has no leader just now") as caught:
        cluster.leader_of("orders", 1)
    assert caught.value.retriable


def test_a_leader_and_its_bootstrap_address_share_a_connection(cluster: BrokerCluster, broker: BlockingBroker) -> None:
    leader = cluster.leader_of("orders", 0)
    assert cluster.connection_to(leader.node_id) is cluster.connection_to(leader.node_id)
    assert broker.connections_taken == 1
    assert cluster.name_of(1) == f"broker 1 (127.0.0.1:{broker.port})"


def test_a_broker_that_is_not_known_is_no_connection(cluster: BrokerCluster) -> None:
    with pytest.raises(BrokerConnectionError, match="broker 9 left the cluster"):
        cluster.connection_to(9)
    assert cluster.name_of(9) == "broker 9"


def test_a_leader_that_cannot_be_reached_has_all_leaders_looked_up_anew(
    cluster: BrokerCluster, broker: BlockingBroker
) -> None:
    broker.serve_metadata({1: NOBODY, 2: broker.address}, {"orders": (ORDERS, [1])})
    with pytest.raises(BrokerConnectionError):
        cluster.connection_to(cluster.leader_of("orders", 0).node_id)
    broker.serve_metadata({2: broker.address}, {"orders": (ORDERS, [2])})
    assert cluster.leader_of("orders", 0).node_id == 2


def test_a_refused_sign_in_is_not_tried_at_every_broker(broker: BlockingBroker) -> None:
    broker.answer(SASL_HANDSHAKE, {"error_code": ErrorCode.unsupported_sasl_mechanism, "mechanisms": ("PLAIN",)})
    settings = ClientSettings(bootstrap_servers=(broker.address, NOBODY), sasl=SaslCredentials("OAUTHBEARER", "s", "t"))
    with pytest.raises(BrokerAuthenticationError, match="it offers PLAIN"):
        BrokerCluster(settings).describe(None)
    assert broker.connections_taken == 1
    assert replace(settings, sasl=None).principal == "an anonymous client"


@pytest.mark.parametrize(("code", "retriable"), [(6, True), (3, True), (42, False), (87, False)])
def test_codes_that_pass_are_told_from_those_that_stay(cluster: BrokerCluster, code: int, retriable: bool) -> None:
    error: BrokerError = cluster.refusal("b", "Fetch", "orders", code, 0)
    assert error.retriable is retriable


def test_codes_have_their_names() -> None:
    assert (code_name(6), code_name(42)) == ("NOT_LEADER_OR_FOLLOWER (6)", "error code 42")
