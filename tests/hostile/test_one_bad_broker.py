"""One broker of two hangs, or is asked what breaks it: clients of the other do not notice.

The requests here are hard on a broker, too: for each unknown name Kafka makes meters that it never gives back, and a
million partitions are more than a small heap holds. So they go to the broker that nobody else reads from, which is
killed behind the test that sends them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from tests.support.hostile_clients import crowd, fetch_v4
from tests.support.hostile_stage import MIB, HonestTopic, HostileStage, hostile_stage, make_honest_topic
from tests.support.kafka import own_cluster
from tests.support.raw_client import RawClient, fetch_request
from tests.support.replicas import leaders_of
from tests.support.restarts import stopped
from tests.support.waiting import wait_until
from tools.demo.kafka_cluster import KafkaCluster

pytestmark = [pytest.mark.needs("java", "kafka", "linux"), pytest.mark.integration]

CONNECTIONS_MAX = 40
HONEST_CONNECTIONS_MAX = 3
"""librdkafka's consumer has one to the bootstrap listener and one to each of two brokers."""
NEWCOMERS = 10
CONNECTIONS = "tidegate_connections_active"
GOING_S = 6.0
SEND_S_MAX = 60.0
SESSION_MS = 20_000
"""Longer than the broker is stopped: one that is given up by the controller has no listener any more."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two brokers; `topic` is led by one of them, `bad` is the other."""

    cluster: KafkaCluster
    topic: HonestTopic
    good: int
    bad: int


@pytest.fixture(scope="module")
def started() -> Iterator[Pair]:
    with own_cluster(brokers=2, properties={"broker.session.timeout.ms": str(SESSION_MS)}) as cluster:
        topic = make_honest_topic(cluster, partitions=1, mebibytes=16)
        (good,) = leaders_of(cluster, topic.name).values()
        (bad,) = {1, 2} - {good}
        yield Pair(cluster, topic, good, bad)


@pytest.fixture
def pair(started: Pair) -> Pair:
    """With both running."""
    if not started.cluster.broker(started.bad).is_running:
        started.cluster.broker(started.bad).start()
        started.cluster.wait_ready()
    return started


@contextmanager
def stage_before(pair: Pair) -> Iterator[tuple[HostileStage, dict[int, tuple[str, int]]]]:
    """Tidegate, and where clients are sent for each broker."""
    limits = {"proxy.connections.max": str(CONNECTIONS_MAX)}
    address = pair.cluster.broker(pair.good).address
    with hostile_stage(pair.cluster, pair.topic, limits, bootstrap_servers=address) as stage:
        with RawClient(*stage.tidegate.address) as client:
            brokers = client.metadata([pair.topic.name]).brokers
        yield stage, {int(each.node_id): (each.host, each.port) for each in brokers}


def test_a_broker_that_hangs_takes_no_slot_from_clients_of_others(pair: Pair) -> None:
    """How it failed: clients that had gone kept their slots until the broker answered, and soon nobody got one."""
    with stage_before(pair) as (stage, addresses):
        with RawClient(*addresses[pair.bad]) as client:
            # From now on Tidegate has a connection of its own to that broker, too.
            client.fetch(12, [(pair.topic.name, None, 0, 0, MIB)])
        stage.note_what_is_held()
        # The honest consumer comes back meanwhile, by and by.
        with_honest = stage.before.gauges[CONNECTIONS] + HONEST_CONNECTIONS_MAX
        with stopped(pair.cluster.broker(pair.bad).pid):
            for _ in range(2):
                with crowd(addresses[pair.bad], CONNECTIONS_MAX // 2 - 4) as clients:
                    for client in clients:
                        client.send(fetch_request(12, [(pair.topic.name, None, 0, 0, MIB)]))
                # They have gone without an answer.
                wait_until(
                    lambda: stage.counter(CONNECTIONS) <= with_honest, "their slots are free although the broker hangs"
                )
            with crowd(addresses[pair.good], NEWCOMERS) as newcomers:
                for client in newcomers:
                    assert client.api_versions()
                stage.suffer(2.0)
        stage.recover()
        stage.check()


def test_a_fetch_of_450_000_unknown_names_and_one_of_a_million_partitions(pair: Pair) -> None:
    """How they failed: all names were in one Metadata request of Tidegate's own, and the loop stood still for 5.8 s;
    partitions took 2.3 s of processor time on the loop, and 197 MiB. Whether they are answered is the broker's affair;
    the one who asks leaves."""
    names = fetch_v4([(f"unknown{number:06d}", 1) for number in range(450_000)])
    try:
        with stage_before(pair) as (stage, addresses):
            for frame in (names, fetch_v4([(pair.topic.name, 1_000_000)])):
                with RawClient(*addresses[pair.bad], timeout_s=SEND_S_MAX) as client:
                    client.send_bytes(frame)
                    stage.suffer(GOING_S)
            stage.recover()
            stage.check()
    finally:
        pair.cluster.broker(pair.bad).kill()
