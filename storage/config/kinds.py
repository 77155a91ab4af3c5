"""The kinds of value a key may have: each a parser from text and the words that the reference shows for it.

A parser raises ValueError with the end of a sentence ("must be …", "at most 16 MiB"); whoever calls it puts key and
value before that, so a parser never names either.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from storage.config.model import HostPort
from storage.config.sizes import format_size, parse_size

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)

HOST_LENGTH_MAX: Final = 253  # RFC 1035: the longest name in text form

_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_.])?")
_IPV6 = re.compile(r"[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(%[A-Za-z0-9_.-]+)?")


@dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    """A type of value: the reference's words for it, and its parser (raises ValueError)."""

    words: str
    parse: Callable[[str], T]


class Reload(StrEnum):
    """When a running process follows a key that was changed; the words stand in docs/configuration.md."""

    RESTART = "restart"
    AT_ONCE = "at once"
    NEW_CONNECTIONS = "new connections"


@dataclass(frozen=True, slots=True, kw_only=True)
class Key(Generic[T]):
    """One key of the table.

    `default` is text as a file would hold it; None with `default_words` None means the key is unset by default.
    `stand_in` is what the checks go on with after a missing required key was reported: no Config ever holds it.
    """

    name: str
    kind: Kind[T]
    doc: str
    default: str | None = None
    default_words: str | None = None
    stand_in: str | None = None
    secret: bool = False
    aliases: tuple[str, ...] = ()
    reload: Reload = Reload.RESTART

    @property
    def required(self) -> bool:
        return self.stand_in is not None


@dataclass(frozen=True, slots=True)
class KeyGroup:
    """A section of the table and of the reference."""

    title: str
    keys: tuple[Key[Any], ...]


def integer(minimum: int, maximum: int) -> Kind[int]:
    """A whole number, both limits included."""

    def parse(text: str) -> int:
        if re.fullmatch(r"[+-]?\d{1,19}", text) is None:
            raise ValueError("must be a whole number")
        return _within(int(text), minimum, maximum, str)

    return Kind(f"integer, {minimum} to {maximum}", parse)


def size(minimum_bytes: int, maximum_bytes: int) -> Kind[int]:
    """A number of bytes (`storage.config.sizes`), both limits included."""

    def parse(text: str) -> int:
        return _within(parse_size(text), minimum_bytes, maximum_bytes, format_size)

    return Kind(f"size, {format_size(minimum_bytes)} to {format_size(maximum_bytes)}", parse)


def one_of(names: type[E]) -> Kind[E]:
    """One of an enumeration's names; case does not matter, since librdkafka and Kafka differ in it."""
    words = ", ".join(f"`{member.value}`" for member in names)

    def parse(value: str) -> E:
        for member in names:
            if member.value.lower() == value.lower():
                return member
        raise ValueError(f"must be one of {words.replace('`', '')}")

    return Kind(f"one of {words}", parse)


def _within(number: int, minimum: int, maximum: int, show: Callable[[int], str]) -> int:
    if number < minimum:
        raise ValueError(f"at least {show(minimum)}")
    if number > maximum:
        raise ValueError(f"at most {show(maximum)}")
    return number


def _parse_boolean(value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise ValueError("must be true or false")
    return value.lower() == "true"


def _parse_text(value: str) -> str:
    if not value:
        raise ValueError("must not be empty")
    return value


def parse_host(value: str) -> str:
    """A host name or an IP address, the brackets of IPv6 off. Raises ValueError."""
    host = value[1:-1] if value.startswith("[") and value.endswith("]") else value
    if len(host) > HOST_LENGTH_MAX or not (_HOST.fullmatch(host) or _IPV6.fullmatch(host)):
        raise ValueError("must be a host name or an IP address")
    return host


def parse_port(value: str, minimum: int = 1) -> int:
    """A port number up to 65535. Raises ValueError."""
    if re.fullmatch(r"\d{1,5}", value) is None:
        raise ValueError("must end in a port number")
    return _within(int(value), minimum, 65535, lambda port: f"port {port}")


def parse_host_port(value: str, minimum_port: int = 1) -> HostPort:
    """host:port, an IPv6 address in brackets; the host is empty for none and for `*`. Raises ValueError."""
    host, colon, port = value.rpartition(":")
    if not colon or (":" in host and not host.startswith("[")):
        raise ValueError("must be host:port, an IPv6 address in brackets")
    return HostPort("" if host in ("", "*") else parse_host(host), parse_port(port, minimum_port))


def _parse_host_ports(value: str) -> tuple[HostPort, ...]:
    # `PLAINTEXT://host:port` is what Kafka's own advertised.listeners hold and people paste; Kafka's clients take it.
    addresses = tuple(
        parse_host_port(re.sub(r"^\w+://", "", item.strip())) for item in value.split(",") if item.strip()
    )
    if not addresses or not all(address.host for address in addresses):
        raise ValueError("must be host:port, separated by commas")
    return addresses


def _parse_identification(value: str) -> bool:
    if value.lower() not in ("https", "none", ""):
        raise ValueError("must be https, or none (or empty) to check no host name")
    return value.lower() == "https"


BOOLEAN: Final = Kind("`true` or `false`", _parse_boolean)
TEXT: Final = Kind("text", _parse_text)
PATH: Final = Kind("path", lambda value: Path(_parse_text(value)))
HOST_PORTS: Final = Kind("host:port, …", _parse_host_ports)
IDENTIFICATION: Final = Kind("`https` or `none`", _parse_identification)
