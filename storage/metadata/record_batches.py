"""Record batches v2 as the metadata topic needs them: read whole batches of records, write a batch of one.

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
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import structlog
from crc32c import crc32c

from storage.errors import (
    CorruptMetadataBatchError,
    CorruptObjectError,
    MetadataOffsetOutOfRange,
    UnsupportedMetadataCompressionError,
)
from storage.log.batch_records import inflated
from storage.metadata.event_log import Deliver, MetadataEvent, Progress, call_receiver
from storage.model import ZERO_UUID

DECOMPRESSED_BYTES_MAX = 64 * 1024 * 1024
"""Of one batch. A metadata record has some hundred bytes, and an uncompressed batch at most message.max.bytes."""

_HEADER = struct.Struct(">qiibIhiqqqhii")
_LENGTH_PREFIX_BYTES = 12  # base offset and batch length: what the length does not count
_CRC_FROM = 21  # attributes, the first thing that the CRC covers
_MAGIC = 2

_COMPRESSION_MASK = 0x07
_LOG_APPEND_TIME = 0x08
_CONTROL = 0x20
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
    next_offset = -1
    position = 0
    while len(data) - position >= _LENGTH_PREFIX_BYTES:
        base_offset, length = struct.unpack_from(">qi", data, position)
        if length < _HEADER.size - _LENGTH_PREFIX_BYTES:
            raise CorruptMetadataBatchError(f"batch at offset {base_offset}: length {length}")
        end = position + _LENGTH_PREFIX_BYTES + length
        if end > len(data):
            break
        next_offset = _parse_batch(data[position:end], partition, records)
        position = end
    return ParsedBatches(records, next_offset)


def build_batch(value: bytes, timestamp_ms: int) -> bytes:
    """An uncompressed batch of one record: null key, no headers, no producer id."""
    record = b"".join((b"\0", _varint(0), _varint(0), _varint(-1), _varint(len(value)), value, _varint(0)))
    body = _varint(len(record)) + record
    covered = struct.pack(">hiqqqhii", 0, 0, timestamp_ms, timestamp_ms, -1, -1, -1, 1) + body
    crc = crc32c(covered)
    length = _CRC_FROM - _LENGTH_PREFIX_BYTES + len(covered)
    return struct.pack(">qiibI", 0, length, -1, _MAGIC, crc) + covered


def _parse_batch(batch: bytes, partition: int, records: list[MetadataEvent]) -> int:
    """Append the batch's records; the offset after it."""
    header = _HEADER.unpack_from(batch)
    base_offset, _, _, magic, crc, attributes, last_offset_delta, base_timestamp_ms, max_timestamp_ms = header[:9]
    where = f"batch at offset {base_offset}"
    if magic != _MAGIC:
        raise CorruptMetadataBatchError(f"{where}: magic {magic}, only {_MAGIC} is read")
    if crc32c(batch[_CRC_FROM:]) != crc:
        raise CorruptMetadataBatchError(f"{where}: its CRC does not match its bytes")
    if base_offset < 0 or last_offset_delta < 0:
        raise CorruptMetadataBatchError(f"{where}: last offset delta {last_offset_delta}")
    if not attributes & _CONTROL:
        body = _decompressed(batch[_HEADER.size :], attributes & _COMPRESSION_MASK, where)
        cursor = _Cursor(body, where)
        for _ in range(header[12]):
            offset_delta, timestamp_delta_ms, key, value = cursor.record()
            timestamp_ms = max_timestamp_ms if attributes & _LOG_APPEND_TIME else base_timestamp_ms + timestamp_delta_ms
            records.append(MetadataEvent(partition, base_offset + offset_delta, timestamp_ms, key, value))
        if cursor.position != len(body):
            raise CorruptMetadataBatchError(f"{where}: {len(body) - cursor.position} bytes behind the last record")
    return int(base_offset) + int(last_offset_delta) + 1


def _decompressed(body: bytes, compression: int, where: str) -> bytes:
    if compression == 0:
        return body
    name = _COMPRESSION_NAMES.get(compression, str(compression))
    if name not in ("gzip", "zstd"):
        raise UnsupportedMetadataCompressionError(f"{where}: compression {name} is not read in the metadata topic")
    plain = bytearray()
    try:
        for piece in inflated(compression, [body]):
            plain += piece
            if len(plain) > DECOMPRESSED_BYTES_MAX:
                raise CorruptObjectError(f"more than {DECOMPRESSED_BYTES_MAX} bytes after {name}")
    except CorruptObjectError as error:
        raise CorruptMetadataBatchError(f"{where}: {error}") from error
    return bytes(plain)


class _Cursor:
    """Reads records one after another, never beyond the body."""

    def __init__(self, body: bytes, where: str) -> None:
        self.position = 0
        self._body = body
        self._where = where

    def record(self) -> tuple[int, int, bytes | None, bytes | None]:
        """(offset delta, timestamp delta, key, value)"""
        length = self._varint()
        end = self.position + length
        if length < 0 or end > len(self._body):
            raise self._corrupt(f"a record of {length} bytes")
        self.position += 1  # attributes, unused
        timestamp_delta_ms = self._varint()
        offset_delta = self._varint()
        key = self._bytes(end)
        value = self._bytes(end)
        if self.position > end or offset_delta < 0:
            raise self._corrupt("a record's fields exceed it")
        self.position = end  # over the headers
        return offset_delta, timestamp_delta_ms, key, value

    def _bytes(self, end: int) -> bytes | None:
        length = self._varint()
        if length < 0:
            return None
        start, self.position = self.position, self.position + length
        if self.position > end:
            raise self._corrupt(f"a key or value of {length} bytes")
        return self._body[start : self.position]

    def _varint(self) -> int:
        """A zigzag varint of up to 10 bytes."""
        value = 0
        for shift in range(0, 70, 7):
            if self.position >= len(self._body):
                raise self._corrupt("cut inside a number")
            byte = self._body[self.position]
            self.position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1)
        raise self._corrupt("a number of more than 10 bytes")

    def _corrupt(self, reason: str) -> CorruptMetadataBatchError:
        return CorruptMetadataBatchError(f"{self._where}: {reason}")


def _varint(value: int) -> bytes:
    zigzag = (value << 1) ^ (value >> 63)
    encoded = bytearray()
    while zigzag > 0x7F:
        encoded.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    encoded.append(zigzag)
    return bytes(encoded)


# Reading the metadata topic without I/O: what ends it for good, how far a partition has been read, its hand-over.


_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """The metadata topic as Metadata names it. `topic_id`: 16 bytes, zero from brokers that know no topic ids."""

    topic_id: bytes
    partition_count: int


def changed(before: TopicDescription, now: TopicDescription) -> str | None:
    """Why what was read so far is of no use any more, as the rest of a sentence about the topic, or None."""
    if now.topic_id == ZERO_UUID:
        is_old = before.topic_id == ZERO_UUID
        return "has no topic id: the cluster is too old for remote storage" if is_old else "has lost its topic id"
    if now.topic_id != before.topic_id:
        return "was deleted and made anew"
    if now.partition_count != before.partition_count:
        counts = f"{before.partition_count} to {now.partition_count}"
        return f"went from {counts} partitions, which maps user partitions anew"
    return None


def position_within(partition: int, position: int, log_start_offset: int, high_watermark: int) -> int:
    """Where to go on in a log that has this range now: retention may have passed us.

    Raises:
        MetadataOffsetOutOfRange: the log ends before the position; going backwards would deliver twice.
    """
    if position > high_watermark:
        raise MetadataOffsetOutOfRange(
            f"read up to {position}, but the log ends at {high_watermark}: it was truncated or made anew"
        )
    if 0 < position < log_start_offset:
        _log.warning(
            "metadata_records_lost_to_retention",
            metadata_partition=partition,
            position=position,
            log_start_offset=log_start_offset,
        )
    return max(position, log_start_offset)


class PartitionReader:
    """One assignment of one partition. `_delivery` makes `stop` a barrier; re-entrant, so a receiver may stop it."""

    def __init__(self, partition: int, start_offset: int, deliver: Deliver, progress: Progress | None) -> None:
        self.partition = partition
        self.position = max(start_offset, 0)
        self._deliver = deliver
        self._progress = progress
        self._end_offset: int | None = None
        self._delivery = threading.RLock()
        self._stopped = False

    def assign(self, log_start_offset: int, high_watermark: int) -> None:
        """The log's range is known. The first end offset stays: readiness is measured against it."""
        with self._delivery:
            if self._end_offset is None:
                self._end_offset = high_watermark
            self.position = max(self.position, log_start_offset)
            self._report()

    def hand_over(self, records: Sequence[MetadataEvent]) -> None:
        """Deliver one slice and move behind it."""
        with self._delivery:
            if not self._stopped:
                call_receiver(self._deliver, records)
                self.position = records[-1].offset + 1
                self._report()

    def advance(self, next_offset: int) -> None:
        """Move over offsets that hold no records."""
        with self._delivery:
            if next_offset > self.position:
                self.position = next_offset
                self._report()

    def stop(self) -> None:
        """Deliver nothing more, once this returned."""
        with self._delivery:
            self._stopped = True

    def _report(self) -> None:
        if self._progress is not None and self._end_offset is not None and not self._stopped:
            call_receiver(self._progress, self.partition, self.position, self._end_offset)
