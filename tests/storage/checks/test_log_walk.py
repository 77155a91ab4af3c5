"""From batch to batch, and on past what is corrupt."""

import struct
from collections.abc import Sequence

import pytest

from protocol.record_batches import BATCH_BYTES_MAX
from storage.checks.log_pieces import LogPieces
from storage.checks.log_walk import FAULTS_MAX, LogWalk, SkippedBytes, WalkedBatch
from storage.model import IndexType, RemoteLogSegmentMetadata
from tests.support.opened_bytes import OpenedBytes
from tests.support.segments import (
    ProducerFields,
    SyntheticSegment,
    build_segment,
    control_batch,
    data_batch,
    filled_segment,
    metadata_of,
    topic_partition,
)

SEGMENT = filled_segment(100, batch_count=10, records_per_batch=3, interval_bytes=0)
BATCH_BYTES = len(SEGMENT.batches[0])


def no_index(index_type: IndexType) -> bytes:
    raise NotImplementedError(index_type)


def walk(
    log: bytes, segment: SyntheticSegment = SEGMENT, resume: Sequence[int] = (), chunk_bytes: int = 1000
) -> list[WalkedBatch | SkippedBytes]:
    metadata: RemoteLogSegmentMetadata = metadata_of(topic_partition(), segment)
    assert metadata.segment_size_bytes == len(log)
    opened = OpenedBytes(metadata, lambda: log, no_index, chunk_bytes=chunk_bytes)
    return list(LogWalk(LogPieces(opened, len(log)), metadata, resume).events())


def changed(position: int, content: bytes, log: bytes = SEGMENT.log) -> bytes:
    return log[:position] + content + log[position + len(content) :]


def seen(events: list[WalkedBatch | SkippedBytes]) -> list[tuple[int, str]]:
    """Position and what there is."""
    out = []
    for event in events:
        if isinstance(event, WalkedBatch):
            out.append((event.position, "batch" if event.is_valid else "bad"))
        else:
            out.append((event.position, "skipped" if event.fault is None else "fault"))
    return out


SOUND = [(position, "batch") for position in SEGMENT.batch_positions]


@pytest.mark.parametrize("chunk_bytes", [1, 61, 100, BATCH_BYTES, 10**6])
def test_every_batch_of_a_sound_log_is_walked(chunk_bytes: int) -> None:
    events = walk(SEGMENT.log, chunk_bytes=chunk_bytes)
    assert seen(events) == SOUND
    assert [event.header.base_offset for event in events if isinstance(event, WalkedBatch)] == list(range(100, 130, 3))


def test_a_wrong_crc_ends_no_walk() -> None:
    expected = [*SOUND]
    expected[3] = (3 * BATCH_BYTES, "bad")
    assert seen(walk(changed(4 * BATCH_BYTES - 1, b"\xff"))) == expected


def test_a_wrong_length_is_one_fault_and_the_walk_goes_on_at_the_next_index_entry() -> None:
    log = changed(3 * BATCH_BYTES + 8, struct.pack(">i", BATCH_BYTES))
    events = seen(walk(log, resume=SEGMENT.batch_positions))
    assert events[:4] == [*SOUND[:3], (3 * BATCH_BYTES, "bad")]
    assert events[4][1] == "skipped"
    assert events[5:] == SOUND[5:], "the next entry behind what the wrong length leads to"


def test_without_an_index_the_rest_is_skipped() -> None:
    log = changed(3 * BATCH_BYTES + 16, b"\x07")
    assert seen(walk(log)) == [*SOUND[:3], (3 * BATCH_BYTES, "fault")]
    (*_, skipped) = walk(log)
    assert isinstance(skipped, SkippedBytes)
    assert skipped.end_position == len(log)
    assert "magic 7" in str(skipped.fault)


@pytest.mark.parametrize("length", [-1, 0, 13, BATCH_BYTES_MAX + 1, 10**6])
def test_a_length_that_cannot_be_is_a_fault(length: int) -> None:
    log = changed(3 * BATCH_BYTES + 8, struct.pack(">i", length))
    events = seen(walk(log, resume=SEGMENT.batch_positions))
    assert events == [*SOUND[:3], (3 * BATCH_BYTES, "fault"), *SOUND[4:]]


def test_an_index_entry_that_leads_nowhere_is_passed_over() -> None:
    log = changed(3 * BATCH_BYTES + 16, b"\x07")
    resume = [3 * BATCH_BYTES + 10, 4 * BATCH_BYTES + 1, 6 * BATCH_BYTES, 10**7]
    assert seen(walk(log, resume=resume)) == [*SOUND[:3], (3 * BATCH_BYTES, "fault"), *SOUND[6:]]


def test_a_log_that_is_no_log_ends_after_so_many_faults() -> None:
    segment = filled_segment(0, batch_count=FAULTS_MAX + 10, records_per_batch=1, value_bytes=20)
    size = len(segment.batches[0])
    log = bytearray(segment.log)
    for position in segment.batch_positions:
        log[position + size - 1] ^= 1
    assert len(walk(bytes(log), segment, chunk_bytes=10**6)) == FAULTS_MAX


def test_markers_are_told_from_data() -> None:
    producer = ProducerFields(producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    segment = build_segment(
        [
            data_batch(0, producer=producer),
            control_batch(1, producer_id=7),
            control_batch(2, producer_id=7, commit=True),
        ]
    )
    events = walk(segment.log, segment)
    assert [event.is_abort for event in events if isinstance(event, WalkedBatch)] == [None, True, False]
