"""Bounds in time are exact over a topic that was CreateTime and LogAppendTime in turns."""

import datetime
from collections.abc import Callable
from operator import ge, gt, le, lt
from pathlib import Path

import crc32c
import pyarrow.compute as pc
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.segments import build_segment, data_batch
from tests.support.table_tier import TableTier

HOUR_MS = 3_600_000
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
Written = tuple[int, bool]
"""A batch of one record: its time in milliseconds, and whether the broker's clock told it."""
AN_OLD_ONE_BETWEEN: list[list[Written]] = [
    [(hour * HOUR_MS, True), (at, hour != 5), (hour * HOUR_MS, True)] for hour in range(8) for at in [hour * HOUR_MS]
]
AN_OLD_ONE_BETWEEN[5][1] = (HOUR_MS, False)


def tier_of(folder: Path, history: list[list[Written]]) -> TableTier:
    """A segment of each list."""
    tier, offset = TableTier(folder), 0
    for written in history:
        batches = [
            data_batch(offset + at, first_timestamp_ms=time_ms, is_append_time=is_append_time)
            for at, (time_ms, is_append_time) in enumerate(written)
        ]
        tier.add(build_segment(batches, interval_bytes=0))
        offset += len(written)
    return tier


def moment(time_ms: int) -> datetime.datetime:
    return EPOCH + datetime.timedelta(milliseconds=time_ms)


@example(AN_OLD_ONE_BETWEEN, 3 * HOUR_MS, lt)
@example(AN_OLD_ONE_BETWEEN, 6 * HOUR_MS, ge)
@given(
    st.lists(st.lists(st.tuples(st.integers(0, 9), st.booleans()), min_size=1, max_size=6), min_size=1, max_size=5),
    st.integers(0, 9),
    st.sampled_from([lt, le, gt, ge]),
)
def test_no_row_is_lost_whose_time_is_wanted(
    tmp_path_factory: pytest.TempPathFactory,
    history: list[list[Written]],
    bound_ms: int,
    is_wanted: Callable[[object, object], bool],
) -> None:
    """Failed before: `timestamp <` ended behind the first newer batch of the brokers' times."""
    tier = tier_of(tmp_path_factory.mktemp("tier"), history)
    times = [time_ms for written in history for time_ms, _ in written]
    rows = tier.scan(where=is_wanted(pc.field("timestamp"), moment(bound_ms)), columns=["offset"]).to_table()
    expected = [offset for offset, time_ms in enumerate(times) if is_wanted(time_ms, bound_ms)]
    assert rows.column("offset").to_pylist() == expected


def test_a_batch_of_the_brokers_time_that_is_too_new_is_not_decoded(tmp_path: Path) -> None:
    """Its header has the time of all its records; a producer's batch may have an older one in it."""
    tier = TableTier(tmp_path)
    batch = bytearray(data_batch(1, first_timestamp_ms=HOUR_MS, is_append_time=True))
    # No record in it can be read.
    batch[61:] = b"\xff" * (len(batch) - 61)
    batch[17:21] = crc32c.crc32c(batch[21:]).to_bytes(4, "big")
    tier.add(build_segment([data_batch(0, first_timestamp_ms=0), bytes(batch)]))
    assert tier.scan(where=pc.field("timestamp") < moment(HOUR_MS)).to_table().num_rows == 1
