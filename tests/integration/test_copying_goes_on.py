"""Copying never stands still in silence: topics that are made again, faults of our own, partitions that nobody has."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Consumer

from tests.support.differential_steps import delete_topic
from tests.support.kafka import fresh_name, orders, produce
from tests.support.plain_kafka import before_plain_kafka, standalone
from tests.support.serving import Serving, serving
from tests.support.tier_proofs import copied_offsets, shared_rows
from tests.support.waiting import wait_until
from tools.demo.kafka_cluster import KafkaCluster

pytestmark = [pytest.mark.integration, pytest.mark.needs("java", "kafka")]

COPY_S_MAX = 60.0


def properties_for(topic: str, **more: str) -> dict[str, str]:
    own = {key.replace("_", "."): value for key, value in more.items()}
    names = {"copy.topics": topic, "copy.group.id": topic, "copy.segment.ms": "1000"}
    return {**names, **own}


def require_copied(kafka: KafkaCluster, copier: Serving, topic: str, records: int) -> None:
    """All of the topic's one partition."""
    produce(kafka, topic, orders(records, 1))
    last = kafka.partition_offsets(topic)[0].high_watermark - 1
    wait_until(lambda: copied_offsets(copier).get((topic, 0)) == last, f"{topic} to be copied", timeout_s=COPY_S_MAX)


def problems_of(copier: Serving) -> str:
    """Without the topics of other tests, which are in the tier too."""
    return "; ".join(each for each in copier.copy_problems() if "copied no more" not in each)


@pytest.mark.parametrize("interval_ms", ["200", "3000"], ids=["seen missing", "between two looks"])
def test_a_topic_that_is_made_again_is_copied_again(
    plain_kafka: KafkaCluster, tmp_path: Path, interval_ms: str
) -> None:
    """Failed before where the copier did not see it missing: it kept the old id and slept for ever, without a word."""
    topic = fresh_name("again")
    plain_kafka.create_topic(topic)
    with standalone(
        plain_kafka, tmp_path, properties_for(topic, copy_interval_ms=interval_ms), command="copy"
    ) as copier:
        copier.wait_log("ready: copying")
        require_copied(plain_kafka, copier, topic, 500)
        delete_topic(plain_kafka, topic)
        plain_kafka.create_topic(topic)
        require_copied(plain_kafka, copier, topic, 300)
        assert copied_offsets(copier) == {(topic, 0): 299}


FAULTY = """
import sys
from standalone.copier.copier import Copier
from tidegate.cli import main
begin, faults = Copier.run, ["first", "second"]

async def run(self, **options):
    if faults:
        raise RuntimeError(f"the {faults.pop(0)} fault")
    await begin(self, **options)

Copier.run = run
sys.exit(main())
"""


@pytest.mark.parametrize("command", ["copy", "serve"])
def test_copying_that_ended_by_a_fault_begins_again(plain_kafka: KafkaCluster, tmp_path: Path, command: str) -> None:
    """Failed before: in `serve` it was over until the next start, and `copy` ended."""
    topic = fresh_name("faulty")
    plain_kafka.create_topic(topic)
    properties = before_plain_kafka(plain_kafka, tmp_path, properties_for(topic, copy_enabled="true"))
    with serving(tmp_path, properties, program=("-c", FAULTY), command=command) as copier:
        copier.wait_log("ready: ")
        require_copied(plain_kafka, copier, topic, 500)
        assert copier.metric("tidegate_task_failures_total", task="copying") == 2
        assert ["the first fault" in copier.log(), "the second fault" in copier.log()] == [True, True]
        assert problems_of(copier) == ""
        copier.terminate()
        assert copier.process.wait(60) == 0


def unowned(copier: Serving) -> float:
    return copier.metric("tidegate_copy_unowned_partitions")


@contextmanager
def foreign_member(kafka: KafkaCluster, group: str, topic: str) -> Iterator[None]:
    """A consumer in the group that no copier can share it with."""
    settings = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": group}
    consumer = Consumer({**settings, "partition.assignment.strategy": "range"})
    consumer.subscribe([topic])
    wait_until(lambda: consumer.poll(0.1) is not None or consumer.assignment(), "it is a member")
    try:
        yield
    finally:
        consumer.close()


def test_partitions_that_nobody_has_are_counted_and_named(plain_kafka: KafkaCluster, tmp_path: Path) -> None:
    """Given a group that somebody else is in, so that copiers cannot join it, then each says how many partitions nobody
    has, and why; when it has left, then all are copied. With two copiers, each has some, of these or other topics, and
    both say that none is left over. Failed before: ready, no problem, and an age of 0."""
    topic, other = fresh_name("unowned"), fresh_name("other")
    plain_kafka.create_topic(topic, partitions=2)
    plain_kafka.create_topic(other)
    with ExitStack() as stack:

        def copier(name: str) -> Serving:
            (tmp_path / name).mkdir()
            return stack.enter_context(standalone(plain_kafka, tmp_path / name, properties_for(topic), command="copy"))

        with foreign_member(plain_kafka, topic, other):
            one = copier("one")
            one.wait_log("ready: copying")
            said = f"2 partitions have no copier in group {topic}, such as {topic}-0, {topic}-1"
            wait_until(lambda: said in problems_of(one) and f"group {topic}: " in problems_of(one), "it is reported")
            assert unowned(one) == 2
        wait_until(lambda: unowned(one) == 0 and not problems_of(one), "it has them", timeout_s=COPY_S_MAX)
        two = copier("two")
        two.wait_log("ready: copying")
        for each in (one, two):
            wait_until(partial(shared_rows, each), "each has some")
        wait_until(lambda: len(copied_offsets(one)) + len(copied_offsets(two)) == 2, "all have an owner")
        assert (unowned(one), unowned(two)) == (0, 0)
