"""The history of leader epochs of one partition, as the upstream leader tells it (docs/kafka-tier.md#lineage).

After an unclean leader election the tier may hold segments of dead branches beside the live ones, with the same
offsets. What is on the lineage is decided by the broker's own answers to OffsetForLeaderEpoch: one question per
epoch that any segment of the partition has. Rejected: the leader-epoch index object of the newest segment, which
costs a GET and is out of date on the branch that was cut.

Rule 1. An epoch is on the lineage if upstream answers with that very epoch; it then ends where upstream says.
Rule 2. The current epoch's end is where the log ended when upstream was asked: a lineage that is too old for a
        segment rejects it, and the reader builds another.
Rule 3. A segment is on the lineage from an offset on if each of its epochs from that offset's on is, each but the
        last ends where the next one begins in the segment, and the last ends after the segment does. Epochs before
        are not looked at: once the log start has moved into the segment, the broker has forgotten their borders and
        answers for each of them with the log start.
Rule 4. An epoch without records (the next one begins at the same offset) does not count: the broker's own history
        leaves it out (docs/kafka-tier.md#lineage-filter).
Rule 5. In standalone mode (docs/protocol.md#standalone) the broker has forgotten all below its log start, and
        answers for each epoch below its first with that very epoch and the log start. So an epoch ends, besides,
        where any higher epoch that is not known to be dead begins in the tier; one that begins no lower than that is
        a branch that was cut.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from storage.model import RemoteLogSegmentMetadata


class LeaderEpochLineage:
    """Live epochs and where they end (exclusive). Immutable.

    Args:
        leader_epoch: the current leader epoch under which upstream was asked.
        answers: epoch asked → (epoch answered, end offset), as OffsetForLeaderEpoch gave them.
        tier_starts: in standalone mode, where each epoch begins in the tier (rule 5).
    """

    __slots__ = ("_asked", "_end_of", "_ends", "_epochs", "leader_epoch")

    def __init__(
        self, leader_epoch: int, answers: Mapping[int, tuple[int, int]], tier_starts: Mapping[int, int] | None = None
    ) -> None:
        self.leader_epoch = leader_epoch
        self._asked = frozenset(answers)
        live = sorted((asked, end) for asked, (answered, end) in answers.items() if answered == asked)
        if tier_starts is not None:
            live = _cut_by_starts(live, tier_starts)
        self._epochs = [epoch for epoch, _ in live]
        self._ends = [end for _, end in live]
        self._end_of = dict(live)

    @property
    def epochs(self) -> Sequence[int]:
        """The live epochs that were asked about, ascending."""
        return self._epochs

    def ends(self) -> Iterator[tuple[int, int]]:
        """The same, each with where it ends (exclusive)."""
        return zip(self._epochs, self._ends, strict=True)

    def knows(self, epochs: Sequence[int]) -> bool:
        """Return whether upstream was asked about all of these."""
        return self._asked.issuperset(epochs)

    def end_offset(self, epoch: int) -> int | None:
        """Return where a live epoch ends (exclusive), or None for one that is not live or was not asked about."""
        return self._end_of.get(epoch)

    def told(self, epoch: int, log_start_offset: int) -> tuple[int, int]:
        """Return what a broker says of an epoch that has kept its log from that offset on: the highest live epoch up to
        that one, and where it ends (exclusive). Below its first it says the epoch that was asked, and its log start
        (LeaderEpochFileCache.endOffsetFor)."""
        at = bisect_right(self._epochs, epoch) - 1
        if at < 0 or self._ends[at] <= log_start_offset:
            return epoch, log_start_offset
        return self._epochs[at], self._ends[at]

    def epoch_for(self, offset: int) -> int | None:
        """The live epoch that an offset was written in, among those asked about."""
        at = bisect_right(self._ends, offset)
        return self._epochs[at] if at < len(self._epochs) else None

    def holds(self, segment: RemoteLogSegmentMetadata, from_offset: int = 0) -> bool:
        """Return whether all of a segment's batches from that offset on are on the lineage (rules 3 and 4)."""
        first_epoch = self.epoch_for(from_offset)
        if first_epoch is None:
            return False
        epochs = filter_epochs(segment.segment_leader_epochs)
        starts = [(epoch, start) for epoch, start in epochs.items() if epoch >= first_epoch]
        if not starts:
            return False
        for (epoch, _), (_, next_start) in pairwise(starts):
            if self._end_of.get(epoch) != next_start:
                return False
        end = self._end_of.get(starts[-1][0])
        return end is not None and end > segment.end_offset


def _cut_by_starts(ends: Sequence[tuple[int, int]], starts: Mapping[int, int]) -> list[tuple[int, int]]:
    """Rule 5: those of the epochs, ascending and each with its end, that are on the lineage, and where they end."""
    live: list[tuple[int, int]] = []
    next_start: int | None = None
    for epoch, told_end in reversed(ends):
        end = told_end if next_start is None else min(told_end, next_start)
        start = starts.get(epoch)
        if start is not None and start >= end:
            continue
        live.append((epoch, end))
        next_start = start if start is not None else next_start
    return live[::-1]


def filter_epochs(epochs: Mapping[int, int]) -> dict[int, int]:
    """Leave out epochs without records: of consecutive epochs that start at one offset only the last stays."""
    ordered = sorted(epochs.items())
    return {
        epoch: offset
        for index, (epoch, offset) in enumerate(ordered)
        if index + 1 == len(ordered) or ordered[index + 1][1] != offset
    }
