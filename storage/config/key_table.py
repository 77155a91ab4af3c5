"""A table of keys: what a program takes out of a properties file, and which keys of it are another program's.

One file serves several programs. What is in a program's table is checked; what begins with one of `others` is passed
over, since the program whose key it is checks it; anything else is a misspelling.
"""

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from storage.config.kinds import Key, KeyGroup

_NEAR: Final = 0.6
_FIRST_WORD_NEAR: Final = 0.75  # one letter of four


@dataclass(frozen=True, slots=True)
class KeyTable:
    """Groups of keys in the reference's order, and the beginnings (`proxy.`) of the keys that are passed over."""

    groups: tuple[KeyGroup, ...]
    others: tuple[str, ...] = ()
    by_name: Mapping[str, Key[Any]] = field(init=False, repr=False)
    """Every spelling that a file may use, aliases included."""

    def __post_init__(self) -> None:
        by_name = {name: key for key in self.all_keys() for name in (key.name, *key.aliases)}
        object.__setattr__(self, "by_name", MappingProxyType(by_name))

    def all_keys(self) -> Iterator[Key[Any]]:
        """Every key of the table, in the reference's order."""
        for group in self.groups:
            yield from group.keys

    def is_anothers(self, name: str) -> bool:
        """Whether a key is not of this table and not checked here."""
        return name not in self.by_name and name.startswith(self.others)

    def nearest(self, name: str, plugin_prefixes: tuple[str, ...]) -> str | None:
        """The nearest right key: of the table, of a plug-in or another program with its beginning spelt right."""
        parts = name.split(".")
        candidates = list(self.by_name)
        for prefix in plugin_prefixes:
            depth = prefix.count(".")
            if len(parts) > depth:
                candidates.append(prefix + ".".join(parts[depth:]))
        first_words = [prefix.removesuffix(".") for prefix in self.others]
        for word in difflib.get_close_matches(parts[0], first_words, n=1, cutoff=_FIRST_WORD_NEAR):
            candidates.append(".".join((word, *parts[1:])))
        return next(iter(difflib.get_close_matches(name, candidates, n=1, cutoff=_NEAR)), None)
