"""What a segment's headers tell: sums by day, codec, size and producer, of all of it or of some offsets."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.jobs import segment_stats as module
from pipeline.jobs.segment_stats import SCHEMA, segment_stats
from pipeline.jobs.segment_work import SegmentPiece
from storage.errors import CorruptObjectError
from tests.support.for_each import for_each
from tests.support.segments import (
    ProducerFields,
    SyntheticSegment,
    build_segment,
    control_batch,
    data_batch,
    filled_segment,
    metadata_of,
)
from tests.support.tier import PARTITION, MemoryStore
from tests.support.timed_batches import ZSTD, timed_batch

DAY_MS = 86_400_000
KEYS = ("day", "codec", "size_class", "producer_id", "is_transactional", "is_control")


def rows_of(segment: SyntheticSegment, first: int | None = None, end: int | None = None) -> list[dict[str, Any]]:
    metadata = metadata_of(PARTITION, segment)
    store = MemoryStore({metadata.segment_id.id: segment.objects()})
    piece = SegmentPiece(
        metadata, segment.base_offset if first is None else first, segment.end_offset + 1 if end is None else end
    )
    batches = list(segment_stats(store, piece))
    assert all(batch.schema == SCHEMA for batch in batches)
    return [row for batch in batches for row in batch.to_pylist()]


def test_batches_of_the_same_kind_are_one_row() -> None:
    segment = filled_segment(500, batch_count=7, records_per_batch=10)
    (row,) = rows_of(segment)
    size = len(segment.batches[0])
    assert (row["topic"], row["partition"], row["producer_id"]) == (PARTITION.topic, PARTITION.partition, -1)
    assert (row["batches"], row["records"], row["bytes"]) == (7, 70, len(segment.log))
    assert row["min_batch_bytes"] == row["max_batch_bytes"] == size
    assert row["size_class"] / 2 < size <= row["size_class"]
    assert row["max_timestamp_ms"] - row["min_timestamp_ms"] == 69
    assert (row["codec"], row["is_transactional"], row["is_control"]) == ("none", False, False)


def test_days_codecs_and_producers_are_rows_of_their_own() -> None:
    producer = ProducerFields(producer_id=9, producer_epoch=0, base_sequence=0, transactional=True)
    segment = build_segment(
        [
            timed_batch(0, [(0, DAY_MS - 1), (1, DAY_MS)], codec=ZSTD),
            timed_batch(2, [(0, 5 * DAY_MS)]),
            data_batch(3, first_timestamp_ms=5 * DAY_MS, producer=producer),
            control_batch(4, producer_id=9, timestamp_ms=5 * DAY_MS),
        ]
    )
    rows = [tuple(row[key] for key in KEYS if key != "size_class") for row in rows_of(segment)]
    days = [str(row[0]) for row in rows]
    assert days == ["1970-01-02", "1970-01-06", "1970-01-06", "1970-01-06"]
    assert [row[1:] for row in rows] == [
        ("zstd", -1, False, False),
        ("none", -1, False, False),
        ("none", 9, True, False),
        ("none", 9, True, True),
    ]


@for_each("timestamp_ms", [-1, (module.DAY_MAX + 1) * DAY_MS])
def test_a_time_that_is_none_has_no_day(timestamp_ms: int) -> None:
    (row,) = rows_of(build_segment([timed_batch(0, [(0, timestamp_ms)])]))
    assert row["day"] is None


@given(st.data())
def test_two_pieces_of_a_segment_are_the_whole(data: st.DataObject) -> None:
    segment = filled_segment(500, batch_count=10, records_per_batch=10)
    cut = data.draw(st.integers(0, 10)) * 10 + 500
    parts = [*rows_of(segment, 500, cut), *rows_of(segment, cut, 600)]
    (whole,) = rows_of(segment)
    # A batch with the log start inside is counted.
    assert [row["records"] for row in rows_of(segment, 515)] == [90]
    for name in ("batches", "records", "bytes"):
        assert sum(row[name] for row in parts) == whole[name]


def test_many_producers_are_several_batches_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GROUPS_MAX", 2)
    batches = [
        data_batch(at, producer=ProducerFields(producer_id=at, producer_epoch=0, base_sequence=0)) for at in range(5)
    ]
    assert [row["producer_id"] for row in rows_of(build_segment(batches))] == [0, 1, 2, 3, 4]


def test_a_header_that_makes_no_sense_is_named() -> None:
    segment = filled_segment(0, batch_count=3)
    broken = bytearray(segment.log)
    broken[segment.batch_positions[1] + 16] = 77
    metadata = metadata_of(PARTITION, segment)
    store = MemoryStore({metadata.segment_id.id: {**segment.objects(), "log": bytes(broken)}})
    with pytest.raises(CorruptObjectError, match=str(segment.batch_positions[1])):
        list(segment_stats(store, SegmentPiece(metadata, 0, segment.end_offset + 1)))
