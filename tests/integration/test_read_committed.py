"""READ_COMMITTED over the tier and a real broker's local log: Tidegate lists the aborted transactions that the broker
lists, wherever their markers are.

A batch is one record here, so that offsets count batches, and segments roll by the number of batches.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from confluent_kafka import Producer

from tests.support.kafka import TIERED, fresh_name, small_segments, wait_settled
from tests.support.raw_client import FetchedPartition, FetchTarget, RawClient
from tests.support.replicas import broker_ports
from tests.support.tidegate import RunningTidegate
from tools.demo.kafka_cluster import KafkaCluster

READ_COMMITTED = 1
VERSIONS = range(11, 18)
SEGMENT_BATCHES = 8
LIMITS_BYTES = (1, 600, 1024 * 1024)
"""One batch; a few and a cut one; up to the segment's end."""

BATCH_BYTES_MIN = 78
"""A marker's."""

AGE_MS = 60_000
"""Of the first record: below the timestamps of markers, and not so far that those roll a segment."""

TRANSACTION_TIMEOUT_MS = 600_000
LATE_S = 0.4
"""Below the 0.5 s after which either side answers a read from the tier empty."""

ASKED_AGAIN_MAX = 5
SERVED_BYTES = "tidegate_served_tier_bytes_total"


class Writer:
    """Writes to partition 0 of a topic, batch by batch."""

    def __init__(self, kafka: KafkaCluster, stem: str) -> None:
        self.topic = fresh_name(stem)
        self._kafka = kafka
        kafka.create_topic(self.topic, 1, {**TIERED, **small_segments(SEGMENT_BATCHES)})
        self._plain = Producer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 0})
        self._timestamp_ms = time.time_ns() // 1_000_000 - AGE_MS

    def transactions(self, name: str) -> Producer:
        """A producer with transactions, none begun."""
        producer = Producer(
            {
                "bootstrap.servers": self._kafka.bootstrap_servers,
                "transactional.id": f"{self.topic}-{name}",
                "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
                "linger.ms": 0,
            }
        )
        producer.init_transactions(30)
        return producer

    def send(self, producer: Producer) -> None:
        # Two in one millisecond would share an entry of the time index, which fills up first.
        self._timestamp_ms += 1
        producer.produce(self.topic, b"value" * 20, b"key", 0, timestamp=self._timestamp_ms)
        assert producer.flush(30) == 0

    def fill(self, batches: int) -> None:
        for _ in range(batches):
            self.send(self._plain)

    def roll(self) -> int:
        """Fill until a segment begins; its base offset."""
        before = self.active_start()
        while self.active_start() == before:
            self.fill(1)
        return self.active_start()

    def active_start(self) -> int:
        """Base offset of the active segment."""
        return max(int(log.stem) for log in (self._kafka.broker(1).data_dir / f"{self.topic}-0").glob("*.log"))


@pytest.fixture(scope="module")
def far_markers(kafka: KafkaCluster) -> str:
    """Aborts with their markers in the same segment, in a later one, and (of a batch in the tier) in the local log."""
    writer = Writer(kafka, "far-markers")
    early, late, quick = (writer.transactions(name) for name in ("early", "late", "quick"))
    early.begin_transaction()
    writer.send(early)
    for commits in (False, True, False):
        quick.begin_transaction()
        writer.send(quick)
        quick.commit_transaction(30) if commits else quick.abort_transaction(30)
    writer.roll()
    writer.roll()
    early.abort_transaction(30)
    writer.roll()
    late.begin_transaction()
    writer.send(late)
    writer.roll()
    quick.begin_transaction()
    writer.send(quick)
    late.abort_transaction(30)
    quick.abort_transaction(30)
    writer.fill(1)
    return writer.topic


@pytest.fixture(scope="module")
def open_transaction(kafka: KafkaCluster) -> Iterator[str]:
    """The local log begins with an open transaction; behind it is the marker of one that began in the tier."""
    writer = Writer(kafka, "open-transaction")
    straddling, opened = writer.transactions("straddling"), writer.transactions("opened")
    first = writer.roll()
    second = writer.roll()
    straddling.begin_transaction()
    writer.send(straddling)
    # Up to where the next batch begins a segment.
    writer.fill(second - first - 2)
    opened.begin_transaction()
    writer.send(opened)
    assert writer.active_start() == 2 * second - first
    straddling.abort_transaction(30)
    writer.send(opened)
    yield writer.topic
    opened.abort_transaction(30)


def test_aborted_transactions_are_the_brokers_wherever_their_markers_are(
    kafka: KafkaCluster, tidegate: RunningTidegate, far_markers: str
) -> None:
    served_before = tidegate.metric(SERVED_BYTES)
    start, lists = compare(kafka, tidegate, far_markers)
    assert start > 3 * SEGMENT_BATCHES
    aborted = {entry for listed in lists for entry in listed}
    assert len(aborted) == 5
    # One of those below the local log start has its marker at or beyond it: no index of the tier tells of it.
    assert sum(first < start for _, first in aborted) == 4
    # None of the answers for offsets in the tier was the broker's.
    assert tidegate.metric(SERVED_BYTES) - served_before >= start * len(VERSIONS) * len(LIMITS_BYTES) * BATCH_BYTES_MIN


def test_a_transaction_open_at_the_local_log_start_hides_no_abort(
    kafka: KafkaCluster, tidegate: RunningTidegate, open_transaction: str
) -> None:
    start, lists = compare(kafka, tidegate, open_transaction)
    with RawClient("127.0.0.1", kafka.broker(1).port) as client:
        (stable,) = client.list_offsets(5, [(open_transaction, 0, -1)], isolation=READ_COMMITTED)
    assert stable.offset == start
    assert len({entry for listed in lists for entry in listed}) == 1


def compare(kafka: KafkaCluster, tidegate: RunningTidegate, topic: str) -> tuple[int, list[list[tuple[int, int]]]]:
    """Each offset at each version and limit, at the broker and through Tidegate; the local log start, and all lists."""
    offsets = wait_settled(kafka, topic)[0]
    lists = []
    with ExitStack() as clients:
        direct = clients.enter_context(RawClient("127.0.0.1", kafka.broker(1).port))
        # Tidegate's bootstrap listener does not say which broker it is; the fetches go to that of the leader.
        through = clients.enter_context(RawClient("127.0.0.1", broker_ports(tidegate)[1]))
        topic_id = direct.topic_id(topic)
        for version in VERSIONS:
            for offset in range(offsets.high_watermark + 1):
                for limit_bytes in LIMITS_BYTES:
                    target = (topic, topic_id if version >= 13 else None, 0, offset, limit_bytes)
                    expected = fetched(direct, version, target)
                    assert fields(fetched(through, version, target)) == fields(expected), (version, offset, limit_bytes)
                    lists.append(expected.aborted or [])
    assert offsets == kafka.partition_offsets(topic)[0]
    return offsets.local_log_start_offset, lists


def fields(answer: FetchedPartition) -> tuple[object, ...]:
    aborted = None if answer.aborted is None else (len(answer.aborted), {*answer.aborted})
    offsets = (answer.high_watermark, answer.last_stable_offset, answer.log_start_offset)
    return answer.error_code, offsets, aborted, answer.preferred_read_replica, answer.records


def fetched(client: RawClient, version: int, target: FetchTarget) -> FetchedPartition:
    """The answer, asked for again when it was late: a tier read that takes too long is answered empty."""
    for _ in range(ASKED_AGAIN_MAX):
        started_s = time.monotonic()
        (answer,) = client.fetch(version, [target], isolation=READ_COMMITTED, min_bytes=0, max_wait_ms=0).partitions
        if answer.records or time.monotonic() - started_s < LATE_S:
            return answer
    raise TimeoutError(f"no answer in time to {target}")
