"""The header in front of a record's bytes, as Confluent's serializers write it: which schema they were written with.

    0                  one byte
    schema id          four bytes, big-endian
    message indexes    Protobuf only: a count and as many numbers, as zigzag varints; a single 0 is the list [0]
    the record

The indexes are a path through the schema's file: [1, 0] is the first message inside the second one.

Bytes that do not begin so have no header. Protobuf's and JSON's own bytes never begin with 0; Avro's may, and then look
like a header (table.values.avro tells what is done).
"""

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

HEADER_BYTES: Final = 5
MAGIC: Final = 0

INDEXES_MAX: Final = 64
"""Messages inside messages; protoc itself takes 32."""
_VARINT_BYTES_MAX: Final = 5


class HeaderError(ValueError):
    """Bytes that begin as a header do, and go on otherwise."""


class Headers(NamedTuple):
    """What each of many values begins with.

    Attributes:
        sizes: bytes of the values, header and all; -1 of a null.
        are_there: whether they have a header.
        ids: of schemas; 0 where there is no header.
    """

    sizes: npt.NDArray[np.int32]
    are_there: npt.NDArray[np.bool_]
    ids: npt.NDArray[np.int32]


def headers(values: pa.Array) -> Headers:
    """The headers of binary values, without a Python object for any: offsets and bytes are looked at where they are."""
    _, offsets, data = values.buffers()
    bounds = np.frombuffer(offsets, np.int32, len(values) + 1, values.offset * 4)
    content = np.frombuffer(data if data is not None else b"", np.uint8)
    sizes = np.diff(bounds)
    if values.null_count:
        sizes[np.asarray(pc.is_null(values))] = -1
    are_there, ids = np.zeros(len(values), bool), np.zeros(len(values), np.int32)
    may_have = np.flatnonzero(sizes >= HEADER_BYTES)
    with_header = may_have[content[bounds[may_have]] == MAGIC]
    # At every place, the four bytes from there on.
    numbers = np.ndarray(max(len(content) - 3, 0), ">i4", content, strides=(1,))
    are_there[with_header], ids[with_header] = True, numbers[bounds[with_header] + 1]
    return Headers(sizes, are_there, ids)


def schema_ids(values: pa.Array) -> pa.Array:
    """The schema id in each value's header as int32; null for a null, and for bytes without a header."""
    found = headers(values)
    return pa.array(found.ids, mask=~found.are_there)


def message_indexes(data: bytes, start: int) -> tuple[tuple[int, ...], int]:
    """The message indexes that begin at `start`, and where they end.

    Raises:
        HeaderError: they are cut off, or more or larger than indexes are.
    """
    count, position = _zigzag_varint(data, start)
    if count == 0:
        return (0,), position
    if not 0 < count <= INDEXES_MAX:
        raise HeaderError(f"{count} message indexes")
    indexes = []
    for _ in range(count):
        index, position = _zigzag_varint(data, position)
        if index < 0:
            raise HeaderError(f"a message index of {index}")
        indexes.append(index)
    return tuple(indexes), position


def _zigzag_varint(data: bytes, position: int) -> tuple[int, int]:
    value = 0
    for place in range(_VARINT_BYTES_MAX):
        if position >= len(data):
            raise HeaderError("message indexes that are cut off")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position
    raise HeaderError("a message index of more than 32 bits")
