"""What an audit of many segments comes to: by Spark's executors, or by `tidegate verify` in one process."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from storage.checks.finding import WHAT_TO_DO, Finding, FindingKind
from storage.model import RemoteLogSegmentId, RemoteLogSegmentMetadata, uuid_to_text
from storage.sizes import shown_size

FindSegment = Callable[[RemoteLogSegmentId], RemoteLogSegmentMetadata | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditResult:
    """Counts are of what was checked, in this run or in one that this goes on from."""

    findings: tuple[Finding, ...]
    partitions: int = 0
    segments: int = 0
    segments_checked_before: int = 0
    objects: int = 0
    stored_bytes: int = 0
    batches: int = 0
    records: int = 0
    holes: int = 0
    """Runs of offsets that are in no batch, inside of segments."""
    by_kind: Mapping[str, int] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """The whole as JSON has it."""
        return {
            "partitions": self.partitions,
            "segments": self.segments,
            "segments_checked_before": self.segments_checked_before,
            "objects": self.objects,
            "stored_bytes": self.stored_bytes,
            "batches": self.batches,
            "records": self.records,
            "holes": self.holes,
            "by_kind": dict(self.by_kind),
            "findings": [finding.as_json() for finding in self.findings],
        }

    def summary(self) -> Sequence[str]:
        """Return what it came to, in a few lines."""
        before = (
            f" ({self.segments_checked_before:,} of them by an earlier run)" if self.segments_checked_before else ""
        )
        lines = [
            f"{self.partitions:,} partitions, {self.segments:,} segments{before}: {self.objects:,} objects with "
            f"{shown_size(self.stored_bytes)}, {self.batches:,} batches, {self.records:,} records"
        ]
        if self.holes:
            lines.append(f"{self.holes:,} holes: offsets in no batch, as compaction leaves them, and nothing is wrong")
        if not self.findings:
            return [*lines, "no findings"]
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in self.by_kind.items())
        lines += [f"{kind}: {WHAT_TO_DO[FindingKind(kind)]}" for kind in self.by_kind]
        return [*lines, f"{len(self.findings):,} findings: {kinds}"]


def in_order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """By topic, partition and object; orphans last."""
    return tuple(sorted(findings, key=_place))


def by_kind(findings: Iterable[Finding]) -> Mapping[str, int]:
    """Return how many there are of each kind."""
    return dict(sorted(Counter(finding.kind.value for finding in findings).items()))


def still_true(
    findings: Iterable[Finding], before: Iterable[RemoteLogSegmentMetadata], find_segment: FindSegment
) -> list[Finding]:
    """Without those of segments whose state has changed since: their objects come and go.

    Args:
        before: the segments as they were checked.
        find_segment: what the metadata have of a segment now.
    """
    findings = list(findings)
    named = {finding.segment for finding in findings}
    checked = {text: segment for segment in before if (text := uuid_to_text(segment.segment_id.id)) in named}
    kept = []
    for finding in findings:
        segment = checked.get(finding.segment) if finding.segment is not None else None
        now = None if segment is None else find_segment(segment.segment_id)
        if segment is None or (now is not None and now.state is segment.state):
            kept.append(finding)
    return kept


def _place(finding: Finding) -> tuple[bool, str, int, str, str, int]:
    return (
        finding.kind is FindingKind.ORPHAN,
        finding.topic or "",
        -1 if finding.partition is None else finding.partition,
        finding.object_name or finding.segment or "",
        finding.kind.value,
        -1 if finding.position is None else finding.position,
    )
