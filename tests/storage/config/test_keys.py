"""The file that keys stand in, and each kind of value: its right forms, its limits, and what it refuses."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.config import java_properties
from storage.config.java_properties import PropertiesError, Property, Resolver, UnresolvedVariableError, read_properties
from storage.config.model import HostPort, SecurityProtocol
from storage.config.value_kinds import (
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
from tests.support.for_each import for_each


def test_keys_carry_the_line_they_begin_on(tmp_path: Path) -> None:
    file = tmp_path / "a.properties"
    file.write_bytes(b"# comment\r\n\r\na=1\nb = x\\\n   y\\\n   z\n! more\nc:\xfc\\u00fc\r\n")
    assert read_properties(file) == {"a": Property("1", (3,)), "b": Property("xyz", (4,)), "c": Property("üü", (8,))}


def test_the_last_of_a_repeated_key_counts_and_all_lines_are_known(tmp_path: Path) -> None:
    file = tmp_path / "a.properties"
    file.write_text("a=1\nb=2\na=3\n")
    assert read_properties(file)["a"] == Property("3", (1, 3))


def test_a_bad_escape_is_named_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "a.properties"
    file.write_text("a=1\nb=\\u12\n")
    with pytest.raises(PropertiesError, match=r"a\.properties:2: bad escape"):
        read_properties(file)


def test_a_file_beyond_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java_properties, "FILE_BYTES_MAX", 8)
    file = tmp_path / "a.properties"
    file.write_text("a=12345678")
    with pytest.raises(PropertiesError, match="larger than 8 bytes"):
        read_properties(file)


def standard(folder: Path, **environ: str) -> Resolver:
    return Resolver({}, environ, folder)


def test_the_three_providers_are_looked_up(tmp_path: Path) -> None:
    (tmp_path / "secrets.properties").write_text("password=p\\u0041\n")
    (tmp_path / "user").write_text("tide\r\n")
    resolve = standard(tmp_path, HOST="broker").resolve
    assert resolve("${env:HOST}") == "broker"
    assert resolve("${file:secrets.properties:password}") == "pA"
    assert resolve(f"${{file:{tmp_path}/secrets.properties:password}}") == "pA"
    assert resolve(f"${{dir:{tmp_path}:user}}") == "tide"


def test_several_variables_and_plain_text_stand_side_by_side(tmp_path: Path) -> None:
    assert standard(tmp_path, A="1", B="2").resolve('x ${env:A}-${env:B} "y"') == 'x 1-2 "y"'


def test_what_a_variable_holds_is_not_looked_into_again(tmp_path: Path) -> None:
    assert standard(tmp_path, A="${env:B}", B="2").resolve("${env:A}") == "${env:B}"


def test_a_dollar_without_a_provider_is_left_alone(tmp_path: Path) -> None:
    assert standard(tmp_path).resolve("${DATA}/x $(nodeId) $1") == "${DATA}/x $(nodeId) $1"


def test_declared_names_stand_for_kafkas_classes(tmp_path: Path) -> None:
    declared = {
        "config.providers": "vars, vault",
        "config.providers.vars.class": "org.apache.kafka.common.config.provider.EnvVarConfigProvider",
        "config.providers.vault.class": "com.example.Vault",
    }
    resolve = Resolver(declared, {"A": "1"}, tmp_path).resolve
    assert resolve("${vars:A}") == "1"
    with pytest.raises(UnresolvedVariableError, match=r"\$\{vault:a:b\}: provider class com\.example\.Vault is not"):
        resolve("${vault:a:b}")


@for_each(
    "text, reason",
    [
        ("${env:ABSENT}", "environment variable ABSENT is not set"),
        ("${env:path:NAME}", r"must be \$\{env:NAME\}"),
        ("${file:absent.properties:a}", "cannot be read"),
        ("${file:present.properties:b}", "has no key b"),
        ("${file:a}", r"must be \$\{file:path:key\}"),
        ("${dir:.:absent}", "cannot be read"),
        ("${dir:.:../present.properties}", r"must be \$\{dir:path:file\}"),
        ("${dir:.:binary}", "is not UTF-8"),
        ("${dir:.:large}", "is larger than 16 bytes"),
        ("${vault:a:b}", "no provider 'vault'"),
    ],
)
def test_what_is_not_found_is_named(text: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java_properties, "VALUE_BYTES_MAX", 16)
    (tmp_path / "present.properties").write_text("a=1")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    (tmp_path / "large").write_text("x" * 17)
    with pytest.raises(UnresolvedVariableError, match=reason) as caught:
        standard(tmp_path).resolve(text)
    assert str(caught.value).startswith(text)


SIZE = size(0, 1024 * TIB)


@for_each(
    "kind, text, value",
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


@for_each(
    "kind, reason, texts",
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


@given(st.integers(min_value=0, max_value=10**17))
def test_what_is_shown_reads_back(size_bytes: int) -> None:
    assert parse_size(format_size(size_bytes)) == size_bytes
