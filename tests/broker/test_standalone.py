"""A copier's life on topics that have no tier of the brokers': copied, gone at the broker, read in order, deleted.

`tidegate serve` runs as a process, as operators run it. What is right is what was read at the broker while it still had
the records.
"""

import itertools
import random
import signal
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from protocol.wire.errors import ErrorCode
from tests.broker.sides import WAIT_S_MAX, fetched, for_both_libraries, kafka_python_is_quiet, library, listed, wait_for
from tests.support.client_scenarios import Request, _run
from tests.support.differential_steps import alter_configs, delete_records, end_transaction, transactional_producer
from tests.support.digests import Digests, Isolation, read_with_confluent
from tests.support.filled_topics import FIRST_TIMESTAMP_MS, ISOLATIONS, odd_records
from tests.support.kafka import Record, fresh_name, produce
from tests.support.plain_kafka import ends_of, standalone
from tests.support.raw_client import ListedOffset, RawClient
from tests.support.serving import Serving
from tests.support.tier_proofs import copied_offsets, segments_of, shared_rows
from tools.demo.kafka_cluster import KafkaCluster

pytestmark = [pytest.mark.needs("java", "kafka"), kafka_python_is_quiet]

KINDS = ("dropped", "cut", "part", "paused")
PARTITIONS = 2
"""Records of every odd kind in the first, transactions in the second."""
TIMES_MS = (-2, -1, -3, 0, FIRST_TIMESTAMP_MS + 250_000, FIRST_TIMESTAMP_MS + 900_000)
LIST_OFFSETS_VERSIONS = range(1, 12)
SEGMENT_BYTES = 64 * 1024
"""The least that `copy.segment.bytes` takes."""
MUCH_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Life:
    """A copier, and what the broker said of `dropped` before it had deleted all of it.

    All topics are in the tier, and the broker has none of their records any more.
    """

    served: Serving
    dropped: str
    cut: str
    kept_in_part: str
    paused: str
    ends: dict[int, int]
    digests: dict[Isolation, Digests]
    offsets: list[ListedOffset]

    def leader(self) -> RawClient:
        """A connection to what stands for the broker."""
        with self.served.client() as client:
            (broker,) = client.metadata([]).brokers
        return RawClient(broker.host, broker.port)


@pytest.fixture(scope="module")
def life(cluster: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Life]:
    dropped, cut, kept_in_part, paused = topics = [fresh_name(f"standalone-{each}") for each in KINDS]
    for topic in topics:
        cluster.create_topic(topic, PARTITIONS if topic == dropped else 1, {"retention.ms": "-1"})
        records = odd_records(0) if topic == dropped else large_records()
        produce(cluster, topic, records, compression_type="lz4", batch_num_messages=50)
    fill_transactions(cluster, dropped, 1)
    ends = {topic: ends_of(cluster, topic) for topic in topics}
    direct = {each: read_with_confluent(cluster.bootstrap_servers, dropped, ends[dropped], each) for each in ISOLATIONS}
    with RawClient("127.0.0.1", cluster.broker(1).port) as client:
        offsets = list_all(client, dropped)
    properties = {
        "copy.topics": "^standalone-.*",
        "copy.enabled": "true",
        "copy.segment.ms": "1000",
        "copy.segment.bytes": str(SEGMENT_BYTES),
        "copy.retention.from.topic": "true",
        "copy.delete.grace.ms": "0",
    }
    with standalone(cluster, tmp_path_factory.mktemp("standalone"), properties) as served:
        wait_for(lambda: "ready: bootstrap" in served.log(), "Tidegate to be ready")
        copied = {(topic, partition): end - 1 for topic in topics for partition, end in ends[topic].items()}
        wait_for(lambda: copied_offsets(served) == copied, "everything to be copied")
        for topic, partition in copied:
            delete_records(cluster, topic, partition, ends[topic][partition])
        yield Life(served, dropped, cut, kept_in_part, paused, ends[dropped], direct, offsets)
        served.terminate()
        assert served.process.wait(WAIT_S_MAX) == 0
        assert served.events("copy_partitions_revoked")
        assert not served.events("copy_gap")
        assert "Traceback" not in served.log()


def large_records() -> Iterator[Record]:
    """Four segments of them, and their time is now."""
    chance = random.Random(31)
    return (Record(0, b"key", chance.randbytes(1000)) for _ in range(250))


def fill_transactions(cluster: KafkaCluster, topic: str, partition: int) -> None:
    producer = transactional_producer(cluster, topic)
    for number in range(6):
        producer.begin_transaction()
        for _ in range(10):
            producer.produce(topic, b"%d" % number, b"key", partition, timestamp=FIRST_TIMESTAMP_MS + number)
        assert producer.flush(60) == 0  # else an abort forgets what was not sent
        end_transaction(producer, commits=number % 3 != 1)


def list_all(client: RawClient, topic: str) -> list[ListedOffset]:
    """Every version, both isolation levels, and every time."""
    return [
        answer
        for version, isolation, time_ms in itertools.product(LIST_OFFSETS_VERSIONS, (0, 1), TIMES_MS)
        for answer in listed(client, version, [(topic, each, time_ms) for each in range(PARTITIONS)], isolation)
    ]


@for_both_libraries
def test_what_the_broker_has_deleted_is_read_as_it_was(client: str, life: Life) -> None:
    for isolation in ISOLATIONS:
        expected = life.digests[isolation]
        lasts = {partition: each.last for partition, each in expected.items()}
        request = Request("digest", life.dropped, isolation=isolation, lasts=lasts)
        answer = _run(library(client, life.served.bootstrap), request)
        assert {partition: each["sha256"] for partition, each in answer["partitions"].items()} == {
            partition: each.sha256 for partition, each in expected.items()
        }, isolation
    committed, uncommitted = (life.digests[each][1].records for each in ("read_committed", "read_uncommitted"))
    assert committed < uncommitted
    assert life.served.metric("tidegate_copy_gaps_total") == 0
    assert life.served.metric("tidegate_tier_holes_stepped_over_total") == 0


def test_offsets_are_looked_up_as_they_were(life: Life) -> None:
    with life.leader() as client:
        assert list_all(client, life.dropped) == life.offsets


def test_deleted_records_are_gone_from_the_tier(cluster: KafkaCluster, life: Life) -> None:
    """Given a topic in the tier alone, when a client of Tidegate deletes what is before an offset, then its log begins
    there, and segments before that leave the tier."""
    segments = segments_of(cluster, life.cut)[0]
    cut = segments[1].start_offset + 1
    admin = AdminClient({"bootstrap.servers": life.served.bootstrap})
    (deleted,) = admin.delete_records([TopicPartition(life.cut, 0, cut)]).values()
    assert deleted.result(60).low_watermark == cut
    with life.leader() as client:
        assert [each.offset for each in listed(client, 7, [(life.cut, 0, -2)])] == [cut]
        topic_id = client.topic_id(life.cut)
        below = fetched(client, 17, (life.cut, topic_id, 0, cut - 1, MUCH_BYTES))
        assert (below.error_code, below.records) == (ErrorCode.OFFSET_OUT_OF_RANGE, b"")
        at = fetched(client, 17, (life.cut, topic_id, 0, cut, MUCH_BYTES))
        assert (at.error_code, at.log_start_offset) == (ErrorCode.NONE, cut)
    wait_for(lambda: segments_of(cluster, life.cut)[0] == segments[1:], "the first segment to leave the tier")


def test_the_tier_keeps_what_its_retention_says(cluster: KafkaCluster, life: Life) -> None:
    """Given a topic in the tier alone, when its `retention.bytes` becomes that of the last two segments, then the
    others go from the tier, the log begins behind them, and what is produced then follows on."""
    segments = segments_of(cluster, life.kept_in_part)[0]
    kept = segments[-2:]
    assert len(segments) > len(kept)
    alter_configs(cluster, life.kept_in_part, {"retention.bytes": str(sum(each.size_bytes for each in kept))})
    wait_for(lambda: segments_of(cluster, life.kept_in_part)[0] == kept, "old segments to leave the tier")
    start, end = kept[0].start_offset, kept[-1].end_offset + 1
    with life.leader() as client:
        assert [each.offset for each in listed(client, 7, [(life.kept_in_part, 0, -2)])] == [start]
    produce(cluster, life.kept_in_part, iter([Record(0, b"key", b"follows")]))
    (read,) = read_with_confluent(life.served.bootstrap, life.kept_in_part, {0: end + 1}, "read_uncommitted").values()
    assert (read.first, read.last, read.records) == (start, end, end + 1 - start)


def test_copying_stops_and_goes_on_as_the_configuration_says(cluster: KafkaCluster, life: Life) -> None:
    """Given a copier that has caught up, when `copy.disable` is set and the file is read again, then what is produced
    stays at the broker, and is copied when the key is taken back."""
    topic, served = life.paused, life.served

    def reload(value: str) -> None:
        known = dict(line.split("=", 1) for line in served.file.read_text().splitlines())
        served.write({**known, "copy.disable": value})
        served.process.send_signal(signal.SIGHUP)

    def waits_for() -> object:
        return {row["topic"]: row["waits_for"] for row in shared_rows(served)}[topic]

    end = ends_of(cluster, topic)[0]
    reload("true")
    wait_for(lambda: waits_for() == "copy.disable", "copying to stop")
    produce(cluster, topic, large_records())
    assert copied_offsets(served)[topic, 0] == end - 1
    reload("false")
    later = ends_of(cluster, topic)[0]
    wait_for(lambda: copied_offsets(served)[topic, 0] == later - 1, "copying to go on")
