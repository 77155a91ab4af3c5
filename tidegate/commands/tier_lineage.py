"""Which records of a partition are on its lineage, as far as the tier alone tells.

A newer leader epoch ends all older ones where it begins. What older segments hold from there on was cut at upstream,
and a segment of which nothing is left is dead (docs/standalone.md#deletion).
"""

from bisect import bisect_right
from collections.abc import Iterable

from standalone.copier.ledger import epoch_ranges
from storage.model import RemoteLogSegmentMetadata
from tidegate.commands.selection import INT64_MAX


class TierLineage:
    """`segments`: a partition's finished ones."""

    def __init__(self, segments: Iterable[RemoteLogSegmentMetadata]) -> None:
        starts: dict[int, int] = {}
        for segment in segments:
            for epoch, start in segment.segment_leader_epochs.items():
                starts[epoch] = min(start, starts.get(epoch, start))
        self._epochs = sorted(starts)
        self._cuts = [INT64_MAX] * (len(starts) + 1)
        for at, epoch in reversed(list(enumerate(self._epochs))):
            self._cuts[at] = min(starts[epoch], self._cuts[at + 1])

    def end_of(self, epoch: int) -> int:
        """Behind the epoch's last offset: where a newer one begins."""
        return self._cuts[bisect_right(self._epochs, epoch)]

    def is_dead(self, segment: RemoteLogSegmentMetadata) -> bool:
        """Return whether none of its offsets is on the lineage."""
        return all(self.end_of(epoch) <= start for epoch, start, _ in epoch_ranges(segment))
