"""Batches with whole records, as a scan hands them out, and what an independent decoder (aiokafka) makes of them.

blobs = [record_batch(0, [Given(0, 5, b"key", b"value")], codec=LZ4)]
table = decoded(RecordDecoder(...).decode(scanned(blobs), first_offset=0, end_offset=1))
assert table == independent_rows(blobs)
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from aiokafka.record.memory_records import MemoryRecords

from protocol.record_batches import read_header
from storage.log.log_walk import WalkedBatch
from tests.support.segments import FIRST_TIMESTAMP_MS, Record, encode_record
from tests.support.timed_batches import LOG_APPEND_TIME, NONE, compressed, framed_batch

Headers = tuple[tuple[str, bytes | None], ...]
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Given:
    """A record; its offset and timestamp (ms) are counted from the batch's."""

    delta: int
    timestamp_delta: int = 0
    key: bytes | None = None
    value: bytes | None = None
    headers: Headers = ()

    @property
    def plain(self) -> bytes:
        return encode_record(Record(self.key, self.value, self.headers), self.delta, self.timestamp_delta)


def record_batch(
    base_offset: int,
    records: Sequence[Given],
    *,
    codec: int = NONE,
    append_time_ms: int | None = None,
    base_timestamp_ms: int = FIRST_TIMESTAMP_MS,
    attributes: int = 0,
    last_delta: int | None = None,
    raw_snappy: bool = False,
) -> bytes:
    """A v2 batch of these records."""
    largest = max((base_timestamp_ms + record.timestamp_delta for record in records), default=-1)
    return framed_batch(
        base_offset,
        compressed(codec, b"".join(record.plain for record in records), raw_snappy=raw_snappy),
        flags=codec | attributes | (0 if append_time_ms is None else LOG_APPEND_TIME),
        last_delta=(records[-1].delta if records else 0) if last_delta is None else last_delta,
        times=(base_timestamp_ms, largest if append_time_ms is None else append_time_ms),
        record_count=len(records),
    )


def scanned(blobs: Iterable[bytes]) -> list[WalkedBatch]:
    """Whole batches as a scan of a log that consists of them gives them."""
    batches, position = [], 0
    for blob in blobs:
        batches.append(WalkedBatch(position, read_header(blob, 0), memoryview(blob)))
        position += len(blob)
    return batches


def decoded(batches: Iterable[pa.RecordBatch]) -> list[Row]:
    """The rows as plain values; a timestamp is a number of microseconds."""
    rows: list[Row] = []
    for batch in batches:
        batch.validate(full=True)
        columns = {}
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            columns[name] = (column.cast(pa.int64()) if name == "timestamp" else column).to_pylist()
        rows += [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    return rows


def independent_rows(blobs: Iterable[bytes], topic: str = "topic", partition: int = 3) -> list[Row]:
    """All rows of data batches as the Kafka source has them."""
    rows: list[Row] = []
    for blob in blobs:
        batch = MemoryRecords(blob).next_batch()
        if batch.is_control_batch:
            continue
        for record in batch:
            timestamp_type = -1 if record.timestamp_type is None else record.timestamp_type
            headers = [{"key": name, "value": _plain(value)} for name, value in record.headers]
            rows.append(
                {
                    "key": _plain(record.key),
                    "value": _plain(record.value),
                    "topic": topic,
                    "partition": partition,
                    "offset": record.offset,
                    "timestamp": (-1 if record.timestamp is None else record.timestamp) * 1000,
                    "timestampType": timestamp_type,
                    "headers": headers or None,
                }
            )
    return rows


def _plain(value: bytes | None) -> bytes | None:
    return None if value is None else bytes(value)


def as_truth(row: Row) -> dict[str, Any]:
    """In the form of the vectors' truth, without the leader epoch. The timestamp is a datetime, or microseconds."""
    key, value, timestamp = row["key"], row["value"], row["timestamp"]
    return {
        "o": row["offset"],
        "ts": timestamp // 1000 if isinstance(timestamp, int) else round(timestamp.timestamp() * 1000),
        "k": None if key is None else key.hex(),
        "v": None if value is None else hashlib.sha256(value).hexdigest(),
        "h": [[each["key"], None if each["value"] is None else each["value"].hex()] for each in row["headers"] or []],
    }
