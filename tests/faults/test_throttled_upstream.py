"""A broker that throttles clients by their quotas, before Fetches that Tidegate merges from tier and broker.

A throttled broker answers a Fetch without partitions, says for how long, and reads nothing more of that connection
until then. The client must hear of it as it would from the broker itself, and get every record in the end.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from protocol.wire.errors import ErrorCode
from tests.support.frozen_tier import broken_up
from tests.support.kafka import TieredTopic, fresh_name, orders, produce, segmented_topic
from tests.support.raw_client import FetchTarget, RawClient
from tests.support.replicas import broker_ports
from tests.support.tidegate import RunningTidegate
from tests.support.waiting import wait_until
from tools.demo.kafka_cluster import KafkaCluster

pytestmark = [pytest.mark.integration, pytest.mark.needs("java", "kafka")]

ALTER_CLIENT_QUOTAS = 49
PARTITION_BYTES_MAX = 64 * 1024
CONSUMER_BYTE_RATE = 50_000
"""A broker lets ten seconds' worth go before it throttles."""

LOCAL_RECORDS = 2_800
TIERED_RECORDS = 3_000

_client_ids = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Topics:
    """One partition each: most of `tiered` in the tier alone, all of `local` at the broker."""

    tiered: TieredTopic
    local: str
    ids: Mapping[str, bytes]

    @property
    def ends(self) -> Mapping[str, int]:
        return {self.tiered.name: TIERED_RECORDS, self.local: LOCAL_RECORDS}


@pytest.fixture(scope="module")
def topics(kafka: KafkaCluster) -> Topics:
    tiered = segmented_topic(kafka, "throttled-tiered", TIERED_RECORDS)
    local = fresh_name("throttled-local")
    kafka.create_topic(local)
    produce(kafka, local, orders(LOCAL_RECORDS, 1), batch_num_messages=100)
    with RawClient("127.0.0.1", kafka.broker(1).port) as client:
        ids = {name: client.topic_id(name) for name in (tiered.name, local)}
    return Topics(tiered, local, ids)


@pytest.mark.parametrize(
    ("version", "limits"),
    [
        # What the tier gives is none of the broker's bytes, so it throttles for the other topic's.
        pytest.param(12, {"consumer_byte_rate": CONSUMER_BYTE_RATE}, id="bytes"),
        # Probes cost the broker time, too.
        pytest.param(17, {"request_percentage": 0.05}, id="time"),
    ],
)
def test_a_merged_fetch_tells_of_the_throttling_and_loses_nothing(
    kafka: KafkaCluster, tidegate: RunningTidegate, topics: Topics, limits: Mapping[str, float], version: int
) -> None:
    expected = read_whole(("127.0.0.1", kafka.broker(1).port), topics, version)
    client_id = f"throttled-{next(_client_ids)}"
    with client_quota(kafka, client_id, limits) as lift:
        with RawClient("127.0.0.1", kafka.broker(1).port, client_id=client_id) as direct:
            of_broker = Reading(direct, version, topics)
            of_broker.read(until=lambda: len(of_broker.throttled_ms) == 2)
        with RawClient("127.0.0.1", broker_ports(tidegate)[1], client_id=client_id) as through:
            reading = Reading(through, version, topics)
            reading.read(until=lambda: len(reading.throttled_ms) == 3)
            lift()
            reading.read()
    assert reading.records == expected


class Reading:
    """Both topics read side by side on one connection, a Fetch over both at a time."""

    def __init__(self, client: RawClient, version: int, topics: Topics) -> None:
        self.records = dict.fromkeys(topics.ends, b"")
        self.throttled_ms: list[int] = []
        """From answers without partitions."""

        self._client = client
        self._version = version
        self._ends = topics.ends
        self._ids = topics.ids
        self._offsets = dict.fromkeys(topics.ends, 0)

    def read(self, *, until: Callable[[], bool] | None = None) -> None:
        """Read on, to both ends unless told otherwise; from the beginning again rather than miss `until`."""

        def is_there() -> bool:
            if self._offsets == self._ends:
                if until is None:
                    return True
                self._offsets = dict.fromkeys(self._ends, 0)
                self.records = dict.fromkeys(self._ends, b"")
            self._fetch()
            return until is not None and until()

        wait_until(is_there, "all records")

    def _fetch(self) -> None:
        targets: list[FetchTarget] = [
            (topic, self._ids[topic], 0, offset, PARTITION_BYTES_MAX)
            for topic, offset in self._offsets.items()
            if offset < self._ends[topic]
        ]
        result = self._client.fetch(self._version, targets)
        assert (result.error_code, result.session_id) == (ErrorCode.NONE, 0)
        if not result.partitions:
            assert result.throttle_time_ms > 0
            self.throttled_ms.append(result.throttle_time_ms)
        for answer in result.partitions:
            assert answer.error_code == ErrorCode.NONE
            self._take(answer.topic, answer.records)

    def _take(self, topic: str, records: bytes) -> None:
        """Whole batches; the last may be cut."""
        for batch in broken_up(records)[0]:
            assert batch.base_offset == self._offsets[topic]
            self._offsets[topic] = batch.last_offset + 1
            self.records[topic] += batch.data


def read_whole(address: tuple[str, int], topics: Topics, version: int) -> Mapping[str, bytes]:
    """Return what a client without a quota gets."""
    with RawClient(*address) as client:
        reading = Reading(client, version, topics)
        reading.read()
        assert not reading.throttled_ms
        return reading.records


@contextmanager
def client_quota(kafka: KafkaCluster, client_id: str, limits: Mapping[str, float]) -> Iterator[Callable[[], None]]:
    """Clients of this id have these quotas until the block ends, or what is given is called."""
    alter_quotas(kafka, client_id, limits, remove=False)
    try:
        yield lambda: alter_quotas(kafka, client_id, limits, remove=True)
    finally:
        alter_quotas(kafka, client_id, limits, remove=True)


def alter_quotas(kafka: KafkaCluster, client_id: str, limits: Mapping[str, float], *, remove: bool) -> None:
    entry = {
        "entity": [{"entity_type": "client-id", "entity_name": client_id}],
        "ops": [{"key": key, "value": value, "remove": remove} for key, value in limits.items()],
    }
    with RawClient("127.0.0.1", kafka.broker(1).port) as client:
        answer = client.call(ALTER_CLIENT_QUOTAS, 1, {"entries": [entry], "validate_only": False})
    assert [each.error_code for each in answer.entries] == [ErrorCode.NONE]
