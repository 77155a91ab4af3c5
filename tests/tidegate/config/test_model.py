"""Serve's keys: what must hold of each, the kinds that only listeners have, and the shares of one memory limit."""

from ipaddress import ip_network
from typing import Any

import pytest

from proxy.settings import ADVERTISED_HOST, BROKER_PORTS, LISTEN, NETWORKS, SNI_PATTERN
from storage.config.model import HostPort
from storage.config.tier_client import LATER, TIER_CLIENT_KEYS
from storage.config.value_kinds import Kind
from tidegate.config.model import SERVE_KEYS


def test_other_readers_of_the_same_file_check_a_key_or_pass_it_over() -> None:
    """A key of a new group needs a word in `storage.config.tier_client`, or a Spark job calls it misspelt."""
    strangers = {name for name in SERVE_KEYS.by_name if not TIER_CLIENT_KEYS.is_anothers(name)}
    assert strangers == set(TIER_CLIENT_KEYS.by_name)
    for beginning in TIER_CLIENT_KEYS.others:
        assert any(name.startswith(beginning) for name in SERVE_KEYS.by_name), beginning
    assert SERVE_KEYS.others == ()


def test_every_refusal_stands_under_a_key_that_exists() -> None:
    assert all(name in SERVE_KEYS.by_name or name.startswith("remote.log.metadata.") for name in LATER)


RIGHT: list[tuple[Kind[Any], str, object]] = [
    (LISTEN, "127.0.0.1:19092", HostPort("127.0.0.1", 19092)),
    (LISTEN, "[::1]:0", HostPort("::1", 0)),
    (LISTEN, "[fe80::1%eth0]:1", HostPort("fe80::1%eth0", 1)),
    (LISTEN, "broker-1.example:65535", HostPort("broker-1.example", 65535)),
    (LISTEN, ":9092", HostPort("", 9092)),
    (LISTEN, "*:9092", HostPort("", 9092)),
    (BROKER_PORTS, "1:9001, 2:9002", {1: 9001, 2: 9002}),
    (NETWORKS, "10.0.0.7, 192.0.2.0/24", (ip_network("10.0.0.7/32"), ip_network("192.0.2.0/24"))),
    (NETWORKS, "2001:db8::/32", (ip_network("2001:db8::/32"),)),
]
RIGHT_AS_WRITTEN: list[tuple[Kind[Any], list[str]]] = [
    (ADVERTISED_HOST, ["kafka.example", "broker-$(nodeId).example", "10.0.0.1", "::1"]),
    (SNI_PATTERN, ["b-$(nodeId).kafka.example.org", "$(nodeId).B_1.example", "b$(nodeId)", "$(nodeId)x.a"]),
    (SNI_PATTERN, [f"$(nodeId)x.{'a' * 63}"]),
]


def test_a_right_value_is_read() -> None:
    as_written = [(kind, text, text) for kind, texts in RIGHT_AS_WRITTEN for text in texts]
    for kind, text, value in [*RIGHT, *as_written]:
        assert kind.parse(text) == value


WRONG: list[tuple[Kind[Any], str, list[str]]] = [
    (LISTEN, "must|at most", ["", "host", "host:", "host:x", "host:65536", "::1:9092", "a b:1", "host:-1", "-x:1"]),
    (BROKER_PORTS, "must be id:port", ["", "1", "x:1", "9999999999:1"]),
    (BROKER_PORTS, "names broker 1 twice", ["1:9001,1:9002"]),
    (BROKER_PORTS, "gives port 9001 to two", ["1:9001,2:9001"]),
    (BROKER_PORTS, "at least port 1", ["1:0"]),
    (ADVERTISED_HOST, "host name", ["", "broker-$(nodeid)", "a b", "${nodeId}", "host:9092", "x" * 254]),
    (NETWORKS, "must be IP addresses", ["", "10.0.0", "10.0.0.1/8", "balancer.example", "10.0.0.1,", "::/129"]),
    (SNI_PATTERN, r"must hold \$\(nodeId\) exactly once", ["", "kafka.example.org", "broker-$(nodeid).example"]),
    (SNI_PATTERN, r"must hold \$\(nodeId\) exactly once", ["$(nodeId).$(nodeId).example"]),
    (SNI_PATTERN, "must be a host name", ["-$(nodeId).example", "$(nodeId)-.example", "$(nodeId)..example"]),
    (SNI_PATTERN, "must be a host name", ["$(nodeId).example.", ".$(nodeId)", "10.0.0.$(nodeId)", "broker.$(nodeId)"]),
    (SNI_PATTERN, "must be a host name", ["::$(nodeId)", "*.$(nodeId).example", "b $(nodeId)", "b$(nodeId).a:9092"]),
    # The second has 64 characters with ten digits.
    (SNI_PATTERN, "must be a host name", ["b$(nodeId).bücher.example", f"{'a' * 54}$(nodeId)"]),
    (SNI_PATTERN, "must be a host name", [f"$(nodeId).{'a.' * 121}b"]),
]


def test_a_wrong_value_is_refused_with_the_reason() -> None:
    for kind, reason, texts in WRONG:
        for text in texts:
            with pytest.raises(ValueError, match=reason):
                pytest.fail(f"{text!r} was taken as {kind.parse(text)!r}")
