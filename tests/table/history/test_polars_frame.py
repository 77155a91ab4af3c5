"""A lazy frame of Polars over a scan: what is known of its filter bounds the reading, and its rows are right."""

import datetime
from pathlib import Path
from typing import Any

import pytest

from table.history.predicate import bounds_of
from table.history.scan import Scan
from table.planning.bounds import Bounds
from table.planning.number_set import NumberSet
from tests.support.for_each import for_each
from tests.support.segments import filled_segment
from tests.support.table_tier import TableTier

polars = pytest.importorskip("polars")
OFFSET = polars.col("offset")
MOMENT = datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=datetime.UTC)


@pytest.fixture
def scan(tmp_path: Path) -> Scan:
    tier = TableTier(tmp_path)
    tier.add(*(filled_segment(base) for base in range(0, 800, 200)))
    return tier.scan()


@for_each(
    "expression, bounds",
    [
        (OFFSET >= 5, Bounds(offsets=NumberSet.between(5, None))),
        (polars.lit(5) > OFFSET, Bounds(offsets=NumberSet.between(None, 4))),
        (OFFSET.is_in([3, 9]), Bounds(offsets=NumberSet.of([3, 9]))),
        (~OFFSET.is_between(3, 5, closed="left"), Bounds(offsets=~NumberSet.between(3, 4))),
        (
            (polars.col("partition") == 1) & (polars.col("topic") == "a"),
            Bounds(topics=frozenset("a"), partitions=NumberSet.of([1])),
        ),
        ((OFFSET == 1) | (OFFSET == 2), Bounds(offsets=NumberSet.of([1, 2]))),
        (polars.col("timestamp") >= MOMENT, Bounds(timestamps_ms=NumberSet.between(1000, None))),
        (OFFSET % 2 == 1, Bounds()),
        (OFFSET.is_null() | (polars.col("partition") < OFFSET), Bounds()),
        ((OFFSET > 3) & polars.col("key").bin.contains(b"x"), Bounds(offsets=NumberSet.between(4, None))),
    ],
)
def test_what_is_known_of_a_filter_bounds_the_reading(expression: Any, bounds: Bounds) -> None:
    from table.history.polars_frame import predicate_of

    assert bounds_of(predicate_of(expression)) == bounds


def test_its_rows_are_right_whatever_is_handed_on(scan: Scan) -> None:
    frame = scan.to_polars()
    assert frame.filter(OFFSET >= 795).select("offset").collect()["offset"].to_list() == [*range(795, 800)]
    odd = frame.filter((OFFSET % 2 == 1) & OFFSET.is_in([3, 4, 601])).select("partition", "offset").collect()
    assert odd["offset"].to_list() == [3, 601]
    assert frame.head(3).filter(OFFSET >= 2).collect().height == 1
    assert frame.filter(OFFSET >= 2).head(3).collect()["offset"].to_list() == [2, 3, 4]
    assert frame.select(polars.len()).collect().item() == 800
    assert frame.collect_schema() == frame.collect().schema
