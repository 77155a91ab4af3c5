"""Two brokers with the same log: one that has deleted most of it, with a Tidegate of standalone mode, and its twin.

    the broker is filled ─▶ stopped ─▶ its folder is copied ─▶ both start ─▶ `tidegate copy --once` ─▶ one deletes

Whatever Tidegate answers for the one that has deleted, the twin that kept everything answers by itself: same cluster,
topic ids, batches and leader epochs, as both have the same folder and started as often.
"""

import itertools
import random
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from confluent_kafka.cimpl import NewTopic

from tests.support.differential_known import KnownPartition, look_up
from tests.support.differential_questions import NO_EPOCH, FetchQuestion, FetchTarget, OffsetsQuestion, Question
from tests.support.differential_schedule import DeleteRecords, GeneratedTopic, Schedule, draw_schedule
from tests.support.differential_steps import (
    ScheduleRunner,
    create_topics,
    delete_records,
    end_transaction,
    send,
    transaction,
    transactional_producer,
)
from tests.support.filled_topics import varied_records
from tests.support.kafka import produce, small_segments
from tests.support.plain_kafka import JVM_OPTIONS, WITHOUT_TIER, own_plain_cluster, run_standalone, standalone
from tests.support.raw_client import address_of
from tests.support.serving import Serving
from tests.support.waiting import wait_until
from tools.demo.kafka_cluster import KafkaCluster

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
ABORTS = "twin-aborts"
OPEN_TRANSACTION_MS = 3 * 3_600_000
BROKER: Mapping[str, str] = {"transaction.max.timeout.ms": str(OPEN_TRANSACTION_MS)}

NOT_THE_TWINS = (-3, -4, -5, -6)
"""Timestamps that ask where records are, and not which there are; of −3 brokers with a tier look at the local log."""


@dataclass(frozen=True, slots=True)
class TwinWorld:
    """`twin` kept everything, `tidegate` sits in front of the broker that did not."""

    twin: KafkaCluster
    cluster: KafkaCluster
    tidegate: Serving
    partitions: Sequence[KnownPartition]
    local_logs: Mapping[tuple[str, int], tuple[int, int]]
    """Where the log of the broker that has deleted starts, and the first leader epoch that it remembers."""

    @property
    def addresses(self) -> tuple[tuple[str, int], tuple[str, int]]:
        """The twin's, and Tidegate's."""
        return address_of(self.twin.bootstrap_servers), address_of(self.tidegate.bootstrap)

    def adapted(self, question: Question) -> Question:
        """The question without what a local log and a tier answer differently on purpose, and what is not ours to mend:
        a client that stands in the broker's own log and claims to have read in an epoch that the broker has forgotten
        hears from the broker itself where they part."""
        if isinstance(question, FetchQuestion):
            targets = tuple(map(self._adapted_target, question.targets))
            max_bytes = max(1, question.max_bytes)
            return replace(question, targets=targets, max_bytes=max_bytes, shares_budget=len(targets) > 1)
        if isinstance(question, OffsetsQuestion):
            targets_of_time = [
                (topic, partition, -2 if timestamp in NOT_THE_TWINS else timestamp)
                for topic, partition, timestamp in question.targets
            ]
            return replace(question, targets=tuple(targets_of_time))
        return question

    def _adapted_target(self, target: FetchTarget) -> FetchTarget:
        local_start, first_epoch = self.local_logs.get((target.topic, target.partition), (0, 0))
        is_forgotten = target.offset >= local_start and target.last_fetched_epoch < first_epoch
        last_fetched_epoch = NO_EPOCH if is_forgotten else target.last_fetched_epoch
        return replace(target, limit_bytes=max(1, target.limit_bytes), last_fetched_epoch=last_fetched_epoch)


@contextmanager
def twin_world(seed: int, generated: int, restarts: int) -> Iterator[TwinWorld]:
    """Args:
    generated: topics whose history is drawn from the seed.
    restarts: of the broker, each of which raises the leader epochs.
    """
    schedule = _without_tier(draw_schedule(seed, generated, restarts))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tidegate-twin-")))
        cluster = stack.enter_context(own_plain_cluster(properties=BROKER))
        topics = _fill(cluster, schedule)
        cluster.broker(1).stop()
        twin = stack.enter_context(_twin_of(cluster))
        cluster.broker(1).start()
        properties = {"copy.topics": ",".join(topics), "copy.segment.bytes": "64 KiB"}
        copied = run_standalone(cluster, folder, "copy", "--once", properties=properties)
        assert copied.returncode == 0, copied.stderr
        known = _look_up(twin, schedule, topics)
        _delete(cluster, known, random.Random(seed))
        local_logs = {
            (each.topic, each.partition): (each.offsets.log_start_offset, min(each.epochs)[0] if each.epochs else 0)
            for each in _look_up(cluster, schedule, topics)
        }
        partitions = [
            replace(each, offsets=replace(each.offsets, local_log_start_offset=local_start))
            for each in known
            for local_start, _ in (local_logs[each.topic, each.partition],)
        ]
        properties |= {"expert.tier.linger.ms": "5000"}
        tidegate = stack.enter_context(standalone(cluster, folder, properties))
        tidegate.wait_log("ready: ")
        yield TwinWorld(twin, cluster, tidegate, partitions, local_logs)


def _look_up(cluster: KafkaCluster, schedule: Schedule, topics: Sequence[str]) -> list[KnownPartition]:
    """All partitions, once the broker that has just started leads them."""
    partitions = len(topics) - len(schedule.topics) + 1 + sum(topic.partitions for topic in schedule.topics)

    def led() -> list[KnownPartition] | None:
        found = list(look_up(cluster, topics))
        return found if len(found) == partitions else None

    known = wait_until(led, "leaders of all partitions")
    assert known is not None
    return known


@contextmanager
def _twin_of(stopped: KafkaCluster) -> Iterator[KafkaCluster]:
    """A cluster of its own that begins with what the stopped one has on disk."""
    work = Path(tempfile.mkdtemp(prefix="tidegate-kafka-"))
    try:
        twin = KafkaCluster(
            jars=stopped.jars, work=work, properties={**WITHOUT_TIER, **BROKER}, jvm_options=JVM_OPTIONS
        )
        shutil.copytree(stopped.broker(1).data_dir, twin.broker(1).data_dir)
        with twin:
            yield twin
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _without_tier(schedule: Schedule) -> Schedule:
    def plain(topic: GeneratedTopic) -> GeneratedTopic:
        kept = {key: value for key, value in topic.configs.items() if not key.startswith(("remote.", "local."))}
        return replace(topic, configs=kept)

    phases = tuple(tuple(step for step in phase if not isinstance(step, DeleteRecords)) for phase in schedule.phases)
    return replace(schedule, topics=tuple(map(plain, schedule.topics)), phases=phases, cuts=())


def _fill(cluster: KafkaCluster, schedule: Schedule) -> list[str]:
    """All topics, with their records; their names."""
    configs = {"retention.ms": "-1", **small_segments(13)}
    names = [f"twin-{codec}" for codec in CODECS]
    wanted = [NewTopic(name, 2 if name == "twin-none" else 1, 1, config=configs) for name in names]
    wanted += [NewTopic(ABORTS, 1, 1, config=configs)]
    wanted += [NewTopic(topic.name, topic.partitions, 1, config=dict(topic.configs)) for topic in schedule.topics]
    create_topics(cluster, wanted)
    runner = ScheduleRunner(cluster, schedule, transaction_timeout_ms=OPEN_TRANSACTION_MS)
    parts = len(schedule.phases)
    for number, phase in enumerate(schedule.phases):
        if number > 0:
            cluster.restart_broker(1)
        for codec, name in zip(CODECS, names, strict=True):
            records = varied_records(name, 1200, (20, 500), 2 if codec == "none" else 1)
            share = itertools.islice(records, number * 1200 // parts, (number + 1) * 1200 // parts)
            settings: dict[str, str | int] = {"batch_num_messages": 20, "batch_size": 1_000_000}
            produce(cluster, name, share, compression_type=codec, **settings)
        _transactions(cluster, number)
        runner.run(phase)
    return [*names, ABORTS, *(topic.name for topic in schedule.topics)]


def _transactions(cluster: KafkaCluster, number: int) -> None:
    """Commits and aborts, one of them long: its marker is some segments behind its first record."""
    chance = random.Random(f"{ABORTS}{number}")
    slow, quick = (transactional_producer(cluster, f"twin-{name}-{number}") for name in ("slow", "quick"))
    slow.begin_transaction()
    send(slow, ABORTS, 5)
    for each in range(30):
        transaction(quick, ABORTS, chance.randrange(1, 60), commits=each % 3 > 0)
    end_transaction(slow, commits=False)
    for _ in range(5):
        transaction(quick, ABORTS, chance.randrange(1, 60), commits=True)


def _delete(cluster: KafkaCluster, known: Sequence[KnownPartition], chance: random.Random) -> None:
    """Delete as retention would, at places of all kinds: borders of the broker's segments, batches, the middle of
    one."""
    for each in known:
        below = each.last_stable_offset
        places = [*each.borders, *(batch.base_offset for batch in each.batches), below - 1, below // 2]
        reachable = [place for place in places if each.offsets.log_start_offset < place <= below]
        if reachable and chance.random() < 0.9:
            delete_records(cluster, each.topic, each.partition, chance.choice(reachable))
