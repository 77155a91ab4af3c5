"""The segments of one partition against each other: gaps, overlaps, and what began and never ended.

Only finished segments on the lineage count (storage/metadata/partition_catalog.py): others are what an unclean
election left, and the broker deletes them. What lies below the log's start is not looked at either: it is about to go.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from storage.checks.finding import Finding, FindingKind, partition_finding, segment_finding
from storage.metadata.epoch_history import LeaderEpochLineage
from storage.model import RemoteLogSegmentMetadata, RemoteLogSegmentState, TopicIdPartition

UNFINISHED_AGE_MS = 60 * 60 * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """What the broker says of a partition. None: it was not asked, and nothing is concluded from it.

    `local_log_start_offset`: where what the broker itself holds begins.
    """

    lineage: LeaderEpochLineage | None = None
    log_start_offset: int | None = None
    local_log_start_offset: int | None = None


def check_partition(
    partition: TopicIdPartition,
    segments: Sequence[RemoteLogSegmentMetadata],
    state: PartitionState,
    *,
    now_ms: int,
    unfinished_age_ms: int = UNFINISHED_AGE_MS,
) -> list[Finding]:
    """Check a partition's segments, of every state and in any order.

    Args:
        now_ms: when the metadata was read.
        unfinished_age_ms: how long a copy or a deletion may take.
    """
    findings = [_unfinished(segment) for segment in segments if _is_late(segment, now_ms - unfinished_age_ms)]
    log_start = state.log_start_offset or 0
    live = sorted(
        (segment for segment in segments if _counts(segment, state.lineage, log_start)),
        key=lambda segment: (segment.start_offset, segment.end_offset),
    )
    local_start = state.local_log_start_offset
    # Where the segments so far end (exclusive); None while that is not known.
    covered_to = log_start if state.log_start_offset is not None and local_start is not None else None
    for number, segment in enumerate(live):
        # What comes before the first segment may never have been copied, as long as the broker has it itself.
        is_missed = number > 0 or (local_start is not None and covered_to is not None and covered_to < local_start)
        if covered_to is not None and segment.start_offset > covered_to and is_missed:
            findings.append(_gap(partition, covered_to, segment.start_offset - 1))
        elif covered_to is not None and segment.start_offset < covered_to and number > 0:
            findings.append(_overlap(segment, covered_to))
        covered_to = max(covered_to or 0, segment.end_offset + 1)
    if covered_to is not None and local_start is not None and covered_to < local_start:
        findings.append(_gap(partition, covered_to, local_start - 1))
    return findings


def _counts(segment: RemoteLogSegmentMetadata, lineage: LeaderEpochLineage | None, log_start: int) -> bool:
    return (
        segment.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
        and segment.end_offset >= log_start
        and (lineage is None or lineage.holds(segment, max(segment.start_offset, log_start)))
    )


def _is_late(segment: RemoteLogSegmentMetadata, before_ms: int) -> bool:
    return (
        segment.state in (RemoteLogSegmentState.COPY_SEGMENT_STARTED, RemoteLogSegmentState.DELETE_SEGMENT_STARTED)
        and segment.event_timestamp_ms < before_ms
    )


def _unfinished(segment: RemoteLogSegmentMetadata) -> Finding:
    return segment_finding(
        FindingKind.UNFINISHED,
        segment.segment_id,
        f"offsets {segment.start_offset} to {segment.end_offset} have been in {segment.state.name} "
        f"since {segment.event_timestamp_ms} ms",
    )


def _gap(partition: TopicIdPartition, first_offset: int, last_offset: int) -> Finding:
    return partition_finding(
        FindingKind.GAP, partition, f"offsets {first_offset} to {last_offset} are in no segment on the lineage"
    )


def _overlap(segment: RemoteLogSegmentMetadata, covered_to: int) -> Finding:
    return segment_finding(
        FindingKind.OVERLAP,
        segment.segment_id,
        f"its offsets {segment.start_offset} to {min(segment.end_offset, covered_to - 1)} are in an earlier one too",
    )
