"""What the metadata topic says of one partition, as far as this copier has read it, and what follows for its owner.

One copier at a time owns a partition, by group membership. But one that was paused may go on where it stood while
another owns the partition already, so ownership alone protects nothing. What protects is the order of the records,
which is the same for everybody:

- An owner has a *fence*, the BrokerId of its records: its group generation, or one more than any BrokerId of the
  partition if that is higher (a group that was forgotten begins again with generation 1).
- An owner that reads a record of another owner with a fence as high as its own is *superseded*: it ends.
- Nobody deletes a segment of another owner before finished segments hold all of its offsets. A copy that another owner
  finishes late may hide one of ours from lookups, or a part of it (docs/kafka-tier.md#overlap). So of two finished
  segments one of which holds the other's offsets the shorter is deleted, and one that lookups no longer see is finished
  a second time, which shows it again.

So the worst that two owners at once do to each other is work that was in vain.

After an unclean leader election the tier may hold records that upstream's log does not have. Which ones follows from
upstream's lineage (`follow_lineage`, `cut`): from where an epoch begins, nothing of an earlier epoch is left.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator

from storage.errors import RemoteResourceNotFoundError
from storage.metadata.catalog import Catalog
from storage.metadata.serde import MetadataRecord
from storage.model import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
    TopicIdPartition,
    Uuid,
)

_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED


class Ledger:
    """One partition's records in the order of the metadata topic. Not thread-safe."""

    def __init__(self, partition: TopicIdPartition) -> None:
        self.partition = partition
        self.fence = -1
        """This owner's; -1 until it has claimed the partition."""
        self._catalog = Catalog()
        self._own: set[Uuid] = set()
        self._touched: set[Uuid] = set()
        """Segments that this owner has published records of; some were begun by others."""
        self._highest_fence = -1
        """The highest of other owners' records."""
        self._cuts: tuple[tuple[int, int], ...] = ()
        self._lost: list[tuple[int, int]] = []
        self.marked_ms: int | None = None
        """When the whole partition was marked for deletion last; None: it was not, or is deleted."""
        self.is_being_deleted = False
        """Whether somebody has begun to delete the whole partition, and has not said that it is done."""
        self._end_offset: int | None = None
        """None: to be found again. It is asked for all the time, and a partition may have 10,000 segments."""

    @property
    def is_superseded(self) -> bool:
        """Return whether somebody else has claimed the partition since we did."""
        return self._highest_fence >= self.fence

    def claim(self, generation: int) -> None:
        """Own the partition from here on; everything up to the topic's end was noted."""
        self.fence = max(generation, self._highest_fence + 1)

    def begin(self, segment_id: Uuid) -> None:
        """This owner is going to publish the segment's first record."""
        self._own.add(segment_id)
        self._touched.add(segment_id)

    def touch(self, segment_id: Uuid) -> None:
        """This owner is going to publish a record of the segment."""
        self._touched.add(segment_id)

    def note(self, record: MetadataRecord) -> None:
        """The next record of the partition."""
        before, self._end_offset = self._end_offset, None
        if isinstance(record, RemotePartitionDeleteMetadata):
            self.is_being_deleted = record.state is RemotePartitionDeleteState.DELETE_PARTITION_STARTED
            if record.state is RemotePartitionDeleteState.DELETE_PARTITION_MARKED:
                self.marked_ms = record.event_timestamp_ms
            elif record.state is RemotePartitionDeleteState.DELETE_PARTITION_FINISHED:
                self.marked_ms = None
            self._catalog.apply(record, initialized=True)
            return
        if record.segment_id.id not in self._touched or record.broker_id != self.fence:
            self._highest_fence = max(self._highest_fence, record.broker_id)
        try:
            self._catalog.apply(record, initialized=True)
        except RemoteResourceNotFoundError:
            self._end_offset = before  # its last record was noted before: deleted by two owners, or finished too late
            return
        if before is not None and record.state in (RemoteLogSegmentState.COPY_SEGMENT_STARTED, _FINISHED):
            found = self.find(record.segment_id)
            is_finished = found is not None and found.state is _FINISHED
            self._end_offset = max(before, self.live_end(found)) if found is not None and is_finished else before

    def find(self, segment_id: RemoteLogSegmentId) -> RemoteLogSegmentMetadata | None:
        """The segment as it is now; None once it is deleted."""
        return self._catalog.find_segment(segment_id)

    def segments(self) -> list[RemoteLogSegmentMetadata]:
        """All segments of any state, by start offset, then id."""
        found = self._catalog.list_segments(self.partition.topic_id, self.partition.partition, None)
        return sorted(found, key=lambda segment: (segment.start_offset, segment.segment_id.id))

    def is_own(self, segment: RemoteLogSegmentMetadata) -> bool:
        """Return whether this owner began it."""
        return segment.segment_id.id in self._own

    def is_seen(self, segment: RemoteLogSegmentMetadata) -> bool:
        """Return whether lookups find the segment where it begins, in each of its epochs."""
        found = (self._lookup(epoch, start_offset) for epoch, start_offset, _ in epoch_ranges(segment))
        return all(each is not None and each.segment_id == segment.segment_id for each in found)

    def is_covered(self, segment: RemoteLogSegmentMetadata) -> bool:
        """Return whether lookups find some finished segment for each of its offsets."""
        return all(self._covers(epoch, start, end) for epoch, start, end in epoch_ranges(segment))

    def finished(self) -> list[RemoteLogSegmentMetadata]:
        """The finished segments, by start offset, then id."""
        return [segment for segment in self.segments() if segment.state is _FINISHED]

    def end_offset(self) -> int:
        """The last offset on the lineage that any finished segment has; -1 if there is none."""
        if self._end_offset is None:
            self._end_offset = max((self.live_end(segment) for segment in self.finished()), default=-1)
        return self._end_offset

    @property
    def changes(self) -> int:
        """Another number after each record."""
        return self._catalog.changes

    def follow_lineage(self, lineage: Iterable[tuple[int, int]]) -> None:
        """Upstream's (leader epoch, start offset) in ascending order, as far as finished segments have it. What was cut
        before is forgotten: it shows in a lineage once something behind it was copied."""
        cuts = tuple((epoch - 1, start_offset) for epoch, start_offset in lineage)
        if cuts != self._cuts or self._lost:
            self._cuts, self._lost, self._end_offset = cuts, [], None

    def cut(self, leader_epoch: int, offset: int) -> None:
        """Upstream's log has no records of this epoch, or an earlier one, from the offset on."""
        self._lost.append((leader_epoch, offset))
        self._end_offset = None

    def live_end(self, segment: RemoteLogSegmentMetadata) -> int:
        """The last of the segment's offsets that is on the lineage; -1 if none is."""
        for epoch, start_offset, end_offset in reversed(list(epoch_ranges(segment))):
            # Epochs and offsets of a lineage ascend together: the first cut that is not of an earlier epoch is nearest.
            at = bisect_left(self._cuts, (epoch, -1))
            offsets = [offset for cut_epoch, offset in (*self._cuts[at : at + 1], *self._lost) if cut_epoch >= epoch]
            cut = min(offsets, default=end_offset + 1)
            if cut > start_offset:
                return min(end_offset, cut - 1)
        return -1

    def _covers(self, epoch: int, start_offset: int, end_offset: int) -> bool:
        offset = start_offset
        while offset <= end_offset:
            found = self._lookup(epoch, offset)
            if found is None:
                return False
            offset = next(end for own, _, end in epoch_ranges(found) if own == epoch) + 1
        return True

    def _lookup(self, epoch: int, offset: int) -> RemoteLogSegmentMetadata | None:
        return self._catalog.lookup(self.partition.topic_id, self.partition.partition, epoch, offset)


def epoch_ranges(segment: RemoteLogSegmentMetadata) -> Iterator[tuple[int, int, int]]:
    """(epoch, first offset, last offset) of each epoch of a segment; one without offsets is left out."""
    epochs = list(segment.segment_leader_epochs.items())
    for number, (epoch, start_offset) in enumerate(epochs):
        end_offset = epochs[number + 1][1] - 1 if number + 1 < len(epochs) else segment.end_offset
        if start_offset <= end_offset:
            yield epoch, start_offset, end_offset
