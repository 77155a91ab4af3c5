"""From batch to batch, and on past what is corrupt."""

import contextlib
import struct
from collections.abc import Sequence

import pytest

from protocol.record_batches import BATCH_BYTES_MAX
from storage.indexes.offset_index import OffsetIndex
from storage.log.log_walk import BatchTooLargeError, Depth, LogWalk, PassedOver, WalkedBatch, Wanted, is_abort_marker
from tests.support.cases import case
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


def walk(
    log: bytes,
    segment: SyntheticSegment = SEGMENT,
    resume: Sequence[int] = (),
    chunk_bytes: int = 1000,
    depth: Depth = Depth.CHECKSUMS,
    batch_bytes_max: int = BATCH_BYTES_MAX,
) -> list[WalkedBatch | PassedOver]:
    """Return what a walk finds that is sent `chunk_bytes` at once, or what it wants if that is more."""
    metadata = metadata_of(topic_partition(), segment)
    assert metadata.segment_size_bytes == len(log)
    entries = b"".join(struct.pack(">ii", number, position) for number, position in enumerate(resume))
    index = OffsetIndex(entries, segment.base_offset)
    recovers = depth is not Depth.HEADERS
    one = LogWalk(metadata, 0, len(log), depth, index=index, recovers=recovers, batch_bytes_max=batch_bytes_max)
    steps = one.steps()
    found: list[WalkedBatch | PassedOver] = []
    with contextlib.suppress(StopIteration):
        step = next(steps)
        while True:
            if isinstance(step, Wanted):
                size_bytes = max(step.size_bytes, chunk_bytes)
                step = steps.send(memoryview(log)[step.position : step.position + size_bytes])
                continue
            found += step if isinstance(step, list) else [step]
            step = next(steps)
    return found


def changed(position: int, content: bytes) -> bytes:
    return SEGMENT.log[:position] + content + SEGMENT.log[position + len(content) :]


def seen(found: list[WalkedBatch | PassedOver]) -> list[tuple[int, str]]:
    """Position and what there is: a batch, one that is bad by itself, or bytes up to wherever it goes on."""
    out = []
    for event in found:
        if isinstance(event, WalkedBatch):
            out.append((event.position, "batch"))
        else:
            header = event.error.header
            is_own = header is not None and event.end == event.position + header.size_bytes
            out.append((event.position, "bad" if is_own else "fault"))
    return out


SOUND = [(position, "batch") for position in SEGMENT.batch_positions]


def test_every_batch_of_a_sound_log_is_walked() -> None:
    for chunk_bytes in [1, 61, 100, BATCH_BYTES, 10**6]:
        with case(chunk_bytes):
            for depth in Depth:
                found = walk(SEGMENT.log, chunk_bytes=chunk_bytes, depth=depth)
                assert seen(found) == SOUND
                batches = [each for each in found if isinstance(each, WalkedBatch)]
                assert [batch.header.base_offset for batch in batches] == list(range(100, 130, 3))
                held = {Depth.BATCHES: SEGMENT.log, Depth.CHECKSUMS: b"", Depth.HEADERS: b""}
                assert b"".join(batch.data for batch in batches) == held[depth]


def test_a_wrong_crc_ends_no_walk() -> None:
    expected = [*SOUND]
    expected[3] = (3 * BATCH_BYTES, "bad")
    assert seen(walk(changed(4 * BATCH_BYTES - 1, b"\xff"))) == expected


def test_a_wrong_length_is_one_fault_and_the_walk_goes_on_at_the_next_index_entry() -> None:
    for length in (BATCH_BYTES, -1, 0, 13, BATCH_BYTES_MAX + 1, 10**6):
        log = changed(3 * BATCH_BYTES + 8, struct.pack(">i", length))
        events = seen(walk(log, resume=SEGMENT.batch_positions))
        assert events == [*SOUND[:3], (3 * BATCH_BYTES, "fault"), *SOUND[4:]], length
    log = changed(3 * BATCH_BYTES + 8, struct.pack(">i", BATCH_BYTES))
    at_seven = [*SOUND[:3], (3 * BATCH_BYTES, "fault"), *SOUND[7:]]
    assert seen(walk(log, resume=[7 * BATCH_BYTES])) == at_seven, "what the length leads to is no batch"


def test_an_offset_that_does_not_fit_is_one_fault_in_the_middle_of_a_run() -> None:
    for number, base_offset in ((0, 99), (2, 100), (5, 114), (9, 129)):
        with case(number):
            log = changed(number * BATCH_BYTES, struct.pack(">q", base_offset))
            expected = [*SOUND]
            expected[number] = (number * BATCH_BYTES, "bad")
            assert seen(walk(log, chunk_bytes=10**6, depth=Depth.BATCHES)) == expected


def test_a_batch_that_is_too_large_is_no_good_one_although_it_is_at_hand() -> None:
    small, large = data_batch(0), data_batch(10, record_count=9)
    segment = build_segment([small, large])
    for chunk_bytes in (1, 10**6):
        with pytest.raises(BatchTooLargeError, match=f"batch at {len(small)} has"):
            walk(segment.log, segment, chunk_bytes=chunk_bytes, depth=Depth.BATCHES, batch_bytes_max=len(large) - 1)


def test_without_an_index_the_rest_is_passed_over() -> None:
    log = changed(3 * BATCH_BYTES + 16, b"\x07")
    (*sound, rest) = walk(log)
    assert seen(sound) == SOUND[:3]
    assert isinstance(rest, PassedOver)
    assert (rest.position, rest.end, rest.is_rest) == (3 * BATCH_BYTES, len(log), True)
    assert "magic 7" in rest.error.reason


def test_an_index_entry_that_leads_nowhere_is_passed_over() -> None:
    log = changed(3 * BATCH_BYTES + 16, b"\x07")
    resume = [3 * BATCH_BYTES + 10, 4 * BATCH_BYTES + 1, 6 * BATCH_BYTES, 10**7]
    assert seen(walk(log, resume=resume)) == [*SOUND[:3], (3 * BATCH_BYTES, "fault"), *SOUND[6:]]


def test_markers_are_told_from_data() -> None:
    producer = ProducerFields(producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    segment = build_segment(
        [
            data_batch(0, producer=producer),
            control_batch(1, producer_id=7),
            control_batch(2, producer_id=7, commit=True),
        ]
    )
    for depth in (Depth.CHECKSUMS, Depth.BATCHES):
        found = walk(segment.log, segment, depth=depth)
        assert [is_abort_marker(each) for each in found if isinstance(each, WalkedBatch)] == [None, True, False]
