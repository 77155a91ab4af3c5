"""What is known of one topic partition at one moment: the chain of segments that the tier serves it from.

Pure. The chain is what `storage.reading.reader` would read, one offset after the other: at each offset the segment that
the catalog's look-up in that offset's leader epoch gives, if the lineage holds it (storage.metadata.epoch_history,
rule 3). So dead branches are never served, and a segment that overlaps the one before it is served from there on.

Where no segment holds an offset and a later one is served, there is a hole; where none is, the tier ends. Offsets are
Kafka offsets, ends exclusive (but in segment metadata, where they are inclusive).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from storage.metadata.catalog import Catalog
from storage.metadata.epoch_history import LeaderEpochLineage
from storage.model import RemoteLogSegmentMetadata, RemoteLogSegmentState, TopicIdPartition
from table.tasks import AbortedTransaction


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets [first_offset, end_offset)."""

    first_offset: int
    end_offset: int

    def __str__(self) -> str:
        return f"{self.first_offset} to {self.end_offset - 1}"


@dataclass(frozen=True, slots=True)
class ServedSegment:
    """The offsets [first_offset, end_offset) come from this segment, and from no other."""

    segment: RemoteLogSegmentMetadata
    first_offset: int
    end_offset: int

    def estimated_bytes(self, first_offset: int, end_offset: int) -> int:
        """About how much of the segment's log these offsets are; they are cut to those that are served."""
        segment = self.segment
        count = min(end_offset, self.end_offset) - max(first_offset, self.first_offset)
        all_count = segment.end_offset + 1 - segment.start_offset
        return segment.segment_size_bytes * max(count, 0) // all_count


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionView:
    """One partition. `segments` and `holes` ascend and do not overlap; together they fill
    [log_start_offset, tier_end_offset)."""

    partition: TopicIdPartition
    log_start_offset: int
    end_offset: int
    """Where the log ends for the isolation asked: its high watermark, or its last stable offset."""
    segments: tuple[ServedSegment, ...] = ()
    holes: tuple[OffsetRange, ...] = ()
    last_stable_offset: int | None = None
    """The tier's (table.planning.tier_transactions); None unless the read is READ_COMMITTED."""
    first_at: Callable[[int], int | None] | None = field(default=None, compare=False)
    """The first offset of that time or later in a tier of our own. None: the broker knows of the tier itself."""

    @property
    def key(self) -> tuple[str, int]:
        return self.partition.topic, self.partition.partition

    @property
    def name(self) -> str:
        return f"{self.partition.topic}-{self.partition.partition}"

    @property
    def tier_end_offset(self) -> int:
        """Return where the last segment ends; without segments the log start."""
        return self.segments[-1].end_offset if self.segments else self.log_start_offset

    @property
    def readable_end_offset(self) -> int:
        """Up to where the tier alone can be read with the isolation asked."""
        return self.tier_end_offset if self.last_stable_offset is None else self.last_stable_offset

    @property
    def latest_offset(self) -> int:
        """Return where the log ends. A new leader's high watermark may be behind what the tier has for a moment."""
        return max(self.end_offset, self.readable_end_offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedOffsets:
    """What a read wants of one partition: [first_offset, tier_end_offset) from the tier, and
    [tier_end_offset, end_offset) through Kafka."""

    view: PartitionView
    first_offset: int
    tier_end_offset: int
    end_offset: int
    aborted: tuple[AbortedTransaction, ...] = ()
    """Those that touch what is read from the tier, by first offset; empty unless the read is READ_COMMITTED."""


def partition_view(
    catalog: Catalog,
    partition: TopicIdPartition,
    lineage: LeaderEpochLineage,
    *,
    log_start_offset: int,
    end_offset: int,
) -> PartitionView:
    """The chain from the log start on.

    Args:
        lineage: asked for all of `catalog.epochs(...)`, after the catalog was read.
        end_offset: where the log ends for the isolation wanted.
    """
    segments: list[ServedSegment] = []
    holes: list[OffsetRange] = []
    offset = log_start_offset
    while True:
        segment = _segment_at(catalog, partition, lineage, offset)
        if segment is not None:
            segments.append(ServedSegment(segment, offset, segment.end_offset + 1))
            offset = segment.end_offset + 1
            continue
        later = next(_later_offsets(catalog, partition, lineage, offset), None)
        if later is None:
            break
        holes.append(OffsetRange(offset, later))
        offset = later
    return PartitionView(
        partition=partition,
        log_start_offset=log_start_offset,
        end_offset=end_offset,
        segments=tuple(segments),
        holes=tuple(holes),
    )


def _segment_at(
    catalog: Catalog, partition: TopicIdPartition, lineage: LeaderEpochLineage, offset: int
) -> RemoteLogSegmentMetadata | None:
    """As storage.reading.reader finds it."""
    epoch = lineage.epoch_for(offset)
    if epoch is None:
        return None
    segment = catalog.lookup(partition.topic_id, partition.partition, epoch, offset)
    return segment if segment is not None and lineage.holds(segment, offset) else None


def _later_offsets(
    catalog: Catalog, partition: TopicIdPartition, lineage: LeaderEpochLineage, offset: int
) -> Iterator[int]:
    """Offsets behind this one that a segment serves, where there was none just before.

    From none to one a look-up only changes where an epoch begins in some segment, or where one ends on the lineage.
    """
    starts = {
        start
        for segment in catalog.list_segments(partition.topic_id, partition.partition)
        if segment.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED and segment.end_offset > offset
        for start in segment.segment_leader_epochs.values()
    }
    ends = {end for epoch in lineage.epochs if (end := lineage.end_offset(epoch)) is not None}
    for candidate in sorted(start for start in starts | ends if start > offset):
        if _segment_at(catalog, partition, lineage, candidate) is not None:
            yield candidate
