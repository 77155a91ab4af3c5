"""From wanted offsets to Spark partitions of about `bytesPerPartition`. Pure.

Rules:
1. A segment that is wanted whole and is large is cut into byte ranges of equal size; one that is wanted in part is
   cut by offsets, in proportion: where an offset is in the log only the offset index says, which executors read.
2. Small neighbouring segments of one topic partition go into one task. No task is larger than one and a half times the
   size asked for, and of two neighbours' sizes the sum is larger than it.
3. Each wanted offset is in just one task, but for segments whose newest record is older than `timestampFrom`: these
   are in none.
4. Tasks of all topic partitions advance side by side: the first tenth of one with the first tenth of every other.
   Nobody waits for the largest at the end, and no place of the store gets all requests. Tails are first: they are not
   cut, and take longest.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice, pairwise
from typing import Any

from table.planning.partition_view import PartitionView, ServedSegment, WantedOffsets
from table.planning.request import TopicPartition
from table.tasks import AbortedTransaction, SegmentTask, TailTask, Task, TierTask

TASKS_MAX = 100_000
"""For one read: 12 TiB by default. Spark's driver keeps some KiB for each."""


class PlanningError(Exception):
    """The read would have more tasks than Spark can keep; the message says what to set."""


def plan(
    wanted: Sequence[WantedOffsets], *, bytes_per_partition: int, timestamp_min_ms: int | None = None
) -> tuple[Task, ...]:
    """The tasks of a read.

    Args:
        bytes_per_partition: of log, as the brokers wrote it; above 0.
        timestamp_min_ms: rows with an older timestamp are not wanted.

    Raises:
        PlanningError: more than TASKS_MAX.
    """
    ordered: list[tuple[float, TierTask]] = []
    tails: list[Task] = []
    for want in wanted:
        view = want.view
        topic, number = view.key
        room = TASKS_MAX - len(ordered)
        bundles = list(islice(_bundles(want, bytes_per_partition, timestamp_min_ms), room + 1))
        if len(bundles) > room:
            raise PlanningError(
                f"bytesPerPartition={bytes_per_partition} makes more than {TASKS_MAX} tasks: set it higher"
            )
        for at, parts in enumerate(bundles):
            ordered.append(((at + 0.5) / len(bundles), TierTask(topic=topic, partition=number, parts=tuple(parts))))
        if want.tier_end_offset < want.end_offset:
            tails.append(
                TailTask(topic=topic, partition=number, first_offset=want.tier_end_offset, end_offset=want.end_offset)
            )
    ordered.sort(key=lambda entry: (entry[0], entry[1].topic, entry[1].partition))
    return (*tails, *(task for _, task in ordered))


def planned_costs(views: Sequence[PartitionView], tasks: Sequence[Task]) -> dict[str, Any]:
    """Return what the tasks read, of all that the tier has of these partitions. Bytes are of log, as the planner
    estimates them; how they are cut into GETs only the objects say."""
    parts = [part for task in tasks if isinstance(task, TierTask) for part in task.parts]
    served = [each.segment for view in views for each in view.segments]
    return {
        "topics": ",".join(sorted({view.partition.topic for view in views})),
        "tasks": len(tasks),
        "segments": len({part.segment.segment_id for part in parts}),
        "of_segments": len(served),
        "tier_mb": _megabytes(part.estimated_bytes for part in parts),
        "of_tier_mb": _megabytes(segment.segment_size_bytes for segment in served),
        "tail_offsets": sum(task.end_offset - task.first_offset for task in tasks if isinstance(task, TailTask)),
    }


def limit_end_offsets(
    views: Sequence[PartitionView], start_offsets: Mapping[TopicPartition, int], bytes_max: int
) -> dict[TopicPartition, int]:
    """Return where a trigger ends that takes about bytes_max from the tier, shared fairly.

    Partitions with less than an even share leave the rest to the others. Each ends with a segment if its share reaches
    to one, else inside its next segment, in proportion; wherever there is something new, at least one offset is taken.

    Args:
        start_offsets: a partition that is not among them starts at its log start.
    """
    starts = {view.key: max(start_offsets.get(view.key, 0), view.log_start_offset) for view in views}
    waiting = {view.key: _waiting_bytes(view, starts[view.key]) for view in views}
    shares = _fair_shares(waiting, bytes_max)
    return {view.key: _end_within(view, starts[view.key], shares[view.key]) for view in views}


def _megabytes(sizes: Iterable[int]) -> float:
    return round(sum(sizes) / 1e6, 3)


def _bundles(
    want: WantedOffsets, bytes_per_partition: int, timestamp_min_ms: int | None
) -> Iterator[list[SegmentTask]]:
    """The parts of each task, in order of offset."""
    bundle: list[SegmentTask] = []
    bundle_bytes = 0
    for size_bytes, part in _parts(want, bytes_per_partition, timestamp_min_ms):
        if bundle and bundle_bytes + size_bytes > bytes_per_partition:
            yield bundle
            bundle, bundle_bytes = [], 0
        bundle.append(part)
        bundle_bytes += size_bytes
    if bundle:
        yield bundle


def _parts(
    want: WantedOffsets, bytes_per_partition: int, timestamp_min_ms: int | None
) -> Iterator[tuple[int, SegmentTask]]:
    """Ranges of segments, each with about how much is read for it."""
    aborts = _AbortSweep(want.aborted)
    for served in want.view.segments:
        first, end = max(served.first_offset, want.first_offset), min(served.end_offset, want.tier_end_offset)
        segment = served.segment
        is_too_old = timestamp_min_ms is not None and segment.max_timestamp_ms < timestamp_min_ms
        if first >= end or is_too_old or segment.segment_size_bytes <= 0:
            continue
        is_whole = (first, end) == (segment.start_offset, segment.end_offset + 1)
        size_bytes = served.estimated_bytes(first, end)
        # To the nearest whole number of ranges: rule 2.
        count = max(1, (size_bytes + bytes_per_partition // 2) // bytes_per_partition)
        whole = SegmentTask(
            segment=segment,
            start_position=0,
            end_position=segment.segment_size_bytes,
            first_offset=first,
            end_offset=end,
            aborted=aborts.touching(first, end) if is_whole else (),
        )
        for low, high in _cuts(0 if is_whole else first, segment.segment_size_bytes if is_whole else end, count):
            if is_whole:
                part = replace(whole, start_position=low, end_position=high)
            else:
                part = replace(whole, first_offset=low, end_offset=high, aborted=aborts.touching(low, high))
            yield size_bytes // count, part


def _cuts(start: int, end: int, count: int) -> Iterator[tuple[int, int]]:
    """[start, end) in `count` ranges of equal size, or as many as there are numbers."""
    count = min(count, end - start)
    borders = [start + (end - start) * number // count for number in range(count + 1)]
    return pairwise(borders)


class _AbortSweep:
    """Which aborted transactions touch a range, for ranges that ascend."""

    def __init__(self, aborted: Sequence[AbortedTransaction]) -> None:
        self._coming = sorted(aborted, key=lambda each: (each.first_offset, each.producer_id), reverse=True)
        self._open: list[AbortedTransaction] = []

    def touching(self, first_offset: int, end_offset: int) -> tuple[AbortedTransaction, ...]:
        while self._coming and self._coming[-1].first_offset < end_offset:
            self._open.append(self._coming.pop())
        self._open = [each for each in self._open if each.last_offset >= first_offset]
        return tuple(self._open)


def _waiting_bytes(view: PartitionView, start: int) -> int:
    end = view.readable_end_offset
    return sum(served.estimated_bytes(max(start, served.first_offset), end) for served in view.segments)


def _fair_shares(waiting: Mapping[TopicPartition, int], bytes_max: int) -> dict[TopicPartition, int]:
    """Smallest first: who needs less than an even share of what is left gets just that."""
    shares: dict[TopicPartition, int] = {}
    left = bytes_max
    for at, (key, wanted_bytes) in enumerate(sorted(waiting.items(), key=lambda entry: entry[1])):
        shares[key] = min(wanted_bytes, left // (len(waiting) - at))
        left -= shares[key]
    return shares


def _end_within(view: PartitionView, start: int, share_bytes: int) -> int:
    reached, left = start, share_bytes
    for served in view.segments:
        first, end = max(served.first_offset, reached), min(served.end_offset, view.readable_end_offset)
        if first >= end:
            continue
        size_bytes = served.estimated_bytes(first, end)
        if size_bytes <= left:
            reached, left = end, left - size_bytes
            continue
        # Only a trigger that would have nothing else ends inside a segment.
        return reached if reached > start else first + max(1, _offsets_of(served, left, end - first))
    return reached


def _offsets_of(served: ServedSegment, size_bytes: int, offsets_max: int) -> int:
    """About how many offsets of a segment that many bytes are."""
    segment = served.segment
    count = size_bytes * (segment.end_offset + 1 - segment.start_offset) // segment.segment_size_bytes
    return min(count, offsets_max)
