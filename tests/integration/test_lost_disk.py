"""The only replica of a partition comes back with an empty disk: what the tier had of it stays there."""

import shutil
import time
from pathlib import Path

import pytest

from tests.support.digests import read_with_confluent
from tests.support.kafka import Record, fresh_name, produce
from tests.support.plain_kafka import own_plain_cluster, run_standalone, serving_copies
from tests.support.serving import Serving
from tests.support.tier_proofs import copied_offsets, files_of
from tests.support.waiting import wait_until
from tools.demo.kafka_cluster import KafkaCluster

pytestmark = [pytest.mark.integration, pytest.mark.needs("java", "kafka")]

HOUR_MS = 3_600_000
OLD, NEW = 1500, 100


def write(kafka: KafkaCluster, topic: str, served: Serving, count: int, time_ms: int) -> None:
    """Write so many records, and wait until the tier has them."""
    records = (Record(0, b"key", b"%d " % number + b"v" * 400, (), time_ms) for number in range(count))
    produce(kafka, topic, records, batch_num_messages=50, batch_size=1_000_000)
    last = kafka.partition_offsets(topic)[0].high_watermark - 1
    wait_until(lambda: copied_offsets(served).get((topic, 0)) == last, "they are copied")


def lose_disk(kafka: KafkaCluster, topic: str) -> None:
    kafka.broker(1).stop()
    shutil.rmtree(kafka.broker(1).data_dir / f"{topic}-0")
    kafka.broker(1).start()
    wait_until(lambda: kafka.partition_offsets(topic)[0].high_watermark == 0, "the log is empty")


def test_a_disk_that_comes_back_empty_takes_nothing_from_the_tier(tmp_path: Path) -> None:
    """Given a tier of a partition that begins again with an empty log, then clients read the new log and nothing else,
    it is copied, and what the tier had stays, is counted and goes by no rule, until an operator approves it. Failed
    before: all of it was deleted within seconds."""
    topic, now_ms = fresh_name("lost"), int(time.time() * 1000)
    with own_plain_cluster() as kafka:
        kafka.create_topic(topic, configs={"retention.ms": "-1"})
        with serving_copies(kafka, tmp_path, topic) as served:
            write(kafka, topic, served, OLD, now_ms - HOUR_MS)
            before = files_of(kafka, topic)
            assert len(before) > 5
            lose_disk(kafka, topic)
            write(kafka, topic, served, NEW, now_ms)
            wait_until(lambda: served.metric("tidegate_dead_segments", topic=topic) == len(before), "they are counted")
            [read] = read_with_confluent(served.bootstrap, topic, {0: NEW}, "read_uncommitted").values()
            assert (read.first, read.last, read.records) == (0, NEW - 1, NEW)
            served.terminate()
            assert served.process.wait(90) == 0
            assert served.events("segment_deleted") == []

        with serving_copies(kafka, tmp_path, topic, copy_retention_ms=str(HOUR_MS // 2)) as served:
            wait_until(lambda: served.metric("tidegate_delete_alarming_partitions", topic=topic) == 1, "it waits")
            write(kafka, topic, served, NEW, now_ms)
            assert before.items() <= files_of(kafka, topic).items()
            listed = run_standalone(kafka, tmp_path, "deletions list")
            assert (listed.returncode, "truncation" in listed.stdout) == (0, True), listed.stdout + listed.stderr
            said = run_standalone(kafka, tmp_path, "deletions approve", f"{topic}:0")
            assert said.returncode == 0, said.stdout + said.stderr
            wait_until(lambda: not before.keys() & files_of(kafka, topic).keys(), "what was approved goes")
            [read] = read_with_confluent(served.bootstrap, topic, {0: 2 * NEW}, "read_uncommitted").values()
            assert (read.first, read.last, read.records) == (0, 2 * NEW - 1, 2 * NEW)
            assert "Traceback" not in served.log()
