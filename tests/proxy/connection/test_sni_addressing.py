"""One port for all brokers: names of the pattern, whom they stand for, and how a connection comes to know its name."""

import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from protocol.wire.addresses import NodeAddress
from proxy.connection.address_book import Target
from proxy.connection.server_names import SniAddressBook, SniPattern, hear_server_names
from tests.proxy.upstream.test_transport import contexts

PATTERN = SniPattern("broker-$(nodeId).Kafka.example.org")
BOOTSTRAP = Target(None, (("seed", 9092),))
ONE, TWO = NodeAddress(1, "kafka-1", 9092), NodeAddress(2, "kafka-2", 9092)


class World:
    """A book, and what our own Metadata says."""

    def __init__(self) -> None:
        self.known: dict[int, tuple[str, int]] = {}
        self.book = SniAddressBook(PATTERN, 9093, bootstrap=BOOTSTRAP, known_address=self.known.get)

    def address_of(self, node_id: int) -> tuple[str, int] | None:
        target = self.book.target_for(PATTERN.host_of(node_id))
        if target is None:
            return None
        assert target.node_id == node_id
        (address,) = target.addresses
        return address


@given(st.integers(0, 2**31 - 1), st.sampled_from([str.upper, str.lower, str.title, lambda name: f"{name}."]))
def test_the_name_of_a_broker_stands_for_it_in_any_case(node_id: int, spelled: Callable[[str], str]) -> None:
    assert PATTERN.node_id_of(spelled(PATTERN.host_of(node_id))) == node_id


OTHER_NAMES = (
    *(None, "", "kafka.example.org", "bootstrap.kafka.example.org", "broker-.kafka.example.org"),
    *("broker-01.kafka.example.org", "broker--1.kafka.example.org", "broker-+1.kafka.example.org"),
    *("broker-1.kafka.example.com", "broker-1.kafka.example.org.evil", "broker-1.kafka.example.org.."),
    *("broker-1.kafka.example.org\n", "xbroker-1.kafka.example.org", "broker-1xkafkaxexamplexorg"),
    *("broker-$(nodeId).kafka.example.org", "broker-2147483648.kafka.example.org"),
    *("broker-99999999999.kafka.example.org", "broker-١.kafka.example.org"),
    "bro\N{KELVIN SIGN}er-1.kafka.example.org",
)


def test_any_other_name_or_none_is_the_bootstraps() -> None:
    for name in OTHER_NAMES:
        assert PATTERN.node_id_of(name) is None, name
        assert World().book.target_for(name) is BOOTSTRAP, name


async def test_clients_are_told_the_pattern_filled_in_and_one_port() -> None:
    assert await World().book.advertise([ONE, TWO]) == {
        1: ("broker-1.Kafka.example.org", 9093),
        2: ("broker-2.Kafka.example.org", 9093),
    }


async def test_a_broker_is_known_once_an_answer_or_our_own_metadata_names_it() -> None:
    world = World()
    assert world.address_of(1) is world.address_of(2) is None
    await world.book.advertise([ONE])
    world.known[2] = ("kafka-2", 9092)
    assert (world.address_of(1), world.address_of(2)) == (("kafka-1", 9092), ("kafka-2", 9092))


async def test_a_broker_that_left_is_refused_and_found_when_it_is_back() -> None:
    world = World()
    world.known[1] = ("kafka-1", 9092)
    await world.book.advertise([ONE, TWO])
    del world.known[1]
    assert world.address_of(1) is None
    with structlog.testing.capture_logs() as logs:
        world.book.retire_all_but([])
    assert sorted(entry["node"] for entry in logs if entry["event"] == "broker_left") == [1, 2]
    assert world.address_of(2) is None
    await world.book.advertise([ONE])
    assert world.address_of(1) == ("kafka-1", 9092)


def client_hello(trusting: ssl.SSLContext, server_hostname: str | None) -> bytes:
    outgoing = ssl.MemoryBIO()
    client = trusting.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=server_hostname)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def test_each_connection_knows_its_own_name(tmp_path: Path) -> None:
    accepting, trusting = contexts(tmp_path)
    trusting.check_hostname = False
    hear_server_names(accepting)
    for asked, heard in (
        ("localhost", "localhost"),
        ("other.example", "other.example"),
        ("BROKER-1.Example", "BROKER-1.Example"),
        ("bücher.example", "xn--bcher-kva.example"),
        ("127.0.0.1", None),  # no SNI can hold an address
        (None, None),
        ("localhost", "localhost"),
    ):
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        server = accepting.wrap_bio(incoming, outgoing, server_side=True)
        assert server.server_hostname is None
        incoming.write(client_hello(trusting, asked))
        with pytest.raises(ssl.SSLWantReadError):
            server.do_handshake()
        assert server.server_hostname == heard
