"""The header in front of a record's bytes, as Confluent's serializers write it: which schema they were written with.

    0                  one byte
    schema id          four bytes, big-endian
    message indexes    Protobuf only: a count and as many numbers, as zigzag varints; a single 0 is the list [0]
    the record

The indexes are a path through the schema's file: [1, 0] is the first message inside the second one.

Bytes that do not begin so have no header. Protobuf's and JSON's own bytes never begin with 0; Avro's may, and then look
like a header (table.values.avro tells what is done).
"""

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

HEADER_BYTES: Final = 5
MAGIC: Final = 0

INDEXES_MAX: Final = 64
"""Messages inside messages; protoc itself takes 32."""
_VARINT_BYTES_MAX: Final = 5


class HeaderError(ValueError):
    """Bytes that begin as a header do, and go on otherwise."""


def schema_ids(values: pa.Array) -> pa.Array:
    """The schema id in each value's header as int32; null for a null, and for bytes without a header.

    Without a Python object for any of them: offsets and bytes are looked at where they are.
    """
    sizes = np.asarray(pc.fill_null(pc.binary_length(values), 0))
    _, offsets, data = values.buffers()
    starts = np.frombuffer(offsets, np.int32, len(values), values.offset * 4).astype(np.int64)
    content = np.frombuffer(data if data is not None else b"", np.uint8)
    may_have = np.flatnonzero(sizes >= HEADER_BYTES)
    with_header = may_have[content[starts[may_have]] == MAGIC]
    ids = np.zeros(len(values), np.int32)
    is_absent = np.ones(len(values), bool)
    at = starts[with_header]
    found = np.zeros(len(with_header), np.uint32)
    for place in range(1, HEADER_BYTES):
        found = (found << np.uint32(8)) | content[at + place]
    ids[with_header] = found.view(np.int32)
    is_absent[with_header] = False
    return pa.array(ids, mask=is_absent)


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
