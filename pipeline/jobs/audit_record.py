"""What audits have found of segments, kept in a folder so that a job that was killed goes on where it was.

| path | what |
|---|---|
| `segments/audit-0123abcd.json` | one wave: by segment its metadata's fingerprint, counts, findings |
| `report.json` | the whole of the last audit that came to its end |

A segment is sound for the next run if its metadata are the same, it was looked at as deeply, and nothing was found:
what was found may have been mended.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from pipeline.jobs.job_folder import JobFolder
from storage.checks.batch_audit import SegmentReport
from storage.checks.finding import Finding
from storage.model import RemoteLogSegmentId, RemoteLogSegmentMetadata, uuid_to_text

REPORT = "report.json"
_WAVES = "segments/audit-"
_COUNTS = ("objects", "stored_bytes", "batches", "records", "log_bytes", "holes")


@dataclass(frozen=True, slots=True)
class CheckedSegment:
    """A SegmentReport as it is kept. `is_kept`: by an earlier run."""

    findings: tuple[Finding, ...]
    objects: int
    stored_bytes: int
    batches: int
    records: int
    log_bytes: int
    holes: int
    is_kept: bool = field(default=False, kw_only=True)


class AuditRecord:
    """The waves of one folder.

    Raises:
        ValueError: a file there is not an audit's.
    """

    def __init__(self, folder: JobFolder) -> None:
        self._folder = folder
        self._known: dict[str, list[dict[str, Any]]] = {}
        for name in folder.names(f"{_WAVES}*.json"):
            kept = folder.read_json(name)
            if not isinstance(kept, dict):
                raise ValueError(f"{folder.root}/{name} is not an audit's")
            for key, fields in kept.items():
                self._known.setdefault(key, []).append(fields)

    def sound(
        self, segments: Sequence[RemoteLogSegmentMetadata], *, deep: bool
    ) -> dict[RemoteLogSegmentId, CheckedSegment]:
        """Those that need not be checked again."""
        sound = {}
        for segment in segments:
            for kept in self._known.get(_key(segment), ()):
                if kept["fingerprint"] != fingerprint(segment) or (deep and not kept["deep"]):
                    continue
                checked = _from_fields(kept["report"])
                if not checked.findings:
                    sound[segment.segment_id] = replace(checked, is_kept=True)
        return sound

    def keep(
        self,
        wave: Sequence[RemoteLogSegmentMetadata],
        checked: Mapping[RemoteLogSegmentId, CheckedSegment],
        *,
        deep: bool,
    ) -> None:
        """Write one wave; the same segments again take the place of what was written of them."""
        kept = {
            _key(segment): {
                "fingerprint": fingerprint(segment),
                "deep": deep,
                "report": _to_fields(checked[segment.segment_id]),
            }
            for segment in wave
        }
        name = hashlib.sha256("\n".join(sorted(kept)).encode()).hexdigest()[:32]
        self._folder.write_json(f"{_WAVES}{name}.json", kept)

    def finish(self, result: Mapping[str, Any]) -> None:
        """Write what the whole came to."""
        self._folder.write_json(REPORT, result)


def fingerprint(metadata: RemoteLogSegmentMetadata) -> str:
    """The same just when everything that a check compares with is the same."""
    fields = (
        metadata.start_offset,
        metadata.end_offset,
        metadata.max_timestamp_ms,
        metadata.segment_size_bytes,
        sorted(metadata.segment_leader_epochs.items()),
        metadata.txn_index_empty,
        None if metadata.custom_metadata is None else metadata.custom_metadata.hex(),
    )
    return hashlib.sha256(json.dumps(fields).encode()).hexdigest()[:32]


def to_text(report: SegmentReport) -> str:
    """A report on its way from an executor."""
    fields = {name: getattr(report, name) for name in _COUNTS}
    return json.dumps({**fields, "findings": [finding.as_json() for finding in report.findings]})


def from_text(text: str) -> CheckedSegment:
    """The inverse of `to_text`."""
    return _from_fields(json.loads(text))


def _from_fields(fields: Mapping[str, Any]) -> CheckedSegment:
    findings = tuple(Finding.from_json(finding) for finding in fields["findings"])
    # Earlier versions did not count holes: they were findings.
    counts = [int(fields.get(name, 0)) for name in _COUNTS]
    return CheckedSegment(findings, *counts)


def _to_fields(checked: CheckedSegment) -> dict[str, Any]:
    fields = asdict(checked)
    del fields["is_kept"]
    return {**fields, "findings": [finding.as_json() for finding in checked.findings]}


def _key(segment: RemoteLogSegmentMetadata) -> str:
    return uuid_to_text(segment.segment_id.id)
