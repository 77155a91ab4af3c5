"""Each kind of value that only listeners have: its right forms, and what it refuses."""

import pytest

from proxy.config import listener_kinds as kinds
from storage.config.model import HostPort


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:19092", HostPort("127.0.0.1", 19092)),
        ("[::1]:0", HostPort("::1", 0)),
        ("[fe80::1%eth0]:1", HostPort("fe80::1%eth0", 1)),
        ("broker-1.example:65535", HostPort("broker-1.example", 65535)),
        (":9092", HostPort("", 9092)),
        ("*:9092", HostPort("", 9092)),
    ],
)
def test_a_listen_address_is_host_and_port(text: str, address: HostPort) -> None:
    assert kinds.LISTEN.parse(text) == address


@pytest.mark.parametrize("text", ["", "host", "host:", "host:x", "host:65536", "::1:9092", "a b:1", "host:-1", "-x:1"])
def test_a_bad_listen_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"must|at most"):
        kinds.LISTEN.parse(text)


def test_broker_ports_are_a_mapping() -> None:
    assert dict(kinds.BROKER_PORTS.parse("1:9001, 2:9002")) == {1: 9001, 2: 9002}


@pytest.mark.parametrize("text", ["", "1", "x:1", "1:9001,1:9002", "1:9001,2:9001", "1:0", "9999999999:1"])
def test_bad_broker_ports_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"must|names|gives|at least"):
        kinds.BROKER_PORTS.parse(text)


@pytest.mark.parametrize("text", ["kafka.example", "broker-$(nodeId).example", "10.0.0.1", "::1"])
def test_an_advertised_host_may_hold_the_node_id(text: str) -> None:
    assert kinds.ADVERTISED_HOST.parse(text) == text


@pytest.mark.parametrize("text", ["", "broker-$(nodeid)", "a b", "${nodeId}", "host:9092", "x" * 254])
def test_a_bad_advertised_host_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="host name"):
        kinds.ADVERTISED_HOST.parse(text)


@pytest.mark.parametrize(
    "text", ["broker-$(nodeId).kafka.example.org", "$(nodeId).B_1.example", "b$(nodeId)", f"$(nodeId)x.{'a' * 63}"]
)
def test_a_server_name_pattern_is_a_host_name_with_the_node_id(text: str) -> None:
    assert kinds.SNI_PATTERN.parse(text) == text


@pytest.mark.parametrize("text", ["", "kafka.example.org", "broker-$(nodeid).example", "$(nodeId).$(nodeId).example"])
def test_a_server_name_pattern_holds_the_node_id_exactly_once(text: str) -> None:
    with pytest.raises(ValueError, match=r"must hold \$\(nodeId\) exactly once"):
        kinds.SNI_PATTERN.parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "-$(nodeId).example",
        "$(nodeId)-.example",
        "$(nodeId)..example",
        "$(nodeId).example.",
        ".$(nodeId)",
        "10.0.0.$(nodeId)",
        "broker.$(nodeId)",
        "::$(nodeId)",
        "*.$(nodeId).example",
        "b $(nodeId)",
        "b$(nodeId).example:9092",
        "b$(nodeId).bücher.example",
        f"{'a' * 54}$(nodeId)",  # 64 with ten digits
        f"$(nodeId).{'a.' * 121}b",
    ],
)
def test_a_bad_server_name_pattern_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be a host name"):
        kinds.SNI_PATTERN.parse(text)


def test_networks_are_addresses_and_networks() -> None:
    parsed = kinds.NETWORKS.parse("10.0.0.7, 192.0.2.0/24,2001:db8::/32")
    assert [str(network) for network in parsed] == ["10.0.0.7/32", "192.0.2.0/24", "2001:db8::/32"]


@pytest.mark.parametrize("text", ["", "10.0.0", "10.0.0.1/8", "balancer.example", "10.0.0.1,", "::/129"])
def test_what_is_no_network_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be IP addresses"):
        kinds.NETWORKS.parse(text)


def test_networks_are_bounded() -> None:
    with pytest.raises(ValueError, match="at most 1000"):
        kinds.NETWORKS.parse(",".join(["10.0.0.1"] * 1001))
