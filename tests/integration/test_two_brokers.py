"""Two brokers behind a Tidegate that is never restarted: leaders move, brokers come and go and move.

What clients read stays what a direct reader gets: nothing lost, nothing repeated. Logs that are cut:
test_unclean_election.py.
"""

import pytest

from tests.integration.reading import Reading
from tests.support.digests import read_with_confluent
from tests.support.kafka import TIERED, fresh_name, orders, produce, small_segments, wait_settled
from tests.support.replicas import broker_ports, move_leaders
from tests.support.server_process import is_refused
from tests.support.tidegate import own_tidegate
from tests.support.waiting import wait_until
from tools.demo.kafka_cluster import KafkaCluster, free_port

pytestmark = [pytest.mark.integration, pytest.mark.needs("java", "kafka")]

BATCH_RECORDS = 100
BATCHES_PER_SEGMENT = 4


def test_a_consumer_gets_every_record_once_while_leaders_and_brokers_move(pair: KafkaCluster) -> None:
    topic, records = fresh_name("moving"), 20_000
    pair.create_topic(topic, 2, {**TIERED, **small_segments(BATCHES_PER_SEGMENT)}, replication_factor=2)
    produce(pair, topic, orders(records, partitions=2), batch_num_messages=BATCH_RECORDS)
    wait_settled(pair, topic)
    ports = {1: free_port(), 2: free_port()}
    with_three = {**ports, 3: free_port()}
    listeners = {"proxy.broker.ports": ",".join(f"{node_id}:{port}" for node_id, port in with_three.items())}
    patience = {"reconnect.backoff.max.ms": 500, "topic.metadata.refresh.interval.ms": 2000}
    with (
        own_tidegate(pair, listeners) as tidegate,
        Reading(tidegate.bootstrap_servers, topic, patience, partitions=(0, 1)) as reading,
    ):
        assert broker_ports(tidegate) == ports

        def read_up_to(share: float) -> None:
            """Read on until each partition has given this share of its records."""
            reading.read_on(lambda: all(len(each) >= share * records / 2 for each in reading.offsets.values()))
            assert not reading.errors

        read_up_to(0.10)
        move_leaders(pair, topic, {0: [2, 1], 1: [2, 1]})
        read_up_to(0.25)
        move_leaders(pair, topic, {0: [1, 2], 1: [2, 1]})
        read_up_to(0.35)
        pair.broker(1).stop()
        read_up_to(0.45)
        pair.broker(1).choose_ports()
        pair.broker(1).start()
        move_leaders(pair, topic, {0: [1, 2], 1: [1, 2]})
        read_up_to(0.55)
        assert broker_ports(tidegate) == ports

        joined = pair.add_broker()
        move_leaders(pair, topic, {0: [1, 2], 1: [joined.node_id, 1]})
        read_up_to(0.70)
        assert broker_ports(tidegate) == with_three
        joined.kill()
        read_up_to(0.85)
        pair.restart_broker(2, new_port=True)
        read_up_to(1)

        assert reading.offsets == {partition: list(range(records // 2)) for partition in (0, 1)}
        ends = dict.fromkeys(reading.offsets, records // 2)
        assert reading.digest.result() == read_with_confluent(pair.bootstrap_servers, topic, ends, "read_uncommitted")
        tier_bytes = tidegate.metric("kafka_server_brokertopicmetrics_remotefetchbytes_total", topic=topic)
        assert tier_bytes > 0.5 * reading.value_bytes
        wait_until(lambda: broker_ports(tidegate) == ports, "broker 3 to be forgotten")
        wait_until(lambda: is_refused(with_three[joined.node_id]), "its listener to be closed")
