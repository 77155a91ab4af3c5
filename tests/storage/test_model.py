"""KIP-405's data classes: identities, text forms, and the rules that constructors hold."""

from dataclasses import FrozenInstanceError, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import IllegalMetadataError
from storage.model import (
    IndexType,
    RemoteLogSegmentId,
    RemoteLogSegmentState,
    TopicIdPartition,
    Uuid,
    uuid_from_text,
    uuid_to_text,
)
from tests.support.cases import case
from tests.support.segments import filled_segment, metadata_of, topic_partition, uuid_of


def test_a_uuid_prints_as_kafka_prints_it() -> None:
    # The pair of text and bytes is that of a broker's metadata record (docs/kafka-tier.md#metadata-records).
    raw = bytes.fromhex("f7d51ad3dd414037b20c0aad0c2a386d")
    assert uuid_to_text(raw) == "99Ua091BQDeyDAqtDCo4bQ"
    assert uuid_from_text("99Ua091BQDeyDAqtDCo4bQ") == raw


@given(st.binary(min_size=16, max_size=16))
def test_uuid_text_and_bytes_are_each_others_inverse(raw: bytes) -> None:
    text = uuid_to_text(raw)
    assert len(text) == 22
    assert uuid_from_text(text) == raw


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


def test_identities_print_with_topic_partition_and_ids() -> None:
    partition = TopicIdPartition(Uuid(bytes(16)), 3, "orders")
    segment_id = RemoteLogSegmentId(partition, Uuid(b"\xff" * 16))
    assert str(partition) == "orders-3 (AAAAAAAAAAAAAAAAAAAAAA)"
    assert str(segment_id) == "orders-3 (AAAAAAAAAAAAAAAAAAAAAA):_____________________w"


def test_wire_values_and_suffixes_are_kafkas() -> None:
    assert [state.value for state in RemoteLogSegmentState] == [0, 1, 2, 3]
    suffixes = ["index", "leader_epoch_checkpoint", "snapshot", "timeindex", "txnindex"]
    assert sorted(index_type.value for index_type in IndexType) == suffixes


def test_segment_leader_epochs_are_sorted_and_cannot_be_changed() -> None:
    given_epochs = {7: 40, 2: 10, 5: 20}
    metadata = replace(metadata_of(topic_partition(), filled_segment()), segment_leader_epochs=given_epochs)
    given_epochs[9] = 90
    assert list(metadata.segment_leader_epochs.items()) == [(2, 10), (5, 20), (7, 40)]
    with pytest.raises(FrozenInstanceError):
        metadata.start_offset = 1  # type: ignore[misc]  # what is under test


def test_metadata_copies_keep_the_rules() -> None:
    metadata = metadata_of(topic_partition(), filled_segment(100))
    with pytest.raises(IllegalMetadataError, match="start offset -1 is negative"):
        replace(metadata, start_offset=-1)
    with pytest.raises(IllegalMetadataError, match="end offset 99 is below start offset 100"):
        replace(metadata, end_offset=99)
    with pytest.raises(IllegalMetadataError, match="no leader epochs"):
        replace(metadata, segment_leader_epochs={})
    assert replace(metadata, end_offset=100).end_offset == 100
