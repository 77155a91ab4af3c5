"""A transaction that hangs, before brokers without a tier: upstream deletes it, and what others have written beside it.

Copying ends where it begins. Others that began before it end behind it, in what the broker then deletes: how they ended
only the tier can say.
"""

from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition

from tests.support.differential_steps import (
    alter_configs,
    delete_records,
    end_transaction,
    send,
    transactional_producer,
)
from tests.support.digests import Isolation, confluent_consumer, fields_of
from tests.support.kafka import fresh_name, orders, produce, small_segments
from tests.support.plain_kafka import drop_all, serving_copies
from tests.support.tier_proofs import copied_offsets
from tests.support.waiting import wait_until
from tools.demo.kafka_cluster import KafkaCluster

pytestmark = [pytest.mark.integration, pytest.mark.needs("java", "kafka")]

Records = list[tuple[object, ...]]
"""What a digest takes, for each."""

HANGING_MS = 900_000
"""The longest transaction that a broker takes by default."""


class Writing:
    """Transactions of one topic; `hangs_at` is where the one begins that does not end."""

    def __init__(self, kafka: KafkaCluster, topic: str, *, aborts: bool) -> None:
        self._kafka, self._topic = kafka, topic
        names = [fresh_name("hanging") for _ in range(3)]
        committing, aborting, hanging = (transactional_producer(kafka, each, timeout_ms=HANGING_MS) for each in names)
        self._ending, self._hanging = (committing, aborting), hanging
        produce(kafka, topic, orders(200, 1))
        for commits in (True, not aborts, True):
            committing.begin_transaction()
            send(committing, topic, 40)
            end_transaction(committing, commits=commits)
        for producer in self._ending:
            producer.begin_transaction()
            send(producer, topic, 20)
        produce(kafka, topic, orders(100, 1))
        self.hangs_at = self.end
        hanging.begin_transaction()
        send(hanging, topic, 10)
        for producer, commits in ((committing, True), (aborting, not aborts)):
            send(producer, topic, 20)
            end_transaction(producer, commits=commits)

    @property
    def end(self) -> int:
        return self._kafka.partition_offsets(self._topic)[0].high_watermark

    def go_on(self) -> None:
        """Others have more transactions: no broker remembers how the ones before have ended."""
        for commits in (False, True):
            for producer in self._ending:
                producer.begin_transaction()
                send(producer, self._topic, 30)
                end_transaction(producer, commits=commits)

    def end_hanging(self) -> None:
        end_transaction(self._hanging, commits=False)


@pytest.mark.parametrize("aborts", [True, False])
def test_committed_records_are_read_when_upstream_has_deleted_what_hangs(
    plain_kafka: KafkaCluster, tmp_path: Path, aborts: bool
) -> None:
    """Failed before: readers got nothing behind the last abort, or nothing at all, and were told to come again for
    ever."""
    topic = fresh_name("hanging")
    plain_kafka.create_topic(topic, 1, small_segments(batches=20))
    with serving_copies(plain_kafka, tmp_path, topic) as served:
        writing = Writing(plain_kafka, topic, aborts=aborts)
        hangs_at = writing.hangs_at
        expected = _read(plain_kafka.bootstrap_servers, topic, end=hangs_at)
        both = _read(plain_kafka.bootstrap_servers, topic, end=hangs_at, isolation="read_uncommitted")
        assert len(both) - len(expected) == (60 if aborts else 0)
        wait_until(lambda: copied_offsets(served).get((topic, 0)) == hangs_at - 1, "what is stable", timeout_s=60)
        writing.go_on()
        delete_records(plain_kafka, topic, 0, writing.end - 5)

        with closing(confluent_consumer(served.bootstrap, "read_committed")) as waiting:
            waiting.assign([TopicPartition(topic, 0, hangs_at)])

            def is_named() -> bool:
                assert waiting.consume(1, 0.1) == []
                return f"began it at offset {hangs_at} " in served.page("/readyz")[1]

            wait_until(is_named, "the producer to be named")
        assert _read(served.bootstrap, topic, count=len(expected)) == expected

        drop_all(plain_kafka, topic, {0: writing.end})

        assert _read(served.bootstrap, topic, count=len(expected)) == expected
        assert _read(served.bootstrap, topic, count=len(both), isolation="read_uncommitted") == both

        alter_configs(plain_kafka, topic, {"retention.ms": "-1"})
        start = writing.end
        writing.end_hanging()
        writing.go_on()
        expected += _read(plain_kafka.bootstrap_servers, topic, first=start, end=writing.end)
        assert _read(served.bootstrap, topic, count=len(expected)) == expected
        wait_until(lambda: "a transaction is open" not in served.page("/readyz")[1], "no complaint")


def _read(
    bootstrap: str,
    topic: str,
    *,
    first: int = 0,
    end: int | None = None,
    count: int = 0,
    isolation: Isolation = "read_committed",
) -> Records:
    """Partition 0 by librdkafka, below `end` as far as there is something for its reader; or so many records."""
    records: Records = []
    is_over = False
    with closing(confluent_consumer(bootstrap, isolation)) as consumer:
        consumer.assign([TopicPartition(topic, 0, first)])

        def has_all() -> bool:
            nonlocal is_over
            for message in consumer.consume(500, 0.1):
                if message.error() is not None:
                    is_over = True
                elif end is None or (message.offset() or 0) < end:
                    records.append(fields_of(message))
            return is_over if end is not None else len(records) >= count

        wait_until(has_all, f"{topic} to be read by {isolation}")
    return records
