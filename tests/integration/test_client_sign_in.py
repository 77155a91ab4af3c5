"""Client libraries old and new sign in through Tidegate, by PLAIN and by SCRAM, and read the tier.

The broker says who is who. What Tidegate may spoil is what a client makes of the announced versions (librdkafka before
2.11 signs in only where it sees SaslHandshake 0), and the bare tokens that follow that version (kafka-python 2.0,
sarama if told so). Which way a client went is counted: SaslAuthenticate is of the newer one alone.
"""

import dataclasses
import json
import re
import subprocess

import pytest
from _pytest.mark import ParameterSet

from tests.support import needs
from tests.support.client_programs import SIGNING_IN, ClientProgram
from tests.support.client_scenarios import Sasl
from tests.support.digests import Digests, read_with_confluent, read_with_kcat
from tests.support.raw_client import RawClient
from tests.support.secured_kafka import SecuredKafka, password
from tests.support.tidegate import RunningTidegate
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.needs("java", "kafka")]

MECHANISMS = ("PLAIN", "SCRAM-SHA-512")
SCRAM_LIBRDKAFKA_MIN = (2, 6, 1)
"""Older ones say their nonce twice in SCRAM, which Kafka 4 refuses, Tidegate or no Tidegate (librdkafka#4895)."""
PLAIN_ONLY = ("confluent-kafka-2.3",)
BARE_TOKENS_ONLY = ("kafka-python-2.0",)
BETWEEN = ("confluent-kafka-2.10", "confluent-kafka-2.11", "java-3.3", "java-3.9")
"""Neither the oldest nor the newest: long/test_client_sign_in.py."""
SASL_HANDSHAKE, SASL_AUTHENTICATE = "17", "36"
NEEDED = {"java-2.8": "java-clients", "java-3.3": "java-clients", "java-3.9": "java-clients"}
"""What a client needs is of its own name otherwise, or nothing."""


@pytest.fixture(scope="module")
def direct(guarded: SecuredKafka) -> Digests:
    """Return what the newest librdkafka reads at the broker, without signing in."""
    ends = {0: guarded.topic.records}
    return read_with_confluent(guarded.cluster.bootstrap_servers, guarded.topic.name, ends, "read_uncommitted")


def requests(gate: RunningTidegate, api_key: str) -> float:
    return gate.metric("tidegate_requests_total", api_key=api_key)


def marked(client: str, handshake: int) -> ParameterSet:
    kind = NEEDED.get(client, client)
    marks = pytest.mark.needs(*([kind] if needs.is_kind(kind) else []))
    return pytest.param(client, handshake, marks=marks, id=f"{client}-v{handshake}")


@pytest.mark.parametrize(
    ("client", "handshake"),
    [
        *(marked(client, 0 if client in BARE_TOKENS_ONLY else 1) for client in SIGNING_IN if client not in BETWEEN),
        marked("sarama", 0),
    ],
)
def test_a_client_signs_in_and_reads_the_tier(
    client: str, handshake: int, guarded: SecuredKafka, gate: RunningTidegate, direct: Digests
) -> None:
    sign_in_and_read(client, handshake, guarded, gate, direct)


def sign_in_and_read(
    client: str, handshake: int, guarded: SecuredKafka, gate: RunningTidegate, direct: Digests
) -> None:
    expected = {str(partition): dataclasses.asdict(each) for partition, each in direct.items()}
    request = {"scenario": "digest", "topic": guarded.topic.name, "lasts": {0: guarded.topic.records - 1}}
    program = ClientProgram(SIGNING_IN[client](), gate.bootstrap_servers)
    try:
        for mechanism in MECHANISMS[:1] if client in PLAIN_ONLY else MECHANISMS:
            counts = [requests(gate, SASL_HANDSHAKE), requests(gate, SASL_AUTHENTICATE)]
            served = gate.metric("tidegate_served_tier_bytes_total")
            sasl = Sasl(mechanism, "reader", password("reader"), handshake)
            program.send({**request, "sasl": dataclasses.asdict(sasl)})
            answer = program.receive()
            assert answer.get("partitions") == expected, (mechanism, answer)
            assert gate.metric("tidegate_served_tier_bytes_total") > served
            assert requests(gate, SASL_HANDSHAKE) > counts[0]
            assert (requests(gate, SASL_AUTHENTICATE) > counts[1]) == (handshake == 1)
    finally:
        program.close()


@pytest.mark.needs("kcat")
def test_kcat_signs_in_and_reads_the_tier(guarded: SecuredKafka, gate: RunningTidegate, direct: Digests) -> None:
    """Debian 12's has librdkafka 2.0. Failed before: "SASL Handshake not supported by broker"."""
    said = subprocess.run(["kcat", "-V"], capture_output=True, text=True, check=True).stdout
    version = re.search(r"librdkafka (\d+)\.(\d+)\.(\d+)", said)
    assert version is not None, said
    mechanisms = MECHANISMS if tuple(map(int, version.groups())) >= SCRAM_LIBRDKAFKA_MIN else MECHANISMS[:1]
    name, ends = guarded.topic.name, {0: guarded.topic.records}
    for mechanism in mechanisms:
        settings = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": mechanism,
            "sasl.username": "reader",
            "sasl.password": password("reader"),
        }
        served = gate.metric("tidegate_served_tier_bytes_total")
        assert read_with_kcat(gate.bootstrap_servers, name, ends, "read_uncommitted", settings) == direct
        assert gate.metric("tidegate_served_tier_bytes_total") > served


def test_refused_sign_ins_are_logged_in_the_brokers_words_and_not_each(gate: RunningTidegate) -> None:
    # Failed before: nothing above debug told of them.
    for _ in range(3):
        with RawClient(*gate.address) as client:
            assert client.sasl_plain("reader", "open-sesame") != 0
    wait_until(lambda: "client_sign_in_refused" in gate.log(), "the log tells of it")
    lines = [line for line in gate.log().splitlines() if "client_sign_in_refused" in line]
    assert len(lines) == 1
    assert "Authentication failed" in lines[0]
    assert json.loads(lines[0])["sign_in_name"] == "reader"
    assert json.loads(lines[0])["client_id"]
    assert "open-sesame" not in gate.log()
