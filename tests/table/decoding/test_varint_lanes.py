"""Varints side by side against the definition, one by one."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from table.decoding.varint_lanes import NO_END, PADDING_BYTES, overlapping_words, read_varints, zigzag

SIGNED = st.one_of(st.integers(-64, 63), st.integers(-(2**14), 2**14), st.integers(-(2**63), 2**63 - 1))


def encoded(value: int) -> bytes:
    raw = ((value << 1) ^ (value >> 63)) & (2**64 - 1)
    out = bytearray()
    while raw >= 0x80:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    return bytes([*out, raw])


def read(data: bytes, positions: list[int]) -> tuple[list[int], list[int]]:
    words = overlapping_words(np.frombuffer(data + bytes(PADDING_BYTES), np.uint8))
    raw, ends = read_varints(words, np.array(positions, np.int64))
    return zigzag(raw).tolist(), ends.tolist()


@given(
    st.lists(SIGNED, min_size=1, max_size=50),
    st.lists(st.integers(-64, 63), min_size=1),
    st.lists(st.integers(-(2**13), 2**13 - 1), min_size=1),
)
def test_every_number_is_read_where_it_is(any_size: list[int], ones: list[int], twos: list[int]) -> None:
    """Short ones alone are read in another way."""
    for values in (any_size, ones, twos):
        parts = [encoded(value) for value in values]
        ends = np.cumsum([len(part) for part in parts]).tolist()
        assert read(b"".join(parts), [0, *ends[:-1]]) == (values, ends)


def test_a_number_that_does_not_end_ends_nowhere_and_a_longer_form_is_read() -> None:
    endless = b"\xff" * 9 + b"\x01" + b"\xff" * 10 + b"\x02"
    assert read(endless, [0, 10, 20]) == ([-(2**63), -(2**63), 1], [10, NO_END, 21])
    assert read(b"\x82\x80\x00\x04", [0, 3]) == ([1, 2], [3, 4])
