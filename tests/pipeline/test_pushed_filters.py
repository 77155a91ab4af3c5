"""Which filters a read takes over, what they leave of it, and that no row is taken away that Spark would keep."""

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pipeline.pushed_filters import push_filters
from table.planning.bounds import Bounds
from table.planning.number_set import LARGEST, LEAST, NumberSet
from table.planning.partition_view import PartitionView, WantedOffsets
from table.planning.request import SourceOptions, TopicSelection
from tests.support.for_each import for_each
from tests.support.metadata_records import named_partition
from tests.support.spark_filters import (
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

COMPARISONS: dict[type[EqualTo], Callable[[Any, Any], bool]] = {
    EqualTo: lambda left, right: bool(left == right),
    EqualNullSafe: lambda left, right: bool(left == right),
    GreaterThan: lambda left, right: bool(left > right),
    GreaterThanOrEqual: lambda left, right: bool(left >= right),
    LessThan: lambda left, right: bool(left < right),
    LessThanOrEqual: lambda left, right: bool(left <= right),
}
OPTIONS = SourceOptions(config=Path("tidegate.properties"), selection=TopicSelection(topics=("orders",)))
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def wanted(first: int, tier_end: int, end: int, *, partition: int = 0, topic: str = "orders") -> WantedOffsets:
    view = PartitionView(partition=named_partition(topic, partition), log_start_offset=0, end_offset=1000)
    return WantedOffsets(view=view, first_offset=first, tier_end_offset=tier_end, end_offset=end)


def pushed(*filters: EqualTo) -> Bounds:
    taken, others = push_filters(filters)
    assert others == []
    return taken


def test_topics_and_partitions_that_are_not_wanted_are_not_planned() -> None:
    wants = [wanted(0, 5, 5, topic=topic, partition=number) for topic in ("orders", "payments") for number in range(3)]

    def left(*filters: EqualTo) -> list[tuple[str, int]]:
        return [want.view.key for want in pushed(*filters).narrowed(wants)]

    assert left(EqualTo(("topic",), "orders"), In(("partition",), (0, 2))) == [("orders", 0), ("orders", 2)]
    assert left(GreaterThan(("partition",), 1)) == [("orders", 2), ("payments", 2)]
    assert left(In(("topic",), ("orders", "x")), EqualTo(("topic",), "payments")) == []


def test_times_go_into_the_options_where_they_are_the_narrower() -> None:
    moment = EPOCH + datetime.timedelta(milliseconds=5, microseconds=1)
    options = pushed(GreaterThan(("timestamp",), moment), LessThanOrEqual(("Timestamp",), moment)).within(OPTIONS)
    assert (options.timestamp_min_ms, options.timestamp_max_ms) == (LARGEST, LEAST)
    narrow = pushed(GreaterThanOrEqual(("timestamp",), EPOCH)).within(options)
    assert narrow.timestamp_min_ms is not None
    assert narrow.timestamp_max_ms is not None
    assert narrow.timestamp_min_ms > narrow.timestamp_max_ms
    assert Bounds().within(OPTIONS) == OPTIONS


@for_each(
    "other",
    [
        EqualTo(("offset",), None),
        EqualTo(("offset",), True),
        EqualTo(("offset",), 1.5),
        In(("partition",), (1, None)),
        In(("offset",), (1, None)),
        In(("offset",), ()),
        EqualTo(("value",), b"x"),
        GreaterThan(("topic",), "a"),
        StringStartsWith(("topic",), "a"),
        EqualTo(("headers", "key"), "a"),
        GreaterThan(("timestamp",), datetime.datetime(2024, 1, 1)),  # it is one without a zone
        Not(EqualTo(("offset",), 1)),
        IsNotNull(("value",)),
    ],
)
def test_what_is_not_understood_is_left_to_spark(other: Any) -> None:
    taken, others = push_filters([EqualTo(("topic",), "orders"), other])
    assert others == [other]
    assert taken == Bounds(topics=frozenset({"orders"}))
    # Spark asks it of every column that it compares, and would look at each row for what is never null.
    never_null = [IsNotNull((name,)) for name in ("offset", "Partition", "topic", "timestamp")]
    assert push_filters(never_null) == (Bounds(), [])


def test_a_list_is_read_as_its_ranges_and_spark_has_it_too() -> None:
    moments = [EPOCH + datetime.timedelta(milliseconds=each) for each in (9, 4, 6)]
    lists = [In(("offset",), (7, 3, 12)), In(("timestamp",), tuple(moments))]
    taken, others = push_filters([*lists, LessThan(("offset",), 12)])
    assert others == lists
    assert taken.offsets == NumberSet.of((3, 7))
    options = taken.within(OPTIONS)
    assert (options.timestamp_min_ms, options.timestamp_max_ms) == (4, 9)


@given(
    st.lists(st.tuples(st.sampled_from(sorted(COMPARISONS, key=str)), st.integers(-3, 25)), max_size=4),
    st.integers(0, 20),
    st.integers(0, 20),
)
def test_offsets_left_are_those_that_every_filter_keeps(
    chosen: list[tuple[type[EqualTo], int]], tier_end: int, end: int
) -> None:
    want = wanted(0, min(tier_end, end), end)
    taken = pushed(*(kind(("offset",), value) for kind, value in chosen))

    left = [offset for each in taken.narrowed([want]) for offset in range(each.first_offset, each.end_offset)]

    assert left == [offset for offset in range(end) if all(COMPARISONS[kind](offset, value) for kind, value in chosen)]
    for each in taken.narrowed([want]):
        assert each.first_offset <= each.tier_end_offset <= each.end_offset
        assert each.tier_end_offset == each.first_offset or each.tier_end_offset <= want.tier_end_offset


@given(st.sampled_from(sorted(COMPARISONS, key=str)), st.integers(-3000, 3000), st.integers(-3, 3))
def test_times_left_are_those_that_the_filter_keeps(kind: type[EqualTo], value_us: int, timestamp_ms: int) -> None:
    moment = EPOCH + datetime.timedelta(microseconds=value_us)
    options = pushed(kind(("timestamp",), moment)).within(OPTIONS)
    low, high = options.timestamp_min_ms, options.timestamp_max_ms

    is_kept = (low is None or low <= timestamp_ms) and (high is None or timestamp_ms <= high)

    assert is_kept == COMPARISONS[kind](timestamp_ms * 1000, value_us)
