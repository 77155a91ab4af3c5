"""Whoever may not read, or has not said who they are, costs the store and the cache nothing, whatever they pipeline."""

from collections.abc import Iterator

import pytest

from protocol.errors import ErrorCode
from tests.support.hostile_clients import crowd, fetch_v4, wait_answers
from tests.support.hostile_stage import HonestTopic, HostileStage, honest_topic_of, hostile_stage, settled
from tests.support.raw_client import RawClient, fetch_request
from tests.support.secured_kafka import READ, SecuredKafka, password
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.needs("java", "kafka", "linux"), pytest.mark.integration]

VERSION = 12
"""By name: an outsider is not told a topic's id."""
PARTITION_BYTES = 1024 * 1024
UNKNOWN_PARTITIONS = 100_000
"""Of a Fetch whose answer has megabytes of errors."""
COSTS = ("tidegate_gets_total", "tidegate_cache_fills_total", "tidegate_cache_resident_bytes")
BLOCK_BYTES = 64 * 1024


@pytest.fixture(scope="module")
def secret(guarded: SecuredKafka) -> Iterator[HonestTopic]:
    """The topic that `reader` may read, for as long as this module runs."""
    guarded.allow("reader", READ, guarded.topic.name)
    ends = {partition: known.high_watermark for partition, known in guarded.topic.offsets.items()}
    yield honest_topic_of(guarded.ports["PLAINTEXT"], guarded.topic.name, ends)
    guarded.withdraw("reader", READ, guarded.topic.name)


@pytest.fixture
def cold(guarded: SecuredKafka, secret: HonestTopic) -> Iterator[HostileStage]:
    """The honest consumer rests, and caches are small: whoever is served from the tier now shows in the GETs."""
    small = {"cache.block.bytes": str(BLOCK_BYTES), "cache.memory.bytes": str(1024 * 1024)}
    properties = {**guarded.identity("tidegate", "PLAIN", "SASL_PLAINTEXT"), **small}
    with hostile_stage(
        guarded.cluster,
        secret,
        properties,
        user="reader",
        password=password("reader"),
        bootstrap_servers=guarded.address("SASL_PLAINTEXT"),
    ) as stage:
        yield stage


def costs(stage: HostileStage) -> dict[str, float]:
    """Counted when nobody's GET is under way any more."""
    settled(stage.tidegate)
    return {name: stage.counter(name) for name in COSTS}


def fetches(stage: HostileStage) -> float:
    return stage.counter("tidegate_requests_total", api_key="1")


def fetch_of(topic: str, offset: int = 0) -> object:
    return fetch_request(VERSION, [(topic, None, 0, offset, PARTITION_BYTES)], max_wait_ms=100)


def test_an_outsiders_requests_are_refused_without_a_get(guarded: SecuredKafka, cold: HostileStage) -> None:
    """How it failed: three refused requests fetched 30 MiB from the store, and evicted what others read."""
    cold.honest.pause()
    before = costs(cold)
    with RawClient(*cold.leader) as outsider:
        assert outsider.sasl_plain("outsider", password("outsider")) == 0
        for offset in range(0, 1000, 100):
            (answer,) = outsider.fetch(VERSION, [(cold.topic.name, None, 0, offset, PARTITION_BYTES)]).partitions
            assert (answer.error_code, answer.records) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, b"")
        (found,) = outsider.list_offsets(9, [(cold.topic.name, 0, 1)])
        assert found.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    cold.recover()
    cold.honest.pause()
    assert costs(cold) == before
    cold.honest.go_on()


def test_requests_before_sign_in_are_the_brokers_to_refuse(guarded: SecuredKafka, cold: HostileStage) -> None:
    """A broker closes the connection of one who asks before he has said who he is."""
    cold.honest.pause()
    before = costs(cold)
    with crowd(cold.leader, 5) as strangers:
        for stranger in strangers:
            stranger.send(fetch_of(cold.topic.name))
            assert stranger.is_closed_by_peer()
    with RawClient(*cold.leader) as stranger, pytest.raises(EOFError):
        stranger.list_offsets(9, [(cold.topic.name, 0, 1)])
    cold.recover()
    cold.honest.pause()
    assert costs(cold) == before
    cold.honest.go_on()


def test_an_outsider_who_pipelines_and_does_not_read_holds_nothing_of_the_tier(
    guarded: SecuredKafka, cold: HostileStage
) -> None:
    """How it failed: the tier read began before its probe, whose answer was stuck behind one that nobody read."""
    cold.honest.pause()
    before, asked = costs(cold), fetches(cold)
    with crowd(cold.leader, 8, sign_in=("outsider", password("outsider"))) as outsiders:
        for outsider in outsiders:
            outsider.send_bytes(fetch_v4([("nobody-made-this", UNKNOWN_PARTITIONS)]))
            outsider.send(fetch_of(cold.topic.name))
        wait_answers(outsiders, at_least=len(outsiders))
        wait_until(lambda: fetches(cold) >= asked + 2 * len(outsiders), "both requests of each were read")
        assert costs(cold) == before
        cold.honest.go_on()
        cold.suffer(2.0)
    cold.recover()
    cold.check()
