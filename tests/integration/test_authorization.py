"""Who may not read a topic at the broker gets no byte of it from the tier, whatever Tidegate holds in memory.

Clients' sign-ins are relayed, so the broker knows them; Tidegate itself is a user who may describe the topic and read
the metadata topic, nothing else. `authority.max.age.ms` is its default here, one second.
"""

import struct

import pytest

from tests.support.kafka import fresh_name, orders, produce
from tests.support.kio_frames import fill, schema
from tests.support.raw_client import (
    FETCH,
    LIST_OFFSETS,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    FetchedPartition,
    RawClient,
    decode_frame,
    fetch_request,
)
from tests.support.secured_kafka import HOST, READ, SecuredKafka, password
from tests.support.tidegate import RunningTidegate, own_tidegate

pytestmark = [pytest.mark.integration, pytest.mark.needs("java", "kafka")]

TOPIC_AUTHORIZATION_FAILED = 29
SASL_AUTHENTICATION_FAILED = 58
HANDSHAKE_ID, SIGN_IN_ID, FETCH_ID = 101, 102, 103
PARTITION_BYTES = 1 << 20


@pytest.fixture(scope="module")
def topic_id(guarded: SecuredKafka) -> bytes:
    with RawClient(HOST, guarded.ports["PLAINTEXT"]) as client:
        return client.topic_id(guarded.topic.name)


def signed_in(address: tuple[str, int], user: str) -> RawClient:
    client = RawClient(*address)
    assert client.sasl_plain(user, password(user)) == 0
    return client


def fetch_tier(
    client: RawClient, guarded: SecuredKafka, topic_id: bytes, *, version: int = 13, isolation: int = 0
) -> FetchedPartition:
    """Ask for the topic's first offset, which only the tier holds."""
    target = (guarded.topic.name, topic_id if version >= 13 else None, 0, 0, PARTITION_BYTES)
    result = client.patient_fetch(version, [target], isolation=isolation)
    (partition,) = result.partitions
    return partition


def served(gate: RunningTidegate) -> float:
    return gate.metric("tidegate_served_tier_bytes_total")


def test_one_request_over_a_topic_that_may_be_read_and_one_that_may_not(
    guarded: SecuredKafka, gate: RunningTidegate
) -> None:
    local = fresh_name("local")
    guarded.cluster.create_topic(local)
    produce(guarded.cluster, local, orders(10, 1))
    guarded.allow("outsider", READ, local)
    targets = [(name, None, 0, 0, PARTITION_BYTES) for name in (guarded.topic.name, local)]
    answers = {}
    for user in ("outsider", "reader"):
        with signed_in(gate.address, user) as client:
            result = client.patient_fetch(12, targets)
        answers[user] = {each.topic: (each.error_code, bool(each.records)) for each in result.partitions}
    refused, given = (TOPIC_AUTHORIZATION_FAILED, False), (0, True)
    assert answers == {
        "outsider": {guarded.topic.name: refused, local: given},
        "reader": {guarded.topic.name: given, local: refused},
    }


@pytest.mark.parametrize("version", [12, 17])
def test_what_is_refused_is_answered_in_the_brokers_place(
    guarded: SecuredKafka, gate: RunningTidegate, topic_id: bytes, version: int
) -> None:
    """Failed before: in the request's place."""
    local = fresh_name("order")
    guarded.cluster.create_topic(local)
    with RawClient(HOST, guarded.ports["PLAINTEXT"]) as client:
        local_id = client.topic_id(local)
    targets = [
        (guarded.topic.name, topic_id, 99, 0, PARTITION_BYTES),
        (local, local_id, 0, 0, PARTITION_BYTES),
        ("absent", bytes(range(1, 17)), 0, 0, PARTITION_BYTES),
        (guarded.topic.name, topic_id, 0, 0, PARTITION_BYTES),
    ]
    orders_seen = []
    for address in ((HOST, guarded.ports["SASL_PLAINTEXT"]), gate.address):
        with signed_in(address, "reader") as client:
            result = client.patient_fetch(version, targets)
            orders_seen.append([(each.topic, each.partition, each.error_code) for each in result.partitions])
    assert orders_seen[0] == orders_seen[1]
    assert TOPIC_AUTHORIZATION_FAILED in [code for _, _, code in orders_seen[0]]


def test_a_second_sign_in_as_somebody_else_reads_nothing_more(
    guarded: SecuredKafka, gate: RunningTidegate, topic_id: bytes
) -> None:
    """Brokers refuse another principal on the same connection and close it. A Fetch sent right behind that sign-in,
    while the first one's good probe is still young, must not be faster. (A broker judges it as the other principal,
    and answers before the sign-in, whose failure it delays: out of turn, so Tidegate may close as well.)"""
    target = (guarded.topic.name, topic_id, 0, 0, PARTITION_BYTES)
    with signed_in(gate.address, "reader") as client:
        assert fetch_tier(client, guarded, topic_id).records
        before = served(gate)
        handshake, sign_in = second_sign_in(client, "outsider")
        client.send_bytes(handshake + sign_in + client.frame(fetch_request(13, [target]), FETCH_ID))
        assert decode_frame(SASL_HANDSHAKE, 1, client.read_frame()).error_code == 0
        assert correlation_ids_until_closed(client) in ([], [SIGN_IN_ID])
    assert served(gate) == before


def second_sign_in(client: RawClient, user: str) -> tuple[bytes, bytes]:
    token = b"\0".join((b"", user.encode(), password(user).encode()))
    handshake = fill(schema(SASL_HANDSHAKE, 1, kind="request"), {"mechanism": "PLAIN"})
    sign_in = fill(schema(SASL_AUTHENTICATE, 2, kind="request"), {"auth_bytes": token})
    return client.frame(handshake, HANDSHAKE_ID), client.frame(sign_in, SIGN_IN_ID)


def correlation_ids_until_closed(client: RawClient) -> list[int]:
    seen = []
    try:
        while True:
            seen.append(int.from_bytes(client.read_frame()[4:8], "big"))
    except (EOFError, ConnectionError):
        return seen


@pytest.mark.usefixtures("gate")  # for the reader's right
def test_who_has_not_signed_in_or_may_not_read_costs_no_get(guarded: SecuredKafka, topic_id: bytes) -> None:
    """Failed before: what the broker refused had started reads, and evicted what others had in memory."""
    name = guarded.topic.name
    identity = guarded.identity("tidegate", "PLAIN", "SASL_PLAINTEXT")
    servers = guarded.address("SASL_PLAINTEXT")
    with own_tidegate(guarded.cluster, identity, bootstrap_servers=servers) as cold:
        for _ in range(3):
            with RawClient(*cold.address) as client, pytest.raises((EOFError, ConnectionError)):
                fetch_tier(client, guarded, topic_id)
            with RawClient(*cold.address) as client, pytest.raises((EOFError, ConnectionError)):
                client.list_offsets(7, [(name, 0, 1)])
            with RawClient(*cold.address) as client:  # a sign-in that fails is none
                assert client.sasl_plain("reader", "wr0ng") == SASL_AUTHENTICATION_FAILED
                client.send(fetch_request(13, [(name, topic_id, 0, 0, PARTITION_BYTES)]))
                assert client.is_closed_by_peer()
            with RawClient(*cold.address) as client:  # 512 KiB and one byte
                client.send_bytes(struct.pack(">ihhi", 512 * 1024 + 1, FETCH, 13, FETCH_ID))
                assert client.is_closed_by_peer()
        assert cold.metric("tidegate_requests_total", api_key=str(FETCH), route="relay") >= 3
        assert cold.metric("tidegate_requests_total", api_key=str(FETCH), route="exchange") == 0
        assert cold.metric("tidegate_requests_total", api_key=str(LIST_OFFSETS), route="relay") == 3
        assert cold.metric("tidegate_gets_total") == 0
        assert cold.metric("tidegate_cache_misses_total") == 0
        assert cold.metric("tidegate_connections_closed_total", cause="limit") == 3
        assert cold.log().count("expert.proxy.frame.unauthenticated.bytes.max") == 1, (
            "one address is reported once a spell"
        )
        # Nor is it worth one GET what somebody asks who may not.
        with signed_in(cold.address, "outsider") as client:
            for number in range(8):
                target = (name, None, 0, 200 * number, PARTITION_BYTES)
                (answer,) = client.fetch(12, [target]).partitions
                assert (answer.error_code, answer.records) == (TOPIC_AUTHORIZATION_FAILED, b"")
                (found,) = client.list_offsets(9, [(name, 0, 1 + number)])
                assert found.error_code == TOPIC_AUTHORIZATION_FAILED
        assert cold.metric("tidegate_gets_total") == cold.metric("tidegate_cache_misses_total") == 0
        asked = cold.metric("tidegate_requests_total", api_key=str(FETCH), route="exchange")
        # The same questions are worth it to a reader.
        with signed_in(cold.address, "reader") as client:
            assert fetch_tier(client, guarded, topic_id).records
        assert cold.metric("tidegate_gets_total") > 0
        assert cold.metric("tidegate_requests_total", api_key=str(FETCH), route="exchange") > asked


def raw_sign_in(client: RawClient, user: str, secret: str) -> bytes:
    """A SaslHandshake of version 0, and the bare token that follows it."""
    handshake = fill(schema(SASL_HANDSHAKE, 0, kind="request"), {"mechanism": "PLAIN"})
    token = b"\0".join((b"", user.encode(), secret.encode()))
    return client.frame(handshake, HANDSHAKE_ID) + struct.pack(">i", len(token)) + token


def test_a_second_sign_in_by_raw_tokens_as_somebody_else_reads_nothing_more(
    guarded: SecuredKafka, gate: RunningTidegate, topic_id: bytes
) -> None:
    target = (guarded.topic.name, topic_id, 0, 0, PARTITION_BYTES)
    with signed_in(gate.address, "reader") as client:
        assert fetch_tier(client, guarded, topic_id).records
        before = served(gate)
        fetch = client.frame(fetch_request(13, [target]), FETCH_ID)
        client.send_bytes(raw_sign_in(client, "outsider", password("outsider")) + fetch)
        assert FETCH_ID not in correlation_ids_until_closed(client)
    assert served(gate) == before
