"""Properties files: Java's syntax, lines and limits; Kafka's variables in the values, and what cannot be looked up."""

from pathlib import Path

import pytest

from storage.config import sources
from storage.config.sources import PropertiesError, Property, Resolver, UnresolvedVariableError, read_properties


def test_keys_carry_the_line_they_begin_on(tmp_path: Path) -> None:
    file = tmp_path / "a.properties"
    file.write_bytes(b"# comment\r\n\r\na=1\nb = x\\\n   y\\\n   z\n! more\nc:\xfc\\u00fc\r\n")
    assert read_properties(file) == {
        "a": Property("1", (3,)),
        "b": Property("xyz", (4,)),
        "c": Property("üü", (8,)),
    }


def test_the_last_of_a_repeated_key_counts_and_all_lines_are_known(tmp_path: Path) -> None:
    file = tmp_path / "a.properties"
    file.write_text("a=1\nb=2\na=3\n")
    assert read_properties(file)["a"] == Property("3", (1, 3))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(PropertiesError, match=r"absent\.properties: cannot be read: No such file"):
        read_properties(tmp_path / "absent.properties")


def test_a_bad_escape_is_named_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "a.properties"
    file.write_text("a=1\nb=\\u12\n")
    with pytest.raises(PropertiesError, match=r"a\.properties:2: bad escape"):
        read_properties(file)


def test_a_file_beyond_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "FILE_BYTES_MAX", 8)
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


@pytest.mark.parametrize(
    ("text", "reason"),
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
def test_what_cannot_be_looked_up_names_the_variable(
    text: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "VALUE_BYTES_MAX", 16)
    (tmp_path / "present.properties").write_text("a=1")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    (tmp_path / "large").write_text("x" * 17)
    with pytest.raises(UnresolvedVariableError, match=reason) as caught:
        standard(tmp_path).resolve(text)
    assert str(caught.value).startswith(text)
