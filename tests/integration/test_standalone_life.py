"""A life in standalone mode: brokers without a tier that keep ten seconds, and who reads all there ever was.

What is right is what consumers at the broker itself read while it was still there. The broker is restarted in between,
and deletes by its own `retention.ms` all the time.
"""

import random
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Producer, TopicPartition

from storage.formats.local_tiered_storage import ROOT_DIRECTORY_NAME
from table.history.scan import scan
from tests.support.differential_steps import QUIETLY, end_transaction, transactional_producer
from tests.support.digests import (
    Digests,
    Isolation,
    TopicDigest,
    confluent_consumer,
    fields_of,
    read_with_confluent,
    scanned,
)
from tests.support.filled_topics import CODECS, ISOLATIONS
from tests.support.kafka import Record, produce, small_segments
from tests.support.plain_kafka import ends_of, serving_copies, wait_dropped
from tests.support.tier_proofs import check_whole, copied_offsets
from tests.support.waiting import wait_until
from tools.demo.kafka_cluster import KafkaCluster

pytestmark = [pytest.mark.integration, pytest.mark.needs("java", "kafka")]

RETENTION_MS = 8000
"""A record is in the tier after two seconds at most on a quiet machine, and must be before this."""
PLAIN, ABORTING = "life-codecs", "life-transactions"
CHASED = 0
"""The partition of PLAIN that is read as fast as the broker deletes it."""
WAIT_S_MAX = 90.0


class Reading(threading.Thread):
    """Reads a topic from its first offset on until it has all up to some ends, which are said later.

    Args:
        age_ms: each record is waited for until it is so old; 0: read as fast as they come.
    """

    def __init__(self, bootstrap: str, topic: str, partitions: int, isolation: Isolation, *, age_ms: int = 0) -> None:
        super().__init__(daemon=True)
        self._servers, self._topic, self._isolation, self._age_ms = bootstrap, topic, isolation, age_ms
        self._positions = dict.fromkeys(range(partitions), 0)
        self._digest = TopicDigest(self._positions)
        self._stopping = threading.Event()
        self.errors: list[str] = []

    def run(self) -> None:
        # Little is held in advance: what is asked for next is what the broker is about to delete.
        little = {"queued.min.messages": 1, "fetch.message.max.bytes": 4096, "fetch.queue.backoff.ms": 5}
        settings = {**QUIETLY, **(little if self._age_ms else {})}
        with closing(confluent_consumer(self._servers, self._isolation, settings)) as consumer:
            consumer.assign([TopicPartition(self._topic, partition, 0) for partition in self._positions])
            while not self._stopping.is_set():
                for message in consumer.consume(1 if self._age_ms else 500, 0.1):
                    error = message.error()
                    if error is None:
                        partition, offset, timestamp_ms, *_ = fields_of(message)
                        self._stopping.wait(max(0.0, timestamp_ms + self._age_ms - time.time() * 1000) / 1000)
                        self._digest.add_message(message)
                        self._positions[partition] = offset + 1
                    elif error.code() == KafkaError._PARTITION_EOF:
                        # Behind the last record there may be markers, and records that were aborted.
                        self._positions[message.partition() or 0] = message.offset() or 0
                    else:
                        self.errors.append(str(error))

    def has(self, ends: Mapping[int, int]) -> bool:
        """Return whether it has read up to these."""
        assert self.errors == []
        return all(self._positions[partition] >= end for partition, end in ends.items())

    def result(self, ends: Mapping[int, int]) -> Digests:
        wait_until(lambda: self.has(ends), f"{self._topic} to be read", timeout_s=WAIT_S_MAX)
        self._stopping.set()
        self.join(30)
        assert self.errors == []
        return self._digest.result()

    def stop(self) -> None:
        self._stopping.set()


@contextmanager
def reading(bootstrap: str, topic: str, partitions: int, isolation: Isolation, *, age_ms: int = 0) -> Iterator[Reading]:
    started = Reading(bootstrap, topic, partitions, isolation, age_ms=age_ms)
    started.start()
    try:
        yield started
    finally:
        started.stop()


class Writing:
    """Rounds of records: a partition for each codec, and transactions of two producers, one of them over rounds."""

    RECORDS, BATCH = 60, 20

    def __init__(self, kafka: KafkaCluster) -> None:
        self._kafka = kafka
        self._chance = random.Random(22)
        self._rounds = 0
        self._quick: Producer = transactional_producer(kafka, "life-quick")
        self._slow: Producer = transactional_producer(kafka, "life-slow")
        self._slow_is_open = False

    def round(self) -> None:
        for partition, codec in enumerate(CODECS):
            produce(
                self._kafka,
                PLAIN,
                (self._record(partition) for _ in range(self.RECORDS)),
                compression_type=codec,
                batch_num_messages=self.BATCH,
            )
        if not self._slow_is_open:
            self._slow.begin_transaction()
            self._slow_is_open = True
        _send(self._slow, b"slow", 5)
        for number in range(4):
            self._quick.begin_transaction()
            _send(self._quick, b"quick", self._chance.randrange(1, 30))
            end_transaction(self._quick, commits=number % 3 > 0)
        self._rounds += 1
        if self._rounds % 3 == 0:
            self.end_slow()

    def end_slow(self) -> None:
        """An open transaction holds copying back."""
        if self._slow_is_open:
            end_transaction(self._slow, commits=self._rounds % 2 == 0)
            self._slow_is_open = False

    def _record(self, partition: int) -> Record:
        size = self._chance.randrange(20, 400)
        value = self._chance.randbytes(size // 2) + b"." * (size - size // 2)
        return Record(partition, b"key-%d" % (size % 31), value, (("n", b"%d" % size),))


def _send(producer: Producer, key: bytes, count: int) -> None:
    for number in range(count):
        producer.produce(ABORTING, b"%d " % number * 20, key, 0)
    assert producer.flush(60) == 0


def test_all_that_there_ever_was_is_read_in_order(plain_kafka: KafkaCluster, tmp_path: Path) -> None:
    """Given a broker that keeps RETENTION_MS and `serve` with `copy.enabled`, when producers of every kind have written
    through restarts of the broker, then everything is read through Tidegate as it was read at the broker while
    it was there; who read on where the broker's log starts, which moved all the time, heard no error; and no offset is
    lost."""
    live(plain_kafka, tmp_path, restarts=1)


def live(kafka: KafkaCluster, folder: Path, restarts: int) -> None:
    with ExitStack() as stack:
        configs = {"retention.ms": str(RETENTION_MS), **small_segments(13)}
        kafka.create_topic(PLAIN, len(CODECS), configs)
        kafka.create_topic(ABORTING, 1, configs)
        served = stack.enter_context(serving_copies(kafka, folder, f"{PLAIN},{ABORTING}", copy_group_id=PLAIN))
        tails = {
            (topic, isolation): stack.enter_context(reading(kafka.bootstrap_servers, topic, partitions, isolation))
            for topic, partitions in ((PLAIN, len(CODECS)), (ABORTING, 1))
            for isolation in ISOLATIONS
        }
        chaser = stack.enter_context(reading(served.bootstrap, PLAIN, 1, "read_uncommitted", age_ms=RETENTION_MS))
        writing = Writing(kafka)

        def is_safe() -> bool:
            copied = copied_offsets(served)
            known = {topic: ends_of(kafka, topic) for topic in (PLAIN, ABORTING)}
            return all(tail.has(known[topic]) for (topic, _), tail in tails.items()) and all(
                copied.get((topic, partition)) == end - 1
                for topic, ends in known.items()
                for partition, end in ends.items()
            )

        for _ in range(restarts):
            for _ in range(3):
                writing.round()
            writing.end_slow()
            wait_until(is_safe, "everything to be read and copied", timeout_s=WAIT_S_MAX)
            kafka.restart_broker(1)
        before = ends_of(kafka, PLAIN)
        writing.round()  # in the last epoch, though all before it may have been deleted by now
        deadline_s = time.monotonic() + WAIT_S_MAX
        while any(each.log_start_offset < before[number] for number, each in kafka.partition_offsets(PLAIN).items()):
            assert time.monotonic() < deadline_s, "the broker deletes nothing"
            writing.round()
        writing.end_slow()
        ends = {topic: ends_of(kafka, topic) for topic in (PLAIN, ABORTING)}
        direct = {key: tail.result(ends[key[0]]) for key, tail in tails.items()}
        assert direct[ABORTING, "read_committed"] != direct[ABORTING, "read_uncommitted"]
        for topic in ends:
            wait_dropped(kafka, topic, ends[topic])

        for topic, isolation in tails:
            assert read_with_confluent(served.bootstrap, topic, ends[topic], isolation) == direct[topic, isolation]
        check_scans(kafka, served.file, direct, ends)
        assert chaser.result({CHASED: ends[PLAIN][CHASED]})[CHASED] == direct[PLAIN, "read_uncommitted"][CHASED]
        assert served.metric("tidegate_copy_gaps_total") == 0
        assert served.metric("tidegate_tier_holes_stepped_over_total") == 0
        assert not [word for word in ("copy_gap", "Traceback") if word in served.log()]
        for topic in ends:
            segments = check_whole(kafka, folder, topic, dict.fromkeys(ends[topic], 0), ends[topic])
            for each in segments.values():
                assert len({epoch for segment in each for epoch in segment.epochs}) > 1


def check_scans(
    kafka: KafkaCluster, file: Path, direct: Mapping[tuple[str, Isolation], Digests], ends: Mapping[str, dict[int, int]]
) -> None:
    """Scans of the same tier by both formats that standalone mode has without a server."""
    for config in (file, plain_objects(kafka)):
        for isolation in ISOLATIONS:
            expected = {topic: direct[topic, isolation] for topic in ends}
            assert scanned(scan(config, [*ends], isolation=isolation).batches(), ends) == expected


def plain_objects(kafka: KafkaCluster) -> dict[str, str]:
    """The same tier as objects in a store of files, which is whose layout it has."""
    return {
        "upstream.bootstrap.servers": kafka.bootstrap_servers,
        "mode": "standalone",
        "remote.log.storage.manager.class.name": "tidegate.PlainObjects",
        "rsm.config.storage.backend.class": "io.aiven.kafka.tieredstorage.storage.filesystem.FileSystemStorage",
        "rsm.config.storage.root": str(kafka.tier_dir / ROOT_DIRECTORY_NAME),
    }
