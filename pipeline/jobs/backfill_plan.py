"""How a backfill cuts its range into steps. Pure: the same range and size give the same steps, run after run.

A step is the unit that is done or not done. Each goes over all partitions of the topic side by side, a share of each in
proportion to its length, so that a step has work for all executors and the last one is as wide as the first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

STEPS_MAX = 100_000


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets [start, end) of one partition."""

    partition: int
    start: int
    end: int

    @property
    def offsets(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Step:
    """Some offsets of each partition; a partition without any is left out."""

    number: int
    ranges: tuple[OffsetRange, ...]

    @property
    def name(self) -> str:
        return f"step-{self.number:06d}"

    @property
    def offsets(self) -> int:
        return sum(each.offsets for each in self.ranges)


def steps(ranges: Sequence[OffsetRange], *, bytes_estimated: int, bytes_per_step: int) -> tuple[Step, ...]:
    """The range in steps of about bytes_per_step each; every offset is in exactly one.

    Raises:
        ValueError: more than STEPS_MAX steps.
    """
    longest = max((each.offsets for each in ranges), default=0)
    if longest == 0:
        return ()
    count = min(max(1, -(-bytes_estimated // bytes_per_step)), longest)
    if count > STEPS_MAX:
        raise ValueError(f"{count} steps, {STEPS_MAX} at most: take larger ones")
    cut = [tuple(_shares(each, count)) for each in ranges]
    made = [tuple(shares[number] for shares in cut if shares[number].offsets) for number in range(count)]
    return tuple(Step(number, parts) for number, parts in enumerate(made))


def _shares(whole: OffsetRange, count: int) -> Sequence[OffsetRange]:
    borders = [whole.start + whole.offsets * number // count for number in range(count + 1)]
    return [OffsetRange(whole.partition, borders[at], borders[at + 1]) for at in range(count)]


def to_json(planned: Sequence[Step]) -> list[list[list[int]]]:
    """Steps as a file keeps them."""
    return [[[each.partition, each.start, each.end] for each in step.ranges] for step in planned]


def from_json(value: Any) -> tuple[Step, ...]:
    """What `to_json` made.

    Raises:
        ValueError: it did not make this.
    """
    try:
        return tuple(
            Step(number, tuple(OffsetRange(*map(int, each)) for each in ranges)) for number, ranges in enumerate(value)
        )
    except TypeError as error:
        raise ValueError(f"not a plan of steps: {error}") from error


def offsets_json(topic: str, offsets: Mapping[int, int]) -> dict[str, dict[str, int]]:
    """Offsets of one topic's partitions as both sources take them."""
    return {topic: {str(partition): offset for partition, offset in sorted(offsets.items())}}
