"""A Tidegate that is killed at chosen moments and started again, with what each start must find.

    with killable_tidegate(kafka, folder) as kills, growing_tier(kafka):
        kills.kill(Moment.READING)
        kills.start()

Ports, folder and configuration stay the same; the disk cache and the catalog's snapshot are in the folder.
"""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from storage.metadata.snapshot import SNAPSHOT_NAME
from tests.support.kafka import TIERED, fresh_name, orders, produce, small_segments
from tests.support.raw_client import RawClient, fetch_request
from tests.support.tidegate import RunningTidegate, own_tidegate
from tests.support.waiting import wait_until
from tools.demo.kafka_cluster import KafkaCluster, free_port
from tools.demo.kafka_properties import HOST

SNAPSHOT_INTERVAL_MS = 200
CACHE_MEMORY_BYTES = 2 * 1024 * 1024
"""Less than is read, so that what was read before comes from the disk."""
BLOCK_BYTES = 64 * 1024
READAHEAD_BYTES = 256 * 1024
"""A few blocks: else the whole topic is in the cache before the first kill."""
PARKED_WAIT_MS = 20_000
SNAPSHOT_WRITE_S = 20.0
GROWTH_PAUSE_S = 0.2
GROWTH_RECORDS, GROWTH_BATCH_RECORDS = 160, 10
GROWING_PARTITIONS = 4
"""Each has rounds of copying of its own, a second apart."""
VERSION = 17

DRAFT_NAME = f"{SNAPSHOT_NAME}.draft"

HITS = "tidegate_cache_hits_total"
FILLS = "tidegate_cache_fills_total"
SNAPSHOT_LOADS = "tidegate_catalog_snapshot_loads_total"


class Moment(StrEnum):
    """What Tidegate does when it is killed, besides serving clients."""

    READING = "reading"
    SNAPSHOT = "snapshot"
    """It writes a snapshot."""
    DRAIN = "drain"
    """It has been asked to stop, and waits for an answer that is under way."""


@dataclass(slots=True)
class Kills:
    """Kills and starts one Tidegate; `said` tells what it saw."""

    tidegate: RunningTidegate
    snapshot: Path
    parking: str
    """An empty topic, at whose end a Fetch waits."""
    count: int = 0
    said: list[str] = field(default_factory=list)

    def kill(self, moment: Moment) -> None:
        """SIGKILL when that moment has come, which it does within seconds."""
        ratio, fills, seen = self.hit_ratio(), self.fills(), ""
        match moment:
            case Moment.READING:
                self.tidegate.kill()
            case Moment.SNAPSHOT:
                self._wait_snapshot_write()
                self.tidegate.kill()
                seen = ", half written" if self.snapshot.with_name(DRAFT_NAME).exists() else ", just written"
            case Moment.DRAIN:
                with self._parked_fetch():
                    begun = len(self.tidegate.log())
                    os.kill(self.tidegate.process.pid, signal.SIGTERM)
                    wait_until(lambda: "draining" in self.tidegate.log()[begun:], "Tidegate drains")
                    self.tidegate.kill()
        self.count += 1
        self.said.append(f"kill {self.count}: {moment}{seen}; since its start {fills:.0f} fills, hit ratio {ratio:.2f}")

    def start(self) -> None:
        """Start it again: it becomes ready, and uses the snapshot if there is one."""
        has_snapshot = self.snapshot.exists()
        started_s = time.monotonic()
        self.tidegate.start_again()
        ready_s = time.monotonic() - started_s
        # It answers 503, which is an error here, while not ready.
        self.tidegate.page("/readyz")
        used = self.tidegate.metric(SNAPSHOT_LOADS, outcome="used")
        assert used == has_snapshot, self.tidegate.log()
        self.said.append(f"ready again in {ready_s:.1f} s, snapshot {'used' if used else 'absent'}")

    def hits(self, level: str) -> float:
        """Return the hits of the Tidegate that runs now, since it was started."""
        return self.tidegate.metric(HITS, level=level)

    def fills(self) -> float:
        """Return the fills of the Tidegate that runs now, since it was started."""
        return self.tidegate.metric(FILLS)

    def hit_ratio(self) -> float:
        """Blocks found in memory or on disk, of those that were looked for since the start."""
        hits = self.hits("memory") + self.hits("disk")
        return hits / max(1.0, hits + self.fills())

    def _wait_snapshot_write(self) -> None:
        """Return as soon as a draft is there."""
        draft, deadline_s = self.snapshot.with_name(DRAFT_NAME), time.monotonic() + SNAPSHOT_WRITE_S
        # Without a pause: it is gone again in milliseconds.
        while not draft.exists():
            assert time.monotonic() < deadline_s, f"no snapshot was begun within {SNAPSHOT_WRITE_S:g} s"

    @contextmanager
    def _parked_fetch(self) -> Iterator[None]:
        """A Fetch that the broker does not answer soon."""
        with RawClient(*self.tidegate.address) as client:
            (broker,) = client.metadata([self.parking]).brokers
            topic_id = client.topic_id(self.parking)
        with RawClient(broker.host, broker.port) as client:
            requests = self.tidegate.metric("tidegate_requests_total", api_key="1")
            client.send(fetch_request(VERSION, [(self.parking, topic_id, 0, 0, 1024)], max_wait_ms=PARKED_WAIT_MS))
            wait_until(
                lambda: self.tidegate.metric("tidegate_requests_total", api_key="1") > requests, "the Fetch is there"
            )
            yield


@contextmanager
def killable_tidegate(kafka: KafkaCluster, folder: Path) -> Iterator[Kills]:
    """A Tidegate on ports of its own, with small blocks, a disk cache, and snapshots as often as may be."""
    parking, cache = fresh_name("parking"), folder / "cache"
    kafka.create_topic(parking, 1)
    properties = {
        "proxy.listen": f"{HOST}:{free_port()}",
        "proxy.broker.ports": f"1:{free_port()}",
        "cache.path": str(cache),
        "expert.cache.block.bytes": str(BLOCK_BYTES),
        "cache.memory.bytes": str(CACHE_MEMORY_BYTES),
        "readahead.stream.max.bytes": str(READAHEAD_BYTES),
        "expert.catalog.snapshot.interval.ms": str(SNAPSHOT_INTERVAL_MS),
    }
    with own_tidegate(kafka, properties) as tidegate:
        yield Kills(tidegate, cache / "catalog" / SNAPSHOT_NAME, parking)


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """The system still takes connections for the process, and it answers none."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextmanager
def growing_tier(kafka: KafkaCluster) -> Iterator[None]:
    """Segments of another topic go to the tier all the while, so the catalog changes and each snapshot is another."""
    topic, is_over = fresh_name("growing"), threading.Event()
    kafka.create_topic(topic, GROWING_PARTITIONS, {**TIERED, **small_segments(batches=2)})

    def grow() -> None:
        while not is_over.wait(GROWTH_PAUSE_S):
            produce(kafka, topic, orders(GROWTH_RECORDS, GROWING_PARTITIONS), batch_num_messages=GROWTH_BATCH_RECORDS)

    thread = threading.Thread(target=grow, name="growing tier")
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
