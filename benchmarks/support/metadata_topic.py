"""A `__remote_log_metadata` full of segments, as brokers would have written it: two records each, in order."""

import random
import time
from collections.abc import Iterator

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from storage.metadata.encoding import encode
from storage.metadata.event_log import metadata_partition
from storage.model import (
    CustomMetadata,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    TopicIdPartition,
    Uuid,
)

METADATA_TOPIC = "__remote_log_metadata"

_PARTITIONS_PER_TOPIC = 50
_SEGMENT_RECORDS = 1_000_000
_SEGMENT_BYTES = 1024 * 1024 * 1024
_FIRST_TIMESTAMP_MS = 1_700_000_000_000
_CUSTOM_METADATA_BYTES = 24
_QUEUE_RECORDS_MAX = 90_000
_FLUSH_S = 300.0
_CREATED_S_MAX = 60.0


def fill_metadata_topic(bootstrap_servers: str, *, segments: int, partitions: int) -> None:
    """Produce the records of so many copied segments of so many user partitions.

    Raises:
        RuntimeError: not every record was acknowledged.
    """
    count = _partition_count(AdminClient({"bootstrap.servers": bootstrap_servers}))
    producer = Producer({"bootstrap.servers": bootstrap_servers, "linger.ms": 20, "enable.idempotence": True})
    failures: list[str] = []

    def delivered(error: object, _message: object) -> None:
        if error is not None:
            failures.append(str(error))

    for number, (metadata, update) in enumerate(_copied_segments(segments, partitions)):
        if number % 1000 == 0:
            while len(producer) > _QUEUE_RECORDS_MAX:
                producer.poll(0.01)
        key = metadata.topic_id_partition
        home = metadata_partition(key.topic_id, key.partition, count)
        for record in (metadata, update):
            producer.produce(METADATA_TOPIC, encode(record), partition=home, on_delivery=delivered)
    left = producer.flush(_FLUSH_S)
    if left or failures:
        raise RuntimeError(f"{left + len(failures)} metadata records were not produced; {failures[:1]}")


def _partition_count(admin: AdminClient) -> int:
    """Return the partition count of the metadata topic, which a broker makes soon after its start."""
    until_s = time.monotonic() + _CREATED_S_MAX
    while time.monotonic() < until_s:
        topic = admin.list_topics().topics.get(METADATA_TOPIC)
        if topic is not None and topic.partitions:
            return len(topic.partitions)
        time.sleep(0.1)
    raise RuntimeError(f"no {METADATA_TOPIC} after {_CREATED_S_MAX:g} s")


def _copied_segments(
    segments: int, partitions: int
) -> Iterator[tuple[RemoteLogSegmentMetadata, RemoteLogSegmentMetadataUpdate]]:
    source = random.Random(segments)
    topic_ids = [Uuid(source.randbytes(16)) for _ in range(-(-partitions // _PARTITIONS_PER_TOPIC))]
    keys = [
        TopicIdPartition(
            topic_ids[number // _PARTITIONS_PER_TOPIC],
            number % _PARTITIONS_PER_TOPIC,
            f"benchmark-{number // _PARTITIONS_PER_TOPIC}",
        )
        for number in range(partitions)
    ]
    for number in range(segments):
        key, start_offset = keys[number % partitions], number // partitions * _SEGMENT_RECORDS
        segment_id = RemoteLogSegmentId(key, Uuid(source.randbytes(16)))
        at_ms = _FIRST_TIMESTAMP_MS + number
        yield (
            RemoteLogSegmentMetadata(
                segment_id=segment_id,
                start_offset=start_offset,
                end_offset=start_offset + _SEGMENT_RECORDS - 1,
                max_timestamp_ms=at_ms,
                broker_id=1,
                event_timestamp_ms=at_ms,
                segment_size_bytes=_SEGMENT_BYTES,
                segment_leader_epochs={0: start_offset},
            ),
            RemoteLogSegmentMetadataUpdate(
                segment_id=segment_id,
                event_timestamp_ms=at_ms,
                state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
                broker_id=1,
                custom_metadata=CustomMetadata(source.randbytes(_CUSTOM_METADATA_BYTES)),
            ),
        )
