"""Names of objects: Kafka's, and never outside their folder."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import IllegalMetadataError
from storage.formats.segment_files import (
    LOG_SUFFIX,
    OBJECT_SUFFIXES,
    partition_directory_name,
    partition_of_directory,
    segment_object_name,
    segment_of_object,
    sources_by_suffix,
)
from storage.model import (
    LogSegmentData,
    RemoteLogSegmentId,
    TopicIdPartition,
    Uuid,
    is_topic_name,
    uuid_from_text,
    uuid_to_text,
)
from tests.support.cases import case
from tests.support.segments import filled_segment, metadata_of, uuid_of


def partition_named(topic: str, partition: int = 0) -> TopicIdPartition:
    return TopicIdPartition(topic=topic, partition=partition, topic_id=uuid_from_text("99Ua091BQDeyDAqtDCo4bQ"))


def test_names_are_those_that_a_broker_wrote() -> None:
    partition = partition_named("tiered")
    metadata = metadata_of(partition, filled_segment(5952))
    assert partition_directory_name(partition) == "tiered-0-99Ua091BQDeyDAqtDCo4bQ"
    name = segment_object_name(metadata, "timeindex")
    assert name == f"00000000000000005952-{uuid_to_text(metadata.segment_id.id)}.timeindex"
    assert set(OBJECT_SUFFIXES) == {"log", "index", "timeindex", "txnindex", "snapshot", "leader_epoch_checkpoint"}


def test_names_that_kafka_would_refuse_become_no_path() -> None:
    for topic in ["", ".", "..", "../up", "a/b", "a\\b", "a\x00b", "a b", "ä", "a\n", "x" * 250]:
        assert not is_topic_name(topic)
        with case(topic), pytest.raises(IllegalMetadataError, match="not a legal topic name"):
            partition_directory_name(partition_named(topic))


def test_negative_partitions_and_short_ids_become_no_path() -> None:
    with pytest.raises(IllegalMetadataError, match="negative"):
        partition_directory_name(partition_named("orders", -1))
    with pytest.raises(IllegalMetadataError, match="not a uuid"):
        partition_directory_name(TopicIdPartition(Uuid(b"short"), 0, "orders"))
    metadata = metadata_of(partition_named("orders"), filled_segment())
    unidentified = RemoteLogSegmentId(metadata.topic_id_partition, Uuid(uuid_of("x") + b"!"))
    object.__setattr__(metadata, "segment_id", unidentified)
    with pytest.raises(IllegalMetadataError, match="not a uuid"):
        segment_object_name(metadata, "log")


@given(
    st.from_regex(r"[A-Za-z0-9._-]{1,249}", fullmatch=True).filter(is_topic_name),
    st.integers(0, 2**31 - 1),
    st.binary(min_size=16, max_size=16).map(Uuid),
    st.binary(min_size=16, max_size=16).map(Uuid),
    st.sampled_from(OBJECT_SUFFIXES),
)
def test_names_are_taken_apart_again(topic: str, number: int, topic_id: Uuid, segment_id: Uuid, suffix: str) -> None:
    partition = TopicIdPartition(topic_id, number, topic)
    metadata = metadata_of(partition, filled_segment())
    object.__setattr__(metadata, "segment_id", RemoteLogSegmentId(partition, segment_id))
    found = partition_of_directory(partition_directory_name(partition))
    assert found is not None
    assert (found, found.topic) == (partition, topic)
    assert segment_of_object(segment_object_name(metadata, suffix), found) == metadata.segment_id


def test_a_folder_or_object_with_another_name_is_nobodys() -> None:
    for name in [
        *("", "orders", "orders-0", "-0-99Ua091BQDeyDAqtDCo4bQ", "orders-00-99Ua091BQDeyDAqtDCo4bQ"),
        *("orders-2147483648-99Ua091BQDeyDAqtDCo4bQ", "orders-0-99Ua091BQDeyDAqtDCo4b"),
        *("..-0-99Ua091BQDeyDAqtDCo4bQ", "a b-0-99Ua091BQDeyDAqtDCo4bQ"),
    ]:
        assert partition_of_directory(name) is None, name
    for suffix in ("", "log", ".LOG", ".log.tmp", ".rsm-manifest", ".txt"):
        name = f"00000000000000000100-99Ua091BQDeyDAqtDCo4bQ{suffix}"
        assert segment_of_object(name, partition_named("orders")) is None, name


def test_every_object_has_its_source_and_the_log_comes_last() -> None:
    log, offsets, times = Path("a.log"), Path("a.index"), Path("a.timeindex")
    sources = sources_by_suffix(LogSegmentData(log, offsets, times, b"0\n1\n0 0\n"))
    assert set(sources) == set(OBJECT_SUFFIXES)
    assert [*sources][-1] == LOG_SUFFIX
    assert {suffix: source for suffix, source in sources.items() if source is not None} == {
        "index": offsets,
        "timeindex": times,
        "leader_epoch_checkpoint": b"0\n1\n0 0\n",
        "log": log,
    }
