"""The leader epochs of a whole partition, out of what its broker and its tier remember. Without input or output.

A broker forgets the epochs of what it deletes: its first entry begins where its log does. A copier has them all, up to
the end of the last segment. Where both know who led they must say the same; then the tier's older epochs come before
the broker's own (docs/standalone.md#takeover).
"""

from collections.abc import Sequence

from storage.indexes.leader_epochs import LeaderEpochs


class LineageConflictError(Exception):
    """Tier and broker are of two different logs. The message says at which offset."""


def restored_lineage(own: LeaderEpochs, tier: LeaderEpochs, *, tier_end: int, log_end_offset: int) -> LeaderEpochs:
    """Return what the broker's checkpoint must hold to own the tier.

    Args:
        own: the broker's entries. Without any it has nothing of the partition, and learns from its leader.
        tier: the entries of the tier's last segment.
        tier_end: that segment's last offset.
        log_end_offset: of the broker's log; its entries say nothing of what lies behind.

    Raises:
        LineageConflictError: they disagree on an offset that both have.
    """
    if not own:
        return own
    own_start = own[0][1]
    _check(own, tier, max(own_start, tier[0][1]) if tier else 0, min(tier_end, log_end_offset - 1))
    before = [(epoch, start) for epoch, start in tier if epoch < own[0][0]]
    # The first entry was raised to where the broker's log begins; the epoch may be older.
    first_start = min((start for epoch, start in tier if epoch == own[0][0]), default=own_start)
    return (*before, (own[0][0], min(first_start, own_start)), *own[1:])


def _check(own: LeaderEpochs, tier: LeaderEpochs, first: int, last: int) -> None:
    """Check that both name the same leader epoch of each offset from first to last."""
    borders = sorted({first, *(start for _, start in (*own, *tier) if first < start <= last)})
    for offset in borders if first <= last else ():
        mine, theirs = _epoch_of(own, offset), _epoch_of(tier, offset)
        if mine != theirs:
            raise LineageConflictError(
                f"offset {offset} is of leader epoch {theirs} in the tier and of {mine} at the broker"
            )
    too_late = [start for epoch, start in tier if epoch < own[0][0] and start > own[0][1]]
    if too_late:
        raise LineageConflictError(
            f"the tier has an epoch older than the broker's first, {own[0][0]}, that begins at {too_late[0]}, behind "
            f"that one's start {own[0][1]}"
        )


def _epoch_of(lineage: Sequence[tuple[int, int]], offset: int) -> int | None:
    """The newest epoch that begins at the offset or before it: one without records is no more than a name."""
    return max((epoch for epoch, start in lineage if start <= offset), default=None)
