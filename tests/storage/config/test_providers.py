"""Kafka's configuration providers: each form, declared names, and what cannot be looked up."""

from pathlib import Path

import pytest

from storage.config import providers
from storage.config.providers import Resolver, UnresolvedVariableError, has_variable, is_provider_key, resolver


def standard(folder: Path, **environ: str) -> Resolver:
    return resolver({}, environ, folder)


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
    resolve = resolver(declared, {"A": "1"}, tmp_path).resolve
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
    monkeypatch.setattr(providers, "VALUE_BYTES_MAX", 16)
    (tmp_path / "present.properties").write_text("a=1")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    (tmp_path / "large").write_text("x" * 17)
    with pytest.raises(UnresolvedVariableError, match=reason) as caught:
        standard(tmp_path).resolve(text)
    assert str(caught.value).startswith(text)


def test_provider_keys_and_variables_are_recognised() -> None:
    assert is_provider_key("config.providers")
    assert is_provider_key("config.providers.file.class")
    assert not is_provider_key("config.providersx")
    assert has_variable("a${env:B}")
    assert not has_variable("${B}")
