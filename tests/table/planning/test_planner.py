"""Each wanted offset and byte in just one task, of about the size asked for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from table.planning import planner
from table.planning.partition_view import PartitionView, ServedSegment, WantedOffsets
from table.planning.planner import PlanningError, limit_end_offsets, plan
from table.planning.request import TopicPartition
from table.tasks import AbortedTransaction, SegmentTask, TailTask, Task, TierTask
from tests.support.metadata_records import named_partition, started

SEGMENT_TIME_MS = 1_700_000_000_000
"""Newest record of every segment here."""


def view_of(
    *segments: tuple[int, int], partition: int = 0, first_offset: int = 0, last_stable_offset: int | None = None
) -> PartitionView:
    """Segments one after the other: (offsets, bytes) of each."""
    links = []
    base = 0
    for number, (offsets, size_bytes) in enumerate(segments):
        end = base + offsets
        segment = started(f"{partition}-{number}", base, end - 1, size_bytes=size_bytes)
        if end > first_offset:
            links.append(ServedSegment(segment, max(base, first_offset), end))
        base = end
    return PartitionView(
        partition=named_partition("orders", partition),
        log_start_offset=first_offset,
        end_offset=base + 1_000,
        segments=tuple(links),
        last_stable_offset=last_stable_offset,
    )


def wanted_of(
    view: PartitionView,
    first: int | None = None,
    end: int | None = None,
    *,
    tail: int = 0,
    aborted: tuple[AbortedTransaction, ...] = (),
) -> WantedOffsets:
    tier_end = view.tier_end_offset if end is None else end
    return WantedOffsets(
        view=view,
        first_offset=view.log_start_offset if first is None else first,
        tier_end_offset=tier_end,
        end_offset=tier_end + tail,
        aborted=aborted,
    )


def parts_of(*tasks: Task) -> list[SegmentTask]:
    return [part for task in tasks if isinstance(task, TierTask) for part in task.parts]


def ranges_of(*tasks: Task) -> list[tuple[int, int, int, int]]:
    """(first offset, end offset, start position, end position) of each part."""
    return [(part.first_offset, part.end_offset, part.start_position, part.end_position) for part in parts_of(*tasks)]


def test_segments_that_cannot_match_are_not_planned() -> None:
    view = view_of((10, 100), (10, 100), (10, 100))

    assert ranges_of(*plan([wanted_of(view, 10, 20)], bytes_per_partition=1_000)) == [(10, 20, 0, 100)]
    assert plan([wanted_of(view, 10, 10)], bytes_per_partition=1_000) == ()
    too_new = SEGMENT_TIME_MS + 1
    assert plan([wanted_of(view)], bytes_per_partition=1_000, timestamp_min_ms=too_new) == ()
    assert len(plan([wanted_of(view)], bytes_per_partition=1_000, timestamp_min_ms=SEGMENT_TIME_MS)) == 1


def test_tails_are_first_and_partitions_advance_side_by_side() -> None:
    large, small = view_of((40, 400)), view_of((20, 200), partition=1)

    tasks = plan([wanted_of(large, tail=7), wanted_of(small)], bytes_per_partition=100)

    assert tasks[0] == TailTask(topic="orders", partition=0, first_offset=40, end_offset=47)
    assert [task.partition for task in tasks[1:]] == [0, 1, 0, 0, 1, 0]


def test_parts_have_the_aborted_transactions_that_touch_them() -> None:
    early, long, late = (AbortedTransaction(1, 2, 5), AbortedTransaction(2, 8, 25), AbortedTransaction(3, 20, 22))
    want = wanted_of(view_of((10, 100), (10, 100), (10, 100)), aborted=(early, long, late))

    tasks = plan([want], bytes_per_partition=50)

    assert [(part.first_offset, part.aborted) for part in parts_of(*tasks)] == [
        (0, (early, long)),
        (0, (early, long)),
        (10, (long,)),
        (10, (long,)),
        (20, (long, late)),
        (20, (long, late)),
    ]


def test_more_tasks_than_spark_can_keep_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "TASKS_MAX", 10)

    assert len(plan([wanted_of(view_of((100, 1_000)))], bytes_per_partition=100)) == 10
    with pytest.raises(PlanningError, match="bytesPerPartition=90"):
        plan([wanted_of(view_of((100, 1_000)))], bytes_per_partition=90)


_SEGMENTS = st.lists(st.tuples(st.integers(1, 50), st.integers(1, 2_000)), min_size=1, max_size=8)


@given(
    st.lists(_SEGMENTS, min_size=1, max_size=3),
    st.integers(0, 60),
    st.integers(0, 400),
    st.integers(0, 400),
    st.integers(1, 3_000),
)
def test_tasks_have_each_wanted_offset_and_byte_once(
    partitions: list[list[tuple[int, int]]], log_start: int, first: int, end: int, bytes_per_partition: int
) -> None:
    wanted = []
    for number, segments in enumerate(partitions):
        view = view_of(*segments, partition=number, first_offset=min(log_start, sum(count for count, _ in segments)))
        low = min(max(first, view.log_start_offset), view.tier_end_offset)
        wanted.append(wanted_of(view, low, max(low, min(end, view.tier_end_offset))))

    tasks = plan(wanted, bytes_per_partition=bytes_per_partition)

    for want in wanted:
        of_partition = [task for task in tasks if task.partition == want.view.partition.partition]
        _check_partition(want, parts_of(*of_partition))
    for task in tasks:
        estimate = sum(_estimated_bytes(part) for part in parts_of(task))
        assert len(parts_of(task)) == 1 or estimate <= bytes_per_partition
        assert estimate <= 1.5 * bytes_per_partition + 1 or _is_one_offset(parts_of(task))


def _check_partition(want: WantedOffsets, parts: list[SegmentTask]) -> None:
    """In order, without gap or overlap, each offset and of a segment wanted whole each byte."""
    covered: dict[int, list[tuple[int, int]]] = {}
    reached = want.first_offset
    for part in parts:
        segment = part.segment
        is_whole = (part.first_offset, part.end_offset) == (segment.start_offset, segment.end_offset + 1)
        if is_whole:
            covered.setdefault(segment.start_offset, []).append((part.start_position, part.end_position))
            if part.start_position > 0:
                continue
        else:
            assert (part.start_position, part.end_position) == (0, segment.segment_size_bytes)
        assert part.first_offset == reached
        assert part.end_offset > part.first_offset
        reached = part.end_offset
    assert reached == want.tier_end_offset
    for start_offset, positions in covered.items():
        (size,) = {part.segment.segment_size_bytes for part in parts if part.segment.start_offset == start_offset}
        assert [low for low, _ in positions] == [0, *(high for _, high in positions[:-1])]
        assert positions[-1][1] == size
        assert all(low < high for low, high in positions)


def _estimated_bytes(part: SegmentTask) -> float:
    segment = part.segment
    share = (part.end_offset - part.first_offset) / (segment.end_offset + 1 - segment.start_offset)
    return (part.end_position - part.start_position) * share


def _is_one_offset(parts: list[SegmentTask]) -> bool:
    return len(parts) == 1 and parts[0].end_offset - parts[0].first_offset <= 2


KEYS: list[TopicPartition] = [("orders", 0), ("orders", 1)]


def test_a_trigger_ends_with_whole_segments_where_it_can() -> None:
    view = view_of((10, 100), (10, 100), (10, 100))

    assert limit_end_offsets([view], {}, 250) == {KEYS[0]: 20}
    assert limit_end_offsets([view], {KEYS[0]: 20}, 250) == {KEYS[0]: 30}
    assert limit_end_offsets([view], {KEYS[0]: 30}, 250) == {KEYS[0]: 30}

    # One that is larger than the limit is cut in proportion.
    view = view_of((100, 1_000))
    assert limit_end_offsets([view], {}, 250) == {KEYS[0]: 25}
    assert limit_end_offsets([view], {KEYS[0]: 25}, 250) == {KEYS[0]: 50}
    assert limit_end_offsets([view], {KEYS[0]: 90}, 250) == {KEYS[0]: 100}


def test_bytes_are_shared_fairly_and_what_one_does_not_need_the_other_gets() -> None:
    small, large = view_of((10, 100)), view_of((1_000, 10_000), partition=1)

    assert limit_end_offsets([small, large], {}, 1_000) == {KEYS[0]: 10, KEYS[1]: 90}

    # None goes beyond the last stable offset, and what is below the log start counts nothing.
    assert limit_end_offsets([view_of((100, 1_000), last_stable_offset=60)], {}, 10_000) == {KEYS[0]: 60}
    view = view_of((10, 100), (10, 100), first_offset=15)
    assert limit_end_offsets([view], {KEYS[0]: 3}, 60) == {KEYS[0]: 20}


@given(
    st.lists(_SEGMENTS, min_size=1, max_size=4),
    st.lists(st.integers(0, 100), min_size=4, max_size=4),
    st.integers(1, 5_000),
)
def test_triggers_take_all_in_the_end_and_none_much_more_than_its_limit(
    partitions: list[list[tuple[int, int]]], starts: list[int], bytes_max: int
) -> None:
    views = [view_of(*segments, partition=number) for number, segments in enumerate(partitions)]
    offsets = {view.key: min(start, view.tier_end_offset) for view, start in zip(views, starts, strict=False)}
    for _ in range(1_000):
        ends = limit_end_offsets(views, offsets, bytes_max)
        taken = 0
        for view in views:
            assert offsets[view.key] <= ends[view.key] <= view.tier_end_offset
            assert ends[view.key] > offsets[view.key] or offsets[view.key] == view.tier_end_offset
            if ends[view.key] - offsets[view.key] > 1:  # one offset is taken whatever its size
                taken += sum(link.estimated_bytes(offsets[view.key], ends[view.key]) for link in view.segments)
        assert taken <= bytes_max
        if ends == offsets:
            break
        offsets = ends
    assert offsets == {view.key: view.tier_end_offset for view in views}
