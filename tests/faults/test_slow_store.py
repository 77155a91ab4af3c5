"""A slow, failing or lying object store under the whole application, in process, before a real broker.

The store is Kafka's LocalTieredStorage behind a script. Fetches of it are held at a gate rather than delayed, so that
what is shown does not hang on the speed of the machine: all reads of a Fetch stand at the gate at the same time.
"""

import functools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import pytest
import trio
from confluent_kafka import Consumer, TopicPartition

from protocol.wire.errors import ErrorCode
from proxy import serve as application
from proxy.config import load
from proxy.fetch import fallback
from storage.errors import RemoteAccessDeniedError, RetriableRemoteStorageError
from storage.model import IndexType, RemoteLogSegmentMetadata
from storage.registry import open_remote_storage_manager
from storage.remote_storage_manager import RemoteStorageManager
from tests.support.digests import confluent_consumer
from tests.support.kafka import TieredTopic, fresh_name, orders, small_segments, tiered_topic
from tests.support.raw_client import FetchedPartition, FetchTarget, RawClient, fetch_request
from tests.support.scripted_store import ScriptedStore
from tests.support.waiting import wait_until
from tools.demo.kafka_cluster import KafkaCluster
from tools.demo.kafka_properties import properties_text

PARTITIONS = 20
VERSION = 17
PARTITION_BYTES_MAX = 64 * 1024
MAX_WAIT_MS = 5000
"""The longest that a tier read may hold a request (docs/protocol.md#l3)."""

ALL_OF_THEM = {"tier_linger_ms": str(MAX_WAIT_MS)}
"""A Fetch waits for all its reads: by default a slow machine has 20 ms to bring the others along with the first."""

READ_WAIT_MS, SMALL_WAIT_MS = 200, 5
"""`remote.fetch.max.wait.ms`, and a client's max_wait far below it."""

AT_ONCE_S = 2.0
"""Generous for an answer that waits for nothing, and well below MAX_WAIT_MS."""

Answer = TypeVar("Answer")


@pytest.fixture(scope="module")
def twenty(kafka: KafkaCluster) -> TieredTopic:
    """Twenty partitions, each with two segments in the tier alone and some records in the broker."""
    return tiered_topic(
        kafka,
        fresh_name("slow-store"),
        partitions=PARTITIONS,
        records=orders(1000 * PARTITIONS, PARTITIONS),
        configs=small_segments(batches=4),
        batch_num_messages=100,
        linger_ms=1000,
    )


@dataclass(frozen=True, slots=True)
class InProcess:
    """An application of this process, its store, and the topic that all tests read."""

    application: application.Application
    store: ScriptedStore
    topic: TieredTopic
    topic_id: bytes
    address: tuple[str, int]
    direct: tuple[str, int]

    def targets(self, partitions: Sequence[int], offset: int = 0) -> list[FetchTarget]:
        return [(self.topic.name, self.topic_id, partition, offset, PARTITION_BYTES_MAX) for partition in partitions]

    async def fetch(self, targets: Sequence[FetchTarget], *, max_wait_ms: int = MAX_WAIT_MS) -> list[FetchedPartition]:
        """One Fetch by a client of its own, through Tidegate."""
        return await in_thread(lambda: fetch_from(self.address, targets, max_wait_ms))

    async def fetch_directly(self, targets: Sequence[FetchTarget]) -> list[FetchedPartition]:
        """The broker's own answers, one by one: it lets few remote reads run at once, and gives up after 500 ms."""
        return [await in_thread(functools.partial(self._fetch_records, target)) for target in targets]

    def _fetch_records(self, target: FetchTarget) -> FetchedPartition:
        (answer,) = wait_until(
            lambda: [answer for answer in fetch_from(self.direct, [target], 500) if answer.records],
            f"records for {target}",
        )
        return answer

    def sample(self, name: str, **labels: str) -> float:
        return self.application.meters.registry.sample_value(name, labels) or 0.0

    @property
    def left_to_broker(self) -> float:
        return self.sample("tidegate_fallback_reads_total", reason="denied")

    @property
    def remote_fetch_errors(self) -> float:
        return self.sample("kafka_server_brokertopicmetrics_remotefetcherrors_total", topic=self.topic.name)


@asynccontextmanager
async def in_process(
    kafka: KafkaCluster, topic: TieredTopic, folder: Path, **properties: str
) -> AsyncIterator[InProcess]:
    file = folder / "tidegate.properties"
    lines = {
        "upstream.bootstrap.servers": kafka.bootstrap_servers,
        "broker.config": str(kafka.server_properties_path(1)),
        "proxy.listen": "127.0.0.1:0",
        "proxy.broker.port.start": "0",
        "admin.listen": "127.0.0.1:0",
        **{name.replace("_", "."): value for name, value in properties.items()},
    }
    file.write_text(properties_text(lines), encoding="utf-8")
    scripted: list[ScriptedStore] = []

    def open_scripted(class_name: str, config: Mapping[str, str]) -> RemoteStorageManager:
        scripted.append(ScriptedStore(open_remote_storage_manager(class_name, config)))
        return scripted[0]

    config = await trio.to_thread.run_sync(load, file, {})
    direct = ("127.0.0.1", kafka.broker(1).port)
    with trio.fail_after(60):
        async with application.run(config, open_storage_manager=open_scripted) as running:
            await running.readiness.wait_ready()
            address, topic_id = await in_thread(lambda: leader_address(running.bootstrap, topic.name))
            yield InProcess(running, scripted[0], topic, topic_id, address, direct)


async def test_a_fetch_over_twenty_tier_partitions_takes_the_time_of_one(
    kafka: KafkaCluster, twenty: TieredTopic, tmp_path: Path
) -> None:
    """All twenty reads stand in the store at once, so the slowest alone says how long the Fetch takes."""
    async with (
        in_process(kafka, twenty, tmp_path, readahead_stream_max_bytes="0", **ALL_OF_THEM) as tidegate,
        trio.open_nursery() as nursery,
    ):
        targets = tidegate.targets(range(PARTITIONS))
        with tidegate.store.held() as gate:
            fetched = Answering(nursery, lambda: tidegate.fetch(targets, max_wait_ms=MAX_WAIT_MS))
            await in_thread(lambda: gate.wait_for_callers(PARTITIONS))
            assert not fetched.is_there
        answers = await fetched.wait()
        assert answers == await tidegate.fetch_directly(targets)
        assert all(answer.records for answer in answers)
        assert len(tidegate.store.log_fetches()) == PARTITIONS


async def test_a_hot_partition_of_the_same_fetch_is_answered_at_once(
    kafka: KafkaCluster, twenty: TieredTopic, tmp_path: Path
) -> None:
    async with in_process(kafka, twenty, tmp_path, readahead_stream_max_bytes="0") as tidegate:
        local_start = twenty.offsets[1].local_log_start_offset
        targets = [*tidegate.targets([0]), *tidegate.targets([1], local_start)]
        with tidegate.store.held():
            started_s = time.monotonic()
            cold, hot = await tidegate.fetch(targets, max_wait_ms=MAX_WAIT_MS)
            assert time.monotonic() - started_s < AT_ONCE_S
        assert (cold.error_code, cold.records) == (ErrorCode.NONE, b"")
        assert cold.high_watermark == twenty.offsets[0].high_watermark
        assert [hot] == await tidegate.fetch_directly(targets[1:])
        assert hot.records
        # The fill went on: the next Fetch finds it.
        assert await tidegate.fetch(targets[:1]) == await tidegate.fetch_directly(targets[:1])
        assert len(tidegate.store.log_fetches(segment_at(tidegate, 0))) == 1


async def test_a_client_that_leaves_does_not_cancel_the_fill(
    kafka: KafkaCluster, twenty: TieredTopic, tmp_path: Path
) -> None:
    async with in_process(kafka, twenty, tmp_path) as tidegate:
        targets = tidegate.targets([0])
        with tidegate.store.held() as gate:
            leaving = await in_thread(lambda: RawClient(*tidegate.address))
            await in_thread(lambda: leaving.send(fetch_request(VERSION, targets, max_wait_ms=0)))
            await in_thread(lambda: gate.wait_for_callers(1))
            leaving.close()
            with trio.fail_after(10):
                await tidegate.application.server.wait_empty()
        assert await tidegate.fetch(targets, max_wait_ms=MAX_WAIT_MS) == await tidegate.fetch_directly(targets)
        assert len(tidegate.store.log_fetches(segment_at(tidegate, 0))) == 1


async def test_a_late_read_is_answered_empty_and_the_next_finds_the_block(
    kafka: KafkaCluster, twenty: TieredTopic, tmp_path: Path
) -> None:
    async with in_process(kafka, twenty, tmp_path) as tidegate:
        targets = tidegate.targets([0])
        with tidegate.store.held():
            (late,) = await tidegate.fetch(targets, max_wait_ms=0)
        (expected,) = await tidegate.fetch_directly(targets)
        assert (late.error_code, late.records) == (ErrorCode.NONE, b"")
        assert (late.high_watermark, late.log_start_offset) == (expected.high_watermark, expected.log_start_offset)
        assert await tidegate.fetch(targets) == [expected]
        assert len(tidegate.store.log_fetches(segment_at(tidegate, 0))) == 1


@pytest.mark.parametrize("with_idle_partition", [False, True])
async def test_a_client_that_hardly_waits_does_not_spin_while_the_store_is_slow(
    kafka: KafkaCluster, twenty: TieredTopic, tmp_path: Path, with_idle_partition: bool
) -> None:
    """Each Fetch is held as long as a read may take, whatever the client's own wait, also beside a partition of which
    the broker has nothing new."""
    async with in_process(kafka, twenty, tmp_path, remote_fetch_max_wait_ms=str(READ_WAIT_MS)) as tidegate:
        targets = tidegate.targets([0])
        if with_idle_partition:
            targets += tidegate.targets([1], twenty.offsets[1].high_watermark)
        with tidegate.store.held():
            started_s = time.monotonic()
            for _ in range(3):
                answers = await tidegate.fetch(targets, max_wait_ms=SMALL_WAIT_MS)
                assert [(answer.error_code, answer.records) for answer in answers] == [(ErrorCode.NONE, b"")] * len(
                    targets
                )
            require_no_spin(requests=3, elapsed_s=time.monotonic() - started_s)
        (expected,) = await tidegate.fetch_directly(targets[:1])
        assert (await tidegate.fetch(targets))[0] == expected
        # What comes next may have been read ahead by now.
        assert len(tidegate.store.log_fetches(segment_at(tidegate, 0))) == 1


async def test_a_consumer_that_hardly_waits_does_not_spin_while_the_store_is_slow(
    kafka: KafkaCluster, twenty: TieredTopic, tmp_path: Path
) -> None:
    """librdkafka asks again at once when a Fetch comes back empty."""
    async with in_process(kafka, twenty, tmp_path, remote_fetch_max_wait_ms=str(READ_WAIT_MS)) as tidegate:
        requests = functools.partial(
            tidegate.sample, "kafka_server_brokertopicmetrics_remotefetchrequests_total", topic=twenty.name
        )
        host, port = tidegate.application.bootstrap
        consumer = confluent_consumer(f"{host}:{port}", "read_uncommitted", {"fetch.wait.max.ms": SMALL_WAIT_MS})
        try:
            consumer.assign(
                [
                    TopicPartition(twenty.name, 0, 0),
                    TopicPartition(twenty.name, 1, twenty.offsets[1].high_watermark),
                ]
            )
            with tidegate.store.held() as gate:
                await in_thread(lambda: gate.wait_for_callers(1))
                started_s, before = time.monotonic(), requests()
                await in_thread(lambda: wait_until(lambda: requests() >= before + 4, "four more Fetches"))
                require_no_spin(requests=int(requests() - before), elapsed_s=time.monotonic() - started_s)
            first = await in_thread(lambda: wait_until(lambda: records_of(consumer), "the first records"))
            assert first[0] == (0, 0)
        finally:
            await in_thread(consumer.close)


async def test_two_clients_of_one_block_cost_one_get(kafka: KafkaCluster, twenty: TieredTopic, tmp_path: Path) -> None:
    async with in_process(kafka, twenty, tmp_path) as tidegate, trio.open_nursery() as nursery:
        targets = tidegate.targets([0])
        with tidegate.store.held() as gate:
            both = [Answering(nursery, lambda: tidegate.fetch(targets, max_wait_ms=MAX_WAIT_MS)) for _ in range(2)]
            await in_thread(lambda: gate.wait_for_callers(1))
            misses = functools.partial(tidegate.sample, "tidegate_cache_misses_total", level="memory")
            await in_thread(lambda: wait_until(lambda: misses() == 2, "both have missed the block"))
        expected = await tidegate.fetch_directly(targets)
        assert [await fetched.wait() for fetched in both] == [expected, expected]
        assert len(tidegate.store.log_fetches(segment_at(tidegate, 0))) == 1


async def test_one_wrong_bit_on_the_way_costs_one_fresh_get(
    kafka: KafkaCluster, twenty: TieredTopic, tmp_path: Path
) -> None:
    async with in_process(kafka, twenty, tmp_path) as tidegate:
        targets = tidegate.targets([0])
        segment = segment_at(tidegate, 0)
        tidegate.store.flip_bit(segment, position=200, times=1)
        assert await tidegate.fetch(targets) == await tidegate.fetch_directly(targets)
        assert len(tidegate.store.log_fetches(segment)) == 2
        assert tidegate.sample("tidegate_cache_quarantined_blocks_total") == 1
        assert tidegate.remote_fetch_errors == 0


async def test_a_store_that_fails_for_a_moment_is_that_partitions_error_meanwhile(
    kafka: KafkaCluster, twenty: TieredTopic, tmp_path: Path
) -> None:
    async with in_process(kafka, twenty, tmp_path, **ALL_OF_THEM) as tidegate:
        targets = tidegate.targets([0, 1])
        expected = await tidegate.fetch_directly(targets)
        tidegate.store.fail(RetriableRemoteStorageError("reset"), segment=segment_at(tidegate, 0), times=None)
        # Alone: beside records of another partition it would be given a few milliseconds, and what may pass is retried.
        come_again = [failed(twenty.name, 0, ErrorCode.REPLICA_NOT_AVAILABLE)]
        assert await tidegate.fetch(targets[:1]) == come_again
        assert await tidegate.fetch(targets[1:]) == expected[1:]
        assert tidegate.remote_fetch_errors == 1
        tidegate.store.heal()
        assert await tidegate.fetch(targets) == expected
        assert tidegate.remote_fetch_errors == 1


async def test_a_store_that_refuses_leaves_that_partition_to_the_broker_until_it_is_over(
    kafka: KafkaCluster, twenty: TieredTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fallback, "SPELL_S_MIN", 0.0)
    async with in_process(kafka, twenty, tmp_path, **ALL_OF_THEM) as tidegate:
        targets = tidegate.targets([0, 1])
        expected = await tidegate.fetch_directly(targets)
        tidegate.store.fail(RemoteAccessDeniedError("403 forbidden"), segment=segment_at(tidegate, 0), times=None)
        assert await tidegate.fetch(targets[:1]) == expected[:1]
        assert await tidegate.fetch(targets[1:]) == expected[1:]
        assert (tidegate.remote_fetch_errors, tidegate.left_to_broker) == (1, 1)
        tidegate.store.heal()
        assert await tidegate.fetch(targets) == expected
        assert (tidegate.remote_fetch_errors, tidegate.left_to_broker) == (1, 1)


async def test_denied_indexes_are_not_rebuilt_but_refused(
    kafka: KafkaCluster, twenty: TieredTopic, tmp_path: Path
) -> None:
    """Only what is absent or corrupt is rebuilt: a store that says no would have every segment read whole."""
    async with in_process(kafka, twenty, tmp_path) as tidegate:
        targets = tidegate.targets([0], 1)  # the first record needs no index
        tidegate.store.fail(RemoteAccessDeniedError("403 forbidden"), index_type=IndexType.OFFSET, times=None)
        assert await tidegate.fetch(targets) == await tidegate.fetch_directly(targets)
        assert tidegate.left_to_broker == 1
        assert tidegate.sample("tidegate_index_rebuilds_total", index="offset") == 0
        assert tidegate.store.log_fetches() == []


class Answering(Generic[Answer]):
    """A question under way."""

    def __init__(self, nursery: trio.Nursery, ask: Callable[[], Awaitable[Answer]]) -> None:
        self._answers: list[Answer] = []
        self._answered = trio.Event()
        nursery.start_soon(self._run, ask)

    @property
    def is_there(self) -> bool:
        return self._answered.is_set()

    async def wait(self) -> Answer:
        await self._answered.wait()
        return self._answers[0]

    async def _run(self, ask: Callable[[], Awaitable[Answer]]) -> None:
        self._answers.append(await ask())
        self._answered.set()


async def in_thread(call: Callable[[], Answer]) -> Answer:
    """Blocking clients and gates, beside the application's loop."""
    return await trio.to_thread.run_sync(call)


def fetch_from(address: tuple[str, int], targets: Sequence[FetchTarget], max_wait_ms: int) -> list[FetchedPartition]:
    with RawClient(*address) as client:
        return client.fetch(VERSION, targets, max_wait_ms=max_wait_ms).partitions


def leader_address(bootstrap: tuple[str, int], topic: str) -> tuple[tuple[str, int], bytes]:
    """The listener that stands for the cluster's only broker, and the topic's id."""
    with RawClient(*bootstrap) as client:
        (broker,) = client.metadata([topic]).brokers
        return (broker.host, broker.port), client.topic_id(topic)


def segment_at(tidegate: InProcess, partition: int) -> RemoteLogSegmentMetadata:
    """The segment that holds a partition's first offsets."""
    found = tidegate.application.catalog.lookup(tidegate.topic_id, partition, 0, 0)
    assert found is not None
    return found


def failed(topic: str, partition: int, error_code: ErrorCode) -> FetchedPartition:
    """A failed partition as the broker writes it (docs/protocol.md#fetch-answers)."""
    return FetchedPartition(topic, partition, error_code, -1, -1, -1, None, -1, b"")


def require_no_spin(*, requests: int, elapsed_s: float) -> None:
    """So many Fetches took at least as long as the store was waited for in each; the first may have been under way."""
    assert elapsed_s >= (requests - 1) * READ_WAIT_MS / 1000, f"{requests} Fetches in {elapsed_s:.3f} s"


def records_of(consumer: Consumer) -> list[tuple[int | None, int | None]]:
    """Partition and offset of the records that a consumer has now."""
    messages = [message for message in consumer.consume(10, 0.1) if message.error() is None]
    return [(message.partition(), message.offset()) for message in messages]
