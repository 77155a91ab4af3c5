"""Holes in a tier of our own (docs/protocol.md#standalone): offsets that the broker deleted before they were copied.

Rule 1. Offsets that no segment holds are in a hole if the metadata was read to its end and a segment follows them:
        segments are copied in order.
Rule 2. Without one that follows they may be on their way: in a segment that is not full yet, or that is being copied.
        They are in a hole if that stays so for as long as a segment takes.
Rule 3. What was found to be a hole is remembered, and stepped over from then on without being found out again.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import trio

from storage.model import TopicIdPartition

HOLES_MAX = 64
"""Of one partition; a full table is dropped whole, and each is found out anew."""

HOLES_PARTITIONS_MAX = 10_000
"""Partitions with holes that are remembered, least recently found first out."""


class Holes:
    """Runs of offsets that no segment holds, by partition. Owned by the trio thread.

    Args:
        on_found: is told of each hole once: its first offset as far as is known, and the offset behind its last.
        segment_s_max: how long records may take to come into the tier (rule 2), in seconds.
    """

    def __init__(
        self, on_found: Callable[[TopicIdPartition, int, int], None] = lambda *_: None, segment_s_max: float = 0.0
    ) -> None:
        self._on_found = on_found
        self._segment_s_max = segment_s_max
        self._runs: OrderedDict[TopicIdPartition, list[tuple[int, int]]] = OrderedDict()
        self._ends: OrderedDict[TopicIdPartition, tuple[int, float]] = OrderedDict()
        """Where the tier ended when offsets behind it were first asked for, and when that was."""

    def are_known(self, partition: TopicIdPartition, start: int, end: int) -> bool:
        """Whether all of these offsets were found to be in one hole."""
        return any(first <= start and end <= last for first, last in self._runs.get(partition, ()))

    def found(self, partition: TopicIdPartition, start: int, end: int) -> None:
        """These offsets are in a hole; it is one with those that it touches."""
        if self.are_known(partition, start, end):
            return
        runs = self._runs.pop(partition, [])
        touched = [run for run in runs if run[0] <= end and start <= run[1]]
        if not touched:
            self._on_found(partition, start, end)
        apart = [run for run in runs if run not in touched] if len(runs) < HOLES_MAX else []
        firsts, lasts = zip((start, end), *touched, strict=True)
        self._runs[partition] = [*apart, (min(firsts), max(lasts))]
        if len(self._runs) > HOLES_PARTITIONS_MAX:
            self._runs.popitem(last=False)

    def is_end_lasting(self, partition: TopicIdPartition, tier_end: int) -> bool:
        """Whether the tier has ended there since offsets behind it were first asked for, long enough for rule 2."""
        now_s = trio.current_time()
        known_end, since_s = self._ends.pop(partition, (tier_end, now_s))
        if known_end != tier_end:
            since_s = now_s
        self._ends[partition] = tier_end, since_s
        if len(self._ends) > HOLES_PARTITIONS_MAX:
            self._ends.popitem(last=False)
        return now_s - since_s >= self._segment_s_max


@dataclass(frozen=True, slots=True)
class OwnTier:
    """How a tier of our own is read below `local_log_start_offset`.

    `is_caught_up`: the partition's metadata was just read to its end, so that holes may be found.
    """

    local_log_start_offset: int
    holes: Holes
    is_caught_up: bool = False
