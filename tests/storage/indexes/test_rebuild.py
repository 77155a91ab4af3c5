"""Offset indexes rebuilt from the log: the very bytes that Kafka would have written, or a clear error."""

import struct
from dataclasses import replace

import pytest

from storage.errors import CorruptObjectError, RetriableRemoteStorageError
from storage.indexes import rebuild
from storage.indexes.rebuild import rebuild_offset_index, scan_batches
from storage.model import RemoteLogSegmentMetadata
from tests.support.scripted_store import ScriptedStore
from tests.support.segments import SyntheticSegment, build_segment, data_batch, filled_segment, metadata_of
from tests.support.tier import PARTITION, MemoryStore

SEGMENT = filled_segment(500, batch_count=40)


def stored(segment: SyntheticSegment) -> tuple[ScriptedStore, RemoteLogSegmentMetadata]:
    metadata = metadata_of(PARTITION, segment)
    return ScriptedStore(MemoryStore({metadata.segment_id.id: segment.objects()})), metadata


def test_the_index_is_rebuilt_byte_for_byte() -> None:
    store, metadata = stored(SEGMENT)
    assert len(SEGMENT.offset_index) > 8
    assert rebuild_offset_index(store, metadata) == SEGMENT.offset_index
    assert len(store.log_fetches()) == 1


@pytest.mark.parametrize("range_bytes", [61, 100, 1000, 4096, len(SEGMENT.log)])
def test_ranges_may_cut_headers_and_batches_anywhere(monkeypatch: pytest.MonkeyPatch, range_bytes: int) -> None:
    monkeypatch.setattr(rebuild, "SCAN_RANGE_BYTES", range_bytes)
    store, metadata = stored(SEGMENT)
    expected = [(position, 500 + 10 * number + 9) for number, position in enumerate(SEGMENT.batch_positions)]
    assert list(scan_batches(store, metadata)) == expected
    for start, end in store.log_fetches():
        assert end is not None
        assert end - start + 1 == range_bytes


def test_a_segment_of_one_batch_has_an_empty_index() -> None:
    store, metadata = stored(build_segment([data_batch(3)]))
    assert rebuild_offset_index(store, metadata) == b""


def test_a_header_that_makes_no_sense_is_named() -> None:
    position = SEGMENT.batch_positions[7]
    log = bytearray(SEGMENT.log)
    struct.pack_into(">i", log, position + 8, 5)  # a length below any batch's
    store, metadata = stored(replace(SEGMENT, log=bytes(log)))
    with pytest.raises(CorruptObjectError) as caught:
        rebuild_offset_index(store, metadata)
    assert f"segment {metadata.segment_id}, batch at {position}" in str(caught.value)


def test_a_log_without_its_last_records_still_has_all_headers() -> None:
    store, metadata = stored(SEGMENT)
    store.cut_log(metadata, len(SEGMENT.log) - 1)
    assert rebuild_offset_index(store, metadata) == SEGMENT.offset_index


@pytest.mark.parametrize("size_bytes", [0, 10, SEGMENT.batch_positions[5] + 60, SEGMENT.batch_positions[-1]])
def test_a_truncated_log_is_corrupt_when_a_header_is_gone(size_bytes: int) -> None:
    store, metadata = stored(SEGMENT)
    store.cut_log(metadata, size_bytes)
    with pytest.raises(CorruptObjectError, match="do not hold a batch header"):
        rebuild_offset_index(store, metadata)


def test_a_batch_that_reaches_beyond_the_segment_is_corrupt() -> None:
    store, metadata = stored(SEGMENT)
    metadata = replace(metadata, segment_size_bytes=len(SEGMENT.log) - 1)
    with pytest.raises(CorruptObjectError, match="reaches beyond its end"):
        rebuild_offset_index(store, metadata)


def test_offsets_that_do_not_ascend_are_corrupt() -> None:
    batches = [data_batch(offset, record_count=10, value_bytes=600) for offset in (0, 10, 20)]
    log = b"".join((batches[0], batches[2], batches[1]))
    store, metadata = stored(replace(build_segment(batches), log=log))
    with pytest.raises(CorruptObjectError, match="cannot be indexed"):
        rebuild_offset_index(store, metadata)


def test_the_stores_errors_pass_through() -> None:
    store, metadata = stored(SEGMENT)
    store.fail(RetriableRemoteStorageError("503"))
    with pytest.raises(RetriableRemoteStorageError):
        rebuild_offset_index(store, metadata)
