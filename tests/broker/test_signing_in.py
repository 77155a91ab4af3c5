"""Clients sign in through Tidegate as at the broker, and who may not read gets no byte, whatever Tidegate holds.

Tidegate itself signs in by SCRAM over TLS; clients reach it in clear, and their sign-ins are relayed.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from protocol.wire.errors import ErrorCode
from tests.broker.sides import HOST, SERVED_BYTES, fetched, for_both_libraries, kafka_python_is_quiet, library, wait_for
from tests.support.client_scenarios import Request, Sasl, _run
from tests.support.kafka import fresh_name
from tests.support.raw_client import FetchedPartition, RawClient
from tests.support.secured_kafka import READ, WRITE, SecuredKafka, password
from tests.support.tidegate import TidegateInThread

pytestmark = [pytest.mark.needs("java", "kafka"), kafka_python_is_quiet]

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
FETCH_VERSIONS = range(4, 18)
MUCH_BYTES = 1 << 20
SASL_AUTHENTICATION_FAILED = 58


@pytest.fixture(scope="module")
def topic_id(secured: SecuredKafka) -> bytes:
    with RawClient(HOST, secured.ports["PLAINTEXT"]) as client:
        return client.topic_id(secured.topic.name)


@pytest.fixture
def addresses(secured: SecuredKafka, signing_gate: TidegateInThread) -> dict[str, tuple[str, int]]:
    return {"broker": (HOST, secured.ports["SASL_PLAINTEXT"]), "Tidegate": signing_gate.address}


def signed_in(address: tuple[str, int], user: str) -> RawClient:
    client = RawClient(*address)
    assert client.sasl_plain(user, password(user)) == 0
    return client


def fetch_tier(
    client: RawClient, secured: SecuredKafka, topic_id: bytes, version: int = 13, isolation: int = 0
) -> FetchedPartition:
    """The topic's first offset, which only the tier has."""
    target = (secured.topic.name, topic_id if version >= 13 else None, 0, 0, MUCH_BYTES)
    return fetched(client, version, target, isolation)


@pytest.mark.parametrize("mechanism", MECHANISMS)
@for_both_libraries
def test_a_reader_signs_in_and_reads_the_tier(
    client: str, mechanism: str, secured: SecuredKafka, signing_gate: TidegateInThread
) -> None:
    sasl = Sasl(mechanism, "reader", password("reader"))
    lasts = {0: secured.topic.records - 1}
    request = Request("digest", secured.topic.name, lasts=lasts, sasl=sasl)
    direct = _run(library(client, secured.address("SASL_PLAINTEXT")), request)
    assert direct["partitions"][0]["records"] == secured.topic.records
    before = signing_gate.metric(SERVED_BYTES)
    assert _run(library(client, signing_gate.bootstrap_servers), request) == direct
    assert signing_gate.metric(SERVED_BYTES) > before


@for_both_libraries
def test_who_may_not_read_hears_the_brokers_error(
    client: str, secured: SecuredKafka, signing_gate: TidegateInThread
) -> None:
    sasl = Sasl("SCRAM-SHA-256", "describer", password("describer"))
    request = Request("digest", secured.topic.name, lasts={0: 1}, sasl=sasl)
    before = signing_gate.metric(SERVED_BYTES)
    for server in (secured.address("SASL_PLAINTEXT"), signing_gate.bootstrap_servers):
        with pytest.raises(Exception, match=r"(?i)topic.?authorization.?failed"):
            _run(library(client, server), request)
    assert signing_gate.metric(SERVED_BYTES) == before


def test_without_read_there_is_an_error_and_not_one_byte(
    secured: SecuredKafka, signing_gate: TidegateInThread, topic_id: bytes, addresses: dict[str, tuple[str, int]]
) -> None:
    """Every version and both isolation levels, though a reader has just had the same block."""
    with signed_in(signing_gate.address, "reader") as reader:
        assert fetch_tier(reader, secured, topic_id).records
    before = signing_gate.metric(SERVED_BYTES)
    for user in ("outsider", "describer"):
        with signed_in(addresses["broker"], user) as direct, signed_in(addresses["Tidegate"], user) as through:
            for version in FETCH_VERSIONS:
                for isolation in (0, 1):
                    asked = (secured, topic_id, version, isolation)
                    refused = fetch_tier(through, *asked)
                    assert refused == fetch_tier(direct, *asked), (user, version, isolation)
                    assert (refused.error_code, refused.records) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, b"")
    assert signing_gate.metric(SERVED_BYTES) == before > 0


def test_a_right_counts_from_when_it_is_given_to_when_it_is_lost(
    secured: SecuredKafka, signing_gate: TidegateInThread, topic_id: bytes
) -> None:
    """On an open connection. The broker is asked for each read (`authority.max.age.ms=0`)."""
    with signed_in(signing_gate.address, "revoked") as client:
        for _ in range(2):
            refused = fetch_tier(client, secured, topic_id)
            assert (refused.error_code, refused.records) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, b"")
            secured.allow("revoked", READ, secured.topic.name)
            assert fetch_tier(client, secured, topic_id).records
            secured.withdraw("revoked", READ, secured.topic.name)


def test_who_has_not_signed_in_or_wrongly_gets_nothing(
    secured: SecuredKafka, topic_id: bytes, addresses: dict[str, tuple[str, int]]
) -> None:
    for side, address in addresses.items():
        with RawClient(*address) as client, pytest.raises((EOFError, ConnectionError)):
            fetch_tier(client, secured, topic_id)
        with RawClient(*address) as client:
            assert client.sasl_plain("reader", "wr0ng") == SASL_AUTHENTICATION_FAILED, side
            assert client.is_closed_by_peer(), side


def test_a_wrong_scram_password_is_refused_as_at_the_broker(
    secured: SecuredKafka, signing_gate: TidegateInThread
) -> None:
    settings: dict[str, Any] = signing_in("reader", "SCRAM-SHA-512") | {"sasl.password": "wr0ng"}
    for server in (secured.address("SASL_PLAINTEXT"), signing_gate.bootstrap_servers):
        errors: list[int] = []
        settings |= {"bootstrap.servers": server, "error_cb": collecting(errors)}
        admin = AdminClient(settings)
        with pytest.raises(KafkaException):
            admin.list_topics(timeout=0.2)
        wait_for(partial(has_heard, admin, errors, KafkaError._AUTHENTICATION), f"{server} to refuse")


def collecting(errors: list[int]) -> Callable[[KafkaError], None]:
    return lambda error: errors.append(error.code())


def has_heard(admin: AdminClient, errors: list[int], code: int) -> bool:
    admin.poll(0.1)
    return code in errors


def test_a_writer_without_write_is_refused_and_with_it_writes(
    secured: SecuredKafka, signing_gate: TidegateInThread
) -> None:
    topic = fresh_name("written-signed-in")
    secured.cluster.create_topic(topic)
    secured.allow("describer", READ, topic)
    settings = signing_in("describer", "SCRAM-SHA-256")
    assert produced(signing_gate.bootstrap_servers, settings, topic) == [KafkaError.TOPIC_AUTHORIZATION_FAILED]
    secured.allow("describer", WRITE, topic)
    assert produced(signing_gate.bootstrap_servers, settings, topic) == [None]


def produced(bootstrap_servers: str, settings: dict[str, str], topic: str) -> list[int | None]:
    """One record's error code, or None."""
    results: list[int | None] = []

    def delivered(error: KafkaError | None, _message: object) -> None:
        results.append(None if error is None else error.code())

    producer = Producer({"bootstrap.servers": bootstrap_servers, **settings})
    producer.produce(topic, b"value", b"key", 0, on_delivery=delivered)
    assert producer.flush(60) == 0
    return results


def signing_in(user: str, mechanism: str) -> dict[str, str]:
    """librdkafka's settings."""
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password(user),
    }
