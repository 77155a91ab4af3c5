"""Synthetic segments for tests: RecordBatch v2 bytes, the indexes Kafka would write for them, a published tier.

    batches = [data_batch(0, record_count=10), data_batch(10, record_count=10, leader_epoch=1)]
    segment = build_segment(batches)                      # log and index bytes, epochs, offsets
    segment = filled_segment(5000, batch_count=40)        # the same, when the content does not matter
    metadata = publish(tier_dir, partition, segment)      # files in LocalTieredStorage's layout, FINISHED metadata

Everything is deterministic: the same arguments give the same bytes and ids. Record values begin with their offset
(`value_of`), so that a reader's output can be checked record by record. Names of files are made here
independently of `storage.formats`, which the tests compare with.
"""

import hashlib
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from crc32c import crc32c

from storage.indexes.leader_epochs import encode_leader_epochs
from storage.indexes.offset_index import build_offset_index
from storage.indexes.producer_snapshot import ProducerState, encode_producer_snapshot
from storage.indexes.transaction_index import AbortedTransaction, encode_transaction_index
from storage.model import (
    CustomMetadata,
    LogSegmentData,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    TopicIdPartition,
    Uuid,
    uuid_to_text,
)
from tests.support.index_writer import build_time_index

FIRST_TIMESTAMP_MS = 1_700_000_000_000
NO_PRODUCER_ID = -1

_ATTRIBUTE_LOG_APPEND_TIME = 0x08
_ATTRIBUTE_TRANSACTIONAL = 0x10
_ATTRIBUTE_CONTROL = 0x20
_BATCH_PREFIX = struct.Struct(">qiibI")  # base offset, length, partition leader epoch, magic, crc
_BATCH_CHECKED = struct.Struct(">hiqqqhii")  # attributes … record count: what the CRC covers, with the records


@dataclass(frozen=True, slots=True)
class Record:
    """One record to encode; its offset and timestamp come from its place in the batch."""

    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()


@dataclass(frozen=True, slots=True)
class ProducerFields:
    """The producer part of a batch header; the default is a producer without idempotence."""

    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = -1
    base_sequence: int = -1
    transactional: bool = False


@dataclass(frozen=True, slots=True)
class BatchHeader:
    """What `build_segment` needs of a batch; read from its bytes."""

    base_offset: int
    last_offset: int
    leader_epoch: int
    max_timestamp_ms: int


@dataclass(frozen=True, slots=True)
class SyntheticSegment:
    """A segment and its indexes, as the objects hold them. `end_offset` is inclusive.

    `batch_positions` are the byte positions in `log` where the batches begin.
    """

    base_offset: int
    end_offset: int
    log: bytes = field(repr=False)
    offset_index: bytes = field(repr=False)
    time_index: bytes = field(repr=False)
    transaction_index: bytes | None
    producer_snapshot: bytes = field(repr=False)
    leader_epoch_checkpoint: bytes
    segment_leader_epochs: Mapping[int, int]
    max_timestamp_ms: int
    batches: tuple[bytes, ...] = field(repr=False)
    batch_positions: tuple[int, ...] = field(repr=False)

    def objects(self) -> dict[str, bytes]:
        """The objects by the suffix of LocalTieredStorage."""
        objects = {
            "log": self.log,
            "index": self.offset_index,
            "timeindex": self.time_index,
            "snapshot": self.producer_snapshot,
            "leader_epoch_checkpoint": self.leader_epoch_checkpoint,
        }
        if self.transaction_index is not None:
            objects["txnindex"] = self.transaction_index
        return objects


def uuid_of(name: str) -> Uuid:
    """A uuid that depends on the name only."""
    return Uuid(hashlib.sha256(name.encode()).digest()[:16])


def topic_partition(topic: str = "orders", partition: int = 0) -> TopicIdPartition:
    """A partition whose topic id depends on the topic's name only."""
    return TopicIdPartition(topic_id=uuid_of(f"topic {topic}"), partition=partition, topic=topic)


def value_of(offset: int, value_bytes: int) -> bytes:
    """The value that `data_batch` gives the record at `offset`: the offset in 20 digits, padded or cut."""
    return f"{offset:020d}:".encode().ljust(value_bytes, b"x")[:value_bytes]


def data_batch(
    base_offset: int,
    *,
    record_count: int = 1,
    value_bytes: int = 100,
    records: Sequence[Record] | None = None,
    leader_epoch: int = 0,
    first_timestamp_ms: int | None = None,
    producer: ProducerFields = ProducerFields(),
    last_offset_delta: int | None = None,
    is_append_time: bool = False,
) -> bytes:
    """An uncompressed batch of `records`, or of `record_count` generated ones.

    Timestamps rise by 1 ms a record from `first_timestamp_ms` (FIRST_TIMESTAMP_MS + base offset).
    A larger `last_offset_delta` than the records need leaves a hole at the end, as compaction does.
    `is_append_time`: the timestamp type is LogAppendTime; readers then take the batch's largest for all records.
    """
    if records is None:
        records = [
            Record(value=value_of(base_offset + delta, value_bytes), key=f"key-{base_offset + delta}".encode())
            for delta in range(record_count)
        ]
    first_ms = FIRST_TIMESTAMP_MS + base_offset if first_timestamp_ms is None else first_timestamp_ms
    checked = _BATCH_CHECKED.pack(
        (_ATTRIBUTE_TRANSACTIONAL if producer.transactional else 0)
        | (_ATTRIBUTE_LOG_APPEND_TIME if is_append_time else 0),
        len(records) - 1 if last_offset_delta is None else last_offset_delta,
        first_ms,
        first_ms + max(len(records) - 1, 0),
        producer.producer_id,
        producer.producer_epoch,
        producer.base_sequence,
        len(records),
    ) + b"".join(encode_record(record, delta, delta) for delta, record in enumerate(records))
    return _frame_batch(base_offset, leader_epoch, checked)


def control_batch(
    base_offset: int,
    *,
    producer_id: int,
    producer_epoch: int = 0,
    commit: bool = False,
    leader_epoch: int = 0,
    timestamp_ms: int | None = None,
) -> bytes:
    """A transaction marker: COMMIT or ABORT (the default) of that producer."""
    marker_ms = FIRST_TIMESTAMP_MS + base_offset if timestamp_ms is None else timestamp_ms
    key = struct.pack(">hh", 0, 1 if commit else 0)  # version, type
    value = struct.pack(">hi", 0, 0)  # version, coordinator epoch
    attributes = _ATTRIBUTE_TRANSACTIONAL | _ATTRIBUTE_CONTROL
    checked = _BATCH_CHECKED.pack(attributes, 0, marker_ms, marker_ms, producer_id, producer_epoch, -1, 1)
    return _frame_batch(base_offset, leader_epoch, checked + encode_record(Record(key, value), 0, 0))


def build_segment(
    batches: Sequence[bytes],
    *,
    end_offset: int | None = None,
    aborted: Sequence[AbortedTransaction] = (),
    lineage: Sequence[tuple[int, int]] | None = None,
    producers: Sequence[ProducerState] = (),
    interval_bytes: int = 4096,
) -> SyntheticSegment:
    """A segment of these batches with the indexes that Kafka would write.

    Args:
        end_offset: when larger than the last batch's last offset, as Kafka has it for a segment with a gap behind.
        aborted: entries of the transaction index; without any the segment has none.
        lineage: the leader epoch checkpoint, when it is longer than this segment's own epochs.
        interval_bytes: `index.interval.bytes`; 0 gives every batch but the first an entry.
    """
    headers = [read_batch_header(batch) for batch in batches]
    positions = [sum(map(len, batches[:number])) for number in range(len(batches))]
    base_offset = headers[0].base_offset
    epochs: dict[int, int] = {}
    for header in headers:
        epochs.setdefault(header.leader_epoch, header.base_offset)
    offsets = [(position, header.last_offset) for position, header in zip(positions, headers, strict=True)]
    timestamps = [(*pair, header.max_timestamp_ms) for pair, header in zip(offsets, headers, strict=True)]
    return SyntheticSegment(
        base_offset=base_offset,
        end_offset=headers[-1].last_offset if end_offset is None else end_offset,
        log=b"".join(batches),
        offset_index=build_offset_index(base_offset, offsets, interval_bytes),
        time_index=build_time_index(base_offset, timestamps, interval_bytes),
        transaction_index=encode_transaction_index(aborted) if aborted else None,
        producer_snapshot=encode_producer_snapshot(producers),
        leader_epoch_checkpoint=encode_leader_epochs(sorted(epochs.items()) if lineage is None else lineage),
        segment_leader_epochs=epochs,
        max_timestamp_ms=max(header.max_timestamp_ms for header in headers),
        batches=tuple(batches),
        batch_positions=tuple(positions),
    )


def filled_segment(
    base_offset: int = 0,
    *,
    batch_count: int = 20,
    records_per_batch: int = 10,
    value_bytes: int = 100,
    leader_epoch: int = 0,
    interval_bytes: int = 4096,
) -> SyntheticSegment:
    """A segment of `batch_count` equal batches: `batch_count * records_per_batch` offsets from `base_offset` on."""
    batches = [
        data_batch(
            base_offset + number * records_per_batch,
            record_count=records_per_batch,
            value_bytes=value_bytes,
            leader_epoch=leader_epoch,
        )
        for number in range(batch_count)
    ]
    return build_segment(batches, interval_bytes=interval_bytes)


def metadata_of(
    partition: TopicIdPartition,
    segment: SyntheticSegment,
    *,
    copy_attempt: int = 0,
    state: RemoteLogSegmentState = RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
    custom_metadata: CustomMetadata | None = None,
) -> RemoteLogSegmentMetadata:
    """The segment's metadata; its id depends on partition, base offset and `copy_attempt` only."""
    segment_id = uuid_of(f"segment {partition} {segment.base_offset} {copy_attempt}")
    return RemoteLogSegmentMetadata(
        segment_id=RemoteLogSegmentId(partition, segment_id),
        start_offset=segment.base_offset,
        end_offset=segment.end_offset,
        max_timestamp_ms=segment.max_timestamp_ms,
        broker_id=1,
        event_timestamp_ms=FIRST_TIMESTAMP_MS,
        segment_size_bytes=len(segment.log),
        segment_leader_epochs=segment.segment_leader_epochs,
        state=state,
        custom_metadata=custom_metadata,
        txn_index_empty=segment.transaction_index is None,
    )


def publish(
    tier_dir: Path, partition: TopicIdPartition, segment: SyntheticSegment, *, copy_attempt: int = 0
) -> RemoteLogSegmentMetadata:
    """Write the segment's objects under `tier_dir` (LocalTieredStorage's `dir`) and give its FINISHED metadata."""
    metadata = metadata_of(partition, segment, copy_attempt=copy_attempt)
    for suffix, content in segment.objects().items():
        path = object_path(tier_dir, metadata, suffix)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return metadata


def object_path(tier_dir: Path, metadata: RemoteLogSegmentMetadata, suffix: str) -> Path:
    """Return where LocalTieredStorage has an object: for tests that remove, cut or replace one."""
    partition = metadata.topic_id_partition
    directory = f"{partition.topic}-{partition.partition}-{uuid_to_text(partition.topic_id)}"
    name = f"{metadata.start_offset:020d}-{uuid_to_text(metadata.segment_id.id)}.{suffix}"
    return tier_dir / "kafka-tiered-storage" / directory / name


def segment_files(local_dir: Path, segment: SyntheticSegment) -> LogSegmentData:
    """Write the segment's files as a broker has them in its log directory, for `copy_log_segment_data`."""
    local_dir.mkdir(parents=True, exist_ok=True)
    paths: dict[str, Path] = {}
    for suffix, content in segment.objects().items():
        paths[suffix] = local_dir / f"{segment.base_offset:020d}.{suffix}"
        paths[suffix].write_bytes(content)
    return LogSegmentData(
        log_segment=paths["log"],
        offset_index=paths["index"],
        time_index=paths["timeindex"],
        leader_epoch_index=segment.leader_epoch_checkpoint,
        transaction_index=paths.get("txnindex"),
        producer_snapshot_index=paths["snapshot"],
    )


def read_batch_header(batch: bytes) -> BatchHeader:
    """The fields of a whole v2 batch that indexes are made of."""
    base_offset, length, leader_epoch, magic, _ = _BATCH_PREFIX.unpack_from(batch)
    assert (magic, length + 12) == (2, len(batch)), "not one whole v2 batch"
    _, last_offset_delta, _, max_timestamp_ms, *_ = _BATCH_CHECKED.unpack_from(batch, _BATCH_PREFIX.size)
    return BatchHeader(base_offset, base_offset + last_offset_delta, leader_epoch, max_timestamp_ms)


def encode_record(record: Record, offset_delta: int, timestamp_delta_ms: int) -> bytes:
    """A v2 record with its length in front."""
    body = b"\x00" + _varint(timestamp_delta_ms) + _varint(offset_delta)
    body += _length_prefixed(record.key) + _length_prefixed(record.value) + _varint(len(record.headers))
    for name, value in record.headers:
        body += _length_prefixed(name.encode()) + _length_prefixed(value)
    return _varint(len(body)) + body


def _frame_batch(base_offset: int, leader_epoch: int, checked: bytes) -> bytes:
    length = _BATCH_PREFIX.size - 12 + len(checked)  # everything after the length field
    return _BATCH_PREFIX.pack(base_offset, length, leader_epoch, 2, crc32c(checked)) + checked


def _length_prefixed(content: bytes | None) -> bytes:
    return _varint(-1) if content is None else _varint(len(content)) + content


def _varint(value: int) -> bytes:
    """Zigzag, then base 128 with the low group first."""
    rest = (value << 1) ^ (value >> 63)
    encoded = bytearray()
    while rest > 0x7F:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    encoded.append(rest)
    return bytes(encoded)
