"""Carries out a generated schedule on a real broker: producers, transactions, log starts that move."""

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from tests.support.differential_known import local_logs, look_up, segment_starts, tiered_logs
from tests.support.differential_schedule import (
    Cut,
    DeleteRecords,
    DropSegments,
    End,
    Produce,
    Schedule,
    Send,
    Step,
    Timestamps,
)
from tests.support.filled_topics import FIRST_TIMESTAMP_MS as FIRST_TIMESTAMP_MS
from tests.support.filled_topics import TIMESTAMP_STEP_MS as TIMESTAMP_STEP_MS
from tests.support.kafka import FULL_BATCHES_LINGER_MS, Record, produce
from tests.support.waiting import wait_until
from tools.demo.kafka_cluster import KafkaCluster

TRANSACTION_TIMEOUT_MS = 900_000
TIMEOUT_S = 60.0
QUIETLY: Mapping[str, str | int] = {"log_level": 0}
"""The broker's restart is nothing that a producer need write home about."""


class ScheduleRunner:
    """Runs phases and cuts in order; transactions that are open then stay so."""

    def __init__(
        self, cluster: KafkaCluster, schedule: Schedule, *, transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS
    ) -> None:
        self._cluster = cluster
        self._transaction_timeout_ms = transaction_timeout_ms
        self._configs = {topic.name: dict(topic.configs) for topic in schedule.topics}
        self._producers: dict[tuple[str, int], Producer] = {}
        self._open: set[tuple[str, int]] = set()
        self._written: Counter[tuple[str, int]] = Counter()

    @property
    def configs(self) -> Mapping[str, Mapping[str, str]]:
        """The topics' settings as they are by now."""
        return self._configs

    def run(self, steps: Sequence[Step]) -> None:
        """One phase."""
        for step in steps:
            match step:
                case Produce():
                    self._produce(step)
                case Send():
                    self._send(step)
                case End():
                    self._end((step.topic, step.producer), commits=step.commits)
                case DeleteRecords():
                    self._delete_records(step)

    def cut(self, cuts: Sequence[Cut]) -> None:
        """Raise log starts of topics that have settled."""
        for cut in cuts:
            if isinstance(cut, DropSegments):
                self._drop_segments(cut)
            else:
                self._delete_records(cut)

    def _produce(self, step: Produce) -> None:
        settings: dict[str, str | int] = {
            "batch_num_messages": step.batch_records,
            "batch_size": 1_000_000,
            "compression_type": step.codec,
            "message_max_bytes": 4_000_000,
            "enable_idempotence": "true" if step.is_idempotent else "false",
        }
        produce(self._cluster, step.topic, self._records(step), **settings)

    def _records(self, step: Produce) -> Iterator[Record]:
        key = (step.topic, step.partition)
        first = self._written[key]
        chance = random.Random(f"{key} {first}")
        low, high = step.value_bytes
        for number in range(first, first + step.batches * step.batch_records):
            size = chance.randrange(low, high)
            # Half of it compresses, unless it is to be larger than every limit.
            random_bytes = size if low > 1_000_000 else size // 2
            value = chance.randbytes(random_bytes) + b"." * (size - random_bytes)
            timestamp_ms = _timestamp_ms(chance, step.timestamps, number, first)
            yield Record(step.partition, b"key-%d" % (number % 31), value, (("n", b"%d" % number),), timestamp_ms)
        self._written[key] += step.batches * step.batch_records

    def _send(self, step: Send) -> None:
        key = (step.topic, step.producer)
        producer = self._producers.get(key)
        if producer is None:
            producer = self._producers[key] = transactional_producer(
                self._cluster, f"{step.topic}-{step.producer}", timeout_ms=self._transaction_timeout_ms
            )
        if key not in self._open:
            producer.begin_transaction()
            self._open.add(key)
        written = self._written[step.topic, step.partition]
        for number in range(written, written + step.records):
            at_ms = FIRST_TIMESTAMP_MS + TIMESTAMP_STEP_MS * number
            producer.produce(step.topic, b"%d " % number * 20, b"key", step.partition, timestamp=at_ms)
        _flush(producer)
        self._written[step.topic, step.partition] += step.records

    def _end(self, key: tuple[str, int], *, commits: bool) -> None:
        if key not in self._open:
            return
        self._open.remove(key)
        end_transaction(self._producers[key], commits=commits)

    def _delete_records(self, step: DeleteRecords) -> None:
        (known,) = (each for each in look_up(self._cluster, [step.topic]) if each.partition == step.partition)
        offsets = known.offsets
        first = offsets.log_start_offset
        starts = [first, *(start for start in known.segments if start > first)]
        match step.place:
            case "offset":
                before = int(offsets.high_watermark * step.share)
            case "local":
                local = offsets.local_log_start_offset
                before = local + int((offsets.high_watermark - local) * step.share)
            case "inside_batch":
                batches = [each for each in known.batches if each.last_offset > each.base_offset]
                chosen = batches[int(len(batches) * step.share)] if batches else None
                before = chosen.last_offset if chosen else int(offsets.high_watermark * step.share)
            case _:
                at = int(len(starts) * step.share)
                end = starts[at + 1] if at + 1 < len(starts) else offsets.high_watermark
                inside = {"segment": 0, "behind_segment": 1, "inside_segment": (end - starts[at]) // 2}
                before = starts[at] + inside[step.place]
        if offsets.log_start_offset < before <= offsets.high_watermark:
            delete_records(self._cluster, step.topic, step.partition, before)

    def _drop_segments(self, cut: DropSegments) -> None:
        tiered = {int(log.name[:20]): log.stat().st_size for log in tiered_logs(self._cluster, cut.topic)}
        local = {int(log.stem): log.stat().st_size for log in local_logs(self._cluster, cut.topic)}
        starts = segment_starts(self._cluster, cut.topic)
        count = min(cut.count, len(tiered) - 1)
        if count < 1:
            return
        retention_bytes = sum((local | tiered).values()) - sum(tiered[start] for start in starts[:count])
        configs = self._configs[cut.topic]
        configs["local.retention.bytes"] = str(min(int(configs["local.retention.bytes"]), retention_bytes))
        configs["retention.bytes"] = str(retention_bytes)
        alter_configs(
            self._cluster, cut.topic, {name: configs[name] for name in ("local.retention.bytes", "retention.bytes")}
        )
        wait_until(
            lambda: self._cluster.partition_offsets(cut.topic)[0].log_start_offset >= starts[count],
            f"{cut.topic}: segments to go",
            timeout_s=TIMEOUT_S,
        )


# --- what fixed topics use too ---


def admin_client(cluster: KafkaCluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.bootstrap_servers, **QUIETLY})


def create_topics(cluster: KafkaCluster, wanted: Sequence[NewTopic]) -> None:
    admin = admin_client(cluster)  # named: it would end with the call
    for made in admin.create_topics(list(wanted), operation_timeout=30).values():
        made.result(30)


def delete_topic(cluster: KafkaCluster, topic: str) -> None:
    admin = admin_client(cluster)
    admin.delete_topics([topic], operation_timeout=TIMEOUT_S)[topic].result(TIMEOUT_S)


def transactional_producer(cluster: KafkaCluster, name: str, *, timeout_ms: int = TRANSACTION_TIMEOUT_MS) -> Producer:
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "transactional.id": name,
            "transaction.timeout.ms": timeout_ms,
            "linger.ms": min(FULL_BATCHES_LINGER_MS, timeout_ms // 2),
            # Else librdkafka takes a little less than the transaction's timeout, and one above 35 minutes does not fit
            # into its 32 bits of microseconds: such a request times out at the next look at the clock.
            "socket.timeout.ms": 60_000,
            **QUIETLY,
        }
    )
    producer.init_transactions(TIMEOUT_S)
    return producer


def _flush(producer: Producer) -> None:
    """Flush: what was produced since the last time is one batch to a partition."""
    left = producer.flush(TIMEOUT_S)
    assert not left, f"{left} records are not written"


def send(producer: Producer, topic: str, count: int) -> None:
    """A batch of its own in partition 0."""
    for number in range(count):
        producer.produce(topic, b"%d " % number * 20, b"key", 0, timestamp=FIRST_TIMESTAMP_MS + number)
    _flush(producer)


def transaction(producer: Producer, topic: str, count: int, *, commits: bool) -> None:
    """One batch and its marker."""
    producer.begin_transaction()
    send(producer, topic, count)
    end_transaction(producer, commits=commits)


def end_transaction(producer: Producer, *, commits: bool) -> None:
    if commits:
        producer.commit_transaction(TIMEOUT_S)
    else:
        producer.abort_transaction(TIMEOUT_S)


def delete_records(
    cluster: KafkaCluster, topic: str, partition: int, before: int, *, through: str | None = None
) -> None:
    """Raise the log start, at the broker or `through` another address, and return when the broker's ListOffsets says
    so."""
    # Named: it would end with the call.
    admin = AdminClient({"bootstrap.servers": through or cluster.bootstrap_servers, **QUIETLY})
    for deleted in admin.delete_records([TopicPartition(topic, partition, before)]).values():
        assert deleted.result(TIMEOUT_S).low_watermark == before
    wait_until(
        lambda: cluster.partition_offsets(topic)[partition].log_start_offset == before, f"{topic}: its log start"
    )


def alter_configs(cluster: KafkaCluster, topic: str, configs: Mapping[str, str]) -> None:
    entries = [ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in configs.items()]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    admin = admin_client(cluster)
    for altered in admin.incremental_alter_configs([resource]).values():
        altered.result(TIMEOUT_S)


def _timestamp_ms(chance: random.Random, kind: Timestamps, number: int, first: int) -> int:
    places: Mapping[Timestamps, float] = {
        "rising": number,
        "shuffled": number + chance.randrange(-300, 300),
        "falling": first - (number - first) / 2,
        "equal": first,
    }
    return FIRST_TIMESTAMP_MS + int(TIMESTAMP_STEP_MS * places[kind])
