"""Two real copiers of one group while records come in: they are killed and paused at random moments, and the tier is
whole at the end, with nothing twice and nothing left over.

`TIDEGATE_COPIERS_SEED` repeats the moments of a run, as far as two processes let it.
"""

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Message, Producer

from tests.support.digests import read_with_confluent
from tests.support.kafka import fresh_name
from tests.support.plain_kafka import before_plain_kafka, drop_all, ends_of, run_standalone, standalone
from tests.support.serving import Serving, serving
from tests.support.tier_proofs import check_whole, files_of
from tests.support.waiting import HANG_S_MAX, wait_until
from tools.demo.kafka_cluster import KafkaCluster

pytestmark = [pytest.mark.integration, pytest.mark.needs("java", "kafka")]

SEED = int(os.environ.get("TIDEGATE_COPIERS_SEED") or random.SystemRandom().randrange(2**32))

PARTITIONS = 4
SESSION_TIMEOUT_MS = 6000
"""The least that a broker allows (`group.min.session.timeout.ms`), in place of standalone.copier.membership's."""
SHORT_SESSION = (
    "-c",
    "import sys; from standalone.copier.membership import Membership; from tidegate.cli import main; "
    f"Membership.__init__.__kwdefaults__['session_timeout_ms'] = {SESSION_TIMEOUT_MS}; sys.exit(main())",
)
MOMENT_S_MAX = 0.6
"""Copies of a copier that is busy begin some hundred milliseconds apart."""
TURN_S_MAX = HANG_S_MAX


class Producing(threading.Thread):
    """Writes some 300 KB a second until it is stopped: a segment each fifth of one. Counts what was acknowledged."""

    BATCH, PAUSE_S, VALUE_BYTES = 100, 0.1, 300

    def __init__(self, kafka: KafkaCluster, topic: str) -> None:
        super().__init__(daemon=True)
        self._producer = Producer(
            {"bootstrap.servers": kafka.bootstrap_servers, "enable.idempotence": True, "linger.ms": 5}
        )
        self._topic = topic
        self._stopping = threading.Event()
        self.failures: list[str] = []
        self.acknowledged = 0

    def run(self) -> None:
        number = 0
        while not self._stopping.wait(self.PAUSE_S):
            for _ in range(self.BATCH):
                value = b"%d " % number + random.Random(number).randbytes(self.VALUE_BYTES)
                self._producer.produce(self._topic, value, b"key", number % PARTITIONS, on_delivery=self._delivered)
                number += 1
            self._producer.poll(0)
        self._producer.flush(60)

    def stop(self) -> None:
        self._stopping.set()
        self.join(90)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.acknowledged += 1
        else:
            self.failures.append(str(error))


class Copiers:
    """Two `tidegate copy` processes, each with a folder of its own."""

    def __init__(self, stack: ExitStack, kafka: KafkaCluster, folder: Path, topic: str) -> None:
        self._stack, self._kafka, self._topic = stack, kafka, topic
        self._folders = [folder / "one", folder / "two"]
        self.properties = {
            "copy.topics": topic,
            "copy.group.id": topic,
            "copy.segment.bytes": "64 KiB",
            "copy.segment.ms": "1000",
        }
        for each in self._folders:
            each.mkdir()
        self.logs: list[str] = []
        """Logs of those that have ended."""
        self.running: list[Serving] = [self._start(each) for each in self._folders]

    def _start(self, folder: Path) -> Serving:
        properties = before_plain_kafka(self._kafka, folder, self.properties)
        return self._stack.enter_context(serving(folder, properties, program=SHORT_SESSION, command="copy"))

    def wait_copying(self, number: int) -> None:
        """Return when a copier has had partitions, and the tier has got more since."""
        copier = self.running[number]
        wait_until(lambda: copier.events("copy_partitions_assigned"), "its partitions", timeout_s=TURN_S_MAX)
        before = files_of(self._kafka, self._topic).keys()
        wait_until(lambda: files_of(self._kafka, self._topic).keys() - before, "copies", timeout_s=TURN_S_MAX)

    def kill(self, number: int) -> None:
        """As a power failure would, and start it again at once."""
        killed = self.running[number]
        killed.process.kill()
        killed.process.wait()
        self.logs.append(killed.log())
        self.running[number] = self._start(self._folders[number])

    @contextmanager
    def paused(self, number: int) -> Iterator[None]:
        """Stop a copier until the other one has been given its partitions; it goes on where it stood."""
        process, other = self.running[number].process, self.running[1 - number]
        given = len(other.events("copy_partitions_assigned"))
        process.send_signal(signal.SIGSTOP)
        try:
            wait_until(
                lambda: len(other.events("copy_partitions_assigned")) > given, "the other's", timeout_s=TURN_S_MAX
            )
            yield
        finally:
            process.send_signal(signal.SIGCONT)
        wait_until(lambda: self.running[number].events("copy_partitions_lost"), "the loss to be noticed")

    def end(self) -> None:
        for each in self.running:
            each.terminate()
        for each in self.running:
            assert each.process.wait(90) == 0, each.log()
            self.logs.append(each.log())


def test_the_tier_is_whole_whoever_is_killed_or_paused(plain_kafka: KafkaCluster, tmp_path: Path) -> None:
    """Given two copiers with two partitions each and a producer, when one is killed and started again, or paused until
    the group has given its partitions away, then every offset is in one segment, `verify` finds nothing, the folder has
    no file of another segment, and clients of `serve` read what was produced once the broker has deleted all of it."""
    copy_through(plain_kafka, tmp_path, kills=2, pauses=1)


def copy_through(kafka: KafkaCluster, folder: Path, *, kills: int, pauses: int) -> None:
    print(f"\ncopiers: seed {SEED}")
    chance = random.Random(SEED)
    topic = fresh_name("shared")
    kafka.create_topic(topic, PARTITIONS, {"retention.ms": "-1", "segment.bytes": str(1024 * 1024)})
    with ExitStack() as stack:
        copiers = Copiers(stack, kafka, folder, topic)
        producing = Producing(kafka, topic)
        stack.callback(producing.stop)
        producing.start()
        turns: list[Callable[[int], None]] = [copiers.kill] * kills + [lambda number: _pause(copiers, number)] * pauses
        chance.shuffle(turns)
        for turn in turns:
            number = chance.randrange(2)
            copiers.wait_copying(number)
            time.sleep(chance.random() * MOMENT_S_MAX)  # a moment that nobody chose
            turn(number)
        for number in range(2):
            copiers.wait_copying(number)
        producing.stop()
        assert producing.failures == []
        copiers.end()
        # What a paused copier finished late has waited beside its twin until now. Without the grace, one of two
        # copiers may delete a segment before the other has said that it is finished.
        tidying = {**copiers.properties, "copy.delete.grace.ms": "0"}
        tidied = run_standalone(kafka, folder, "copy", "--once", properties=tidying)
        assert tidied.returncode == 0, tidied.stderr
    assert not any("copy_gap" in log or "Traceback" in log for log in [*copiers.logs, tidied.stderr])

    ends = ends_of(kafka, topic)
    assert sum(ends.values()) == producing.acknowledged
    check_whole(kafka, folder, topic, dict.fromkeys(ends, 0), ends)
    direct = read_with_confluent(kafka.bootstrap_servers, topic, ends, "read_uncommitted")
    drop_all(kafka, topic, ends)
    with standalone(kafka, folder, {"copy.topics": topic}) as served:
        served.wait_log("ready: bootstrap")
        assert read_with_confluent(served.bootstrap, topic, ends, "read_uncommitted") == direct


def _pause(copiers: Copiers, number: int) -> None:
    with copiers.paused(number):
        copiers.wait_copying(1 - number)
