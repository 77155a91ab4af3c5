"""Two brokers behind a Tidegate that is never restarted: leaders move, brokers come and go and move, logs are cut.

What clients read stays what a direct reader gets: nothing lost, nothing repeated, nothing of a branch that was cut.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Self

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient

from protocol.wire.errors import ErrorCode
from tests.support.digests import TopicDigest, confluent_consumer, read_with_confluent
from tests.support.kafka import TIERED, Record, fresh_name, orders, own_cluster, produce, small_segments, wait_settled
from tests.support.raw_client import FetchedPartition, RawClient
from tests.support.replicas import broker_ports, leaders_of, move_leaders
from tests.support.tidegate import RunningTidegate, own_tidegate
from tests.support.waiting import wait_until
from tools.demo.kafka_cluster import KafkaCluster, free_port

pytestmark = [pytest.mark.integration, pytest.mark.needs("java", "kafka")]

NONE = ErrorCode.NONE
NOT_LEADER_OR_FOLLOWER = ErrorCode.NOT_LEADER_OR_FOLLOWER
REPLICA_NOT_AVAILABLE = ErrorCode.REPLICA_NOT_AVAILABLE
BATCH_RECORDS = 100
BATCHES_PER_SEGMENT = 4

LISTENER_RETIRED_S_MAX = 15.0
"""A broker that was killed is missed after three seconds, its listener closed at most five later."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[KafkaCluster]:
    with own_cluster(brokers=2, properties={"unclean.leader.election.enable": "true"}) as started:
        yield started


@pytest.fixture
def pair(cluster: KafkaCluster) -> KafkaCluster:
    """Brokers 1 and 2 running, whatever the test before did to them, and a controller of its own."""
    for node_id in (1, 2):
        if not cluster.broker(node_id).is_running:
            cluster.broker(node_id).start()
    return cluster


# --- leaders and brokers move ---


def test_a_consumer_gets_every_record_once_while_leaders_and_brokers_move(pair: KafkaCluster) -> None:
    topic, records = fresh_name("moving"), 20_000
    fill(pair, topic, orders(records, partitions=2), partitions=2)
    ports = {1: free_port(), 2: free_port()}
    with_three = {**ports, 3: free_port()}
    listeners = {"proxy.broker.ports": ",".join(f"{node_id}:{port}" for node_id, port in with_three.items())}
    with own_tidegate(pair, listeners) as tidegate, ReadingAlong(tidegate, topic, partitions=2) as reading:
        assert broker_ports(tidegate) == ports

        reading.read_up_to(0.10)
        move_leaders(pair, topic, {0: [2, 1], 1: [2, 1]})
        reading.read_up_to(0.25)
        move_leaders(pair, topic, {0: [1, 2], 1: [2, 1]})
        reading.read_up_to(0.35)
        pair.broker(1).stop()
        reading.read_up_to(0.45)
        pair.broker(1).choose_ports()
        pair.broker(1).start()
        move_leaders(pair, topic, {0: [1, 2], 1: [1, 2]})
        reading.read_up_to(0.55)
        assert broker_ports(tidegate) == ports

        joined = pair.add_broker()
        move_leaders(pair, topic, {0: [1, 2], 1: [joined.node_id, 1]})
        reading.read_up_to(0.70)
        assert broker_ports(tidegate) == with_three
        joined.kill()
        reading.read_up_to(0.85)
        pair.restart_broker(2, new_port=True)
        reading.read_up_to(1)

        assert reading.offsets == {partition: list(range(records // 2)) for partition in (0, 1)}
        ends = dict.fromkeys(reading.offsets, records // 2)
        assert reading.digest.result() == read_with_confluent(pair.bootstrap_servers, topic, ends, "read_uncommitted")
        tier_bytes = tidegate.metric("kafka_server_brokertopicmetrics_remotefetchbytes_total", topic=topic)
        assert tier_bytes > 0.5 * reading.value_bytes
        wait_until(
            lambda: broker_ports(tidegate) == ports, "broker 3 to be forgotten", timeout_s=LISTENER_RETIRED_S_MAX
        )
        wait_until(
            lambda: is_refused(with_three[joined.node_id]),
            "its listener to be closed",
            timeout_s=LISTENER_RETIRED_S_MAX,
        )


# --- a log is cut ---

COMMON, CUT, KEPT = b"before the cut", b"of the branch that was cut", b"of the branch that was kept"
CUT_AT = 1000
TIER_OFFSETS = (0, 150, 399, 400, 799)
"""In the tier alone, in segments of 400 offsets, before and after the cut."""

VERSIONS = (11, 12, 13, 17)
AGES: Mapping[str, Mapping[str, str]] = {
    "default ages": {},
    "ages of zero": {"authority.max.age.ms": "0", "frontier.max.age.ms": "0"},
    # Nothing is learned anew because of its age, only because of what the broker says.
    "an endless frontier": {"frontier.max.age.ms": "600000"},
}


def test_readers_of_old_offsets_do_not_notice_a_cut(pair: KafkaCluster) -> None:
    """An unclean election: broker 2 lacks what broker 1 had acknowledged, and leads. Broker 1 comes back, cut.

    What is cut is one batch that was never copied to the tier: else the metadata topic would be cut with it, and the
    broker itself would find its own tier no more.
    """
    topic = fresh_name("cut")
    fill(pair, topic, marked(COMMON, CUT_AT), leaders={0: [1, 2]})
    with ExitStack() as stack:
        tidegates = {name: stack.enter_context(own_tidegate(pair, ages)) for name, ages in AGES.items()}
        require_direct_answers(pair, tidegates, topic, leader=1)
        pair.broker(2).stop()
        fill(pair, topic, marked(CUT, BATCH_RECORDS), acks=1)
        answers = require_direct_answers(pair, tidegates, topic, leader=1)
        assert {answer.high_watermark for answer in answers} == {CUT_AT + BATCH_RECORDS}

        pair.broker(1).kill()
        pair.broker(2).start()
        wait_until(lambda: leaders_of(pair, topic) == {0: 2}, "broker 2 to lead")
        answers = require_direct_answers(pair, tidegates, topic, leader=2)
        assert {answer.high_watermark for answer in answers} == {CUT_AT}

        # Less than was cut: what was known of broker 1 points behind its end.
        fill(pair, topic, marked(KEPT, 50))
        pair.broker(1).start()
        move_leaders(pair, topic, {0: [1, 2]})
        remembers = tidegates["an endless frontier"]
        probes_before = remembers.metric("tidegate_probes_sent_total")
        require_direct_answers(pair, {"an endless frontier": remembers}, topic, leader=1, offsets=(0,), versions=(17,))
        assert remembers.metric("tidegate_probes_sent_total") - probes_before == 2, "a stale question, then a new one"
        answers = require_direct_answers(pair, tidegates, topic, leader=1)
        assert {answer.high_watermark for answer in answers} == {CUT_AT + 50}

        fill(pair, topic, marked(KEPT, 850))
        end = CUT_AT + 900
        require_direct_answers(pair, tidegates, topic, leader=1, offsets=(*TIER_OFFSETS, *range(800, end, 75)))
        direct = read_with_confluent(pair.bootstrap_servers, topic, {0: end}, "read_uncommitted")
        for name, tidegate in tidegates.items():
            through = read_with_confluent(tidegate.bootstrap_servers, topic, {0: end}, "read_uncommitted")
            assert through == direct, name


def require_direct_answers(
    pair: KafkaCluster,
    tidegates: Mapping[str, RunningTidegate],
    topic: str,
    *,
    leader: int,
    offsets: Sequence[int] = TIER_OFFSETS,
    versions: Sequence[int] = VERSIONS,
) -> list[FetchedPartition]:
    """Ask the leader by every version through every Tidegate; each answer must be the leader's own, with records."""
    answers: list[FetchedPartition] = []
    with ExitStack() as stack:
        direct = stack.enter_context(RawClient("127.0.0.1", pair.broker(leader).port))
        topic_id = direct.topic_id(topic)
        # A broker that came up says of its own tier "not available", and for a moment even "out of range".
        for offset in offsets:
            wait_served(direct, topic, topic_id, offset)
        for name, tidegate in tidegates.items():
            client = stack.enter_context(RawClient("127.0.0.1", broker_ports(tidegate)[leader]))
            for version, offset in itertools.product(versions, offsets):
                answer = fetch(client, version, topic, topic_id, offset)
                assert answer == fetch(direct, version, topic, topic_id, offset), f"{name}, {version}, offset {offset}"
                assert answer.error_code == NONE, f"{name}, version {version}, offset {offset}"
                assert CUT not in answer.records, f"{name}, version {version}, offset {offset}"
                answers.append(answer)
    return answers


def wait_served(direct: RawClient, topic: str, topic_id: bytes, offset: int) -> None:
    wait_until(
        lambda: fetch(direct, VERSIONS[-1], topic, topic_id, offset).records, f"the broker to serve offset {offset}"
    )


def fetch(client: RawClient, version: int, topic: str, topic_id: bytes, offset: int) -> FetchedPartition:
    """Records, or an error that ends a client's patience: others say that a leader is new, or is one no more."""
    target = (topic, topic_id, 0, offset, 64 * 1024)

    def answered() -> FetchedPartition | None:
        (answer,) = client.fetch(version, [target]).partitions
        is_final = answer.error_code not in (NONE, NOT_LEADER_OR_FOLLOWER, REPLICA_NOT_AVAILABLE)
        return answer if answer.records or is_final else None

    answer = wait_until(answered, f"records at {offset}")
    assert answer is not None
    return answer


def marked(marker: bytes, count: int) -> Iterator[Record]:
    for number in range(count):
        yield Record(0, None, b"%s %06d %s" % (marker, number, b"x" * 200))


# --- both ---


class ReadingAlong:
    """A consumer with an assignment of its own that reads as far as it is told, and hardly anything ahead."""

    def __init__(self, tidegate: RunningTidegate, topic: str, *, partitions: int) -> None:
        settings = {
            "queued.min.messages": 1,
            "fetch.message.max.bytes": 32 * 1024,
            "fetch.queue.backoff.ms": 5,
            "reconnect.backoff.max.ms": 500,
            "topic.metadata.refresh.interval.ms": 2000,
        }
        self.offsets: dict[int, list[int]] = {partition: [] for partition in range(partitions)}
        self.digest = TopicDigest(self.offsets)
        self.value_bytes = 0
        self._topic = topic
        self._ends = {0: 0}
        self._consumer: Consumer = confluent_consumer(tidegate.bootstrap_servers, "read_uncommitted", settings)

    def __enter__(self) -> Self:
        self._consumer.assign([TopicPartition(self._topic, partition, 0) for partition in self.offsets])
        low_high = [
            self._consumer.get_watermark_offsets(TopicPartition(self._topic, partition)) for partition in self.offsets
        ]
        self._ends = {partition: high for partition, (_, high) in zip(self.offsets, low_high, strict=True)}
        return self

    def __exit__(self, *_error: object) -> None:
        self._consumer.close()

    def read_up_to(self, share: float) -> None:
        """Read on until each partition has given this share of its records."""

        def is_there() -> bool:
            for message in self._consumer.consume(100, 0.1):
                error = message.error()
                if error is not None:
                    assert error.code() == KafkaError._PARTITION_EOF, str(error)
                    continue
                partition, offset = self.digest.add_message(message)
                self.offsets[partition].append(offset)
                self.value_bytes += len(message.value() or b"")
            return all(len(self.offsets[partition]) >= share * end for partition, end in self._ends.items())

        wait_until(is_there, f"{share:.0%} of the records")


def fill(
    pair: KafkaCluster,
    topic: str,
    records: Iterator[Record],
    *,
    partitions: int = 1,
    leaders: Mapping[int, Sequence[int]] | None = None,
    acks: int = -1,
) -> None:
    """Create the topic if need be, add the records in batches of BATCH_RECORDS, and wait for the tier."""
    if topic not in AdminClient({"bootstrap.servers": pair.bootstrap_servers}).list_topics(timeout=20).topics:
        pair.create_topic(topic, partitions, {**TIERED, **small_segments(BATCHES_PER_SEGMENT)}, replication_factor=2)
        if leaders is not None:
            move_leaders(pair, topic, leaders)
    produce(pair, topic, records, acks=acks, batch_num_messages=BATCH_RECORDS, linger_ms=500)
    wait_settled(pair, topic)


def is_refused(port: int) -> bool:
    try:
        RawClient("127.0.0.1", port).close()
    except ConnectionRefusedError:
        return True
    return False
