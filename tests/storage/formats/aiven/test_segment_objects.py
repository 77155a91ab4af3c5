"""Where a segment's objects are looked for, and how errors name them."""

from pathlib import Path

import pytest

from storage.errors import (
    CorruptObjectError,
    RemoteAccessDeniedError,
    RemoteResourceNotFoundError,
    RetriableRemoteStorageError,
)
from storage.formats.aiven.segment_objects import ObjectPlace, ObjectSuffix, SegmentObjects
from storage.object_store.filesystem import FileSystemStore
from tests.support.scripted_object_store import ScriptedObjectStore

LOG, INDEXES, MANIFEST = ObjectSuffix.LOG, ObjectSuffix.INDEXES, ObjectSuffix.MANIFEST
RECORDED, CONFIGURED = ObjectPlace("old/", "orders/7"), ObjectPlace("new/", "orders/7")


@pytest.fixture
def store(tmp_path: Path) -> ScriptedObjectStore:
    return ScriptedObjectStore(FileSystemStore(tmp_path))


def keys_asked(store: ScriptedObjectStore) -> list[str]:
    keys = [key for key, _, _ in store.gets()]
    store.calls.clear()
    return keys


def test_the_first_place_is_tried_first_and_the_right_one_remembered(store: ScriptedObjectStore) -> None:
    for suffix in ObjectSuffix:
        store.put(CONFIGURED.key(suffix), b"content")
    objects = SegmentObjects(store, [RECORDED, CONFIGURED])
    assert objects.get_whole(MANIFEST, 100) == (b"content", "new/orders/7.rsm-manifest")
    assert keys_asked(store) == ["old/orders/7.rsm-manifest", "new/orders/7.rsm-manifest"]
    for suffix in (LOG, INDEXES):
        objects.get_range(suffix, 0, 7).close()
    assert keys_asked(store) == ["new/orders/7.log", "new/orders/7.indexes"]


def test_each_object_has_a_place_of_its_own(store: ScriptedObjectStore) -> None:
    store.put(RECORDED.key(MANIFEST), b"content")
    store.put(CONFIGURED.key(LOG), b"content")
    objects = SegmentObjects(store, [RECORDED, CONFIGURED])
    objects.get_whole(MANIFEST, 100)
    keys_asked(store)
    for expected in (["old/orders/7.log", "new/orders/7.log"], ["new/orders/7.log"]):
        objects.get_range(LOG, 0, 7).close()
        assert keys_asked(store) == expected
    assert (objects.name(LOG), objects.name(INDEXES)) == ("new/orders/7.log", "old/orders/7.indexes")


def test_what_moved_back_is_found_again(store: ScriptedObjectStore) -> None:
    store.put(CONFIGURED.key(LOG), b"content")
    objects = SegmentObjects(store, [RECORDED, CONFIGURED])
    objects.get_range(LOG, 0, 7).close()
    store.delete_many([CONFIGURED.key(LOG)])
    store.put(RECORDED.key(LOG), b"content")
    body = objects.get_range(LOG, 0, 7)
    body.close()
    assert body.name == "old/orders/7.log"


def test_other_errors_than_absence_are_not_asked_around(store: ScriptedObjectStore) -> None:
    store.put(CONFIGURED.key(LOG), b"content")
    objects = SegmentObjects(store, [RECORDED, CONFIGURED])
    for error in (RetriableRemoteStorageError("503", retry_after_s=3.0), RemoteAccessDeniedError("403")):
        store.fail(error)
        with pytest.raises(type(error)) as caught:
            objects.get_range(LOG, 0, 7)
        assert caught.value is error
        assert keys_asked(store) == ["old/orders/7.log"]


def test_what_is_nowhere_is_not_found_at_any_place(store: ScriptedObjectStore) -> None:
    with pytest.raises(RemoteResourceNotFoundError, match=r"at old/orders/7\.log nor at new/orders/7\.log"):
        SegmentObjects(store, [RECORDED, CONFIGURED]).get_range(LOG, 0, 7)
    with pytest.raises(RemoteResourceNotFoundError, match=r"new/orders/7\.log: No such file"):
        SegmentObjects(store, [CONFIGURED]).get_range(LOG, 0, 7)


@pytest.mark.parametrize(("start", "end"), [(0, 8), (6, 8), (7, 8), (100, 200)])
def test_an_object_that_ends_before_the_range_is_corrupt(store: ScriptedObjectStore, start: int, end: int) -> None:
    store.put(CONFIGURED.key(LOG), b"content")
    with pytest.raises(CorruptObjectError, match=rf"new/orders/7\.log: bytes {start} to {end - 1} wanted"):
        SegmentObjects(store, [CONFIGURED]).get_range(LOG, start, end)
    assert store.streams_open == 0


def test_a_range_is_read_in_pieces(store: ScriptedObjectStore) -> None:
    store.put(CONFIGURED.key(LOG), b"content")
    body = SegmentObjects(store, [CONFIGURED]).get_range(LOG, 1, 7)
    first, second = bytearray(2), bytearray(4)
    body.readinto(memoryview(first))
    body.readinto(memoryview(second))
    body.close()
    assert (bytes(first), bytes(second), body.size_bytes) == (b"on", b"tent", 6)


def test_a_whole_object_has_a_limit(store: ScriptedObjectStore) -> None:
    store.put(CONFIGURED.key(MANIFEST), b"content")
    objects = SegmentObjects(store, [CONFIGURED])
    assert objects.get_whole(MANIFEST, 7)[0] == b"content"
    with pytest.raises(CorruptObjectError, match=r"rsm-manifest: more than 6 bytes"):
        objects.get_whole(MANIFEST, 6)
    store.put(CONFIGURED.key(MANIFEST), b"")
    with pytest.raises(CorruptObjectError, match="ends at or before 0"):
        objects.get_whole(MANIFEST, 7)
    assert store.streams_open == 0


def test_a_masked_prefix_is_in_no_message_and_in_no_cause(store: ScriptedObjectStore) -> None:
    place = ObjectPlace("secret/", "orders/7", masked=True)
    store.put(place.key(LOG), b"content")
    objects = SegmentObjects(store, [place])
    assert objects.name(LOG) == "<prefix>/orders/7.log"
    reset = RetriableRemoteStorageError("s3://bucket/secret/orders/7.log: reset", retry_after_s=2.0)
    store.reset(after_bytes=3, error=reset)
    body = objects.get_range(LOG, 0, 7)
    with pytest.raises(RetriableRemoteStorageError) as caught:
        body.readinto(memoryview(bytearray(7)))
    body.close()
    assert str(caught.value) == "s3://bucket/<prefix>/orders/7.log: reset"
    assert caught.value.retry_after_s == 2.0
    with pytest.raises(RemoteResourceNotFoundError) as absent:
        objects.get_range(INDEXES, 0, 7)
    assert "secret" not in str(absent.value)
    assert absent.value.__cause__ is None
