"""Which segments belong to a partition's present history (spec/kafka-remote.md §2.5).

After an unclean election the tier may hold segments of a branch that no longer exists. A lineage is the broker's
leader epoch history: epoch to the first offset of that epoch. Pure functions; all maps are epoch to offset.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping


def filter_epochs(epochs: Mapping[int, int]) -> dict[int, int]:
    """Leave out epochs without records: of consecutive epochs that start at one offset only the last stays."""
    ordered = sorted(epochs.items())
    return {
        epoch: offset
        for index, (epoch, offset) in enumerate(ordered)
        if index + 1 == len(ordered) or ordered[index + 1][1] != offset
    }


def within_lineage(
    segment_epochs: Mapping[int, int], end_offset: int, log_end_offset: int, lineage_epochs: Mapping[int, int]
) -> bool:
    """Whether a segment with these epochs, ending at end_offset (inclusive), is part of this lineage.

    Segment epochs below the lineage's first are not looked at: that is how a segment which lies partly below a
    moved log start stays valid. An empty map on either side gives False.
    """
    segment = sorted(filter_epochs(segment_epochs).items())
    lineage_map = filter_epochs(lineage_epochs)
    lineage = sorted(lineage_map.items())
    if not segment or not lineage:
        return False
    first_lineage_epoch, last_lineage_epoch = lineage[0][0], lineage[-1][0]
    considered = [entry for entry in segment if entry[0] >= first_lineage_epoch]
    if not considered or considered[-1][0] > last_lineage_epoch:
        return False
    if any(epoch not in lineage_map for epoch, _ in considered):
        return False
    first_epoch, first_offset = considered[0]
    if first_epoch > first_lineage_epoch and first_offset < lineage_map[first_epoch]:
        return False
    epochs = [epoch for epoch, _ in lineage]
    next_index = bisect_right(epochs, considered[-1][0])
    if next_index < len(lineage) and end_offset >= lineage[next_index][1]:
        return False
    # From the first considered epoch on, the segment's borders are the lineage's own.
    first_index = bisect_left(epochs, first_epoch)
    if considered[1:] != lineage[first_index + 1 : first_index + len(considered)]:
        return False
    return end_offset < log_end_offset
