"""The whole application in this process before a real broker, on the test's own trio loop.

    async with in_process(kafka, "orders", tmp_path, properties, open_storage_manager=open_scripted) as tidegate:
        (answer,) = await tidegate.fetch([tidegate.target(0)])

Clients block, so they run in threads beside the loop; so do gates of scripted stores (`in_thread`).
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import trio

from storage.config.registry import open_remote_storage_manager
from storage.remote_storage_manager import RemoteStorageManager
from tests.support.raw_client import FetchedPartition, FetchTarget, RawClient
from tests.support.samples import sum_of
from tests.support.serving import before_kafka
from tidegate import serve as application
from tidegate.application import Application
from tidegate.config import load
from tools.demo.kafka_cluster import KafkaCluster
from tools.demo.kafka_properties import properties_text

VERSION = 17
TIME_LIMIT_S = 240.0
"""Against hangs, not slowness: on a busy machine a read of a whole topic through the broker takes a minute."""

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class InProcess:
    """A ready application; `address` is its listener for the cluster's only broker, `direct` that broker."""

    application: Application
    topic: str
    topic_id: bytes
    address: tuple[str, int]
    direct: tuple[str, int]

    @property
    def bootstrap_servers(self) -> str:
        host, port = self.application.bootstrap
        return f"{host}:{port}"

    def target(self, offset: int) -> FetchTarget:
        return (self.topic, self.topic_id, 0, offset, 64 * 1024)

    async def fetch(self, targets: Sequence[FetchTarget], *, max_wait_ms: int = 500) -> list[FetchedPartition]:
        """One Fetch by a client of its own."""
        return await in_thread(lambda: fetch_from(self.address, targets, max_wait_ms))

    def sample(self, name: str, **labels: str) -> float:
        """A metric now; without all its labels the sum over the others."""
        return sum_of(self.application.meters.registry, name, labels)

    @property
    def remote_fetch_errors(self) -> float:
        return self.sample("kafka_server_brokertopicmetrics_remotefetcherrors_total", topic=self.topic)


@asynccontextmanager
async def in_process(
    kafka: KafkaCluster,
    topic: str,
    folder: Path,
    properties: Mapping[str, str],
    *,
    open_storage_manager: Callable[[str, Mapping[str, str]], RemoteStorageManager] = open_remote_storage_manager,
    time_limit_s: float = TIME_LIMIT_S,
    waits_for_tier: bool = True,
) -> AsyncIterator[InProcess]:
    """Run one before `kafka`, with `properties` over the usual ones, until the block ends.

    Args:
        waits_for_tier: begin once it is ready; False: once it knows what is in the tier, whether or not that answers.
    """
    file = folder / "tidegate.properties"
    file.write_text(properties_text({**before_kafka(kafka), **properties}), encoding="utf-8")
    config = await in_thread(lambda: load(file, {}))
    direct = ("127.0.0.1", kafka.broker(1).port)
    with trio.fail_after(time_limit_s):
        async with application.run(config, open_storage_manager=open_storage_manager) as running:
            await (running.readiness.wait_ready() if waits_for_tier else running.readiness.wait_catalog())
            address, topic_id = await in_thread(lambda: _leader(running.bootstrap, topic))
            yield InProcess(running, topic, topic_id, address, direct)


async def in_thread(call: Callable[[], Answer]) -> Answer:
    """Blocking clients and gates, beside the application's loop."""
    return await trio.to_thread.run_sync(call)


def fetch_from(address: tuple[str, int], targets: Sequence[FetchTarget], max_wait_ms: int) -> list[FetchedPartition]:
    """One Fetch by a client of its own."""
    with RawClient(*address) as client:
        return client.fetch(VERSION, targets, max_wait_ms=max_wait_ms).partitions


def _leader(bootstrap: tuple[str, int], topic: str) -> tuple[tuple[str, int], bytes]:
    """The listener that stands for the cluster's only broker, and the topic's id."""
    with RawClient(*bootstrap) as client:
        (broker,) = client.metadata([topic]).brokers
        return (broker.host, broker.port), client.topic_id(topic)
