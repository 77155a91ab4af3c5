"""ListOffsets of every version, asked of the broker and of Tidegate before it: field by field the same answers.

The topics: `mixed` with times out of order in every compression, `append` with LogAppendTime, `transactional` with
markers, `trimmed` with its log start inside a segment and inside a batch.
"""

import itertools
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from protocol.wire.errors import ErrorCode
from tests.support.differential_steps import delete_records
from tests.support.kafka import TIERED, Record, fresh_name, produce, small_segments, wait_settled
from tests.support.raw_client import ListedOffset, RawClient
from tests.support.replicas import broker_ports
from tests.support.tidegate import RunningTidegate, own_tidegate
from tests.support.waiting import wait_until
from tools.demo.kafka_cluster import KafkaCluster, PartitionOffsets

pytestmark = [pytest.mark.integration, pytest.mark.needs("java", "kafka")]

VERSIONS = range(1, 12)
SPECIAL_TIMES = (-1, -2, -3, -4, -5, -6, -7)
FIRST_MS = 1_700_000_000_000
STEP_MS = 10
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
RECORDS_OF_EACH = 300
ASKED_AGAIN_MAX = 5


@dataclass(frozen=True, slots=True)
class TimedTopic:
    """A settled topic and the times at which an answer may change."""

    name: str
    offsets: PartitionOffsets
    times: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Sides:
    """A connection to the broker and one to Tidegate."""

    broker: RawClient
    tidegate: RawClient

    def ask(
        self, version: int, targets: Sequence[tuple[str, int, int]], isolation: int
    ) -> tuple[list[ListedOffset], list[ListedOffset]]:
        """Both answers."""
        return self._ask(self.broker, version, targets, isolation), self._ask(
            self.tidegate, version, targets, isolation
        )

    @staticmethod
    def _ask(
        client: RawClient, version: int, targets: Sequence[tuple[str, int, int]], isolation: int
    ) -> list[ListedOffset]:
        """Kafka's future and its purgatory race: a REQUEST_TIMED_OUT that comes at once is asked again."""
        for _ in range(ASKED_AGAIN_MAX):
            answers = client.list_offsets(version, targets, isolation=isolation)
            if not any(answer.error_code == ErrorCode.REQUEST_TIMED_OUT for answer in answers):
                return answers
        pytest.fail(f"{targets} timed out {ASKED_AGAIN_MAX} times")


@pytest.fixture(scope="module")
def topics(kafka: KafkaCluster) -> list[TimedTopic]:
    made = [mixed(kafka), append_time(kafka), transactional(kafka)]
    trimmed = mixed(kafka, fresh_name("times-trimmed"))
    for name, _ in (*made, trimmed):
        wait_settled(kafka, name)
    delete_records(kafka, trimmed[0], 0, 713)
    return [
        TimedTopic(name, kafka.partition_offsets(name)[0], tuple(sorted(times))) for name, times in (*made, trimmed)
    ]


@pytest.fixture(scope="module")
def tidegate_of_times(kafka: KafkaCluster, topics: list[TimedTopic]) -> Iterator[RunningTidegate]:
    with own_tidegate(kafka) as running:
        yield running


@pytest.fixture
def sides(kafka: KafkaCluster, tidegate_of_times: RunningTidegate) -> Iterator[Sides]:
    with ExitStack() as stack:
        ports = kafka.broker(1).port, broker_ports(tidegate_of_times)[1]
        broker, through = (stack.enter_context(RawClient("127.0.0.1", port)) for port in ports)
        yield Sides(broker, through)


def test_special_times_are_answered_as_the_broker_does_without_tier_io(
    sides: Sides, topics: list[TimedTopic], tidegate_of_times: RunningTidegate
) -> None:
    before = tidegate_of_times.metric("tidegate_gets_total")
    for version, topic, timestamp, isolation in itertools.product(VERSIONS, topics, SPECIAL_TIMES, (0, 1)):
        theirs, ours = sides.ask(version, [(topic.name, 0, timestamp)], isolation)
        assert ours == theirs, f"version {version}: {topic.name} at {timestamp}"
    assert tidegate_of_times.metric("tidegate_gets_total") == before


def test_every_interesting_time_is_answered_as_the_broker_does(
    sides: Sides, topics: list[TimedTopic], tidegate_of_times: RunningTidegate
) -> None:
    in_tier = 0
    for topic in topics:
        for timestamp, isolation in itertools.product(topic.times, (0, 1)):
            theirs, ours = sides.ask(11, [(topic.name, 0, timestamp)], isolation)
            assert ours == theirs, f"{topic.name} at {timestamp}"
            in_tier += topic.offsets.log_start_offset <= theirs[0].offset < topic.offsets.local_log_start_offset
    assert in_tier > 100
    assert exchanged(tidegate_of_times) > 100, "Tidegate answered them itself"


def exchanged(tidegate: RunningTidegate) -> float:
    """GETs of indexes and logs: only a look-up of our own makes them here."""
    return tidegate.metric("tidegate_cache_hits_total") + tidegate.metric("tidegate_cache_misses_total")


def test_many_partitions_and_kinds_in_one_request(sides: Sides, topics: list[TimedTopic]) -> None:
    chance = random.Random(7)
    for version, isolation in itertools.product(VERSIONS, (0, 1)):
        targets = [(topic.name, 0, chance.choice((*topic.times, *SPECIAL_TIMES[:2]))) for topic in topics]
        targets += [(topics[0].name, 99, 5), ("absent", 0, FIRST_MS)]
        chance.shuffle(targets)
        theirs, ours = sides.ask(version, targets, isolation)
        assert sorted(ours, key=by_key) == sorted(theirs, key=by_key), targets


def by_key(answer: ListedOffset) -> tuple[str, int]:
    return answer.topic, answer.partition


def test_duplicates_are_answered_as_the_broker_does(sides: Sides, topics: list[TimedTopic]) -> None:
    name = topics[0].name
    for version in (1, 5, 11):
        theirs, ours = sides.ask(version, [(name, 0, FIRST_MS), (name, 0, FIRST_MS), (topics[1].name, 0, 5)], 0)
        assert sorted(ours, key=repr) == sorted(theirs, key=repr), f"version {version}"
        assert any(answer.error_code for answer in theirs), f"version {version}"


def test_a_topic_made_anew_under_its_name_gets_no_old_offset(kafka: KafkaCluster, sides: Sides) -> None:
    name, _ = mixed(kafka, fresh_name("times-anew"))
    wait_settled(kafka, name)
    target = [(name, 0, FIRST_MS + 500)]
    theirs, ours = sides.ask(11, target, 0)
    assert ours == theirs
    assert ours[0].offset > 0
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.delete_topics([name], operation_timeout=30)[name].result(30)
    wait_until(lambda: sides.broker.list_offsets(11, target)[0].error_code, "the topic to be gone")
    assert sides.tidegate.list_offsets(11, target) == sides.broker.list_offsets(11, target)
    kafka.create_topic(name, 1, TIERED)
    produce(kafka, name, (Record(0, None, b"new", timestamp_ms=FIRST_MS + number) for number in range(5)))
    wait_until(lambda: sides.broker.list_offsets(11, [(name, 0, -1)])[0].offset == 5, "the new records")
    # Until the broker has read its own metadata of the topic it answers REPLICA_NOT_AVAILABLE.
    wait_until(lambda: not sides.broker.list_offsets(11, target)[0].error_code, "the broker to know the new topic")
    assert sides.tidegate.list_offsets(11, target) == sides.broker.list_offsets(11, target)
    assert sides.tidegate.list_offsets(11, target)[0].offset == -1


# --- topics ---


def mixed(kafka: KafkaCluster, name: str | None = None) -> tuple[str, set[int]]:
    """Times go up by steps, one in five is out of order by up to two segments; every compression in turn."""
    topic, chance = name or fresh_name("times-mixed"), random.Random(1)
    kafka.create_topic(topic, 1, {**TIERED, **small_segments(15)})
    times: list[int] = []
    for codec in CODECS:
        records = []
        for _ in range(RECORDS_OF_EACH):
            drift_ms = chance.randrange(-6000, 3000) if chance.random() < 0.2 else 0
            times.append(FIRST_MS + STEP_MS * len(times) + drift_ms)
            records.append(Record(0, None, chance.randbytes(50) + b"." * 100, timestamp_ms=times[-1]))
        produce(kafka, topic, iter(records), batch_num_messages=20, linger_ms=500, compression_type=codec)
    newest, oldest = max(times), min(times)
    borders = {0, oldest - 1, oldest, newest - 1, newest, newest + 1, 2**62}
    return topic, borders | {time + chance.choice((-1, 0, 0, 1)) for time in chance.sample(times, 150)}


def append_time(kafka: KafkaCluster) -> tuple[str, set[int]]:
    topic = fresh_name("times-append")
    kafka.create_topic(topic, 1, {**TIERED, **small_segments(10), "message.timestamp.type": "LogAppendTime"})
    started_ms = time.time_ns() // 1_000_000
    values = (Record(0, None, b"%d" % number * 20, timestamp_ms=FIRST_MS) for number in range(900))
    produce(kafka, topic, values, batch_num_messages=20, linger_ms=20, compression_type="lz4")
    ended_ms = time.time_ns() // 1_000_000
    step_ms = max(1, (ended_ms - started_ms) // 40)
    return topic, {0, started_ms - 1, ended_ms + 60_000, *range(started_ms, ended_ms, step_ms)}


def transactional(kafka: KafkaCluster) -> tuple[str, set[int]]:
    """Records of an old time, markers of now: a look-up between them lands on a marker."""
    topic = fresh_name("times-markers")
    kafka.create_topic(topic, 1, {**TIERED, **small_segments(12)})
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": topic, "linger.ms": 0})
    producer.init_transactions(30)
    for number in range(40):
        producer.begin_transaction()
        for record in range(3):
            producer.produce(topic, b"value", timestamp=FIRST_MS + 100 * number + record)
        producer.flush(30)
        if number % 3:
            producer.commit_transaction(30)
        else:
            producer.abort_transaction(30)
    now_ms = time.time_ns() // 1_000_000
    return topic, {
        0,
        *(FIRST_MS + 100 * number + 1 for number in range(0, 40, 4)),
        FIRST_MS + 10_000,
        *range(now_ms - 2000, now_ms, 50),
        now_ms + 60_000,
    }
