"""Topics for the differential test: one of each kind that is read differently, and the generated ones; all settled.

The fixed topics' records, batches and timestamps are the same in every run, the generated ones' for the same seed, so
that a seed gives the same questions again (but for topics whose timestamps the broker gives). The broker is restarted
on the way, so every tiered topic has several leader epochs, and some segments hold two.
"""

import itertools
import random
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from confluent_kafka import Producer
from confluent_kafka.cimpl import NewTopic

from tests.support.differential_known import KnownPartition, local_logs, look_up, wait_all_settled
from tests.support.differential_schedule import Schedule
from tests.support.differential_steps import (
    ScheduleRunner,
    alter_configs,
    create_topics,
    delete_records,
    end_transaction,
    send,
    transaction,
    transactional_producer,
)
from tests.support.filled_topics import FIRST_TIMESTAMP_MS, TIMESTAMP_STEP_MS, varied_records
from tests.support.kafka import TIERED, Record, produce, small_segments
from tools.demo.kafka_cluster import KafkaCluster

PREFIX = "differential"

OPEN_TRANSACTION_MS = 3 * 3_600_000
"""Longer than any run: a broker ends a transaction by itself that is open for longer than it was said to be, and then
the last stable offset moves."""

CLUSTER_PROPERTIES = {"log.cleaner.backoff.ms": "300", "transaction.max.timeout.ms": str(OPEN_TRANSACTION_MS)}
"""What a cluster needs for these topics beyond the usual: `holes` is compacted before it is tiered, and one transaction
stays open."""

TRIMMED_AT = 747
"""Inside the third segment of `trimmed`, and inside a batch: 15 batches of 20 records to a segment."""

OVERLAP_LOCAL_BYTES = 250_000
"""Local retention of `overlap`: two of its segments are in the tier and in the local log."""

UNCLEANED: Mapping[str, str] = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "segment.bytes": str(1024 * 1024),
    **small_segments(10),
}
CLEANED_TIMEOUT_S = 60.0


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

    @property
    def all_configs(self) -> Mapping[str, str]:
        return {**(TIERED if self.is_tiered else {"retention.ms": "-1"}), **self.configs}


_PLANS = (
    _Plan("plain", 5000, (200, 2200), 10, partitions=2),
    *(
        _Plan(codec, 1300, (20, 500), 20, small_segments(13), compression=codec)
        for codec in ("gzip", "snappy", "lz4", "zstd")
    ),
    _Plan("big", 24, (60_000, 400_000), 1),
    _Plan("tiny", 600, (0, 30), 1, small_segments(50)),
    _Plan("trimmed", 1500, (20, 500), 20, small_segments(15)),
    _Plan("overlap", 2500, (20, 500), 20, {**small_segments(15), "local.retention.bytes": str(OVERLAP_LOCAL_BYTES)}),
    _Plan("local", 1000, (20, 500), 20, is_tiered=False),
)

LOCAL_ABORT, EARLY_ABORTS, HOLES = (f"{PREFIX}-{name}" for name in ("local-abort", "early-aborts", "holes"))
_TRANSACTIONAL = {**TIERED, **small_segments(12)}


@contextmanager
def differential_topics(cluster: KafkaCluster, schedule: Schedule) -> Iterator[list[KnownPartition]]:
    """All topics, filled and settled; transactions are open on some of them until the end."""
    _create(cluster, schedule)
    runner = ScheduleRunner(cluster, schedule, transaction_timeout_ms=OPEN_TRANSACTION_MS)
    _fill_holes(cluster)
    _fill(cluster, 0, 2)
    _fill_early_aborts(cluster)
    for number, phase in enumerate(schedule.phases):
        if number > 0:
            cluster.restart_broker(1)
        runner.run(phase)
    _tier_holes(cluster)
    _fill(cluster, 1, 2)
    configs: dict[str, Mapping[str, str]] = {plan.topic: plan.all_configs for plan in _PLANS}
    configs |= dict.fromkeys((LOCAL_ABORT, EARLY_ABORTS), _TRANSACTIONAL) | {HOLES: TIERED}
    producer = _begin_transaction(cluster)
    wait_all_settled(cluster, configs | dict(runner.configs))
    delete_records(cluster, f"{PREFIX}-trimmed", 0, TRIMMED_AT)
    runner.cut(schedule.cuts)
    wait_all_settled(cluster, configs | dict(runner.configs))
    known = list(look_up(cluster, [*configs, *runner.configs]))
    _check(known)
    yield known
    del producer, runner  # what is open in them is never ended: the broker goes now


def _check(known: list[KnownPartition]) -> None:
    """The topics are what they are named for."""
    overlap = next(each for each in known if each.topic == f"{PREFIX}-overlap").offsets
    assert overlap.local_log_start_offset < overlap.latest_tiered_offset
    holes = next(each for each in known if each.topic == HOLES)
    gaps = [after.base_offset - before.last_offset for before, after in itertools.pairwise(holes.batches)]
    assert max(gaps) > 1, "nothing was compacted away"
    assert holes.offsets.log_start_offset == 0 < holes.offsets.local_log_start_offset
    assert sum(len(each.epochs) > 1 for each in known) > 5


def _create(cluster: KafkaCluster, schedule: Schedule) -> None:
    wanted = [NewTopic(plan.topic, plan.partitions, 1, config=dict(plan.all_configs)) for plan in _PLANS]
    wanted += [NewTopic(topic, 1, 1, config=dict(_TRANSACTIONAL)) for topic in (LOCAL_ABORT, EARLY_ABORTS)]
    wanted += [NewTopic(HOLES, 1, 1, config=dict(UNCLEANED))]
    wanted += [NewTopic(topic.name, topic.partitions, 1, config=dict(topic.configs)) for topic in schedule.topics]
    create_topics(cluster, wanted)


def _fill(cluster: KafkaCluster, part: int, parts: int) -> None:
    """One part of the records of each plain topic."""
    for plan in _PLANS:
        share = plan.count // parts
        records = varied_records(plan.name, plan.count, plan.value_bytes, plan.partitions)
        produce(
            cluster,
            plan.topic,
            itertools.islice(records, part * share, (part + 1) * share),
            batch_num_messages=plan.batch_records,
            batch_size=1_000_000,
            compression_type=plan.compression,
        )


# --- transactions ---


def _fill_early_aborts(cluster: KafkaCluster) -> None:
    """Aborts in the first segments only, one of them with its marker two segments on; commits in all others."""
    chance = random.Random(EARLY_ABORTS)
    slow, quick = (transactional_producer(cluster, f"{PREFIX}-{name}") for name in ("slow", "quick"))
    slow.begin_transaction()
    send(slow, EARLY_ABORTS, 5)
    for number in range(14):
        transaction(quick, EARLY_ABORTS, chance.randrange(1, 30), commits=number % 3 > 0)
    end_transaction(slow, commits=False)
    for _ in range(26):
        transaction(quick, EARLY_ABORTS, chance.randrange(1, 30), commits=True)


def _begin_transaction(cluster: KafkaCluster) -> Producer:
    """Aborts throughout, the last with its marker in the local log; then one that stays open in the producer returned,
    so that the last stable offset stays below the high watermark."""
    topic, chance = LOCAL_ABORT, random.Random(LOCAL_ABORT)
    slow, quick = (
        transactional_producer(cluster, f"{PREFIX}-{name}", timeout_ms=OPEN_TRANSACTION_MS)
        for name in ("slow-too", "quick-too")
    )
    transaction(quick, topic, 10, commits=True)
    slow.begin_transaction()
    send(slow, topic, 3)
    for number in range(20):
        transaction(quick, topic, chance.randrange(1, 30), commits=number % 4 > 0)
    end_transaction(slow, commits=False)
    for _ in range(14):
        transaction(quick, topic, chance.randrange(1, 30), commits=True)
    slow.begin_transaction()
    send(slow, topic, 4)
    begun_in = _active_segment(cluster, topic)
    while _active_segment(cluster, topic) == begun_in:
        transaction(quick, topic, 2, commits=True)
    end_transaction(slow, commits=False)
    quick.begin_transaction()
    send(quick, topic, 6)
    return quick


def _active_segment(cluster: KafkaCluster, topic: str) -> int:
    return int(local_logs(cluster, topic)[-1].stem)


# --- holes ---


def _fill_holes(cluster: KafkaCluster) -> None:
    """Few keys over and over, and now and then one that stays."""
    records = (
        Record(
            0,
            b"once-%d" % number if number % 40 == 0 else b"key-%d" % (number % 31),
            b"%d " % number * 30,
            timestamp_ms=FIRST_TIMESTAMP_MS + TIMESTAMP_STEP_MS * number,
        )
        for number in range(1500)
    )
    produce(cluster, HOLES, records, batch_num_messages=10, batch_size=1_000_000)
    # Not before all is there: one round cleans it all, and a run is like the next.
    alter_configs(cluster, HOLES, {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"})


def _tier_holes(cluster: KafkaCluster) -> None:
    """Wait for the cleaner, and only then let the topic into the tier: both at once are not allowed. Records that no
    cleaner has seen follow."""
    checkpoint = cluster.broker(1).data_dir / "cleaner-offset-checkpoint"
    deadline_s = time.monotonic() + CLEANED_TIMEOUT_S
    while f"{HOLES} 0 {_active_segment(cluster, HOLES)}" not in checkpoint.read_text().splitlines():
        assert time.monotonic() < deadline_s, f"{HOLES} is not cleaned:\n{checkpoint.read_text()}"
        time.sleep(0.2)
    alter_configs(cluster, HOLES, {**TIERED, "cleanup.policy": "delete"})
    records = (Record(0, b"late", b"%d " % number * 30) for number in range(300))
    produce(cluster, HOLES, records, batch_num_messages=10, batch_size=1_000_000)
