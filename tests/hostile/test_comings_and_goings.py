"""Clients that come and go all the time, and groups that rebalance: nothing of them stays behind."""

import pytest
from confluent_kafka import Consumer

from tests.support.hostile_stage import GAUGES, MIB, HostileStage, LargeTopic
from tests.support.kafka import fresh_name
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until

pytestmark = pytest.mark.needs("linux")

VERSION = 17
BATCH_RECORDS = 15
"""Of 32 KiB each in half a mebibyte: a second Fetch goes on behind the first, and is read ahead for."""
POLL_S = 0.02


def test_readers_that_reconnect(stage: HostileStage, large_topic: LargeTopic) -> None:
    reconnect(stage, large_topic, 100)


def reconnect(stage: HostileStage, large_topic: LargeTopic, count: int) -> None:
    for _ in range(count):
        with RawClient(*stage.leader) as client:
            name, topic_id, partition, _, size = large_topic.target(MIB)
            for offset in (0, BATCH_RECORDS):
                (answer,) = client.fetch(VERSION, [(name, topic_id, partition, offset, size)]).partitions
                assert answer.error_code == 0
    stage.suffer(0)
    stage.recover()
    stage.check()
    assert stage.before.gauges.keys() == set(GAUGES), "else nothing could be seen to be given back"


def test_groups_that_rebalance(stage: HostileStage) -> None:
    """A member joins and leaves again and again, and another stays: each time both partitions change hands."""
    rebalance(stage, 3)


def rebalance(stage: HostileStage, count: int) -> None:
    group = fresh_name("rebalancing")
    staying = member(stage, group)
    try:
        for _ in range(count):
            share(staying, own=2)
            joining = member(stage, group)
            try:
                share(staying, joining, own=1)
            finally:
                joining.close()
        share(staying, own=2)
        stage.suffer(0)
    finally:
        staying.close()
    stage.recover()
    stage.check()


def member(stage: HostileStage, group: str) -> Consumer:
    consumer = Consumer(
        {
            "bootstrap.servers": stage.tidegate.bootstrap_servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "heartbeat.interval.ms": 100,
        }
    )
    consumer.subscribe([stage.topic.name])
    return consumer


def share(*members: Consumer, own: int) -> None:
    """Poll until each has so many partitions and has read something of them."""

    def has_settled() -> bool:
        for each in members:
            each.consume(10, POLL_S)
        return all(len(each.assignment()) == own for each in members)

    wait_until(has_settled, f"{len(members)} members with {own} partitions each")
