"""Keys of a segment's objects: the plug-in's, and back; where the objects are looked for, and how errors name them."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import (
    CorruptObjectError,
    IllegalMetadataError,
    RemoteAccessDeniedError,
    RemoteResourceNotFoundError,
    RetriableRemoteStorageError,
)
from storage.formats.aiven.object_keys import ObjectSuffix, main_path, object_key, parse_object_key
from storage.formats.aiven.segment_objects import ObjectPlace, SegmentObjects
from storage.model import RemoteLogSegmentId, RemoteLogSegmentMetadata, TopicIdPartition, Uuid, uuid_from_text
from storage.object_store.files.store import FileSystemStore
from tests.support.for_each import for_each
from tests.support.scripted_object_store import ScriptedObjectStore

PATH = "topic-AAAAAAAAAAAAAAAAAAAAAQ/7/00000000000000001234-AAAAAAAAAAAAAAAAAAAAAA"


def segment(topic: str, partition: int, topic_id: str, segment_id: str, start_offset: int) -> RemoteLogSegmentMetadata:
    return RemoteLogSegmentMetadata(
        segment_id=RemoteLogSegmentId(
            TopicIdPartition(uuid_from_text(topic_id), partition, topic), uuid_from_text(segment_id)
        ),
        start_offset=start_offset,
        end_offset=start_offset,
        max_timestamp_ms=0,
        broker_id=1,
        event_timestamp_ms=0,
        segment_size_bytes=1,
        segment_leader_epochs={0: 0},
    )


SEGMENT = segment("topic", 7, "AAAAAAAAAAAAAAAAAAAAAQ", "AAAAAAAAAAAAAAAAAAAAAA", 1234)


@for_each("segment_id", ["-2vcU13pRgmFcJZnwUHXOQ", "_2vcU13pRgmFcJZnwUHXOQ"])
def test_a_key_is_never_split_at_a_dash(segment_id: str) -> None:
    metadata = segment("a-b.c_d-", 0, "-e1u8SIwbTlKJwKtQGewIA", segment_id, 5)
    parsed = parse_object_key(object_key("pre-fix/", main_path(metadata), ObjectSuffix.INDEXES), "pre-fix/")
    assert parsed.topic_id_partition == metadata.topic_id_partition
    assert parsed.topic_id_partition.topic == "a-b.c_d-"
    assert (parsed.start_offset, parsed.segment_id) == (5, metadata.segment_id.id)
    assert parsed.suffix is ObjectSuffix.INDEXES


@given(
    prefix=st.text(max_size=20),
    topic=st.from_regex(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,248}", fullmatch=True),
    partition=st.integers(0, 2**31 - 1),
    start_offset=st.integers(0, 2**63 - 1),
    ids=st.tuples(st.binary(min_size=16, max_size=16), st.binary(min_size=16, max_size=16)),
    suffix=st.sampled_from(ObjectSuffix),
)
def test_a_key_says_what_it_was_made_of(
    prefix: str, topic: str, partition: int, start_offset: int, ids: tuple[bytes, bytes], suffix: ObjectSuffix
) -> None:
    key = TopicIdPartition(Uuid(ids[0]), partition, topic)
    metadata = replace(
        SEGMENT, segment_id=RemoteLogSegmentId(key, Uuid(ids[1])), start_offset=start_offset, end_offset=start_offset
    )
    parsed = parse_object_key(object_key(prefix, main_path(metadata), suffix), prefix)
    assert (parsed.topic_id_partition, parsed.topic_id_partition.topic) == (key, topic)
    assert (parsed.start_offset, parsed.segment_id, parsed.suffix) == (start_offset, Uuid(ids[1]), suffix)


@for_each(
    "key",
    [
        "",
        ".log",
        PATH,
        f"{PATH}.LOG",
        f"{PATH}.log.tmp",
        f"other/{PATH}.log",
        f"/{PATH}.log",
        f"{PATH[:-1]}.log",
        f"{PATH}A.log",
        PATH.replace("/7/", "/07/") + ".log",
        PATH.replace("/7/", "/-7/") + ".log",
        PATH.replace("/7/", "/2147483648/") + ".log",
        PATH.replace("1234-", "123-") + ".log",
        PATH.replace("00000000000000001234", "99999999999999999999") + ".log",
        PATH.replace("1234-", "123\u0664-") + ".log",
        PATH.replace("topic-", "to pic-") + ".log",
        PATH.replace("topic-", "..-") + ".log",
    ],
)
def test_what_the_plugin_would_not_have_written_is_no_key(key: str) -> None:
    with pytest.raises(ValueError, match=r"is not a key|beyond Kafka's"):
        parse_object_key(key, "")


@for_each("topic", ["", "..", "../../etc", "a/b", "a\x00b", "x" * 250])
def test_names_that_kafka_would_refuse_become_no_key(topic: str) -> None:
    partition = replace(SEGMENT.topic_id_partition, topic=topic)
    with pytest.raises(IllegalMetadataError, match="not a legal topic name"):
        main_path(replace(SEGMENT, segment_id=replace(SEGMENT.segment_id, topic_id_partition=partition)))


def test_negative_partitions_and_short_ids_become_no_key() -> None:
    partition = replace(SEGMENT.topic_id_partition, partition=-1)
    with pytest.raises(IllegalMetadataError, match="negative"):
        main_path(replace(SEGMENT, segment_id=replace(SEGMENT.segment_id, topic_id_partition=partition)))
    with pytest.raises(IllegalMetadataError, match="not a uuid"):
        main_path(replace(SEGMENT, segment_id=replace(SEGMENT.segment_id, id=Uuid(b"short"))))


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


@for_each("start, end", [(0, 8), (6, 8), (7, 8), (100, 200)])
def test_an_object_that_ends_before_the_range_is_corrupt(store: ScriptedObjectStore, start: int, end: int) -> None:
    store.put(CONFIGURED.key(LOG), b"content")
    with pytest.raises(CorruptObjectError, match=rf"new/orders/7\.log: bytes {start} to {end - 1} wanted"):
        SegmentObjects(store, [CONFIGURED]).get_range(LOG, start, end)
    assert store.streams_open == 0


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
