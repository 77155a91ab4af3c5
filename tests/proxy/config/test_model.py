"""Serve's keys: what must hold of each, the kinds that only listeners have, and the shares of one memory limit."""

import pytest

from proxy.config import model
from proxy.config.model import (
    CACHE_MEMORY_SHARE,
    INDEXES_SHARE,
    READAHEAD_TOTAL_SHARE,
    SERVE_KEYS,
    SESSIONS_SHARE,
    TIER_INFLIGHT_SHARE,
    memory_share,
)
from storage.config.kinds import MIB, parse_size
from storage.config.model import HostPort
from storage.config.sources import key_name, variable_name
from storage.config.tier_client import LATER, TIER_CLIENT_KEYS


def test_no_two_keys_of_the_table_share_a_variable() -> None:
    assert len({variable_name(key) for key in SERVE_KEYS.by_name}) == len(SERVE_KEYS.by_name)
    assert all(key_name(variable_name(key)) == key for key in SERVE_KEYS.by_name)


def test_other_readers_of_the_same_file_check_a_key_or_pass_it_over() -> None:
    """A key of a new group needs a word in `storage.config.tier_client`, or a Spark job calls it misspelt."""
    strangers = {name for name in SERVE_KEYS.by_name if not TIER_CLIENT_KEYS.is_anothers(name)}
    assert strangers == set(TIER_CLIENT_KEYS.by_name)


def test_every_beginning_that_is_passed_over_is_one_of_serves() -> None:
    for beginning in TIER_CLIENT_KEYS.others:
        assert any(name.startswith(beginning) for name in SERVE_KEYS.by_name), beginning


def test_serve_itself_passes_nothing_over() -> None:
    assert SERVE_KEYS.others == ()


def test_every_refusal_stands_under_a_key_that_exists() -> None:
    assert all(name in SERVE_KEYS.by_name or name.startswith("remote.log.metadata.") for name in LATER)


def test_the_default_memory_gives_the_tables_budgets() -> None:
    memory = parse_size("1.5 GiB")
    shares = [memory_share(memory, share) for share in (CACHE_MEMORY_SHARE, READAHEAD_TOTAL_SHARE, TIER_INFLIGHT_SHARE)]
    assert shares == [256 * MIB, 512 * MIB, 512 * MIB]
    assert memory_share(memory, INDEXES_SHARE) == 96 * MIB
    assert memory_share(memory, SESSIONS_SHARE) == memory // 24


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
    assert model.LISTEN.parse(text) == address


@pytest.mark.parametrize("text", ["", "host", "host:", "host:x", "host:65536", "::1:9092", "a b:1", "host:-1", "-x:1"])
def test_a_bad_listen_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"must|at most"):
        model.LISTEN.parse(text)


def test_broker_ports_are_a_mapping() -> None:
    assert dict(model.BROKER_PORTS.parse("1:9001, 2:9002")) == {1: 9001, 2: 9002}


@pytest.mark.parametrize("text", ["", "1", "x:1", "1:9001,1:9002", "1:9001,2:9001", "1:0", "9999999999:1"])
def test_bad_broker_ports_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"must|names|gives|at least"):
        model.BROKER_PORTS.parse(text)


@pytest.mark.parametrize("text", ["kafka.example", "broker-$(nodeId).example", "10.0.0.1", "::1"])
def test_an_advertised_host_may_hold_the_node_id(text: str) -> None:
    assert model.ADVERTISED_HOST.parse(text) == text


@pytest.mark.parametrize("text", ["", "broker-$(nodeid)", "a b", "${nodeId}", "host:9092", "x" * 254])
def test_a_bad_advertised_host_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="host name"):
        model.ADVERTISED_HOST.parse(text)


@pytest.mark.parametrize(
    "text", ["broker-$(nodeId).kafka.example.org", "$(nodeId).B_1.example", "b$(nodeId)", f"$(nodeId)x.{'a' * 63}"]
)
def test_a_server_name_pattern_is_a_host_name_with_the_node_id(text: str) -> None:
    assert model.SNI_PATTERN.parse(text) == text


@pytest.mark.parametrize("text", ["", "kafka.example.org", "broker-$(nodeid).example", "$(nodeId).$(nodeId).example"])
def test_a_server_name_pattern_holds_the_node_id_exactly_once(text: str) -> None:
    with pytest.raises(ValueError, match=r"must hold \$\(nodeId\) exactly once"):
        model.SNI_PATTERN.parse(text)


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
        model.SNI_PATTERN.parse(text)


def test_networks_are_addresses_and_networks() -> None:
    parsed = model.NETWORKS.parse("10.0.0.7, 192.0.2.0/24,2001:db8::/32")
    assert [str(network) for network in parsed] == ["10.0.0.7/32", "192.0.2.0/24", "2001:db8::/32"]


@pytest.mark.parametrize("text", ["", "10.0.0", "10.0.0.1/8", "balancer.example", "10.0.0.1,", "::/129"])
def test_what_is_no_network_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be IP addresses"):
        model.NETWORKS.parse(text)


def test_networks_are_bounded() -> None:
    with pytest.raises(ValueError, match="at most 1000"):
        model.NETWORKS.parse(",".join(["10.0.0.1"] * 1001))
