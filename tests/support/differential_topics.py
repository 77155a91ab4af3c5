"""Topics for the differential test: one of each kind that is read differently, settled, and still from then on.

Records, batches and timestamps are the same in every run, so that a seed gives the same questions again.
"""

import random
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from proxy.demo.kafka_cluster import KafkaCluster, PartitionOffsets
from tests.support.kafka import TIERED, Record, produce, small_segments, wait_settled
from tests.support.raw_client import RawClient

FIRST_TIMESTAMP_MS = 1_700_000_000_000
TIMESTAMP_STEP_MS = 10
PREFIX = "differential"

TRIMMED_AT = 747
"""Inside the third segment of `trimmed`, and inside a batch: 15 batches of 20 records to a segment."""

OVERLAP_LOCAL_BYTES = 250_000
"""Local retention of `overlap`: two of its segments are in the tier and in the local log."""

TRANSACTION_TIMEOUT_MS = 900_000
SETTLED_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class KnownPartition:
    """A partition that questions are asked about, and the offsets at which something changes."""

    topic: str
    topic_id: bytes
    partition: int
    offsets: PartitionOffsets
    last_stable_offset: int
    last_timestamp_ms: int
    borders: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Plan:
    name: str
    count: int
    value_bytes: tuple[int, int]
    batch_records: int
    configs: Mapping[str, str] = field(default_factory=dict)
    partitions: int = 1
    compression: str = "none"
    is_tiered: bool = True

    @property
    def topic(self) -> str:
        return f"{PREFIX}-{self.name}"


_PLANS = (
    _Plan("plain", 5000, (200, 2200), 10, partitions=2),
    *(
        _Plan(codec, 1300, (20, 500), 20, small_segments(13), compression=codec)
        for codec in ("gzip", "snappy", "lz4", "zstd")
    ),
    _Plan("big", 24, (60_000, 400_000), 1),
    _Plan("tiny", 600, (0, 30), 1, small_segments(50)),
    _Plan("trimmed", 1500, (20, 500), 20, small_segments(15)),
    _Plan(
        "overlap",
        2500,
        (20, 500),
        20,
        {**small_segments(15), "local.retention.bytes": str(OVERLAP_LOCAL_BYTES)},
    ),
    _Plan("local", 1000, (20, 500), 20, is_tiered=False),
)

LOCAL_ABORT, EARLY_ABORTS = f"{PREFIX}-local-abort", f"{PREFIX}-early-aborts"


@contextmanager
def differential_topics(cluster: KafkaCluster) -> Iterator[list[KnownPartition]]:
    """All topics, filled and settled; a transaction is open on one of them until the end."""
    transactional = {**TIERED, **small_segments(12)}
    for plan in _PLANS:
        cluster.create_topic(plan.topic, plan.partitions, {**(TIERED if plan.is_tiered else {}), **plan.configs})
    for topic in (LOCAL_ABORT, EARLY_ABORTS):
        cluster.create_topic(topic, 1, transactional)
    for plan in _PLANS:
        produce(
            cluster,
            plan.topic,
            _records(plan),
            batch_num_messages=plan.batch_records,
            batch_size=1_000_000,
            linger_ms=1000,
            compression_type=plan.compression,
        )
    _fill_early_aborts(cluster)
    with _open_transaction(cluster):
        topics = {plan.topic: plan.is_tiered for plan in _PLANS} | {LOCAL_ABORT: True, EARLY_ABORTS: True}
        for topic, is_tiered in topics.items():
            if topic == f"{PREFIX}-overlap":
                _wait_overlap_settled(cluster, topic)
            elif is_tiered:
                wait_settled(cluster, topic)
        _delete_records(cluster, f"{PREFIX}-trimmed", TRIMMED_AT)
        yield [known for topic in topics for known in _look_up(cluster, topic)]


def _records(plan: _Plan) -> Iterator[Record]:
    """Timestamps go up by steps, one in ten is out of order."""
    chance = random.Random(plan.name)
    low, high = plan.value_bytes
    for number in range(plan.count):
        size = chance.randrange(low, high)
        value = chance.randbytes(size // 2) + b"." * (size - size // 2)
        timestamp_ms = FIRST_TIMESTAMP_MS + TIMESTAMP_STEP_MS * number
        if chance.random() < 0.1:
            timestamp_ms -= chance.randrange(500)
        key = None if number % 7 == 0 else b"key-%d" % (number % 31)
        yield Record(number % plan.partitions, key, value or None, (("n", b"%d" % number),), timestamp_ms)


def _transactional_producer(cluster: KafkaCluster, name: str) -> Producer:
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "transactional.id": f"{PREFIX}-{name}",
            "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
            "linger.ms": 0,
        }
    )
    producer.init_transactions(30)
    return producer


def _send(producer: Producer, topic: str, count: int) -> None:
    """A batch of its own."""
    for number in range(count):
        producer.produce(topic, b"%d " % number * 20, b"key", 0, timestamp=FIRST_TIMESTAMP_MS + number)
    producer.flush(30)


def _end(producer: Producer, commits: bool) -> None:
    if commits:
        producer.commit_transaction(30)
    else:
        producer.abort_transaction(30)


def _transaction(producer: Producer, topic: str, count: int, *, commits: bool) -> None:
    producer.begin_transaction()
    _send(producer, topic, count)
    _end(producer, commits)


def _fill_early_aborts(cluster: KafkaCluster) -> None:
    """Aborts in the first segments only, one of them with its marker two segments on; commits in all others."""
    chance = random.Random(EARLY_ABORTS)
    slow, quick = _transactional_producer(cluster, "slow"), _transactional_producer(cluster, "quick")
    slow.begin_transaction()
    _send(slow, EARLY_ABORTS, 5)
    for number in range(14):
        _transaction(quick, EARLY_ABORTS, chance.randrange(1, 30), commits=number % 3 > 0)
    _end(slow, commits=False)
    for _ in range(26):
        _transaction(quick, EARLY_ABORTS, chance.randrange(1, 30), commits=True)


@contextmanager
def _open_transaction(cluster: KafkaCluster) -> Iterator[None]:
    """Aborts throughout, the last with its marker in the local log; then one that is open while this runs, so
    that the last stable offset stays below the high watermark."""
    topic, chance = LOCAL_ABORT, random.Random(LOCAL_ABORT)
    slow, quick = _transactional_producer(cluster, "slow-too"), _transactional_producer(cluster, "quick-too")
    _transaction(quick, topic, 10, commits=True)
    slow.begin_transaction()
    _send(slow, topic, 3)
    for number in range(20):
        _transaction(quick, topic, chance.randrange(1, 30), commits=number % 4 > 0)
    _end(slow, commits=False)
    for _ in range(14):
        _transaction(quick, topic, chance.randrange(1, 30), commits=True)
    slow.begin_transaction()
    _send(slow, topic, 4)
    begun_in = _active_segment(cluster, topic)
    while _active_segment(cluster, topic) == begun_in:
        _transaction(quick, topic, 2, commits=True)
    _end(slow, commits=False)
    quick.begin_transaction()
    _send(quick, topic, 6)
    try:
        yield
    finally:
        quick.abort_transaction(30)


def _local_logs(cluster: KafkaCluster, topic: str, partition: int = 0) -> list[Path]:
    return sorted((cluster.broker(1).data_dir / f"{topic}-{partition}").glob("*.log"))


def _active_segment(cluster: KafkaCluster, topic: str) -> int:
    return int(_local_logs(cluster, topic)[-1].stem)


def _wait_overlap_settled(cluster: KafkaCluster, topic: str) -> None:
    """Until all but the active segment is in the tier, and local retention has nothing more to delete."""

    def has_settled(offsets: PartitionOffsets) -> bool:
        logs = _local_logs(cluster, topic)
        surplus_bytes = sum(log.stat().st_size for log in logs) - OVERLAP_LOCAL_BYTES
        return (
            offsets.local_log_start_offset == int(logs[0].stem) > 0
            and offsets.latest_tiered_offset + 1 == int(logs[-1].stem)
            and surplus_bytes < logs[0].stat().st_size
        )

    offsets = cluster.wait_tiered(topic, until=has_settled)[0]
    assert offsets.local_log_start_offset < offsets.latest_tiered_offset


def _delete_records(cluster: KafkaCluster, topic: str, before: int) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    for deleted in admin.delete_records([TopicPartition(topic, 0, before)]).values():
        assert deleted.result(30).low_watermark == before
    deadline_s = time.monotonic() + SETTLED_TIMEOUT_S
    while cluster.partition_offsets(topic)[0].log_start_offset != before:
        assert time.monotonic() < deadline_s, f"{topic}: its log start does not follow"
        time.sleep(0.1)


def _look_up(cluster: KafkaCluster, topic: str) -> Iterator[KnownPartition]:
    host, _, port = cluster.bootstrap_servers.rpartition(":")
    for partition, offsets in cluster.partition_offsets(topic).items():
        with RawClient(host, int(port)) as client:
            topic_id = client.topic_id(topic)
            (stable,) = client.list_offsets(5, [(topic, partition, -1)], isolation=1)
        tiered = (cluster.tier_dir / "kafka-tiered-storage").glob(f"{topic}-{partition}-*/*.log")
        starts = {int(log.name[:20]) for log in (*tiered, *_local_logs(cluster, topic, partition))}
        ends = (
            offsets.log_start_offset,
            offsets.local_log_start_offset,
            stable.offset,
            offsets.high_watermark,
        )
        last_timestamp_ms = FIRST_TIMESTAMP_MS + TIMESTAMP_STEP_MS * offsets.high_watermark
        yield KnownPartition(
            topic, topic_id, partition, offsets, stable.offset, last_timestamp_ms, tuple(sorted({*starts, *ends}))
        )
