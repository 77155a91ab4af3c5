"""Records of Kafka's own classes and of real brokers, against our readers and writers of them."""

import json

import pytest

from storage.errors import MetadataRecordError
from storage.metadata.catalog import Catalog
from storage.metadata.encoding import encode
from storage.metadata.event_log import metadata_partition
from storage.metadata.follower import CatalogFollower
from storage.metadata.serde import MetadataRecord, decode
from storage.model import RemoteLogSegmentMetadata, RemotePartitionDeleteMetadata, TopicIdPartition, uuid_from_text
from tests.support.metadata_event_log import InProcessMetadataEventLog
from tests.support.metadata_records import COPY_FINISHED
from tests.support.vectors import vector


@pytest.mark.needs("vectors")
def test_records_of_kafkas_own_serde() -> None:
    cases = json.loads(vector("kafka", "remote-log-metadata.json").read_text())
    snapshot = cases["serde"].pop("G_snapshot")
    records = [*cases["serde"].values(), *cases["broker_capture"]["records"]]

    with pytest.raises(MetadataRecordError, match="snapshot record"):
        decode(bytes.fromhex(snapshot["value"]))
    assert len(records) == 26
    for case in records:
        value = bytes.fromhex(case["value"])
        record = decode(value)
        assert encode(record) == value
        assert _as_vector(record) == {key: case["decoded"][key] for key in _as_vector(record)}


@pytest.mark.needs("vectors")
def test_records_of_a_broker_with_the_aiven_plugin() -> None:
    lines = vector("aiven-tier", "rlmm.jsonl").read_text().splitlines()

    assert len(lines) == 42
    for line in lines:
        value = bytes.fromhex(json.loads(line)["value"])
        assert encode(decode(value)) == value


def _as_vector(record: MetadataRecord) -> dict[str, object]:
    """The record under the names of the vectors."""
    fields: dict[str, object] = {
        "broker": record.broker_id,
        "event_ts": record.event_timestamp_ms,
        "state": int(record.state),
    }
    if isinstance(record, RemoteLogSegmentMetadata):
        fields |= {
            "start": record.start_offset,
            "end": record.end_offset,
            "max_ts": record.max_timestamp_ms,
            "size": record.segment_size_bytes,
            "epochs": [list(entry) for entry in record.segment_leader_epochs.items()],
        }
    if not isinstance(record, RemotePartitionDeleteMetadata):
        fields["custom"] = None if record.custom_metadata is None else record.custom_metadata.hex()
    return fields


@pytest.mark.needs("vectors")
def test_answers_of_kafkas_own_class() -> None:
    cases = json.loads(vector("kafka", "remote-log-metadata.json").read_text())["partitioner"]

    assert len(cases) == 25
    for case in cases:
        topic_id = uuid_from_text(case["topic_id"])
        for partition_count in (50, 5, 3):
            answer = metadata_partition(topic_id, case["partition"], partition_count)
            assert answer == case[f"num_{partition_count}"], case


COUNT = 5


@pytest.mark.needs("vectors")
def test_the_metadata_topic_of_a_real_broker_gives_its_segments() -> None:
    """42 records written by a broker with the Aiven plugin, and the segments that the broker then had."""
    event_log = InProcessMetadataEventLog(COUNT)
    for line in vector("aiven-tier", "rlmm.jsonl").read_text().splitlines():
        record = json.loads(line)
        assert event_log.publish(record["partition"], bytes.fromhex(record["value"])) == record["offset"]
    follower = CatalogFollower(event_log, Catalog())
    follower.follow({})

    checked = 0
    for topic in json.loads(vector("aiven-tier", "expected.json").read_text())["topics"]:
        for expected in topic["partitions"]:
            partition = TopicIdPartition(uuid_from_text(topic["topic_id"]), expected["partition"], topic["topic"])
            listed = follower.catalog.list_segments(partition.topic_id, partition.partition)
            found = sorted(listed, key=lambda metadata: metadata.start_offset)
            assert all(metadata.state is COPY_FINISHED and metadata.custom_metadata for metadata in found)
            assert [as_expected(metadata) for metadata in found] == [
                (entry["start"], entry["end"], {int(epoch): start for epoch, start in entry["leader_epochs"].items()})
                for entry in expected["segments"]
            ]
            for metadata in found:
                for epoch, offset in metadata.segment_leader_epochs.items():
                    assert follower.catalog.lookup(partition.topic_id, partition.partition, epoch, offset) == metadata
            checked += len(found)
    assert checked == 19
    assert follower.undecodable_records == follower.rejected_records == 0


def as_expected(metadata: RemoteLogSegmentMetadata) -> tuple[int, int, dict[int, int]]:
    return metadata.start_offset, metadata.end_offset, dict(metadata.segment_leader_epochs)
