"""Each background task is killed by three kinds of exception in turn, while a client reads: it is served on.

How it failed: the first exception of any of them ended the process.
"""

import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import structlog
import trio

from metrics.registry import Registry
from tests.support.background_tasks import kill, task_named
from tests.support.hostile_stage import blobs
from tests.support.in_process import in_process, in_thread
from tests.support.kafka import TieredTopic, fresh_name, produce
from tests.support.plain_kafka import before_plain_kafka
from tests.support.raw_client import RawClient
from tests.support.samples import sum_of
from tests.support.waiting import WAIT_S_MAX
from tidegate import serve
from tidegate.config import load
from tools.demo.kafka_cluster import KafkaCluster
from tools.demo.kafka_properties import properties_text

pytestmark = [pytest.mark.needs("java", "kafka"), pytest.mark.integration]

FAULTS: tuple[Callable[[], Exception], ...] = (
    lambda: KeyError("a key that is not there"),
    lambda: UnicodeError("label empty or too long"),
    lambda: AssertionError("never"),
)
END_EARLY = {"cache sweep", "catalog"}
"""What they do is done once."""
FAILURES = "tidegate_task_failures_total"


@pytest.fixture(autouse=True)
def _lines() -> Iterator[None]:
    """Traces on a terminal take seconds, in which the loop stands."""
    with structlog.testing.capture_logs():
        yield


@dataclass(slots=True)
class Reader:
    """Reads again and again; whatever goes wrong is the test's failure."""

    read: Callable[[], int]
    read_count: int = 0
    """Bytes or topics."""
    has_read: trio.Event = field(default_factory=trio.Event)

    async def run(self) -> None:
        while True:
            self.read_count += await in_thread(self.read)
            self.has_read.set()
            self.has_read = trio.Event()

    async def reads_on(self) -> None:
        """Return after a whole round that begins now."""
        for _ in range(2):
            await self.has_read.wait()


@asynccontextmanager
async def reading(read: Callable[[], int]) -> AsyncIterator[Reader]:
    reader = Reader(read)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reader.run)
        yield reader
        nursery.cancel_scope.cancel()
    assert reader.read_count


def kept_tasks(registry: Registry) -> list[str]:
    """Their names; what was started once has a dot in its own."""
    samples = (sample for metric in registry.collect() for sample in metric.samples if sample.name == FAILURES)
    return sorted(name for sample in samples if "." not in (name := sample.labels["task"]))


async def kill_each(registry: Registry, reader: Reader) -> set[str]:
    """Every task by every kind, one after another; those that have ended already are given."""
    ended: set[str] = set()
    source = random.Random(1)
    for task in kept_tasks(registry):
        for fault in FAULTS:
            before = sum_of(registry, FAILURES, {"task": task})
            with trio.fail_after(WAIT_S_MAX):  # a wait for a thread cannot be cut short
                while sum_of(registry, FAILURES, {"task": task}) == before:
                    found = task_named(task)
                    if found is None and task in END_EARLY:
                        ended.add(task)
                        break
                    if found is not None:
                        kill(found, fault(), source)
                    await trio.sleep(0.02)
        await reader.reads_on()
    return ended


async def test_of_a_replica(kafka: KafkaCluster, tiered: TieredTopic, tmp_path: Path) -> None:
    properties = {
        "cache.path": str(tmp_path / "cache"),
        "catalog.snapshot.path": str(tmp_path / "snapshot"),
        "audit.log": str(tmp_path / "audit.log"),
    }
    async with in_process(kafka, tiered.name, tmp_path, properties) as tidegate:

        def read() -> int:
            with RawClient(*tidegate.address) as client:
                (answer,) = client.fetch(17, [tidegate.target(0)], max_wait_ms=500).partitions
            assert answer.error_code in (0, 9)
            return len(answer.records)

        registry = tidegate.application.meters.registry
        async with reading(read) as reader:
            assert await kill_each(registry, reader) == END_EARLY
            await tidegate.application.cluster.refresh()
        assert {"upstream", "tier", "metadata topic", "configuration", "audit log"} <= {*kept_tasks(registry)}


async def test_of_a_copier_in_serve(plain_kafka: KafkaCluster, tmp_path: Path) -> None:
    topic = fresh_name("killed")
    plain_kafka.create_topic(topic)
    await in_thread(lambda: produce(plain_kafka, topic, blobs(1, 1)))
    properties = before_plain_kafka(plain_kafka, tmp_path, {"copy.enabled": "true", "copy.topics": topic})
    file = tmp_path / "tidegate.properties"
    file.write_text(properties_text(properties), encoding="utf-8")
    config = await in_thread(lambda: load(file, {}))
    async with serve.run(config) as application:
        with trio.fail_after(WAIT_S_MAX):
            await application.readiness.wait_ready()

        def read() -> int:
            with RawClient(*application.bootstrap) as client:
                return len(client.metadata([topic]).topics)

        registry = application.meters.registry
        async with reading(read) as reader:
            await kill_each(registry, reader)
        assert {"copying", "log starts", "metadata guard", "hanging transactions"} <= {*kept_tasks(registry)}
