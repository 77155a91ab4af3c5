"""Workers and supervisors are killed while clients read and write: digests stay right, and clients need no help.

The short form kills one of each. The long one prints for how long clients stood still; nothing is asserted of that.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

from tests.integration.test_life_cycle import Traffic, at_ports, traffic
from tests.support.digests import TopicDigest, confluent_consumer, read_with_confluent
from tests.support.kafka import TieredTopic, fresh_name
from tests.support.serving import Serving, before_kafka, serving
from tests.support.waiting import wait_until
from tests.support.worker_processes import all_are_ready, family_of, have_ended, workers_of
from tools.demo.kafka_cluster import KafkaCluster, free_port

BACKFILL = {
    "reconnect.backoff.max.ms": 500,
    "queued.min.messages": 1000,
    "fetch.message.max.bytes": 128 * 1024,
    "fetch.queue.backoff.ms": 5,
}
"""Little is held in advance: most kills come in the middle of a read."""

RECORDS_AFTERWARDS = 100
STALLS_LOOK_S = 0.01
END_S_MAX = 60.0


class Backfills(threading.Thread):
    """Reads a topic from its beginning to its end, again and again."""

    def __init__(self, bootstrap: str, topic: str, ends: Mapping[int, int]) -> None:
        super().__init__(daemon=True)
        self._servers, self._topic, self._ends = bootstrap, topic, ends
        self._stopping = threading.Event()
        self.records = 0
        self.errors: list[str] = []
        self.digests: list[object] = []
        """Of each whole read."""

    def run(self) -> None:
        while not self._stopping.is_set():
            with closing(confluent_consumer(self._servers, "read_uncommitted", BACKFILL)) as consumer:
                consumer.assign([TopicPartition(self._topic, partition, 0) for partition in self._ends])
                self._read(consumer)

    def _read(self, consumer: Consumer) -> None:
        digest, left = TopicDigest(self._ends), sum(self._ends.values())
        while left > 0:
            if self._stopping.is_set():
                return
            for message in consumer.consume(500, 0.05):
                error = message.error()
                if error is None:
                    digest.add_message(message)
                    left -= 1
                    self.records += 1
                elif error.code() != KafkaError._PARTITION_EOF:
                    self.errors.append(str(error))
        self.digests.append(digest.result())

    def stop(self) -> None:
        self._stopping.set()
        self.join(END_S_MAX)


class Stalls(threading.Thread):
    """For how long each of some counts stood still at most."""

    def __init__(self, counts: Mapping[str, Callable[[], int]]) -> None:
        super().__init__(daemon=True)
        self._counts = counts
        self._longest_s = dict.fromkeys(counts, 0.0)
        self.stopping = threading.Event()

    def run(self) -> None:
        seen = {name: (count(), time.monotonic()) for name, count in self._counts.items()}
        while not self.stopping.wait(STALLS_LOOK_S):
            for name, count in self._counts.items():
                value, now_s = count(), time.monotonic()
                if value != seen[name][0]:
                    seen[name] = value, now_s
                self._longest_s[name] = max(self._longest_s[name], now_s - seen[name][1])

    def take(self) -> str:
        """Since the last time, in words."""
        longest_s, self._longest_s = self._longest_s, dict.fromkeys(self._counts, 0.0)
        return ", ".join(f"{name} {stall_s:.2f} s" for name, stall_s in longest_s.items())


class Scene:
    """A Tidegate that is killed and started again, its clients, and what they must have."""

    def __init__(self, stack: ExitStack, folder: Path, properties: Mapping[str, str]) -> None:
        self._stack, self._folder, self._properties = stack, folder, properties
        self.served = self.start()

    def start(self) -> Serving:
        self.served = self._stack.enter_context(serving(self._folder, self._properties))
        self.served.wait_log("ready: ")
        return self.served

    def kill_worker(self, number: int) -> None:
        pid = workers_of(self.served)[number]["pid"]
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: workers_of(self.served)[number]["pid"] not in (pid, None), f"worker {number} again")
        wait_until(lambda: all_are_ready(self.served), f"worker {number} to be ready again")

    def kill_supervisor(self) -> None:
        family = family_of(self.served)
        self.served.process.kill()
        wait_until(lambda: have_ended(family), "the workers' and the template's end")
        assert "Traceback" not in self.served.log()
        self.start()


def go_on(clients: Traffic, backfills: Backfills) -> None:
    """Return when each client has got further, and the whole read that is under way has ended."""
    consumed, delivered = len(clients.consumed) + RECORDS_AFTERWARDS, len(clients.delivered) + RECORDS_AFTERWARDS
    reads = len(backfills.digests) + 1
    wait_until(lambda: len(clients.delivered) >= delivered, "records to be produced", timeout_s=END_S_MAX)
    wait_until(lambda: len(clients.consumed) >= consumed, "records to be consumed", timeout_s=END_S_MAX)
    wait_until(lambda: len(backfills.digests) >= reads, "a whole read", timeout_s=END_S_MAX)


@pytest.mark.parametrize(
    ("workers", "worker_kills", "supervisor_kills"),
    # Five deaths of one worker within a minute would end all.
    [
        pytest.param(2, 1, 1, id="one of each"),
        pytest.param(5, 20, 0, id="twenty workers", marks=pytest.mark.long),
        pytest.param(2, 0, 5, id="five supervisors", marks=pytest.mark.long),
    ],
)
def test_digests_are_right_whoever_is_killed(
    kafka: KafkaCluster,
    tiered: TieredTopic,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    workers: int,
    worker_kills: int,
    supervisor_kills: int,
) -> None:
    ports = {"proxy.broker.ports": f"1:{free_port()}", "cache.path": str(tmp_path / "cache")}
    properties = at_ports({**before_kafka(kafka), **ports, "proxy.workers": str(workers)})
    ends = {partition: offsets.high_watermark for partition, offsets in tiered.offsets.items()}
    direct = read_with_confluent(kafka.bootstrap_servers, tiered.name, ends, "read_uncommitted")
    topic = fresh_name("whoever")
    kafka.create_topic(topic, 1, {})
    lines: list[str] = []
    with ExitStack() as stack:
        scene = Scene(stack, tmp_path, properties)
        clients = stack.enter_context(traffic(scene.served.bootstrap, topic))
        backfills = Backfills(scene.served.bootstrap, tiered.name, ends)
        stack.callback(backfills.stop)
        backfills.start()
        wait_until(lambda: backfills.digests and len(clients.consumed) > RECORDS_AFTERWARDS, "records")
        counts = {
            "producer": lambda: len(clients.delivered),
            "consumer": lambda: len(clients.consumed),
            "backfill": lambda: backfills.records,
        }
        stalls = Stalls(counts)
        stack.callback(stalls.stopping.set)
        stalls.start()
        go_on(clients, backfills)
        lines.append(f"nobody killed: {stalls.take()}")
        for kill in range(worker_kills):
            scene.kill_worker(kill % workers)
            go_on(clients, backfills)
            lines.append(f"worker {kill % workers} killed: {stalls.take()}")
        for _ in range(supervisor_kills):
            scene.kill_supervisor()
            go_on(clients, backfills)
            lines.append(f"supervisor killed: {stalls.take()}")
        with_acknowledgement = {*clients.delivered}
        wait_until(lambda: with_acknowledgement <= clients.consumed, "all that was acknowledged")
        backfills.stop()
        clients.stop()
        assert (clients.fatal, clients.failed, backfills.errors) == ([], [], [])
        assert {str(digest) for digest in backfills.digests} == {str(direct)}
        assert "Traceback" not in scene.served.log()
    if worker_kills + supervisor_kills > 2:
        with capsys.disabled():
            print("\nlongest stalls:", *lines, f"{len(backfills.digests)} whole reads, each right", sep="\n")
