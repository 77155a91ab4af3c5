"""Offset index: floor search on offsets, ceiling search on positions, and bytes that are refused; and one rebuilt from
the log: the very bytes that Kafka would have written, or a clear error."""

import itertools
import struct
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import CorruptObjectError
from storage.indexes.offset_index import OffsetIndex, build_offset_index, encode_offset_index
from storage.log import rebuilt_offset_index as rebuild
from storage.log.rebuilt_offset_index import rebuild_offset_index, scan_headers
from storage.model import RemoteLogSegmentMetadata
from storage.remote_storage_manager import OpenedSegment
from tests.support.cases import case
from tests.support.scripted_store import ScriptedStore
from tests.support.segments import SyntheticSegment, build_segment, data_batch, filled_segment, metadata_of
from tests.support.tier import PARTITION, MemoryStore

BASE_OFFSET = 6000

# What a broker wrote for the segment [6000, 6819] (docs/kafka-tier.md#indexes).
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


def test_searches_in_what_a_broker_wrote() -> None:
    assert encode_offset_index(BASE_OFFSET, BROKER_ENTRIES) == BROKER_BYTES
    index = OffsetIndex(BROKER_BYTES, BASE_OFFSET)
    # A broker's list of aborted transactions showed it: an answer that ended at the first entry went by the second.
    for position, offset in (
        *((0, 6323), (104732, 6323), (104733, 6447), (104734, 6447), (365251, 6819)),
        *((365252, None), (2**40, None)),
    ):
        assert index.fetch_upper_bound_offset(position) == offset, position
    # The entry behind the one for an offset is behind its batch.
    for offset, after in (
        *((6000, 169780), (6323, 169780), (6324, 234937), (6695, 365251)),
        *((6696, None), (7000, None)),
    ):
        assert index.position_after_offset(offset) == after, offset


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
    assert index.position_at_or_below(position) == max((at for _, at in entries if at <= position), default=0)
    assert index.position_above(position) == min((at for _, at in entries if at > position), default=None)


LONG = [(BASE_OFFSET + 3 * number, 5 * number) for number in range(1, 1200)]


def test_a_fault_anywhere_in_a_long_index_is_seen_and_named() -> None:
    """Entries are compared some hundreds at a time, and each run with the first entry of the next."""
    for field, number in itertools.product([0, 4], [0, 1, 510, 511, 512, 513, 1023, 1024, 1197, 1198]):
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
            with (
                case(field, number),
                pytest.raises(CorruptObjectError, match=r"does not ascend at byte|negative .* at byte"),
            ):
                OffsetIndex(bytes(data), BASE_OFFSET)
        assert value > 0


def test_a_cut_entry_is_corrupt() -> None:
    for cut in [cut for cut in range(1, 40) if cut % 8]:
        with pytest.raises(CorruptObjectError, match=f"tier/segment: {cut} bytes is not a multiple of 8"):
            OffsetIndex(BROKER_BYTES[:cut], BASE_OFFSET, "tier/segment")


def test_entries_that_do_not_ascend_are_corrupt() -> None:
    for fields, message in [
        ((-1, 0), "x: negative relative offset at byte 0"),
        ((0, -1), "x: negative position at byte 4"),
        ((5, 10, 5, 20), "x: relative offset does not ascend at byte 8"),
        ((5, 10, 6, 10), "x: position does not ascend at byte 12"),
        ((5, 10, 6, 20, 4, 30), "x: relative offset does not ascend at byte 16"),
        ((0, 0, 0, 0), "x: relative offset does not ascend at byte 8"),  # a preallocated file that was not trimmed
    ]:
        with case(fields, message), pytest.raises(CorruptObjectError) as caught:
            OffsetIndex(struct.pack(f">{len(fields)}i", *fields), 0, "x")
        assert str(caught.value) == message


def test_what_an_index_cannot_hold_is_not_encoded() -> None:
    for entries in [
        [(5999, 10)],
        [(6001, 10), (6001, 20)],
        [(6001, 10), (6002, 10)],
        [(6000 + 2**31, 1)],
        [(6001, 2**31)],
    ]:
        with case(entries), pytest.raises(ValueError, match="does not follow"):
            encode_offset_index(BASE_OFFSET, entries)


def test_a_rebuilt_index_has_an_entry_after_each_full_interval() -> None:
    batches = [(0, 6199), (104733, 6323), (169780, 6447), (234937, 6571), (300094, 6695), (365251, 6819)]
    assert build_offset_index(BASE_OFFSET, batches) == BROKER_BYTES
    batches = [(0, 0), (4096, 1), (4097, 2), (8193, 3), (8194, 4)]  # full only when it is exceeded
    index = OffsetIndex(build_offset_index(0, batches, interval_bytes=4096), 0)
    assert [index.lookup(offset) for offset in range(5)] == [(0, 0), (0, 0), (2, 4097), (2, 4097), (4, 8194)]
    assert build_offset_index(0, [(0, 47)]) == b""


def test_batches_that_do_not_ascend_are_a_corrupt_log() -> None:
    for batches in [[(0, 5), (5000, 9), (10000, 8)], [(0, 5), (2**31, 9)], [(5000, -1)]]:
        with case(batches), pytest.raises(CorruptObjectError, match="cannot be indexed"):
            build_offset_index(0, batches)


SEGMENT = filled_segment(500, batch_count=40)


def stored(segment: SyntheticSegment) -> tuple[ScriptedStore, OpenedSegment, RemoteLogSegmentMetadata]:
    metadata = metadata_of(PARTITION, segment)
    store = ScriptedStore(MemoryStore({metadata.segment_id.id: segment.objects()}))
    return store, store.open_log_segment(metadata), metadata


def test_the_index_is_rebuilt_byte_for_byte() -> None:
    store, opened, metadata = stored(SEGMENT)
    assert len(SEGMENT.offset_index) > 8
    sent: list[int] = []
    assert rebuild_offset_index(opened, metadata, on_get=sent.append) == SEGMENT.offset_index
    assert store.log_fetches() == [(0, len(SEGMENT.log) - 1)]
    assert sent == [len(SEGMENT.log)]
    _, opened, metadata = stored(build_segment([data_batch(3)]))
    assert rebuild_offset_index(opened, metadata) == b"", "of one batch"


def test_ranges_and_pieces_may_cut_headers_and_batches_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    for piece_bytes, range_bytes in itertools.product(
        [1, 60, 61, 100, 4096, 10**6], [61, 100, 1000, 4096, len(SEGMENT.log)]
    ):
        monkeypatch.setattr(rebuild, "SCAN_RANGE_BYTES", range_bytes)
        monkeypatch.setattr(rebuild, "SCAN_PIECE_BYTES", piece_bytes)
        store, opened, metadata = stored(SEGMENT)
        expected = [(position, 500 + 10 * number + 9) for number, position in enumerate(SEGMENT.batch_positions)]
        found = [(position, header.last_offset) for position, header in scan_headers(opened, metadata)]
        assert found == expected
        asked_to = 0
        for start, end in store.log_fetches():
            assert end is not None
            assert asked_to <= start <= end < start + range_bytes, "in order, no byte twice"
            asked_to = end + 1
        assert store.streams_open == 0


def test_a_log_that_cannot_be_indexed_is_corrupt() -> None:
    at = SEGMENT.batch_positions[7]
    log = bytearray(SEGMENT.log)
    struct.pack_into(">i", log, at + 8, 5)  # a length below any batch's
    batches = [data_batch(offset, record_count=10, value_bytes=600) for offset in (0, 10, 20)]
    descending = replace(build_segment(batches), log=b"".join((batches[0], batches[2], batches[1])))
    for segment, size_bytes, told in (
        (replace(SEGMENT, log=bytes(log)), len(log), rf"segment orders-0 \(.*: batch at {at}"),
        (SEGMENT, SEGMENT.batch_positions[1] + 20, "do not hold a batch header"),
        (SEGMENT, len(SEGMENT.log) - 1, "reach beyond the segment"),
        (descending, len(descending.log), "cannot be indexed"),
    ):
        _, opened, metadata = stored(segment)
        with pytest.raises(CorruptObjectError, match=told):
            rebuild_offset_index(opened, replace(metadata, segment_size_bytes=size_bytes))


def test_a_log_shorter_than_its_metadata_says_is_corrupt() -> None:
    for size_bytes in [0, 10, SEGMENT.batch_positions[5] + 60, SEGMENT.batch_positions[-1], len(SEGMENT.log) - 1]:
        store, opened, metadata = stored(SEGMENT)
        store.cut_log(metadata, size_bytes)
        with case(size_bytes), pytest.raises(CorruptObjectError, match="is truncated") as caught:
            rebuild_offset_index(opened, metadata)
        assert str(metadata.segment_id) in str(caught.value)
        assert store.streams_open == 0
