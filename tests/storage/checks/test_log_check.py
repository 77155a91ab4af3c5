"""Batches against metadata: offsets, leader epochs, timestamps."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from storage.checks.finding import FindingKind
from storage.checks.segment_check import FAULTS_MAX, LogCheck
from storage.log.log_walk import Depth, LogWalk
from storage.log.segment_scan import LogWindow
from tests.support.one_segment import OneSegment
from tests.support.segments import FIRST_TIMESTAMP_MS, build_segment, data_batch, metadata_of, topic_partition

FOUR = [data_batch(offset, record_count=5) for offset in (0, 5, 10, 15)]


def check(
    batches: Sequence[bytes],
    *,
    start: int = 0,
    end: int = 19,
    epochs: Mapping[int, int] | None = None,
    max_timestamp_ms: int | None = None,
) -> LogCheck:
    segment = build_segment(list(batches))
    metadata = replace(
        metadata_of(topic_partition(), segment),
        start_offset=start,
        end_offset=end,
        segment_leader_epochs=epochs or {0: start},
    )
    if max_timestamp_ms is not None:
        metadata = replace(metadata, max_timestamp_ms=max_timestamp_ms)
    size_bytes = len(segment.log)
    window = LogWindow(OneSegment(segment), metadata, size_bytes, piece_bytes=size_bytes, range_bytes=size_bytes)
    checked = LogCheck(metadata, "a.log")
    checked.run(window.drive(LogWalk(metadata, 0, size_bytes, Depth.CHECKSUMS, recovers=True).steps()), ())
    return checked


def found(checked: LogCheck) -> list[tuple[FindingKind, int | None]]:
    return [(finding.kind, finding.position) for finding in checked.findings]


def test_offsets_that_follow_one_another_have_no_findings() -> None:
    checked = check(FOUR)
    assert checked.findings == []
    assert (checked.batch_count, checked.record_count, checked.byte_count) == (4, 20, sum(map(len, FOUR)))


def test_records_that_compaction_took_out_of_a_batch_are_no_gap() -> None:
    assert check([data_batch(0, record_count=2, last_offset_delta=4), *FOUR[1:]]).findings == []


def test_a_gap_is_found_once_where_it_ends() -> None:
    assert found(check([FOUR[0], *FOUR[2:]])) == [(FindingKind.OFFSETS, len(FOUR[0]))]


@pytest.mark.parametrize("base_offset", [3, 0, 7, 14, 15, 1 << 40])
def test_a_wrong_base_offset_is_found_once(base_offset: int) -> None:
    """As a bit flip makes it: no CRC covers it."""
    wrong = base_offset.to_bytes(8, "big") + FOUR[1][8:]
    assert found(check([FOUR[0], wrong, *FOUR[2:]])) == [(FindingKind.OFFSETS, len(FOUR[0]))]


def test_a_repeated_batch_is_found_once() -> None:
    assert found(check([FOUR[0], FOUR[1], FOUR[1], *FOUR[2:]])) == [(FindingKind.OFFSETS, len(FOUR[0] + FOUR[1]))]


@pytest.mark.parametrize("start", [1, 20, 1000])
def test_another_segments_log_is_found_once(start: int) -> None:
    assert found(check(FOUR, start=start, end=start + 19)) == [(FindingKind.OFFSETS, 0)]


def test_a_log_that_ends_before_its_segment_is_found() -> None:
    assert found(check(FOUR[:3])) == [(FindingKind.OFFSETS, sum(map(len, FOUR[:3])))]


def test_a_log_that_goes_on_behind_its_segment_is_found() -> None:
    assert found(check(FOUR, end=17)) == [(FindingKind.OFFSETS, sum(map(len, FOUR[:3])))]


def test_leader_epochs_are_the_metadatas() -> None:
    batches = [data_batch(offset, record_count=5, leader_epoch=epoch) for offset, epoch in ((0, 2), (5, 2), (10, 5))]
    assert check(batches, end=14, epochs={2: 0, 5: 10}).findings == []
    assert check(batches, end=14, epochs={2: 0, 3: 10, 5: 10}).findings == [], "epoch 3 has no records"
    assert found(check(batches, end=14, epochs={2: 0, 5: 5})) == [(FindingKind.LEADER_EPOCH, len(batches[0]))]


def test_batches_below_the_first_epoch_that_the_metadata_know_are_not_judged() -> None:
    assert check([data_batch(0, record_count=5, leader_epoch=1), *FOUR[1:]], epochs={0: 5}).findings == []


def test_a_log_newer_than_its_metadata_is_found() -> None:
    newest_ms = FIRST_TIMESTAMP_MS + 19
    assert check(FOUR, max_timestamp_ms=newest_ms + 5).findings == [], "harmless: a look-up comes by in vain"
    assert found(check(FOUR, max_timestamp_ms=newest_ms - 1)) == [(FindingKind.TIMESTAMP, None)]


def test_findings_of_one_log_end_somewhere() -> None:
    batches = [data_batch(3 * number) for number in range(FAULTS_MAX + 50)]
    checked = check(batches, end=3 * len(batches))
    assert len(checked.findings) == FAULTS_MAX + 1
    assert checked.findings[-1].kind is FindingKind.NOT_CHECKED


def test_a_log_that_is_no_log_ends_after_so_many_faults() -> None:
    batches = [bytearray(data_batch(number, value_bytes=20)) for number in range(FAULTS_MAX + 10)]
    for batch in batches:
        batch[-1] ^= 1
    checked = check([bytes(batch) for batch in batches], end=len(batches) - 1)
    assert [finding.kind for finding in checked.findings[:-1]] == [FindingKind.BATCH_CORRUPT] * FAULTS_MAX
    assert "the batch of offset 0: its CRC is wrong" in checked.findings[0].detail
    assert checked.findings[-1].kind is FindingKind.NOT_CHECKED
