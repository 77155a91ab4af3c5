"""Sets of numbers as ranges do what Python's sets do."""

from typing import TypeAlias

from hypothesis import given
from hypothesis import strategies as st

from table.planning.number_set import EVERY, NONE, NumberSet

NUMBERS = range(12)
Ranges: TypeAlias = list[tuple[int, int]]
ranges = st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=4)


def members(numbers: NumberSet) -> set[int]:
    return {number for number in NUMBERS if number in numbers}


@given(ranges, ranges)
def test_they_are_joined_met_and_inverted_as_sets_are(left: Ranges, right: Ranges) -> None:
    one, other = NumberSet.joined(left), NumberSet.joined(right)
    assert members(one) == {number for first, last in left for number in range(first, last + 1)}
    assert members(one & other) == members(one) & members(other)
    assert members(one | other) == members(one) | members(other)
    assert members(~one) == set(NUMBERS) - members(one)
    assert ~~one == one
    assert all(last + 1 < first for (_, last), (first, _) in zip(one.ranges, one.ranges[1:], strict=False))


def test_without_a_bound_there_is_no_first_and_no_last() -> None:
    assert (EVERY.first, EVERY.last, ~EVERY, ~NONE) == (None, None, NONE, EVERY)
    assert (NumberSet.between(3, None).first, NumberSet.between(3, None).last) == (3, None)
    assert NumberSet.between(3, 2) == NONE
