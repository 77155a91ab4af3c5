"""Crowds that take nothing of what brokers have answered: Tidegate holds none of it, and ends nobody.

By hand, for as long as it takes: `TIDEGATE_STALL_S=60 pytest tests/hostile/test_stalled_relays.py -s`.
"""

import os
import socket
from collections.abc import Mapping

import pytest

from tests.support.hostile_clients import crowd, wait_answers
from tests.support.hostile_stage import MEMORY_MAX_BYTES, MIB, resident_bytes, unread_bytes
from tests.support.raw_client import RawClient, fetch_request, fetch_result
from tests.support.tidegate import RunningTidegate, own_tidegate
from tests.support.waiting import WAIT_S_MAX, wait_until
from tools.demo.kafka_cluster import KafkaCluster

pytestmark = pytest.mark.needs("linux")

VERSION = 17
ANSWER_BYTES = 12 * MIB
STALL_S = float(os.environ.get("TIDEGATE_STALL_S", "0"))
"""Nobody reads for so long behind the moment at which nothing moves any more."""

RELAYED_BYTES_MAX = 8 * 1024
"""For each client."""

PYTHONS_BYTES = 1024 * 1024
"""By the process's memory, whose allocator takes so much at a time."""

READERS = 20
"""So many read their whole answer in the end, and all by hand: through a window of 8 KiB that takes half a second
each."""

TINY = {"memory.max.bytes": str(MEMORY_MAX_BYTES)}


@pytest.mark.parametrize(("clients", "properties"), [(60, TINY), (500, {})])
def test_what_nobody_takes_is_not_held(
    kafka: KafkaCluster, local_topic: str, clients: int, properties: Mapping[str, str]
) -> None:
    """How it failed: 25 of 60 clients were left after four seconds; Tidegate held what their sockets did not take."""
    with own_tidegate(kafka, properties) as tidegate:
        with RawClient(*tidegate.address) as client:
            topic_id = client.topic_id(local_topic)
            (leader, *_) = client.metadata([local_topic]).brokers
        targets = [(local_topic, topic_id, partition, 0, ANSWER_BYTES // 2) for partition in (0, 1)]
        with RawClient("127.0.0.1", kafka.broker(1).port) as client:
            right = client.fetch(VERSION, targets, max_bytes=ANSWER_BYTES).partitions
        with crowd((leader.host, leader.port), clients) as stalled:
            for each in stalled:
                each.api_versions()
            before_bytes = resident_bytes(tidegate)
            for each in stalled:
                each.send(fetch_request(VERSION, targets, max_bytes=ANSWER_BYTES))
            wait_answers(stalled, at_least=clients)
            wait_until_stalled(tidegate)
            relayed_bytes = tidegate.metric("tidegate_relay_held_bytes")
            grown_bytes = resident_bytes(tidegate) - before_bytes
            each_bytes = [int(held_bytes / clients) for held_bytes in (relayed_bytes, grown_bytes)]
            print(f"{clients} clients: bytes held and memory grown for each: {each_bytes}")
            assert tidegate.metric("tidegate_held_bytes") == 0
            assert relayed_bytes <= clients * RELAYED_BYTES_MAX
            assert grown_bytes <= clients * RELAYED_BYTES_MAX + PYTHONS_BYTES
            for each in stalled:
                assert each.socket.recv(1, socket.MSG_PEEK), "closed, not stalled"
            for each in stalled if STALL_S else stalled[:: clients // READERS]:
                each.timeout_s = WAIT_S_MAX  # a window that was shut for long may open late
                assert fetch_result(each.read_frame(), VERSION, {topic_id: local_topic}).partitions == right


def wait_until_stalled(tidegate: RunningTidegate) -> None:
    """Return when nothing has moved between two looks, and STALL_S later."""
    seen = -1

    def is_still() -> bool:
        nonlocal seen
        before, seen = seen, int(tidegate.metric("tidegate_relayed_bytes_total", direction="upstream_to_client"))
        return seen == before and unread_bytes(tidegate) > 0

    wait_until(is_still, "nothing is relayed any more")
    if STALL_S:
        with pytest.raises(AssertionError, match="for as long as it takes"):
            wait_until(lambda: False, "for as long as it takes", timeout_s=STALL_S)
