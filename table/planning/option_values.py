"""The forms that values of options have: each reader gives a value, or adds one sentence that names the option.

After a problem a reader gives something of the right type, so that the options behind it are looked at too. Sizes are
bytes: a whole number, with k, m, g or t behind it for powers of 1024. Durations have a unit. Moments are milliseconds
since the epoch, or ISO-8601 with an offset from UTC (without one it would depend on the machine).
"""

import datetime
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

_INT64_MAX = 2**63 - 1
_INT32_MAX = 2**31 - 1

_SHOWN_CHARACTERS_MAX = 80
"""For a wrong value, in its sentence."""

_SIZE = re.compile(r"(\d{1,18})\s*([kmgt]?)b?", re.IGNORECASE | re.ASCII)
_INTEGER = re.compile(r"-?\d{1,19}", re.ASCII)
_DURATION = re.compile(r"(\d{1,15})\s*(ms|s|m|h|d)", re.IGNORECASE | re.ASCII)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_MILLISECONDS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MILLISECOND = datetime.timedelta(milliseconds=1)

_T = TypeVar("_T", int, None)


class OptionReader:
    """Reads values; `problems` grows. Keys of `values` are in lower case."""

    def __init__(self, values: Mapping[str, str], problems: list[str]) -> None:
        self._values = values
        self.problems = problems

    def has(self, name: str) -> bool:
        return name.lower() in self._values

    def text(self, name: str) -> str:
        """The value without space around it, or an empty text."""
        return self._values.get(name.lower(), "").strip()

    def choice(self, name: str, choices: Sequence[str], *, also: str | None = None) -> str:
        """One of the choices; the first is the default.

        Args:
            also: what else the option may be, for the sentence.
        """
        if not self.has(name):
            return choices[0]
        value = self.text(name).lower()
        if value in choices:
            return value
        self._problem(name, " or ".join(choices if also is None else [*choices, also]))
        return choices[0]

    def boolean(self, name: str, *, default: bool) -> bool:
        value = self.text(name).lower()
        if not self.has(name) or value in ("true", "false"):
            return value == "true" if self.has(name) else default
        self._problem(name, "true or false")
        return default

    def number(self, name: str, *, minimum: int = 0) -> int:
        """A whole number."""
        value = self.text(name)
        if _INTEGER.fullmatch(value) and minimum <= int(value) <= _INT64_MAX:
            return int(value)
        self._problem(name, f"a whole number from {minimum} on")
        return minimum

    def size(self, name: str, default: _T, *, minimum: int) -> int | _T:
        if not self.has(name):
            return default
        match = _SIZE.fullmatch(self.text(name))
        size = int(match[1]) * _UNITS[match[2].lower()] if match else -1
        if minimum <= size <= _INT64_MAX:
            return size
        self._problem(name, f"a size of at least {minimum} bytes, as 64m or 67108864")
        return default

    def duration(self, name: str) -> int | None:
        """Milliseconds."""
        if not self.has(name):
            return None
        match = _DURATION.fullmatch(self.text(name))
        if match is None:
            self._problem(name, "a duration, as 500ms, 30s, 10m, 2h or 1d")
            return None
        return int(match[1]) * _MILLISECONDS[match[2].lower()]

    def moment(self, name: str, *, rounds_up: bool) -> int | None:
        """Milliseconds, or ISO-8601."""
        if not self.has(name):
            return None
        text = self.text(name)
        if _INTEGER.fullmatch(text):
            return self.number(name)
        try:
            moment = datetime.datetime.fromisoformat(text)
        except ValueError:
            moment = None
        if moment is None or moment.tzinfo is None:
            self._problem(name, "milliseconds, or ISO-8601 with an offset, as 2026-01-31T12:00:00Z")
            return None
        return to_milliseconds(moment, rounds_up=rounds_up)

    def names(self, name: str) -> tuple[str, ...]:
        """A list with commas."""
        names = tuple(part.strip() for part in self.text(name).split(","))
        if not all(names):
            self._problem(name, "a list with commas and nothing empty in it")
        return names

    def partitions(self, name: str) -> dict[str, tuple[int, ...]]:
        """JSON of partition numbers by topic."""
        parsed = self._json(name)
        form = 'JSON as {"topic":[0,1]}'
        if not isinstance(parsed, dict) or not parsed:
            self._problem(name, form)
            return {}
        for numbers in parsed.values():
            if not isinstance(numbers, list) or not numbers or not all(_is_integer(n, 0, _INT32_MAX) for n in numbers):
                self._problem(name, form)
                return {}
        return {topic: tuple(sorted(set(numbers))) for topic, numbers in parsed.items()}

    def partition_numbers(self, name: str, *, minimum: int) -> dict[tuple[str, int], int]:
        """JSON of whole numbers by topic and partition."""
        parsed = self._json(name)
        numbers: dict[tuple[str, int], int] = {}
        topics = parsed.items() if isinstance(parsed, dict) else ()
        is_right = bool(topics)
        for topic, partitions in topics:
            is_right &= isinstance(partitions, dict) and bool(partitions)
            for partition, number in partitions.items() if isinstance(partitions, dict) else ():
                if re.fullmatch(r"\d{1,9}", partition, re.ASCII) and _is_integer(number, minimum, _INT64_MAX):
                    numbers[topic, int(partition)] = number
                else:
                    is_right = False
        if not is_right:
            self._problem(name, f'JSON as {{"topic":{{"0":23}}}} with whole numbers from {minimum} on')
        return numbers

    def _json(self, name: str) -> Any:
        try:
            return json.loads(self.text(name))
        except (ValueError, RecursionError):
            return None  # the caller's sentence says what it has to be

    def _problem(self, name: str, wanted: str) -> None:
        value = self.text(name)
        shown = value if len(value) <= _SHOWN_CHARACTERS_MAX else value[:_SHOWN_CHARACTERS_MAX] + "…"
        self.problems.append(f"{name} is {shown!r}: it has to be {wanted}")


def to_milliseconds(moment: datetime.datetime, *, rounds_up: bool) -> int:
    """Since the epoch; finer times are rounded to one side."""
    since = moment - _EPOCH
    return -(-since // _MILLISECOND) if rounds_up else since // _MILLISECOND


def _is_integer(value: object, minimum: int, maximum: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and minimum <= value <= maximum
