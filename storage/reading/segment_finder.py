"""Which segment holds an offset."""

import sys

from storage.metadata.catalog import Catalog
from storage.metadata.epoch_history import LeaderEpochLineage
from storage.model import RemoteLogSegmentMetadata, TopicIdPartition


class OffsetNotInTierError(Exception):
    """No FINISHED segment on the lineage holds the offset, nor any after it. What that means is the caller's to say."""


class ReachesLocalLogError(OffsetNotInTierError):
    """The segment that holds the offset reaches further than its reader may read: the broker has the rest itself."""


class LocalLogIsNextError(OffsetNotInTierError):
    """Nothing lies between the offset and the broker's log: what that has first comes next."""


class SegmentFinder:
    """Finds segments by the catalog alone. Owned by the trio thread.

    Args:
        local_start: where the broker's log begins.

    Another one may find the next segment where none holds an offset (`find`), and let committed reads come nearer to
    the broker's log (`cuts_at`).
    """

    cuts_at: int | None = None
    """No batch of a READ_COMMITTED answer begins at this offset or beyond; None: no segment that is read reaches so
    far."""
    tells_all_aborts = False
    """Whether what is open where segments end is known to be aborted, so that no broker need be asked."""

    def __init__(self, catalog: Catalog, local_start: int = sys.maxsize) -> None:
        self._catalog = catalog
        self._local_start = local_start

    def segment_for(
        self, partition: TopicIdPartition, offset: int, lineage: LeaderEpochLineage
    ) -> RemoteLogSegmentMetadata:
        """The segment to read `offset` from.

        Raises:
            OffsetNotInTierError: there is none.
        """
        segment = self.find(partition, offset, lineage)
        if segment is None:
            raise self._missing(partition, offset)
        return segment

    def find(
        self, partition: TopicIdPartition, offset: int, lineage: LeaderEpochLineage
    ) -> RemoteLogSegmentMetadata | None:
        """The segment to read `offset` from."""
        return self.holding(partition, offset, lineage)

    def holding(
        self, partition: TopicIdPartition, offset: int, lineage: LeaderEpochLineage
    ) -> RemoteLogSegmentMetadata | None:
        """The FINISHED segment on the lineage that holds `offset`."""
        epoch = lineage.epoch_for(offset)
        topic_id, number = partition.topic_id, partition.partition
        segment = None if epoch is None else self._catalog.lookup(topic_id, number, epoch, offset)
        return segment if segment is not None and lineage.holds(segment, offset) else None

    def check_end(self, segment: RemoteLogSegmentMetadata) -> None:
        """Raise ReachesLocalLogError if a READ_COMMITTED read must leave the segment to the broker."""
        if segment.end_offset >= self._local_start:
            offsets = f"offsets {segment.start_offset} to {segment.end_offset}"
            raise ReachesLocalLogError(f"{segment.topic_id_partition}: the segment of {offsets} reaches too far")

    def _missing(self, partition: TopicIdPartition, offset: int) -> OffsetNotInTierError:
        return OffsetNotInTierError(f"{partition}: no segment holds offset {offset}")
