"""The life of a segment in the tier: begun, copied, finished; or given back. Without input or output.

The methods of `SegmentCopy` are generators. What they yield is to be done, in that order; what they are sent is the
outcome (`Upload` only). The error of a step that cannot be done now (RemoteStorageError) is thrown into them. After a
`Publish` they go on once its record, and everything before it, was noted in the ledger.

A crash between any two steps leaves what the next owner's `tidy` cleans up (standalone.copier.ledger).
"""

import enum
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from standalone.copier.ledger import Ledger, epoch_ranges
from standalone.copier.staging import StagedSegment
from storage.metadata.serde import MetadataRecord
from storage.model import (
    CustomMetadata,
    LogSegmentData,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
    Uuid,
)

_STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
_DELETE_STARTED = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
_DELETE_FINISHED = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED


@dataclass(frozen=True, slots=True)
class Publish:
    """Append the record to the metadata topic and read up to it."""

    record: MetadataRecord


@dataclass(frozen=True, slots=True)
class Upload:
    """Copy the files into the store (RemoteStorageManager.copy_log_segment_data); sent back: its custom metadata."""

    segment: RemoteLogSegmentMetadata
    files: LogSegmentData


@dataclass(frozen=True, slots=True)
class DeleteObjects:
    """Remove what the store has of the segment; nothing there is no error."""

    segment: RemoteLogSegmentMetadata


T = TypeVar("T")
Step: TypeAlias = Publish | Upload | DeleteObjects
Steps: TypeAlias = Generator[Step, CustomMetadata | None, T]


class Copied(enum.Enum):
    """How a copy ended."""

    FINISHED = "finished"
    STALE = "stale"
    """Another owner has finished these offsets: go on behind them."""
    SUPERSEDED = "superseded"
    """Another owner has the partition."""


class SegmentCopy:
    """Copies and tidies one partition's segments for its owner, who has claimed it in the ledger.

    Args:
        new_id: a random uuid for each segment.
        now_ms: the wall clock, for the records' event timestamps.
    """

    def __init__(self, ledger: Ledger, new_id: Callable[[], Uuid], now_ms: Callable[[], int]) -> None:
        self._ledger = ledger
        self._new_id = new_id
        self._now_ms = now_ms
        self._begun: dict[Uuid, RemoteLogSegmentMetadata] = {}
        """Segments of ours that may have objects, until they are surely finished, or given back."""
        self._trying: tuple[StagedSegment, RemoteLogSegmentMetadata] | None = None
        """Whose upload has failed: tried again under the same id, so that a store that is away costs no records."""
        self.unsure: dict[Uuid, RemoteLogSegmentMetadataUpdate] = {}
        """Segments of ours whose last record may be in the topic or not. Nothing is copied before `tidy` knows."""

    @property
    def unfinished(self) -> list[RemoteLogSegmentMetadata]:
        """Segments of ours that will never be finished and may have objects, whether or not the topic names them.

        Only this owner knows of those: `let_go` deletes them. Another owner may have deleted one, and found nothing,
        before its upload ended.
        """
        return [each for each in self._begun.values() if each.segment_id.id not in self.unsure or self._is_going(each)]

    def copy(self, staged: StagedSegment) -> Steps[Copied]:
        """Copy one segment.

        Raises:
            RemoteStorageError: a step failed. The same staged segment goes on where this ended; else `let_go` undoes
                what was done, as far as the store and the topic allow, and `tidy` does the rest.
        """
        if self._trying is not None and self._trying[0] is staged:
            segment = self._trying[1]
        else:
            yield from self.let_go()
            refusal = self._refusal(staged)
            if refusal is not None:
                return refusal
            segment = self._described(staged)
            self._ledger.begin(segment.segment_id.id)
            yield Publish(segment)
            self._begun[segment.segment_id.id] = segment
        refusal = self._refusal(staged)
        if refusal is not None:
            yield from self._give_back(segment)
            return refusal
        self._trying = staged, segment
        custom_metadata = yield Upload(segment, staged.files)
        if self._ledger.is_superseded:
            yield from self._give_back(segment)
            return Copied.SUPERSEDED
        return (yield from self._finish(self._update(segment, _FINISHED, custom_metadata)))

    def tidy(self) -> Steps[None]:
        """Clean up what other owners, and failed copies of our own, have left.

        Raises:
            RemoteStorageError: a step failed; the next call goes on.
        """
        for update in list(self.unsure.values()):
            if self._ledger.is_superseded:
                break  # the owner decides by what the topic holds
            yield from self._finish(update)
        for segment in self.unfinished:
            if not self._is_tried(segment):
                yield from self._give_back(segment)
        for segment in self._ledger.finished():
            is_lost = not self._ledger.is_seen(segment) and not self._ledger.is_covered(segment)
            if is_lost and not self._ledger.is_superseded:
                yield Publish(self._update(segment, _FINISHED, segment.custom_metadata))
        for spare, holder in self._spares():
            yield from self._uncover(holder, spare)
        for segment in self._ledger.segments():
            if self._is_left(segment) and not self._ledger.is_superseded:
                yield from self._give_back(segment)

    def let_go(self) -> Steps[None]:
        """Delete what only this owner knows of, superseded or not.

        Raises:
            RemoteStorageError: a step failed; the next call goes on.
        """
        for segment in self.unfinished:
            yield from self._give_back(segment)

    def spares(self) -> list[tuple[RemoteLogSegmentMetadata, int]]:
        """Finished segments all of whose offsets another one has, and since when, in milliseconds."""
        return [(spare, max(spare.event_timestamp_ms, by.event_timestamp_ms)) for spare, by in self._spares()]

    def _uncover(self, holder: RemoteLogSegmentMetadata, spare: RemoteLogSegmentMetadata) -> Steps[None]:
        """A spare segment waits before it goes (standalone.copier.waits), unless it hides from lookups what its holder
        alone has."""
        for _ in range(2):
            if self._ledger.is_superseded or self._ledger.is_covered(holder):
                return
            yield Publish(self._update(holder, _FINISHED, holder.custom_metadata))
        yield from self._give_back(spare)

    def delete(self, segment: RemoteLogSegmentMetadata) -> Steps[bool]:
        """Delete a finished segment; False: another owner has the partition, and nothing was done.

        Raises:
            RemoteStorageError: a step failed; `tidy` goes on.
        """
        if self._ledger.is_superseded:
            return False
        yield from self._give_back(segment)
        return True

    def mark_partition(self, since_ms: int) -> Steps[None]:
        """Say that the partition is to be deleted, and since when.

        Raises:
            RemoteStorageError: a step failed.
        """
        yield Publish(self._partition_record(RemotePartitionDeleteState.DELETE_PARTITION_MARKED, since_ms))

    def delete_partition(self) -> Steps[None]:
        """Delete all segments of a partition that was marked, since its topic is gone, whichever owner has begun them
        (KIP-405's life cycle).

        Raises:
            RemoteStorageError: a step failed; the next call goes on.
        """
        yield Publish(self._partition_record(RemotePartitionDeleteState.DELETE_PARTITION_STARTED, self._now_ms()))
        for segment in self._ledger.segments():
            yield from self._give_back(segment)
        yield Publish(self._partition_record(RemotePartitionDeleteState.DELETE_PARTITION_FINISHED, self._now_ms()))

    def _partition_record(self, state: RemotePartitionDeleteState, at_ms: int) -> RemotePartitionDeleteMetadata:
        return RemotePartitionDeleteMetadata(self._ledger.partition, state, at_ms, self._ledger.fence)

    def _finish(self, update: RemoteLogSegmentMetadataUpdate) -> Steps[Copied]:
        """Publish a segment's last record. Should that fail nobody knows whether the topic has it, and others may have
        read it already: so it is published again, and never taken back."""
        segment_id = update.segment_id.id
        self._trying = None
        self.unsure[segment_id] = update
        yield Publish(update)
        del self.unsure[segment_id]
        now = self._ledger.find(update.segment_id)
        if now is not None and now.state is _FINISHED:
            del self._begun[segment_id]
            return Copied.FINISHED
        yield from self._give_back(self._begun[segment_id])
        return Copied.SUPERSEDED

    def stop_trying(self) -> None:
        """Stop trying to copy what was dropped from staging: `tidy` gives back what was begun with it."""
        self._trying = None

    def _is_going(self, segment: RemoteLogSegmentMetadata) -> bool:
        """Return whether the segment is being deleted, or is deleted: no record will finish it any more."""
        now = self._ledger.find(segment.segment_id)
        return now is None or now.state is _DELETE_STARTED

    def _is_tried(self, segment: RemoteLogSegmentMetadata) -> bool:
        return self._trying is not None and self._trying[1].segment_id == segment.segment_id

    def _refusal(self, staged: StagedSegment) -> Copied | None:
        """Why these offsets are not to be copied by us."""
        if self._ledger.is_superseded:
            return Copied.SUPERSEDED
        return Copied.STALE if self._ledger.end_offset() >= staged.start_offset else None

    def _is_left(self, segment: RemoteLogSegmentMetadata) -> bool:
        """Return whether a segment was left half done and is not needed: see standalone.copier.ledger for those of
        others."""
        if segment.state is _DELETE_STARTED:
            return True
        if segment.state is not _STARTED:
            return False
        if self._is_tried(segment):
            return False
        return self._ledger.is_own(segment) or segment.end_offset <= self._ledger.end_offset()

    def _spares(self) -> list[tuple[RemoteLogSegmentMetadata, RemoteLogSegmentMetadata]]:
        """Finished segments all of whose offsets another one has, and that one; of two with the same offsets the one
        that is not seen."""
        spares: list[tuple[RemoteLogSegmentMetadata, RemoteLogSegmentMetadata]] = []
        longest: RemoteLogSegmentMetadata | None = None
        """Among those that begin before: the one that ends last."""
        for segment in sorted(self._ledger.finished(), key=lambda each: (each.start_offset, -each.end_offset)):
            if longest is None or longest.end_offset < segment.end_offset:
                longest = segment
            elif _holds(longest, segment):
                if _holds(segment, longest) and self._ledger.is_seen(segment):
                    longest, segment = segment, longest
                spares.append((segment, longest))
        return spares

    def _give_back(self, segment: RemoteLogSegmentMetadata) -> Steps[None]:
        """State first, then objects, state last."""
        now = self._ledger.find(segment.segment_id)
        if now is not None and now.state is not _DELETE_STARTED:
            yield Publish(self._update(segment, _DELETE_STARTED, now.custom_metadata))
        yield DeleteObjects(now or segment)
        self._begun.pop(segment.segment_id.id, None)
        self.unsure.pop(segment.segment_id.id, None)
        if self._is_tried(segment):
            self._trying = None
        if self._ledger.find(segment.segment_id) is not None:
            yield Publish(self._update(segment, _DELETE_FINISHED, None if now is None else now.custom_metadata))

    def _described(self, staged: StagedSegment) -> RemoteLogSegmentMetadata:
        return RemoteLogSegmentMetadata(
            segment_id=RemoteLogSegmentId(self._ledger.partition, self._new_id()),
            start_offset=staged.start_offset,
            end_offset=staged.end_offset,
            max_timestamp_ms=staged.max_timestamp_ms,
            broker_id=self._ledger.fence,
            event_timestamp_ms=self._now_ms(),
            segment_size_bytes=staged.size_bytes,
            segment_leader_epochs=staged.segment_leader_epochs,
            txn_index_empty=staged.files.transaction_index is None,
        )

    def _update(
        self, segment: RemoteLogSegmentMetadata, state: RemoteLogSegmentState, custom_metadata: CustomMetadata | None
    ) -> RemoteLogSegmentMetadataUpdate:
        self._ledger.touch(segment.segment_id.id)
        return RemoteLogSegmentMetadataUpdate(
            segment.segment_id, self._now_ms(), state, self._ledger.fence, custom_metadata
        )


def _holds(one: RemoteLogSegmentMetadata, other: RemoteLogSegmentMetadata) -> bool:
    """Return whether one finished segment has all offsets of the other, in the same epochs."""
    if one.start_offset > other.start_offset or one.end_offset < other.end_offset:
        return False
    inner = {
        epoch: max(start_offset, other.start_offset)
        for epoch, start_offset, end_offset in epoch_ranges(one)
        if end_offset >= other.start_offset and start_offset <= other.end_offset
    }
    return inner == {epoch: start_offset for epoch, start_offset, _ in epoch_ranges(other)}
