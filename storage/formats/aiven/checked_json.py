"""A JSON object whose members are checked as they are read; each error names the object in the store and the member.

Numbers that the format calls int32 are sizes and positions: integers from 0 to 2**31 - 1. `true` and `1.0` are none.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from storage.errors import CorruptObjectError

INT32_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class JsonObject:
    """`members` of the object at `path` (empty: the whole document) in the object `name` of the store."""

    name: str
    members: Mapping[str, Any]
    path: str = ""

    def has(self, member: str) -> bool:
        """Return whether the member is there, also as null."""
        return member in self.members

    def is_null(self, member: str) -> bool:
        """Return whether the member is there and null."""
        return self._required(member) is None

    def int32(self, member: str, *, minimum: int = 0) -> int:
        """A size or position."""
        value = self._required(member)
        if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= INT32_MAX:
            raise self.corrupt(member, f"is {_shown(value)}, not an integer of {minimum} to {INT32_MAX}")
        return value

    def boolean(self, member: str) -> bool:
        """`true` or `false`."""
        value = self._required(member)
        if not isinstance(value, bool):
            raise self.corrupt(member, f"is {_shown(value)}, not a boolean")
        return value

    def text(self, member: str) -> str:
        """A string."""
        value = self._required(member)
        if not isinstance(value, str):
            raise self.corrupt(member, f"is {_shown(value)}, not a string")
        return value

    def object(self, member: str) -> "JsonObject":
        """An object."""
        value = self._required(member)
        if not isinstance(value, dict):
            raise self.corrupt(member, f"is {_shown(value)}, not an object")
        return JsonObject(self.name, value, self._path(member))

    def corrupt(self, member: str, message: str) -> CorruptObjectError:
        """The error that says what is wrong with a member."""
        return CorruptObjectError(f"{self.name}: {self._path(member)} {message}")

    def _required(self, member: str) -> Any:
        if member not in self.members:
            raise self.corrupt(member, "is missing")
        return self.members[member]

    def _path(self, member: str) -> str:
        return f"{self.path}.{member}" if self.path else member


def parse_json_object(data: bytes, name: str) -> JsonObject:
    """The JSON object that `data`, the content of the object `name`, holds.

    Raises:
        CorruptObjectError: not JSON in UTF-8, nested too deeply, or no object.
    """
    try:
        document = json.loads(data.decode("utf-8"))
    # A document of brackets alone exhausts the parser's stack; it is no less corrupt for that.
    except (ValueError, RecursionError) as error:
        raise CorruptObjectError(f"{name}: not JSON: {error}") from error
    if not isinstance(document, dict):
        raise CorruptObjectError(f"{name}: {_shown(document)} is not a JSON object")
    return JsonObject(name, document)


def _shown(value: Any) -> str:
    """A value in a message: never a whole tree, whose text could be as long as the object."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "an array"
    text = repr(value[:60] if isinstance(value, str) else value)
    return text if len(text) <= 70 else f"{text[:70]}…"
