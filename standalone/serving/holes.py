"""Where a tier of our own has holes (docs/protocol.md#standalone), and which segment follows on one: offsets that the
broker deleted before they were copied.

Rule 1. Offsets that no segment holds are in a hole if the metadata was read to its end and a segment follows them:
        segments are copied in order.
Rule 2. Without one that follows they may be on their way: in a segment that is not full yet, or that is being copied.
        They are in a hole if that stays so for as long as a segment takes.
Rule 3. What was found to be a hole is remembered, and stepped over from then on without being found out again.
"""

from collections.abc import Callable
from functools import partial

import trio

from storage.bounded_map import BoundedMap
from storage.metadata.catalog import Catalog
from storage.metadata.epoch_history import LeaderEpochLineage
from storage.model import RemoteLogSegmentMetadata, TopicIdPartition
from storage.reading.segment_finder import LocalLogIsNextError, OffsetNotInTierError, SegmentFinder

HOLES_MAX = 64
"""Limit for one partition; a full table is dropped whole, and each hole is found again."""

HOLES_PARTITIONS_MAX = 10_000
"""Partitions with holes that are remembered, least recently found first out."""


class Holes:
    """Runs of offsets that no segment holds, by partition. Owned by the trio thread.

    Args:
        on_found: gets each hole once: its first offset as far as is known, and the offset behind its last.
        segment_s_max: how long records may take to come into the tier (rule 2), in seconds.
    """

    def __init__(
        self, on_found: Callable[[TopicIdPartition, int, int], None] = lambda *_: None, segment_s_max: float = 0.0
    ) -> None:
        self._on_found = on_found
        self._segment_s_max = segment_s_max
        self._runs: BoundedMap[TopicIdPartition, list[tuple[int, int]]] = BoundedMap(HOLES_PARTITIONS_MAX)
        self._ends: BoundedMap[TopicIdPartition, tuple[int, float]] = BoundedMap(HOLES_PARTITIONS_MAX)
        """Where the tier ended when offsets behind it were first asked for, and when that was."""

    def are_known(self, partition: TopicIdPartition, start: int, end: int) -> bool:
        """Return whether all of these offsets were found to be in one hole."""
        return any(first <= start and end <= last for first, last in self._runs.get(partition, ()))

    def found(self, partition: TopicIdPartition, start: int, end: int) -> None:
        """These offsets are in a hole; it is one with those that it touches."""
        if self.are_known(partition, start, end):
            return
        runs = self._runs.get(partition, [])
        touched = [run for run in runs if run[0] <= end and start <= run[1]]
        if not touched:
            self._on_found(partition, start, end)
        apart = [run for run in runs if run not in touched] if len(runs) < HOLES_MAX else []
        firsts, lasts = zip((start, end), *touched, strict=True)
        self._runs[partition] = [*apart, (min(firsts), max(lasts))]

    def is_end_lasting(self, partition: TopicIdPartition, tier_end: int, now_s: float) -> bool:
        """Return whether the tier has ended there since offsets behind it were first asked for, long enough for rule
        2."""
        known_end, since_s = self._ends.get(partition, (tier_end, now_s))
        if known_end != tier_end:
            since_s = now_s
        self._ends[partition] = tier_end, since_s
        return now_s - since_s >= self._segment_s_max


_ANY_TIMESTAMP_MS = -(2**63)


class OwnSegments(SegmentFinder):
    """Finds segments below the broker's log, and steps over holes. Owned by the trio thread.

    Args:
        local_start: where the broker's log begins.
        is_caught_up: the partition's metadata was just read to its end, so that holes may be found.
    """

    tells_all_aborts = True

    def __init__(self, catalog: Catalog, holes: Holes, local_start: int, *, is_caught_up: bool = False) -> None:
        super().__init__(catalog)
        self.cuts_at: int = local_start
        self._holes = holes
        self._is_caught_up = is_caught_up

    def find(
        self, partition: TopicIdPartition, offset: int, lineage: LeaderEpochLineage
    ) -> RemoteLogSegmentMetadata | None:
        """The segment that holds `offset`, or the one behind the hole that it is in."""
        return self.holding(partition, offset, lineage) or self._behind_hole(partition, offset, lineage)

    def check_end(self, segment: RemoteLogSegmentMetadata) -> None:
        """Nothing: an answer is cut where the broker's log begins."""

    def note(self, partition: TopicIdPartition, start: int, end: int, lineage: LeaderEpochLineage) -> None:
        """Note the holes between `start` and `end`, where a segment begins."""
        while True:
            accepts = partial(lineage.holds, from_offset=start)
            hole = self._catalog.chain_end(partition.topic_id, partition.partition, start, lineage.ends(), accepts)
            following = self.find(partition, hole, lineage) if hole < end else None
            if following is None:
                return
            start = following.end_offset + 1

    def _missing(self, partition: TopicIdPartition, offset: int) -> OffsetNotInTierError:
        if self._holes.are_known(partition, offset, self.cuts_at):
            return LocalLogIsNextError(f"{partition}: a hole from offset {offset} to {self.cuts_at}")
        return super()._missing(partition, offset)

    def _behind_hole(
        self, partition: TopicIdPartition, offset: int, lineage: LeaderEpochLineage
    ) -> RemoteLogSegmentMetadata | None:
        """The first segment on the lineage that begins above `offset` and below the local log, if what lies between is
        known to be a hole; None leaves the local log itself."""
        local_start = self.cuts_at
        first_epoch = lineage.epoch_for(offset)
        if first_epoch is None or offset >= local_start:
            return None
        following = self._following(partition, offset, first_epoch, lineage)
        hole_end = local_start if following is None else min(following.start_offset, local_start)
        if self._is_caught_up and (following is not None or self._has_lasting_end(partition, lineage)):
            self._holes.found(partition, offset, hole_end)
        is_inside = following is not None and following.start_offset < local_start
        return following if is_inside and self._holes.are_known(partition, offset, hole_end) else None

    def _following(
        self, partition: TopicIdPartition, offset: int, first_epoch: int, lineage: LeaderEpochLineage
    ) -> RemoteLogSegmentMetadata | None:
        """The first segment on the lineage that begins above `offset`, which is of `first_epoch`."""

        def accepts(segment: RemoteLogSegmentMetadata) -> bool:
            return segment.start_offset > offset and lineage.holds(segment, segment.start_offset)

        for epoch in lineage.epochs:
            if epoch >= first_epoch:
                found = self._catalog.first_finished(
                    partition.topic_id,
                    partition.partition,
                    epoch,
                    end_offset_min=offset,
                    max_timestamp_ms_min=_ANY_TIMESTAMP_MS,
                    accepts=accepts,
                )
                if found is not None:
                    return found
        return None

    def _has_lasting_end(self, partition: TopicIdPartition, lineage: LeaderEpochLineage) -> bool:
        highest_offsets = (
            self._catalog.highest_offset_for_epoch(partition.topic_id, partition.partition, epoch)
            for epoch in lineage.epochs
        )
        tier_end = max((offset for offset in highest_offsets if offset is not None), default=-1)
        return self._holes.is_end_lasting(partition, tier_end, trio.current_time())
