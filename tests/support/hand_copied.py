"""A tier of a broker without remote storage, filled by the copier's parts without the copier: `tidegate copy` in a test
that is about something else, and whose segments end where it says.
"""

import itertools
import time
from contextlib import closing
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from copier.ledger import Ledger
from copier.segment_copy import Copied, DeleteObjects, Publish, SegmentCopy, Step, Steps, Upload
from copier.staging import PartitionStaging, PartitionState, RollLimits, StagedSegment
from storage.metadata.event_log import metadata_partition
from storage.metadata.serde import decode
from storage.model import CustomMetadata, RemoteLogSegmentMetadata, TopicIdPartition, Uuid
from storage.registry import open_remote_storage_manager
from storage.remote_storage_manager import RemoteStorageManager
from storage.writing.metadata_records import encode
from tests.support.raw_client import RawClient, address_of
from tests.support.segments import uuid_of
from tests.support.serving import LOCAL_TIER
from tools.demo.kafka_cluster import KafkaCluster
from tools.demo.kafka_properties import METADATA_PARTITIONS

FETCH_BYTES = 1024 * 1024
FETCH_VERSION = 12
READ_COMMITTED = 1
LONG_AGO_MS = -30 * 86_400_000
METADATA_TOPIC = "__remote_log_metadata"


def copy_by_hand(
    kafka: KafkaCluster, topic: str, folder: Path, *, segment_bytes: int, partition: int = 0
) -> list[RemoteLogSegmentMetadata]:
    """Copy what the broker has of a partition into LocalTieredStorage in `kafka.tier_dir`, the last segment too, and
    publish its metadata to METADATA_TOPIC, which is made if missing; the segments, finished."""
    with RawClient(*address_of(kafka.bootstrap_servers)) as client:
        (kafka.tier_dir / "kafka-tiered-storage").mkdir(exist_ok=True)
        whose = TopicIdPartition(Uuid(client.topic_id(topic)), partition, topic)
        staged = _staged(client, folder, whose, segment_bytes)
        manager = open_remote_storage_manager(LOCAL_TIER, {"dir": str(kafka.tier_dir)})
        _make_metadata_topic(kafka)
        ledger, ids = Ledger(whose), itertools.count()
        ledger.claim(1)
        copy = SegmentCopy(ledger, lambda: uuid_of(f"{topic} {next(ids)}"), lambda: time.time_ns() // 10**6)
        for segment in staged:
            assert _run(kafka, ledger, copy.copy(segment), manager) is Copied.FINISHED
        manager.close()
        return ledger.finished()


def _staged(client: RawClient, folder: Path, whose: TopicIdPartition, segment_bytes: int) -> list[StagedSegment]:
    found: list[StagedSegment] = []
    limits = RollLimits(segment_bytes=segment_bytes)
    with closing(PartitionStaging(folder, limits, PartitionState(next_offset=0))) as staging:
        while True:
            target = (whose.topic, None, whose.partition, staging.next_offset, FETCH_BYTES)
            (answer,) = client.fetch(FETCH_VERSION, [target], isolation=READ_COMMITTED, max_wait_ms=0).partitions
            assert answer.error_code == 0
            if staging.next_offset >= answer.last_stable_offset:
                return [*found, *staging.roll_if_due(now_ms=0)]
            found += staging.take(answer.records, now_ms=LONG_AGO_MS)


def _run(kafka: KafkaCluster, ledger: Ledger, steps: Steps[Copied], manager: RemoteStorageManager) -> Copied:
    outcome: CustomMetadata | None = None
    try:
        while True:
            outcome = _do(kafka, ledger, steps.send(outcome), manager)
    except StopIteration as end:
        copied: Copied = end.value
        return copied


def _do(kafka: KafkaCluster, ledger: Ledger, step: Step, manager: RemoteStorageManager) -> CustomMetadata | None:
    match step:
        case Publish(record):
            value = encode(record)
            number = metadata_partition(ledger.partition.topic_id, ledger.partition.partition, METADATA_PARTITIONS)
            producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "acks": "all"})
            producer.produce(METADATA_TOPIC, value, partition=number)
            assert producer.flush(30) == 0
            ledger.note(decode(value))
        case Upload(segment, files):
            return manager.copy_log_segment_data(segment, files)
        case DeleteObjects():
            raise AssertionError("nothing here is given back")
    return None


def _make_metadata_topic(kafka: KafkaCluster) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    if METADATA_TOPIC not in admin.list_topics(timeout=10).topics:
        configs = {"cleanup.policy": "delete", "retention.ms": "-1"}
        topic = NewTopic(METADATA_TOPIC, METADATA_PARTITIONS, 1, config=configs)
        admin.create_topics([topic])[METADATA_TOPIC].result(30)
