"""The faults of the fault store; without any it keeps the contract (storage/object_store/test_object_stores.py)."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from storage.errors import RemoteResourceNotFoundError, RetriableRemoteStorageError
from storage.object_store.filesystem import FileSystemStore
from tests.contract.object_store import fetched
from tests.support.scripted_object_store import ScriptedObjectStore, Verb

CONTENT = bytes(range(100))


@pytest.fixture
def store(tmp_path: Path) -> ScriptedObjectStore:
    store = ScriptedObjectStore(FileSystemStore(tmp_path))
    store.put("a/1.log", CONTENT)
    store.put("a/1.indexes", CONTENT)
    store.calls.clear()
    return store


def test_an_error_comes_as_often_as_scripted_and_from_its_verb_alone(store: ScriptedObjectStore) -> None:
    store.fail(RetriableRemoteStorageError("503", retry_after_s=2.0), "*.log", times=2)
    store.fail(OSError("put"), verb=Verb.PUT)
    for _ in range(2):
        with pytest.raises(RetriableRemoteStorageError, match="503"):
            store.get("a/1.log", 0, 1)
    assert fetched(store, "a/1.log", 0, 1) == b"\0"
    with pytest.raises(OSError, match="put"):
        store.put("b", b"")
    store.put("b", b"")
    assert [call.verb for call in store.calls] == [Verb.GET] * 3 + [Verb.PUT] * 2
    assert store.gets("*.log") == [("a/1.log", 0, 1)] * 3


def test_lost_objects_are_found_again_when_healed(store: ScriptedObjectStore) -> None:
    store.lose("*.indexes")
    for _ in range(2):
        with pytest.raises(RemoteResourceNotFoundError):
            store.head("a/1.indexes")
        with pytest.raises(RemoteResourceNotFoundError):
            store.get("a/1.indexes", 0, 1)
    assert store.head("a/1.log").size_bytes == 100
    store.heal()
    assert store.head("a/1.indexes").size_bytes == 100


def test_a_body_breaks_after_the_scripted_bytes(store: ScriptedObjectStore) -> None:
    store.reset("*.log", after_bytes=30)
    stream = store.get("a/1.log", 10, 90)
    found = bytearray(80)
    view = memoryview(found)
    stream.readinto(view[:20])
    with pytest.raises(RetriableRemoteStorageError, match="after 30 bytes"):
        stream.readinto(view[20:])
    assert found[:30] == CONTENT[10:40]
    assert found[30:] == bytes(50)
    assert store.streams_open == 1
    stream.close()
    assert (store.streams_open, store.bytes_read) == (0, 30)
    assert fetched(store, "a/1.log", 10, 90) == CONTENT[10:90]


def test_a_cut_object_ends_early_in_every_get(store: ScriptedObjectStore) -> None:
    store.truncate("*.log", size_bytes=50)
    assert fetched(store, "a/1.log", 0, 100) == CONTENT[:50]
    assert fetched(store, "a/1.log", 40, 100) == CONTENT[40:50]
    assert fetched(store, "a/1.log", 0, 20) == CONTENT[:20]


def test_a_flipped_bit_is_in_every_get_that_covers_it(store: ScriptedObjectStore) -> None:
    store.flip_bit("*.log", position=55, bit=3, times=2)
    wrong = bytearray(CONTENT)
    wrong[55] ^= 8
    assert fetched(store, "a/1.log", 0, 55) == CONTENT[:55]
    assert fetched(store, "a/1.log", 50, 60) == wrong[50:60]
    assert fetched(store, "a/1.log", 0, 100) == wrong
    assert fetched(store, "a/1.log", 0, 100) == CONTENT


def test_a_stalled_body_waits_and_goes_on(store: ScriptedObjectStore) -> None:
    with ThreadPoolExecutor(1) as threads:
        with store.stalled("*.log", after_bytes=60, times=1) as gate:
            reading = threads.submit(fetched, store, "a/1.log", 0, 100)
            gate.wait_for_callers(1)
            assert store.bytes_read == 60
            assert fetched(store, "a/1.log", 0, 100) == CONTENT
        assert reading.result() == CONTENT
