"""Batches whose records have the times that a test says, in every format and compression.

    timed_batch(100, [(0, 1700), (3, 1650)], codec=4)            # v2, offsets 100 and 103, zstd
    timed_messages(1, [(100, 1700), (103, 1650)], codec=1)       # v1 messages in a gzip wrapper

Bytes are made here by the formats' own words (KIP-98, KIP-32), independently of `storage.log.batch_records`.
"""

import gzip
import struct
import zlib
from collections.abc import Sequence

import cramjam
import lz4.frame  # type: ignore[import-untyped]  # it ships neither types nor stubs
import zstandard
from crc32c import crc32c

from tests.support.segments import Record, encode_record

NONE, GZIP, SNAPPY, LZ4, ZSTD = CODECS = range(5)
XERIAL_HEADER = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)

LOG_APPEND_TIME, TRANSACTIONAL, CONTROL = 0x08, 0x10, 0x20

_CHECKED = struct.Struct(">hiqqqhii")


def timed_batch(
    base_offset: int,
    records: Sequence[tuple[int, int]],
    *,
    codec: int = NONE,
    leader_epoch: int = 0,
    attributes: int = 0,
    append_time_ms: int | None = None,
    value_bytes: int = 20,
    last_offset_delta: int | None = None,
    raw_snappy: bool = False,
) -> bytes:
    """A v2 batch of (offset delta, timestamp) records. With `append_time_ms` it is of LogAppendTime."""
    first_ms = records[0][1] if records else -1
    max_ms = max((timestamp for _, timestamp in records), default=-1) if append_time_ms is None else append_time_ms
    value = Record(value=b"v" * value_bytes)
    plain = b"".join(encode_record(value, delta, timestamp - first_ms) for delta, timestamp in records)
    flags = codec | attributes | (0 if append_time_ms is None else LOG_APPEND_TIME)
    last_delta = (records[-1][0] if records else 0) if last_offset_delta is None else last_offset_delta
    return framed_batch(
        base_offset,
        compressed(codec, plain, raw_snappy=raw_snappy),
        flags=flags,
        last_delta=last_delta,
        times=(first_ms, max_ms),
        record_count=len(records),
        leader_epoch=leader_epoch,
    )


def framed_batch(
    base_offset: int,
    body: bytes,
    *,
    flags: int = 0,
    last_delta: int = 0,
    times: tuple[int, int] = (0, 0),
    record_count: int = 1,
    leader_epoch: int = 0,
) -> bytes:
    """A v2 batch around whatever stands for its records; its CRC is right."""
    checked = _CHECKED.pack(flags, last_delta, *times, -1, -1, -1, record_count) + body
    head = struct.pack(">qiibI", base_offset, 9 + len(checked), leader_epoch, 2, crc32c(checked))
    return head + checked


def timed_messages(
    magic: int, records: Sequence[tuple[int, int]], *, codec: int = NONE, append_time_ms: int | None = None
) -> bytes:
    """Messages of v0 or v1 with these (offset, timestamp); with a codec, one that wraps them all."""
    if codec == NONE:
        return b"".join(message(magic, offset, timestamp, b"value") for offset, timestamp in records)
    first, last = records[0][0], records[-1][0]
    shift = first if magic == 1 else 0
    inner = b"".join(message(magic, offset - shift, timestamp, b"value") for offset, timestamp in records)
    wrapped = compressed(codec, inner)
    if codec == LZ4 and magic == 0:
        wrapped = wrapped[:6] + bytes([wrapped[6] ^ 0x5A]) + wrapped[7:]
    times = [timestamp for _, timestamp in records] if append_time_ms is None else [append_time_ms]
    flags = codec | (0 if append_time_ms is None else LOG_APPEND_TIME)
    return message(magic, last, max(times), wrapped, flags)


def message(magic: int, offset: int, timestamp_ms: int, value: bytes, attributes: int = 0) -> bytes:
    """One message of v0 or v1, with a key."""
    timestamp = struct.pack(">q", timestamp_ms) if magic else b""
    fields = timestamp + struct.pack(">i", 3) + b"key" + struct.pack(">i", len(value)) + value
    checked = struct.pack(">bb", magic, attributes) + fields
    return struct.pack(">qiI", offset, 4 + len(checked), zlib.crc32(checked)) + checked


def compressed(codec: int, plain: bytes, *, raw_snappy: bool = False) -> bytes:
    """As Kafka's producers do: snappy in xerial's framing unless raw, lz4 in frames of independent blocks."""
    if codec == GZIP:
        return gzip.compress(plain, mtime=0)
    if codec == SNAPPY:
        if raw_snappy:
            return bytes(cramjam.snappy.compress_raw(plain))
        blocks = [bytes(cramjam.snappy.compress_raw(plain[at : at + 1000])) for at in range(0, len(plain), 1000)]
        return XERIAL_HEADER + b"".join(struct.pack(">i", len(block)) + block for block in blocks)
    if codec == LZ4:
        return bytes(lz4.frame.compress(plain, block_linked=False))
    if codec == ZSTD:
        return zstandard.compress(plain)
    return plain
