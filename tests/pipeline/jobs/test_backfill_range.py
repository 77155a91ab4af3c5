"""What a run of a backfill reads: from the last one's end to the tier's or the log's, within bounds, in steps."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pipeline.jobs.backfill_range import BYTES_PER_OFFSET, BackfillRefusedError, Planned, TierPlans
from pipeline.jobs.sink import OffsetRange
from storage.model import uuid_to_text
from table.driver import Tier
from table.planning.offset_bounds import OffsetBoundsError
from table.planning.partition_view import OffsetRange as Hole
from table.planning.partition_view import PartitionView
from table.planning.request import OffsetEdge, PartitionOffsets, SourceOptions, TopicSelection
from tests.support.fake_kafka import FakeKafka
from tests.table.planning.test_offset_bounds import view_of

SEGMENT_BYTES = 6000
VIEW = view_of((0, 100), (100, 200), (200, 300), size_bytes=SEGMENT_BYTES)


def plans(
    view: PartitionView = VIEW, *, reads_kafka: bool = False, bytes_per_step: int = 1, **bounds: Any
) -> TierPlans:
    kafka = FakeKafka()
    kafka.add(1, "a")
    kafka.add_log(view.partition, log_start_offset=view.log_start_offset, end_offset=view.end_offset)
    others = {name: None for name in Tier.__slots__ if name not in ("view", "client")}
    asked: Any = SimpleNamespace(
        partitions=lambda *_: [view], log_starts=lambda keys: dict.fromkeys(keys, view.log_start_offset)
    )
    tier = Tier(view=asked, client=kafka.client(), **cast(Any, others))
    ending = OffsetEdge.LATEST if reads_kafka else OffsetEdge.TIERED
    options = SourceOptions(
        config=Path("f"),
        selection=TopicSelection(topics=("orders",)),
        **{"ending": ending, "reads_tail": reads_kafka, **bounds},
    )
    return TierPlans(
        open_tier=lambda: nullcontext(tier), bounds=options, reads_kafka=reads_kafka, bytes_per_step=bytes_per_step
    )


def first(view: PartitionView = VIEW, **how: Any) -> Planned:
    return plans(view, **how).next_run({}, is_first=True)


def later(end: int, view: PartitionView = VIEW, **how: Any) -> Planned:
    return plans(view, **how).next_run({"orders": {0: end}}, is_first=False)


AFTER_RETENTION = replace(VIEW, log_start_offset=100, segments=VIEW.segments[1:])


def one(start: int, end: int) -> tuple[OffsetRange, ...]:
    return (OffsetRange("orders", 0, start, end),)


def test_the_first_run_is_of_all_that_the_tier_has() -> None:
    planned = first(bytes_per_step=SEGMENT_BYTES)
    assert (planned.ranges, planned.lost, planned.steps_count) == (one(0, 300), (), 3)
    assert planned.topics == {"orders": uuid_to_text(VIEW.partition.topic_id)}


def test_what_reads_kafka_ends_with_the_log() -> None:
    """Given 300 offsets of 60 bytes in the tier, when 200 more are read, then they count as much."""
    planned = first(reads_kafka=True, bytes_per_step=60 * 100)
    assert (planned.ranges, planned.steps_count) == (one(0, 500), 5)
    # Without a tier sizes are guessed.
    planned = first(replace(VIEW, segments=()), reads_kafka=True, bytes_per_step=100 * BYTES_PER_OFFSET)
    assert planned.steps_count == 5


def test_a_later_run_starts_where_the_last_ended_and_a_start_counts_once() -> None:
    assert later(120).ranges == one(120, 300)
    assert later(300).ranges == one(300, 300)
    assert plans().next_run({"payments": {0: 7}}, is_first=False).ranges == one(0, 300)
    bounds: Any = {"starting": PartitionOffsets({("orders", 0): 50})}
    assert first(**bounds).ranges == one(50, 300)
    assert later(120, **bounds).ranges == one(120, 300)


def test_a_start_that_the_tier_has_not_reached_is_waited_for() -> None:
    """Given a first run that starts behind the tier's end, then it is empty, and begins no earlier later on."""
    for starting in (OffsetEdge.LATEST, PartitionOffsets({("orders", 0): 500})):
        assert first(starting=starting).ranges == one(500, 500)
    assert later(500).ranges == one(500, 500)
    assert first(starting=OffsetEdge.TIERED).ranges == one(300, 300)


def test_an_end_caps_a_run_and_takes_none_back() -> None:
    bounds: Any = {"ending": PartitionOffsets({("orders", 0): 150})}
    assert first(**bounds).ranges == one(0, 150)
    assert later(120, **bounds).ranges == one(120, 150)
    assert later(200, **bounds).ranges == one(200, 200)


def test_offsets_that_retention_took_are_an_error_or_are_told() -> None:
    with pytest.raises(OffsetBoundsError, match=r"orders-0: offsets 40 to 99 .* --option failOnDataLoss=false"):
        later(40, AFTER_RETENTION)
    planned = later(40, AFTER_RETENTION, fails_on_data_loss=False)
    assert (planned.ranges, planned.lost) == (one(100, 300), one(40, 100))
    assert later(100, AFTER_RETENTION).lost == ()


def test_what_a_cut_off_run_can_read_no_more_is_an_error_or_is_told() -> None:
    left = [*one(20, 60), *one(90, 120), *one(150, 200)]
    with pytest.raises(OffsetBoundsError) as refused:
        plans(AFTER_RETENTION).lost(left)
    assert len(refused.value.problems) == 2
    assert "orders-0: offsets 90 to 99 are below the log start 100; --option failOnData" in refused.value.problems[1]
    assert plans(AFTER_RETENTION, fails_on_data_loss=False).lost(left) == [*one(20, 60), *one(90, 100)]
    assert plans(AFTER_RETENTION).lost([]) == []


def test_steps_are_no_more_than_offsets_and_no_more_than_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert first(bytes_per_step=1).steps_count == 300
    monkeypatch.setattr("pipeline.jobs.backfill_range.STEPS_MAX", 299)
    with pytest.raises(BackfillRefusedError, match="300 steps, 299 at most"):
        first(bytes_per_step=1)


def test_a_hole_of_the_tier_is_the_tier_sources_trouble_only() -> None:
    view = replace(VIEW, segments=(VIEW.segments[0], VIEW.segments[2]), holes=(Hole(100, 200),))
    assert first(view, reads_kafka=True).ranges == one(0, 500)
    with pytest.raises(OffsetBoundsError, match="100 to 199"):
        first(view)
