"""What a backfill finds to read: the tier's end or the log's, bounds, and how many bytes that may be."""

from dataclasses import dataclass, replace
from typing import Any, cast

import pytest

from pipeline.driver import Tier
from pipeline.jobs.backfill_plan import OffsetRange
from pipeline.jobs.backfill_range import BYTES_PER_OFFSET, find_range, range_options
from pipeline.planning.offset_bounds import OffsetBoundsError
from pipeline.planning.partition_view import OffsetRange as Hole
from pipeline.planning.partition_view import PartitionView, ServedSegment
from tests.support.fake_kafka import FakeKafka
from tests.support.metadata_records import named_partition, started

SEGMENT_BYTES = 6000
VIEW = PartitionView(
    partition=named_partition("orders", 0),
    log_start_offset=0,
    end_offset=500,
    segments=tuple(
        ServedSegment(
            replace(started(f"{first}", first, first + 99), segment_size_bytes=SEGMENT_BYTES), first, first + 100
        )
        for first in (0, 100, 200)
    ),
)


@dataclass
class FakeView:
    views: list[PartitionView]

    def partitions(self, *_: object) -> list[PartitionView]:
        return self.views


def found(view: PartitionView = VIEW, *, source: str = "tidegate", reads_kafka: bool = False, **bounds: str) -> Any:
    kafka = FakeKafka()
    kafka.add(1, "a")
    kafka.add_log(view.partition, end_offset=view.end_offset)
    tier = Tier(view=cast(Any, FakeView([view])), client=kafka.client(), **_unused())
    options = range_options("f", "orders", reads_kafka=reads_kafka, isolation="read_uncommitted", bounds=bounds)
    return find_range(tier, options, source=source)


def _unused() -> dict[str, Any]:
    return {name: None for name in Tier.__slots__ if name not in ("view", "client")}


def test_the_tier_source_ends_with_the_tier() -> None:
    range_ = found()
    assert range_.ranges == (OffsetRange(0, 0, 300),)
    assert range_.bytes_estimated == 3 * SEGMENT_BYTES


@pytest.mark.parametrize("source", ["tidegate", "kafka"])
def test_what_reads_kafka_ends_with_the_log(source: str) -> None:
    """Given 300 offsets of 60 bytes in the tier, when 200 more are read, then they count as much."""
    range_ = found(source=source, reads_kafka=True)
    assert range_.ranges == (OffsetRange(0, 0, 500),)
    assert range_.bytes_estimated == 3 * SEGMENT_BYTES + 200 * 60


def test_bounds_are_kept() -> None:
    range_ = found(startingOffsets='{"orders":{"0":50}}', endingOffsets='{"orders":{"0":150}}')
    assert range_.ranges == (OffsetRange(0, 50, 150),)
    assert range_.bytes_estimated == SEGMENT_BYTES


def test_without_a_tier_sizes_are_guessed() -> None:
    range_ = found(replace(VIEW, segments=()), source="kafka", reads_kafka=True)
    assert range_.bytes_estimated == 500 * BYTES_PER_OFFSET


def test_a_hole_of_the_tier_is_the_tier_sources_trouble_only() -> None:
    view = replace(VIEW, segments=(VIEW.segments[0], VIEW.segments[2]), holes=(Hole(100, 200),))
    assert found(view, source="kafka", reads_kafka=True).ranges == (OffsetRange(0, 0, 500),)
    with pytest.raises(OffsetBoundsError, match="100 to 199"):
        found(view)
