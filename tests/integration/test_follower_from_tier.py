"""KIP-1023 (Kafka 4.3): a new follower begins its log behind the last tiered offset, not where the leader's begins.

When it then leads, the local log start jumps up: offsets that clients read from the broker a moment ago are only in the
tier, and so is the beginning of a transaction whose abort marker is in the new leader's log.
"""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from confluent_kafka import Producer

from tests.integration.reading import Reading
from tests.support.digests import Isolation, read_with_confluent
from tests.support.kafka import TIERED, Record, fresh_name, produce, small_segments
from tests.support.replicas import move_leaders
from tests.support.tidegate import own_tidegate
from tests.support.waiting import wait_until
from tools.demo.kafka_cluster import KafkaCluster

pytestmark = [pytest.mark.integration, pytest.mark.needs("java", "kafka")]

BATCH_RECORDS = 50
BATCHES_PER_SEGMENT = 4
VALUE_BYTES = 200
LOCAL_BYTES = 250_000
"""Some five segments, of twenty."""

ISOLATIONS: tuple[Isolation, ...] = ("read_uncommitted", "read_committed")


def test_a_leader_whose_log_begins_behind_the_tier_is_read_through_in_order(pair: KafkaCluster) -> None:
    topic = fresh_name("from-tier")
    end = fill(pair, topic)
    before = pair.partition_offsets(topic)[0]
    assert 0 < before.local_log_start_offset < before.latest_tiered_offset - 2 * BATCHES_PER_SEGMENT * BATCH_RECORDS

    with own_tidegate(pair) as tidegate, ExitStack() as stack:
        along = {
            isolation: stack.enter_context(Reading(tidegate.bootstrap_servers, topic, isolation=isolation))
            for isolation in ISOLATIONS
        }
        for reading in along.values():
            # Into what the old leader has in its own log, and the new one has not.
            reading.read_to(before.local_log_start_offset + BATCH_RECORDS + 1)

        move_leaders(pair, topic, {0: [1, 2]})
        move_leaders(pair, topic, {0: [2, 1]})
        after = pair.partition_offsets(topic)[0]
        assert after.local_log_start_offset == before.latest_tiered_offset + 1, "the follower began behind the tier"

        for isolation, reading in along.items():
            # The last record of all is committed, so both kinds of reader come to it.
            reading.read_to(end)
            direct = read_with_confluent(pair.bootstrap_servers, topic, {0: end}, isolation)
            assert not reading.errors
            assert reading.offsets[0] == sorted(set(reading.offsets[0]))
            assert reading.digest.result() == direct
            assert read_with_confluent(tidegate.bootstrap_servers, topic, {0: end}, isolation) == direct
        uncommitted, committed = (along[isolation].offsets[0] for isolation in ISOLATIONS)
        assert len(committed) < len(uncommitted)
        served = tidegate.metric("kafka_server_brokertopicmetrics_remotefetchbytes_total", topic=topic)
        assert served > 1.5 * before.latest_tiered_offset * VALUE_BYTES


def fill(cluster: KafkaCluster, topic: str) -> int:
    """Broker 1 alone has the topic, and has copied all but the active segment; its high watermark.

    One transaction is aborted within the tier; of another the first batch is in the tier and the marker is not.
    """
    configs = {**TIERED, **small_segments(BATCHES_PER_SEGMENT), "local.retention.bytes": str(LOCAL_BYTES)}
    cluster.create_topic(topic, 1, configs, replication_factor=1)
    move_leaders(cluster, topic, {0: [1]})
    early, late = (transactions(cluster, topic, name) for name in ("early", "late"))
    begin(early, topic)
    plain(cluster, topic, 6)
    early.abort_transaction(30)
    plain(cluster, topic, 10)
    begin(late, topic)
    plain(cluster, topic, 3)
    start = cluster.broker(1).data_dir / f"{topic}-0"

    def active_start() -> int:
        return max(int(log.stem) for log in start.glob("*.log"))

    # To a fresh segment: the marker and the last records must not close it.
    before = active_start()
    while active_start() == before:
        produce(cluster, topic, records(1), linger_ms=0)
    end = cluster.partition_offsets(topic)[0].high_watermark
    late.abort_transaction(30)
    # The broker answers before it has written the marker, and the last record of all is to be one that is read.
    wait_until(lambda: cluster.partition_offsets(topic)[0].high_watermark > end, "the abort marker")
    produce(cluster, topic, records(1), linger_ms=0)
    offsets = cluster.wait_tiered(
        topic, until=lambda known: known.latest_tiered_offset + 1 == active_start() and known.local_log_start_offset > 0
    )
    return offsets[0].high_watermark


def transactions(cluster: KafkaCluster, topic: str, name: str) -> Producer:
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": f"{topic}-{name}"})
    producer.init_transactions(30)
    return producer


def begin(producer: Producer, topic: str) -> None:
    """A transaction with one batch in it, left open."""
    producer.begin_transaction()
    for record in records(5):
        producer.produce(topic, record.value, record.key, 0)
    assert producer.flush(30) == 0


def plain(cluster: KafkaCluster, topic: str, segments: int) -> None:
    count = segments * BATCHES_PER_SEGMENT * BATCH_RECORDS
    produce(cluster, topic, records(count), batch_num_messages=BATCH_RECORDS)


def records(count: int) -> Iterator[Record]:
    for number in range(count):
        yield Record(0, b"key", b"%06d %s" % (number, b"x" * VALUE_BYTES))
