"""The scripted store is an honest RemoteStorageManager until it is told otherwise, and then exactly that."""

from contextlib import closing
from pathlib import Path

import pytest

from storage.errors import CorruptObjectError, RemoteResourceNotFoundError, RetriableRemoteStorageError
from storage.formats.local_tiered_storage import ROOT_DIRECTORY_NAME, LocalTieredStorage
from storage.model import IndexType, RemoteLogSegmentMetadata
from storage.remote_storage_manager import OpenedSegment
from tests.contract.remote_storage_manager import OpenManager, RemoteStorageManagerContract
from tests.support.scripted_store import ScriptedStore
from tests.support.segments import filled_segment, metadata_of
from tests.support.tier import PARTITION, MemoryStore

SEGMENT = filled_segment(0)
LOG = SEGMENT.log
RESET = RetriableRemoteStorageError("reset")


class TestScriptedStore(RemoteStorageManagerContract):
    @pytest.fixture
    def open_manager(self, tmp_path: Path) -> OpenManager:
        (tmp_path / "tier" / ROOT_DIRECTORY_NAME).mkdir(parents=True)
        return lambda: ScriptedStore(LocalTieredStorage({"dir": str(tmp_path / "tier")}))

    @pytest.fixture
    def open_elsewhere(self, tmp_path: Path) -> OpenManager:
        return lambda: ScriptedStore(LocalTieredStorage({"dir": str(tmp_path / "another tier")}))


@pytest.fixture
def metadata() -> RemoteLogSegmentMetadata:
    return metadata_of(PARTITION, SEGMENT)


@pytest.fixture
def store(metadata: RemoteLogSegmentMetadata) -> ScriptedStore:
    return ScriptedStore(MemoryStore({metadata.segment_id.id: SEGMENT.objects()}, chunk_bytes=1000))


@pytest.fixture
def opened(store: ScriptedStore, metadata: RemoteLogSegmentMetadata) -> OpenedSegment:
    return store.open_log_segment(metadata)


def read(opened: OpenedSegment, start: int, end: int) -> bytes:
    with closing(opened.open_stream(start, end)) as stream:
        return bytes(stream.read(end - start))


def test_openings_streams_and_indexes_are_counted_apart(
    store: ScriptedStore, metadata: RemoteLogSegmentMetadata, opened: OpenedSegment
) -> None:
    stream = opened.open_stream(10, 20)
    opened.fetch_index(IndexType.OFFSET)
    store.fetch_log_segment(metadata, 30, 39)
    assert (store.opens(), store.opens(metadata), store.index_fetches()) == (1, 1, 1)
    assert store.log_fetches() == [(10, 19), (30, 39)]
    assert store.streams_open == 1
    stream.close()
    stream.close()
    assert store.streams_open == 0


def test_with_chunks_an_absent_log_is_found_out_when_it_is_opened(metadata: RemoteLogSegmentMetadata) -> None:
    with pytest.raises(RemoteResourceNotFoundError):
        MemoryStore(chunk_bytes=1000).open_log_segment(metadata)
    with pytest.raises(RemoteResourceNotFoundError):
        MemoryStore().open_log_segment(metadata).open_stream(0, 1)


def test_a_truncated_stream_gives_what_is_there_and_then_is_corrupt(
    store: ScriptedStore, metadata: RemoteLogSegmentMetadata, opened: OpenedSegment
) -> None:
    store.cut_log(metadata, 115)
    with closing(opened.open_stream(100, 130)) as stream:
        assert stream.read(10) == LOG[100:110]
        with pytest.raises(CorruptObjectError, match=f"bytes 110 to 129 of {len(LOG)} wanted, 5 there"):
            stream.read(20)


def test_a_body_breaks_where_it_is_told(store: ScriptedStore, opened: OpenedSegment) -> None:
    store.break_body(RESET, after_bytes=15)
    with closing(opened.open_stream(100, 130)) as stream:
        assert stream.read(15) == LOG[100:115]
        with pytest.raises(RetriableRemoteStorageError):
            stream.read(1)
    assert read(opened, 100, 130) == LOG[100:130]
