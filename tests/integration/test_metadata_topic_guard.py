"""The metadata topic of a tier of our own is changed under those who use it: they go on, delete nothing, and say so;
who starts with such a topic is refused.
"""

from collections.abc import Mapping
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from proxy.upstream.metadata_topic import METADATA_TOPIC
from storage.metadata.event_log import metadata_partition
from tests.support.differential_steps import alter_configs, delete_topic
from tests.support.kafka import fresh_name, orders, produce
from tests.support.plain_kafka import METADATA_PARTITIONS, own_plain_cluster, run_standalone, standalone
from tests.support.raw_client import RawClient
from tests.support.serving import Serving
from tests.support.tier_proofs import copied_offsets, files_of
from tests.support.waiting import wait_until
from tools.demo.kafka_cluster import KafkaCluster

pytestmark = [pytest.mark.integration, pytest.mark.needs("java", "kafka")]

GROWN_PARTITIONS = 8
REMEDY = f"--entity-type topics --entity-name {METADATA_TOPIC} --add-config "


def copied_properties(topic: str) -> dict[str, str]:
    return {"copy.topics": topic, "copy.segment.ms": "1000", "copy.retention.bytes": "-1", "copy.delete.grace.ms": "0"}


def is_unsafe(copier: Serving) -> bool:
    return copier.metric("tidegate_metadata_topic_unsafe") == 1


def write(kafka: KafkaCluster, topic: str, copier: Serving) -> int:
    """Some more records, until they are in the tier; the last offset."""
    produce(kafka, topic, orders(500, 1))
    last = kafka.partition_offsets(topic)[0].high_watermark - 1
    wait_until(lambda: copied_offsets(copier).get((topic, 0)) == last, "they are copied", timeout_s=60)
    return last


def refused(kafka: KafkaCluster, folder: Path, command: str, properties: Mapping[str, str]) -> str:
    """Return what a start of the command says that is refused."""
    folder.mkdir()
    done = run_standalone(kafka, folder, command, properties=properties)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    return " ".join(done.stderr.split())


def topic_of_another_partition(kafka: KafkaCluster) -> str:
    """Create a topic whose metadata is elsewhere once the metadata topic grew: of 8 ids one leads to where it led."""
    while True:
        kafka.create_topic(topic := fresh_name("guarded"))
        with RawClient("127.0.0.1", kafka.broker(1).port) as client:
            topic_id = client.topic_id(topic)
        if metadata_partition(topic_id, 0, METADATA_PARTITIONS) != metadata_partition(topic_id, 0, GROWN_PARTITIONS):
            return topic


def test_a_metadata_topic_that_forgets_stops_deletions_and_new_starts(tmp_path: Path) -> None:
    """Given a copier, when the metadata topic is given a retention, then it goes on copying and deletes nothing,
    although its tier's retention would have it do so, until the topic keeps everything again; `copy`, `serve` and
    `check` beside it refuse it with the line that mends it. Likewise with compaction, but that brokers themselves
    refuse the records then. Failed before: nobody said a word."""
    topic = fresh_name("guarded")
    with own_plain_cluster() as kafka:
        kafka.create_topic(topic)
        properties = copied_properties(topic)
        with standalone(kafka, tmp_path, properties | {"copy.retention.bytes": "1"}, command="copy") as copier:
            copier.wait_log("ready: copying")
            write(kafka, topic, copier)
            for key, value, kept in (("retention.ms", "604800000", "-1"), ("cleanup.policy", "compact", "delete")):
                alter_configs(kafka, METADATA_TOPIC, {key: value})
                wait_until(lambda: is_unsafe(copier), "it is noticed")
                before = files_of(kafka, topic)
                if key != "cleanup.policy":
                    write(kafka, topic, copier)
                    write(kafka, topic, copier)
                    assert files_of(kafka, topic).keys() > before.keys()
                said = f"nothing is deleted from the tier: {METADATA_TOPIC} has {key}={value}"
                assert said in copier.page("/status.json")[1]
                for command in ("copy", "serve"):
                    assert f"{REMEDY}{key}={kept}" in refused(kafka, tmp_path / f"{command}-{key}", command, properties)
                checked = run_standalone(kafka, tmp_path, "check", properties=properties)
                assert checked.returncode == 1
                assert f"{REMEDY}{key}={kept}" in " ".join(checked.stdout.split())
                alter_configs(kafka, METADATA_TOPIC, {key: kept})
                wait_until(lambda: not is_unsafe(copier), "it is as it was")
            write(kafka, topic, copier)
            wait_until(lambda: not before.keys() & files_of(kafka, topic).keys(), "retention goes on", timeout_s=60)


def test_a_metadata_topic_that_was_made_again_or_grew_is_refused(tmp_path: Path) -> None:
    """Given a copier and a tier, when the topic is deleted, then it does not come back by itself, although brokers make
    topics; the copier goes on running, and nothing of the tier is deleted. One that is made again is refused at a
    start, because the store holds what it knows nothing of; so is one that got more partitions."""
    with own_plain_cluster(properties={"auto.create.topics.enable": "true"}) as kafka:
        topic = topic_of_another_partition(kafka)
        properties = copied_properties(topic)
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        with standalone(kafka, tmp_path, properties, command="copy") as copier:
            copier.wait_log("ready: copying")
            write(kafka, topic, copier)
            admin.create_partitions([NewPartitions(METADATA_TOPIC, GROWN_PARTITIONS)])[METADATA_TOPIC].result(20)
            wait_until(lambda: is_unsafe(copier), "more partitions are noticed")
        assert "it was given more" in refused(kafka, tmp_path / "grown", "copy", properties)
        assert "it was given more" in refused(kafka, tmp_path / "grown-serve", "serve", properties)

    with own_plain_cluster(properties={"auto.create.topics.enable": "true"}) as kafka:
        kafka.create_topic(topic)
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        (tmp_path / "deleted").mkdir()
        with standalone(kafka, tmp_path / "deleted", properties, command="copy") as copier:
            copier.wait_log("ready: copying")
            write(kafka, topic, copier)
            before = files_of(kafka, topic)
            delete_topic(kafka, METADATA_TOPIC)
            wait_until(lambda: is_unsafe(copier), "it is noticed")
            produce(kafka, topic, orders(500, 1))
            wait_until(lambda: copier.metric("tidegate_copy_age_seconds") > 3, "a copy was tried", timeout_s=60)
            assert METADATA_TOPIC not in admin.list_topics(timeout=20).topics
            assert before.keys() <= files_of(kafka, topic).keys()
            assert "was deleted" in copier.page("/status.json")[1]
        said = refused(kafka, tmp_path / "again", "copy", properties)
        assert "the store holds segments, such as" in said
        assert "knows none of them" in said
        assert "knows none of them" in refused(kafka, tmp_path / "again-serve", "serve", properties)
