"""Gaps, overlaps and leftovers among the segments of a partition."""

from dataclasses import replace

import pytest

from storage.checks.finding import FindingKind
from storage.checks.partition_check import UNFINISHED_AGE_MS, PartitionState, check_partition
from storage.metadata.partition_catalog import LeaderEpochLineage
from storage.model import RemoteLogSegmentMetadata, RemoteLogSegmentState
from tests.support.frozen_tier import NAMES, Recorded
from tests.support.segments import filled_segment, metadata_of, topic_partition

PARTITION = topic_partition()
NOW_MS = 2_000_000_000_000
ALL = PartitionState()


def segment(start: int, end: int, *, epoch: int = 0, copy_attempt: int = 0) -> RemoteLogSegmentMetadata:
    content = filled_segment(start, batch_count=1, records_per_batch=end - start + 1, leader_epoch=epoch)
    return metadata_of(PARTITION, content, copy_attempt=copy_attempt)


def found(segments: list[RemoteLogSegmentMetadata], state: PartitionState = ALL) -> list[tuple[FindingKind, str]]:
    return [(each.kind, each.detail) for each in check_partition(PARTITION, segments, state, now_ms=NOW_MS)]


def kinds(segments: list[RemoteLogSegmentMetadata], state: PartitionState = ALL) -> list[FindingKind]:
    return [kind for kind, _ in found(segments, state)]


def lineage(**ends: int) -> LeaderEpochLineage:
    """e0=100: epoch 0 ends at 100."""
    answers = {int(name[1:]): (int(name[1:]), end) for name, end in ends.items()}
    return LeaderEpochLineage(max(answers), answers)


def test_segments_that_follow_one_another_have_no_findings() -> None:
    assert found([segment(10, 19), segment(0, 9), segment(20, 29)]) == []
    assert found([]) == []


def test_a_gap_is_found_with_its_offsets() -> None:
    ((kind, detail),) = found([segment(0, 9), segment(15, 29)])
    assert kind is FindingKind.GAP
    assert "offsets 10 to 14" in detail


@pytest.mark.parametrize(("start", "end", "shared"), [(5, 19, "5 to 9"), (2, 7, "2 to 7"), (0, 9, "0 to 9")])
def test_an_overlap_is_found_with_its_offsets(start: int, end: int, shared: str) -> None:
    ((kind, detail),) = found([segment(0, 9), segment(start, end, copy_attempt=1)])
    assert kind is FindingKind.OVERLAP
    assert shared in detail


def test_a_segment_inside_another_hides_no_gap() -> None:
    assert kinds([segment(0, 19), segment(2, 7), segment(30, 39)]) == [FindingKind.OVERLAP, FindingKind.GAP]


def test_a_dead_branch_is_no_overlap() -> None:
    segments = [segment(0, 9), segment(10, 29), segment(10, 24, epoch=1)]
    assert kinds(segments) == [FindingKind.OVERLAP]
    assert found(segments, PartitionState(lineage=lineage(e0=10, e1=25))) == []


@pytest.mark.parametrize(
    ("log_start", "local_start", "gaps"),
    [
        (10, 30, []),
        (15, 30, []),  # the log begins in a segment
        (5, 30, ["5 to 9"]),
        (0, 0, []),  # the broker has all that is not in the tier
        (5, 5, []),
        (10, 35, ["30 to 34"]),
        (40, 50, ["40 to 49"]),
    ],
)
def test_what_neither_tier_nor_broker_has_is_a_gap(log_start: int, local_start: int, gaps: list[str]) -> None:
    state = PartitionState(log_start_offset=log_start, local_log_start_offset=local_start)
    details = found([segment(10, 19), segment(20, 29)], state)
    assert [kind for kind, _ in details] == [FindingKind.GAP] * len(gaps)
    assert all(gap in detail for gap, (_, detail) in zip(gaps, details, strict=True))


def test_what_is_below_the_log_start_is_not_looked_at() -> None:
    state = PartitionState(log_start_offset=20, local_log_start_offset=30)
    assert found([segment(0, 4), segment(7, 12), segment(20, 29)], state) == []


@pytest.mark.parametrize(
    "state", [RemoteLogSegmentState.COPY_SEGMENT_STARTED, RemoteLogSegmentState.DELETE_SEGMENT_STARTED]
)
def test_what_began_long_ago_and_never_ended_is_found(state: RemoteLogSegmentState) -> None:
    late = replace(segment(10, 19), state=state, event_timestamp_ms=NOW_MS - UNFINISHED_AGE_MS - 1)
    young = replace(segment(20, 29), state=state, event_timestamp_ms=NOW_MS - UNFINISHED_AGE_MS)
    ((kind, detail),) = found([segment(0, 9), late, young])
    assert kind is FindingKind.UNFINISHED
    assert state.name in detail


@pytest.mark.parametrize("name", NAMES)
def test_what_a_real_broker_tiered_has_no_findings(name: str) -> None:
    recorded = Recorded(name)
    state = PartitionState(
        lineage=recorded.lineage,
        log_start_offset=recorded.log_start,
        local_log_start_offset=recorded.local_log_start,
    )
    assert check_partition(recorded.key, recorded.segments, state, now_ms=NOW_MS) == []
