"""Protobuf's columns out of the wire format, against the library's messages: the same rows, refused values and reasons.

What is not read from the wire is read by the library: a schema with one field of that kind more is the other side.
"""

import functools
import struct
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from table.values import protobuf, protobuf_wire
from table.values.protobuf import ProtobufDecoder, ProtobufSchema, compiled
from tests.support.drawn import drawn
from tests.support.for_each import for_each

IMPORTS = "".join(f'import "google/protobuf/{name}.proto"; ' for name in ("timestamp", "duration", "wrappers", "any"))
INNER = "message Inner { optional Deep c = 2; optional string b = 1; optional int32 a = 3; }"
DEEP = "message Deep { repeated string a = 1; optional bool b = 2; }"
KINDS = (
    'syntax = "proto3"; '
    + IMPORTS
    + """
message M {
  string n = 14; int32 a = 1; int64 b = 2; uint32 c = 3; uint64 d = 4; sint32 e = 5; sint64 f = 6; bool g = 7;
  fixed32 h = 8; fixed64 i = 9; sfixed32 j = 10; sfixed64 k = 11; float l = 12; double m = 13; bytes o = 15;
  State p = 16; optional int32 q = 17; optional string r = 18; Inner s = 19; repeated string t = 20;
  repeated Inner u = 21; repeated bytes v = 22; oneof w { int32 x = 23; string y = 24; Inner z = 25; }
  google.protobuf.Timestamp aa = 26; google.protobuf.Duration bb = 27; google.protobuf.Int32Value cc = 28;
  google.protobuf.StringValue dd = 29; google.protobuf.Any ee = 30; Nothing ff = 31;
  repeated google.protobuf.Timestamp gg = 32; optional uint64 hh = 33; optional State ii = 34; MORE
}
enum State { NEW = 0; DONE = 1; AGAIN = -1; }
message Nothing {}
"""
    + INNER
    + DEEP
)
DEFAULTS = (
    """syntax = "proto2";
message M {
  optional int32 a = 1 [default = 7]; optional string n = 14 [default = "x"]; optional bytes o = 15 [default = ""];
  optional double m = 13 [default = inf]; optional Inner s = 19; repeated string t = 20; optional bool g = 7; MORE
}
"""
    + INNER
    + DEEP
)
VARINTS, FIXED_64, FIXED_32 = (1, 2, 3, 4, 5, 6, 7, 16, 17, 23, 33, 34), (9, 11, 13), (8, 10, 12)
TEXTS, INNERS, MOMENTS, WRAPPERS, ANY = (14, 15, 18, 20, 22, 24, 31), (19, 21, 25), (26, 27, 32), (28, 29), (30,)
UNKNOWN = 99


def varint(number: int, padding: int = 0) -> bytes:
    out = bytearray()
    while number > 0x7F or padding > len(out):
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def part(number: int, wire_type: int, payload: bytes) -> bytes:
    return varint(number << 3 | wire_type) + payload


def delimited(number: int, payload: bytes) -> bytes:
    return part(number, 2, varint(len(payload)) + payload)


numbers = st.one_of(
    st.integers(0, 2**64 - 1),
    st.integers(0, 300),
    st.sampled_from([2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63, 2**64 - 1, 2**64 - 5, 2**65, 2**69]),
)
varints = st.builds(varint, numbers, st.sampled_from([0, 0, 0, 3, 9, 10]))
doubles = st.floats().map(lambda found: struct.pack("<d", found))
floats = st.floats(width=32).map(lambda found: struct.pack("<f", found))
texts = st.text(max_size=9).map(str.encode) | st.sampled_from([b"\xff", b"\xed\xa0\x80", b"a\0b", b"x" * 200])
anything = st.binary(max_size=9)


def of_kinds(**kinds: tuple[tuple[int, ...], st.SearchStrategy[bytes]]) -> st.SearchStrategy[bytes]:
    """One field of these numbers, with what its kind has."""
    wire_types = {"varint": 0, "fixed64": 1, "fixed32": 5}
    return st.one_of(
        *(
            st.builds(part, st.sampled_from(known), st.just(wire_types[kind]), payloads)
            if kind in wire_types
            else st.builds(delimited, st.sampled_from(known), payloads)
            for kind, (known, payloads) in kinds.items()
        )
    )


deeps = st.lists(of_kinds(text=((1,), texts), varint=((2,), varints)), max_size=3).map(b"".join)
inners = st.lists(of_kinds(text=((1,), texts), deep=((2,), deeps), varint=((3,), varints)), max_size=3).map(b"".join)
moments = st.lists(of_kinds(varint=((1, 2), varints)), max_size=2).map(b"".join)
odd = st.one_of(
    st.builds(part, st.sampled_from([*VARINTS, *TEXTS, *INNERS, UNKNOWN, 0, 2**29]), st.integers(0, 7), anything),
    of_kinds(
        varint=((UNKNOWN,), varints), text=((UNKNOWN,), anything), fixed64=((UNKNOWN,), doubles), fixed32=((5,), floats)
    ),
    varints.map(lambda inside: part(UNKNOWN, 3, part(1, 0, inside) + part(UNKNOWN, 4, b""))),
)
fields = of_kinds(
    varint=(VARINTS, varints),
    fixed64=(FIXED_64, doubles),
    fixed32=(FIXED_32, floats),
    text=(TEXTS, texts),
    inner=(INNERS, inners),
    moment=(MOMENTS, moments),
    wrapper=(WRAPPERS, st.lists(of_kinds(varint=((1,), varints), text=((1,), texts)), max_size=2).map(b"".join)),
    any=(ANY, st.lists(of_kinds(text=((1, 2), texts)), max_size=2).map(b"".join)),
)


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    parts = draw(st.lists(fields, max_size=12))
    if draw(st.integers(0, 3)):
        parts.sort(key=lambda each: each[0])
    parts += draw(st.lists(odd, max_size=1))
    value = b"".join(parts if draw(st.booleans()) else reversed(parts))
    return value if draw(st.integers(0, 7)) else value[: draw(st.integers(0, len(value)))] + draw(anything)


@pytest.fixture(scope="module", autouse=True)
def few_rows_are_enough() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(protobuf, "WIRE_ROWS_MIN", 1)
        yield


@functools.cache
def decoder_of(text: str, more: str = "") -> ProtobufDecoder:
    schema = ProtobufSchema(compiled({"test.proto": text.replace("MORE", more)}, "test.proto"))
    return ProtobufDecoder(schema, schema.message("M"))


def rows_of(array: pa.Array, names: list[str]) -> list[str]:
    """As text: NaN is equal to NaN then, and -0.0 is not 0.0. Moments as numbers: datetime has not all of them."""
    array.validate(full=True)
    without_moments = array.cast(as_numbers(array.type))
    return [repr(row and [row[name] for name in names]) for row in without_moments.to_pylist()]


def as_numbers(found: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(found):
        return pa.struct([pa.field(field.name, as_numbers(field.type)) for field in found])
    if pa.types.is_list(found):
        return pa.list_(as_numbers(found.value_type))
    return pa.int64() if pa.types.is_timestamp(found) or pa.types.is_duration(found) else found


@drawn(200)
@given(st.sampled_from([KINDS, DEFAULTS]), st.lists(messages(), min_size=1, max_size=5))
@example(KINDS, [b"", part(1, 0, varint(1)), b"", part(2, 0, varint(2**64 - 1))])
@example(KINDS, [delimited(19, delimited(1, b"a")) + delimited(19, part(3, 0, varint(5))), b""])
@example(KINDS, [part(23, 0, varint(5)) + delimited(24, b"y"), delimited(24, b"y") + part(23, 0, varint(5))])
@example(KINDS, [delimited(20, b"item") * (protobuf_wire.ITEMS_MAX * protobuf_wire.PASSES_MAX + 1), b""])
@example(KINDS, [part(34, 0, varint(7)) + part(16, 0, varint(2**64 - 1)), part(1, 2, varint(2**63)), b"\x08"])
@example(KINDS, [delimited(26, part(1, 0, varint(2**63 - 1))), delimited(26, part(1, 0, varint(2**40)))])
@example(KINDS, [delimited(14, b"\xff") + delimited(14, b""), b"", delimited(19, delimited(1, b"\xff") + b"\x0a\0")])
@example(DEFAULTS, [b"", delimited(14, b"\xff"), part(1, 0, varint(0))])
def test_rows_and_reasons_are_those_of_the_library(text: str, values: list[bytes]) -> None:
    from_wire, by_library = decoder_of(text), decoder_of(text, "map<int32, int32> more = 1000;")
    names = [field.name for field in from_wire.type]
    # What stands alone shows itself even if the library reads all of several.
    for some in (values, *([value] for value in values)):
        array, reasons = from_wire.decode(pa.array(some, pa.binary()), None, whole=True)
        wanted, wanted_reasons = by_library.decode(pa.array(some, pa.binary()), None, whole=True)
        assert reasons == wanted_reasons
        assert rows_of(array, names) == rows_of(wanted, names)


@for_each("fields", ["string a = 1;", "optional string a = 1;", "repeated string a = 1;", "Inner a = 1;"])
def test_the_library_reads_only_the_message_whose_text_is_not_utf_8(fields: str) -> None:
    text = f'syntax = "proto3"; message M {{ {fields} }} {INNER} {DEEP}'
    columns = protobuf_wire.MessageColumns(ProtobufSchema(compiled({"t.proto": text}, "t.proto")).message("M"))
    values = [delimited(1, delimited(1, inside)) for inside in (b"a", b"\xff", b"\xc3\xa9")]
    ends = np.cumsum([0, *map(len, values)])
    array, is_odd = columns.read(protobuf_wire.wire_of(np.frombuffer(b"".join(values), np.uint8)), ends[:-1], ends[1:])
    array.validate(full=True)
    assert (len(array), is_odd.tolist()) == (3, [False, True, False])


@for_each(
    "field, is_from_wire",
    [
        ("int32 a = 1;", True),
        ("map<int32, int32> a = 1;", False),
        ("repeated int32 a = 1;", False),
        ("M a = 1;", False),
        ("google.protobuf.Struct a = 1; ", False),
    ],
)
def test_schemas_that_need_more_are_refused(field: str, *, is_from_wire: bool) -> None:
    text = f'syntax = "proto3"; import "google/protobuf/struct.proto"; message M {{ {field} }}'
    schema = ProtobufSchema(compiled({"test.proto": text}, "test.proto"))
    try:
        protobuf_wire.MessageColumns(schema.message("M"))
    except protobuf_wire.UncoveredError:
        assert not is_from_wire
    else:
        assert is_from_wire
