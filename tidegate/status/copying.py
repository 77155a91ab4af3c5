"""What the status page says of the copier (standalone mode), as plain data."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import trio

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


STALLED_S_MIN: Final = 900.0
"""How long a partition is stalled until it is trouble, as alert TidegateCopyStalled has it."""


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


_OF_PARTITIONS: Final = (
    TroubleId.COPY_POISONED,
    TroubleId.COPY_LATE,
    TroubleId.COPY_STALLED,
    TroubleId.DELETION_ALARMING,
    TroubleId.DEAD_SEGMENTS,
)


class CopyTroubles:
    """Tells readiness what is wrong with copying. Owned by the trio thread."""

    def __init__(self, copying: "Copying", readiness: Readiness) -> None:
        self._copying, self._readiness = copying, readiness
        self._stalled_at_s: dict[tuple[str, int], float] = {}

    def tell(self) -> None:
        """Tell of it as it is now; of a stall that lasts, as a transaction is often open for a moment."""
        found: dict[TroubleId, list[str]] = {trouble: [] for trouble in _OF_PARTITIONS} | self._copying.troubles()
        progress, now_s = self._copying.progress(), trio.current_time()
        stalled = [each for each in progress if each.stall not in (None, Stall.DISABLED, Stall.POISON)]
        names = {(each.topic, each.partition) for each in stalled}
        self._stalled_at_s = {name: self._stalled_at_s.get(name, now_s) for name in names}
        for each in stalled:
            if now_s - self._stalled_at_s[each.topic, each.partition] >= STALLED_S_MIN:
                said = f"{each.topic}-{each.partition}: its records are not copied ({each.stall}): {each.waits_for}"
                found[TroubleId.COPY_STALLED].append(said)
        for each in (*progress, *self._copying.gone()):
            for trouble, reason in _troubles(each):
                found[trouble].append(f"{each.topic}-{each.partition}: {reason}")
        for trouble, reasons in found.items():
            self._readiness.tell(trouble, reasons)


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
    if progress.deletion is not None and progress.deletion.is_alarming:
        yield TroubleId.DELETION_ALARMING, f"{progress.deletion.segments} segments wait: {progress.deletion.why}"
    if progress.dead_segments:
        yield TroubleId.DEAD_SEGMENTS, f"{progress.dead_segments} segments hold only what upstream has lost"
