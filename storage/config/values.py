"""Typed values of the table's keys: parsed once, every problem noted, defaults for what is unset or wrong.

A wrong value is reported and its default goes on in its place, so that one start reports all problems. The Config
made from such values is thrown away.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from storage.config.key_table import KeyTable
from storage.config.kinds import Key
from storage.config.masking import masked
from storage.config.sources import Setting

T = TypeVar("T")


class Values:
    """The table's keys for one start. Problems and warnings are appended to the lists that it is given."""

    def __init__(
        self, table: KeyTable, settings: Mapping[str, Setting], problems: list[str], warnings: list[str]
    ) -> None:
        self._settings = settings
        self.problems = problems
        self.warnings = warnings
        self._given: dict[str, Any] = {}
        for key in table.all_keys():
            self._parse(key)

    def optional(self, key: Key[T]) -> T | None:
        """The value given or the default; None when there is neither."""
        if key.name in self._given:
            value: T = self._given[key.name]
            return value
        text = key.stand_in if key.default is None else key.default
        return None if text is None else key.kind.parse(text)

    def of(self, key: Key[T]) -> T:
        """The value of a key that always has one: a required key, or one with a default."""
        value = self.optional(key)
        assert value is not None, f"{key.name} has no default: a caller's bug"
        return value

    def is_set(self, key: Key[Any]) -> bool:
        """Whether someone gave this key, rightly or wrongly."""
        return key.name in self._settings

    def wrong(self, key: Key[Any], reason: str) -> None:
        """Note a problem with a key whose text was fine by itself."""
        setting = self._settings.get(key.name)
        self.problems.append(f"{key.name}: {reason}" if setting is None else _problem(key, setting, reason))

    def _parse(self, key: Key[Any]) -> None:
        setting = self._settings.get(key.name)
        if setting is None:
            if key.required:
                self.problems.append(f"{key.name} is required: {key.doc}")
            return
        if setting.text is None:
            return
        try:
            # A password may begin or end with a blank; nothing else here can.
            value = key.kind.parse(setting.text if key.secret else setting.text.strip())
        except ValueError as error:
            self.problems.append(_problem(key, setting, str(error)))
            return
        self._given[key.name] = setting.folder / value if isinstance(value, Path) else value


def _problem(key: Key[Any], setting: Setting, reason: str) -> str:
    return f"{setting.origin}: {key.name} = {masked(key.name, setting, key)}: {reason}"
