"""A segment's batches against its metadata: CRCs, offsets, leader epochs, timestamps. One walk, which the checks of the
indexes follow.

- Offsets ascend from the segment's start to its end. Where some are in no batch there is a hole, which is counted and
  no finding: compaction in a topic's past leaves them, and Kafka allows it.
- After a batch whose offsets are wrong two continuations are right: after the offsets that it has, and after those
  that it should have. So a wrong base offset and a foreign log are each told of once.
- A batch's leader epoch, which its CRC does not cover, is the one that the metadata gives its offset.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

from storage.checks.finding import Finding, FindingKind, segment_finding
from storage.checks.index_audit import REQUIRED, SegmentIndexes
from storage.checks.index_checks import BatchCheck
from storage.errors import RemoteStorageError
from storage.log.log_walk import Depth, Found, LogWalk, PassedOver, UnreadableBytesError, WalkedBatch, is_abort_marker
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

FAULTS_MAX = 1000
"""Findings of one log: then the rest is not checked."""


class LogCheck:
    """Counts and findings of one segment's log. `object_name`: of the log, for messages."""

    def __init__(self, metadata: RemoteLogSegmentMetadata, object_name: str) -> None:
        self.findings: list[Finding] = []
        self.batch_count = 0
        self.record_count = 0
        """Without those of compressed v0 and v1 messages, whose headers do not tell."""
        self.byte_count = 0
        self.hole_count = 0
        """Runs of offsets that are in no batch, as far as nothing else is wrong with offsets."""
        self._metadata = metadata
        self._object_name = object_name
        self._expected: set[int] | None = {metadata.start_offset}
        """What the next base offset may be; None: after what could not be walked, anything that ascends."""
        self._last_offset = metadata.start_offset - 1
        self._wrong_offsets = 0
        self._wrong_epochs = 0
        self._newest_ms = -1
        self._is_complete = True
        self._epochs = list(metadata.segment_leader_epochs)
        self._epoch_starts = list(metadata.segment_leader_epochs.values())

    def run(self, walk: Iterable[Found], followers: Sequence[BatchCheck]) -> None:
        """Check what a walk finds that passes over what is corrupt, with CRCs and from the log's start.

        Raises:
            RemoteStorageError: the store's trouble did not pass.
        """
        for found in _each(walk):
            if len(self.findings) >= FAULTS_MAX:
                break
            if isinstance(found, PassedOver):
                self._passed_over(found)
                header = found.error.header
                for follower in followers:
                    if header is not None:
                        follower.batch(found.position, header, is_valid=False, is_abort=None)
                    follower.skip(found.end)
                continue
            is_sound, is_abort = self._batch(found), is_abort_marker(found)
            for follower in followers:
                follower.batch(found.position, found.header, is_sound, is_abort)
            self.byte_count = found.position + found.header.size_bytes
        if self.byte_count < self._metadata.segment_size_bytes or len(self.findings) >= FAULTS_MAX:
            self._is_complete = False
            self._add(FindingKind.NOT_CHECKED, f"after {FAULTS_MAX} faults the rest was not checked", self.byte_count)
        for follower in followers:
            follower.finish(self._is_complete)
        self._finish()

    def _batch(self, batch: WalkedBatch) -> bool:
        """Count and check a batch; whether its header may be relied on."""
        header = batch.header
        self.batch_count += 1
        self.record_count += max(0, header.record_count)
        self._newest_ms = max(self._newest_ms, header.max_timestamp)
        if not self._offsets(batch):
            return False
        self._leader_epoch(batch)
        return True

    def _offsets(self, batch: WalkedBatch) -> bool:
        header, metadata = batch.header, self._metadata
        base_offset, last_offset = header.base_offset, header.last_offset
        fits = self._last_offset < base_offset or (self._expected is not None and base_offset in self._expected)
        inside = metadata.start_offset <= base_offset and last_offset <= metadata.end_offset
        expected, self._expected = self._expected, {last_offset + 1}
        if fits and inside:
            # A v0 or v1 message that wraps others names its last offset only.
            is_wrapper = header.magic < 2 and header.record_count < 0
            self.hole_count += expected is not None and base_offset not in expected and not is_wrapper
            self._last_offset = last_offset
            return True
        if fits and not inside and self._wrong_offsets:
            return False  # part of a fault that has been reported
        if expected is not None:
            self._expected |= {offset + header.last_offset_delta + 1 for offset in expected}
        self._wrong_offsets += 1
        if inside and base_offset > self._last_offset:
            self._last_offset = last_offset
        self._add(FindingKind.OFFSETS, self._offsets_sentence(batch, expected), batch.position)
        return False

    def _offsets_sentence(self, batch: WalkedBatch, expected: set[int] | None) -> str:
        header, metadata = batch.header, self._metadata
        wanted = f"{min(expected)} comes next" if expected else f"{self._last_offset} came before"
        return (
            f"the batch has offsets {header.base_offset} to {header.last_offset}, where {wanted} "
            f"in a segment of {metadata.start_offset} to {metadata.end_offset}"
        )

    def _leader_epoch(self, batch: WalkedBatch) -> None:
        number = bisect_right(self._epoch_starts, batch.header.base_offset) - 1
        epoch = batch.header.partition_leader_epoch
        if number < 0 or batch.header.magic < 2 or epoch == self._epochs[number]:
            return
        self._wrong_epochs += 1
        if self._wrong_epochs == 1:
            self._add(
                FindingKind.LEADER_EPOCH,
                f"the batch of offset {batch.header.base_offset} has leader epoch {epoch}, "
                f"by the metadata it is {self._epochs[number]}",
                batch.position,
            )

    def _passed_over(self, bad: PassedOver) -> None:
        error, header, kind = bad.error, bad.error.header, FindingKind.BATCH_CORRUPT
        detail, own_end = error.reason, bad.position
        self._is_complete = False
        # What comes next tells where the offsets go on.
        self._expected = None
        self.byte_count = bad.end
        if error.unreadable_end:
            kind = FindingKind.OBJECT_CORRUPT
        elif header is not None:
            self.batch_count += 1
            detail = f"the batch of offset {header.base_offset}: {detail}"
            own_end = bad.position + header.size_bytes
        if bad.end != own_end:
            detail += f" (bytes up to {bad.end} were passed over)"
        self._add(kind, detail, bad.position)

    def _finish(self) -> None:
        """Add what only the end shows, when nothing before it explains that already."""
        metadata = self._metadata
        if not self._is_complete or self._wrong_offsets:
            return
        self.hole_count += self._last_offset != metadata.end_offset
        if self._newest_ms > metadata.max_timestamp_ms:
            self._add(
                FindingKind.TIMESTAMP,
                f"the log's newest time is {self._newest_ms} ms, the metadata has {metadata.max_timestamp_ms} ms: "
                "look-ups by time pass the segment over",
                None,
            )

    def _add(self, kind: FindingKind, detail: str, position: int | None) -> None:
        self.findings.append(
            segment_finding(kind, self._metadata.segment_id, detail, object_name=self._object_name, position=position)
        )


def _each(walk: Iterable[Found]) -> Iterator[WalkedBatch | PassedOver]:
    for found in walk:
        if isinstance(found, PassedOver):
            yield found
        else:
            yield from found
        del found


RANGE_BYTES = 8 * 1024 * 1024
PIECE_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class SegmentReport:
    """What was looked at, and what was found. Batches and records are 0 unless the log was walked."""

    findings: tuple[Finding, ...]
    objects: int = 0
    stored_bytes: int = 0
    """Bytes of the objects in the store."""
    batches: int = 0
    records: int = 0
    log_bytes: int = 0
    """Bytes of the log, as it was walked."""
    holes: int = 0
    """In the log, as compaction leaves them."""


def check_segment(
    manager: RemoteStorageManager, metadata: RemoteLogSegmentMetadata, *, deep: bool = True, wait: Wait = wait_in_thread
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
            self._log_check.hole_count,
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
