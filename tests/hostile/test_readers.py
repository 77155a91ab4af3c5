"""Clients that ask for much and do not read it, or hardly: others are served as if they were not there."""

from itertools import cycle

import pytest

from tests.support.hostile_clients import crowd, trickling_readers, wait_answers
from tests.support.hostile_stage import MIB, HostileStage, LargeTopic
from tests.support.raw_client import RawClient, fetch_request, request_frame
from tools.demo.kafka_cluster import KafkaCluster

pytestmark = pytest.mark.needs("linux")

VERSION = 17
SUFFER_S = 3.0
ASKED_BYTES = tuple(size * MIB for size in (50, 30, 16, 8))
"""With so little memory the largest may be answered empty; the others find room, and keep it."""
OFFSETS = range(0, 1200, 300)
"""9 MiB apart, so that they share few blocks."""


def test_stuck_readers_of_the_tier(stage: HostileStage, large_topic: LargeTopic) -> None:
    """How it failed: their blocks were held until they closed, and everybody else's Fetch was empty after 0.5 s."""
    with crowd(stage.leader, 12) as clients:
        for client, size, offset in zip(clients, cycle(ASKED_BYTES), cycle(OFFSETS), strict=False):
            client.send_bytes(request_frame(fetch_request(VERSION, [large_topic.target(size, offset)]), 1))
        wait_answers(clients)
        stage.suffer(SUFFER_S)
    stage.recover()
    stage.check()


def test_stuck_readers_of_local_records(stage: HostileStage, local_topic: str) -> None:
    """Their answers go from socket to socket: what waits for them is the broker's, and the pipe's."""
    with RawClient(*stage.leader) as client:
        local_id = client.topic_id(local_topic)
    with crowd(stage.leader, 12) as clients:
        for client, number in zip(clients, cycle(range(6)), strict=False):
            client.send_bytes(request_frame(fetch_request(VERSION, [(local_topic, local_id, number, 0, 8 * MIB)]), 1))
        wait_answers(clients)
        stage.suffer(SUFFER_S)
    stage.recover()
    stage.check()


def test_slow_readers_of_one_tier_and_six_local_partitions(
    stage: HostileStage, kafka: KafkaCluster, large_topic: LargeTopic, local_topic: str
) -> None:
    """How it failed: merged answers were in no budget, 87 MiB became 705."""
    with RawClient(*stage.leader) as client:
        local_id = client.topic_id(local_topic)
    local = [(local_topic, local_id, number, 0, 8 * MIB) for number in range(6)]
    frame = request_frame(fetch_request(VERSION, [*local, large_topic.target(MIB)]), 1)
    with crowd(stage.leader, 12) as clients:
        for client in clients:
            client.send_bytes(frame)
        with trickling_readers(clients) as received:
            wait_answers(clients)
            stage.suffer(SUFFER_S)
            assert received() > 0
    stage.recover()
    stage.check()
