"""Avro's schemas as Arrow types, and values: as fastavro reads them one at a time, and what is refused."""

import io
import json
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from table.values.avro import AvroDecoder, AvroSchema
from table.values.conversion import SchemaError
from tests.support.for_each import for_each
from tests.support.value_schemas import ORDER, ORDER_V2, order

HEADER = b"\0\0\0\0\1"


def encoded(schema: Any, value: object) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return HEADER + out.getvalue()


def of(schema: object) -> AvroSchema:
    return AvroSchema(json.dumps(schema))


def record(*fields: tuple[str, Any], name: str = "R") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": name, "type": kind} for name, kind in fields]}


def decoded(schema: object, values: list[bytes], writer: object = None) -> tuple[list[Any], dict[int, str]]:
    array, reasons = AvroDecoder(of(schema)).decode(
        pa.array(values, pa.binary()), None if writer is None else of(writer)
    )
    return array.to_pylist(), reasons


def test_values_are_those_that_fastavro_reads_one_at_a_time() -> None:
    """Given orders with every type, when they are decoded by their own schema and by a newer one, then each field as
    fastavro alone reads it, but for the union of several types."""
    values = [encoded(dict(ORDER), order(number)) for number in range(40)]
    for reader in (ORDER, ORDER_V2):
        found, reasons = decoded(reader, values, ORDER)
        assert reasons == {}
        for value, row in zip(values, found, strict=True):
            wanted: Any = fastavro.schemaless_reader(io.BytesIO(value[5:]), dict(ORDER), dict(reader))
            wanted.pop("either")
            row.pop("either")
            assert {**row, "stock": dict(row["stock"])} == wanted


def test_a_union_of_several_types_is_a_struct_of_members() -> None:
    inner = record(("x", "int"), name="Inner")
    other = record(("y", "int"), name="Other")
    union = ["null", "int", "long", "float", "double", "string", "bytes", "boolean", inner, other]
    values = [1, 2**40, 0.5, "s", b"b", True, ("Inner", {"x": 1}), ("Other", {"y": 2}), None]
    schema = record(("u", union))
    found, reasons = decoded(schema, [encoded(schema, {"u": value}) for value in values])
    assert reasons == {}
    expected = {0: 1, 1: 2**40, 3: 0.5, 4: "s", 5: b"b", 6: True, 7: {"x": 1}, 8: {"y": 2}}
    empty = dict.fromkeys(f"member{place}" for place in range(9))
    members = [None if row["u"] is None else row["u"] for row in found]
    assert members == [*({**empty, f"member{place}": value} for place, value in expected.items()), None]


@for_each(
    "schema, expected",
    [
        ("long", pa.int64()),
        ('"string"', pa.string()),
        ({"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 4}, pa.decimal128(38, 4)),
        ({"type": "bytes", "logicalType": "decimal", "precision": 39}, pa.binary()),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 5}, pa.binary()),
        ({"type": "string", "logicalType": "uuid"}, pa.string()),
        ({"type": "fixed", "name": "F", "size": 16, "logicalType": "uuid"}, pa.string()),
        ({"type": "fixed", "name": "F", "size": 3}, pa.binary()),
        ({"type": "int", "logicalType": "time-millis"}, pa.int32()),
        ({"type": "long", "logicalType": "timestamp-nanos"}, pa.int64()),
        ({"type": "long", "logicalType": "local-timestamp-micros"}, pa.timestamp("us")),
        ({"type": {"type": "array", "items": "int"}}, pa.list_(pa.int32())),
        (["null", "int"], pa.int32()),
        (["null"], pa.null()),
    ],
)
def test_types(schema: object, expected: pa.DataType) -> None:
    text = schema if isinstance(schema, str) else json.dumps(schema)
    assert AvroSchema(text).type == expected


def test_references_are_put_in_where_they_are_first_used() -> None:
    address = {**record(("street", "string"), name="Address"), "namespace": "shop"}
    both = {**record(("a", "shop.Address"), ("b", ["null", "Address"]), name="Order"), "namespace": "shop"}
    schema = AvroSchema(json.dumps(both), [("shop.Address", json.dumps(address))])
    assert schema.type.field("b").type == pa.struct([("street", pa.string())])
    array, reasons = AvroDecoder(schema).decode(pa.array([HEADER + b"\2x\2\2y"]), None)
    assert (array.to_pylist(), reasons) == ([{"a": {"street": "x"}, "b": {"street": "y"}}], {})
    with pytest.raises(SchemaError, match=r"names the type shop\.Address"):
        AvroSchema(json.dumps(both))


def test_a_writer_with_other_logical_types_means_the_same_moments() -> None:
    """Given plain numbers, milliseconds or a smaller scale, when the reader's schema knows better, then its values."""
    millis, micros = ({"type": "long", "logicalType": f"timestamp-{unit}"} for unit in ("millis", "micros"))
    reader = record(("t", micros), ("d", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}))
    plain = record(("t", "long"), ("d", "bytes"))
    (row,), _ = decoded(reader, [encoded(plain, {"t": 5, "d": b"\x01\x00"})], plain)
    assert (row["t"].microsecond, row["d"]) == (5, Decimal("2.56"))
    coarse = record(("t", millis), ("d", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 1}))
    (row,), _ = decoded(reader, [encoded(coarse, {"t": 5, "d": Decimal("2.5")})], coarse)
    assert (row["t"].microsecond, row["d"]) == (5000, Decimal("2.50"))


def test_a_schema_inside_itself_is_json_and_cannot_end_the_process() -> None:
    """Given a list a million deep, which took fastavro's compiled reader and the process down, then it is a reason."""
    linked = record(("v", "int"), ("next", ["null", "Link"]), name="Link")
    assert of(linked).type == pa.struct([("v", pa.int32()), ("next", pa.string())])
    values = [HEADER + b"\2\2" * deep + b"\2\0" for deep in (0, 2, 1_000_000)]
    found, reasons = decoded(linked, values)
    assert found[1] == {"v": 1, "next": '{"v": 1, "next": {"v": 1, "next": null}}'}
    assert found[2] is None
    assert list(reasons) == [2]
    assert "RecursionError" in reasons[2]


def test_one_bad_value_leaves_the_others() -> None:
    schema = record(("t", {"type": "long", "logicalType": "timestamp-millis"}), ("n", "int"))
    good = encoded(schema, {"t": 0, "n": 1})
    year_300000 = HEADER + encoded("long", 2**53)[5:] + b"\2"
    found, reasons = decoded(schema, [good, good[:-1], good + b"x", year_300000, good])
    assert [row is not None for row in found] == [True, False, False, False, True]
    assert sorted(reasons) == [1, 2, 3]
    assert "1 bytes are left over" in reasons[2]


@for_each(
    "schema, said",
    [
        ("{", "it is no JSON"),
        (json.dumps({"type": "array", "items": "null"}), "items take no bytes"),
        (json.dumps({"type": "array", "items": record(("n", "null"))}), "items take no bytes"),
        (json.dumps(record(("a", "Missing"))), "names the type Missing"),
        (json.dumps({"type": "record", "fields": []}), "a record without a name"),
        (json.dumps({"type": "enum", "name": "E"}), "is no Avro schema"),
        ("[" * 80 + '"int"' + "]" * 80, "more than 64 levels"),
        ("[" * 100_000, "it is no JSON"),
        (json.dumps([1]), "is no Avro schema"),
    ],
)
def test_schemas_that_cannot_be_columns_are_refused(schema: str, said: str) -> None:
    with pytest.raises(SchemaError, match=said):
        AvroSchema(schema)
