"""Columns out of a buffer: copies of ranges, constants, and batches without columns."""

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from pipeline.decoding.arrow_columns import ColumnBuilder, take_ranges
from pipeline.decoding.record_fields import RecordTable


@given(st.lists(st.tuples(st.integers(0, 5), st.none() | st.binary(max_size=9))))
def test_ranges_are_copied_with_gaps_and_nulls_between_them(parts: list[tuple[int, bytes | None]]) -> None:
    data, starts, sizes = bytearray(), [], []
    for gap, value in parts:
        data += b"-" * gap
        starts.append(len(data))
        sizes.append(-1 if value is None else len(value))
        data += value or b""
    buffer = np.frombuffer(bytes(data) + b"\0", np.uint8).copy()
    found = take_ranges(buffer, np.array(starts, np.int64), np.array(sizes, np.int64))
    # What Arrow holds is its own.
    buffer[:] = 0
    found.validate(full=True)
    assert found.type == pa.binary()
    assert found.to_pylist() == [value for _, value in parts]


def plain_table(rows: int) -> RecordTable:
    zeros = np.zeros(rows, np.int64)
    return RecordTable(
        data=np.zeros(1, np.uint8),
        lane=zeros,
        offset=np.arange(rows),
        size=zeros,
        timestamp=np.arange(rows) - 1,
        timestamp_type=zeros,
        key=None,
        value=None,
        headers=None,
    )


def test_constants_follow_the_number_of_rows_down_and_up() -> None:
    builder = ColumnBuilder(("topic", "partition", "timestamp"), "orders", 7)
    for rows in (3, 1, 5, 0):
        batch = builder.build(plain_table(rows), slice(0, rows), rows)
        batch.validate(full=True)
        assert batch.column("topic").to_pylist() == ["orders"] * rows
        assert batch.column("partition").to_pylist() == [7] * rows
        assert batch.column("timestamp").cast(pa.int64()).to_pylist() == [1000 * n - 1000 for n in range(rows)]


def test_without_columns_the_rows_are_still_counted() -> None:
    batch = ColumnBuilder((), "orders", 7).build(plain_table(4), slice(1, 4), 3)
    assert (batch.num_rows, batch.num_columns) == (3, 0)


def test_rows_may_be_chosen_one_by_one() -> None:
    batch = ColumnBuilder(("offset",), "orders", 7).build(plain_table(9), np.array([2, 3, 8]), 3)
    assert batch.column("offset").to_pylist() == [2, 3, 8]
