"""`tidegate copy` before a Kafka without remote storage: everything that upstream has is in the tier afterwards."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource

from tests.support.digests import read_with_confluent
from tests.support.kafka import fresh_name, orders, produce
from tests.support.plain_kafka import drop_all, run_standalone, standalone
from tests.support.serving import LOCAL_TIER
from tests.support.waiting import wait_until
from tools.demo.kafka_cluster import KafkaCluster, free_port
from tools.demo.kafka_properties import properties_text

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
    ends = {number: each.high_watermark for number, each in plain_kafka.partition_offsets(topic).items()}
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
    later = {number: each.high_watermark for number, each in plain_kafka.partition_offsets(topic).items()}
    assert sum(later.values()) == 2100
    assert copied(plain_kafka, tmp_path, topic) == {number: (0, end - 1) for number, end in later.items()}


def test_serve_copies_and_serves_what_the_broker_drops(plain_kafka: KafkaCluster, tmp_path: Path) -> None:
    """Given `serve` with `copy.enabled`, when the broker has dropped all records of a topic, then a client of
    Tidegate reads all of them from offset 0; the status page tells of the copying, and SIGTERM ends it in order."""
    topic = fresh_name("served")
    plain_kafka.create_topic(topic, configs={"segment.bytes": str(1024 * 1024)})
    count = produce(plain_kafka, topic, orders(3000, 1))
    properties = {
        "copy.topics": topic,
        "copy.group.id": topic,
        "copy.enabled": "true",
        "copy.segment.ms": "1000",
        "admin.listen": f"127.0.0.1:{free_port()}",
    }
    with standalone(plain_kafka, tmp_path, properties) as serving:

        def status() -> dict[str, Any]:
            found: dict[str, Any] = json.loads(serving.page("/status.json")[1])
            return found

        def copied_offsets() -> list[int]:
            return [row["copied_offset"] for row in status()["copy"]["rows"]]

        serving.wait_log("ready: bootstrap")
        wait_until(lambda: copied_offsets() == [count - 1], "everything is copied")
        drop_all(plain_kafka, topic, {0: count})
        [read] = read_with_confluent(serving.bootstrap, topic, {0: count}, "read_uncommitted").values()
        assert (read.first, read.last, read.records) == (0, count - 1, count)
        shown = status()
        assert (shown["copy"]["group"], shown["copy"]["problems"]) == (topic, [])
        [row] = [row for row in shown["partitions"]["rows"] if row["topic"] == topic]
        assert (row["cloud_storage_mode"], row["log_start_offset"]) == ("full", 0)
        serving.terminate()
        assert serving.process.wait(60) == 0
        assert serving.events("copy_partitions_revoked")


def test_sigterm_ends_copy_in_order_and_the_next_run_goes_on(plain_kafka: KafkaCluster, tmp_path: Path) -> None:
    """Given `copy` that has copied a part, when it is ended by SIGTERM, then it exits with 0 and has left the group:
    the next run has the partitions at once, and copies the rest."""
    topic = fresh_name("ended")
    plain_kafka.create_topic(topic, configs={"segment.bytes": str(1024 * 1024)})
    count = produce(plain_kafka, topic, orders(1000, 1))
    properties = {"copy.topics": topic, "copy.group.id": topic, "copy.segment.ms": "1000"}
    with standalone(plain_kafka, tmp_path, properties, command="copy") as copying:
        copying.wait_log("copy_caught_up")
        wait_until(lambda: copied(plain_kafka, tmp_path, topic) == {0: (0, count - 1)}, "everything is copied")
        assert "ready: copying" in copying.log()
        count += produce(plain_kafka, topic, orders(1000, 1))
        copying.terminate()
        assert copying.process.wait(60) == 0
    done = run_standalone(plain_kafka, tmp_path, "copy", "--once", properties=properties)
    assert done.returncode == 0, done.stderr
    assert copied(plain_kafka, tmp_path, topic) == {0: (0, count - 1)}


@pytest.mark.parametrize(
    ("properties", "said"),
    [
        ({}, "needs copy.topics"),
        ({"copy.topics": "a", "mode": "replica"}, "needs mode = standalone"),
        ({"copy.topics": "a", "cache.path": ""}, "needs copy.staging.path, or cache.path"),
    ],
)
def test_what_lacks_is_named_with_its_key(properties: Mapping[str, str], said: str, tmp_path: Path) -> None:
    file = tmp_path / "copy.properties"
    lines = {
        "mode": "standalone",
        "upstream.bootstrap.servers": "127.0.0.1:1",
        "remote.log.storage.manager.class.name": LOCAL_TIER,
        "rsm.config.dir": str(tmp_path),
        "cache.path": str(tmp_path / "cache"),
        **properties,
    }
    file.write_text(properties_text({name: value for name, value in lines.items() if value}), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "proxy", "copy", str(file)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert f"tidegate copy {said}" in done.stderr


def test_check_tells_what_a_copier_needs(plain_kafka: KafkaCluster, tmp_path: Path) -> None:
    """Given topics of every kind, then `check` names those that are refused, and those whose records upstream deletes
    before they can be in the tier; and it states the danger of turning remote storage on later."""
    stem = fresh_name("checked")
    plain_kafka.create_topic(f"{stem}-kept", configs={"retention.ms": "-1"})
    plain_kafka.create_topic(f"{stem}-short", configs={"retention.ms": "60000"})
    plain_kafka.create_topic(f"{stem}-half", configs={"retention.ms": "5000000"})
    plain_kafka.create_topic(f"{stem}-compacted", configs={"cleanup.policy": "compact"})
    properties = {"copy.topics": f"^{stem}-.*,{stem}.absent", "copy.interval.ms": "30000"}
    done = run_standalone(plain_kafka, tmp_path, "check", properties=properties)
    assert done.returncode == 1, done.stderr
    takes = "only after 3660000 ms (copy.segment.ms + copy.lag.ms + 2 × copy.interval.ms)"
    for said in (
        f"copy.topics: {stem}-compacted is not copied: it has cleanup.policy=compact",
        f"topic {stem}-short: records may be in the tier {takes}, and upstream deletes them before that",
        f"topic {stem}-half: records may be in the tier {takes}, and that is more than half of upstream's",
        f"there is no topic {stem}.absent yet",
        "3 topics would be copied, 3 partitions",
        "group tidegate.copier may be used",
        "group tidegate.log-start may be used",
        "brokers that get remote storage over this tier later delete what is in it",
    ):
        assert said in " ".join(done.stdout.split()), done.stdout
    assert f"{stem}-kept" not in done.stdout
