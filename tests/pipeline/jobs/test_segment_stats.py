"""What a segment's headers tell: of pieces as of the whole, and what makes no sense."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.jobs import segment_stats as module
from pipeline.jobs.segment_stats import SCHEMA, segment_stats
from pipeline.jobs.segment_work import SegmentPiece
from storage.errors import CorruptObjectError
from tests.support.for_each import for_each
from tests.support.segments import SyntheticSegment, build_segment, filled_segment, metadata_of
from tests.support.tier import PARTITION, MemoryStore
from tests.support.timed_batches import timed_batch

DAY_MS = 86_400_000


def rows_of(segment: SyntheticSegment, first: int | None = None, end: int | None = None) -> list[dict[str, Any]]:
    metadata = metadata_of(PARTITION, segment)
    store = MemoryStore({metadata.segment_id.id: segment.objects()})
    piece = SegmentPiece(
        metadata, segment.base_offset if first is None else first, segment.end_offset + 1 if end is None else end
    )
    batches = list(segment_stats(store, piece))
    assert all(batch.schema == SCHEMA for batch in batches)
    return [row for batch in batches for row in batch.to_pylist()]


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


def test_a_header_that_makes_no_sense_is_named() -> None:
    segment = filled_segment(0, batch_count=3)
    broken = bytearray(segment.log)
    broken[segment.batch_positions[1] + 16] = 77
    metadata = metadata_of(PARTITION, segment)
    store = MemoryStore({metadata.segment_id.id: {**segment.objects(), "log": bytes(broken)}})
    with pytest.raises(CorruptObjectError, match=str(segment.batch_positions[1])):
        list(segment_stats(store, SegmentPiece(metadata, 0, segment.end_offset + 1)))
