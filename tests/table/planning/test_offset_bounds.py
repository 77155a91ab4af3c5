"""Bounds against what is there: what is read from the tier, what through Kafka, and what is said of the rest."""

import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from pipeline.options import parse_options
from table.brokers.client import BrokerClient
from table.planning.offset_bounds import OffsetBoundsError, wanted_between, wanted_offsets
from table.planning.partition_view import OffsetRange, PartitionView, ServedSegment, WantedOffsets
from table.planning.request import SourceOptions, TopicPartition
from tests.support.fake_kafka import FakeKafka
from tests.support.for_each import for_each
from tests.support.metadata_records import named_partition, started

KEY: TopicPartition = ("orders", 0)


def view_of(
    *links: tuple[int, int],
    log_start_offset: int = 0,
    end_offset: int = 500,
    partition: int = 0,
    last_stable_offset: int | None = None,
    size_bytes: int = 1_000,
) -> PartitionView:
    """Links are [first, end) of a segment each; what is between two is a hole."""
    holes = []
    reached = log_start_offset
    for first, end in links:
        if first > reached:
            holes.append(OffsetRange(reached, first))
        reached = end
    return PartitionView(
        partition=named_partition("orders", partition),
        log_start_offset=log_start_offset,
        end_offset=end_offset,
        segments=tuple(
            ServedSegment(started(f"{first}", first, end - 1, size_bytes=size_bytes), first, end)
            for first, end in links
        ),
        holes=tuple(holes),
        last_stable_offset=last_stable_offset,
    )


def options_of(**given: str) -> SourceOptions:
    return parse_options({"config": "a", "subscribe": "orders", **given})


def brokers_of(*views: PartitionView, times: dict[int, int] | None = None) -> BrokerClient:
    kafka = FakeKafka()
    kafka.add(1, "a")
    for view in views:
        kafka.add_log(view.partition, end_offset=view.end_offset).times = times or {}
    return kafka.client()


def wanted_of(view: PartitionView, *, times: dict[int, int] | None = None, **given: str) -> tuple[int, int, int]:
    """(first, end in the tier, end) of one partition."""
    (want,) = wanted_offsets([view], options_of(**given), brokers_of(view, times=times))
    return want.first_offset, want.tier_end_offset, want.end_offset


def problems_of(view: PartitionView, *, times: dict[int, int] | None = None, **given: str) -> tuple[str, ...]:
    with pytest.raises(OffsetBoundsError) as raised:
        wanted_of(view, times=times, **given)
    return raised.value.problems


TIERED_TO_300 = view_of((0, 100), (100, 300))


def test_without_an_end_what_is_not_tiered_is_left_out_with_one_warning() -> None:
    views = [view_of((0, 300)), view_of((0, 500), partition=1), view_of(partition=2)]

    with capture_logs() as logs:
        wanted = wanted_offsets(views, options_of(), brokers_of(*views))

    assert [(want.first_offset, want.tier_end_offset, want.end_offset) for want in wanted] == [
        (0, 300, 300),
        (0, 500, 500),
        (0, 0, 0),
    ]
    (warning,) = logs
    assert warning["log_level"] == "warning"
    assert warning["offsets"] == "orders-0: 300 to 499; orders-2: 0 to 499"


ALL_TIERED, STABLE_TO_260 = view_of((0, 500)), view_of((0, 300), last_stable_offset=260)
FROM_20, WITH_HOLE = view_of((20, 300), log_start_offset=20), view_of((0, 100), (200, 300))
COMMITTED, TAIL = {"isolation": "read_committed"}, {"tail": "kafka"}
TIMES = {1_000: 40, 2_000: 250, 3_000: 520}


def from_(offset: int) -> dict[str, str]:
    return {"startingOffsets": json.dumps({"orders": {"0": offset}})}


def to(offset: int) -> dict[str, str]:
    return {"endingOffsets": json.dumps({"orders": {"0": offset}})}


@for_each(
    "view, given_options, expected",
    [
        (ALL_TIERED, {"endingOffsets": "latest"}, (0, 500, 500)),
        # The tail begins where the tier ends.
        (TIERED_TO_300, TAIL, (0, 300, 500)),
        (TIERED_TO_300, TAIL | from_(400), (400, 400, 500)),
        (TIERED_TO_300, TAIL | to(250), (0, 250, 250)),
        (TIERED_TO_300, to(300), (0, 300, 300)),
        (STABLE_TO_260, COMMITTED, (0, 260, 260)),
        (STABLE_TO_260, COMMITTED | TAIL, (0, 260, 500)),
        # Earliest and latest, by partition.
        (FROM_20, TAIL | from_(-2) | to(-1), (20, 300, 500)),
        # Times are the offsets that the brokers say.
        (TIERED_TO_300, {"startingTimestamp": "1000", "endingTimestamp": "2000"}, (40, 250, 250)),
        (TIERED_TO_300, {"startingOffsetsByTimestamp": '{"orders":{"0":1000}}'}, (40, 300, 300)),
        (
            TIERED_TO_300,
            {"startingTimestamp": "9000", "startingOffsetsByTimestampStrategy": "latest", **TAIL},
            (500, 500, 500),
        ),
        (TIERED_TO_300, {"endingTimestamp": "9000", **TAIL}, (0, 300, 500)),
        # A record that came after the view was made is not in it.
        (TIERED_TO_300, {"startingTimestamp": "3000", **TAIL}, (500, 500, 500)),
        # A hole outside of what is wanted is no loss.
        (WITH_HOLE, to(100), (0, 100, 100)),
        (WITH_HOLE, from_(200), (200, 300, 300)),
    ],
)
def test_bounds_are_offsets_of_the_tier_and_of_the_tail(
    view: PartitionView, given_options: dict[str, str], expected: tuple[int, int, int]
) -> None:
    assert wanted_of(view, times=TIMES, **given_options) == expected


REMEDIES = "endingOffsets=tiered leaves them out, tail=kafka reads them through Kafka"
BEHIND = f"orders-0: offsets {{}} to {{}} are not in the tier yet: {REMEDIES}"
UNSTABLE = "orders-0: offsets 260 to 299 cannot be read from the tier yet with read_committed"
OTHER = '{"orders":{"0":1}, "other":{"1":1}}'
MISSES, NAMES_7 = "does not name orders-0", "names, though not selected, orders-7"
TIMES_OF_7 = {"endingOffsetsByTimestamp": '{"orders":{"7":1}}'}


@for_each(
    "view, given_options, problems",
    [
        (TIERED_TO_300, {"endingOffsets": "latest"}, [BEHIND.format(300, 499)]),
        (TIERED_TO_300, {"endingTimestamp": "9000"}, [BEHIND.format(300, 499)]),
        (TIERED_TO_300, to(301), [BEHIND.format(300, 300)]),
        (STABLE_TO_260, COMMITTED | to(300), [UNSTABLE]),
        (TIERED_TO_300, {"startingTimestamp": "9000"}, ["orders-0 has no record at or after the starting time"]),
        (TIERED_TO_300, {"startingOffsets": OTHER}, ["startingOffsets names, though not selected, other-1"]),
        (TIERED_TO_300, TIMES_OF_7, [f"endingOffsetsByTimestamp {what}" for what in (MISSES, NAMES_7)]),
    ],
)
def test_what_cannot_be_read_is_said_with_its_remedy(
    view: PartitionView, given_options: dict[str, str], problems: list[str]
) -> None:
    found = problems_of(view, times=TIMES, **given_options)

    assert len(found) == len(problems)
    assert all(one.startswith(said) for one, said in zip(found, problems, strict=True)), found


@for_each(
    "view, given_offsets, sentence, goes_on",
    [
        (view_of((50, 300), log_start_offset=50), (10, 200), "offsets 10 to 49 are below the log start 50", (50, 200)),
        (view_of((50, 300), log_start_offset=50), (49, 200), "offsets 49 to 49 are below the log start 50", (50, 200)),
        (view_of((50, 300), log_start_offset=50), (10, 20), "offsets 10 to 19 are below the log start 50", (50, 50)),
        (view_of((0, 100), (200, 300)), (0, 300), "offsets 100 to 199 are in no segment of the tier", (0, 300)),
        (view_of((0, 100), (200, 300)), (150, 180), "offsets 150 to 179 are in no segment of the tier", (150, 180)),
        (view_of((0, 500)), (0, 900), "offset 900 is wanted, and the log ends at 500", (0, 500)),
        (view_of((0, 500)), (600, 600), "offset 600 is wanted, and the log ends at 500", (500, 500)),
    ],
)
def test_lost_offsets_are_an_error_or_a_warning(
    view: PartitionView, given_offsets: tuple[int, int], sentence: str, goes_on: tuple[int, int]
) -> None:
    firsts, ends = {KEY: given_offsets[0]}, {KEY: given_offsets[1]}

    with pytest.raises(OffsetBoundsError, match=f"{sentence}.*failOnDataLoss=false"):
        wanted_between([view], firsts, ends, fails_on_data_loss=True, reads_tail=False)
    with capture_logs() as logs:
        (want,) = wanted_between([view], firsts, ends, fails_on_data_loss=False, reads_tail=False)

    assert (want.first_offset, want.end_offset) == goes_on
    assert len(logs) == 1
    assert sentence in logs[0]["partitions"]


def test_a_partition_that_was_not_read_before_starts_at_its_log_start() -> None:
    views = [view_of((0, 300)), view_of((40, 300), log_start_offset=40, partition=1)]
    ends = {KEY: 100, ("orders", 1): 100}

    wanted = wanted_between(views, {KEY: 30}, ends, fails_on_data_loss=True, reads_tail=False)

    assert [want.first_offset for want in wanted] == [30, 40]


def test_all_partitions_problems_are_told_and_a_long_list_is_cut() -> None:
    views = [view_of((0, 300), partition=number) for number in range(30)]

    with pytest.raises(OffsetBoundsError) as raised:
        wanted_offsets(views, options_of(endingOffsets="latest"), brokers_of(*views))

    assert len(raised.value.problems) == 30
    assert str(raised.value).endswith("and 10 more")
    assert copy.deepcopy(raised.value).problems == raised.value.problems


@given(
    st.lists(st.integers(0, 60), min_size=0, max_size=6, unique=True),
    st.integers(0, 70),
    st.integers(0, 70),
    st.integers(0, 70),
    st.booleans(),
)
def test_tier_and_tail_meet_without_a_gap_or_a_repeat(
    borders: list[int], log_start_offset: int, first: int, end: int, is_committed: bool
) -> None:
    cuts = sorted(border for border in borders if border >= log_start_offset)
    links = list(zip(cuts[::2], cuts[1::2], strict=False))
    tier_end = links[-1][1] if links else log_start_offset
    view = view_of(
        *links,
        log_start_offset=log_start_offset,
        end_offset=max(65, tier_end, log_start_offset),
        last_stable_offset=max(log_start_offset, tier_end - 5) if is_committed else None,
    )

    want = _quietly(view, first, end)

    assert want.first_offset <= want.tier_end_offset <= want.end_offset
    assert want.first_offset >= log_start_offset
    asked = set(range(max(first, log_start_offset), min(end, view.latest_offset)))
    assert set(range(want.first_offset, want.end_offset)) == asked
    assert all(offset < view.readable_end_offset for offset in range(want.first_offset, want.tier_end_offset))
    assert all(offset >= view.readable_end_offset for offset in range(want.tier_end_offset, want.end_offset))


def _quietly(view: PartitionView, first: int, end: int) -> WantedOffsets:
    with capture_logs():
        (want,) = wanted_between([view], {KEY: first}, {KEY: end}, fails_on_data_loss=False, reads_tail=True)
    return want
