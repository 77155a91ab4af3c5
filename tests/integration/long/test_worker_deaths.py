"""Workers and supervisors are killed, one after another, while clients read and write: digests stay right, and clients
need no help. One death of each worker: test_workers.py; what becomes of a supervisor's: tests/proxy/workers/all.
"""

import os
import signal
import threading
from collections.abc import Mapping
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
    [pytest.param(5, 20, 0, id="twenty workers"), pytest.param(2, 0, 5, id="five supervisors")],
)
def test_digests_are_right_whoever_is_killed(
    kafka: KafkaCluster, tiered: TieredTopic, tmp_path: Path, workers: int, worker_kills: int, supervisor_kills: int
) -> None:
    ports = {"proxy.broker.ports": f"1:{free_port()}", "cache.path": str(tmp_path / "cache")}
    properties = at_ports({**before_kafka(kafka), **ports, "proxy.workers": str(workers)})
    ends = {partition: offsets.high_watermark for partition, offsets in tiered.offsets.items()}
    direct = read_with_confluent(kafka.bootstrap_servers, tiered.name, ends, "read_uncommitted")
    topic = fresh_name("whoever")
    kafka.create_topic(topic, 1, {})
    with ExitStack() as stack:
        scene = Scene(stack, tmp_path, properties)
        clients = stack.enter_context(traffic(scene.served.bootstrap, topic))
        backfills = Backfills(scene.served.bootstrap, tiered.name, ends)
        stack.callback(backfills.stop)
        backfills.start()
        wait_until(lambda: backfills.digests and len(clients.consumed) > RECORDS_AFTERWARDS, "records")
        go_on(clients, backfills)
        for kill in range(worker_kills):
            scene.kill_worker(kill % workers)
            go_on(clients, backfills)
        for _ in range(supervisor_kills):
            scene.kill_supervisor()
            go_on(clients, backfills)
        with_acknowledgement = {*clients.delivered}
        wait_until(lambda: with_acknowledgement <= clients.consumed, "all that was acknowledged")
        backfills.stop()
        clients.stop()
        assert (clients.fatal, clients.failed, backfills.errors) == ([], [], [])
        assert {str(digest) for digest in backfills.digests} == {str(direct)}
        assert "Traceback" not in scene.served.log()
