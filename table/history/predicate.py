"""A filter as a small tree: what it bounds, and as an expression of Arrow that is exact. Pure.

Rules:
1. Null semantics are SQL's: a comparison with null is null, and only rows for which the whole is true are kept.
2. `bounds_of` leaves out only what certainly has no such row. What the tree does not know (`Other`) bounds nothing.
3. A negation is moved down to the comparisons, where its bounds are known.
"""

import datetime
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_, or_
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa

from table.planning.bounds import Bounds, compared, compared_times
from table.planning.number_set import NumberSet

if TYPE_CHECKING:
    import pyarrow.compute as pc

Path: TypeAlias = tuple[str, ...]
"""A column's name, and the names of fields in it."""

EQUAL, NOT_EQUAL = "=", "!="
_INVERSE: Final = {"=": "!=", "!=": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
MIRRORED: Final = {"=": "=", "!=": "!=", "<": ">", ">": "<", "<=": ">=", ">=": "<="}


@dataclass(frozen=True, slots=True)
class Comparison:
    """`operator` is one of =, !=, <, <=, >, >=; the value is not null."""

    column: Path
    operator: str
    value: Any

    def __str__(self) -> str:
        return f"{_named(self.column)} {self.operator} {_shown(self.value)}"


@dataclass(frozen=True, slots=True)
class OneOf:
    """The column is equal to one of these, none of which is null."""

    column: Path
    values: tuple[Any, ...]

    def __str__(self) -> str:
        shown = ", ".join(map(_shown, self.values[:5]))
        return f"{_named(self.column)} IN ({shown}{', …' if len(self.values) > 5 else ''})"


@dataclass(frozen=True, slots=True)
class IsNull:
    """The column is null."""

    column: Path

    def __str__(self) -> str:
        return f"{_named(self.column)} IS NULL"


@dataclass(frozen=True, slots=True)
class Like:
    """SQL's pattern with % and _."""

    column: Path
    pattern: str
    ignores_case: bool = False

    def __str__(self) -> str:
        return f"{_named(self.column)} {'ILIKE' if self.ignores_case else 'LIKE'} {_shown(self.pattern)}"


@dataclass(frozen=True, slots=True)
class Other:
    """What the tree has no form for. It has no expression: the tree's maker has one for the whole."""

    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Not:
    """The part is false."""

    part: "Predicate"

    def __str__(self) -> str:
        return f"NOT ({self.part})"


@dataclass(frozen=True, slots=True)
class AllOf:
    """All parts are true; so it is without parts."""

    parts: "tuple[Predicate, ...]"

    def __str__(self) -> str:
        return " AND ".join(f"({part})" for part in self.parts) or "true"


@dataclass(frozen=True, slots=True)
class AnyOf:
    """At least one part is true."""

    parts: "tuple[Predicate, ...]"

    def __str__(self) -> str:
        return " OR ".join(f"({part})" for part in self.parts)


Predicate: TypeAlias = Comparison | OneOf | IsNull | Like | Other | Not | AllOf | AnyOf


def conjuncts(predicate: Predicate) -> Iterator[Predicate]:
    """The parts that all have to be true."""
    if isinstance(predicate, AllOf):
        for part in predicate.parts:
            yield from conjuncts(part)
    else:
        yield predicate


def columns_of(predicate: Predicate) -> Iterator[str]:
    """Names of the columns that it looks at; none of what an Other looks at."""
    match predicate:
        case AllOf(parts) | AnyOf(parts):
            for part in parts:
                yield from columns_of(part)
        case Not(part):
            yield from columns_of(part)
        case Other():
            return
        case Comparison() | OneOf() | IsNull() | Like():
            yield predicate.column[0]


def is_known(predicate: Predicate) -> bool:
    """Return whether there is no Other in it."""
    match predicate:
        case AllOf(parts) | AnyOf(parts):
            return all(map(is_known, parts))
        case Not(part):
            return is_known(part)
        case _:
            return not isinstance(predicate, Other)


def bounds_of(predicate: Predicate) -> Bounds:
    """Return what it leaves of a read."""
    match predicate:
        case AllOf(parts):
            return reduce(and_, map(bounds_of, parts), Bounds())
        case AnyOf(parts):
            return reduce(or_, map(bounds_of, parts)) if parts else Bounds()
        case Comparison((column,), operator, value):
            return _comparison_bounds(column, operator, value)
        case OneOf((column,), values) if values:
            return _list_bounds(column, values)
        case Not(OneOf((column,), values)) if column in ("offset", "partition") and _are_numbers(values):
            return _of_numbers(column, ~NumberSet.of(values))
        case Not(part):
            inverted = _inverted(part)
            return Bounds() if inverted is None else bounds_of(inverted)
        case _:
            return Bounds()


def expression_of(predicate: Predicate) -> "pc.Expression":
    """The same for Arrow. Raises ValueError for an Other."""
    import pyarrow.compute as pc  # a tenth of a second

    match predicate:
        case AllOf(parts):
            return reduce(and_, map(expression_of, parts)) if parts else pc.scalar(True)
        case AnyOf(parts):
            return reduce(or_, map(expression_of, parts))
        case Not(part):
            return ~expression_of(part)
        case Comparison(column, operator, value):
            return _compared(pc.field(*column), operator, value)
        case OneOf(column, values):
            # Arrow's own says false where SQL says null.
            field = pc.field(*column)
            return pc.if_else(field.is_valid(), field.isin(pa.array(values)), pa.scalar(None, pa.bool_()))
        case IsNull(column):
            return pc.field(*column).is_null()
        case Like(column, pattern, ignores_case):
            return pc.match_like(pc.field(*column), pattern, ignore_case=ignores_case)
        case Other(text):
            raise ValueError(f"no expression for {text}")


def _compared(field: "pc.Expression", operator: str, value: Any) -> "pc.Expression":
    match operator:
        case "=":
            return field == value
        case "!=":
            return field != value
        case "<":
            return field < value
        case "<=":
            return field <= value
        case ">":
            return field > value
        case _:
            return field >= value


def _comparison_bounds(column: str, operator: str, value: Any) -> Bounds:
    if column == "topic" and operator == EQUAL and isinstance(value, str):
        return Bounds(topics=frozenset({value}))
    if column in ("offset", "partition") and _are_numbers((value,)):
        numbers = ~compared(EQUAL, value) if operator == NOT_EQUAL else compared(operator, value)
        return _of_numbers(column, numbers)
    is_moment = isinstance(value, datetime.datetime) and value.tzinfo is not None
    if column == "timestamp" and operator != NOT_EQUAL and is_moment:
        return Bounds(timestamps_ms=compared_times(operator, value))
    return Bounds()


def _of_numbers(column: str, numbers: NumberSet) -> Bounds:
    return Bounds(offsets=numbers) if column == "offset" else Bounds(partitions=numbers)


def _list_bounds(column: str, values: tuple[Any, ...]) -> Bounds:
    if column in ("offset", "partition") and _are_numbers(values):
        return _of_numbers(column, NumberSet.of(values))
    if column == "topic" and all(isinstance(value, str) for value in values):
        return Bounds(topics=frozenset(values))
    return reduce(or_, (_comparison_bounds(column, EQUAL, value) for value in values))


def _inverted(predicate: Predicate) -> Predicate | None:
    match predicate:
        case Not(part):
            return part
        case AllOf(parts):
            return AnyOf(tuple(Not(part) for part in parts))
        case AnyOf(parts):
            return AllOf(tuple(Not(part) for part in parts))
        case Comparison(column, operator, value):
            return Comparison(column, _INVERSE[operator], value)
        case _:
            return None


def _are_numbers(values: Sequence[Any]) -> bool:
    return all(isinstance(value, int) and not isinstance(value, bool) for value in values)


def _named(column: Path) -> str:
    return ".".join(column)


def _shown(value: Any) -> str:
    if isinstance(value, str | bytes):
        text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
        return f"'{text if len(text) <= 40 else text[:39] + '…'}'"
    return f"'{value.isoformat()}'" if isinstance(value, datetime.datetime) else str(value)
