"""Filters that Spark offers to a source (from 4.1 on), as bounds of what is planned and read. Pure.

Taken: comparisons of `offset`, `partition`, `topic` and `timestamp` with a constant. A row that they take away is
never made, and what holds none of the others is never fetched: partitions are not planned, offsets cut the ranges, an
old segment is left out by its newest timestamp. A list of offsets is read in ranges, one of times from its first to its
last, and Spark has these lists as well. Everything else is Spark's, also comparisons with null or of a type that the
column has not.

A filter is known by its class name: pyspark 4.0 has none of these classes. Its `attribute` is the path of a column,
its `value` the constant (https://spark.apache.org/docs/latest/api/python/ → pyspark.sql.datasource).
"""

import datetime
from collections.abc import Iterable, Sequence
from functools import reduce
from operator import or_
from typing import Any

from table.planning.bounds import Bounds, compared, compared_times
from table.planning.number_set import NumberSet
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


def push_filters(filters: Sequence[Any]) -> tuple[Bounds, list[Any]]:
    """Return what the filters that can be taken leave, and those that are Spark's. All of them hold together."""
    bounds, others = Bounds(), []
    for offered in filters:
        path: Sequence[str] = getattr(offered, "attribute", ())
        name, column = type(offered).__name__, path[0].lower() if len(path) == 1 else ""
        if name == "IsNotNull" and column in _NEVER_NULL:
            continue
        taken = None
        if name == "In" or name in _COMPARISONS:
            values = tuple(offered.value) if name == "In" else (offered.value,)
            taken = _bounds_of(column, _COMPARISONS.get(name, "="), values)
        # A set of offsets is read in ranges that join what is close together, and times from the first to the last.
        is_wider = name == "In" and column in ("offset", "timestamp")
        if taken is None or is_wider:
            others.append(offered)
        bounds = bounds if taken is None else bounds & taken
    return bounds, others


def _bounds_of(column: str, operator: str, values: tuple[Any, ...]) -> Bounds | None:
    """The bounds of a comparison; several values are a list of which one is equal. None: it cannot be taken."""
    if column == "topic" and operator == "=" and _all_are(str, values):
        return Bounds(topics=frozenset(values))
    if column in ("offset", "partition") and values and _all_are(int, values):
        numbers = compared(operator, *values) if len(values) == 1 else NumberSet.of(values)
        return Bounds(offsets=numbers) if column == "offset" else Bounds(partitions=numbers)
    is_time = column == "timestamp" and values and _all_are(datetime.datetime, values)
    if is_time and all(value.tzinfo is not None for value in values):
        found = [compared_times(operator, value) for value in values]
        return Bounds(timestamps_ms=reduce(or_, found))
    return None


def _all_are(kind: type, values: Iterable[object]) -> bool:
    """Nulls and booleans, which are numbers to Python, are not."""
    return all(isinstance(value, kind) and not isinstance(value, bool) for value in values)
