"""The offsets and timestamps of the records in one batch, without their keys and values.

For look-ups by time, which decode the one batch that matters (docs/protocol.md#l5); nothing on the way of a Fetch comes
here. `wrapped_messages` reads the old formats' wrappers for callers that want keys and values, too.
Formats v2, v1 and v0 (KIP-98, KIP-32), none, gzip, snappy, lz4, zstd.

Rules:
1. Memory is bounded whatever the bytes claim: they are inflated piece by piece, a snappy block is refused before it
   is inflated when it claims more than its bytes can give, and INFLATED_BYTES_MAX ends it; or before that a ScanBudget.
2. Bytes that are not the records which the header announces are a CorruptObjectError.
3. In v2 and v1, LogAppendTime gives every record the batch's timestamp. v0 has none: −1.
4. A compressed v1 message has offsets relative to its first one, and its own offset is the last one's. v0 is absolute.

5. Between two items an iterator does a bounded amount of work: it gives None where it has gone on without a record yet.

Synchronous; an iterator belongs to one thread at a time.
"""

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from protocol.record_batches import (
    COMPRESSION_MASK,
    HEADER_BYTES,
    LENGTH_MIN,
    LOG_APPEND_TIME_MASK,
    LOG_OVERHEAD,
    BatchHeader,
    Buffer,
    CorruptBatchError,
    read_header,
    slice_rope,
)
from storage.errors import CorruptObjectError
from storage.log.inflating import inflated

INFLATED_BYTES_MAX = 1 << 30
"""Limit for one batch: a batch is no larger before it is compressed, by the brokers' own limits."""

_RECORD_HEAD_BYTES_MAX = 21
"""Head of a v2 record: length (5), attributes (1), timestamp delta (10), offset delta (5)."""

_VARINT_BYTES_MAX = 10
_LEGACY_HEAD_BYTES = (18, 26)
"""Head of a v0 and a v1 message, from its offset to its key."""

_INNER = struct.Struct(">qi4xbb")  # offset, size, crc, magic, attributes
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")

T = TypeVar("T")

Record = tuple[int, int]
"""Offset and timestamp in milliseconds."""


class ScanLimitError(Exception):
    """A search has inflated or decoded as much as it may. Nothing is wrong with the bytes."""


class ScanBudget:
    """What one search may still do, over all its batches."""

    def __init__(self, *, records_max: int, bytes_max: int) -> None:
        self._records_left = records_max
        self._bytes_left = bytes_max

    def take_records(self, count: int) -> None:
        """Count items of an iterator that were looked at.

        Raises:
            ScanLimitError: they are too many.
        """
        self._records_left -= count
        if self._records_left < 0:
            raise ScanLimitError("a look-up by time has too many records to decode")

    def take_bytes(self, size: int) -> None:
        """Count bytes that were inflated; otherwise as `take_records`."""
        self._bytes_left -= size
        if self._bytes_left < 0:
            raise ScanLimitError("a look-up by time has too many bytes to inflate")


def iterate_records(batch: Sequence[Buffer], budget: ScanBudget | None = None) -> Iterator[Record | None]:
    """Offset and timestamp of each record of exactly one whole batch, in order; control records are records.

    Args:
        batch: a rope from the batch's first byte to its last; its CRC is the caller's to check.
        budget: of the bytes that are inflated.

    Raises:
        CorruptObjectError, ScanLimitError: while iterating.
    """
    try:
        header = read_header(b"".join(slice_rope(batch, 0, HEADER_BYTES)), 0)
        if header.magic < 2:
            yield from _legacy_records(header, batch, budget)
        else:
            yield from _records(header, batch, budget)
    except CorruptBatchError as error:
        raise CorruptObjectError(str(error)) from error


def _records(header: BatchHeader, batch: Sequence[Buffer], budget: ScanBudget | None) -> Iterator[Record]:
    rope = slice_rope(batch, HEADER_BYTES, header.size_bytes)
    stream = RecordStream(limited(inflated(header.attributes & COMPRESSION_MASK, rope), budget))
    append_time = header.max_timestamp if header.attributes & LOG_APPEND_TIME_MASK else None
    for number in range(header.record_count):
        data, at = stream.peek(_RECORD_HEAD_BYTES_MAX)
        length, body = read_varint(data, at)
        timestamp_delta, rest = read_varint(data, body + 1)
        offset_delta, rest = read_varint(data, rest)
        if length < rest - body or not 0 <= offset_delta <= header.last_offset_delta:
            raise CorruptObjectError(f"record {number} has length {length} and offset delta {offset_delta}")
        stream.skip(body + length - at)
        yield (
            header.base_offset + offset_delta,
            header.base_timestamp + timestamp_delta if append_time is None else append_time,
        )


def _legacy_records(header: BatchHeader, batch: Sequence[Buffer], budget: ScanBudget | None) -> Iterator[Record | None]:
    if header.attributes & COMPRESSION_MASK == 0:
        yield header.base_offset, header.max_timestamp
        return
    for found in wrapped_messages(header, batch, RecordStream.skip, budget):
        yield None if found is None else found[:2]


def wrapped_messages(
    header: BatchHeader, batch: Sequence[Buffer], take: Callable[["RecordStream", int], T], budget: ScanBudget | None
) -> Iterator[tuple[int, int, T] | None]:
    """Offset, timestamp and content of each message in a wrapper of v0 or v1, in order; None: rule 5.

    Args:
        take: takes the next so many bytes, one message, from the stream, or passes over them.

    Raises:
        CorruptObjectError, ScanLimitError: while iterating.
    """
    codec, value = header.attributes & COMPRESSION_MASK, _wrapped(header, batch)

    def stream() -> RecordStream:
        return RecordStream(limited(inflated(codec, value, legacy_lz4=header.magic == 0), budget))

    shift = 0
    if header.magic == 1:
        # Twice through it: the offset of its last message is what the others are relative to.
        last_offset = header.base_offset
        for offset, _, _ in _inner_messages(header, stream(), RecordStream.skip):
            last_offset = offset
            yield None
        shift = header.base_offset - last_offset
    is_append_time = header.magic == 1 and header.attributes & LOG_APPEND_TIME_MASK
    for offset, timestamp, content in _inner_messages(header, stream(), take):
        yield offset + shift, header.max_timestamp if is_append_time else timestamp, content


def _wrapped(header: BatchHeader, batch: Sequence[Buffer]) -> list[memoryview]:
    """The value of a message that wraps others, as a rope."""
    key_at = _LEGACY_HEAD_BYTES[header.magic]
    value_at = key_at + _INT32.size + max(_length(header, batch, key_at), 0)
    length, start = _length(header, batch, value_at), value_at + _INT32.size
    if length < 0 or start + length > header.size_bytes:
        raise CorruptObjectError(f"a message wraps {length} bytes, {header.size_bytes - start} are there")
    return slice_rope(batch, start, start + length)


def _length(header: BatchHeader, batch: Sequence[Buffer], position: int) -> int:
    end = position + _INT32.size
    if end > header.size_bytes:
        raise CorruptObjectError(f"a message of {header.size_bytes} bytes has no length of a field at {position}")
    return int(_INT32.unpack(b"".join(slice_rope(batch, position, end)))[0])


def _inner_messages(
    header: BatchHeader, stream: "RecordStream", take: Callable[["RecordStream", int], T]
) -> Iterator[tuple[int, int, T]]:
    """Offset as it stands, timestamp, and what was taken, of each wrapped message."""
    head_bytes = _LEGACY_HEAD_BYTES[header.magic]
    while not stream.is_at_end():
        data, at = stream.peek(head_bytes)
        if len(data) - at < head_bytes:
            raise CorruptObjectError("a wrapped message is cut")
        offset, size, magic, attributes = _INNER.unpack_from(data, at)
        if size < LENGTH_MIN or magic != header.magic or attributes & COMPRESSION_MASK:
            raise CorruptObjectError(f"a wrapped message has size {size}, magic {magic}, attributes {attributes}")
        timestamp = -1 if magic == 0 else int(_INT64.unpack_from(data, at + head_bytes - _INT64.size)[0])
        yield offset, timestamp, take(stream, LOG_OVERHEAD + size)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """A zigzag varint and where it ends.

    Raises:
        CorruptObjectError: the data end within it, or it is longer than 64 bits take.
    """
    value = shift = 0
    for position in range(at, min(at + _VARINT_BYTES_MAX, len(data))):
        byte = data[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position + 1
        shift += 7
    raise CorruptObjectError("a record is cut, or has a number that does not end")


class RecordStream:
    """Pieces read in order; what is passed is dropped."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._data = b""
        self._at = 0

    def peek(self, size: int) -> tuple[bytes, int]:
        """A buffer and where in it the next bytes are: `size` of them, or all that are left."""
        left_bytes = len(self._data) - self._at
        if left_bytes < size:
            parts = [self._data[self._at :]]
            while left_bytes < size and (piece := next(self._pieces, b"")):
                parts.append(piece)
                left_bytes += len(piece)
            self._data, self._at = b"".join(parts), 0
        return self._data, self._at

    def take(self, size: int) -> bytes:
        """The next bytes.

        Raises:
            CorruptObjectError: there are fewer; so does `skip`.
        """
        data, at = self.peek(size)
        self.skip(size)
        return data[at : at + size]

    def is_at_end(self) -> bool:
        """Return whether nothing is left."""
        data, at = self.peek(1)
        return at == len(data)

    def skip(self, size: int) -> None:
        """Pass over the next bytes."""
        while size > len(self._data) - self._at:
            size -= len(self._data) - self._at
            self._data, self._at = b"", 0
            data, _ = self.peek(1)
            if not data:
                raise CorruptObjectError(f"the batch ends {size} bytes before its last record does")
        self._at += size


def limited(pieces: Iterable[bytes], budget: ScanBudget | None = None) -> Iterator[bytes]:
    """The pieces that are not empty.

    Raises:
        CorruptObjectError: while iterating: they are more than INFLATED_BYTES_MAX.
        ScanLimitError: while iterating: they are more than the budget has.
    """
    seen_bytes = 0
    for piece in pieces:
        seen_bytes += len(piece)
        if budget is not None:
            budget.take_bytes(len(piece))
        if seen_bytes > INFLATED_BYTES_MAX:
            raise CorruptObjectError(f"a batch inflates to more than {INFLATED_BYTES_MAX} bytes")
        if piece:
            yield piece
