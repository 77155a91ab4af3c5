"""What the status page says of the copier (standalone mode), as plain data."""

from typing import TYPE_CHECKING, Final

from tidegate.status.model import CopyDeletionStatus, CopyPartitionStatus, CopyStatus

if TYPE_CHECKING:
    from standalone.copier.progress import PartitionProgress
    from standalone.copying import Copying

ROWS_MAX: Final = 100

RETENTION_SHARE_MAX: Final = 0.5
"""Share of upstream's retention: what is not in the tier at this age will be deleted before it is, if nobody looks."""


def copy_status(copying: "Copying") -> CopyStatus:
    """As it is now: partitions in trouble first, then those that are stalled, then those that are furthest behind;
    deletions that wait, those that alarm first."""
    progress = copying.progress()
    rows = [_row(each) for each in progress]
    rows.sort(
        key=lambda row: (
            row["trouble"] is None,
            row["last_error"] is None,
            row["stall"] is None,
            not row["copied"],
            -row["lag_bytes"],
        )
    )
    deletions = [found for each in (*progress, *copying.gone()) if (found := _deletion(each)) is not None]
    deletions.sort(key=lambda row: (not row["alarming"], -row["bytes"]))
    return CopyStatus(
        group=copying.group_id,
        total=len(rows),
        copied_bytes=sum(row["copied_bytes"] for row in rows),
        lag_bytes=sum(row["lag_bytes"] for row in rows),
        problems=copying.problems(),
        rows=rows[:ROWS_MAX],
        deletions_total=len(deletions),
        deletions=deletions[:ROWS_MAX],
    )


def _row(progress: "PartitionProgress") -> CopyPartitionStatus:
    return CopyPartitionStatus(
        topic=progress.topic,
        partition=progress.partition,
        copied_offset=None if progress.copied_offset < 0 else progress.copied_offset,
        last_stable_offset=None if progress.last_stable_offset < 0 else progress.last_stable_offset,
        copied_bytes=progress.copied_bytes,
        lag_bytes=progress.lag_bytes,
        lag_ms=progress.lag_ms,
        waits_for=progress.waits_for,
        stall=progress.stall,
        dead_segments=progress.dead_segments,
        dead_bytes=progress.dead_bytes,
        copied=progress.is_copied,
        last_error=progress.last_error,
        trouble=_trouble(progress),
    )


def _deletion(progress: "PartitionProgress") -> CopyDeletionStatus | None:
    waiting = progress.deletion
    if waiting is None:
        return None
    return CopyDeletionStatus(
        topic=progress.topic,
        partition=progress.partition,
        segments=waiting.segments,
        bytes=waiting.size_bytes,
        until_ms=waiting.until_ms,
        why=waiting.why,
        alarming=waiting.is_alarming,
    )


def _trouble(progress: "PartitionProgress") -> str | None:
    if progress.is_poisoned:
        return f"it is not copied any further: {progress.last_error or progress.waits_for}"
    if progress.retention_share > RETENTION_SHARE_MAX:
        return (
            f"records that are {progress.lag_ms // 1000} s old are not in the tier: "
            f"{progress.retention_share:.0%} of what upstream keeps (retention.ms, retention.bytes); see "
            "copy.segment.ms and what the copier waits for"
        )
    return None
