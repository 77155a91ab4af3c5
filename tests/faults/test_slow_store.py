"""A slow, failing or lying object store under the whole application, in process, before a real broker.

The store is Kafka's LocalTieredStorage behind a script. Fetches of it are held at a gate rather than delayed, so that
what is shown does not hang on the speed of the machine: all reads of a Fetch stand at the gate at the same time.
"""

import functools
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from protocol.wire.errors import ErrorCode
from storage.errors import RemoteAccessDeniedError
from storage.model import IndexType
from storage.registry import open_remote_storage_manager
from storage.remote_storage_manager import RemoteStorageManager
from tests.support.digests import confluent_consumer
from tests.support.in_process import InProcess, fetch_from, in_process, in_thread
from tests.support.kafka import TieredTopic, segmented_topic
from tests.support.raw_client import FetchedPartition, FetchTarget
from tests.support.scripted_store import ScriptedStore
from tests.support.waiting import wait_until
from tools.demo.kafka_cluster import KafkaCluster

PARTITIONS = 2
MAX_WAIT_MS = 5000
"""The longest that a tier read may hold a request (docs/protocol.md#l3)."""

READ_WAIT_MS, SMALL_WAIT_MS = 200, 5
"""`remote.fetch.max.wait.ms`, and a client's max_wait far below it."""


@pytest.fixture(scope="module")
def two(kafka: KafkaCluster) -> TieredTopic:
    """Two partitions, each with two segments in the tier alone and some records in the broker."""
    return segmented_topic(kafka, "slow-store", 1000 * PARTITIONS, partitions=PARTITIONS)


@dataclass(frozen=True, slots=True)
class SlowTier:
    """An application of this process, and its store."""

    tidegate: InProcess
    store: ScriptedStore

    def targets(self, partitions: Iterable[int], offset: int = 0) -> list[FetchTarget]:
        return [self.tidegate.target(offset, partition=partition) for partition in partitions]

    async def fetch(self, targets: Sequence[FetchTarget], *, max_wait_ms: int = MAX_WAIT_MS) -> list[FetchedPartition]:
        return await self.tidegate.fetch(targets, max_wait_ms=max_wait_ms)

    async def fetch_directly(self, targets: Sequence[FetchTarget]) -> list[FetchedPartition]:
        """The broker's own answers, one by one: it lets few remote reads run at once, and gives up after 500 ms."""
        return [await in_thread(functools.partial(self._fetch_records, target)) for target in targets]

    def _fetch_records(self, target: FetchTarget) -> FetchedPartition:
        (answer,) = wait_until(
            lambda: [answer for answer in fetch_from(self.tidegate.direct, [target], 500) if answer.records],
            f"records for {target}",
        )
        return answer

    @property
    def fetches_of_the_first_segment(self) -> int:
        """Of partition 0."""
        segment = self.tidegate.application.catalog.lookup(self.tidegate.topic_id, 0, 0, 0)
        assert segment is not None
        return len(self.store.log_fetches(segment))


@asynccontextmanager
async def slow_tier(
    kafka: KafkaCluster, topic: TieredTopic, folder: Path, **properties: str
) -> AsyncIterator[SlowTier]:
    """`properties` with _ for the dot."""
    scripted: list[ScriptedStore] = []

    def open_scripted(class_name: str, config: Mapping[str, str]) -> RemoteStorageManager:
        scripted.append(ScriptedStore(open_remote_storage_manager(class_name, config)))
        return scripted[0]

    lines = {name.replace("_", "."): value for name, value in properties.items()}
    async with in_process(kafka, topic.name, folder, lines, open_storage_manager=open_scripted) as tidegate:
        yield SlowTier(tidegate, scripted[0])


async def test_a_client_that_hardly_waits_does_not_spin_while_the_store_is_slow(
    kafka: KafkaCluster, two: TieredTopic, tmp_path: Path
) -> None:
    """Each Fetch is held as long as a read may take, whatever the client's own wait, also beside a partition of which
    the broker has nothing new."""
    async with slow_tier(kafka, two, tmp_path, remote_fetch_max_wait_ms=str(READ_WAIT_MS)) as tier:
        targets = [*tier.targets([0]), *tier.targets([1], two.offsets[1].high_watermark)]
        with tier.store.held():
            started_s = time.monotonic()
            for _ in range(3):
                answers = await tier.fetch(targets, max_wait_ms=SMALL_WAIT_MS)
                assert [(answer.error_code, answer.records) for answer in answers] == [(ErrorCode.NONE, b"")] * len(
                    targets
                )
            require_no_spin(requests=3, elapsed_s=time.monotonic() - started_s)
        (expected,) = await tier.fetch_directly(targets[:1])
        assert (await tier.fetch(targets))[0] == expected
        # What comes next may have been read ahead by now.
        assert tier.fetches_of_the_first_segment == 1


async def test_a_consumer_that_hardly_waits_does_not_spin_while_the_store_is_slow(
    kafka: KafkaCluster, two: TieredTopic, tmp_path: Path
) -> None:
    """librdkafka asks again at once when a Fetch comes back empty."""
    async with slow_tier(kafka, two, tmp_path, remote_fetch_max_wait_ms=str(READ_WAIT_MS)) as tier:
        requests = functools.partial(
            tier.tidegate.sample, "kafka_server_brokertopicmetrics_remotefetchrequests_total", topic=two.name
        )
        settings = {"fetch.wait.max.ms": SMALL_WAIT_MS}
        consumer = confluent_consumer(tier.tidegate.bootstrap_servers, "read_uncommitted", settings)
        try:
            consumer.assign(
                [TopicPartition(two.name, 0, 0), TopicPartition(two.name, 1, two.offsets[1].high_watermark)]
            )
            with tier.store.held() as gate:
                await in_thread(lambda: gate.wait_for_callers(1))
                started_s, before = time.monotonic(), requests()
                await in_thread(lambda: wait_until(lambda: requests() >= before + 4, "four more Fetches"))
                require_no_spin(requests=int(requests() - before), elapsed_s=time.monotonic() - started_s)
            first = await in_thread(lambda: wait_until(lambda: records_of(consumer), "the first records"))
            assert first[0] == (0, 0)
        finally:
            await in_thread(consumer.close)


async def test_denied_indexes_are_not_rebuilt_but_refused(
    kafka: KafkaCluster, two: TieredTopic, tmp_path: Path
) -> None:
    """Only what is absent or corrupt is rebuilt: a store that says no would have every segment read whole."""
    async with slow_tier(kafka, two, tmp_path) as tier:
        targets = tier.targets([0], 1)  # the first record needs no index
        tier.store.fail(RemoteAccessDeniedError("403 forbidden"), index_type=IndexType.OFFSET, times=None)
        assert await tier.fetch(targets) == await tier.fetch_directly(targets)
        assert tier.tidegate.sample("tidegate_fallback_reads_total", reason="denied") == 1
        assert tier.tidegate.sample("tidegate_index_rebuilds_total", index="offset") == 0
        assert tier.store.log_fetches() == []


def require_no_spin(*, requests: int, elapsed_s: float) -> None:
    """So many Fetches took at least as long as the store was waited for in each; the first may have been under way."""
    assert elapsed_s >= (requests - 1) * READ_WAIT_MS / 1000, f"{requests} Fetches in {elapsed_s:.3f} s"


def records_of(consumer: Consumer) -> list[tuple[int | None, int | None]]:
    """Partition and offset of the records that a consumer has now."""
    messages = [message for message in consumer.consume(10, 0.1) if message.error() is None]
    return [(message.partition(), message.offset()) for message in messages]
