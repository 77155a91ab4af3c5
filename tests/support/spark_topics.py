"""A broker with one topic of each kind that is read differently, and a Tidegate before it: what Spark's tests read.

Nothing moves any more when it is handed out, so a test asks and compares; who wants to produce makes a topic of its
own on the same cluster. The broker is restarted while the topics are filled, so each has records of two leader epochs
in its tier. Timestamps are of the past and rise by TIMESTAMP_STEP_MS, save for one in ten.
"""

import itertools
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from confluent_kafka.cimpl import NewTopic

from tests.support.differential_known import local_logs, partition_offsets, tiered_logs, wait_all_settled
from tests.support.differential_steps import (
    create_topics,
    delete_records,
    end_transaction,
    send,
    transaction,
    transactional_producer,
)
from tests.support.filled_topics import CODECS, odd_records, varied_records
from tests.support.kafka import TIERED, Record, own_cluster, produce, small_segments
from tests.support.tidegate import RunningTidegate, own_tidegate
from tools.demo.kafka_cluster import KafkaCluster, PartitionOffsets

PLAIN, COMPRESSED, TRANSACTIONAL, TRIMMED, WIDE = (
    f"spark-{kind}" for kind in ("plain", "compressed", "transactional", "trimmed", "wide")
)
TOPICS: Mapping[str, int] = {PLAIN: 2, COMPRESSED: len(CODECS), TRANSACTIONAL: 1, TRIMMED: 1, WIDE: 1}
"""Partitions of each. `compressed` has a codec in each; `wide` is one partition of 8 MiB."""

TRIMMED_AT = 747
"""Inside the third segment of `trimmed`, and inside a batch: 15 batches of 20 records to a segment."""

RECORDS = 1500
"""In each partition, but for `wide` and `transactional`."""
WIDE_RECORDS = 8000
WIDE_VALUE_BYTES = 1000
ABORTS_EVERY = 4

_TRANSACTION_RECORDS = tuple(random.Random(TRANSACTIONAL).choices(range(1, 30), k=40))
_SLOW_RECORDS, _LAST_RECORDS = 5, 1

_IN_ORDER = {"max_in_flight_requests_per_connection": 1}
"""A batch that is sent again does not come behind its successor."""

_CONFIGS: Mapping[str, Mapping[str, str]] = {
    PLAIN: {**TIERED, **small_segments(30)},
    COMPRESSED: {**TIERED, **small_segments(4)},
    TRANSACTIONAL: {**TIERED, **small_segments(12)},
    TRIMMED: {**TIERED, **small_segments(15)},
    WIDE: TIERED,
}


@dataclass(frozen=True, slots=True)
class SparkTopic:
    """A settled topic: offsets by partition, and how many records were produced, aborted and trimmed ones included."""

    name: str
    offsets: Mapping[int, PartitionOffsets]
    produced: int
    aborted: int
    """Records of aborted transactions."""
    tier_bytes: int
    """Bytes of the segments' logs in the tier."""

    def visible(self, isolation: str) -> int:
        """Records that a consumer of this isolation level sees."""
        return self.produced - self.trimmed - (self.aborted if isolation == "read_committed" else 0)

    @property
    def trimmed(self) -> int:
        return TRIMMED_AT if self.name == TRIMMED else 0


@dataclass(frozen=True, slots=True)
class SparkTopics:
    """The broker, the Tidegate before it, and the topics by name."""

    cluster: KafkaCluster
    tidegate: RunningTidegate
    topics: Mapping[str, SparkTopic]


@contextmanager
def filled_spark_topics() -> Iterator[SparkTopics]:
    """All of it; gone at the end."""
    with own_cluster() as cluster:
        create_topics(cluster, [NewTopic(name, TOPICS[name], 1, config=dict(_CONFIGS[name])) for name in TOPICS])
        _fill(cluster, 0)
        cluster.restart_broker(1)
        _fill(cluster, 1)
        cluster.wait_tiered(TRIMMED, until=lambda offsets: offsets.local_log_start_offset > TRIMMED_AT)
        delete_records(cluster, TRIMMED, 0, TRIMMED_AT)
        wait_all_settled(cluster, _CONFIGS)
        with own_tidegate(cluster) as tidegate:
            yield SparkTopics(cluster, tidegate, _look_up(cluster))


def _fill(cluster: KafkaCluster, half: int) -> None:
    """One half of each topic's records."""
    for name, batch_records in ((PLAIN, 10), (TRIMMED, 20), (WIDE, 100)):
        records = list(records_of(name))
        produce(cluster, name, _half(records, half), batch_num_messages=batch_records, **_IN_ORDER)
    for partition, codec in enumerate(CODECS):
        records = list(odd_records(partition))
        produce(cluster, COMPRESSED, _half(records, half), compression_type=codec, batch_num_messages=100, **_IN_ORDER)
    _transact(cluster, half)


def _half(records: list[Record], half: int) -> Iterator[Record]:
    middle = len(records) // 2
    return iter(records[:middle] if half == 0 else records[middle:])


def records_of(name: str) -> Iterator[Record]:
    """Yield what `plain`, `trimmed` and `wide` are filled with, in order; the same each time."""
    partitions = TOPICS[name]
    if name == WIDE:
        return varied_records(name, WIDE_RECORDS, (WIDE_VALUE_BYTES, WIDE_VALUE_BYTES + 1))
    return varied_records(name, RECORDS * partitions, (20, 500), partitions)


def _transact(cluster: KafkaCluster, half: int) -> None:
    """Quick transactions, every fourth aborted, beside a slow one that is aborted in the first half, two segments on,
    and committed in the second."""
    slow, quick = (transactional_producer(cluster, f"{TRANSACTIONAL}-{name}") for name in ("slow", "quick"))
    slow.begin_transaction()
    send(slow, TRANSACTIONAL, _SLOW_RECORDS)
    middle = len(_TRANSACTION_RECORDS) // 2
    for number in range(half * middle, (half + 1) * middle):
        transaction(quick, TRANSACTIONAL, _TRANSACTION_RECORDS[number], commits=number % ABORTS_EVERY > 0)
    end_transaction(slow, commits=half == 1)
    transaction(quick, TRANSACTIONAL, _LAST_RECORDS, commits=True)


def _look_up(cluster: KafkaCluster) -> dict[str, SparkTopic]:
    found = partition_offsets(cluster, TOPICS)
    produced = {TRANSACTIONAL: 2 * (_SLOW_RECORDS + _LAST_RECORDS) + sum(_TRANSACTION_RECORDS), WIDE: WIDE_RECORDS}
    topics = {
        name: SparkTopic(
            name,
            {partition: found[name, partition][0] for partition in range(count)},
            produced.get(name, RECORDS * count),
            _SLOW_RECORDS + sum(_TRANSACTION_RECORDS[::ABORTS_EVERY]) if name == TRANSACTIONAL else 0,
            sum(log.stat().st_size for partition in range(count) for log in tiered_logs(cluster, name, partition)),
        )
        for name, count in TOPICS.items()
    }
    _check(cluster, topics)
    return topics


def _check(cluster: KafkaCluster, topics: Mapping[str, SparkTopic]) -> None:
    """The topics are what they are named for."""
    for topic, partition in itertools.chain.from_iterable(
        itertools.product([topic], topic.offsets) for topic in topics.values()
    ):
        offsets = topic.offsets[partition]
        assert offsets.log_start_offset < offsets.local_log_start_offset, (topic.name, partition, offsets)
        assert len(tiered_logs(cluster, topic.name, partition)) > 1, (topic.name, partition)
        assert local_logs(cluster, topic.name, partition), (topic.name, partition)
    assert topics[TRIMMED].offsets[0].log_start_offset == TRIMMED_AT
