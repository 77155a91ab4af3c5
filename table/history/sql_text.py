"""A condition as SQL's text, parsed by sqlglot: `offset >= 5 and key like 'a%' and "timestamp" < '2026-01-31'`.

Columns are compared with constants, by =, <>, <, <=, >, >=, BETWEEN, IN, LIKE, ILIKE and IS NULL; AND, OR and NOT join
them; `value.amount` is a field of a typed value. Anything else is an error that names it: nothing is left out.

A constant is taken as its column's type. Text becomes bytes (UTF-8) for a binary column, and for a timestamp a moment
of ISO-8601, which is UTC without an offset.
"""

import datetime
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from table.history.predicate import MIRRORED, AllOf, AnyOf, Comparison, IsNull, Like, Not, OneOf, Path, Predicate
from table.planning.request import OptionsError

if TYPE_CHECKING:
    from collections.abc import Callable
_OPERATORS: Final = {"EQ": "=", "NEQ": "!=", "LT": "<", "LTE": "<=", "GT": ">", "GTE": ">="}


def parse_condition(text: str, schema: pa.Schema) -> Predicate:
    """The condition, for rows of this schema.

    Raises:
        OptionsError: it is none, names no column, or has a part that is not understood.
    """
    try:
        import sqlglot
        from sqlglot import exp
    except ImportError:
        raise OptionsError(["where as a text needs sqlglot: pip install 'tidegate[sql]'"]) from None
    try:
        parsed = sqlglot.parse_one(text, into=exp.Condition, dialect="duckdb")
    except sqlglot.errors.SqlglotError:
        raise OptionsError([f"where is no condition of SQL: {text}"]) from None
    return _Reader(schema).condition(parsed)


class _Reader:
    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema

    def condition(self, node: Any) -> Predicate:
        kind = type(node).__name__
        readers: dict[str, Callable[[Any], Predicate]] = {
            "And": lambda node: AllOf((self.condition(node.left), self.condition(node.right))),
            "Or": lambda node: AnyOf((self.condition(node.left), self.condition(node.right))),
            "Not": lambda node: Not(self.condition(node.this)),
            "Paren": lambda node: self.condition(node.this),
            "Between": self._between,
            "In": self._one_of,
            "Is": self._is_null,
            "Like": self._like,
            "ILike": self._like,
        }
        read = readers.get(kind, self._comparison if kind in _OPERATORS else None)
        if read is None:
            raise _not_understood(node)
        return read(node)

    def _comparison(self, node: Any) -> Predicate:
        operator = _OPERATORS[type(node).__name__]
        left, right = node.left, node.right
        if type(left).__name__ not in ("Column", "Dot"):
            left, right, operator = right, left, MIRRORED[operator]
        column, kind = self._column(left)
        return Comparison(column, operator, _constant(right, kind))

    def _between(self, node: Any) -> Predicate:
        column, kind = self._column(node.this)
        low, high = (_constant(node.args[name], kind) for name in ("low", "high"))
        return AllOf((Comparison(column, ">=", low), Comparison(column, "<=", high)))

    def _one_of(self, node: Any) -> Predicate:
        column, kind = self._column(node.this)
        if not node.expressions:
            raise _not_understood(node)
        return OneOf(column, tuple(_constant(each, kind) for each in node.expressions))

    def _is_null(self, node: Any) -> Predicate:
        if type(node.expression).__name__ != "Null":
            raise _not_understood(node)
        return IsNull(self._column(node.this)[0])

    def _like(self, node: Any) -> Predicate:
        column, kind = self._column(node.this)
        pattern = node.expression
        is_text = pa.types.is_string(kind) or pa.types.is_binary(kind)
        if not is_text or type(pattern).__name__ != "Literal" or not pattern.is_string:
            raise _not_understood(node)
        return Like(column, pattern.this, ignores_case=type(node).__name__ == "ILike")

    def _column(self, node: Any) -> tuple[Path, pa.DataType]:
        path = tuple(part.name for part in getattr(node, "parts", ()))
        if not path:
            raise _not_understood(node)
        at = self._schema.get_field_index(path[0])
        if at < 0:
            raise OptionsError([f"where names {path[0]!r}, which is none of {', '.join(self._schema.names)}"])
        kind = self._schema.field(at).type
        for name in path[1:]:
            at = kind.get_field_index(name) if pa.types.is_struct(kind) else -1
            if at < 0:
                raise OptionsError([f"where names {'.'.join(path)}, and {path[0]} has no such field"])
            kind = kind.field(at).type
        return path, kind


def _constant(node: Any, kind: pa.DataType) -> Any:
    name, sign = type(node).__name__, 1
    if name == "Neg":
        node, sign = node.this, -1
        name = type(node).__name__
    if name == "Cast":
        node = node.this
        name = type(node).__name__
    if name == "Boolean":
        return bool(node.this)
    if name != "Literal":
        raise _not_understood(node)
    try:
        return _typed(node.this, kind) if node.is_string else sign * _number(node.this, kind)
    except ValueError:
        raise OptionsError([f"where compares {node.sql()} with a column of type {kind}"]) from None


def _typed(text: str, kind: pa.DataType) -> Any:
    if pa.types.is_timestamp(kind):
        moment = datetime.datetime.fromisoformat(text)
        return moment if moment.tzinfo is not None else moment.replace(tzinfo=datetime.UTC)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return text.encode()
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return text
    if pa.types.is_integer(kind):
        return int(text)
    return pa.scalar(text).cast(kind).as_py()


def _number(text: str, kind: pa.DataType) -> int | float:
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
        raise ValueError(text)
    return float(text) if any(sign in text for sign in ".eE") else int(text)


def _not_understood(node: Any) -> OptionsError:
    return OptionsError(
        [f"where: {node.sql()} is not understood: it compares columns with constants; DuckDB takes any SQL over a scan"]
    )
