"""What is in a tier of our own behind a plain Kafka: by its metadata topic, by its folder, and by what the tools say.

live = check_whole(plain_kafka, folder, topic, {0: 0}, {0: 1000})      # no hole, nothing twice, no orphan
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Message, TopicPartition

from storage.formats.local_tiered_storage import ROOT_DIRECTORY_NAME
from storage.metadata.reading import partition_of
from storage.metadata.serde import MetadataRecord, decode
from storage.model import RemoteLogSegmentMetadata, RemotePartitionDeleteMetadata, uuid_to_text
from tests.support.plain_kafka import run_standalone
from tests.support.serving import Serving
from tools.demo.kafka_cluster import KafkaCluster

METADATA_TOPIC = "__remote_log_metadata"
SEGMENT_ID_CHARACTERS = 22
"""A Uuid as Kafka prints it; it may hold hyphens."""
UNFINISHED_PUT = re.compile(r"\.tidegate-[0-9a-f]{16}\.tmp")
"""As storage.object_store.files.store names them."""
OFFSETS_SHOWN = 1000
"""Before and behind what is wrong."""


@dataclass(frozen=True, slots=True)
class TierSegment:
    """A segment as the last record says. Offsets are inclusive; `epochs` are leader epochs."""

    segment_id: str
    state: str
    start_offset: int
    end_offset: int
    size_bytes: int
    epochs: frozenset[int]


def copied_offsets(served: Serving) -> dict[tuple[str, int], int | None]:
    """By topic and partition: the last offset that is in the tier, as the process that copies says. Without what it
    only deletes from, such as the topics of other tests."""
    return {(row["topic"], row["partition"]): row["copied_offset"] for row in shared_rows(served) if row["copied"]}


def shared_rows(served: Serving) -> list[dict[str, Any]]:
    """Each partition that the process has, as its status page shows it."""
    rows: list[dict[str, Any]] = json.loads(served.page("/status.json")[1])["copy"]["rows"]
    return rows


def read_topic(kafka: KafkaCluster, topic: str) -> Iterator[Message]:
    """All that the broker has of a topic just now, partition after partition; Kafka's own ones too."""
    offsets = kafka.partition_offsets(topic)
    with closing(Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "none"})) as consumer:
        for number, each in offsets.items():
            consumer.assign([TopicPartition(topic, number, each.log_start_offset)])
            position = each.log_start_offset
            while position < each.high_watermark:
                message = consumer.poll(30)
                assert message is not None, f"{topic}-{number}: nothing at {position}"
                assert message.error() is None, message.error()
                position = (message.offset() or 0) + 1
                yield message


def metadata_records(kafka: KafkaCluster, topic: str) -> Iterator[tuple[int, MetadataRecord]]:
    """(partition, record) of all that the metadata topic says of a topic."""
    for message in read_topic(kafka, METADATA_TOPIC):
        value = message.value()
        assert isinstance(value, bytes)
        record = decode(value)
        place = partition_of(record)
        if place.topic == topic:
            yield place.partition, record


def segments_of(kafka: KafkaCluster, topic: str) -> dict[int, list[TierSegment]]:
    """Those that have not been deleted, of any state, by partition and then by start offset."""
    found: dict[int, dict[str, TierSegment]] = defaultdict(dict)
    deleted: set[str] = set()
    for partition, record in metadata_records(kafka, topic):
        if isinstance(record, RemotePartitionDeleteMetadata):
            continue
        name, state = uuid_to_text(record.segment_id.id), record.state.name
        if name in deleted:
            # A copier that was paused goes on where it stood: what it says of a segment that the next owner has deleted
            # counts for nobody (RemoteLogMetadataCache knows the segment no more).
            continue
        if state == "DELETE_SEGMENT_FINISHED":
            found[partition].pop(name, None)
            deleted.add(name)
        elif isinstance(record, RemoteLogSegmentMetadata):
            offsets = record.start_offset, record.end_offset, record.segment_size_bytes
            found[partition][name] = TierSegment(name, state, *offsets, frozenset(record.segment_leader_epochs))
        else:
            found[partition][name] = replace(found[partition][name], state=state)
    return {number: sorted(each.values(), key=lambda one: one.start_offset) for number, each in sorted(found.items())}


def metadata_events(kafka: KafkaCluster, topic: str) -> dict[str, list[tuple[str, int]]]:
    """The (state, event timestamp) of all that the metadata topic says of a topic, in order: by segment id and, of the
    deletion of whole partitions, by the partition's number."""
    found: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for partition, record in metadata_records(kafka, topic):
        if isinstance(record, RemotePartitionDeleteMetadata):
            name = str(partition)
        else:
            name = uuid_to_text(record.segment_id.id)
        found[name].append((record.state.name, record.event_timestamp_ms))
    return found


def files_of(kafka: KafkaCluster, topic: str) -> dict[str, list[Path]]:
    """Every object that the tier's folder has of a topic, by segment id. A put that is under way, or was when its
    process was killed, has a file of its own name and no object yet: `tidegate gc` removes such uploads."""
    found: dict[str, list[Path]] = defaultdict(list)
    for path in kafka.tier_dir.joinpath(ROOT_DIRECTORY_NAME).glob(f"{topic}-*/*"):
        if UNFINISHED_PUT.fullmatch(path.name) is None:
            found[path.name.partition("-")[2][:SEGMENT_ID_CHARACTERS]].append(path)
    return found


def check_whole(
    kafka: KafkaCluster, folder: Path, topic: str, starts: Mapping[int, int], ends: Mapping[int, int]
) -> dict[int, list[TierSegment]]:
    """Assert that the tier has the offsets from `starts` to `ends` (exclusive), each in one finished segment, that it
    has nothing else of the topic, neither metadata nor files, and that `verify` finds nothing. The segments."""
    live = segments_of(kafka, topic)
    for partition, end in ends.items():
        expected = starts[partition]
        for segment in live[partition]:
            if (segment.state, segment.start_offset) != ("COPY_SEGMENT_FINISHED", expected):
                events = metadata_events(kafka, topic)
                near = [each for each in live[partition] if abs(each.start_offset - expected) < OFFSETS_SHOWN]
                pytest.fail("\n".join(f"{partition}: {each} {events[each.segment_id]}" for each in near))
            expected = segment.end_offset + 1
        assert expected == end
    ids = {segment.segment_id for segments in live.values() for segment in segments}
    left = [str(path) for name, paths in files_of(kafka, topic).items() if name not in ids for path in paths]
    assert not left, f"files of no segment: {left}"
    verified = run_standalone(kafka, folder, "verify", topic, "--json")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    return live
