"""Filters that Spark offers to a source (from 4.1 on), as bounds of what is planned and read. Pure.

Taken: comparisons of `offset`, `partition`, `topic` and `timestamp` with a constant. A row that they take away is
never made, and what holds none of the others is never fetched: partitions are not planned, offsets cut the ranges, an
old segment is left out by its newest timestamp. A list of offsets or times is read from its first to its last, and
Spark has the list as well. Everything else is Spark's, also comparisons with null or of a type that the
column has not.

A filter is known by its class name: pyspark 4.0 has none of these classes. Its `attribute` is the path of a column,
its `value` the constant (https://spark.apache.org/docs/latest/api/python/ → pyspark.sql.datasource).
"""

import datetime
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from table.planning.option_values import to_milliseconds
from table.planning.partition_view import WantedOffsets
from table.planning.request import SourceOptions
from table.schema import NEVER_NULL

_COMPARISONS = {
    "EqualTo": "=",
    "EqualNullSafe": "=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
}
_NEVER_NULL = frozenset(name.lower() for name in NEVER_NULL)
"""Spark asks that of every column that it compares."""
_Value = TypeVar("_Value", int, str)


@dataclass(frozen=True, slots=True, kw_only=True)
class PushedFilters:
    """What all the filters together leave. Offsets, partitions and times (milliseconds) are inclusive; None: no bound.

    If the end is before the beginning, nothing is left.
    """

    offset_min: int | None = None
    offset_max: int | None = None
    partition_min: int | None = None
    partition_max: int | None = None
    timestamp_min_ms: int | None = None
    timestamp_max_ms: int | None = None
    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None

    def within(self, options: SourceOptions) -> SourceOptions:
        """The options with these times, where they are the narrower ones."""
        return replace(
            options,
            timestamp_min_ms=_larger(options.timestamp_min_ms, self.timestamp_min_ms),
            timestamp_max_ms=_smaller(options.timestamp_max_ms, self.timestamp_max_ms),
        )

    def narrowed(self, wanted: Iterable[WantedOffsets]) -> tuple[WantedOffsets, ...]:
        """Return what is left of a read, before the aborted transactions are looked up."""
        narrowed = (self._narrow(want) for want in wanted if self._has(*want.view.key))
        return tuple(want for want in narrowed if want.first_offset < want.end_offset)

    def _has(self, topic: str, partition: int) -> bool:
        return (
            (self.topics is None or topic in self.topics)
            and (self.partitions is None or partition in self.partitions)
            and (self.partition_min is None or partition >= self.partition_min)
            and (self.partition_max is None or partition <= self.partition_max)
        )

    def _narrow(self, want: WantedOffsets) -> WantedOffsets:
        first, end = want.first_offset, want.end_offset
        if self.offset_min is not None:
            first = max(first, self.offset_min)
        if self.offset_max is not None:
            end = min(end, self.offset_max + 1)
        end = max(first, end)
        tier_end = max(first, min(want.tier_end_offset, end))
        return replace(want, first_offset=first, tier_end_offset=tier_end, end_offset=end)


def push_filters(filters: Sequence[Any]) -> tuple[PushedFilters, list[Any]]:
    """Return what the filters that can be taken leave, and those that are Spark's. All of them hold together."""
    pushed, others = PushedFilters(), []
    for offered in filters:
        path: Sequence[str] = getattr(offered, "attribute", ())
        name, column = type(offered).__name__, path[0].lower() if len(path) == 1 else ""
        if name == "IsNotNull" and column in _NEVER_NULL:
            continue
        taken = None
        if name == "In" or name in _COMPARISONS:
            values = tuple(offered.value) if name == "In" else (offered.value,)
            taken = _take(pushed, column, _COMPARISONS.get(name, "="), values)
        is_hull = name == "In" and column in ("offset", "timestamp")
        if taken is None or is_hull:
            others.append(offered)
        pushed = taken or pushed
    return pushed, others


def _take(pushed: PushedFilters, column: str, operator: str, values: tuple[Any, ...]) -> PushedFilters | None:
    """With one more comparison, of which several values are taken as their hull; None: it cannot be taken."""
    if column == "topic" and operator == "=" and _all_are(str, values):
        return replace(pushed, topics=_common(pushed.topics, values))
    if column == "partition" and operator == "=" and _all_are(int, values):
        return replace(pushed, partitions=_common(pushed.partitions, values))
    if column in ("offset", "partition") and values and _all_are(int, values):
        return _bounded(pushed, column + "_{}", operator, min(values), max(values))
    is_time = column == "timestamp" and values and _all_are(datetime.datetime, values)
    if is_time and all(value.tzinfo is not None for value in values):
        first, last = to_milliseconds(min(values), rounds_up=True), to_milliseconds(max(values), rounds_up=False)
        return _bounded(pushed, "timestamp_{}_ms", operator, first, last)
    return None


def _bounded(pushed: PushedFilters, field: str, operator: str, ceiling: int, floor: int) -> PushedFilters:
    """With a comparison of a whole number: of `ceiling` from below, of `floor` from above. They are one number, or the
    two around a time that is finer; or the least and the largest of several."""
    low, high = field.format("min"), field.format("max")
    changes: dict[str, Any] = {}
    if operator in ("=", ">=", ">"):
        changes[low] = _larger(getattr(pushed, low), floor + 1 if operator == ">" else ceiling)
    if operator in ("=", "<=", "<"):
        changes[high] = _smaller(getattr(pushed, high), ceiling - 1 if operator == "<" else floor)
    return replace(pushed, **changes)


def _common(known: frozenset[_Value] | None, values: Iterable[_Value]) -> frozenset[_Value]:
    return frozenset(values) if known is None else known & frozenset(values)


def _all_are(kind: type, values: Iterable[object]) -> bool:
    """Nulls and booleans, which are numbers to Python, are not."""
    return all(isinstance(value, kind) and not isinstance(value, bool) for value in values)


def _larger(known: int | None, value: int | None) -> int | None:
    return max((each for each in (known, value) if each is not None), default=None)


def _smaller(known: int | None, value: int | None) -> int | None:
    return min((each for each in (known, value) if each is not None), default=None)
