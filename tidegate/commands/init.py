"""`tidegate init`: writes a first FILE out of a broker's own, and says which rights Tidegate's identity needs.

What the tier is stays in the broker's file, which FILE names; init reads it to see that it has a tier, and for the
address to propose. The file is looked at as `serve` will read it before it is put in place. No password is written:
FILE names a variable.
"""

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TextIO

from storage.config import ConfigError
from storage.config.client_settings import client_settings
from storage.config.java_properties import PropertiesError, read_properties
from storage.config.registry import open_remote_storage_manager
from storage.config.tier_client import STORAGE_MANAGER_CLASS
from storage.errors import StorageConfigError
from tidegate import exit_codes
from tidegate.acl_lines import METADATA_TOPIC
from tidegate.config import Config, load

PASSWORD_VARIABLE: Final = "UPSTREAM_PASSWORD"
REMOTE_STORAGE: Final = "remote.log.storage.system.enable"
MODE: Final = 0o600

Ask = Callable[[str, str], str]
"""A question and what is taken if nothing is typed."""


class RefusedError(Exception):
    """Nothing was written; why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InitOptions:
    """What was given; None is asked for, or has its default where nobody can be asked."""

    file: Path
    broker_config: Path | None
    bootstrap: str | None
    listen: str | None
    security_protocol: str | None
    mechanism: str | None
    username: str | None
    ca: Path | None
    force: bool


def run(options: InitOptions, environ: Mapping[str, str], ask: Ask | None, out: TextIO) -> int:
    """Write FILE and print the lines; the exit code. `ask` None: nobody is there."""
    try:
        if options.file.exists() and not options.force:
            raise RefusedError(f"{options.file} is there already; --force writes over it")
        config = _write(options.file, properties(options, ask or _unasked), environ)
    except (RefusedError, ConfigError, StorageConfigError, OSError) as error:
        for problem in error.problems if isinstance(error, ConfigError) else [str(error)]:
            print(f"tidegate: {problem.replace(_beside(options.file).name, options.file.name)}", file=sys.stderr)
        return exit_codes.USAGE
    except EOFError:
        print("tidegate: ended before all was answered; nothing was written", file=sys.stderr)
        return exit_codes.USAGE
    print(f"{options.file} is written. `tidegate check {options.file}` tries it.", file=out)
    print("Where the brokers authorize, an administrator gives Tidegate these rights:", file=out)
    for line in grants(config):
        print(line, file=out)
    return exit_codes.DONE


def properties(options: InitOptions, ask: Ask) -> dict[str, str]:
    """Return the keys of FILE.

    Raises:
        RefusedError: the broker's file is not there, or has no tier.
    """
    name = str(options.broker_config or ask("The broker's server.properties", ""))
    if not name:
        raise RefusedError("--broker-config is needed: a copy of a broker's server.properties")
    path = Path(name).absolute()
    protocol, address = _listener(_broker_keys(path), options.security_protocol)
    found = {
        "upstream.bootstrap.servers": options.bootstrap or ask("Brokers, HOST:PORT with commas between", address),
        "broker.config": str(path),
        "proxy.listen": options.listen or ask("Where Tidegate listens", "127.0.0.1:19092"),
    }
    protocol = options.security_protocol or ask("How the brokers are reached", protocol)
    if not found["upstream.bootstrap.servers"]:
        raise RefusedError(f"{path} names no listener that others reach; --bootstrap HOST:PORT says where brokers are")
    if protocol != "PLAINTEXT":
        found |= {"upstream.security.protocol": protocol}
    if protocol.endswith("SSL") and (ca := str(options.ca or ask("CA certificates, PEM; empty: the system's", ""))):
        found |= {"upstream.ssl.ca.location": str(Path(ca).absolute())}
    if protocol.startswith("SASL"):
        username = options.username or ask("Tidegate's own user", "tidegate")
        found |= {
            "upstream.sasl.mechanism": options.mechanism or ask("Its mechanism", "SCRAM-SHA-512"),
            "upstream.sasl.username": username,
            "upstream.sasl.password": f"${{env:{PASSWORD_VARIABLE}}}",
            "metadata.identity": "upstream",
        }
    return found


def grants(config: Config) -> list[str]:
    """Return the lines that give what docs/operate/secure.md lists."""
    upstream, metadata = client_settings(config.upstream), client_settings(config.metadata_client)
    return [
        metadata.grant(["Read", "DescribeConfigs"], "topic", [METADATA_TOPIC]),
        upstream.grant(["Describe"], "topic", ["*"]),
    ]


def _broker_keys(path: Path) -> Mapping[str, str]:
    try:
        keys = {name: each.text.strip() for name, each in read_properties(path).items()}
    except PropertiesError as error:
        raise RefusedError(str(error)) from error
    if keys.get(REMOTE_STORAGE, "").lower() != "true":
        raise RefusedError(f"{path} has no {REMOTE_STORAGE}=true: this broker has no tier")
    if not keys.get(STORAGE_MANAGER_CLASS):
        raise RefusedError(f"{path} has no {STORAGE_MANAGER_CLASS}: it does not say what reads the tier")
    return keys


def _listener(keys: Mapping[str, str], wanted: str | None) -> tuple[str, str]:
    """Return how the broker is reached, and where: by its first listener with an address that is no controller's."""
    controllers = keys.get("controller.listener.names", "").split(",")
    protocols = dict(pair.split(":", 1) for pair in keys.get("listener.security.protocol.map", "").split(",") if pair)
    for text in (keys.get("advertised.listeners") or keys.get("listeners", "")).split(","):
        name, _, address = text.strip().partition("://")
        protocol = protocols.get(name, name)
        is_reached = address and not address.startswith((":", "0.0.0.0:", "[::]:")) and name not in controllers
        if is_reached and wanted in {None, protocol}:
            return protocol, address
    return wanted or "PLAINTEXT", ""


def _write(path: Path, keys: Mapping[str, str], environ: Mapping[str, str]) -> Config:
    """Put the file in place if it and its tier can be opened; a password that is not there yet counts as one."""
    beside = _beside(path)
    beside.unlink(missing_ok=True)
    with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, MODE), "w", encoding="latin-1") as file:
        file.writelines(f"{name}={_escaped(value)}\n" for name, value in keys.items())
    try:
        config = load(beside, {PASSWORD_VARIABLE: "later", **environ})
        open_remote_storage_manager(
            config.remote_storage_manager_class_name, config.remote_storage_config, prefix=config.remote_storage_prefix
        ).close()
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    return config


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.new")


def _escaped(value: str) -> str:
    doubled = value.replace("\\", "\\\\")
    return "".join(each if ord(each) < 128 else f"\\u{ord(each):04x}" for each in doubled)


def _unasked(_question: str, default: str) -> str:
    return default
