"""A broker is cut from its controller and knows nothing of newer topics: what is in the tier of them stays.

The controller is a process of its own, and broker 1's way to it leads through toxiproxy. Broker 1 is the one that our
own client asks first.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.differential_steps import delete_topic
from tests.support.kafka import fresh_name, orders, produce
from tests.support.plain_kafka import own_plain_cluster, run_standalone, standalone
from tests.support.raw_client import RawClient
from tests.support.serving import Serving
from tests.support.tier_proofs import files_of
from tests.support.toxiproxy import Link, toxiproxy
from tests.support.waiting import wait_until
from tools.demo import kafka_admin
from tools.demo.kafka_cluster import KafkaCluster
from tools.demo.kafka_properties import HOST

pytestmark = [pytest.mark.integration, pytest.mark.needs("java", "kafka", "toxiproxy")]

NOTICED_S_MAX = 90.0


@dataclass(frozen=True, slots=True)
class Cut:
    """Two brokers. `controller`: broker 1's way to it."""

    kafka: KafkaCluster
    controller: Link

    def known_to(self, node_id: int) -> tuple[set[int], set[str]]:
        """Brokers and topics, as one broker says."""
        with RawClient(HOST, self.kafka.broker(node_id).port) as client:
            told = client.metadata()
        return {broker.node_id for broker in told.brokers}, {topic.name for topic in told.topics}


@pytest.fixture
def cut() -> Iterator[Cut]:
    with ExitStack() as stack:
        kafka = stack.enter_context(own_plain_cluster(brokers=2))
        proxy = stack.enter_context(toxiproxy())
        link = stack.enter_context(proxy.link(f"{HOST}:{kafka.plan.controller_port}"))
        kafka.change_properties({"controller.quorum.voters": f"{kafka.plan.controller_id}@{link.address}"})
        kafka.restart_broker(1)
        kafka.wait_ready()
        yield Cut(kafka, link)


def copier(kafka: KafkaCluster, folder: Path, topics: str) -> AbstractContextManager[Serving]:
    properties = {
        "upstream.bootstrap.servers": kafka.broker(1).address,
        "copy.topics": topics,
        "copy.delete.grace.ms": "0",
    }
    return standalone(kafka, folder, properties, command="copy")


def copy_once(kafka: KafkaCluster, folder: Path, topics: str) -> None:
    own = {
        "upstream.bootstrap.servers": kafka.broker(2).address,
        "rlmm.config.remote.log.metadata.topic.replication.factor": "2",
        "copy.topics": topics,
    }
    done = run_standalone(kafka, folder, "copy", "--once", properties=own)
    assert done.returncode == 0, done.stderr


def kept(running: Serving) -> str:
    return "; ".join(each for each in running.copy_problems() if "seem deleted" in each)


def test_a_topic_that_a_stale_broker_does_not_know_stays_in_the_tier(cut: Cut, tmp_path: Path) -> None:
    """Given a topic that was made, filled and copied while broker 1 was cut from the controller, when a copier asks
    broker 1, then the topic stays in the tier as broker 2 has it, which is shown; when broker 1 is back and the topic
    is really deleted, then it goes. Failed before: broker 1 was asked twice, and the tier was deleted."""
    kafka, old, new = cut.kafka, fresh_name("old"), fresh_name("new")
    kafka.create_topic(old)
    produce(kafka, old, orders(500, 1))
    copy_once(kafka, tmp_path, old)
    kafka.restart_broker(1)  # which has broker 2 lead everything
    wait_until(lambda: cut.known_to(2)[0] == {1, 2}, "broker 2 knows of both")
    direct = kafka.broker(2).address
    with cut.controller.down():
        wait_until(lambda: cut.known_to(2)[0] == {2}, "the controller misses broker 1", timeout_s=NOTICED_S_MAX)
        kafka_admin.create_topic(direct, new, 1, 1, {})
        produce(kafka, new, orders(500, 1), bootstrap_servers=direct)
        copy_once(kafka, tmp_path, f"{old},{new}")
        before = files_of(kafka, new)
        assert before
        assert new not in cut.known_to(1)[1]
        with copier(kafka, tmp_path, f"{old},{new}") as running:
            running.wait_log("ready: copying")
            said = f"topics {new} seem deleted, and stay in the tier: broker 2 "
            wait_until(lambda: said in kept(running), "it is shown", timeout_s=NOTICED_S_MAX)
            running.terminate()
            assert running.process.wait(90) == 0
        assert files_of(kafka, new) == before
    wait_until(lambda: new in cut.known_to(1)[1], "broker 1 has heard of it", timeout_s=NOTICED_S_MAX)
    with copier(kafka, tmp_path, f"{old},{new}") as running:
        running.wait_log("ready: copying")
        delete_topic(kafka, new)
        wait_until(lambda: not files_of(kafka, new), "it goes", timeout_s=NOTICED_S_MAX)
        assert files_of(kafka, old)
