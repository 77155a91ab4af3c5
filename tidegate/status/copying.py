"""What the status page says of the copier (standalone mode), as plain data."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from metrics.copy_meters import Stall
from metrics.troubles import TroubleId
from proxy.readiness import Readiness
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


def tell_copying(copying: "Copying", readiness: Readiness) -> None:
    """Tell of what is wrong now."""
    found: dict[TroubleId, list[str]] = {trouble: [] for trouble in _OF_PARTITIONS} | copying.troubles()
    for each in (*copying.progress(), *copying.gone()):
        for trouble, reason in _troubles(each):
            found[trouble].append(f"{each.topic}-{each.partition}: {reason}")
    for trouble, reasons in found.items():
        readiness.tell(trouble, reasons)


_OF_PARTITIONS: Final = (
    TroubleId.COPY_POISONED,
    TroubleId.COPY_LATE,
    TroubleId.COPY_STALLED,
    TroubleId.DELETION_ALARMING,
    TroubleId.DEAD_SEGMENTS,
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
        trouble=next((reason for trouble, reason in _troubles(progress) if trouble in _OF_PARTITIONS[:2]), None),
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


def _troubles(progress: "PartitionProgress") -> Iterator[tuple[TroubleId, str]]:
    if progress.is_poisoned:
        yield TroubleId.COPY_POISONED, f"it is not copied any further: {progress.last_error or progress.waits_for}"
    elif progress.retention_share > RETENTION_SHARE_MAX:
        yield (
            TroubleId.COPY_LATE,
            f"records that are {progress.lag_ms // 1000} s old are not in the tier: "
            f"{progress.retention_share:.0%} of what upstream keeps (retention.ms, retention.bytes); see "
            "copy.segment.ms and what the copier waits for",
        )
    if progress.stall not in (None, Stall.DISABLED, Stall.POISON):
        yield TroubleId.COPY_STALLED, f"its records are not copied ({progress.stall}): {progress.waits_for}"
    if progress.deletion is not None and progress.deletion.is_alarming:
        yield TroubleId.DELETION_ALARMING, f"{progress.deletion.segments} segments wait: {progress.deletion.why}"
    if progress.dead_segments:
        yield TroubleId.DEAD_SEGMENTS, f"{progress.dead_segments} segments hold only what upstream has lost"
