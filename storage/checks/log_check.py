"""A segment's batches against its metadata: CRCs, offsets, leader epochs, timestamps. One walk, which the checks of the
indexes follow.

- Offsets follow one another without gaps from the segment's start to its end. Kafka tiers no compacted topic; one that
  was compacted in its past shows its gaps here.
- After a batch whose offsets are wrong two continuations are right: after the offsets that it has, and after those that
  it should have. So a wrong base offset, a gap and a foreign log are each told of once.
- A batch's leader epoch, which its CRC does not cover, is the one that the metadata gives its offset.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

from storage.checks.finding import Finding, FindingKind, segment_finding
from storage.checks.index_checks import BatchCheck
from storage.log.log_walk import Found, PassedOver, WalkedBatch, is_abort_marker
from storage.model import RemoteLogSegmentMetadata

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
        # A v0 or v1 message that wraps others names its last offset only.
        is_wrapper = header.magic < 2 and header.record_count < 0
        fits = (
            self._last_offset < base_offset if self._expected is None or is_wrapper else base_offset in self._expected
        )
        inside = metadata.start_offset <= base_offset and last_offset <= metadata.end_offset
        expected, self._expected = self._expected, {last_offset + 1}
        if fits and inside:
            self._last_offset = last_offset
            return True
        if fits and not inside and self._wrong_offsets:
            return False  # the rest of what was told of already
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
        """What only the end tells, when nothing before it explains that already."""
        metadata = self._metadata
        if not self._is_complete or self._wrong_offsets:
            return
        if self._last_offset != metadata.end_offset:
            self._add(
                FindingKind.OFFSETS,
                f"the log ends with offset {self._last_offset}, the segment with {metadata.end_offset}",
                self.byte_count,
            )
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
