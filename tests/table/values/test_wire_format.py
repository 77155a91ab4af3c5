"""The header in front of a record: schema ids of whole columns, and message indexes.

The oracle is plain Python on one value at a time; Confluent's own reader of headers agrees with it.
"""

import io

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry.serde import SchemaId
from hypothesis import given
from hypothesis import strategies as st

from table.values.wire_format import INDEXES_MAX, HeaderError, message_indexes, schema_ids
from tests.support.cases import case

VALUES = st.one_of(st.none(), st.binary(max_size=8), st.binary(max_size=8).map(lambda rest: b"\0" + rest))


def zigzag(number: int) -> bytes:
    value, out = (number << 1) ^ (number >> 63), b""
    while value > 0x7F:
        out, value = out + bytes([value & 0x7F | 0x80]), value >> 7
    return out + bytes([value])


@given(st.lists(VALUES, max_size=20), st.integers(0, 5))
def test_ids_are_those_of_each_value_alone(values: list[bytes | None], offset: int) -> None:
    """Given any values, in a slice of a larger array, then the four bytes behind a 0, or null."""
    array = pa.array([b"\0\0\0\0\7?", *values], pa.binary())[1:][offset:]
    expected = [
        int.from_bytes(value[1:5], "big", signed=True)
        if value is not None and len(value) >= 5 and value[0] == 0
        else None
        for value in values[offset:]
    ]
    assert schema_ids(array).to_pylist() == expected
    # No values have no ids.
    assert schema_ids(array[:0]).to_pylist() == []
    assert schema_ids(pa.nulls(2, pa.binary())).to_pylist() == [None, None]


@given(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=INDEXES_MAX), st.binary(max_size=4))
def test_message_indexes_are_read_as_confluents_client_reads_them(indexes: list[int], rest: bytes) -> None:
    data = b"\0\0\0\0\1" + zigzag(len(indexes)) + b"".join(map(zigzag, indexes))
    assert message_indexes(data + rest, 5) == (tuple(indexes), len(data))
    theirs = SchemaId("PROTOBUF")
    left = theirs.from_bytes(io.BytesIO(data + rest))
    assert (theirs.id, theirs.message_indexes, left.read()) == (1, indexes, rest)


def test_a_single_zero_is_the_first_message_and_indexes_that_are_none_are_refused() -> None:
    assert message_indexes(b"\0\0\0\0\1\0rest", 5) == ((0,), 6)
    for data in (b"", b"\4\2", b"\x80", b"\1\0", zigzag(65), b"\xff\xff\xff\xff\xff\1", b"\2\1"):
        with case(data), pytest.raises(HeaderError):
            message_indexes(data, 0)
