"""A key of the configuration is written once: as the field that holds its value.

    send_stall_ms: int = key(
        "expert.proxy.send.stall.ms", integer(100, 3_600_000), "A client that …", default="30000", reload=Reload.AT_ONCE
    )

A dataclass with such fields is a group of keys, and a `KeyTable` is a row of groups. Everything else follows: what a
file may hold and how it is parsed (`storage.config.sources`), the environment's names, masking, `tidegate check`'s
table, what a reload may change, and docs/configuration.md. mypy holds a field's type to that of the key's kind.
"""

import difflib
import re
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from enum import StrEnum
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from storage.config.model import HostPort
from storage.host_names import parse_host

if TYPE_CHECKING:
    from collections.abc import Mapping

    from _typeshed import DataclassInstance


T = TypeVar("T")

# The kinds of value that a key may have: each a parser from text, and the words that the reference shows for it.
#
# - A parser raises ValueError with the end of a sentence ("must be …", "at most 16 MiB"). Its caller puts key and value
#   before that, so a parser never names either.
# - A size is plain bytes (`1048576`) or a number with a binary unit (`64 KiB`, `1.5 GiB`). Decimal and one-letter units
#   are refused: `1G` means a different number to different programs, and a budget must not.


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


EXPERT: Final = "expert."
"""What keys begin with that nobody has a reason to set. Without it the key has its old name, which acts until
OLD_NAMES_END, with a warning."""
OLD_NAMES_END: Final = "0.3"

_METADATA: Final = "key"
_NEAR: Final = 0.6
_FIRST_WORD_NEAR: Final = 0.75  # one letter of four


class Reload(StrEnum):
    """When a running process follows a key that was changed; the words stand in docs/configuration.md."""

    RESTART = "restart"
    AT_ONCE = "at once"
    NEW_CONNECTIONS = "new connections"


@dataclass(frozen=True, slots=True)
class Key:
    """What is known of one key. Without `default` and `default_words` it is required, unless its kind is `optional`."""

    name: str
    kind: Kind[Any]
    doc: str
    default: str | None = None
    """Text as a file would hold it."""
    default_words: str | None = None
    """How the value follows from other keys (`Values.derive`)."""
    section: str | None = None
    """The section of the reference that begins with this key."""
    aliases: tuple[str, ...] = ()
    """Other spellings."""
    secret: bool = False
    """Shown masked, and left out of the group's repr."""
    of_broker: bool = False
    """Taken from the broker's file too."""
    reload: Reload = Reload.RESTART

    @property
    def spellings(self) -> tuple[str, ...]:
        """Every name that acts."""
        return (self.name, *self.aliases, *((self.old_name,) if self.old_name else ()))

    @property
    def old_name(self) -> str | None:
        return self.name.removeprefix(EXPERT) if self.name.startswith(EXPERT) else None

    @property
    def required(self) -> bool:
        return self.default is None and self.default_words is None and not self.kind.may_be_unset

    @property
    def default_value(self) -> Any:
        """The default as a value; None if the key has none of its own."""
        return None if self.default is None else self.kind.parse(self.default)


def key(name: str, kind: Kind[T], doc: str, **options: Any) -> T:
    """A dataclass's field for one key; `options` are those of `Key`.

    Raises ValueError, at import, if the default is beyond the kind's own limits.
    """
    made = Key(name, kind, doc, **options)
    has_default = made.default is not None or kind.may_be_unset
    default: Any = made.default_value if has_default else MISSING
    made_field: T = field(default=default, repr=not made.secret, metadata={_METADATA: made})
    return made_field


def keys_of(group: "type[DataclassInstance]") -> dict[str, Key]:
    """The keys of a group by the fields that hold their values, in the order of the fields."""
    return {field.name: field.metadata[_METADATA] for field in fields(group) if _METADATA in field.metadata}


class KeyTable:
    """What one program takes out of a properties file, and which keys of it are another program's.

    One file serves several programs. What is in a program's table is checked; what begins with one of `others`
    (`proxy.`) is passed over, since the program whose key it is checks it; anything else is a misspelling.
    """

    def __init__(self, *groups: "type[DataclassInstance]", others: tuple[str, ...] = ()) -> None:
        self.groups = groups
        self.keys: tuple[Key, ...] = tuple(key for group in groups for key in keys_of(group).values())
        """In the reference's order."""
        self.by_name: Mapping[str, Key] = MappingProxyType({name: key for key in self.keys for name in key.spellings})
        """By every spelling that a file may use."""
        self.others = others

    def is_anothers(self, name: str) -> bool:
        """Return whether a key is not of this table and not checked here."""
        return name not in self.by_name and name.startswith(self.others)

    def nearest(self, name: str, plugin_prefixes: tuple[str, ...]) -> str | None:
        """The nearest right key: of the table, of a plug-in or another program with its beginning spelt right."""
        parts = name.split(".")
        candidates = [name for name, key in self.by_name.items() if name != key.old_name]
        for prefix in plugin_prefixes:
            depth = prefix.count(".")
            if len(parts) > depth:
                candidates.append(prefix + ".".join(parts[depth:]))
        first_words = [prefix.removesuffix(".") for prefix in self.others]
        for word in difflib.get_close_matches(parts[0], first_words, n=1, cutoff=_FIRST_WORD_NEAR):
            candidates.append(".".join((word, *parts[1:])))
        return next(iter(difflib.get_close_matches(name, candidates, n=1, cutoff=_NEAR)), None)
