"""SegmentBatches: neighbours give each batch once whatever the indexes say, and only what may match is fetched."""

import itertools
import struct
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from storage.errors import CorruptObjectError, RemoteStorageError, RetriableRemoteStorageError
from storage.log.log_walk import BatchTooLargeError, WalkedBatch
from storage.log.segment_scan import GetsAhead
from storage.model import IndexType
from table.reading.left_out import BadRecords
from table.reading.segment_task import SegmentBatches
from table.tasks import AbortedTransaction, ReadOptions, SegmentTask
from tests.support.one_segment import OneSegment, OneSegmentManager
from tests.support.segments import (
    FIRST_TIMESTAMP_MS,
    ProducerFields,
    build_segment,
    control_batch,
    data_batch,
    filled_segment,
)
from tests.table.reading.test_segment_task import task_of

BASE = 5000
OPTIONS = ReadOptions(columns=("value",))
LOG_BYTES = len(filled_segment(BASE).log)


def groups_of(
    manager: OneSegmentManager, task: SegmentTask, options: ReadOptions, bad: BadRecords
) -> Iterator[list[WalkedBatch]]:
    with closing(GetsAhead(2, options.task_bytes_max // 4)) as gets:
        yield from SegmentBatches(manager, task, options, bad, gets).open()


def read(world: OneSegment, options: ReadOptions = OPTIONS, **fields: Any) -> list[int]:
    """Base offsets of what the task reads."""
    task = task_of(world.metadata, **fields)
    groups = groups_of(world.manager(), task, options, BadRecords(task))
    offsets = [batch.header.base_offset for group in groups for batch in group]
    assert world.streams_open == 0
    return offsets


def offsets(world: OneSegment) -> list[int]:
    return [struct.unpack_from(">q", batch)[0] for batch in world.segment.batches]


def indexes() -> st.SearchStrategy[bytes | None]:
    """Offset indexes as they should be, and as they should not: lying about positions and offsets, corrupt, absent."""
    honest = st.integers(0, 5000).map(lambda interval: filled_segment(BASE, interval_bytes=interval).offset_index)
    entries = st.lists(st.tuples(st.integers(0, 220), st.integers(0, LOG_BYTES + 500)), max_size=8)
    on_batches = st.lists(
        st.tuples(st.integers(0, 220), st.sampled_from(filled_segment(BASE).batch_positions)), max_size=8
    )
    lying = (
        (entries | on_batches).map(ascending).map(lambda pairs: b"".join(struct.pack(">ii", *pair) for pair in pairs))
    )
    return honest | lying | st.binary(max_size=40) | st.none()


def ascending(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    firsts, seconds = sorted({first for first, _ in pairs}), sorted({second for _, second in pairs})
    return list(zip(firsts, seconds, strict=False))


@given(cuts=st.lists(st.integers(0, LOG_BYTES), max_size=6), index=indexes(), skips=st.booleans())
def test_any_cut_into_byte_ranges_gives_each_batch_once_whatever_the_index_says(
    cuts: list[int], index: bytes | None, skips: bool
) -> None:
    world = OneSegment(filled_segment(BASE))
    world.indexes[IndexType.OFFSET] = index
    borders = [0, *sorted(cuts), LOG_BYTES]

    found = [
        offset
        for start, end in itertools.pairwise(borders)
        for offset in read(world, replace(OPTIONS, skips_bad_records=skips), start_position=start, end_position=end)
    ]

    assert found == offsets(world)


@given(first=st.integers(BASE - 10, BASE + 210), last=st.integers(BASE - 10, BASE + 210), index=indexes())
def test_any_range_of_offsets_gives_its_batches_whatever_the_index_says(
    first: int, last: int, index: bytes | None
) -> None:
    world = OneSegment(filled_segment(BASE))
    world.indexes[IndexType.OFFSET] = index

    found = read(world, first_offset=first, end_offset=last)

    assert found == [offset for offset in offsets(world) if offset + 9 >= first and offset < last and first < last]


@given(
    cuts=st.lists(st.integers(0, LOG_BYTES), max_size=4),
    flips=st.lists(st.tuples(st.integers(0, LOG_BYTES - 1), st.integers(0, 7)), min_size=1, max_size=3),
    interval_bytes=st.integers(0, 5000),
)
def test_neighbours_also_meet_behind_bad_batches(
    cuts: list[int], flips: list[tuple[int, int]], interval_bytes: int
) -> None:
    world = OneSegment(filled_segment(BASE, interval_bytes=interval_bytes))
    for position, bit in flips:
        world.log[position] ^= 1 << bit
    borders = [0, *sorted(cuts), LOG_BYTES]
    options = replace(OPTIONS, skips_bad_records=True)

    spans = []
    for start, end in itertools.pairwise(borders):
        task = task_of(world.metadata, start_position=start, end_position=end)
        bad = BadRecords(task)
        groups = groups_of(world.manager(), task, options, bad)
        spans += [(batch.position, len(batch.data)) for group in groups for batch in group]
        spans += [(entry.position, entry.size_bytes) for entry in bad.entries if not entry.is_rest]

    starts = [start for start, _ in spans]
    assert len(set(starts)) == len(starts), "each once"
    ends = [position + size for position, size in sorted(spans)]
    assert all(end <= start for end, (start, _) in zip(ends, sorted(spans)[1:], strict=False)), "none twice"


def test_the_scan_goes_from_the_index_entry_before_the_start_to_the_last() -> None:
    world = OneSegment(filled_segment(BASE, batch_count=200, interval_bytes=0))
    positions = world.segment.batch_positions

    read(world, start_position=positions[50] - 1, end_position=positions[60] - 1)
    read(world, first_offset=BASE + 503, end_offset=BASE + 597)

    assert world.gets == [(positions[49], positions[60]), (positions[49], positions[60])]


def test_an_index_that_fails_for_a_moment_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage.object_store.retries.BACKOFF_S_MIN", 0.0)
    monkeypatch.setattr("storage.object_store.retries.BACKOFF_S_MAX", 0.0)
    world = OneSegment(filled_segment(BASE))
    world.index_failures = [RetriableRemoteStorageError("503")]

    assert read(world, first_offset=BASE + 100) == offsets(world)[10:]


# --- timestamps ---


def test_what_the_time_index_says_is_too_old_is_not_fetched() -> None:
    world = OneSegment(filled_segment(BASE, batch_count=200, interval_bytes=0))
    options = replace(OPTIONS, timestamp_min_ms=FIRST_TIMESTAMP_MS + BASE + 1505)

    found = read(world, options)

    assert found == [offset for offset in offsets(world) if offset + 9 >= BASE + 1505]
    assert [start for start, _ in world.gets] == [world.segment.batch_positions[149]]
    # A segment that is too old as a whole is not even opened.
    manager, task = world.manager(), task_of(world.metadata)
    options = replace(OPTIONS, timestamp_min_ms=world.metadata.max_timestamp_ms + 1)
    assert list(groups_of(manager, task, options, BadRecords(task))) == []
    assert manager.opened == 0


@given(
    times=st.lists(st.integers(0, 50), min_size=1, max_size=15),
    minimum=st.integers(0, 60),
    interval_bytes=st.integers(0, 1000),
)
def test_skipping_by_time_leaves_out_no_batch_that_may_match(
    times: list[int], minimum: int, interval_bytes: int
) -> None:
    batches = [data_batch(number, first_timestamp_ms=ms) for number, ms in enumerate(times)]
    world = OneSegment(build_segment(batches, interval_bytes=interval_bytes))

    found = read(world, replace(OPTIONS, timestamp_min_ms=minimum))

    assert found == [number for number, ms in enumerate(times) if ms >= minimum]


# --- what is left out, and what fails ---


def test_markers_and_aborted_batches_are_left_out() -> None:
    producer = ProducerFields(producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    batches = [
        data_batch(0, producer=producer),
        control_batch(1, producer_id=7),
        data_batch(2, producer=producer),
        control_batch(3, producer_id=7, commit=True),
        data_batch(4),
    ]
    world = OneSegment(build_segment(batches))

    assert read(world) == [0, 2, 4]
    assert read(world, aborted=(AbortedTransaction(7, 0, 1),)) == [2, 4]


def test_a_bad_batch_fails_unless_bad_records_are_skipped() -> None:
    world = OneSegment(filled_segment(BASE))
    world.log[world.segment.batch_positions[3] + 70] ^= 1

    with pytest.raises(CorruptObjectError, match=rf"orders-0.*batch at {world.segment.batch_positions[3]}"):
        read(world)

    with capture_logs() as lines:
        assert read(world, replace(OPTIONS, skips_bad_records=True)) == [*offsets(world)[:3], *offsets(world)[4:]]
    assert "its CRC is wrong" in lines[0]["reason"]


def test_a_task_whose_range_cannot_be_reached_says_that_all_of_it_is_lost() -> None:
    world = OneSegment(filled_segment(BASE))
    world.indexes[IndexType.OFFSET] = None
    world.log[world.segment.batch_positions[3] + 16] = 9
    task = task_of(world.metadata, start_position=10_000, end_position=20_000)
    bad = BadRecords(task)

    assert list(groups_of(world.manager(), task, replace(OPTIONS, skips_bad_records=True), bad)) == []

    assert [(entry.position, entry.size_bytes, entry.is_rest) for entry in bad.entries] == [(10_000, 10_000, True)]


def test_a_batch_beyond_the_tasks_memory_is_an_error_that_names_the_option() -> None:
    world = OneSegment(build_segment([data_batch(0, value_bytes=300_000)]))

    with pytest.raises(BatchTooLargeError, match=r"batch at 0 has 300\d{3} bytes, .* 262144 .*; taskBytes is 1048576"):
        read(world, replace(OPTIONS, task_bytes_max=1024 * 1024))
    assert issubclass(BatchTooLargeError, RemoteStorageError)
