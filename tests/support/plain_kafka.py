"""A Kafka without remote storage, and Tidegate in standalone mode before it.

The fixture `plain_kafka` is one such broker for the whole run. Its topics lose records by `retention.ms` within about a
second (SHORT_LIVED), and Tidegate's tier is a folder of LocalTieredStorage, so that a broker may take it over later:

    with standalone(plain_kafka, folder, {"copy.topics": name, "copy.enabled": "true"}) as running: ...
    with serving_copies(plain_kafka, folder, name) as served: ...
    with standalone(plain_kafka, folder, {"copy.topics": name}, command="copy") as copying: ...
    done = run_standalone(plain_kafka, folder, "check", properties={"copy.topics": name})

Tests that stop the broker, or need other settings of it, start their own with `own_plain_cluster`.
"""

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final

from tests.support.differential_steps import alter_configs
from tests.support.kafka import own_cluster
from tests.support.program import run_words, tidegate_python
from tests.support.serving import LISTENERS, LOCAL_TIER, Serving, serving
from tests.support.waiting import wait_until
from tools.demo.kafka_cluster import KafkaCluster, PartitionOffsets, free_port
from tools.demo.kafka_properties import HOST, properties_text

WITHOUT_TIER: Final = {"remote.log.storage.system.enable": "false"}

JVM_OPTIONS: Final = ("-Xmx320m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")

METADATA_PARTITIONS: Final = 5
"""Partitions of a metadata topic that a copier makes."""

COMMAND_TIMEOUT_S: Final = 120.0


@contextmanager
def own_plain_cluster(*, brokers: int = 1, properties: Mapping[str, str] | None = None) -> Iterator[KafkaCluster]:
    """A cluster for one test, without remote storage.

    Args:
        properties: the broker's own, as KafkaCluster takes them.
    """
    wanted = {**WITHOUT_TIER, **(properties or {})}
    with own_cluster(brokers=brokers, properties=wanted, jvm_options=JVM_OPTIONS) as cluster:
        yield cluster


def before_plain_kafka(
    kafka: KafkaCluster, folder: Path, properties: Mapping[str, str] | None = None
) -> dict[str, str]:
    """A configuration of standalone mode whose tier is in `kafka.tier_dir`, whose cache in `folder`; `properties` win.
    What is copied they must say (`copy.topics`)."""
    return {
        "mode": "standalone",
        "upstream.bootstrap.servers": kafka.bootstrap_servers,
        "remote.log.storage.manager.class.name": LOCAL_TIER,
        "rsm.config.dir": str(kafka.tier_dir),
        "rlmm.config.remote.log.metadata.topic.num.partitions": str(METADATA_PARTITIONS),
        "rlmm.config.remote.log.metadata.topic.replication.factor": "1",
        "cache.path": str(folder / "cache"),
        "authority.max.age.ms": "0",
        "copy.interval.ms": "200",
        **LISTENERS,
        "admin.listen": f"{HOST}:{free_port()}",
        **(properties or {}),
    }


def standalone(
    kafka: KafkaCluster, folder: Path, properties: Mapping[str, str] | None = None, *, command: str = "serve"
) -> AbstractContextManager[Serving]:
    """`tidegate serve` (or `copy`) in standalone mode, without a wait for it. The folder is this process's alone."""
    return serving(folder, before_plain_kafka(kafka, folder, properties), command=command)


def quick_copies(topics: str, **more: str) -> dict[str, str]:
    """Properties of a `serve` that copies, by 64 KiB or a second, and deletes from the tier at once. `more` wins, as in
    `copy_retention_ms="1000"`."""
    return {
        "copy.topics": topics,
        "copy.group.id": topics,
        "copy.enabled": "true",
        "copy.segment.bytes": "64 KiB",
        "copy.segment.ms": "1000",
        "copy.delete.grace.ms": "0",
        **{key.replace("_", "."): value for key, value in more.items()},
    }


@contextmanager
def serving_copies(kafka: KafkaCluster, folder: Path, topics: str, **more: str) -> Iterator[Serving]:
    """`tidegate serve` with `quick_copies`, once it serves."""
    with standalone(kafka, folder, quick_copies(topics, **more)) as served:
        served.wait_log("ready: bootstrap")
        yield served


def run_standalone(
    kafka: KafkaCluster, folder: Path, command: str, *arguments: str, properties: Mapping[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    """`tidegate COMMAND FILE arguments…` with a configuration of standalone mode, run to its end: `copy` as a process
    of its own, whose log and signals are the whole process'."""
    words = command.split()
    file = folder / f"{words[-1]}.properties"
    file.write_text(properties_text(before_plain_kafka(kafka, folder, properties)), encoding="utf-8")
    given = [*words, str(file), *arguments]
    if words[0] != "copy":
        return run_words(*given)
    program = [tidegate_python(), "-m", "tidegate", *given]
    return subprocess.run(program, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False)


def ends_of(kafka: KafkaCluster, topic: str) -> dict[int, int]:
    """The high watermark of each partition."""
    return {partition: each.high_watermark for partition, each in kafka.partition_offsets(topic).items()}


def drop_all(kafka: KafkaCluster, topic: str, ends: Mapping[int, int]) -> None:
    """Make the broker delete the offsets below `ends` by its own retention."""
    alter_configs(kafka, topic, {"retention.ms": "1"})
    wait_dropped(kafka, topic, ends)


def wait_dropped(kafka: KafkaCluster, topic: str, below: int | Mapping[int, int] = 1) -> dict[int, PartitionOffsets]:
    """Block until the broker itself has deleted the offsets below `below`, of each partition or by partition."""
    found: dict[int, PartitionOffsets] = {}

    def has_dropped() -> bool:
        found.update(kafka.partition_offsets(topic))
        belows = dict.fromkeys(found, below) if isinstance(below, int) else below
        return all(found[partition].log_start_offset >= each for partition, each in belows.items())

    wait_until(has_dropped, f"a log of {topic} that starts at {below} or later", timeout_s=60.0)
    return found
