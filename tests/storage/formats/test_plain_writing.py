"""Copies of plain objects that do not go as they should."""

from contextlib import suppress
from pathlib import Path

import pytest

from storage.errors import DeletionRefusedError, RemoteStorageError, StorageConfigError
from storage.formats.file_sources import put_segment_files
from storage.formats.local_tiered_storage import ROOT_DIRECTORY_NAME, LocalTieredStorage
from storage.formats.plain_objects import PlainObjects
from storage.object_store.local_file import PIECE_BYTES
from storage.object_store.upload_rate import UploadRate
from tests.support.for_each import for_each
from tests.support.memory_store import Killed, MemoryStore, MortalStore
from tests.support.scripted_object_store import ScriptedObjectStore, Verb
from tests.support.segments import filled_segment, metadata_of, segment_files
from tests.support.writing_tiers import PARTITION, copied

SEGMENT = filled_segment(100, batch_count=4)
METADATA = metadata_of(PARTITION, SEGMENT)


@for_each("error", [Killed(), RemoteStorageError("no more")])
def test_a_copy_that_ends_at_any_step_leaves_no_log_without_its_indexes(tmp_path: Path, error: BaseException) -> None:
    deadline, outcomes = 0, set()
    while True:
        deadline += 1
        store = MemoryStore()
        mortal = MortalStore(store, deadline, error)
        with suppress(type(error)):
            copied(PlainObjects({}, store=mortal), tmp_path, SEGMENT)
        found = {key.rpartition(".")[2]: content for key, content in store.objects.items()}
        outcomes.add("log" in found)
        assert "log" not in found or found == SEGMENT.objects()
        assert found.items() <= SEGMENT.objects().items(), "each object is whole"
        if mortal.steps < deadline:
            break
        copied(PlainObjects({}, store=store), tmp_path, SEGMENT)
        assert {key.rpartition(".")[2]: content for key, content in store.objects.items()} == SEGMENT.objects()
    assert outcomes == {False, True}


def test_a_store_that_lets_nobody_delete_takes_segments_without_a_transaction_index(tmp_path: Path) -> None:
    store = ScriptedObjectStore(MemoryStore())
    store.fail(DeletionRefusedError("no"), verb=Verb.DELETE, times=None)
    manager = PlainObjects({}, store=store)
    assert manager.fetch_log_segment(copied(manager, tmp_path, SEGMENT), 0) == SEGMENT.log
    assert not SEGMENT.transaction_index


@for_each("change_bytes", [-1, 1])
def test_a_log_of_another_size_than_its_metadata_says_is_refused(tmp_path: Path, change_bytes: int) -> None:
    store = MemoryStore()
    (tmp_path / "tier" / ROOT_DIRECTORY_NAME).mkdir(parents=True, exist_ok=True)
    managers = [PlainObjects({}, store=store), LocalTieredStorage({"dir": str(tmp_path / "tier")})]
    data = segment_files(tmp_path / "local", SEGMENT)
    data.log_segment.write_bytes((SEGMENT.log + b"x")[: len(SEGMENT.log) + change_bytes])
    for manager in managers:
        with pytest.raises(RemoteStorageError, match=r"the local log has \d+ bytes, its metadata says"):
            manager.copy_log_segment_data(METADATA, data)
        assert list(manager.list_objects()) == []


def test_a_paced_copy_takes_the_time_of_all_its_bytes(tmp_path: Path) -> None:
    waited: list[float] = []
    rate = UploadRate(PIECE_BYTES, clock=lambda: sum(waited), wait=waited.append)
    log = tmp_path / "log"
    log.write_bytes(bytes(5 * PIECE_BYTES))
    store = MemoryStore()
    put_segment_files(store, {"index": bytes(PIECE_BYTES // 2), "snapshot": None, "log": log}, rate)
    assert sum(waited) == pytest.approx(5.5, rel=0.05)
    assert {key: len(content) for key, content in store.objects.items()} == {
        "index": PIECE_BYTES // 2,
        "log": 5 * PIECE_BYTES,
    }


@for_each("text", ["0", "1048575", "1000000001", "fast"])
def test_a_rate_out_of_range_is_named(text: str) -> None:
    with pytest.raises(StorageConfigError, match=r"rsm\.config\.upload\.rate\.limit\.bytes\.per\.second is '"):
        PlainObjects({"upload.rate.limit.bytes.per.second": text}, store=MemoryStore())
