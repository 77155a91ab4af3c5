"""Clients that come and go all the time: nothing of them stays behind."""

import pytest

from tests.support.hostile_stage import GAUGES, MIB, HostileStage, LargeTopic
from tests.support.raw_client import RawClient

pytestmark = pytest.mark.needs("linux")

VERSION = 17
BATCH_RECORDS = 15
"""32 KiB each in half a mebibyte: a second Fetch goes on behind the first, and is read ahead for."""


def test_readers_that_reconnect(stage: HostileStage, large_topic: LargeTopic) -> None:
    for _ in range(100):
        with RawClient(*stage.leader) as client:
            name, topic_id, partition, _, size = large_topic.target(MIB)
            for offset in (0, BATCH_RECORDS):
                (answer,) = client.fetch(VERSION, [(name, topic_id, partition, offset, size)]).partitions
                assert answer.error_code == 0
    stage.suffer(0)
    stage.recover()
    stage.check()
    assert stage.before.gauges.keys() == set(GAUGES), "else nothing could be seen to be given back"
