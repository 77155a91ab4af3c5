"""Sets of whole numbers as ranges: what a filter leaves of offsets, partitions or milliseconds. Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

LEAST: Final = -(2**63)
LARGEST: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class NumberSet:
    """`ranges`: first and last number of each, ascending, with a gap of at least one number between neighbours."""

    ranges: tuple[tuple[int, int], ...] = ((LEAST, LARGEST),)

    @classmethod
    def of(cls, numbers: Iterable[int]) -> "NumberSet":
        """Return just these."""
        return cls.joined((number, number) for number in numbers)

    @classmethod
    def between(cls, first: int | None, last: int | None) -> "NumberSet":
        """Return all from first to last, both inclusive; None: without that bound."""
        return cls.joined([(LEAST if first is None else first, LARGEST if last is None else last)])

    @classmethod
    def joined(cls, ranges: Iterable[tuple[int, int]]) -> "NumberSet":
        """Return the numbers that are in one of these ranges, of which some may overlap or be empty."""
        found: list[tuple[int, int]] = []
        for first, last in sorted(ranges):
            first, last = max(first, LEAST), min(last, LARGEST)
            if first > last:
                continue
            if found and first <= found[-1][1] + 1:
                found[-1] = (found[-1][0], max(found[-1][1], last))
            else:
                found.append((first, last))
        return cls(tuple(found))

    def __and__(self, other: "NumberSet") -> "NumberSet":
        return NumberSet.joined(_common(self.ranges, other.ranges))

    def __or__(self, other: "NumberSet") -> "NumberSet":
        return NumberSet.joined((*self.ranges, *other.ranges))

    def __invert__(self) -> "NumberSet":
        ends = [LEAST - 1, *(number for each in self.ranges for number in each), LARGEST + 1]
        return NumberSet.joined((low + 1, high - 1) for low, high in zip(ends[::2], ends[1::2], strict=True))

    def __contains__(self, number: int) -> bool:
        return any(first <= number <= last for first, last in self.ranges)

    @property
    def first(self) -> int | None:
        """Return the least; None: there is no bound, or nothing at all."""
        return None if not self.ranges or self.ranges[0][0] == LEAST else self.ranges[0][0]

    @property
    def last(self) -> int | None:
        """Return the largest; None as for `first`."""
        return None if not self.ranges or self.ranges[-1][1] == LARGEST else self.ranges[-1][1]


EVERY: Final = NumberSet()
NONE: Final = NumberSet(())


def _common(left: tuple[tuple[int, int], ...], right: tuple[tuple[int, int], ...]) -> Iterator[tuple[int, int]]:
    at_left = at_right = 0
    while at_left < len(left) and at_right < len(right):
        yield max(left[at_left][0], right[at_right][0]), min(left[at_left][1], right[at_right][1])
        if left[at_left][1] < right[at_right][1]:
            at_left += 1
        else:
            at_right += 1
