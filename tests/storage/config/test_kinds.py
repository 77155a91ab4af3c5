"""Each kind of value: its right forms, its limits, and what it refuses."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.config.keys import (
    BOOLEAN,
    GIB,
    HOST_PORTS,
    IDENTIFICATION,
    KIB,
    MIB,
    PATH,
    TEXT,
    TIB,
    Kind,
    format_size,
    integer,
    one_of,
    optional,
    parse_size,
    size,
)
from storage.config.model import HostPort, SecurityProtocol

SIZE = size(0, 1024 * TIB)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (integer(-1, 10), "-1", -1),
        (integer(-1, 10), "10", 10),
        (BOOLEAN, "TRUE", True),
        (BOOLEAN, "false", False),
        (one_of(SecurityProtocol), "sasl_ssl", SecurityProtocol.SASL_SSL),
        (HOST_PORTS, "a:1, PLAINTEXT://b:2,", (HostPort("a", 1), HostPort("b", 2))),
        (IDENTIFICATION, "https", True),
        (IDENTIFICATION, "HTTPS", True),
        (IDENTIFICATION, "none", False),
        (IDENTIFICATION, "", False),
        (PATH, "a/b", Path("a/b")),
        (optional(PATH), "a/b", Path("a/b")),
        (SIZE, "0", 0),
        (SIZE, "1048576", MIB),
        (SIZE, "7B", 7),
        (SIZE, "16 GiB", 16 * GIB),
        (SIZE, "64KiB", 64 * KIB),
        (SIZE, "64 kib", 64 * KIB),
        (SIZE, "1.5 GiB", 3 * GIB // 2),
        (SIZE, "0.5 TiB", TIB // 2),
    ],
)
def test_a_right_value_is_read(kind: Kind[object], text: str, value: object) -> None:
    assert kind.parse(text) == value


@pytest.mark.parametrize(
    ("kind", "reason", "texts"),
    [
        (integer(-1, 10), "at least -1", ["-2"]),
        (integer(-1, 10), "at most 10", ["11"]),
        (integer(-1, 10), "must be a whole number", ["1.0", "", "a"]),
        (BOOLEAN, "must be true or false", ["yes"]),
        (one_of(SecurityProtocol), "must be one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL", ["TLS"]),
        (HOST_PORTS, "must|at least", ["", ",", "a", "a:0", ":9092", "a:1 b:2"]),
        (IDENTIFICATION, "must be https", ["ldaps"]),
        (TEXT, "must not be empty", [""]),
        (PATH, "must not be empty", [""]),
        (size(KIB, MIB), "at most 1 MiB", ["2 MiB"]),
        (size(KIB, MIB), "at least 1 KiB", ["1023"]),
        (SIZE, "must be", ["", "GiB", "-1", "1 GB", "1G", "1,5 GiB", "0x10", "1e3", "1 GiB extra", "0.3 B", "9" * 40]),
    ],
)
def test_a_wrong_value_is_refused_with_the_reason(kind: Kind[object], reason: str, texts: list[str]) -> None:
    for text in texts:
        with pytest.raises(ValueError, match=reason):
            kind.parse(text)


def test_an_ipv6_address_is_shown_in_brackets() -> None:
    assert str(HostPort("::1", 9092)) == "[::1]:9092"
    assert str(HostPort("broker", 9092)) == "broker:9092"


@given(st.integers(min_value=0, max_value=10**17))
def test_what_is_shown_reads_back(size_bytes: int) -> None:
    assert parse_size(format_size(size_bytes)) == size_bytes
