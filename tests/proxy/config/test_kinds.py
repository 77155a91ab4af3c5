"""Each kind of value: its right forms, its limits, and what it refuses."""

from pathlib import Path

import pytest

from proxy.config import kinds
from proxy.config.kinds import integer, one_of, size
from proxy.config.model import HostPort, SecurityProtocol
from proxy.config.sizes import KIB, MIB


def test_an_integer_keeps_its_limits() -> None:
    kind = integer(-1, 10)
    assert [kind.parse("-1"), kind.parse("10")] == [-1, 10]
    with pytest.raises(ValueError, match="at least -1"):
        kind.parse("-2")
    with pytest.raises(ValueError, match="at most 10"):
        kind.parse("11")
    with pytest.raises(ValueError, match="whole number"):
        kind.parse("1.0")


def test_a_size_names_its_limit_as_a_size() -> None:
    with pytest.raises(ValueError, match="at most 1 MiB"):
        size(KIB, MIB).parse("2 MiB")
    with pytest.raises(ValueError, match="at least 1 KiB"):
        size(KIB, MIB).parse("1023")


def test_a_boolean_is_true_or_false_in_any_case() -> None:
    assert kinds.BOOLEAN.parse("TRUE") is True
    assert kinds.BOOLEAN.parse("false") is False
    with pytest.raises(ValueError, match="true or false"):
        kinds.BOOLEAN.parse("yes")


def test_a_name_is_matched_in_any_case() -> None:
    assert one_of(SecurityProtocol).parse("sasl_ssl") is SecurityProtocol.SASL_SSL
    with pytest.raises(ValueError, match="must be one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"):
        one_of(SecurityProtocol).parse("TLS")


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


def test_an_ipv6_address_is_shown_in_brackets() -> None:
    assert str(HostPort("::1", 9092)) == "[::1]:9092"
    assert str(HostPort("broker", 9092)) == "broker:9092"


def test_bootstrap_servers_are_a_list_with_kafkas_protocol_allowed() -> None:
    assert kinds.HOST_PORTS.parse("a:1, PLAINTEXT://b:2,") == (HostPort("a", 1), HostPort("b", 2))


@pytest.mark.parametrize("text", ["", ",", "a", "a:0", ":9092", "a:1 b:2"])
def test_bad_bootstrap_servers_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"must|at least"):
        kinds.HOST_PORTS.parse(text)


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


def test_host_name_checks_go_off_by_none_or_nothing() -> None:
    assert [kinds.IDENTIFICATION.parse(text) for text in ("https", "HTTPS", "none", "")] == [True, True, False, False]
    with pytest.raises(ValueError, match="https"):
        kinds.IDENTIFICATION.parse("ldaps")


def test_text_and_paths_are_not_empty() -> None:
    assert kinds.PATH.parse("a/b") == Path("a/b")
    for kind in (kinds.TEXT, kinds.PATH):
        with pytest.raises(ValueError, match="must not be empty"):
            kind.parse("")
