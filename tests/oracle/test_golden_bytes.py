"""Our codecs against Kafka's own classes, both ways, over drawn values: the same bytes, the same fields.

This is what anyone with Java can check; the shared vectors add what real brokers wrote.
"""

import random
from collections.abc import Callable, Sequence

import pytest

from storage.errors import MetadataRecordError
from storage.indexes.leader_epochs import encode_leader_epochs, parse_leader_epochs
from storage.indexes.offset_index import OffsetIndex, encode_offset_index
from storage.indexes.producer_snapshot import ProducerState, encode_producer_snapshot, parse_producer_snapshot
from storage.indexes.time_index import TimeIndex
from storage.indexes.transaction_index import AbortedTransaction, TransactionIndex, encode_transaction_index
from storage.metadata.encoding import encode
from storage.metadata.event_log import metadata_partition
from storage.metadata.serde import MetadataRecord, decode
from storage.model import (
    CustomMetadata,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
    TopicIdPartition,
    Uuid,
    uuid_to_text,
)
from tests.support.index_writer import encode_time_index
from tests.support.oracle import Answer, Oracle

RANDOM = random.Random(405)
"""A seed of its own: the values are the same on every run."""

RECORDS_PER_KIND = 40


def _partition() -> TopicIdPartition:
    topic = RANDOM.choice(["orders", "a", "x" * 249, "with-dash.and_dots"])
    return TopicIdPartition(Uuid(RANDOM.randbytes(16)), RANDOM.choice([0, 1, 7, 2**31 - 1]), topic)


def _custom_metadata() -> CustomMetadata | None:
    size = RANDOM.choice([None, 0, 1, 126, 127, 128, 200])
    return None if size is None else CustomMetadata(RANDOM.randbytes(size))


def _segment() -> RemoteLogSegmentMetadata:
    start_offset = RANDOM.choice([0, 1, 10**12, RANDOM.randrange(2**62)])
    epochs = sorted(RANDOM.sample(range(1000), RANDOM.choice([1, 1, 2, 5, 200])))
    return RemoteLogSegmentMetadata(
        RemoteLogSegmentId(_partition(), Uuid(RANDOM.randbytes(16))),
        start_offset,
        start_offset + RANDOM.randrange(1, 10**6),
        RANDOM.randrange(2**43),
        RANDOM.randrange(2**31),
        RANDOM.randrange(2**43),
        RANDOM.randrange(2**31),
        {epoch: start_offset + at for at, epoch in enumerate(epochs)},
        RANDOM.choice(list(RemoteLogSegmentState)),
        _custom_metadata(),
        RANDOM.random() < 0.5,
    )


def _update() -> RemoteLogSegmentMetadataUpdate:
    return RemoteLogSegmentMetadataUpdate(
        RemoteLogSegmentId(_partition(), Uuid(RANDOM.randbytes(16))),
        RANDOM.randrange(2**43),
        RANDOM.choice(list(RemoteLogSegmentState)),
        RANDOM.randrange(2**31),
        _custom_metadata(),
    )


def _partition_delete() -> RemotePartitionDeleteMetadata:
    states = list(RemotePartitionDeleteState)
    return RemotePartitionDeleteMetadata(_partition(), RANDOM.choice(states), RANDOM.randrange(2**43), 3)


def _fields(record: MetadataRecord) -> Answer:
    """The oracle's form of a record."""
    own: Answer
    if isinstance(record, RemotePartitionDeleteMetadata):
        partition, own = record.topic_id_partition, {"kind": "partition_delete"}
    elif isinstance(record, RemoteLogSegmentMetadataUpdate):
        partition = record.segment_id.topic_id_partition
        own = {"kind": "update", "segment_id": uuid_to_text(record.segment_id.id), **_custom_field(record)}
    else:
        partition = record.topic_id_partition
        own = {
            "kind": "segment",
            "segment_id": uuid_to_text(record.segment_id.id),
            "start_offset": record.start_offset,
            "end_offset": record.end_offset,
            "max_timestamp_ms": record.max_timestamp_ms,
            "segment_size_bytes": record.segment_size_bytes,
            "segment_leader_epochs": [list(entry) for entry in record.segment_leader_epochs.items()],
            "txn_index_empty": record.txn_index_empty,
            **_custom_field(record),
        }
    return {
        "topic": partition.topic,
        "topic_id": uuid_to_text(partition.topic_id),
        "partition": partition.partition,
        "state": int(record.state),
        "broker_id": record.broker_id,
        "event_timestamp_ms": record.event_timestamp_ms,
        **own,
    }


def _custom_field(record: RemoteLogSegmentMetadata | RemoteLogSegmentMetadataUpdate) -> Answer:
    return {"custom_metadata": None if record.custom_metadata is None else record.custom_metadata.hex()}


@pytest.mark.parametrize("draw", [_segment, _update, _partition_delete])
def test_metadata_records_are_kafkas_byte_for_byte(oracle: Oracle, draw: Callable[[], MetadataRecord]) -> None:
    records: Sequence[MetadataRecord] = [draw() for _ in range(RECORDS_PER_KIND)]
    encoded = oracle.ask([{"do": "encode", **_fields(record)} for record in records])
    assert [answer["hex"] for answer in encoded] == [encode(record).hex() for record in records]
    assert [decode(bytes.fromhex(answer["hex"])) for answer in encoded] == records
    decoded = oracle.ask([{"do": "decode", "hex": encode(record).hex()} for record in records])
    assert decoded == [_fields(record) for record in records]


def test_what_kafka_refuses_is_refused(oracle: Oracle) -> None:
    whole = encode(_update())
    broken = [b"", whole[:1], whole[:-1], whole + b"\x00", b"\x02" + whole[1:], b"\x01\x09" + whole[2:]]
    for answer, value in zip(
        oracle.ask([{"do": "decode", "hex": value.hex()} for value in broken]), broken, strict=True
    ):
        assert "error" in answer, f"Kafka takes {value.hex()}"
        with pytest.raises(MetadataRecordError):
            decode(value)


def test_partitions_of_the_metadata_topic_are_kafkas(oracle: Oracle) -> None:
    drawn = [(_partition(), RANDOM.choice([1, 3, 5, 50, 1000])) for _ in range(200)]
    asked = [
        {
            "do": "metadata_partition",
            "topic_id": uuid_to_text(partition.topic_id),
            "partition": partition.partition,
            "count": count,
        }
        for partition, count in drawn
    ]
    expected = [metadata_partition(partition.topic_id, partition.partition, count) for partition, count in drawn]
    assert [answer["metadata_partition"] for answer in oracle.ask(asked)] == expected


def _ascending(count: int, first: int, step_max: int) -> list[int]:
    value, values = first, []
    for _ in range(count):
        value += RANDOM.randrange(1, step_max)
        values.append(value)
    return values


def test_offset_indexes_are_written_and_searched_as_kafka_does(oracle: Oracle) -> None:
    base_offset = 10**10
    entries = list(zip(_ascending(300, base_offset, 1000), _ascending(300, 0, 5000), strict=True))
    targets = [base_offset, entries[0][0] - 1, entries[-1][0] + 5, *(offset for offset, _ in entries[::7])]
    targets += [offset + 1 for offset, _ in entries[::11]]
    data = encode_offset_index(base_offset, entries)
    written, read = oracle.ask(
        [
            {"do": "write_offset_index", "base_offset": base_offset, "entries": entries},
            {"do": "read_offset_index", "base_offset": base_offset, "hex": data.hex(), "targets": targets},
        ]
    )
    assert written["hex"] == data.hex()
    index = OffsetIndex(data, base_offset)
    assert read["found"] == [list(index.lookup(target)) for target in targets]


def test_time_indexes_are_written_and_searched_as_kafka_does(oracle: Oracle) -> None:
    base_offset = 5000
    entries = list(zip(_ascending(200, 1_700_000_000_000, 900), _ascending(200, base_offset, 40), strict=True))
    targets = [
        0,
        entries[0][0],
        entries[0][0] - 1,
        entries[-1][0] + 1,
        *(timestamp + 1 for timestamp, _ in entries[::9]),
    ]
    data = encode_time_index(base_offset, entries)
    written, read = oracle.ask(
        [
            {"do": "write_time_index", "base_offset": base_offset, "entries": entries},
            {"do": "read_time_index", "base_offset": base_offset, "hex": data.hex(), "targets": targets},
        ]
    )
    assert written["hex"] == data.hex()
    index = TimeIndex(data, base_offset)
    assert read["found"] == [list(index.lookup(target)) for target in targets]


def test_transaction_indexes_are_kafkas(oracle: Oracle) -> None:
    lasts = _ascending(50, 100, 50)
    aborted = [AbortedTransaction(RANDOM.randrange(2**40), last - 40, last, last + 1) for last in lasts]
    rows = [[one.producer_id, one.first_offset, one.last_offset, one.last_stable_offset] for one in aborted]
    data = encode_transaction_index(aborted)
    written, read = oracle.ask(
        [
            {"do": "write_transaction_index", "base_offset": 0, "entries": rows},
            {"do": "read_transaction_index", "base_offset": 0, "hex": data.hex()},
        ]
    )
    assert written["hex"] == data.hex()
    assert read["entries"] == rows
    assert list(TransactionIndex(data)) == aborted


def test_leader_epoch_checkpoints_are_kafkas(oracle: Oracle) -> None:
    entries = list(zip(_ascending(20, 0, 9), _ascending(20, 0, 10**9), strict=True))
    text = encode_leader_epochs(entries)
    written, read = oracle.ask(
        [{"do": "write_leader_epochs", "entries": entries}, {"do": "read_leader_epochs", "hex": text.hex()}]
    )
    assert written["hex"] == text.hex()
    assert read["entries"] == [list(entry) for entry in entries]
    assert list(parse_leader_epochs(text)) == entries


def test_producer_snapshots_are_read_by_kafka_and_its_own_by_us(oracle: Oracle) -> None:
    """Kafka writes producers in the order of its hash map, so bytes are compared for one producer, fields for many."""
    states = [
        ProducerState(
            1000 + at, at % 5, at, 10_000 + at, at % 3, 1_700_000_000_000 + at, 7, -1 if at % 2 else 9_000 + at
        )
        for at in range(20)
    ]
    rows = [list(_row(state)) for state in states]
    one, many, read = oracle.ask(
        [
            {"do": "write_producer_snapshot", "entries": rows[:1]},
            {"do": "write_producer_snapshot", "entries": rows},
            {"do": "read_producer_snapshot", "hex": encode_producer_snapshot(states).hex()},
        ]
    )
    assert one["hex"] == encode_producer_snapshot(states[:1]).hex()
    assert sorted(_row(state) for state in parse_producer_snapshot(bytes.fromhex(many["hex"]))) == sorted(
        map(tuple, rows)
    )
    assert sorted(read["entries"]) == sorted(rows)


def _row(state: ProducerState) -> tuple[int, ...]:
    return (
        state.producer_id,
        state.producer_epoch,
        state.last_sequence,
        state.last_offset,
        state.offset_delta,
        state.last_timestamp_ms,
        state.coordinator_epoch,
        state.current_transaction_first_offset,
    )
