"""Time index: floor search on timestamps, and bytes that are refused."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import CorruptObjectError
from storage.indexes.time_index import TimeIndex
from tests.support.index_writer import build_time_index, encode_time_index

BASE_OFFSET = 6000
# What a broker wrote for the segment [6000, 6819], first two entries (docs/kafka-tier.md#indexes).
BROKER_ENTRIES = [(1700000020123, 6323), (1700000020247, 6447)]
BROKER_BYTES = bytes.fromhex("0000018bcfe5b69b 00000143 0000018bcfe5b717 000001bf")


@st.composite
def index_entries(draw: st.DrawFn) -> list[tuple[int, int]]:
    """(timestamp, offset) pairs: timestamps ascend strictly, offsets may repeat."""
    timestamps = sorted(draw(st.sets(st.integers(0, 2**63 - 1), max_size=40)))
    offsets = draw(st.lists(st.integers(0, 2**31 - 1), min_size=len(timestamps), max_size=len(timestamps)))
    return [(t, BASE_OFFSET + o) for t, o in zip(timestamps, sorted(offsets), strict=True)]


def test_lookup_gives_the_last_entry_at_or_below_the_timestamp() -> None:
    assert encode_time_index(BASE_OFFSET, BROKER_ENTRIES) == BROKER_BYTES
    index, (first, second) = TimeIndex(BROKER_BYTES, BASE_OFFSET), BROKER_ENTRIES
    times = (0, 1700000020122, 1700000020123, 1700000020246, 2**62)
    assert [index.lookup(time) for time in times] == [(-1, 6000), (-1, 6000), first, first, second]
    empty = TimeIndex(b"", BASE_OFFSET)
    assert (len(empty), empty.lookup(2**62)) == (0, (-1, BASE_OFFSET))


@given(index_entries(), st.integers(-1, 2**63 - 1))
def test_searches_agree_with_a_scan(entries: list[tuple[int, int]], timestamp_ms: int) -> None:
    index = TimeIndex(encode_time_index(BASE_OFFSET, entries), BASE_OFFSET)
    assert [index.lookup(entry_ms) for entry_ms, _ in entries] == entries
    above = [offset for entry_ms, offset in entries if entry_ms > timestamp_ms]
    assert index.first_above(timestamp_ms) == (above[0] if above else None)
    assert index.lookup(timestamp_ms) == max((e for e in entries if e[0] <= timestamp_ms), default=(-1, BASE_OFFSET))


def test_a_cut_entry_is_corrupt() -> None:
    for cut in [cut for cut in range(1, 24) if cut % 12]:
        with pytest.raises(CorruptObjectError, match=f"x: {cut} bytes is not a multiple of 12"):
            TimeIndex(BROKER_BYTES[:cut], BASE_OFFSET, "x")


def test_entries_that_do_not_ascend_are_corrupt() -> None:
    for entries in [
        [(-1, 0)],
        [(5, -1)],
        [(5, 0), (5, 1)],
        [(5, 3), (6, 2)],
        [(0, 0), (0, 0)],  # a preallocated file that was not trimmed
    ]:
        data = b"".join(struct.pack(">qi", *entry) for entry in entries)
        with pytest.raises(CorruptObjectError, match=f"x: entry does not ascend at byte {12 * (len(entries) - 1)}"):
            TimeIndex(data, 0, "x")


def test_a_rebuilt_index_keeps_the_newest_timestamp_and_where_it_first_appeared() -> None:
    # One abort marker, newer than all data behind it: a broker wrote exactly one entry for such a segment.
    batches = [(0, 6820, 1795237254573), (78, 6944, 1700000020743), (65235, 7068, 1700000020867)]
    assert build_time_index(6820, batches) == encode_time_index(6820, [(1795237254573, 6820)])
    batches = [(0, 9, 100), (5000, 19, 90), (10000, 29, 200), (10100, 39, 300)]
    assert build_time_index(0, batches) == encode_time_index(0, [(100, 9), (200, 29), (300, 39)]), "it ends with it"
    assert build_time_index(0, [(0, 9, -1), (5000, 19, -1)]) == b"", "records without timestamps"
