"""Consumers that pause longer than any patience, as `assign()` consumers do that work on what they got: they go on.

Java's network thread is the one that polls, so while its owner works nobody reads the socket.
"""

from collections.abc import Sequence

import pytest

from tests.support.hostile_clients import crowd
from tests.support.hostile_stage import MIB, HonestTopic, LargeTopic, hostile_stage
from tests.support.raw_client import RawClient, fetch_request, fetch_result
from tools.demo.kafka_cluster import KafkaCluster

pytestmark = pytest.mark.needs("linux")

VERSION = 17
STALL_MS = 200
PAUSE_S = 3.0
"""Several times the stall, while others wait for the same memory."""
PAUSING = 6
ASKED_BYTES = 16 * MIB
"""All of them together ask for three times what unsent answers may have."""
READ_FIRST_BYTES = 64 * 1024
TRIES_MAX = 20


def test_consumers_that_pause_get_the_right_bytes_and_stay_connected(
    kafka: KafkaCluster, honest_topic: HonestTopic, large_topic: LargeTopic
) -> None:
    """How it failed: blocks were held for good, so that one pausing job of Spark or Connect ended everyone's reads."""
    right = large_topic.log.read_bytes()
    with hostile_stage(kafka, honest_topic, {"expert.proxy.send.stall.ms": str(STALL_MS)}) as stage:
        with crowd(stage.leader, PAUSING) as consumers:
            firsts = begin(consumers, large_topic)
            stage.suffer(PAUSE_S)
            for consumer, first in zip(consumers, firsts, strict=True):
                assert len(rest(consumer, first, large_topic, right)) >= MIB
            for consumer in consumers:
                (again,) = consumer.patient_fetch(VERSION, [large_topic.target(MIB)]).partitions
                assert again.records
                assert right.startswith(again.records)
        stage.recover()
        stage.check()


def begin(consumers: Sequence[RawClient], topic: LargeTopic) -> list[bytes]:
    """Let each ask, and read just the beginning of its answer."""
    return [first_bytes(consumer, topic) for consumer in consumers]


def first_bytes(consumer: RawClient, topic: LargeTopic) -> bytes:
    """Return the first bytes of an answer with records; clients that wait for room get empty ones before it."""
    for _ in range(TRIES_MAX):
        consumer.send(fetch_request(VERSION, [topic.target(ASKED_BYTES)], max_wait_ms=500))
        head = consumer.read_exactly(4)
        size = int.from_bytes(head, "big")
        if size > READ_FIRST_BYTES:
            return head + consumer.read_exactly(READ_FIRST_BYTES)
        consumer.read_exactly(size)
    raise AssertionError(f"{TRIES_MAX} empty answers")


def rest(consumer: RawClient, first: bytes, topic: LargeTopic, right: bytes) -> bytes:
    """The records of the answer that begins with `first`, which are the log's."""
    size = 4 + int.from_bytes(first[:4], "big")
    frame = first + consumer.read_exactly(size - len(first))
    (answer,) = fetch_result(frame, VERSION, {topic.topic_id: topic.name}).partitions
    assert answer.error_code == 0
    assert right.startswith(answer.records)
    return answer.records
