"""Offset indexes rebuilt from the log: the very bytes that Kafka would have written, or a clear error."""

import struct
from dataclasses import replace

import pytest

from storage.errors import CorruptObjectError, RetriableRemoteStorageError
from storage.indexes import rebuild
from storage.indexes.rebuild import rebuild_offset_index, scan_headers
from storage.model import RemoteLogSegmentMetadata
from storage.remote_storage_manager import OpenedSegment
from tests.support.scripted_store import ScriptedStore
from tests.support.segments import SyntheticSegment, build_segment, data_batch, filled_segment, metadata_of
from tests.support.tier import PARTITION, MemoryStore

SEGMENT = filled_segment(500, batch_count=40)


def stored(
    segment: SyntheticSegment, *, chunk_bytes: int = 1
) -> tuple[ScriptedStore, OpenedSegment, RemoteLogSegmentMetadata]:
    metadata = metadata_of(PARTITION, segment)
    store = ScriptedStore(MemoryStore({metadata.segment_id.id: segment.objects()}, chunk_bytes))
    return store, store.open_log_segment(metadata), metadata


def test_the_index_is_rebuilt_byte_for_byte() -> None:
    store, opened, metadata = stored(SEGMENT)
    assert len(SEGMENT.offset_index) > 8
    sent: list[int] = []
    assert rebuild_offset_index(opened, metadata, on_get=sent.append) == SEGMENT.offset_index
    assert store.log_fetches() == [(0, len(SEGMENT.log) - 1)]
    assert sent == [len(SEGMENT.log)]


@pytest.mark.parametrize("piece_bytes", [1, 60, 61, 100, 4096, 10**6])
@pytest.mark.parametrize("range_bytes", [61, 100, 1000, 4096, len(SEGMENT.log)])
def test_ranges_and_pieces_may_cut_headers_and_batches_anywhere(
    monkeypatch: pytest.MonkeyPatch, range_bytes: int, piece_bytes: int
) -> None:
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


@pytest.mark.parametrize("chunk_bytes", [7, 500, 3000, 30_000, 10**6])
def test_ranges_are_of_whole_chunks(monkeypatch: pytest.MonkeyPatch, chunk_bytes: int) -> None:
    monkeypatch.setattr(rebuild, "SCAN_RANGE_BYTES", 5000)
    store, opened, metadata = stored(SEGMENT, chunk_bytes=chunk_bytes)
    assert rebuild_offset_index(opened, metadata) == SEGMENT.offset_index
    for _, end in store.log_fetches():
        assert end is not None
        assert (end + 1) % chunk_bytes == 0 or end + 1 == len(SEGMENT.log)


def test_a_range_inside_one_batch_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebuild, "SCAN_RANGE_BYTES", 1000)
    segment = build_segment([data_batch(0), data_batch(1, value_bytes=20_000), data_batch(2)])
    store, opened, metadata = stored(segment)
    assert [position for position, _ in scan_headers(opened, metadata)] == list(segment.batch_positions)
    assert [start for start, _ in store.log_fetches()] == [0, segment.batch_positions[2]]


def test_a_segment_of_one_batch_has_an_empty_index() -> None:
    _, opened, metadata = stored(build_segment([data_batch(3)]))
    assert rebuild_offset_index(opened, metadata) == b""


def test_a_header_that_makes_no_sense_is_named() -> None:
    position = SEGMENT.batch_positions[7]
    log = bytearray(SEGMENT.log)
    struct.pack_into(">i", log, position + 8, 5)  # a length below any batch's
    _, opened, metadata = stored(replace(SEGMENT, log=bytes(log)))
    with pytest.raises(CorruptObjectError) as caught:
        rebuild_offset_index(opened, metadata)
    assert f"segment {metadata.segment_id}: batch at {position}" in str(caught.value)


@pytest.mark.parametrize(
    "size_bytes", [0, 10, SEGMENT.batch_positions[5] + 60, SEGMENT.batch_positions[-1], len(SEGMENT.log) - 1]
)
def test_a_log_shorter_than_its_metadata_says_is_corrupt(size_bytes: int) -> None:
    store, opened, metadata = stored(SEGMENT)
    store.cut_log(metadata, size_bytes)
    with pytest.raises(CorruptObjectError, match="is truncated") as caught:
        rebuild_offset_index(opened, metadata)
    assert str(metadata.segment_id) in str(caught.value)
    assert store.streams_open == 0


def test_a_header_that_the_metadata_cuts_is_corrupt() -> None:
    _, opened, metadata = stored(SEGMENT)
    metadata = replace(metadata, segment_size_bytes=SEGMENT.batch_positions[1] + 20)
    with pytest.raises(CorruptObjectError, match="do not hold a batch header"):
        rebuild_offset_index(opened, metadata)


def test_a_batch_that_reaches_beyond_the_segment_is_corrupt() -> None:
    _, opened, metadata = stored(SEGMENT)
    metadata = replace(metadata, segment_size_bytes=len(SEGMENT.log) - 1)
    with pytest.raises(CorruptObjectError, match="reach beyond the segment"):
        rebuild_offset_index(opened, metadata)


def test_offsets_that_do_not_ascend_are_corrupt() -> None:
    batches = [data_batch(offset, record_count=10, value_bytes=600) for offset in (0, 10, 20)]
    log = b"".join((batches[0], batches[2], batches[1]))
    _, opened, metadata = stored(replace(build_segment(batches), log=log))
    with pytest.raises(CorruptObjectError, match="cannot be indexed"):
        rebuild_offset_index(opened, metadata)


def test_the_stores_errors_pass_through() -> None:
    store, opened, metadata = stored(SEGMENT)
    store.fail(RetriableRemoteStorageError("503"))
    with pytest.raises(RetriableRemoteStorageError, match="503"):
        rebuild_offset_index(opened, metadata)
    store.break_body(RetriableRemoteStorageError("reset"), after_bytes=100)
    with pytest.raises(RetriableRemoteStorageError, match="reset"):
        rebuild_offset_index(opened, metadata)
    assert store.streams_open == 0
