"""KIP-405's data classes: identities, text forms, and the rules that constructors hold."""

from dataclasses import replace

import pytest

from storage.errors import IllegalMetadataError
from storage.model import TopicIdPartition, uuid_from_text, uuid_to_text
from tests.support.cases import case
from tests.support.segments import filled_segment, metadata_of, topic_partition, uuid_of


def test_a_uuid_prints_as_kafka_prints_it() -> None:
    # The pair of text and bytes is that of a broker's metadata record (docs/kafka-tier.md#metadata-records).
    raw = bytes.fromhex("f7d51ad3dd414037b20c0aad0c2a386d")
    assert uuid_to_text(raw) == "99Ua091BQDeyDAqtDCo4bQ"
    assert uuid_from_text("99Ua091BQDeyDAqtDCo4bQ") == raw


def test_what_is_not_a_uuid_is_refused() -> None:
    for text in [
        "",
        "99Ua091BQDeyDAqtDCo4b",
        "99Ua091BQDeyDAqtDCo4bQA",
        "99Ua091BQDeyDAqtDCo4bQ==",
        "99Ua091BQDeyDAqtDCo4b/",
        "99Ua091BQDeyDAqtDCo4b+",
        "99Ua091BQDeyDAqtDCo4b\n",
        "99Ua091BQDeyDAqtDCo4bé",
    ]:
        with case(text), pytest.raises(ValueError, match="not a Kafka uuid"):
            uuid_from_text(text)


def test_a_partition_is_identified_by_topic_id_not_by_name() -> None:
    renamed = TopicIdPartition(uuid_of("a"), 3, "old")
    assert renamed == TopicIdPartition(uuid_of("a"), 3, "new")
    assert hash(renamed) == hash(TopicIdPartition(uuid_of("a"), 3, "new"))
    assert renamed != TopicIdPartition(uuid_of("b"), 3, "old")
    assert renamed != TopicIdPartition(uuid_of("a"), 4, "old")


def test_metadata_copies_keep_the_rules() -> None:
    metadata = metadata_of(topic_partition(), filled_segment(100))
    with pytest.raises(IllegalMetadataError, match="start offset -1 is negative"):
        replace(metadata, start_offset=-1)
    with pytest.raises(IllegalMetadataError, match="end offset 99 is below start offset 100"):
        replace(metadata, end_offset=99)
    with pytest.raises(IllegalMetadataError, match="no leader epochs"):
        replace(metadata, segment_leader_epochs={})
    assert replace(metadata, end_offset=100).end_offset == 100
