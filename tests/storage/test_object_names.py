"""Names of objects: Kafka's, and never outside their folder."""

import pytest

from storage.errors import IllegalMetadataError
from storage.model import RemoteLogSegmentId, TopicIdPartition, Uuid, uuid_from_text, uuid_to_text
from storage.object_names import OBJECT_SUFFIXES, is_topic_name, partition_directory_name, segment_object_name
from tests.support.segments import filled_segment, metadata_of, uuid_of


def partition_named(topic: str, partition: int = 0) -> TopicIdPartition:
    return TopicIdPartition(topic=topic, partition=partition, topic_id=uuid_from_text("99Ua091BQDeyDAqtDCo4bQ"))


def test_names_are_those_that_a_broker_wrote() -> None:
    partition = partition_named("tiered")
    metadata = metadata_of(partition, filled_segment(5952))
    assert partition_directory_name(partition) == "tiered-0-99Ua091BQDeyDAqtDCo4bQ"
    name = segment_object_name(metadata, "timeindex")
    assert name == f"00000000000000005952-{uuid_to_text(metadata.segment_id.id)}.timeindex"


def test_every_object_has_a_suffix() -> None:
    assert set(OBJECT_SUFFIXES) == {"log", "index", "timeindex", "txnindex", "snapshot", "leader_epoch_checkpoint"}


@pytest.mark.parametrize("topic", ["a", "orders.v1", "A_b-C.9", "...", "x" * 249])
def test_legal_topic_names_are_taken_as_they_are(topic: str) -> None:
    assert is_topic_name(topic)
    assert partition_directory_name(partition_named(topic, 17)) == f"{topic}-17-99Ua091BQDeyDAqtDCo4bQ"


@pytest.mark.parametrize("topic", ["", ".", "..", "../up", "a/b", "a\\b", "a\x00b", "a b", "ä", "a\n", "x" * 250])
def test_names_that_kafka_would_refuse_become_no_path(topic: str) -> None:
    assert not is_topic_name(topic)
    with pytest.raises(IllegalMetadataError, match="not a legal topic name"):
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
