"""Each kind of value: its right forms, its limits, and what it refuses."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.config import kinds
from storage.config.kinds import GIB, KIB, MIB, TIB, format_size, integer, one_of, parse_size, size
from storage.config.model import HostPort, SecurityProtocol


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


def test_an_ipv6_address_is_shown_in_brackets() -> None:
    assert str(HostPort("::1", 9092)) == "[::1]:9092"
    assert str(HostPort("broker", 9092)) == "broker:9092"


def test_bootstrap_servers_are_a_list_with_kafkas_protocol_allowed() -> None:
    assert kinds.HOST_PORTS.parse("a:1, PLAINTEXT://b:2,") == (HostPort("a", 1), HostPort("b", 2))


@pytest.mark.parametrize("text", ["", ",", "a", "a:0", ":9092", "a:1 b:2"])
def test_bad_bootstrap_servers_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"must|at least"):
        kinds.HOST_PORTS.parse(text)


def test_host_name_checks_go_off_by_none_or_nothing() -> None:
    assert [kinds.IDENTIFICATION.parse(text) for text in ("https", "HTTPS", "none", "")] == [True, True, False, False]
    with pytest.raises(ValueError, match="https"):
        kinds.IDENTIFICATION.parse("ldaps")


def test_text_and_paths_are_not_empty() -> None:
    assert kinds.PATH.parse("a/b") == Path("a/b")
    for kind in (kinds.TEXT, kinds.PATH):
        with pytest.raises(ValueError, match="must not be empty"):
            kind.parse("")


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("0", 0),
        ("1048576", MIB),
        ("7B", 7),
        ("16 GiB", 16 * GIB),
        ("64KiB", 64 * KIB),
        ("64 kib", 64 * KIB),
        ("1.5 GiB", 3 * GIB // 2),
        ("0.5 TiB", TIB // 2),
    ],
)
def test_a_size_is_bytes_or_a_number_with_a_binary_unit(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize(
    "text", ["", "GiB", "-1", "1 GB", "1G", "1,5 GiB", "0x10", "1e3", "1 GiB extra", "0.3 B", "9" * 40]
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"must be"):
        parse_size(text)


@given(st.integers(min_value=0, max_value=10**17))
def test_what_is_shown_reads_back(size_bytes: int) -> None:
    assert parse_size(format_size(size_bytes)) == size_bytes
