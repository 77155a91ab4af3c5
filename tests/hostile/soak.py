"""A bad day in minutes: 300 connections, good, slow and hostile, while the broker restarts and the store fails.

    python -m tests.hostile.soak --seconds 600

It prints a line every 30 s and a summary, and ends with 1 when something was not as it must be: every round of every
good reader gives the broker's own bytes; resident memory at the end is that of minute two (the same share of a
shorter run), within 5 %, and never beyond the limit; when all have gone, descriptors and tasks are as at the start.
"""

import argparse
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.support.aiven_tier import publish_tier
from tests.support.honest_consumer import Reading, Target
from tests.support.hostile_clients import announced, crowd, trickling_readers, trickling_senders
from tests.support.hostile_stage import (
    CACHE_BYTES,
    MEMORY_MAX_BYTES,
    MIB,
    RESIDENT_BYTES_MAX,
    Held,
    HonestTopic,
    LargeTopic,
    connections_to,
    descriptors,
    make_honest_topic,
    make_large_topic,
    peak_resident_bytes,
    resident_bytes,
    settled,
)
from tests.support.kafka import own_cluster
from tests.support.raw_client import RawClient, fetch_request, request_frame
from tests.support.replicas import broker_ports
from tests.support.s3_front import S3Front, s3_front
from tests.support.s3_server import s3_server
from tests.support.scripted_http import s3_error
from tests.support.tidegate import RunningTidegate, own_tidegate
from tests.support.waiting import wait_until
from tools.demo.kafka_cluster import KafkaCluster
from tools.demo.kafka_properties import METADATA_PARTITIONS

VERSION = 17
GOOD, SLOW, STUCK, ANNOUNCING, SENDING = 40, 60, 80, 80, 40
"""300 connections."""
WORK_S_MAX = 2.0
WORK_SHARE = 1 / 60
"""Of the run, for which the good ones work on each mebibyte: that they read everything in a minute, too."""
REPORT_S = 30.0
SAMPLE_S = 1.0
PERIODS = 10
"""In each the store refuses, hangs, and in every other one the broker restarts; slow and hostile ones leave and come
again. By minute two each has happened: what the process needs at most is known then."""
OWN_CONNECTIONS_MAX = METADATA_PARTITIONS + 4
"""To a broker, Tidegate's own: one for each partition of the metadata topic, and one each for that topic's offsets, for
the cluster's metadata, for questions about partitions, and in place of one that the broker has closed. Some come into
being with the first question."""
FAULT_SHARE = 0.1
"""Of a period, for which a fault lasts."""
REFERENCE = (0.15, 0.25)
"""Around minute two of ten."""
END = (0.9, 1.0)
GROWTH_MAX = 1.05
GONE_S = 60.0


@dataclass(slots=True)
class Soak:
    """What runs, and what was seen of it."""

    seconds: float
    cluster: KafkaCluster
    tidegate: RunningTidegate
    front: S3Front
    honest: HonestTopic
    large: LargeTopic
    leader: tuple[str, int]
    growth_max: float
    say: Callable[[str], None]
    begun_s: float = field(default_factory=time.monotonic)
    samples: list[tuple[float, int]] = field(default_factory=list)
    """Share of the run, resident bytes."""
    readers: list[Reading] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    @property
    def share(self) -> float:
        return (time.monotonic() - self.begun_s) / self.seconds

    def run(self) -> None:
        """All of it; `complaints` are complete behind it."""
        settled(self.tidegate)
        before = self._held()
        self._open_before = descriptors(self.tidegate)
        self.begun_s = time.monotonic()
        with self._good():
            for number in range(PERIODS):
                with self._slow(), self._hostile():
                    self._period(number)
        self._judge(before)

    def _period(self, number: int) -> None:
        """A fifth of the run, with its troubles."""
        fault = FAULT_SHARE / PERIODS
        at = [(number + part) / PERIODS for part in (0.2, 0.45, 0.7, 1.0)]
        self._sample_until(at[0])
        self.front.refuse(s3_error(503, "SlowDown"), path="*.log")
        self._sample_until(at[0] + fault)
        self.front.heal()
        self._sample_until(at[1])
        with self.front.held("*.log"):
            self._sample_until(at[1] + fault)
        if number % 2 == 0:
            self._sample_until(at[2])
            self.cluster.restart_broker(1)
        self._sample_until(at[3])

    def _sample_until(self, share: float) -> None:
        waiting = threading.Event()
        while self.share < share:
            waiting.wait(SAMPLE_S)
            self.samples.append((self.share, resident_bytes(self.tidegate)))
            if int(self.share * self.seconds / REPORT_S) > self._reported:
                self._report()

    _reported: int = 0
    _open_before: Counter[str] = field(default_factory=Counter)

    def _report(self) -> None:
        self._reported = int(self.share * self.seconds / REPORT_S)
        held = Held.of(self.tidegate)
        self.say(
            f"{self.share * self.seconds:5.0f} s: {self.samples[-1][1] / MIB:4.0f} MiB, "
            f"{held.descriptors} descriptors, {held.gauges['tidegate_connections_active']:.0f} connections, "
            f"{held.gauges['tidegate_tasks']:.0f} tasks, {sum(each.rounds for each in self.readers)} rounds, "
            f"worst wait {max(each.worst_s for each in self.readers):.1f} s, "
            f"{sum(each.reconnects for each in self.readers)} reconnects"
        )

    @contextmanager
    def _good(self) -> Iterator[None]:
        work_s = min(WORK_S_MAX, WORK_SHARE * self.seconds)
        target = Target(*self.tidegate.address, self.honest.name, self.honest.ends, work_s=work_s)
        self.readers = [Reading(target) for _ in range(GOOD)]
        threads = [threading.Thread(target=each.forever) for each in self.readers]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            for each in self.readers:
                each.is_over.set()
            for thread in threads:
                thread.join()

    @contextmanager
    def _slow(self) -> Iterator[None]:
        with crowd(self.leader, SLOW) as clients, trickling_readers(clients):
            self._ask(clients)
            yield

    @contextmanager
    def _hostile(self) -> Iterator[None]:
        with ExitStack() as stack:
            self._ask(stack.enter_context(crowd(self.leader, STUCK)))
            for client in stack.enter_context(crowd(self.leader, ANNOUNCING)):
                client.send_bytes(announced(16 * MIB - 4))
            senders = stack.enter_context(crowd(self.leader, SENDING))
            for client in senders:
                client.send_bytes(announced(400 * 1024))
            stack.enter_context(trickling_senders(senders))
            yield

    def _ask(self, clients: Sequence[RawClient]) -> None:
        frame = request_frame(fetch_request(VERSION, [self.large.target()]), 1)
        for client in clients:
            client.send_bytes(frame)

    def _judge(self, before: Held) -> None:
        try:
            after = wait_until(lambda: self._given_back(before), "everything given back", timeout_s=GONE_S) or before
        except AssertionError:
            after = self._held()
            more = dict(descriptors(self.tidegate) - self._open_before)
            self.complaints.append(f"not given back (now, before): {after.beyond(before)}; also open: {more}")
        digests = {digest for each in self.readers for digest in each.digests}
        rounds = sum(each.rounds for each in self.readers)
        if digests != {self.honest.digest}:
            wrong = len(digests - {self.honest.digest})
            self.complaints.append(f"{wrong} wrong digests in {rounds} rounds" if rounds else "no whole round")
        reference, end, peak = self._median(REFERENCE), self._median(END), peak_resident_bytes(self.tidegate)
        if end > reference * self.growth_max:
            self.complaints.append(f"{reference / MIB:.0f} MiB became {end / MIB:.0f}")
        if peak >= RESIDENT_BYTES_MAX:
            self.complaints.append(f"peak {peak / MIB:.0f} MiB, below {RESIDENT_BYTES_MAX / MIB:.0f} MiB wanted")
        self.say(
            f"{rounds} rounds of {GOOD} readers; {reference / MIB:.0f} MiB at minute two of ten, "
            f"{end / MIB:.0f} MiB at the end, peak {peak / MIB:.0f}; "
            f"descriptors {before.descriptors} before, {after.descriptors} after"
        )
        for complaint in self.complaints or ["nothing wrong"]:
            self.say(complaint)

    def _held(self) -> Held:
        """Without the connections to the store: their pool keeps what was once needed, for anybody. And without its own
        to the broker, as many as it may have."""
        held = Held.of(self.tidegate)
        store_port = int(self.front.endpoint_url.rpartition(":")[2])
        broker_port = int(self.cluster.bootstrap_servers.rpartition(":")[2])
        own = min(OWN_CONNECTIONS_MAX, connections_to(self.tidegate, broker_port))
        return replace(held, descriptors=held.descriptors - connections_to(self.tidegate, store_port) - own)

    def _given_back(self, before: Held) -> Held | None:
        now = self._held()
        return None if now.beyond(before) else now

    def _median(self, window: tuple[float, float]) -> float:
        inside = [size for share, size in self.samples if window[0] <= share <= window[1]]
        # On a busy machine what happens in a period may take longer than the window is: then the next sample counts, or
        # the last.
        later = [size for share, size in self.samples if share > window[0]]
        return statistics.median(inside or later[:1] or [self.samples[-1][1]])


def soak(seconds: float, *, growth_max: float = GROWTH_MAX, say: Callable[[str], None] = print) -> list[str]:
    """Run it on a cluster and a store of its own, and give what was wrong.

    Args:
        growth_max: what the end may have resident, as a multiple of minute two of ten.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tidegate-soak-")))
        cluster = stack.enter_context(own_cluster())
        honest, large = make_honest_topic(cluster, mebibytes=12), make_large_topic(cluster)
        server = stack.enter_context(s3_server())
        tier = publish_tier(cluster, server, [honest.name, large.name], folder, chunk_bytes=MIB)
        front = stack.enter_context(s3_front(server.endpoint_url))
        budgets = {"memory.max.bytes": str(MEMORY_MAX_BYTES), "cache.memory.bytes": str(CACHE_BYTES)}
        properties = {**tier.properties(endpoint_url=front.endpoint_url), **budgets}
        tidegate = stack.enter_context(own_tidegate(cluster, properties))
        leader = "127.0.0.1", broker_ports(tidegate)[1]
        run = Soak(seconds, cluster, tidegate, front, honest, large, leader, growth_max, say)
        run.run()
        return run.complaints


def main() -> int:
    parser = argparse.ArgumentParser(description="300 connections, good, slow and hostile, and what they leave behind.")
    parser.add_argument("--seconds", type=float, default=600.0, help="how long (default: %(default)g)")
    return 1 if soak(parser.parse_args().seconds, say=lambda line: print(line, flush=True)) else 0


if __name__ == "__main__":
    sys.exit(main())
