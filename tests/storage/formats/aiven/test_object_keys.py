"""Keys of a segment's objects: the plug-in's, and back."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import IllegalMetadataError
from storage.formats.aiven.segment_objects import (
    ObjectSuffix,
    main_path,
    masked_object_key,
    object_key,
    parse_object_key,
)
from storage.model import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    TopicIdPartition,
    Uuid,
    uuid_from_text,
)
from tests.support.vectors import vector

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


def test_keys_are_those_of_the_plugins_own_tests() -> None:
    literals = json.loads(vector("aiven", "literals.json").read_text())["object_keys"]
    path = main_path(SEGMENT)
    assert path == PATH
    assert object_key("prefix/", path, ObjectSuffix.LOG) == literals["prefix/ + LOG"]
    assert object_key("prefix/", path, ObjectSuffix.INDEXES) == literals["prefix/ + INDEXES"]
    assert object_key("prefix/", path, ObjectSuffix.MANIFEST) == literals["prefix/ + MANIFEST"]
    assert object_key("", path, ObjectSuffix.LOG) == literals["null prefix + LOG"]
    assert masked_object_key(path, ObjectSuffix.LOG) == literals["masked string form"]
    assert object_key("other/", path, ObjectSuffix.LOG) == literals["custom fields {1: other/}"]
    assert object_key("prefix/", "topic/7/file", ObjectSuffix.LOG) == literals["custom fields {2: topic/7/file}"]


def test_no_separator_is_added_to_the_prefix() -> None:
    assert object_key("tiered", PATH, ObjectSuffix.LOG) == f"tiered{PATH}.log"


@pytest.mark.parametrize("segment_id", ["-2vcU13pRgmFcJZnwUHXOQ", "_2vcU13pRgmFcJZnwUHXOQ"])
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
        SEGMENT,
        segment_id=RemoteLogSegmentId(key, Uuid(ids[1])),
        start_offset=start_offset,
        end_offset=start_offset,
    )
    parsed = parse_object_key(object_key(prefix, main_path(metadata), suffix), prefix)
    assert (parsed.topic_id_partition, parsed.topic_id_partition.topic) == (key, topic)
    assert (parsed.start_offset, parsed.segment_id, parsed.suffix) == (start_offset, Uuid(ids[1]), suffix)


@pytest.mark.parametrize(
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


def test_a_key_under_another_prefix_is_no_key_of_ours() -> None:
    with pytest.raises(ValueError, match="under 'mine/'"):
        parse_object_key(f"other/{PATH}.log", "mine/")


@pytest.mark.parametrize("topic", ["", "..", "../../etc", "a/b", "a\x00b", "x" * 250])
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
