"""What a segment's batch headers tell, as Arrow rows: nothing inside a batch is looked at.

One row for each combination of day, codec, batch size class and producer in the piece of a segment: few, since a
producer keeps its codec. Sums, minima and maxima go on adding up in Spark. A batch that reaches over an end of the
piece is in it: neighbours of a log meet between batches, and of a batch with the log start inside the whole is stored.

| column | what |
|---|---|
| topic, partition | |
| day | of the batch's max timestamp (UTC); null for format v0, which has none, and beyond the year 9999 |
| codec | none, gzip, snappy, lz4, zstd |
| size_class | the batch's bytes, as the power of two above |
| producer_id | −1 for producers without idempotence |
| is_transactional, is_control | |
| batches, records, bytes | `records` of a compressed v0 or v1 message is not known from its header: it counts as 1 |
| min_timestamp_ms, max_timestamp_ms | of the headers: the first record's, the largest |
| min_batch_bytes, max_batch_bytes | |
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from pipeline.jobs.segment_work import SegmentPiece, SegmentWork
from protocol.record_batches import COMPRESSION_MASK, BatchHeader
from storage.indexes.rebuild import scan_headers
from storage.model import RemoteLogSegmentMetadata
from storage.remote_storage_manager import RemoteStorageManager

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
DAY_MS = 86_400_000
DAY_MAX = 2_932_896
"""9999-12-31, the last that Spark shows."""
GROUPS_MAX = 100_000
"""Of one batch of rows, some 30 MB: a segment with more producers gives several."""

SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("day", pa.date32()),
        ("codec", pa.string()),
        ("size_class", pa.int64()),
        ("producer_id", pa.int64()),
        ("is_transactional", pa.bool_()),
        ("is_control", pa.bool_()),
        ("batches", pa.int64()),
        ("records", pa.int64()),
        ("bytes", pa.int64()),
        ("min_timestamp_ms", pa.int64()),
        ("max_timestamp_ms", pa.int64()),
        ("min_batch_bytes", pa.int64()),
        ("max_batch_bytes", pa.int64()),
    ]
)

SPARK_SCHEMA = (
    "topic string, partition int, day date, codec string, size_class bigint, producer_id bigint,"
    " is_transactional boolean, is_control boolean, batches bigint, records bigint, bytes bigint,"
    " min_timestamp_ms bigint, max_timestamp_ms bigint, min_batch_bytes bigint, max_batch_bytes bigint"
)

_Group = tuple[int | None, str, int, int, bool, bool]


@dataclass(slots=True)
class _Sums:
    batches: int = 0
    records: int = 0
    bytes: int = 0
    min_timestamp_ms: int = 2**63 - 1
    max_timestamp_ms: int = -(2**63)
    min_batch_bytes: int = 2**63 - 1
    max_batch_bytes: int = 0

    def add(self, header: BatchHeader) -> None:
        self.batches += 1
        self.records += 1 if header.record_count < 0 else header.record_count
        self.bytes += header.size_bytes
        self.min_timestamp_ms = min(self.min_timestamp_ms, header.base_timestamp)
        self.max_timestamp_ms = max(self.max_timestamp_ms, header.max_timestamp)
        self.min_batch_bytes = min(self.min_batch_bytes, header.size_bytes)
        self.max_batch_bytes = max(self.max_batch_bytes, header.size_bytes)


def segment_stats(manager: RemoteStorageManager, piece: SegmentPiece) -> Iterator[pa.RecordBatch]:
    """The rows of one piece.

    Raises:
        CorruptObjectError: a header makes no sense; names segment and position.
        RemoteStorageError: the log cannot be read.
    """
    segment = piece.segment
    groups: dict[_Group, _Sums] = {}
    for _, header in scan_headers(manager.open_log_segment(segment), segment):
        if header.last_offset < piece.first_offset:
            continue
        if header.base_offset >= piece.end_offset:
            break
        groups.setdefault(_group(header), _Sums()).add(header)
        if len(groups) == GROUPS_MAX:
            yield _rows(segment, groups)
            groups = {}
    yield _rows(segment, groups)


STATS = SegmentWork(name="stats-1", function=segment_stats, schema=SPARK_SCHEMA)


def _group(header: BatchHeader) -> _Group:
    codec, day = header.attributes & COMPRESSION_MASK, header.max_timestamp // DAY_MS
    return (
        day if 0 <= day <= DAY_MAX else None,
        CODECS[codec] if codec < len(CODECS) else f"codec {codec}",
        1 << (header.size_bytes - 1).bit_length(),
        header.producer_id,
        header.is_transactional,
        header.is_control,
    )


def _rows(segment: RemoteLogSegmentMetadata, groups: dict[_Group, _Sums]) -> pa.RecordBatch:
    partition = segment.topic_id_partition
    days, codecs, size_classes, producers, transactional, control = zip(*groups, strict=True) if groups else ((),) * 6
    sums = list(groups.values())
    columns = [
        [partition.topic] * len(sums),
        [partition.partition] * len(sums),
        pa.array(days, pa.int32()).cast(pa.date32()),
        codecs,
        size_classes,
        producers,
        transactional,
        control,
        [each.batches for each in sums],
        [each.records for each in sums],
        [each.bytes for each in sums],
        [each.min_timestamp_ms for each in sums],
        [each.max_timestamp_ms for each in sums],
        [each.min_batch_bytes for each in sums],
        [each.max_batch_bytes for each in sums],
    ]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
