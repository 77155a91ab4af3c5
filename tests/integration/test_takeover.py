"""A broker that turns remote storage on over a tier that Tidegate has filled: with `tidegate takeover`, and without.

One broker, its own controller, so that topics can be marked only while it runs: at that start it finds no metadata
(docs/standalone.md#takeover).
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from storage.indexes.leader_epochs import parse_leader_epochs
from tests.support.differential_known import local_logs
from tests.support.differential_steps import alter_configs
from tests.support.digests import Digests, read_with_confluent
from tests.support.kafka import orders, produce, small_segments
from tests.support.plain_kafka import own_plain_cluster, run_standalone, wait_dropped
from tests.support.waiting import wait_until
from tools.demo.kafka_cluster import KafkaCluster, PartitionOffsets

pytestmark = [pytest.mark.integration, pytest.mark.needs("java", "kafka")]

SEGMENT_BYTES = 200_000
RECORDS = 2000
BATCH_RECORDS = 100
SEGMENT_RECORDS = 400
"""Of a segment at the broker."""

TOPICS = {"one-epoch": 1, "epochs": 3, "left": 1}
"""Topics, and how many leader epochs their copied records are of."""

COMMON_CLIENT = "rlmm.config.remote.log.metadata.common.client"
COMMON_BOOTSTRAP = f"{COMMON_CLIENT}.bootstrap.servers"
WITHOUT_METADATA = {
    "remote.log.storage.system.enable": "true",
    COMMON_BOOTSTRAP: "127.0.0.1:1",
    # A broker that stops waits for what is being asked.
    f"{COMMON_CLIENT}.request.timeout.ms": "1000",
    f"{COMMON_CLIENT}.default.api.timeout.ms": "1000",
    "rlmm.config.remote.log.metadata.initialization.retry.max.timeout.ms": "86400000",
}
"""Remote storage is on, but a tier's tasks do nothing before its metadata were read, which never comes about."""

WITH_METADATA = {key: "30000" for key in WITHOUT_METADATA if key.startswith(COMMON_CLIENT)}


def test_a_broker_owns_the_tier_after_a_takeover_and_deletes_it_without(tmp_path: Path) -> None:
    with own_plain_cluster() as kafka:
        direct = _fill(kafka, tmp_path)
        taken = _takeover(kafka, tmp_path, "--dry-run", code=1)
        assert "is in use: stop its broker" in taken
        kafka.broker(1).stop()
        kafka.change_properties(WITHOUT_METADATA)
        kafka.broker(1).start()
        for topic in TOPICS:
            alter_configs(kafka, topic, {"remote.storage.enable": "true"})
            _wait(kafka, topic, lambda offsets: offsets.log_start_offset == offsets.local_log_start_offset)
        kafka.broker(1).stop()
        _take_over(kafka, tmp_path)
        kafka.change_properties({**WITH_METADATA, COMMON_BOOTSTRAP: kafka.bootstrap_servers})
        kafka.broker(1).start()

        # Of the topic that was left out the broker deletes all that is below its own log.
        own_start = _offsets(kafka, "left").local_log_start_offset
        wait_until(lambda: len(_below(kafka, "left", own_start)) <= 1, "the segments of `left` below its log to go")
        assert _offsets(kafka, "left").log_start_offset == own_start > SEGMENT_RECORDS

        for topic in ("one-epoch", "epochs"):
            _wait(kafka, topic, lambda offsets: offsets.latest_tiered_offset >= 0)
            assert _offsets(kafka, topic).log_start_offset == 0
            assert _read(kafka, topic) == direct[topic]
            _check_life_goes_on(kafka, topic)


def _fill(kafka: KafkaCluster, folder: Path) -> dict[str, Digests]:
    """Topics that were copied to their end, and of which the broker has deleted all but the active segment; what they
    hold."""
    for topic in TOPICS:
        kafka.create_topic(topic, 1, {"retention.ms": "-1", **small_segments(SEGMENT_RECORDS // BATCH_RECORDS)})
    for number in range(max(TOPICS.values())):
        if number:
            kafka.restart_broker(1)
        for topic, epochs in TOPICS.items():
            if number < epochs:
                _produce(kafka, topic)
    properties = {"copy.topics": ",".join(TOPICS), "copy.segment.bytes": str(SEGMENT_BYTES)}
    done = run_standalone(kafka, folder, "copy", "--once", properties=properties)
    assert done.returncode == 0, done.stdout + done.stderr
    direct = {}
    for topic, epochs in TOPICS.items():
        checkpoints = sorted(kafka.tier_dir.glob(f"kafka-tiered-storage/{topic}-0-*/*.leader_epoch_checkpoint"))
        assert len(checkpoints) > epochs
        assert len(parse_leader_epochs(checkpoints[-1].read_bytes())) == epochs
        direct[topic] = _read(kafka, topic)
        alter_configs(kafka, topic, {"retention.bytes": "1"})
    for topic in TOPICS:
        wait_dropped(kafka, topic, int(local_logs(kafka, topic)[-1].stem))
        alter_configs(kafka, topic, {"retention.bytes": "-1"})
    return direct


def _produce(kafka: KafkaCluster, topic: str) -> None:
    produce(kafka, topic, orders(RECORDS, 1), batch_num_messages=BATCH_RECORDS, linger_ms=1000)


def _take_over(kafka: KafkaCluster, folder: Path) -> None:
    """All but the topic `left`, each first as a dry run, and in the end once more."""
    before = _checkpoints(kafka)
    for topic in ("one-epoch", "epochs"):
        planned = _takeover(kafka, folder, "--offline", "--topic", topic, "--dry-run")
        assert "1 partitions are to be restored; this was a dry run" in planned
    assert _checkpoints(kafka) == before
    for topic in ("one-epoch", "epochs"):
        assert "1 partitions restored" in _takeover(kafka, folder, "--offline", "--topic", topic, "--yes")
    after = _checkpoints(kafka)
    again = _takeover(kafka, folder, "--offline", "--topic", "epochs", "--yes")
    assert "nothing is left to do" in again
    assert _checkpoints(kafka) == after
    assert before["left-0"] == after["left-0"]


def _takeover(kafka: KafkaCluster, folder: Path, *arguments: str, code: int = 0) -> str:
    """What it said."""
    done = run_standalone(kafka, folder, "takeover", "--log-dir", str(kafka.broker(1).data_dir), *arguments)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def _checkpoints(kafka: KafkaCluster) -> dict[str, str]:
    """By partition the broker's leader epochs; and its log starts."""
    data_dir = kafka.broker(1).data_dir
    found = {path.parent.name: path.read_text() for path in data_dir.glob("*/leader-epoch-checkpoint")}
    return {**found, "": (data_dir / "log-start-offset-checkpoint").read_text()}


def _check_life_goes_on(kafka: KafkaCluster, topic: str) -> None:
    """The broker copies what is new, and deletes the oldest segments of the tier by its retention, and no others."""
    tiered = _offsets(kafka, topic).latest_tiered_offset
    _produce(kafka, topic)
    _wait(kafka, topic, lambda offsets: offsets.latest_tiered_offset > tiered)
    before = _starts(kafka, topic)
    alter_configs(kafka, topic, {"retention.bytes": str(2 * SEGMENT_BYTES)})
    _wait(kafka, topic, lambda offsets: offsets.log_start_offset > 0)
    alter_configs(kafka, topic, {"retention.bytes": "-1"})
    wait_until(lambda: _starts(kafka, topic)[0] == _offsets(kafka, topic).log_start_offset, "the oldest segments to go")
    left = _starts(kafka, topic)
    assert set(left) >= {start for start in before if start >= left[0]}


def _read(kafka: KafkaCluster, topic: str) -> Digests:
    return read_with_confluent(kafka.bootstrap_servers, topic, {0: 0}, "read_uncommitted")


def _starts(kafka: KafkaCluster, topic: str) -> list[int]:
    """Where the tier's segments of a topic begin, by its objects; ascending."""
    logs = kafka.tier_dir.glob(f"kafka-tiered-storage/{topic}-0-*/*.log")
    return sorted(int(log.name[:20]) for log in logs)


def _below(kafka: KafkaCluster, topic: str, offset: int) -> list[int]:
    """Those that do not begin behind the offset; one of them may hold it."""
    return [start for start in _starts(kafka, topic) if start <= offset]


def _offsets(kafka: KafkaCluster, topic: str) -> PartitionOffsets:
    return kafka.partition_offsets(topic)[0]


def _wait(kafka: KafkaCluster, topic: str, until: Callable[[PartitionOffsets], bool]) -> None:
    kafka.wait_tiered(topic, until=until)
