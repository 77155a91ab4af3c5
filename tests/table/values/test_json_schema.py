"""JSON Schemas as Arrow types, and values: what is refused, and what is kept as text."""

import json
from typing import Any

import pyarrow as pa
import pytest

from table.values.conversion import SchemaError
from table.values.json_schema import JsonDecoder, JsonSchema
from tests.support.for_each import for_each
from tests.support.value_schemas import ORDER_JSON

TEXT = pa.string()


def obj(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def decoded(schema: object, *values: object) -> tuple[list[Any], dict[int, str]]:
    found = [value if isinstance(value, bytes) else json.dumps(value).encode() for value in values]
    array, reasons = JsonDecoder(JsonSchema(json.dumps(schema))).decode(pa.array(found, pa.binary()), None, whole=True)
    return array.to_pylist(), reasons


@for_each(
    "schema, expected",
    [
        (obj(a={"type": "integer"}, b={"type": "number"}), pa.struct([("a", pa.int64()), ("b", pa.float64())])),
        (obj(a={"type": ["null", "boolean"]}), pa.struct([("a", pa.bool_())])),
        (obj(a={"oneOf": [{"type": "null"}, {"type": "string"}]}), pa.struct([("a", TEXT)])),
        (obj(a={"anyOf": [{"type": "integer"}, {"type": "string"}]}), pa.struct([("a", TEXT)])),
        (obj(a={"enum": ["x", "y", None]}, b={"const": 3}), pa.struct([("a", TEXT), ("b", pa.int64())])),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, pa.map_(TEXT, pa.int64())),
        ({"type": "object"}, TEXT),
        ({}, TEXT),
        (True, TEXT),
        ({"type": "array", "items": {"type": "integer"}}, pa.list_(pa.int64())),
        ({"type": "array"}, pa.list_(TEXT)),
        (
            {"allOf": [obj(a={"type": "integer"}), obj(b={"type": "string"})]},
            pa.struct([("a", pa.int64()), ("b", TEXT)]),
        ),
        ({"$ref": "#/$defs/x", "$defs": {"x": {"type": "integer"}}}, pa.int64()),
        ({"$ref": "#y", "$defs": {"x": {"$anchor": "y", "type": "integer"}}}, pa.int64()),
        (obj(again={"$ref": "#"}), pa.struct([("again", TEXT)])),
        (dict(ORDER_JSON)["properties"]["scores"], pa.map_(TEXT, pa.float64())),
    ],
)
def test_types(schema: object, expected: pa.DataType) -> None:
    assert JsonSchema(json.dumps(schema)).type == expected


def test_references_are_documents_of_the_registry() -> None:
    person = {"$id": "http://example.org/person.json", **obj(name={"type": "string"})}
    order = {"$id": "http://example.org/order.json", **obj(who={"$ref": "person.json"})}
    for name in ("person.json", "http://example.org/person.json", "other"):
        schema = JsonSchema(json.dumps(order), [(name, json.dumps(person))])
        assert schema.type == pa.struct([("who", pa.struct([("name", TEXT)]))])
    with pytest.raises(SchemaError, match=r"refers to person\.json, which is not there"):
        JsonSchema(json.dumps(order))


def test_values_are_of_their_types_or_dead() -> None:
    schema = obj(a={"type": "integer"}, b={"type": "string"}, c={}, d={"type": "array", "items": {"type": "number"}})
    good = {"a": 1.0, "b": None, "c": {"x": [1]}, "d": [1, None, 2.5], "extra": 1}
    found, reasons = decoded(schema, good, None, {}, {"a": 1.5}, {"b": 1}, [], {"a": True}, {"d": "ab"}, b"{", b"\xff")
    assert found[:3] == [{"a": 1, "b": None, "c": '{"x":[1]}', "d": [1.0, None, 2.5]}, None, dict.fromkeys("abcd")]
    assert sorted(reasons) == [3, 4, 5, 6, 7, 8, 9]
    assert reasons[4] == "b: integer in place of a string"


@for_each(
    "value",
    [
        b'{"a": 9223372036854775808}',
        b'{"a": NaN}',
        b'{"a": 1' + b"0" * 10_000 + b"}",
        b"[" * 1_000_000,
        b'{"b": "\\ud800"}',
    ],
)
def test_hostile_values_are_one_reason_each(value: bytes) -> None:
    found, reasons = decoded(obj(a={"type": "integer"}, b={"type": "string"}), {"a": 1}, value, {"a": 2})
    assert ([row and row["a"] for row in found], list(reasons)) == ([1, None, 2], [1])


@for_each(
    "schema, said",
    [
        ("{", "no JSON"),
        ('{"$ref": "#/nowhere"}', "refers to #/nowhere"),
        ('{"$ref": "#"}', "go in a circle"),
        ('{"type": "object", "properties": [1]}', "properties that are no object"),
    ],
)
def test_what_is_no_schema_is_refused(schema: str, said: str) -> None:
    with pytest.raises(SchemaError, match=said):
        JsonSchema(schema)
