"""An expression of Arrow as a tree, read from the Substrait that Arrow itself makes of it; never from its text.

Only the messages and fields that a tree has a form for are declared here; all else becomes `Other`, which bounds
nothing. Spec: https://substrait.io/serialization/binary_serialization.
"""

import datetime
from functools import cache
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from table.history.predicate import MIRRORED, AllOf, AnyOf, Comparison, IsNull, Not, OneOf, Other, Path, Predicate

_COMPARISONS: Final = {"equal": "=", "not_equal": "!=", "lt": "<", "lte": "<=", "gt": ">", "gte": ">="}
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_INT64: Final = 7
"""Number of the type in Substrait's oneof of types."""

_MESSAGES: Final = {
    "Extended": "Declaration extensions *2; Reference referred_expr *3",
    "Declaration": "Function extension_function 3",
    "Function": "uint32 function_anchor 2; string name 3",
    "Reference": "Expression expression 1",
    "Expression": (
        "Literal literal 1; Selection selection 2; Scalar scalar_function 3; IfThen if_then 6; List singular_or_list 8;"
        "Cast cast 11"
    ),
    "Literal": (
        "bool boolean 1; int32 i8 2; int32 i16 3; int32 i32 5; int64 i64 7; double fp64 11; string string 12;"
        "bytes binary 13; int64 timestamp_tz 27"
    ),
    "Selection": "Segment direct_reference 1",
    "Segment": "Struct struct_field 2",
    "Struct": "int32 field 1; Segment child 2",
    "Scalar": "uint32 function_reference 1; Argument arguments *4",
    "Argument": "Expression value 3",
    "IfThen": "Clause ifs *1; Expression else 2",
    "Clause": "Expression if 1; Expression then 2",
    "List": "Expression value 1; Expression options *2",
    "Cast": "Type type 1; Expression input 2",
    "Type": "Nothing i64 7",
    "Nothing": "",
}


def predicate_of(expression: pc.Expression, schema: pa.Schema) -> Predicate:
    """The expression, for rows of this schema. Raises whatever Arrow does if it does not fit them."""
    try:
        encoded = bytes(expression.to_substrait(schema, allow_arrow_extensions=True))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        # Substrait has no form for a part of it; Arrow says later whether it fits the rows.
        return Other(str(expression))
    extended = _message_class("Extended").FromString(encoded)
    functions = {each.extension_function.function_anchor: each.extension_function.name for each in extended.extensions}
    return _Reader(functions, schema).predicate(extended.referred_expr[0].expression)


class _Reader:
    def __init__(self, functions: dict[int, str], schema: pa.Schema) -> None:
        self._functions, self._schema = functions, schema

    def predicate(self, node: Any) -> Predicate:
        if node.HasField("scalar_function"):
            return self._function(node.scalar_function)
        if node.HasField("singular_or_list"):
            return self._one_of(node.singular_or_list)
        if node.HasField("if_then"):
            return self._if_then(node.if_then)
        if node.HasField("literal") and node.literal.HasField("boolean"):
            return AllOf(()) if node.literal.boolean else AnyOf((Not(AllOf(())),))
        return Other("a condition that is not known here")

    def _function(self, node: Any) -> Predicate:
        name, arguments = self._functions.get(node.function_reference, ""), [each.value for each in node.arguments]
        if name in ("and", "or"):
            parts = tuple(map(self.predicate, arguments))
            return AllOf(parts) if name == "and" else AnyOf(parts)
        if name == "not":
            return Not(self.predicate(arguments[0]))
        columns = [self._column(each) for each in arguments]
        if name in _COMPARISONS and len(arguments) == 2:
            for column, other, operator in (
                (columns[0], arguments[1], _COMPARISONS[name]),
                (columns[1], arguments[0], MIRRORED[_COMPARISONS[name]]),
            ):
                value = _value(other)
                if column is not None and value is not None:
                    return Comparison(column, operator, value)
        if name in ("is_null", "is_not_null", "is_valid") and columns and columns[0] is not None:
            return IsNull(columns[0]) if name == "is_null" else Not(IsNull(columns[0]))
        named = ", ".join(".".join(column) for column in columns if column is not None)
        return Other(f"{name or 'a function'}({named})")

    def _one_of(self, node: Any) -> Predicate:
        column, values = self._column(node.value), [_value(each) for each in node.options]
        if column is None or any(value is None for value in values):
            return Other(f"a list for {'.'.join(column or ('an expression',))}")
        return OneOf(column, tuple(values))

    def _if_then(self, node: Any) -> Predicate:
        """`CASE WHEN a THEN b ELSE null END`, as DuckDB writes IN: it is true where both are."""
        other = getattr(node, "else")
        if len(node.ifs) != 1 or _value(other) is not None or not other.HasField("literal"):
            return Other("a CASE")
        clause = node.ifs[0]
        return AllOf((self.predicate(getattr(clause, "if")), self.predicate(clause.then)))

    def _column(self, node: Any) -> Path | None:
        if node.HasField("cast") and node.cast.type.HasField("i64"):
            node = node.cast.input  # of a narrower whole number, which compares alike
        if not node.HasField("selection") or not node.selection.direct_reference.HasField("struct_field"):
            return None
        path, fields, segment = [], self._schema, node.selection.direct_reference
        while segment.HasField("struct_field"):
            field = fields.field(segment.struct_field.field)
            path.append(field.name)
            fields, segment = field.type, segment.struct_field.child
        return tuple(path)


def _value(node: Any) -> Any:
    """A constant; None: it is none that is known here, or null."""
    kind = node.literal.WhichOneof("kind") if node.HasField("literal") else None
    if kind is None:
        return None
    value = getattr(node.literal, kind)
    return _EPOCH + datetime.timedelta(microseconds=value) if kind == "timestamp_tz" else value


@cache
def _message_class(name: str) -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="tidegate/substrait.proto", package="tidegate", syntax="proto3")
    for message_name, declared in _MESSAGES.items():
        message = file.message_type.add(name=message_name)
        for written in filter(None, map(str.strip, declared.split(";"))):
            kind, field_name, number = written.split()
            _declare(message, kind, field_name, number)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"tidegate.{name}"))


def _declare(message: descriptor_pb2.DescriptorProto, kind: str, name: str, number: str) -> None:
    types = descriptor_pb2.FieldDescriptorProto
    field = message.field.add(name=name, number=int(number.removeprefix("*")), label=types.LABEL_OPTIONAL)
    if number.startswith("*"):
        field.label = types.LABEL_REPEATED
    if kind in _MESSAGES:
        field.type, field.type_name = types.TYPE_MESSAGE, f".tidegate.{kind}"
    else:
        field.type = getattr(types, f"TYPE_{kind.upper()}")
    if message.name == "Literal":
        # In a oneof even a number that is nought is known to be there.
        if not message.oneof_decl:
            message.oneof_decl.add(name="kind")
        field.oneof_index = 0
