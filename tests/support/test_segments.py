"""The synthetic segments themselves: an independent client reads their batches, and they are what they claim."""

from pathlib import Path
from typing import Any

import pytest
from aiokafka.record.memory_records import MemoryRecords

from storage.model import RemoteLogSegmentState
from tests.support.segments import (
    FIRST_TIMESTAMP_MS,
    ProducerFields,
    Record,
    build_segment,
    control_batch,
    data_batch,
    filled_segment,
    object_path,
    publish,
    topic_partition,
    value_of,
)


def decoded(log: bytes) -> list[Any]:
    """aiokafka's own batches of these bytes, checksums verified."""
    memory_records = MemoryRecords(log)
    batches = []
    while memory_records.has_next():
        batch = memory_records.next_batch()
        assert batch.validate_crc()
        batches.append(batch)
    assert memory_records.size_in_bytes() == len(log)
    return batches


def test_an_independent_client_reads_the_records() -> None:
    (batch,) = decoded(data_batch(500, record_count=200, value_bytes=30, leader_epoch=4))
    assert (batch.base_offset, batch.next_offset, batch.is_control_batch) == (500, 700, False)
    records = list(batch)
    assert [record.offset for record in records] == list(range(500, 700))
    assert [record.value for record in records] == [value_of(offset, 30) for offset in range(500, 700)]
    assert [record.timestamp for record in records] == [FIRST_TIMESTAMP_MS + offset for offset in range(500, 700)]


def test_an_independent_client_reads_nulls_and_headers() -> None:
    given = [Record(), Record(b"", b""), Record(b"k", None, (("h", b"1"), ("h", None)))]
    (batch,) = decoded(data_batch(0, records=given))
    assert [(record.key, record.value, list(record.headers)) for record in batch] == [
        (None, None, []),
        (b"", b"", []),
        (b"k", None, [("h", b"1"), ("h", None)]),
    ]


def test_an_independent_client_reads_transactions() -> None:
    producer = ProducerFields(producer_id=9, producer_epoch=2, base_sequence=0, transactional=True)
    data, abort, commit = decoded(
        data_batch(0, record_count=3, producer=producer)
        + control_batch(3, producer_id=9)
        + control_batch(4, producer_id=9, commit=True)
    )
    assert (data.is_transactional, data.is_control_batch, data.producer_id) == (True, False, 9)
    assert (abort.is_transactional, abort.is_control_batch, abort.producer_id) == (True, True, 9)
    assert [next(marker).key for marker in (abort, commit)] == [b"\0\0\0\0", b"\0\0\0\1"]


def test_a_segment_knows_its_batches_offsets_and_epochs() -> None:
    batches = [data_batch(10, record_count=5), data_batch(15, record_count=5, leader_epoch=2, last_offset_delta=9)]
    segment = build_segment(batches, end_offset=30)
    assert (segment.base_offset, segment.end_offset) == (10, 30)
    assert segment.batch_positions == (0, len(batches[0]))
    assert segment.log == batches[0] + batches[1]
    assert segment.segment_leader_epochs == {0: 10, 2: 15}
    assert segment.leader_epoch_checkpoint == b"0\n2\n0 10\n2 15\n"
    assert segment.max_timestamp_ms == FIRST_TIMESTAMP_MS + 19
    assert build_segment(batches).end_offset == 24


def test_segments_are_the_same_each_time() -> None:
    assert filled_segment(70) == filled_segment(70)
    assert filled_segment(70, batch_count=3).end_offset == 99


@pytest.mark.parametrize("partition_number", [0, 12])
def test_a_published_segment_lies_where_kafka_puts_it(tmp_path: Path, partition_number: int) -> None:
    metadata = publish(tmp_path, topic_partition("a-topic", partition_number), filled_segment(100))
    log_path = object_path(tmp_path, metadata, "log")
    assert log_path.read_bytes() == filled_segment(100).log
    assert log_path.parent.parent == tmp_path / "kafka-tiered-storage"
    assert log_path.parent.name.startswith(f"a-topic-{partition_number}-")
    assert metadata.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
    assert metadata.txn_index_empty
