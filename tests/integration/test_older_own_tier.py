"""A tier of our own before brokers that have no topic ids in Fetch (before Kafka 3.1): their clients read all of it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from protocol.wire.identifiers import ApiKey
from tests.support.broker_relay import older_broker
from tests.support.differential_steps import end_transaction, transactional_producer
from tests.support.digests import read_with_confluent
from tests.support.filled_topics import ISOLATIONS
from tests.support.kafka import fresh_name, orders, produce, small_segments
from tests.support.plain_kafka import drop_all, ends_of, serving_copies
from tests.support.tier_proofs import copied_offsets
from tests.support.waiting import wait_until
from tools.demo.kafka_cluster import KafkaCluster

pytestmark = [pytest.mark.integration, pytest.mark.needs("java", "kafka")]

AS_2_8: Final[Mapping[int, int]] = {ApiKey.LIST_OFFSETS: 6, ApiKey.METADATA: 11}


@pytest.mark.parametrize("fetch_version_max", [11, 12])
def test_a_tier_is_served_where_fetch_knows_no_topic_ids(
    plain_kafka: KafkaCluster, tmp_path: Path, fetch_version_max: int
) -> None:
    topic = fresh_name("older-own")
    plain_kafka.create_topic(topic, 1, small_segments(batches=20))
    produce(plain_kafka, topic, orders(600, 1))
    _write_transactions(plain_kafka, topic)
    produce(plain_kafka, topic, orders(600, 1))
    ends = ends_of(plain_kafka, topic)
    direct = {
        isolation: read_with_confluent(plain_kafka.bootstrap_servers, topic, ends, isolation)
        for isolation in ISOLATIONS
    }
    versions_max: dict[int, int] = {**AS_2_8, ApiKey.FETCH: fetch_version_max}
    with (
        older_broker(plain_kafka, versions_max) as older,
        serving_copies(plain_kafka, tmp_path, topic, upstream_bootstrap_servers=older) as served,
    ):
        wait_until(lambda: copied_offsets(served).get((topic, 0)) == ends[0] - 1, "all to be copied", timeout_s=60)
        drop_all(plain_kafka, topic, ends)

        for isolation in ISOLATIONS:
            assert read_with_confluent(served.bootstrap, topic, ends, isolation) == direct[isolation]


def _write_transactions(kafka: KafkaCluster, topic: str) -> None:
    producer = transactional_producer(kafka, fresh_name("older"))
    for commits in (True, False, True):
        producer.begin_transaction()
        for number in range(50):
            producer.produce(topic, b"%d" % number, b"key", 0)
        end_transaction(producer, commits=commits)
