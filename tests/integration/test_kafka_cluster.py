"""The Kafka that other tests build on: it tiers, counts its own remote reads, and leaves nothing behind.

Brokers that join, leave and come back on another port: test_two_brokers.py.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.reading import final_answer
from tests.support.kafka import TieredTopic, fresh_name, orders, produce, small_segments, tiered_topic
from tests.support.needs import JARS, ROOT
from tests.support.plain_kafka import SHORT_LIVED, wait_dropped
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until
from tools.demo.kafka_cluster import KafkaCluster, KafkaClusterError

pytestmark = [pytest.mark.integration, pytest.mark.needs("java", "kafka")]

DIE_WITH_A_BROKER = """
import os, pathlib, signal, sys
from tools.demo.kafka_cluster import KafkaCluster
cluster = KafkaCluster(jars=pathlib.Path(sys.argv[1]), work=pathlib.Path(sys.argv[2]))
cluster.start()
print(cluster.broker(1).pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_settled_topic_is_in_the_tier_up_to_where_the_local_log_begins(
    kafka: KafkaCluster, tiered: TieredTopic
) -> None:
    objects = list(kafka.tier_dir.glob("kafka-tiered-storage/tiered-shared-*/*.log"))
    assert len(objects) >= 2 * tiered.partitions
    for offsets in tiered.offsets.values():
        assert 0 == offsets.log_start_offset < offsets.local_log_start_offset < offsets.high_watermark
        assert offsets.latest_tiered_offset == offsets.local_log_start_offset - 1
    assert sum(offsets.high_watermark for offsets in tiered.offsets.values()) == tiered.records


def test_a_kafka_without_remote_storage_drops_what_is_old_within_seconds(plain_kafka: KafkaCluster) -> None:
    name = fresh_name("short-lived")
    plain_kafka.create_topic(name, configs=SHORT_LIVED)
    count = produce(plain_kafka, name, orders(1000, 1))
    dropped = wait_dropped(plain_kafka, name, below=count)[0]
    assert (dropped.high_watermark, dropped.latest_tiered_offset) == (count, -1)


def test_small_segments_roll_by_batches(kafka: KafkaCluster) -> None:
    topic = tiered_topic(
        kafka, "small-segments", configs=small_segments(batches=3), batch_num_messages=100, batch_size=32_768
    )
    segments = list(kafka.tier_dir.glob(f"kafka-tiered-storage/{topic.name}-*/*.log"))
    assert len(segments) > 20


def test_the_brokers_own_counter_counts_reads_from_the_tier(kafka: KafkaCluster, tiered: TieredTopic) -> None:
    broker = kafka.broker(1)
    before = broker.remote_fetch_requests(tiered.name)
    with RawClient("127.0.0.1", broker.port) as client:
        assert final_answer(client, 12, (tiered.name, None, 0, 0, 1024)).records
    assert broker.remote_fetch_requests(tiered.name) > before
    assert broker.remote_fetch_requests() >= broker.remote_fetch_requests(tiered.name)


def test_a_broker_that_cannot_start_says_why(tmp_path: Path) -> None:
    cluster = KafkaCluster(jars=JARS, work=tmp_path, properties={"num.io.threads": "none"})
    with pytest.raises(KafkaClusterError, match=r"num\.io\.threads"):
        cluster.start()


def test_a_missing_jar_folder_is_named_with_its_remedy(tmp_path: Path) -> None:
    with pytest.raises(KafkaClusterError, match="make setup"):
        KafkaCluster(jars=tmp_path, work=tmp_path)


@pytest.mark.needs("linux")
def test_a_broker_dies_with_us_even_when_we_are_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", DIE_WITH_A_BROKER, str(JARS), str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=False, timeout=90)
    assert done.returncode == -signal.SIGKILL
    wait_until(lambda: not _is_alive(int(done.stdout)), "the broker dies with the process that started it")


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    # An orphan may wait as a zombie for a parent that never asks.
    return state != "Z" and os.path.exists(f"/proc/{pid}")
