"""What bounds leave of a read: its ranges, joined where what lies between them costs less than another GET."""

from table.planning.bounds import GAP_BYTES_MAX, RANGES_MAX, Bounds
from table.planning.number_set import NONE, NumberSet
from table.planning.partition_view import PartitionView, ServedSegment, WantedOffsets
from tests.support.metadata_records import named_partition, started

OFFSETS = 10_000_000


def wanted(size_bytes: int, tier_end: int = OFFSETS) -> WantedOffsets:
    segment = started("0", 0, OFFSETS - 1, size_bytes=size_bytes)
    view = PartitionView(
        partition=named_partition("orders", 0),
        log_start_offset=0,
        end_offset=OFFSETS,
        segments=(ServedSegment(segment, 0, OFFSETS),),
    )
    return WantedOffsets(view=view, first_offset=0, tier_end_offset=tier_end, end_offset=OFFSETS)


def ranges(want: WantedOffsets, *offsets: int) -> list[tuple[int, int]]:
    left = Bounds(offsets=NumberSet.of(offsets)).narrowed([want])
    return [(each.first_offset, each.end_offset) for each in left]


def test_a_set_of_offsets_is_read_as_its_ranges() -> None:
    # Ten offsets of the log are a mebibyte.
    want = wanted(OFFSETS * GAP_BYTES_MAX // 10)
    assert ranges(want, 5, 5000, 70_000) == [(5, 6), (5000, 5001), (70_000, 70_001)]
    assert ranges(want, 5, 12, 5000) == [(5, 13), (5000, 5001)]
    assert ranges(wanted(1024), 5, 70_000) == [(5, 70_001)]
    assert ranges(want, OFFSETS + 7) == []


def test_there_are_no_more_ranges_than_can_be_planned() -> None:
    offsets = [number * number for number in range(3 * RANGES_MAX)]
    left = ranges(wanted(OFFSETS * GAP_BYTES_MAX), *offsets)
    assert 1 < len(left) <= RANGES_MAX
    assert all(any(first <= offset < end for first, end in left) for offset in offsets)


def test_a_range_beyond_the_tier_is_the_tails() -> None:
    first, last = Bounds(offsets=NumberSet.of((5, 70_000))).narrowed([wanted(OFFSETS * GAP_BYTES_MAX, tier_end=100)])
    assert (first.tier_end_offset, last.first_offset, last.tier_end_offset, last.end_offset) == (
        6,
        70_000,
        70_000,
        70_001,
    )


def test_either_of_two_bounds_only_what_both_bound() -> None:
    first = Bounds(topics=frozenset({"a"}), offsets=NumberSet.of([1]))
    second = Bounds(topics=frozenset({"b"}), partitions=NumberSet.of([1]))
    assert first | second == Bounds(topics=frozenset({"a", "b"}))
    assert (first & second).topics == frozenset()
    assert Bounds(timestamps_ms=NONE) & first == Bounds(
        topics=frozenset({"a"}), offsets=NumberSet.of([1]), timestamps_ms=NONE
    )
