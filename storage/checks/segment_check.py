"""One segment: its objects, manifest, indexes and, if wanted, every batch of its log.

Memory: one piece of the log, what the format's decoder holds (a chunk), and the indexes, whatever the segment's size.

An object is told of once: what is absent or of a wrong size is not read; a manifest that is wrong leads to nothing.
"""

from contextlib import closing
from dataclasses import dataclass

from storage.checks.finding import Finding, FindingKind, segment_finding
from storage.checks.log_check import LogCheck
from storage.checks.segment_indexes import REQUIRED, SegmentIndexes
from storage.errors import RemoteStorageError
from storage.log.log_walk import Depth, LogWalk, UnreadableBytesError
from storage.log.segment_scan import LogWindow
from storage.model import IndexType, RemoteLogSegmentMetadata
from storage.object_store.retries import PATIENT_ATTEMPTS_MAX, Wait, call_with_retries, wait_in_thread
from storage.remote_storage_manager import (
    ObjectContent,
    OpenedSegment,
    RemoteStorageManager,
    SegmentInspection,
    SegmentObject,
)

RANGE_BYTES = 8 * 1024 * 1024
PIECE_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class SegmentReport:
    """What was looked at, and what was found. Batches and records are 0 unless the log was walked."""

    findings: tuple[Finding, ...]
    objects: int = 0
    stored_bytes: int = 0
    """Of the objects in the store."""
    batches: int = 0
    records: int = 0
    log_bytes: int = 0
    """Of the log, as it was walked."""


def check_segment(
    manager: RemoteStorageManager,
    metadata: RemoteLogSegmentMetadata,
    *,
    deep: bool = True,
    wait: Wait = wait_in_thread,
) -> SegmentReport:
    """Check a segment that is COPY_SEGMENT_FINISHED. Trouble of the store is a finding too, NOT_CHECKED.

    Args:
        deep: read the log; otherwise objects, sizes and what indexes tell by themselves.
        wait: how to wait before the store is asked again.
    """
    return _SegmentCheck(manager, metadata, wait).run(deep=deep)


class _SegmentCheck:
    def __init__(self, manager: RemoteStorageManager, metadata: RemoteLogSegmentMetadata, wait: Wait) -> None:
        self._manager = manager
        self._metadata = metadata
        self._wait = wait
        self._findings: list[Finding] = []
        self._present: tuple[SegmentObject, ...] = ()
        self._log_check = LogCheck(metadata, "")

    def run(self, *, deep: bool) -> SegmentReport:
        try:
            self._check(deep=deep)
        except RemoteStorageError as error:
            self._add(FindingKind.NOT_CHECKED, str(error))
        return SegmentReport(
            tuple(self._findings),
            len(self._present),
            sum(each.size_bytes or 0 for each in self._present),
            self._log_check.batch_count,
            self._log_check.record_count,
            self._log_check.byte_count,
        )

    def _check(self, *, deep: bool) -> None:
        inspection = call_with_retries(
            lambda: self._manager.inspect_segment(self._metadata),
            None,  # an absent object is no error here
            self._wait,
            attempts_max=PATIENT_ATTEMPTS_MAX,
        )
        self._present = tuple(each for each in inspection.objects if each.size_bytes is not None)
        if not self._present:
            self._add(FindingKind.SEGMENT_MISSING, "none of its objects is in the store")
            return
        sound = self._check_objects(inspection)
        if inspection.opened is None:
            return
        opened, log = inspection.opened, next((o for o in sound if o.content is ObjectContent.LOG), None)
        indexes = self._check_indexes(inspection, opened, sound)
        manifest = next((o for o in inspection.objects if o.content is ObjectContent.MANIFEST), None)
        if manifest is not None and indexes.none_readable:
            if log is not None and not self._reads_first_piece(opened):
                detail = "by it neither the log nor any index can be decoded"
                self._add(FindingKind.MANIFEST, detail, manifest.name)
                return
            indexes.forget(f"none of its indexes can be read, the first: {indexes.findings[0].detail}")
        if deep and log is not None and self._metadata.segment_size_bytes:
            self._check_log(opened, log, indexes)
        else:
            self._findings += indexes.findings

    def _check_objects(self, inspection: SegmentInspection) -> list[SegmentObject]:
        """The objects that are there, and of the right size as far as that is known."""
        sound = []
        for each in inspection.objects:
            if each.size_bytes is None:
                if each.is_required:
                    self._add(FindingKind.OBJECT_MISSING, "there is no such object", each.name)
            elif each.content is ObjectContent.MANIFEST and inspection.manifest_problem is not None:
                self._add(FindingKind.MANIFEST, inspection.manifest_problem, each.name)
            elif inspection.opened is not None and each.expected_bytes not in (None, each.size_bytes):
                self._add(
                    FindingKind.OBJECT_SIZE,
                    f"it has {each.size_bytes} bytes, and should have {each.expected_bytes}; it was not read",
                    each.name,
                )
            else:
                sound.append(each)
        return sound

    def _check_indexes(
        self, inspection: SegmentInspection, opened: OpenedSegment, sound: list[SegmentObject]
    ) -> SegmentIndexes:
        """Read what lies in sound objects."""
        holders = [each for each in inspection.objects if each.content is ObjectContent.INDEXES]
        # One object that holds all is the place of an index that it lacks, too.
        names = {
            type_: each.name for each in holders for type_ in (each.index_types if len(holders) > 1 else IndexType)
        }
        indexes = SegmentIndexes(self._metadata, names)
        readable = {index_type for each in sound for index_type in each.index_types}
        told = [each for each in holders if each not in sound and (each.is_required or each.size_bytes is not None)]
        unread = {index_type for each in told for index_type in each.index_types}
        for index_type in IndexType:
            if index_type in readable:
                indexes.load(opened, index_type, self._wait)
            elif index_type in unread:
                continue
            elif index_type in REQUIRED:
                indexes.add(FindingKind.INDEX_MISSING, index_type, "the segment has none")
            else:
                indexes.without(index_type)
        return indexes

    def _reads_first_piece(self, opened: OpenedSegment) -> bool:
        with closing(self._window(opened)) as window:
            try:
                window.view(0, 1)
            except UnreadableBytesError:
                return False
            return True

    def _check_log(self, opened: OpenedSegment, log: SegmentObject, indexes: SegmentIndexes) -> None:
        self._log_check = LogCheck(self._metadata, log.name)
        size_bytes = self._metadata.segment_size_bytes
        walk = LogWalk(self._metadata, 0, size_bytes, Depth.CHECKSUMS, index=indexes.offset_index, recovers=True)
        try:
            with closing(self._window(opened)) as window:
                self._log_check.run(window.drive(walk.steps()), indexes.checks)
        finally:
            self._findings += self._log_check.findings
            self._findings += indexes.conclude()

    def _window(self, opened: OpenedSegment) -> LogWindow:
        return LogWindow(
            opened,
            self._metadata,
            self._metadata.segment_size_bytes,
            piece_bytes=PIECE_BYTES,
            range_bytes=RANGE_BYTES,
            has_holes=True,
            attempts_max=PATIENT_ATTEMPTS_MAX,
            wait=self._wait,
        )

    def _add(self, kind: FindingKind, detail: str, object_name: str | None = None) -> None:
        self._findings.append(segment_finding(kind, self._metadata.segment_id, detail, object_name=object_name))
