"""The records of one batch with keys, values and headers, one after another: for tools that show them.

storage.log.inflating has the rules of what is inflated and how; table.decoding does the same for millions of
records at once. Control records (transaction markers) are not given, as no consumer gets them.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from protocol.record_batches import COMPRESSION_MASK, HEADER_BYTES, LOG_APPEND_TIME_MASK, BatchHeader
from storage.errors import CorruptObjectError
from storage.log.batch_records import RecordStream, limited, read_varint, wrapped_messages
from storage.log.inflating import inflated

_INT32 = struct.Struct(">i")
_LEGACY_KEY_AT = (18, 26)
_VARINT_BYTES_MAX = 5
"""For a record's length, which is an int32."""


@dataclass(frozen=True, slots=True)
class WholeRecord:
    """`timestamp_ms` is -1 where the format has none. `headers` may repeat a key, and may have null values."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()


def iterate_whole_records(header: BatchHeader, data: memoryview) -> Iterator[WholeRecord]:
    """The records of a whole batch, in order. `data`: all of it, header included; its CRC is the caller's to check.

    Raises:
        CorruptObjectError: while iterating; says what is wrong, not where.
    """
    if header.magic < 2:
        yield from _legacy_records(header, data)
    elif not header.is_control:
        yield from _records(header, data)


def key_and_value(magic: int, data: memoryview) -> tuple[bytes | None, bytes | None]:
    """Return key and value of one message of format v0 or v1, which is `data` as a whole.

    Raises:
        CorruptObjectError: its fields do not fill it.
    """
    key_end, key = _legacy_field(data, _LEGACY_KEY_AT[magic])
    end, value = _legacy_field(data, key_end)
    if end != len(data):
        raise CorruptObjectError(f"a message of {len(data)} bytes has fields of {end}")
    return None if key is None else bytes(key), None if value is None else bytes(value)


def _legacy_field(data: memoryview, position: int) -> tuple[int, memoryview | None]:
    """Return where the field ends, and its bytes."""
    start = position + _INT32.size
    if start <= len(data):
        (size,) = _INT32.unpack_from(data, position)
        if size == -1:
            return start, None
        if 0 <= size <= len(data) - start:
            return start + size, data[start : start + size]
    raise CorruptObjectError(f"a message of {len(data)} bytes has a field of a wrong length at {position}")


def _legacy_records(header: BatchHeader, data: memoryview) -> Iterator[WholeRecord]:
    if header.attributes & COMPRESSION_MASK == 0:
        yield WholeRecord(header.base_offset, header.max_timestamp, *key_and_value(header.magic, data))
        return
    for found in wrapped_messages(header, [data], RecordStream.take, None):
        if found is not None:
            offset, timestamp_ms, message = found
            yield WholeRecord(offset, timestamp_ms, *key_and_value(header.magic, memoryview(message)))


def _records(header: BatchHeader, data: memoryview) -> Iterator[WholeRecord]:
    """KIP-98's records, with KIP-82's headers."""
    body = [data[HEADER_BYTES : header.size_bytes]]
    stream = RecordStream(limited(inflated(header.attributes & COMPRESSION_MASK, body)))
    append_time_ms = header.max_timestamp if header.attributes & LOG_APPEND_TIME_MASK else None
    for number in range(header.record_count):
        head, at = stream.peek(_VARINT_BYTES_MAX)
        length, start = read_varint(head, at)
        if length < 0:
            raise CorruptObjectError(f"record {number} has length {length}")
        stream.skip(start - at)
        record = stream.take(length)
        timestamp_delta_ms, position = read_varint(record, 1)  # over the attributes, unused
        offset_delta, position = read_varint(record, position)
        key, position = _field(record, position)
        value, position = _field(record, position)
        headers, position = _headers(record, position)
        if position != length or not 0 <= offset_delta <= header.last_offset_delta:
            raise CorruptObjectError(f"record {number} has length {length} and offset delta {offset_delta}")
        timestamp_ms = header.base_timestamp + timestamp_delta_ms if append_time_ms is None else append_time_ms
        yield WholeRecord(header.base_offset + offset_delta, timestamp_ms, key, value, headers)


def _headers(record: bytes, position: int) -> tuple[Sequence[tuple[str, bytes | None]], int]:
    """A header takes two bytes at least, so that what is left bounds the loop whatever the count says."""
    count, position = read_varint(record, position)
    found = []
    for _ in range(count):
        key, position = _field(record, position)
        value, position = _field(record, position)
        found.append(((key or b"").decode("utf-8", "replace"), value))
    return found, position


def _field(record: bytes, position: int) -> tuple[bytes | None, int]:
    """A key or a value, and where it ends."""
    length, start = read_varint(record, position)
    if length < 0:
        return None, start
    if start + length > len(record):
        raise CorruptObjectError(f"a record of {len(record)} bytes has a field of {length}")
    return record[start : start + length], start + length
