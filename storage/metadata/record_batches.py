"""Record batches v2 as the metadata topic needs them: read whole batches of records, and written.

- Batches are checked: length, magic 2, CRC-32C over attributes and everything behind. A batch that is cut at the
  end of the data is left out: brokers cut answers at a byte limit.
- Control batches (transaction markers) hold no records for us, but count for the next offset.
- Compression none, gzip and zstd are read; the decompressed size is bounded. Snappy and lz4 are refused:
  Kafka's own metadata producer does not compress, so only a foreign one can bring them.
- Headers are skipped.

Layout: https://kafka.apache.org/documentation/#recordbatch; old magics 0 and 1 are refused, no broker that has a
remote log writes them.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from crc32c import crc32c

from protocol.record_batches import (
    COMPRESSION_MASK,
    CRC_START,
    HEADER_BYTES,
    LOG_APPEND_TIME_MASK,
    LOG_OVERHEAD,
    BatchHeader,
    CorruptBatchError,
    batch_crc,
    iterate_batches,
)
from protocol.wire.primitives import write_uvarint
from storage.errors import CorruptMetadataBatchError, CorruptObjectError, UnsupportedMetadataCompressionError
from storage.log.batch_records import read_varint
from storage.log.inflating import inflated
from storage.metadata.reading import MetadataEvent

DECOMPRESSED_BYTES_MAX = 64 * 1024 * 1024
"""For one batch. A metadata record has some hundred bytes, and an uncompressed batch at most message.max.bytes."""

BUILT_BYTES = 256 * 1024
"""For one batch's keys and values: brokers take 1 MiB by default (message.max.bytes)."""

_MAGIC = 2
_COMPRESSION_NAMES = {0: "none", 1: "gzip", 2: "snappy", 3: "lz4", 4: "zstd"}


@dataclass(frozen=True, slots=True)
class ParsedBatches:
    """`next_offset` is the one after the last whole batch; -1 when there was none."""

    records: list[MetadataEvent]
    next_offset: int


def parse_batches(data: bytes, partition: int) -> ParsedBatches:
    """All records of the whole batches in `data`.

    Raises:
        CorruptMetadataBatchError, UnsupportedMetadataCompressionError: at the first batch that cannot be read.
    """
    records: list[MetadataEvent] = []
    next_offset = reached_offset = -1
    try:
        for position, header in iterate_batches([data]):
            reached_offset = header.base_offset
            _take_batch(data[position : position + header.size_bytes], header, partition, records)
            next_offset = reached_offset = header.last_offset + 1
    except (CorruptBatchError, CorruptObjectError) as error:
        where = "first batch" if reached_offset < 0 else f"batch at offset {reached_offset}"
        raise CorruptMetadataBatchError(f"{where}: {error}") from error
    return ParsedBatches(records, next_offset)


def build_batches(records: Sequence[MetadataEvent]) -> Iterator[bytes]:
    """Uncompressed batches of these records' times, keys and values, of about BUILT_BYTES; no headers."""
    batch: list[MetadataEvent] = []
    size_bytes = 0
    for record in records:
        record_bytes = len(record.key or b"") + len(record.value or b"")
        if batch and size_bytes + record_bytes > BUILT_BYTES:
            yield _built(batch)
            batch, size_bytes = [], 0
        batch.append(record)
        size_bytes += record_bytes
    if batch:
        yield _built(batch)


def _built(records: Sequence[MetadataEvent]) -> bytes:
    base_ms, newest_ms = records[0].timestamp_ms, max(record.timestamp_ms for record in records)
    body = b"".join(_built_record(record, number, base_ms) for number, record in enumerate(records))
    last = len(records) - 1
    covered = struct.pack(">hiqqqhii", 0, last, base_ms, newest_ms, -1, -1, -1, len(records)) + body
    crc = crc32c(covered)
    length = CRC_START - LOG_OVERHEAD + len(covered)
    return struct.pack(">qiibI", 0, length, -1, _MAGIC, crc) + covered


def _built_record(record: MetadataEvent, number: int, base_ms: int) -> bytes:
    fields = [b"\0", _varint(record.timestamp_ms - base_ms), _varint(number)]
    for part in (record.key, record.value):
        fields += [_varint(-1)] if part is None else [_varint(len(part)), part]
    content = b"".join((*fields, _varint(0)))
    return _varint(len(content)) + content


def _take_batch(batch: bytes, header: BatchHeader, partition: int, records: list[MetadataEvent]) -> None:
    """Append the batch's records."""
    if header.magic != _MAGIC:
        raise CorruptBatchError(f"magic {header.magic}, only {_MAGIC} is read")
    if batch_crc([batch], header.magic) != header.crc:
        raise CorruptBatchError("its CRC does not match its bytes")
    if not header.is_control:
        records += _records(_decompressed(batch[HEADER_BYTES:], header), header, partition)


def _decompressed(body: bytes, header: BatchHeader) -> bytes:
    compression = header.attributes & COMPRESSION_MASK
    if compression == 0:
        return body
    name = _COMPRESSION_NAMES.get(compression, str(compression))
    if name not in ("gzip", "zstd"):
        raise UnsupportedMetadataCompressionError(
            f"batch at offset {header.base_offset}: compression {name} is not read in the metadata topic"
        )
    plain = bytearray()
    for piece in inflated(compression, [body]):
        plain += piece
        if len(plain) > DECOMPRESSED_BYTES_MAX:
            raise CorruptObjectError(f"more than {DECOMPRESSED_BYTES_MAX} bytes after {name}")
    return bytes(plain)


def _records(body: bytes, header: BatchHeader, partition: int) -> Iterator[MetadataEvent]:
    """The records of a batch, one after another, never beyond the body."""
    append_time_ms = header.max_timestamp if header.attributes & LOG_APPEND_TIME_MASK else None
    position = 0
    for _ in range(header.record_count):
        length, start = read_varint(body, position)
        end = start + length
        if length < 0 or end > len(body):
            raise CorruptObjectError(f"a record of {length} bytes")
        timestamp_delta_ms, position = read_varint(body, start + 1)  # over the attributes, unused
        offset_delta, position = read_varint(body, position)
        key, position = _nullable_bytes(body, position, end)
        value, position = _nullable_bytes(body, position, end)
        if position > end or offset_delta < 0:
            raise CorruptObjectError("a record's fields exceed it")
        timestamp_ms = header.base_timestamp + timestamp_delta_ms if append_time_ms is None else append_time_ms
        yield MetadataEvent(partition, header.base_offset + offset_delta, timestamp_ms, key, value)
        position = end  # over the headers
    if position != len(body):
        raise CorruptObjectError(f"{len(body) - position} bytes behind the last record")


def _nullable_bytes(body: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    """A key or a value, and where it ends."""
    length, start = read_varint(body, position)
    if length < 0:
        return None, start
    if start + length > end:
        raise CorruptObjectError(f"a key or value of {length} bytes")
    return body[start : start + length], start + length


def _varint(value: int) -> bytes:
    return write_uvarint((value << 1) ^ (value >> 63))
