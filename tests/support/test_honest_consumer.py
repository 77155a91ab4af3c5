"""The honest consumer tells what it got and how long it waited, and a wait that goes on is seen while it does."""

import hashlib
import socket

from protocol.record_batches import iterate_batches
from tests.support.honest_consumer import HonestConsumer, read_once
from tests.support.kafka import TieredTopic
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until
from tools.demo.kafka_cluster import KafkaCluster

VERSION = 17
ALL_BYTES = 16 * 1024 * 1024


def test_each_round_has_the_brokers_own_bytes(kafka: KafkaCluster, tiered: TieredTopic) -> None:
    address = "127.0.0.1", kafka.broker(1).port
    # The tier and the local log are two answers, each of whole batches.
    ends = {partition: known.local_log_start_offset for partition, known in tiered.offsets.items()}
    right, digest = hashlib.sha256(), read_once(address, tiered.name, ends)
    with RawClient(*address) as client:
        topic_id = client.topic_id(tiered.name)
        for partition, end in ends.items():
            offset = 0
            while offset < end:
                (answer,) = client.fetch(VERSION, [(tiered.name, topic_id, partition, offset, ALL_BYTES)]).partitions
                if not answer.records:
                    continue  # a read from the tier that took too long
                right.update(answer.records)
                *_, (_, base_offset, *_, last_delta) = iterate_batches([answer.records])
                offset = base_offset + last_delta + 1
    assert digest == right.hexdigest()
    with HonestConsumer(address, tiered.name, ends) as honest:
        seen = honest.measure(0, rounds=2)
        honest.pause()
        paused = honest.look()
        assert honest.look() == paused
        honest.go_on()
        assert honest.measure(0).digests == {digest}
    assert seen.digests == {digest}
    assert (seen.reconnects, dict(seen.errors)) == (0, {})
    assert seen.answers > seen.rounds >= 2


def test_a_wait_that_goes_on_counts() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        HonestConsumer(silent.getsockname(), "orders", {0: 1}) as honest,
    ):
        first = wait_until(lambda: honest.look().worst_s, "the wait is seen")
        wait_until(lambda: honest.look().worst_s > first + 0.1, "it grows")
        assert honest.look().answers == 0
