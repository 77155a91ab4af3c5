"""What is wrong with the tier's files on disk, under a running broker and a running Tidegate.

Both are asked. What Tidegate cannot read it leaves to the broker, whose answer is the client's: an error for a lost
log, and whatever else the broker makes of files of which it checks neither sizes nor checksums. Tidegate itself hands
out none of that, never skips, and once the files are back it serves them without a restart. Every test has a partition
of its own, so that nothing of it is in a cache.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from protocol.wire.errors import ErrorCode
from tests.integration.reading import final_answer
from tests.support.kafka import TieredTopic, segmented_topic
from tests.support.raw_client import FetchedPartition, RawClient
from tests.support.replicas import broker_ports
from tests.support.tidegate import RunningTidegate
from tests.support.waiting import wait_until
from tools.demo.kafka_cluster import KafkaCluster

pytestmark = pytest.mark.integration

PARTITIONS = 14
RECORDS = 1000
BATCH_RECORDS = 100
BATCHES_PER_SEGMENT = 4
VERSION = 17
WHOLE_BATCHES_BYTES = 128 * 1024
"""More than a segment has."""

FALLBACK_READS = "tidegate_fallback_reads_total"
REMOTE_FETCH_REQUESTS = "kafka_server_brokertopicmetrics_remotefetchrequests_total"
REMOTE_FETCH_ERRORS = "kafka_server_brokertopicmetrics_remotefetcherrors_total"

_partitions = itertools.count()


@pytest.fixture(scope="module")
def topic(kafka: KafkaCluster) -> TieredTopic:
    """Each partition has two segments of four batches in the tier alone."""
    return segmented_topic(
        kafka,
        "tier-faults",
        RECORDS * PARTITIONS,
        partitions=PARTITIONS,
        batches=BATCHES_PER_SEGMENT,
        batch_records=BATCH_RECORDS,
    )


@dataclass(frozen=True, slots=True)
class Subject:
    """A partition that nobody has read from the tier yet, and whom to ask for it."""

    topic: str
    topic_id: bytes
    partition: int
    folder: Path
    broker: tuple[str, int]
    tidegate: RunningTidegate
    listener: tuple[str, int]

    def file(self, suffix: str, segment: int = 0) -> Path:
        return sorted(self.folder.glob(f"*.{suffix}"))[segment]

    def from_broker(self, offset: int = 0, max_bytes: int = WHOLE_BATCHES_BYTES) -> FetchedPartition:
        return self._ask(self.broker, offset, max_bytes)

    def from_tidegate(self, offset: int = 0, max_bytes: int = WHOLE_BATCHES_BYTES) -> FetchedPartition:
        return self._ask(self.listener, offset, max_bytes)

    @property
    def failed(self) -> FetchedPartition:
        """UNKNOWN_SERVER_ERROR as the broker writes it: no offsets, no records."""
        code = ErrorCode.UNKNOWN_SERVER_ERROR
        return FetchedPartition(self.topic, self.partition, code, -1, -1, -1, None, -1, b"")

    def is_the_brokers(self, offset: int) -> bool:
        """Whether Tidegate's one answer is the broker's one answer, and came from there."""
        reads = self.counted(FALLBACK_READS)
        with RawClient(*self.listener) as through, RawClient(*self.broker) as direct:
            target = (self.topic, self.topic_id, self.partition, offset, WHOLE_BATCHES_BYTES)
            answers = [client.fetch(VERSION, [target]).partitions for client in (through, direct)]
        return answers[0] == answers[1] and reads() == 1

    def wait_for_tier(self, offset: int) -> None:
        """Return when Tidegate reads the partition from the tier again."""
        reads = self.counted(REMOTE_FETCH_REQUESTS, topic=self.topic)

        def has_read() -> bool:
            self.from_tidegate(offset)
            return reads() > 0

        wait_until(has_read, "the tier is tried again")

    def counted(self, name: str, **labels: str) -> Callable[[], float]:
        """How much a metric has grown from now on."""
        before = self.tidegate.metric(name, **labels)
        return lambda: self.tidegate.metric(name, **labels) - before

    def _ask(self, address: tuple[str, int], offset: int, max_bytes: int) -> FetchedPartition:
        with RawClient(*address) as client:
            return final_answer(client, VERSION, (self.topic, self.topic_id, self.partition, offset, max_bytes))


@pytest.fixture
def subject(kafka: KafkaCluster, topic: TieredTopic, tidegate: RunningTidegate) -> Subject:
    partition = next(_partitions)
    broker = "127.0.0.1", kafka.broker(1).port
    with RawClient(*broker) as client:
        topic_id = client.topic_id(topic.name)
    (folder,) = kafka.tier_dir.glob(f"kafka-tiered-storage/{topic.name}-{partition}-*")
    listener = "127.0.0.1", broker_ports(tidegate)[1]
    return Subject(topic.name, topic_id, partition, folder, broker, tidegate, listener)


def test_a_lost_log_is_the_brokers_own_error_until_it_is_back(subject: Subject) -> None:
    before = subject.from_broker()
    errors = subject.counted(REMOTE_FETCH_ERRORS, topic=subject.topic)
    log, away = subject.file("log"), subject.file("log").with_suffix(".away")
    log.rename(away)
    assert subject.from_broker() == subject.from_tidegate() == subject.failed
    assert errors() == 1
    # The segment behind it is not what was asked for; it is served to those who ask.
    behind = BATCH_RECORDS * BATCHES_PER_SEGMENT
    assert subject.from_tidegate(behind) == subject.from_broker(behind)
    away.rename(log)
    assert subject.from_tidegate() == subject.from_broker() == before
    subject.wait_for_tier(0)
    assert subject.from_tidegate() == before
    assert errors() == 1


def test_a_truncated_log_is_an_error_and_never_a_gap(subject: Subject) -> None:
    before = subject.from_broker()
    errors = subject.counted(REMOTE_FETCH_ERRORS, topic=subject.topic)
    log = subject.file("log")
    content = log.read_bytes()
    last_offset = BATCH_RECORDS * BATCHES_PER_SEGMENT - 1
    for size_bytes in (0, 40, len(content) // 2, len(content) - 1):
        log.write_bytes(content[:size_bytes])
        assert subject.is_the_brokers(0), size_bytes
        assert subject.is_the_brokers(last_offset), size_bytes
    assert errors() >= 1
    log.write_bytes(content)
    assert subject.from_tidegate() == before
    assert subject.from_tidegate(last_offset) == subject.from_broker(last_offset)


@pytest.mark.parametrize(
    ("at", "what"),
    [(61 + 300, "a record"), (17, "the CRC"), (8, "the length"), (0, "the base offset"), (57, "the record count")],
)
def test_flipped_bytes_are_an_error_after_one_fresh_read(subject: Subject, at: int, what: str) -> None:
    before = subject.from_broker()
    log = subject.file("log")
    content = log.read_bytes()
    second = 12 + int.from_bytes(content[8:12], "big")
    spoiled = bytearray(content)
    spoiled[second + at] ^= 0x41
    log.write_bytes(spoiled)
    errors = subject.counted(REMOTE_FETCH_ERRORS, topic=subject.topic)
    quarantined = subject.counted("tidegate_cache_quarantined_blocks_total")
    # An answer that ends before the bad batch is good; one that would hold it is not Tidegate's to give.
    first_alone = subject.from_tidegate(0, max_bytes=second)
    assert (first_alone.error_code, first_alone.records) == (ErrorCode.NONE, content[:second])
    assert errors() == 0
    assert subject.is_the_brokers(BATCH_RECORDS), what
    assert (errors(), quarantined()) == (1, 2)
    assert subject.is_the_brokers(0), what
    log.write_bytes(content)
    assert subject.from_tidegate(0) == before
    assert subject.from_tidegate(BATCH_RECORDS) == subject.from_broker(BATCH_RECORDS)
