"""read_segments: rows of a segment's range, bad ones left out, within the task's memory."""

import json
import struct
import tracemalloc
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import CorruptObjectError, RemoteAccessDeniedError
from storage.log import segment_scan
from storage.model import IndexType, RemoteLogSegmentMetadata
from storage.remote_storage_manager import SegmentStream
from table.reading.segment_task import GETS_AHEAD_MAX, read_segments
from table.tasks import ReadOptions, SegmentTask
from tests.support.for_each import for_each
from tests.support.one_segment import OneSegment, OneSegmentManager
from tests.support.opened_bytes import MEMORY_BYTES, ReadOnlyManager
from tests.support.segments import Record, build_segment, data_batch, filled_segment, metadata_of, topic_partition

MIB = 1024 * 1024
OPTIONS = ReadOptions(columns=("offset", "value"))


def task_of(segment: RemoteLogSegmentMetadata, **fields: Any) -> SegmentTask:
    """All of a segment, but for these fields."""
    whole: dict[str, Any] = {"start_position": 0, "end_position": segment.segment_size_bytes}
    return SegmentTask(segment=segment, **whole | {"first_offset": 0, "end_offset": 1 << 62} | fields)


def rows(batches: Iterator[pa.RecordBatch]) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist()]


def test_bad_batches_are_left_out_and_written_down_also_the_decoders(tmp_path: Path) -> None:
    broken = data_batch(2, records=[Record(value=b"abc")])[:-1] + b"\x09"  # a count of headers that are not there
    broken = broken[:17] + struct.pack(">I", crc32c(broken[21:])) + broken[21:]
    world = OneSegment(build_segment([data_batch(0), data_batch(1), broken, data_batch(3)]))
    world.log[-3] ^= 1
    options = replace(OPTIONS, skips_bad_records=True, bad_records_path=str(tmp_path))

    found = rows(read_segments(world.manager(), [task_of(world.metadata)], options))

    assert [row["offset"] for row in found] == [0, 1]
    (path,) = tmp_path.iterdir()
    report = json.loads(path.read_text())
    assert sorted(entry["position"] for entry in report["batches"]) == list(world.segment.batch_positions[2:])
    with pytest.raises(CorruptObjectError, match="segment orders-0"):
        rows(read_segments(world.manager(), [task_of(world.metadata)], OPTIONS))


def test_a_reader_that_stops_early_ends_the_get_under_way() -> None:
    world = OneSegment(filled_segment(batch_count=300))
    rows_under_way = read_segments(world.manager(), [task_of(world.metadata)], replace(OPTIONS, task_bytes_max=MIB))
    next(rows_under_way)

    rows_under_way.close()  # type: ignore[attr-defined]  # it is a generator

    assert world.streams_open == 0


# --- several segments ---


class SegmentsManager(ReadOnlyManager):
    """Opens each segment by its id."""

    def __init__(self, worlds: Sequence[OneSegment]) -> None:
        super().__init__()
        self._worlds = {world.metadata.segment_id: world for world in worlds}

    def open_log_segment(self, metadata: RemoteLogSegmentMetadata) -> OneSegment:
        return self._worlds[metadata.segment_id]


def worlds_of(batch_counts: Sequence[int]) -> list[OneSegment]:
    """Segments of ten records a batch, one behind the other."""
    bases = accumulate(batch_counts[:-1], lambda base, count: base + 10 * count, initial=0)
    return [
        OneSegment(filled_segment(base, batch_count=count)) for base, count in zip(bases, batch_counts, strict=True)
    ]


def parts_of(worlds: Sequence[OneSegment]) -> list[SegmentTask]:
    return [task_of(world.metadata) for world in worlds]


@given(batch_counts=st.lists(st.integers(1, 60), min_size=1, max_size=6), task_kib=st.sampled_from([64, 512, 4096]))
def test_segments_are_read_one_behind_the_other_and_no_byte_twice(batch_counts: list[int], task_kib: int) -> None:
    worlds = worlds_of(batch_counts)
    options = replace(OPTIONS, task_bytes_max=task_kib * 1024)

    found = rows(read_segments(SegmentsManager(worlds), parts_of(worlds), options))

    assert [row["offset"] for row in found] == list(range(10 * sum(batch_counts)))
    for world in worlds:
        starts, ends = zip(*sorted(world.gets), strict=True)
        assert (*starts, len(world.log)) == (0, *ends)
        assert world.streams_open == 0


def test_what_is_wrong_with_a_segment_is_raised_in_its_turn() -> None:
    worlds = worlds_of([3, 3, 3])
    worlds[1].failures = [RemoteAccessDeniedError("no")]
    under_way = read_segments(SegmentsManager(worlds), parts_of(worlds), OPTIONS)

    assert next(under_way).num_rows == 30
    with pytest.raises(RemoteAccessDeniedError, match="no"):
        next(under_way)


# --- memory ---


class RepeatedBatch:
    """A segment of one batch over and over, made as it is read: nothing of it is kept. An OpenedSegment."""

    memory_bytes = MEMORY_BYTES

    def __init__(self, batch: bytes, count: int, *, chunk_bytes: int) -> None:
        self.batch = batch
        self.chunk_bytes = chunk_bytes
        one = build_segment([batch])
        self.metadata = replace(
            metadata_of(topic_partition(), one),
            segment_size_bytes=count * len(batch),
            end_offset=count * (one.end_offset + 1) - 1,
        )
        self.records_per_batch = one.end_offset + 1

    def stored_bytes(self, start_position: int, end_position: int) -> int:
        return end_position - start_position

    def open_stream(self, start_position: int, end_position: int) -> SegmentStream:
        return RepeatedStream(self, start_position)

    def fetches_index(self, index_type: IndexType) -> bool:
        return True

    def fetch_index(self, index_type: IndexType) -> bytes:
        return b""


class RepeatedStream:
    """A SegmentStream; holds a chunk, as those that decode chunks do."""

    def __init__(self, source: RepeatedBatch, position: int) -> None:
        self._source = source
        self._position = position
        self._chunk = bytes(source.chunk_bytes)

    def read(self, size_bytes: int) -> bytearray:
        batch, data, filled = self._source.batch, bytearray(size_bytes), 0
        while filled < size_bytes:
            number, at = divmod(self._position + filled, len(batch))
            header = struct.pack(">q", number * self._source.records_per_batch)
            if at < len(header):
                part: bytes | memoryview = header[at : at + size_bytes - filled]
            else:
                part = memoryview(batch)[at : at + size_bytes - filled]
            data[filled : filled + len(part)] = part
            filled += len(part)
        self._position += size_bytes
        return data

    def close(self) -> None:
        self._chunk = b""


@for_each(
    "batch_bytes, value_bytes, segment_bytes, chunk_bytes",
    [
        (MIB, 100, 16 * MIB, 1),
        (8 * MIB, 100, 1024 * MIB, 4 * MIB),
        (8 * MIB, 1000, 16 * MIB, 1),
        (MIB, 100_000, 1024 * MIB, 1),
        (MIB, 100_000, 1024 * MIB, 4 * MIB),
        (8 * MIB, 1_000_000, 24 * MIB, 4 * MIB),
    ],
)
def test_a_task_holds_at_most_its_budget_whatever_the_segments_size(
    monkeypatch: pytest.MonkeyPatch, batch_bytes: int, value_bytes: int, segment_bytes: int, chunk_bytes: int
) -> None:
    monkeypatch.setattr(segment_scan, "GETS_AHEAD", GETS_AHEAD_MAX)  # as if it had waited for each piece
    batch = data_batch(0, record_count=batch_bytes // (value_bytes + 20), value_bytes=value_bytes)
    source = RepeatedBatch(batch, segment_bytes // batch_bytes, chunk_bytes=chunk_bytes)
    parts = [task_of(source.metadata)] * (1024 * MIB // segment_bytes)
    pool = pa.default_memory_pool()
    arrow_before, arrow_bytes, read_bytes = pool.bytes_allocated(), 0, 0
    tracemalloc.start()
    try:
        python_before = tracemalloc.get_traced_memory()[0]
        for rows_here in read_segments(OneSegmentManager(source), parts, OPTIONS):
            read_bytes += rows_here.num_rows * value_bytes
            arrow_bytes = max(arrow_bytes, pool.bytes_allocated() - arrow_before)
            del rows_here
            if read_bytes > 1.25 * OPTIONS.task_bytes_max:
                break  # by now it would show if anything were kept; all of it takes a minute
        python_bytes = tracemalloc.get_traced_memory()[1] - python_before
    finally:
        tracemalloc.stop()

    assert read_bytes > OPTIONS.task_bytes_max
    assert python_bytes + arrow_bytes <= OPTIONS.task_bytes_max
