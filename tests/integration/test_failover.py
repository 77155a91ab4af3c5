"""Two replicas behind deploy/haproxy/haproxy.cfg: one is killed, one drained, and clients go on.

Clients know the balancer's address alone. Both replicas tell them the same: the balancer's name, and for each broker a
port that is the same on all machines. How long each client waits at the longest is printed and not judged; what it has
in the end is: nothing lost, nothing twice.
"""

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from enum import StrEnum
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from proxy.process import exit_codes
from tests.support.digests import confluent_consumer, read_with_confluent
from tests.support.failover_clients import Fleet, JavaFleet, LibrdkafkaFleet, Progress, Topics, is_end
from tests.support.haproxy import Balancer, Replica, two_replicas
from tests.support.kafka import TieredTopic, fresh_name
from tests.support.serving import START_S_MAX
from tests.support.waiting import wait_until
from tools.demo.kafka_cluster import KafkaCluster

pytestmark = [pytest.mark.integration, pytest.mark.needs("haproxy", "java", "kafka", "linux")]

STEPS = {"reader": 500, "producer": 500, "transactions": 5, "group": 50}
"""What each role does after a replica has ended, before the next one ends: more than it may have in advance."""
FEED_S = 0.005
CLIENTS_S_MAX = 90.0
DRAIN_DELAY_MS = 3000
"""Three times what HAProxy takes to ask /readyz again."""


class End(StrEnum):
    KILL = "kill"
    DRAIN = "drain"


class Failovers:
    """Ends one replica after the other while clients go on, and starts it again; `said` has what was seen."""

    def __init__(self, balancer: Balancer, replicas: Sequence[Replica], fleets: Sequence[Fleet]) -> None:
        self.said: list[str] = []
        self.behind = ""
        self._balancer = balancer
        self._replicas = replicas
        self._fleets = fleets

    def wait_steps(self) -> None:
        """Until each role of each fleet has done something more, which it could not without a replica."""
        before = self._progress()

        def have_gone_on() -> bool:
            counts = self._progress().items()
            behind = {key: now for key, now in counts if now.count < before[key].count + STEPS[key[1]]}
            self.behind = f"does not go on: {behind}" if behind else ""
            return not behind

        wait_until(have_gone_on, "all clients go on", timeout_s=CLIENTS_S_MAX)

    def fail_over(self, victim: Replica, end: End) -> None:
        connections = self._balancer.connections(victim.name)
        assert connections > 0, f"{victim.name} has nobody to lose"
        for fleet in self._fleets:
            fleet.mark()
        if end is End.KILL:
            workers = worker_pids(victim)
            victim.served.process.kill()
            victim.served.process.wait()
            # Workers whose supervisor is gone end by themselves.
            wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers), "its workers end")
        else:
            victim.served.terminate()
            self._balancer.wait_state(victim.name, "NOLB")
            assert victim.served.process.wait(START_S_MAX) == exit_codes.DONE, victim.served.log()
            assert "drain_timed_out" not in victim.served.log()
        self.wait_steps()
        stalls = ", ".join(f"{fleet} {role} {now.stall_ms}" for (fleet, role), now in self._progress().items())
        self.said.append(f"{end} of {victim.name} with {connections} connections; longest waits in ms: {stalls}")
        assert "Traceback" not in victim.served.log()

    def bring_back(self, victim: Replica) -> None:
        victim.start_again()
        victim.wait_ready()
        self._balancer.wait_state(victim.name, "UP")

    def _progress(self) -> dict[tuple[str, str], Progress]:
        return {(fleet.name, role): now for fleet in self._fleets for role, now in fleet.progress().items()}


def worker_pids(replica: Replica) -> list[int]:
    """None with `proxy.workers` = 1."""
    return [each["pid"] for each in json.loads(replica.served.page("/readyz")[1]).get("workers", [])]


@contextmanager
def fed(kafka: KafkaCluster, topic: str) -> Iterator[None]:
    """Records come to its partitions all the while, past Tidegate."""
    is_over = threading.Event()

    def feed() -> None:
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 0})
        while not is_over.wait(FEED_S):
            producer.produce(topic, b"live")
            producer.poll(0)
        producer.flush(CLIENTS_S_MAX)

    thread = threading.Thread(target=feed, name="feed")
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def topics_for(kafka: KafkaCluster, tiered: TieredTopic, live: str, name: str) -> Topics:
    numbers, committed = fresh_name(f"{name}-numbers"), fresh_name(f"{name}-committed")
    kafka.create_topic(numbers, 1, {})
    kafka.create_topic(committed, 1, {})
    ends = {partition: offsets.high_watermark for partition, offsets in tiered.offsets.items()}
    return Topics(tiered.name, ends, numbers, committed, live, fresh_name(f"{name}-group"))


def numbers_in(kafka: KafkaCluster, topic: str) -> list[int]:
    """What committed consumers get of its one partition, at the broker."""
    found: list[int] = []
    with closing(confluent_consumer(kafka.bootstrap_servers, "read_committed")) as consumer:
        consumer.assign([TopicPartition(topic, 0, 0)])

        def is_read() -> bool:
            messages = consumer.consume(2000, 0.2)
            found.extend(int(message.value() or b"") for message in messages if message.error() is None)
            return any(is_end(message) for message in messages)

        wait_until(is_read, f"the end of {topic}", timeout_s=CLIENTS_S_MAX)
    return found


def committed_offsets(kafka: KafkaCluster, group: str, topic: str, partitions: Sequence[int]) -> dict[int, int]:
    with closing(Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": group})) as consumer:
        asked = [TopicPartition(topic, partition) for partition in partitions]
        return {each.partition: each.offset for each in consumer.committed(asked, timeout=20)}


def check_results(kafka: KafkaCluster, topics: Topics, results: Mapping[str, Mapping[str, object]]) -> None:
    """Nothing is lost and nothing is there twice, as the broker has it."""
    if reader := results.get("reader"):
        direct = read_with_confluent(kafka.bootstrap_servers, topics.history, topics.ends, "read_uncommitted")
        assert reader["digests"] == [direct]
    if producer := results.get("producer"):
        assert producer["failed"] == []
        assert numbers_in(kafka, topics.numbers) == list(range(int(str(producer["sent"]))))
    if transactions := results.get("transactions"):
        assert numbers_in(kafka, topics.committed) == list(range(int(str(transactions["sent"]))))
        if "offset" in transactions:
            committed = committed_offsets(kafka, topics.transactional_id, topics.committed, [0])
            assert committed == {0: transactions["offset"]}
    if group := results.get("group"):
        following = group["next"]
        assert isinstance(following, dict)
        assert group["repeated"] == 0
        assert committed_offsets(kafka, topics.group, topics.live, list(following)) == following


def test_clients_go_on_at_the_other_replica(
    kafka: KafkaCluster, tiered: TieredTopic, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    roles = {"librdkafka": ["reader", "producer", "group"], "java": ["transactions", "group"]}
    said = fail_over(kafka, tiered, tmp_path, [End.KILL, End.DRAIN], roles)
    with capsys.disabled():
        print(said)


def fail_over(
    kafka: KafkaCluster,
    tiered: TieredTopic,
    folder: Path,
    ends: Sequence[End],
    roles: Mapping[str, Sequence[str]],
    workers: int = 1,
) -> str:
    """What was seen."""
    live = fresh_name("failover-live")
    kafka.create_topic(live, 2, {})
    topics = {name: topics_for(kafka, tiered, live, name) for name in roles}
    properties = {"proxy.drain.delay.ms": str(DRAIN_DELAY_MS), "proxy.workers": str(workers)}
    with two_replicas(kafka, folder, properties) as (balancer, replicas), fed(kafka, live), ExitStack() as stack:
        librdkafka = LibrdkafkaFleet(balancer.bootstrap, topics["librdkafka"], roles["librdkafka"])
        java = JavaFleet(balancer.bootstrap, topics["java"], roles["java"])
        fleets: list[Fleet] = [stack.enter_context(librdkafka), stack.enter_context(java)]
        failovers = Failovers(balancer, replicas, fleets)
        try:
            failovers.wait_steps()
            # Broker 1 is at home at the first replica; the other one stands in for it.
            assert balancer.used()["broker-1", "a"].total > 0
            assert balancer.used()["broker-1", "b"].total == 0
            for number, end in enumerate(ends):
                if number > 0:
                    failovers.bring_back(replicas[(number - 1) % 2])
                failovers.fail_over(replicas[number % 2], end)
            results = {fleet.name: fleet.finish() for fleet in fleets}
        except AssertionError as error:
            raise AssertionError("\n  ".join([str(error), *failovers.said, failovers.behind])) from error
    for name, result in results.items():
        check_results(kafka, topics[name], result)
    return "\nfailover:\n  " + "\n  ".join(failovers.said)
