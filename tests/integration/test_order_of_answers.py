"""In which order a Fetch is answered: the broker's and Tidegate's answers, partition by partition.

`TIDEGATE_ORDER_REQUESTS` is how many requests without a session are drawn (300), and a fifth as many sessions;
`TIDEGATE_ORDER_SEED` repeats a run.
"""

import os
import random
from collections.abc import Iterator, Sequence

import pytest

from protocol.fetch.messages import FETCH_VERSION_MAX
from tests.support.kafka import TieredTopic, fresh_name, orders, produce
from tests.support.raw_client import FETCH, FetchResult, FetchTarget, RawClient, fetch_request, fetch_result
from tests.support.tidegate import RunningTidegate
from tools.demo.kafka_cluster import KafkaCluster

REQUESTS = int(os.environ.get("TIDEGATE_ORDER_REQUESTS") or 300)
SEED = int(os.environ.get("TIDEGATE_ORDER_SEED") or random.SystemRandom().randrange(2**32))
SESSION_VERSION_MIN = 7
SHOWN_MAX = 10

LIMIT_BYTES = 1000
ABSENT_PARTITION = 99
SESSIONLESS = (0, -1)
SESSION_REQUESTS = 7
OFFSETS = (0, 0, 5, 10, 100)
"""The tier has records at each, the others have ten records."""

Form = list[tuple[str, int, int, int]]
"""Topic, number, error and bytes of records of each partition, in the order of the answer."""


class Sides:
    """A connection to the broker and one to Tidegate."""

    def __init__(self, broker: RawClient, tidegate: RawClient, targets: Sequence[FetchTarget]) -> None:
        self.targets = targets
        self.versions = range(4, min(broker.api_versions()[FETCH][1], FETCH_VERSION_MAX) + 1)
        self._clients = (broker, tidegate)

    def ask(
        self,
        version: int,
        targets: Sequence[FetchTarget],
        sessions: Sequence[tuple[int, int]] = (SESSIONLESS, SESSIONLESS),
    ) -> tuple[FetchResult, FetchResult]:
        names = {topic_id: topic for topic, topic_id, *_ in self.targets if topic_id}
        results = []
        for client, session in zip(self._clients, sessions, strict=True):
            client.send(fetch_request(version, targets, session=session, max_wait_ms=5000, min_bytes=0))
            results.append(fetch_result(client.read_frame(), version, names))
        theirs, ours = results
        return theirs, ours


@pytest.fixture
def sides(kafka: KafkaCluster, tidegate: RunningTidegate, tiered: TieredTopic) -> Iterator[Sides]:
    """Two that the tier has, two that it has not, two partitions and two topics that nobody has."""
    hot = fresh_name("order-hot")
    kafka.create_topic(hot, 2, {})
    produce(kafka, hot, orders(20, 2), batch_num_messages=10)
    with RawClient("127.0.0.1", kafka.broker(1).port) as broker, RawClient(*tidegate.address) as ours:
        cold_id, hot_id = broker.topic_id(tiered.name), broker.topic_id(hot)
        targets: list[FetchTarget] = [
            *((tiered.name, cold_id, number, 0, LIMIT_BYTES) for number in (0, ABSENT_PARTITION)),
            *((hot, hot_id, number, 0, LIMIT_BYTES) for number in (0, 1, ABSENT_PARTITION)),
            *((f"absent-{number}", bytes(range(number, number + 16)), 0, 0, LIMIT_BYTES) for number in (1, 2)),
        ]
        ours.patient_fetch(FETCH_VERSION_MAX, targets[:1])
        yield Sides(broker, ours, targets)


def test_each_partition_is_answered_in_the_brokers_place(sides: Sides) -> None:
    """Failed before, 154 of 300: what the broker does not read was answered in the request's place."""
    chance, differences = random.Random(SEED), []
    for _ in range(REQUESTS):
        version = chance.choice(sides.versions)
        targets = chance.sample(sides.targets, chance.randrange(1, len(sides.targets) + 1))
        theirs, ours = sides.ask(version, targets)
        if form(theirs) != form(ours):
            differences.append(f"v{version}: {form(theirs)} and {form(ours)}")
    assert not differences, shown(differences)


def test_a_session_that_the_tier_answers_from_its_start_keeps_the_brokers_order(sides: Sides) -> None:
    """Its first partition stays below the local log, so it is never the broker's."""
    chance, differences = random.Random(SEED), []
    last_ids = (0, 0)
    for _ in range(REQUESTS // 5):
        version = chance.choice(sides.versions[SESSION_VERSION_MIN - 4 :])
        named = [sides.targets[0], *chance.sample(sides.targets[1:], chance.randrange(len(sides.targets)))]
        theirs, ours = sides.ask(version, named, [(session_id, 0) for session_id in last_ids])
        last_ids = theirs.session_id, ours.session_id
        assert all(last_ids)
        for epoch in range(1, SESSION_REQUESTS + 1):
            if form(theirs) != form(ours):
                differences.append(f"v{version}, epoch {epoch - 1}: {form(theirs)} and {form(ours)}")
                break
            named = [
                (*target[:3], chance.choice(OFFSETS), LIMIT_BYTES)
                for target in chance.sample(sides.targets, chance.randrange(len(sides.targets) + 1))
            ]
            theirs, ours = sides.ask(version, named, [(session_id, epoch) for session_id in last_ids])
    assert not differences, shown(differences)


def form(result: FetchResult) -> Form:
    return [(each.topic, each.partition, each.error_code, len(each.records)) for each in result.partitions]


def shown(differences: Sequence[str]) -> str:
    return "\n".join([f"TIDEGATE_ORDER_SEED={SEED}: {len(differences)} differ", *differences[:SHOWN_MAX]])
