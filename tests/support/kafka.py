"""Topics on the shared broker: made, filled and waited for until the tier holds them.

The fixture `kafka` is one running cluster for the whole run, so a test takes topics of names of its own and leaves
the broker running. A test that stops brokers starts a cluster of its own with `own_cluster`.
"""

import itertools
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Message, Producer

from tests.support.needs import JARS
from tools.demo.kafka_cluster import KafkaCluster, PartitionOffsets

QUEUE_RECORDS_MAX = 90_000
FULL_BATCHES_LINGER_MS = 60_000
QUIET_S = 30.0
"""Far longer than a copy round takes beside busy loops: who begins earlier sees the tier grow under the test."""

_names = itertools.count(1)

TIERED: Mapping[str, str] = {
    "remote.storage.enable": "true",
    "retention.ms": "-1",
    # The least that Kafka 4 takes, and every segment but the active one leaves the local log at once.
    "segment.bytes": str(1024 * 1024),
    "local.retention.bytes": "1",
}


@dataclass(frozen=True, slots=True)
class Record:
    """One record as produced; `timestamp_ms` None is now."""

    partition: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()
    timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True)
class TieredTopic:
    """A topic with most offsets in the tier alone, and what its partitions' frontiers were when it had settled."""

    name: str
    partitions: int
    records: int
    offsets: Mapping[int, PartitionOffsets]


def fresh_name(stem: str) -> str:
    """A topic name that no other test of this run has."""
    return f"{stem}-{next(_names)}"


def small_segments(batches: int) -> dict[str, str]:
    """Topic settings that roll a segment every so many batches: the offset index is full by then."""
    return {"index.interval.bytes": "1", "segment.index.bytes": str(12 * batches)}


def orders(count: int, partitions: int, value_bytes: int = 200) -> Iterator[Record]:
    """Plain records with keys and a header, the same each time, dealt out to the partitions in turn."""
    for number in range(count):
        value = f'{{"order":{number},"note":"{"x" * value_bytes}"}}'.encode()
        yield Record(number % partitions, f"key-{number % 97}".encode(), value, (("number", str(number).encode()),))


def produce(cluster: KafkaCluster, topic: str, records: Iterator[Record], **settings: str | int) -> int:
    """Produce all records, wait for their acknowledgement, and return how many they were.

    Args:
        settings: librdkafka's, with _ for the dot: compression_type="zstd". With a batch's size among them every batch
            but a partition's last is full, however slow the machine: nothing else sends one before the end.
    """
    failures: list[str] = []

    def delivered(error: object, message: Message) -> None:
        if error is not None:
            failures.append(f"{message.topic()}-{message.partition()}: {error}")

    config: dict[str, str | int] = {name.replace("_", "."): value for name, value in settings.items()}
    linger_ms = FULL_BATCHES_LINGER_MS if config.keys() & {"batch.num.messages", "batch.size"} else 5
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": linger_ms, **config})
    count = 0
    for record in records:
        if count % 1000 == 0:
            # librdkafka holds 100,000 records at most.
            producer.poll(0 if len(producer) < QUEUE_RECORDS_MAX else 1)
        producer.produce(
            topic,
            record.value,
            record.key,
            record.partition,
            on_delivery=delivered,
            timestamp=record.timestamp_ms or 0,
            headers=list(record.headers),
        )
        count += 1
    producer.flush(60)
    if failures:
        raise RuntimeError(f"{len(failures)} of {count} records not produced, first: {failures[0]}")
    return count


def tiered_topic(
    cluster: KafkaCluster,
    name: str,
    *,
    partitions: int = 1,
    records: Iterator[Record] | None = None,
    configs: Mapping[str, str] | None = None,
    **producer_settings: str | int,
) -> TieredTopic:
    """Create a topic, fill it (by default with 10,000 orders per partition, two to three segments), wait for the
    tier. Only the active segments stay local."""
    cluster.create_topic(name, partitions, {**TIERED, **(configs or {})})
    filled = produce(cluster, name, records or orders(10_000 * partitions, partitions), **producer_settings)
    return TieredTopic(name, partitions, filled, wait_settled(cluster, name))


def segmented_topic(
    cluster: KafkaCluster,
    stem: str,
    records: int | Iterator[Record],
    *,
    partitions: int = 1,
    batches: int = 4,
    batch_records: int = 100,
) -> TieredTopic:
    """One of a name of its own, in segments of so many batches of so many records.

    Args:
        records: how many orders in all, or these.
    """
    made = orders(records, partitions) if isinstance(records, int) else records
    settings: dict[str, str | int] = {"batch_num_messages": batch_records}
    configs, name = small_segments(batches), fresh_name(stem)
    return tiered_topic(cluster, name, partitions=partitions, records=made, configs=configs, **settings)


def wait_settled(cluster: KafkaCluster, topic: str) -> dict[int, PartitionOffsets]:
    """Wait until each partition's local log begins right behind the last tiered offset and is one segment on disk:
    nothing is in both places or waits to be copied, so the frontier stays where it is until someone produces.

    A broker may leave a small segment where it is; then offsets that stay as they are for several copy rounds will do.
    """
    last_seen: dict[int, PartitionOffsets] = {}
    unchanged_since_s = time.monotonic()

    def note(offsets: Mapping[int, PartitionOffsets]) -> None:
        nonlocal last_seen, unchanged_since_s
        if offsets != last_seen:
            last_seen, unchanged_since_s = dict(offsets), time.monotonic()

    def has_settled(offsets: PartitionOffsets) -> bool:
        has_tier = offsets.latest_tiered_offset >= 0
        is_behind_tier = offsets.local_log_start_offset == offsets.latest_tiered_offset + 1
        is_quiet = time.monotonic() - unchanged_since_s > QUIET_S
        return has_tier and is_behind_tier and (is_quiet or _local_segments_max(cluster, topic) == 1)

    return cluster.wait_tiered(topic, until=has_settled, progress=note)


def _local_segments_max(cluster: KafkaCluster, topic: str) -> int:
    """Segments of the topic's longest local log, on any broker: between two copy rounds the tier may end where the
    local log begins although more segments are waiting."""
    logs = cluster.work.glob(f"node-*/data/{topic}-*/*.log")
    segments = Counter(log.parent for log in logs if log.parent.name.rpartition("-")[0] == topic)
    return max(segments.values(), default=0)


@contextmanager
def own_cluster(**options: Any) -> Iterator[KafkaCluster]:
    """A cluster for one test, with its folder removed behind it. `options`: KafkaCluster's."""
    work = Path(tempfile.mkdtemp(prefix="tidegate-kafka-"))
    try:
        with KafkaCluster(**{"jars": JARS, **options}, work=work) as cluster:
            yield cluster
    finally:
        shutil.rmtree(work, ignore_errors=True)
