"""A key of the configuration is written once: as the field that holds its value.

    send_stall_ms: int = key(
        "expert.proxy.send.stall.ms", integer(100, 3_600_000), "A client that …", default="30000", reload=Reload.AT_ONCE
    )

A dataclass with such fields is a group of keys, and a `KeyTable` is a row of groups. Everything else follows: what a
file may hold and how it is parsed (`storage.config.sources`), the environment's names, masking, `tidegate check`'s
table, what a reload may change, and docs/configuration.md. mypy holds a field's type to that of the key's kind.
"""

import difflib
from dataclasses import MISSING, dataclass, field, fields
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from storage.config.value_kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from _typeshed import DataclassInstance


T = TypeVar("T")

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
