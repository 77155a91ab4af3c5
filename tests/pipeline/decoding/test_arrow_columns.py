"""Ranges copied out of a buffer; whole columns are shown by the decoder's own tests."""

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from pipeline.decoding.arrow_columns import take_ranges


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
