"""The kinds of value that a key may have: each a parser from text, and the words that the reference shows for it.

- A parser raises ValueError with the end of a sentence ("must be …", "at most 16 MiB"). Its caller puts key and value
  before that, so a parser never names either.
- A size is plain bytes (`1048576`) or a number with a binary unit (`64 KiB`, `1.5 GiB`). Decimal and one-letter units
  are refused: `1G` means a different number to different programs, and a budget must not.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from pathlib import Path
from typing import Final, Generic, TypeVar

from storage.config.model import HostPort
from storage.host_names import parse_host

T = TypeVar("T")

E = TypeVar("E", bound=StrEnum)

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB
TIB: Final = 1024 * GIB

UNITS: Final = {"": 1, "B": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": TIB}

_SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,6})?)\s*([A-Za-z]*)")


@dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    """A type of value: the reference's words for it, and its parser (raises ValueError)."""

    words: str
    parse: Callable[[str], T]
    may_be_unset: bool = False
    """Whether a key of this kind is None when nobody gives it a value."""
    is_file: bool = False
    """Whether it names a file that is read with the configuration, and watched."""


def optional(kind: Kind[T]) -> Kind[T | None]:
    """The same kind of value, or None when nobody gives one."""
    return Kind(kind.words, kind.parse, may_be_unset=True, is_file=kind.is_file)


def integer(minimum: int, maximum: int) -> Kind[int]:
    """A whole number, both limits included."""

    def parse(text: str) -> int:
        if re.fullmatch(r"[+-]?\d{1,19}", text) is None:
            raise ValueError("must be a whole number")
        return _within(int(text), minimum, maximum, str)

    return Kind(f"integer, {minimum} to {maximum}", parse)


def size(minimum_bytes: int, maximum_bytes: int) -> Kind[int]:
    """A number of bytes, both limits included."""

    def parse(text: str) -> int:
        return _within(parse_size(text), minimum_bytes, maximum_bytes, format_size)

    return Kind(f"size, {format_size(minimum_bytes)} to {format_size(maximum_bytes)}", parse)


def parse_size(text: str) -> int:
    """The number of bytes that a text means.

    Raises ValueError for anything but digits with an optional binary unit, and for a fraction of a byte.
    """
    match = _SIZE.fullmatch(text)
    unit = None if match is None else next((u for u in UNITS if u.lower() == match[2].lower()), None)
    if match is None or unit is None:
        raise ValueError("must be bytes or a number with B, KiB, MiB, GiB or TiB")
    size_bytes = Fraction(match[1]) * UNITS[unit]
    if size_bytes.denominator != 1:
        raise ValueError("must be a whole number of bytes")
    return int(size_bytes)


def format_size(size_bytes: int) -> str:
    """The shortest exact text for a size: the largest unit that divides it, or else plain bytes."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size_bytes >= UNITS[unit] and size_bytes % UNITS[unit] == 0:
            return f"{size_bytes // UNITS[unit]} {unit}"
    return str(size_bytes)


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
FILE: Final = Kind("path", PATH.parse, is_file=True)
HOST_PORTS: Final = Kind("host:port, …", _parse_host_ports)
IDENTIFICATION: Final = Kind("`https` or `none`", _parse_identification)
