"""A scan as a lazy frame of Polars, which hands on the columns it needs, its filter and a limit.

A filter's tree is read from the JSON that Polars itself makes of an expression. What is not known there bounds nothing;
Polars looks at each row in any case, so that rows are right whatever was read of the filter.
"""

import datetime
import json
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import polars
import pyarrow as pa
from polars.io.plugins import register_io_source

from table.history.predicate import MIRRORED, AllOf, AnyOf, Comparison, IsNull, Not, OneOf, Other, Predicate

if TYPE_CHECKING:
    from table.history.scan import Scan

_OPERATORS: Final = {"Eq": "=", "NotEq": "!=", "Lt": "<", "LtEq": "<=", "Gt": ">", "GtEq": ">="}
_INTEGERS: Final = frozenset(f"{kind}{bits}" for kind in ("Int", "UInt") for bits in (8, 16, 32, 64))
_PER_SECOND: Final = {"Milliseconds": 1000, "Microseconds": 1_000_000}
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_UNKNOWN: Final = Other("an expression of Polars")


def lazy_frame(scan: "Scan") -> polars.LazyFrame:
    """The scan's rows. Each collection reads them as they are then."""
    schema = polars.DataFrame(scan.schema.empty_table()).schema

    def read(
        with_columns: list[str] | None, predicate: polars.Expr | None, n_rows: int | None, _batch_rows: int | None
    ) -> Iterator[polars.DataFrame]:
        wanted, columns = scan, scan.schema.names if with_columns is None else with_columns
        if n_rows is not None:
            # A limit goes before the filter: Polars hands no other one on.
            wanted = wanted.limited(n_rows)
        elif predicate is not None:
            wanted = wanted.bounded(predicate_of(predicate))
        filtered = [] if predicate is None else predicate.meta.root_names()
        for batch in wanted.with_columns([*dict.fromkeys((*columns, *filtered))]).batches():
            frame = polars.DataFrame(polars.from_arrow(batch))
            yield (frame if predicate is None else frame.filter(predicate)).select(columns)

    return register_io_source(read, schema=schema)


def predicate_of(expression: polars.Expr) -> Predicate:
    """Return what of it is known."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the form may change: what is not known bounds nothing
        try:
            return _predicate(json.loads(expression.meta.serialize(format="json")))
        except (polars.exceptions.PolarsError, ValueError):
            return Other("an expression of Polars")


def _predicate(node: Any) -> Predicate:
    match node:
        case {"BinaryExpr": {"left": left, "op": "And" | "LogicalAnd", "right": right}}:
            return AllOf((_predicate(left), _predicate(right)))
        case {"BinaryExpr": {"left": left, "op": "Or" | "LogicalOr", "right": right}}:
            return AnyOf((_predicate(left), _predicate(right)))
        case {"BinaryExpr": {"left": {"Column": column}, "op": operator, "right": right}} if operator in _OPERATORS:
            return _compared(column, _OPERATORS[operator], right)
        case {"BinaryExpr": {"left": left, "op": operator, "right": {"Column": column}}} if operator in _OPERATORS:
            return _compared(column, MIRRORED[_OPERATORS[operator]], left)
        case {"Function": {"input": [{"Column": column}, *values], "function": {"Boolean": function}}}:
            return _of_column(column, values, function)
        case {"Function": {"input": [part], "function": {"Boolean": "Not"}}}:
            return Not(_predicate(part))
        case _:
            return _UNKNOWN


def _of_column(column: str, values: list[Any], function: Any) -> Predicate:
    match function:
        case "IsNull":
            return IsNull((column,))
        case "IsNotNull":
            return Not(IsNull((column,)))
        case {"IsBetween": {"closed": "Both" | "Left" | "Right" | "None" as closed}} if len(values) == 2:
            low, high = (">=" if closed in ("Both", "Left") else ">"), ("<=" if closed in ("Both", "Right") else "<")
            return AllOf((_compared(column, low, values[0]), _compared(column, high, values[1])))
        case {"IsIn": {"nulls_equal": False}} if len(values) == 1:
            found = _list(values[0])
            return _UNKNOWN if found is None else OneOf((column,), found)
        case _:
            return _UNKNOWN


def _compared(column: str, operator: str, literal: Any) -> Predicate:
    value = _value(literal)
    return _UNKNOWN if value is None else Comparison((column,), operator, value)


def _value(node: Any) -> Any:
    """A constant; None: it is none that is known here, or null."""
    match node:
        case {"Literal": {"Dyn": {"Int": int(number)}}}:
            return number
        case {"Literal": {"Scalar": {"Datetime": [int(number), unit, {"inner": "UTC"}]}}} if unit in _PER_SECOND:
            return _EPOCH + datetime.timedelta(microseconds=number * 1_000_000 // _PER_SECOND[unit])
        case {"Literal": {"Scalar": {"String": str(text)}}}:
            return text
        case {"Literal": {"Scalar": dict(scalar)}} if len(scalar) == 1:
            kind, number = next(iter(scalar.items()))
            return number if kind in _INTEGERS and isinstance(number, int) else None
        case _:
            return None


def _list(node: Any) -> tuple[Any, ...] | None:
    """The constants of a list, which Polars writes as a stream of Arrow's."""
    match node:
        case {"Literal": {"Scalar": {"List": list(encoded)}}}:
            try:
                column = pa.ipc.open_stream(bytes(encoded)).read_all().column(0)
            except (pa.ArrowInvalid, ValueError):
                return None
            values = column.to_pylist()
            return None if any(value is None or isinstance(value, list) for value in values) else tuple(values)
        case _:
            return None
