"""`tidegate copy` before a Kafka without remote storage: everything that upstream has is in the tier afterwards."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource

from tests.support.kafka import fresh_name, orders, produce
from tests.support.plain_kafka import ends_of, run_standalone
from tools.demo.kafka_cluster import KafkaCluster

pytestmark = [pytest.mark.integration, pytest.mark.needs("java", "kafka")]

METADATA_TOPIC = "__remote_log_metadata"


def copied(kafka: KafkaCluster, folder: Path, topic: str) -> dict[int, tuple[int, int]]:
    """First and last offset of each partition in the tier; none while it holds nothing of the topic."""
    done = run_standalone(kafka, folder, "ls", topic, "--json")
    if "the tier has no topic" in done.stderr:
        return {}
    assert done.returncode == 0, done.stderr
    return {row["partition"]: (row["start_offset"], row["end_offset"]) for row in json.loads(done.stdout)["partitions"]}


def metadata_topic_configs(kafka: KafkaCluster) -> Mapping[str, str]:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    resource = ConfigResource(ConfigResource.Type.TOPIC, METADATA_TOPIC)
    [future] = admin.describe_configs([resource]).values()
    return {name: entry.value for name, entry in future.result(20).items()}


def test_once_copies_all_that_is_there_and_ends(plain_kafka: KafkaCluster, tmp_path: Path) -> None:
    """Given a topic of two partitions, one that is compacted, and no metadata topic, when `copy --once` has run, then
    the records are in the tier to the last one, and the compacted topic was refused by name; a second run adds only
    what has come since."""
    stem = fresh_name("once")
    topic, compacted = f"{stem}-orders", f"{stem}-compacted"
    plain_kafka.create_topic(topic, partitions=2, configs={"segment.bytes": str(1024 * 1024)})
    plain_kafka.create_topic(compacted, configs={"cleanup.policy": "compact"})
    produce(plain_kafka, topic, orders(2000, 2))
    properties = {"copy.topics": f"^{stem}-.*", "copy.group.id": stem}

    first = run_standalone(plain_kafka, tmp_path, "copy", "--once", properties=properties)
    ends = ends_of(plain_kafka, topic)
    assert first.returncode == 1, first.stderr  # a topic was refused
    assert "copy_topic_refused" in first.stderr
    assert "compacted topics cannot be in a tier" in first.stderr
    assert copied(plain_kafka, tmp_path, topic) == {number: (0, end - 1) for number, end in ends.items()}
    assert sum(ends.values()) == 2000
    configs = metadata_topic_configs(plain_kafka)
    assert (configs["cleanup.policy"], configs["retention.ms"]) == ("delete", "-1")

    produce(plain_kafka, topic, orders(100, 2))
    second = run_standalone(plain_kafka, tmp_path, "copy", "--once", properties={**properties, "copy.topics": topic})
    assert second.returncode == 0, second.stderr
    later = ends_of(plain_kafka, topic)
    assert sum(later.values()) == 2100
    assert copied(plain_kafka, tmp_path, topic) == {number: (0, end - 1) for number, end in later.items()}


def test_check_tells_what_a_copier_needs(plain_kafka: KafkaCluster, tmp_path: Path) -> None:
    """Given topics of every kind, then `check` names those that are refused, and those whose records upstream deletes
    before they can be in the tier, by time or by size; it says what staging may take, and it states the danger of
    turning remote storage on later."""
    stem = fresh_name("checked")
    plain_kafka.create_topic(f"{stem}-kept", configs={"retention.ms": "-1"})
    plain_kafka.create_topic(f"{stem}-short", configs={"retention.ms": "60000"})
    plain_kafka.create_topic(f"{stem}-half", configs={"retention.ms": "5000000"})
    plain_kafka.create_topic(f"{stem}-small", configs={"retention.ms": "-1", "retention.bytes": "3660000"})
    plain_kafka.create_topic(f"{stem}-compacted", configs={"cleanup.policy": "compact"})
    properties = {
        "copy.topics": f"^{stem}-.*,{stem}.absent",
        "copy.interval.ms": "30000",
        "copy.segment.bytes": "1 GiB",
    }
    done = run_standalone(plain_kafka, tmp_path, "check", properties=properties)
    assert done.returncode == 1, done.stderr
    takes = "only after 3660000 ms (copy.segment.ms + copy.lag.ms + 2 × copy.interval.ms)"
    for said in (
        f"copy.topics: {stem}-compacted is not copied: it has cleanup.policy=compact",
        f"topic {stem}-short: records may be in the tier {takes}, and upstream deletes them before that",
        f"topic {stem}-half: records may be in the tier {takes}, and that is more than half of upstream's",
        f"there is no topic {stem}.absent yet",
        f"topic {stem}-small: records may be in the tier only after 1073741824 bytes",
        "it may delete them before that where a partition gets more than 1000 bytes/s",
        "4 partitions may take 4.0 GiB (copy.segment.bytes each), and ",
        "4 topics would be copied, 4 partitions",
        "group tidegate.copier may be used",
        "group tidegate.log-start may be used",
        "group tidegate.deletions may be used",
        "brokers that get remote storage over this tier later delete what is in it",
    ):
        assert said in " ".join(done.stdout.split()), done.stdout
    assert f"{stem}-kept" not in done.stdout
