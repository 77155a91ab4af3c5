"""Protobuf's messages as Arrow types and columns: as the messages themselves say, and what is refused."""

import base64
from collections.abc import Callable

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2

from table.values.conversion import SchemaError
from table.values.protobuf import ProtobufDecoder, ProtobufSchema, compiled, descriptors_of
from tests.support.for_each import for_each
from tests.support.value_schemas import ORDER_PROTO, order_messages

HEADER = b"\0\0\0\0\1"
FIRST = HEADER + b"\0"
ORDER_AT = HEADER + b"\2\2"
"""The second message of ORDER_PROTO."""
TYPES = """
syntax = "proto2"; package kinds;
import "google/protobuf/duration.proto"; import "google/protobuf/struct.proto"; import "google/protobuf/any.proto";
message Kinds {
  optional int32 a = 1 [default = 7]; optional sint64 b = 2; optional fixed32 c = 3; optional fixed64 d = 4;
  optional float e = 5; optional group Inner = 6 { optional bool f = 7; }
  optional google.protobuf.Duration g = 8; optional google.protobuf.Struct h = 9; optional google.protobuf.Any i = 10;
  optional Kinds again = 11; map<int32, bytes> j = 12;
}
"""


def schema_of(text: str, **imports: str) -> ProtobufSchema:
    return ProtobufSchema(compiled({"test.proto": text, **imports}, "test.proto"))


def test_messages_become_columns_of_all_their_fields() -> None:
    schema = ProtobufSchema(compiled({"order.proto": ORDER_PROTO}, "order.proto"))
    decoder = ProtobufDecoder(schema, schema.message("Order"))
    messages = order_messages()
    values = [ORDER_AT + messages.make(number).SerializeToString() for number in range(20)]
    array, reasons = decoder.decode(pa.array([*values, ORDER_AT + b"\xff", FIRST + b""], pa.binary()), None)
    assert sorted(reasons) == [20, 21]
    assert reasons[21] == "it is a shop.Other, not a shop.Order"
    for number, row in enumerate(array.to_pylist()[:20]):
        wanted = messages.row(number)
        del wanted["offset"]
        assert {**row, "by_name": dict(row["by_name"]), "at": row["at"].replace(tzinfo=None)} == wanted
    whole, reasons = decoder.decode(pa.array([value[7:] for value in values], pa.binary()), None, whole=True)
    assert (whole.equals(array[:20]), reasons) == (True, {})


def test_the_rest_of_the_types() -> None:
    decoder = decoder_of(TYPES)
    types = {field.name: field.type for field in decoder.type}
    assert types == {
        "a": pa.int32(),
        "b": pa.int64(),
        "c": pa.int64(),
        "d": pa.decimal128(20, 0),
        "e": pa.float32(),
        "inner": pa.struct([("f", pa.bool_())]),
        "g": pa.duration("us"),
        "h": pa.string(),
        "i": pa.struct([("type_url", pa.string()), ("value", pa.binary())]),
        "again": pa.string(),
        "j": pa.map_(pa.int32(), pa.binary()),
    }
    a_duration = b"\x42\x02\x08\x01"
    a_struct = b"\x4a\x0b\x0a\x09\x0a\x01x\x12\x04\x1a\x02yz"
    array, reasons = decoder.decode(
        pa.array([FIRST + a_duration + a_struct + b"\x5a\x02\x08\x05", FIRST], pa.binary()), None
    )
    assert reasons == {}
    full, empty = array.to_pylist()
    assert (full["g"].total_seconds(), full["h"], full["again"]) == (1.0, '{"x": "yz"}', '{"a": 5}')
    assert empty == {**dict.fromkeys(types), "a": 7, "j": []}


def test_a_moment_that_no_timestamp_can_be_is_one_bad_value() -> None:
    decoder = decoder_of(
        'syntax="proto3"; import "google/protobuf/timestamp.proto"; message M { google.protobuf.Timestamp at = 1; }'
    )
    good, bad = b"\x0a\x02\x08\x01", b"\x0a\x0a\x08\xff\xff\xff\xff\xff\xff\xff\xff\x7f"
    array, reasons = decoder.decode(pa.array([FIRST + good, FIRST + bad, FIRST + good], pa.binary()), None)
    assert ([row is not None for row in array.to_pylist()], list(reasons)) == ([True, False, True], [1])


def decoder_of(text: str, name: str | None = None) -> ProtobufDecoder:
    schema = schema_of(text)
    return ProtobufDecoder(schema, schema.message(name))


def test_maps_count_as_messages_for_some_writers_only() -> None:
    """Given a nested message behind a map field, when Java's serializer or Python's names it, then both are right."""
    decoder = decoder_of('syntax="proto3"; message A { map<string,int32> m = 1; message B { int32 x = 1; } }', "A.B")
    java, python = HEADER + b"\4\0\0", HEADER + b"\4\0\2"
    array, reasons = decoder.decode(pa.array([java + b"\x08\1", python + b"\x08\2"], pa.binary()), None)
    assert (array.to_pylist(), reasons) == ([{"x": 1}, {"x": 2}], {})


def test_nesting_is_limited_by_the_library() -> None:
    decoder = decoder_of('syntax="proto3"; message A { A a = 1; int32 x = 2; }')
    value = b"\x10\1"
    for _ in range(2000):
        size = len(value)
        value = b"\x0a" + (bytes([size]) if size < 128 else bytes([size & 127 | 128, size >> 7])) + value
    array, reasons = decoder.decode(pa.array([FIRST + value], pa.binary()), None)
    assert (array.to_pylist(), list(reasons)) == ([None], [0])


def test_registries_have_files_as_text_or_serialized() -> None:
    money = 'syntax = "proto3"; package a; message Money { int64 cents = 1; }'
    main = 'syntax = "proto3"; import "money.proto"; message Price { a.Money money = 1; }'
    files = descriptor_pb2.FileDescriptorSet.FromString(
        compiled({"money.proto": money, "main.proto": main}, "main.proto")
    ).file
    serialized = [base64.b64encode(file.SerializeToString()).decode() for file in files]
    as_text = ProtobufSchema(descriptors_of(main, [("money.proto", money)]))
    as_files = ProtobufSchema(descriptors_of(serialized[1], [("money.proto", serialized[0])]))
    expected = pa.struct([("money", pa.struct([("cents", pa.int64())]))])
    for schema in (as_text, as_files):
        assert ProtobufDecoder(schema, schema.message(None)).type == expected


@for_each(
    "make, said",
    [
        (lambda: ProtobufSchema(b"\xff"), "no set of Protobuf descriptors"),
        (lambda: ProtobufSchema(b""), "it has no file"),
        (lambda: descriptors_of("message {"), "does not compile"),
        (lambda: descriptors_of("AAAA"), "neither .proto text nor a serialized file"),
        (lambda: compiled({"../../x.proto": "", "a.proto": ""}, "a.proto"), "no path of a file"),
        (lambda: schema_of('syntax="proto3"; message A {} message B {}').message(None), "A, B"),
        (lambda: schema_of('syntax="proto3"; message A {}').message("C"), "has no message C"),
    ],
)
def test_what_is_no_schema_is_refused(make: Callable[[], object], said: str) -> None:
    with pytest.raises(SchemaError, match=said):
        make()
