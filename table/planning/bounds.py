"""The bounds that filters set to a read: which topics, partitions, offsets and times may have a row. Pure.

Each client translates its own filters: `pipeline.pushed_filters` Spark's, `table.history` those of a scan. Bounds leave
out what certainly has no row. They may leave more than the filter does, which is then looked at row by row.

A set of offsets is planned as its ranges. Ranges of one partition that are close together are one: what lies between
them costs less than another GET.
"""

import datetime
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from table.planning.number_set import EVERY, LARGEST, LEAST, NumberSet
from table.planning.option_values import to_milliseconds
from table.planning.partition_view import PartitionView, WantedOffsets
from table.planning.request import ReadRequest

GAP_BYTES_MAX: Final = 1024 * 1024
"""Bytes of log between ranges that are read as one."""
RANGES_MAX: Final = 1000
"""For a partition; of more, those that are closest together become one."""

_Request = TypeVar("_Request", bound=ReadRequest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What all the filters together leave. `topics` None: all of them."""

    topics: frozenset[str] | None = None
    partitions: NumberSet = EVERY
    offsets: NumberSet = EVERY
    timestamps_ms: NumberSet = EVERY

    def __and__(self, other: "Bounds") -> "Bounds":
        both = self.topics if other.topics is None else other.topics
        if self.topics is not None and other.topics is not None:
            both = self.topics & other.topics
        return Bounds(
            topics=both,
            partitions=self.partitions & other.partitions,
            offsets=self.offsets & other.offsets,
            timestamps_ms=self.timestamps_ms & other.timestamps_ms,
        )

    def __or__(self, other: "Bounds") -> "Bounds":
        """At least what one of both leaves: a column that one of them does not bound is not bounded."""
        either = None if self.topics is None or other.topics is None else self.topics | other.topics
        return Bounds(
            topics=either,
            partitions=self.partitions | other.partitions,
            offsets=self.offsets | other.offsets,
            timestamps_ms=self.timestamps_ms | other.timestamps_ms,
        )

    def within(self, request: _Request) -> _Request:
        """The request with these times, where they are the narrower ones. Without a time left it wants none."""
        left = self.timestamps_ms & NumberSet.between(request.timestamp_min_ms, request.timestamp_max_ms)
        if not left.ranges:
            return replace(request, timestamp_min_ms=LARGEST, timestamp_max_ms=LEAST)
        return replace(request, timestamp_min_ms=left.first, timestamp_max_ms=left.last)

    def narrowed(self, wanted: Iterable[WantedOffsets]) -> tuple[WantedOffsets, ...]:
        """Return what is left of a read, before the aborted transactions are looked up."""
        return tuple(left for want in wanted if self._has(*want.view.key) for left in self._narrow(want))

    def _has(self, topic: str, partition: int) -> bool:
        return (self.topics is None or topic in self.topics) and partition in self.partitions

    def _narrow(self, want: WantedOffsets) -> Iterator[WantedOffsets]:
        left = self.offsets & NumberSet.between(want.first_offset, want.end_offset - 1)
        for first, last in _near_ones_joined(left, want.view):
            tier_end = min(max(want.tier_end_offset, first), last + 1)
            yield replace(want, first_offset=first, tier_end_offset=tier_end, end_offset=last + 1)


def compared(operator: str, value: int) -> NumberSet:
    """Return the whole numbers for which this is so: `number operator value`, with one of =, <, <=, > and >=."""
    return _compared(operator, value, value)


def compared_times(operator: str, moment: datetime.datetime) -> NumberSet:
    """Return the milliseconds for which `timestamp operator moment` is so; a moment may be finer than they are."""
    return _compared(operator, to_milliseconds(moment, rounds_up=True), to_milliseconds(moment, rounds_up=False))


def _compared(operator: str, ceiling: int, floor: int) -> NumberSet:
    first = last = None
    if operator in ("=", ">=", ">"):
        first = floor + 1 if operator == ">" else ceiling
    if operator in ("=", "<=", "<"):
        last = ceiling - 1 if operator == "<" else floor
    return NumberSet.between(first, last)


def _near_ones_joined(offsets: NumberSet, view: PartitionView) -> tuple[tuple[int, int], ...]:
    ranges = offsets.ranges
    if len(ranges) < 2:
        return ranges
    gap = max(_offsets_in(view, GAP_BYTES_MAX), 1)
    joined = NumberSet.joined((first, last + gap) for first, last in ranges)
    while len(joined.ranges) > RANGES_MAX:
        gap *= 2
        joined = NumberSet.joined((first, last + gap) for first, last in ranges)
    return tuple((first, last - gap) for first, last in joined.ranges)


def _offsets_in(view: PartitionView, size_bytes: int) -> int:
    """About how many offsets of the tier that many bytes are."""
    served_bytes = sum(each.segment.segment_size_bytes for each in view.segments)
    count = sum(each.segment.end_offset + 1 - each.segment.start_offset for each in view.segments)
    return size_bytes * count // served_bytes if served_bytes else 0
