"""Clients that may not read, or have not said who they are, cost the store and the cache nothing.

Nobody else reads meanwhile, and nothing is in the cache: each GET is one for a client that is refused.
"""

from collections.abc import Iterator

import pytest

from protocol.wire.errors import ErrorCode
from tests.support.hostile_clients import crowd, fetch_v4, wait_answers
from tests.support.hostile_stage import Held, HonestTopic, settled
from tests.support.kafka import TieredTopic
from tests.support.raw_client import RawClient, fetch_request
from tests.support.secured_kafka import METADATA_TOPIC, SecuredKafka, password
from tests.support.tidegate import RunningTidegate, own_tidegate
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.needs("java", "kafka", "linux"), pytest.mark.integration]

VERSION = 12
"""By name: an outsider is not told a topic's id."""
PARTITION_BYTES = 1024 * 1024
REFUSED_PARTITIONS = 300_000
"""In a Fetch that is relayed, as its topic has no tier: its answer of errors is more than all buffers take."""


@pytest.fixture
def cold(guarded: SecuredKafka) -> Iterator[RunningTidegate]:
    """Nobody has read through it yet."""
    identity = guarded.identity("tidegate", "PLAIN", "SASL_PLAINTEXT")
    address = guarded.address("SASL_PLAINTEXT")
    with own_tidegate(guarded.cluster, identity, bootstrap_servers=address) as tidegate:
        yield tidegate


def costs(tidegate: RunningTidegate) -> dict[str, float]:
    """Return what reading the tier moves, once nobody's GET is under way any more."""
    settled(tidegate)
    return {
        "GETs": tidegate.metric("tidegate_gets_total"),
        "fills": tidegate.metric("tidegate_cache_fills_total"),
        "resident bytes": tidegate.metric("tidegate_cache_resident_bytes"),
        "opened segments": tidegate.metric("tidegate_opened_segments"),
    }


def leader(guarded: SecuredKafka, tidegate: RunningTidegate) -> tuple[str, int]:
    """Return where clients are sent."""
    with RawClient(*tidegate.address) as client:
        assert client.sasl_plain("reader", password("reader")) == 0
        (broker,) = client.metadata([guarded.topic.name]).brokers
    return broker.host, broker.port


def fetch_of(topic: TieredTopic) -> object:
    return fetch_request(VERSION, [(topic.name, None, 0, 0, PARTITION_BYTES)], max_wait_ms=100)


def test_an_outsider_who_pipelines_and_does_not_read_holds_nothing_of_the_tier(
    guarded: SecuredKafka, cold: RunningTidegate, secret: HonestTopic
) -> None:
    """How it failed: the tier read began before its probe, whose answer was stuck behind one that nobody read."""
    address = leader(guarded, cold)
    before, probed = costs(cold), probes(cold)
    with crowd(address, 1, sign_in=("outsider", password("outsider"))) as outsiders:
        for outsider in outsiders:
            outsider.send_bytes(fetch_v4([(METADATA_TOPIC, REFUSED_PARTITIONS)]))
            outsider.send(fetch_of(guarded.topic))
        wait_answers(outsiders, at_least=len(outsiders))
        wait_until(lambda: probes(cold) >= probed + len(outsiders), "a probe for the second request of each")
        assert Held.of(cold).gauges["tidegate_inflight_bytes"] == 0
        assert costs(cold) == before
        with RawClient(*address) as reader:
            assert reader.sasl_plain("reader", password("reader")) == 0
            (answer,) = reader.patient_fetch(VERSION, [(guarded.topic.name, None, 0, 0, PARTITION_BYTES)]).partitions
            assert (answer.error_code, bool(answer.records)) == (ErrorCode.NONE, True)


def probes(tidegate: RunningTidegate) -> float:
    return tidegate.metric("tidegate_probes_sent_total")
