"""Offset index: floor search on offsets, ceiling search on positions, and bytes that are refused."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import CorruptObjectError
from storage.indexes.offset_index import OffsetIndex, build_offset_index, encode_offset_index

BASE_OFFSET = 6000
# What a broker wrote for the segment [6000, 6819] (docs/kafka-tier.md#offset-index).
BROKER_ENTRIES = [(6323, 104733), (6447, 169780), (6571, 234937), (6695, 300094), (6819, 365251)]
BROKER_BYTES = bytes.fromhex(
    "00000143 0001991d 000001bf 00029734 0000023b 000395b9 000002b7 0004943e 00000333 000592c3"
)


@st.composite
def index_entries(draw: st.DrawFn) -> list[tuple[int, int]]:
    """Ascending (offset, position) pairs above BASE_OFFSET."""
    relative_offsets = sorted(draw(st.sets(st.integers(0, 2**31 - 1), max_size=60)))
    positions = draw(st.sets(st.integers(0, 2**31 - 1), min_size=len(relative_offsets), max_size=len(relative_offsets)))
    return [(BASE_OFFSET + o, p) for o, p in zip(relative_offsets, sorted(positions), strict=True)]


def test_entries_are_big_endian_pairs_of_relative_offset_and_position() -> None:
    assert encode_offset_index(BASE_OFFSET, BROKER_ENTRIES) == BROKER_BYTES


@pytest.mark.parametrize(
    ("offset", "found"),
    [
        (6000, (6000, 0)),
        (6322, (6000, 0)),
        (6323, (6323, 104733)),
        (6446, (6323, 104733)),
        (6819, (6819, 365251)),
        (2**62, (6819, 365251)),
        (0, (6000, 0)),
    ],
)
def test_lookup_gives_the_last_entry_at_or_below_the_offset(offset: int, found: tuple[int, int]) -> None:
    assert OffsetIndex(BROKER_BYTES, BASE_OFFSET).lookup(offset) == found


@pytest.mark.parametrize(
    ("position", "offset"),
    [(0, 6323), (104732, 6323), (104733, 6447), (104734, 6447), (365251, 6819), (365252, None), (2**40, None)],
)
def test_upper_bound_is_the_first_entry_at_or_beyond_the_end(position: int, offset: int | None) -> None:
    """A broker's list of aborted transactions showed it: an answer that ended at the first entry went by the second."""
    assert OffsetIndex(BROKER_BYTES, BASE_OFFSET).fetch_upper_bound_offset(position) == offset


@pytest.mark.parametrize(
    ("position", "found"),
    [(0, 0), (1, 104733), (104733, 104733), (104734, 169780), (365251, 365251), (365252, None), (2**40, None)],
)
def test_a_batch_start_is_the_logs_or_the_first_entrys_at_or_above(position: int, found: int | None) -> None:
    assert OffsetIndex(BROKER_BYTES, BASE_OFFSET).batch_start_at_or_above(position) == found


def test_an_answer_that_ends_at_the_only_entry_has_no_bound() -> None:
    index = OffsetIndex(encode_offset_index(BASE_OFFSET, [(BASE_OFFSET + 5, 100)]), BASE_OFFSET)
    assert [index.fetch_upper_bound_offset(position) for position in (99, 100, 101)] == [BASE_OFFSET + 5, None, None]


def test_an_empty_index_sends_every_search_to_the_start() -> None:
    index = OffsetIndex(b"", BASE_OFFSET)
    assert len(index) == 0
    assert index.lookup(9999) == (BASE_OFFSET, 0)
    assert index.fetch_upper_bound_offset(0) is None
    assert [index.batch_start_at_or_above(position) for position in (0, 1)] == [0, None]


@given(index_entries(), st.integers(BASE_OFFSET - 5, BASE_OFFSET + 2**31), st.integers(0, 2**31))
def test_searches_agree_with_a_scan(entries: list[tuple[int, int]], offset: int, position: int) -> None:
    index = OffsetIndex(encode_offset_index(BASE_OFFSET, entries), BASE_OFFSET)
    assert len(index) == len(entries)
    assert [index.lookup(entry_offset) for entry_offset, _ in entries] == entries
    assert index.lookup(offset) == max((e for e in entries if e[0] <= offset), default=(BASE_OFFSET, 0))
    beyond = [o for number, (o, p) in enumerate(entries) if p > position or (number and p == position)]
    assert index.fetch_upper_bound_offset(position) == min(beyond, default=None)
    starts = [0, *(p for _, p in entries)]
    assert index.batch_start_at_or_above(position) == min((p for p in starts if p >= position), default=None)


@given(st.binary(max_size=80))
def test_any_bytes_give_an_index_or_a_corrupt_object(data: bytes) -> None:
    try:
        index = OffsetIndex(data, 0)
    except CorruptObjectError:
        return
    assert len(index) * 8 == len(data)
    index.lookup(5)
    index.fetch_upper_bound_offset(5)


LONG = [(BASE_OFFSET + 3 * number, 5 * number) for number in range(1, 1200)]


@pytest.mark.parametrize("field", [0, 4], ids=["offset", "position"])
@pytest.mark.parametrize("number", [0, 1, 510, 511, 512, 513, 1023, 1024, 1197, 1198])
def test_a_fault_anywhere_in_a_long_index_is_seen_and_named(number: int, field: int) -> None:
    """Entries are compared some hundreds at a time, and each run with the first entry of the next."""
    good = encode_offset_index(BASE_OFFSET, LONG)
    assert OffsetIndex(good, BASE_OFFSET).lookup(LONG[number][0]) == LONG[number]
    at = 8 * number + field
    (value,) = struct.unpack_from(">i", good, at)
    bad = [-1, 2**31 - 1] if number < len(LONG) - 1 else [-1]
    if number:
        (before,) = struct.unpack_from(">i", good, at - 8)
        bad += [before, before - 1, 0]
    for wrong in bad:
        data = bytearray(good)
        struct.pack_into(">i", data, at, wrong)
        with pytest.raises(CorruptObjectError, match=r"does not ascend at byte|negative .* at byte"):
            OffsetIndex(bytes(data), BASE_OFFSET)
    assert value > 0


@pytest.mark.parametrize("cut", [cut for cut in range(1, 40) if cut % 8])
def test_a_cut_entry_is_corrupt(cut: int) -> None:
    with pytest.raises(CorruptObjectError, match=f"tier/segment: {cut} bytes is not a multiple of 8"):
        OffsetIndex(BROKER_BYTES[:cut], BASE_OFFSET, "tier/segment")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ((-1, 0), "x: negative relative offset at byte 0"),
        ((0, -1), "x: negative position at byte 4"),
        ((5, 10, 5, 20), "x: relative offset does not ascend at byte 8"),
        ((5, 10, 6, 10), "x: position does not ascend at byte 12"),
        ((5, 10, 6, 20, 4, 30), "x: relative offset does not ascend at byte 16"),
        ((0, 0, 0, 0), "x: relative offset does not ascend at byte 8"),  # a preallocated file that was not trimmed
    ],
)
def test_entries_that_do_not_ascend_are_corrupt(fields: tuple[int, ...], message: str) -> None:
    with pytest.raises(CorruptObjectError) as caught:
        OffsetIndex(struct.pack(f">{len(fields)}i", *fields), 0, "x")
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "entries", [[(5999, 10)], [(6001, 10), (6001, 20)], [(6001, 10), (6002, 10)], [(6000 + 2**31, 1)], [(6001, 2**31)]]
)
def test_what_an_index_cannot_hold_is_not_encoded(entries: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match="does not follow"):
        encode_offset_index(BASE_OFFSET, entries)


def test_a_rebuilt_index_has_an_entry_after_each_full_interval() -> None:
    batches = [(0, 6199), (104733, 6323), (169780, 6447), (234937, 6571), (300094, 6695), (365251, 6819)]
    assert build_offset_index(BASE_OFFSET, batches) == BROKER_BYTES


def test_an_interval_is_full_only_when_exceeded() -> None:
    batches = [(0, 0), (4096, 1), (4097, 2), (8193, 3), (8194, 4)]
    index = OffsetIndex(build_offset_index(0, batches, interval_bytes=4096), 0)
    assert [index.lookup(offset) for offset in range(5)] == [(0, 0), (0, 0), (2, 4097), (2, 4097), (4, 8194)]


def test_a_rebuilt_index_of_one_batch_is_empty() -> None:
    assert build_offset_index(0, [(0, 47)]) == b""


@pytest.mark.parametrize("batches", [[(0, 5), (5000, 9), (10000, 8)], [(0, 5), (2**31, 9)], [(5000, -1)]])
def test_batches_that_do_not_ascend_are_a_corrupt_log(batches: list[tuple[int, int]]) -> None:
    with pytest.raises(CorruptObjectError, match="cannot be indexed"):
        build_offset_index(0, batches)


@given(entries=index_entries(), position=st.integers(0, 2**31))
def test_entries_are_found_by_position(entries: list[tuple[int, int]], position: int) -> None:
    index = OffsetIndex(encode_offset_index(BASE_OFFSET, entries), BASE_OFFSET)

    assert index.position_at_or_below(position) == max((at for _, at in entries if at <= position), default=0)
    assert index.position_above(position) == min((at for _, at in entries if at > position), default=None)


@pytest.mark.parametrize(
    ("offset", "position"), [(6000, 169780), (6323, 169780), (6324, 234937), (6695, 365251), (6696, None), (7000, None)]
)
def test_the_entry_behind_the_one_that_stands_for_an_offset_is_behind_its_batch(
    offset: int, position: int | None
) -> None:
    assert OffsetIndex(BROKER_BYTES, BASE_OFFSET).position_after_offset(offset) == position
