"""Brokers that turn remote storage on over a tier that Tidegate has filled (docs/standalone.md#takeover): three with a
controller of their own, and one node that is both. And what becomes of a topic that was left out.
"""

import json
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from storage.indexes.leader_epochs import parse_leader_epochs
from tests.support.differential_known import local_logs
from tests.support.differential_steps import alter_configs, delete_records, end_transaction, transactional_producer
from tests.support.digests import Digests, Isolation, read_with_confluent
from tests.support.kafka import orders, produce, small_segments
from tests.support.plain_kafka import own_plain_cluster, run_standalone, standalone, wait_dropped
from tests.support.raw_client import RawClient
from tests.support.replicas import leaders_of, move_leaders
from tests.support.waiting import wait_until
from tools.demo.kafka_cluster import KafkaCluster, PartitionOffsets
from tools.demo.kafka_format import format_log_folder
from tools.demo.kafka_process import JavaProcess
from tools.demo.kafka_properties import properties_text

pytestmark = [pytest.mark.integration, pytest.mark.needs("java", "kafka")]

SEGMENT_BYTES = 200_000
RECORDS = 2000
BATCH_RECORDS = 100
SEGMENT_RECORDS = 400
"""In a segment at the broker."""

TOPICS = {"one-epoch": 1, "epochs": 3, "left": 3}
"""Topics, and how many leader epochs their copied records are of."""

ORDERS = "orders"
VALUE_BYTES = 2000
REPLICAS = {0: (1, 2), 1: (2, 3), 2: (3, 1)}
DELETED = 900
"""Where partition 1 begins, by DeleteRecords: in the tier's second segment."""

ISOLATIONS: Final[tuple[Isolation, ...]] = ("read_uncommitted", "read_committed")
WITH_TIER = {"remote.log.storage.system.enable": "true"}
Reads = dict[Isolation, Digests]
MARK = "remote.storage.enable=true,retention.ms=-1,retention.bytes=-1,local.retention.ms=86400000"


def test_three_brokers_take_a_tier_over_and_lose_nothing(tmp_path: Path) -> None:
    """The disk of one is empty when it comes back, and a rolling order is refused."""
    with own_plain_cluster(brokers=3) as kafka:
        written = _fill_replicas(kafka, tmp_path)
        objects = _objects(kafka)
        _dump(kafka, tmp_path)

        kafka.broker(3).stop()
        rolling = _takeover(kafka, tmp_path, "--yes", node_id=3, code=1)
        assert "broker 1 runs and was not taken over (its log of orders:2 begins at " in rolling
        assert "no rolling order works" in rolling

        for node_id in (1, 2):
            kafka.broker(node_id).stop()
        _replace_disk(kafka, 3)
        for node_id in (1, 2):
            assert "2 partitions are to be restored" in _takeover(kafka, tmp_path, "--dry-run", node_id=node_id)
        assert "this replica must not lead" in _takeover(kafka, tmp_path, "--dry-run", node_id=3, code=1)

        kafka.change_properties(WITH_TIER)
        kafka.controller.stop()
        kafka.controller.start()
        _mark(kafka, ORDERS)
        for node_id in (1, 2):
            assert "2 partitions restored" in _takeover(kafka, tmp_path, "--yes", node_id=node_id)
            kafka.broker(node_id).start()
        wait_until(lambda: min(leaders_of(kafka, ORDERS).values()) > 0, "all to be led")
        assert "and rebuilds the replica here" in _takeover(kafka, tmp_path, "--yes", node_id=3)
        kafka.broker(3).start()
        kafka.wait_ready()

        _wait_in_sync(kafka)
        starts = {number: offsets.log_start_offset for number, offsets in kafka.partition_offsets(ORDERS).items()}
        assert starts == {0: 0, 1: DELETED, 2: 0}
        assert _read(kafka.bootstrap_servers, ORDERS, REPLICAS) == written
        _check_brokers_copy(kafka, ORDERS)
        written = _read(kafka.bootstrap_servers, ORDERS, REPLICAS)
        assert [name for name in objects - _objects(kafka) if not name.startswith("orders-1-")] == []

        # What broker 3 serves of old epochs and transactions it has from the tier alone.
        for node_id in (1, 2):
            kafka.broker(node_id).kill()
        rebuilt = [number for number, node_ids in REPLICAS.items() if 3 in node_ids]
        wait_until(lambda: all(leaders_of(kafka, ORDERS)[number] == 3 for number in rebuilt), "broker 3 to lead")
        for isolation, digests in _read(kafka.bootstrap_servers, ORDERS, rebuilt).items():
            assert digests == {number: written[isolation][number] for number in rebuilt}, isolation


def test_a_node_that_is_broker_and_controller_takes_a_tier_over(tmp_path: Path) -> None:
    """A topic that was left out is deleted; until topics are marked the way back is to start the node as it was."""
    with own_plain_cluster() as kafka:
        direct = _fill(kafka, tmp_path)
        _dump(kafka, tmp_path)
        assert "is in use: stop its broker" in _takeover(kafka, tmp_path, "--dry-run", code=1)
        kafka.broker(1).stop()
        _take_over(kafka, tmp_path)

        kafka.broker(1).start()
        began = {topic: int(local_logs(kafka, topic)[0].stem) for topic in TOPICS}
        assert {topic: _offsets(kafka, topic).log_start_offset for topic in TOPICS} == began
        _dump(kafka, tmp_path)
        kafka.broker(1).stop()

        kafka.change_properties(WITH_TIER)
        with _as_controller(kafka):
            for topic in TOPICS:
                _mark(kafka, topic)
        _take_over(kafka, tmp_path)
        kafka.broker(1).start()

        # In the topic that was left out, the broker deletes records of epochs that it has forgotten.
        wait_until(lambda: _starts(kafka, "left")[0] > 0, "the oldest segments of `left` to go")
        kafka.wait_tiered("left", until=lambda offsets: offsets.log_start_offset > SEGMENT_RECORDS)

        for topic in ("one-epoch", "epochs"):
            kafka.wait_tiered(topic, until=lambda offsets: offsets.latest_tiered_offset >= 0)
            assert _offsets(kafka, topic).log_start_offset == 0
            assert _read(kafka.bootstrap_servers, topic, [0]) == direct[topic]
            _check_brokers_copy(kafka, topic)
            _check_retention(kafka, tmp_path, topic)


# --- a tier of ours ---


def _fill(kafka: KafkaCluster, folder: Path) -> dict[str, Reads]:
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
    _copy(kafka, folder, ",".join(TOPICS))
    direct = {}
    for topic, epochs in TOPICS.items():
        assert _tiered_epochs(kafka, topic, 0) == epochs
        direct[topic] = _read(kafka.bootstrap_servers, topic, [0])
        _drop_local(kafka, topic, {0: int(local_logs(kafka, topic)[-1].stem)})
    return direct


def _fill_replicas(kafka: KafkaCluster, folder: Path) -> Reads:
    """One topic of three partitions of two replicas each, of several epochs and with aborted transactions. Its newest
    records are at the brokers alone, most of the others in the tier alone."""
    # Not `small_segments`: a follower that catches up appends several batches at once, more than their indexes hold.
    configs = {"retention.ms": "-1", "segment.bytes": str(1024 * 1024)}
    kafka.create_topic(ORDERS, len(REPLICAS), configs, replication_factor=2)
    move_leaders(kafka, ORDERS, REPLICAS)
    for broker in kafka.brokers:
        _produce_transactions(kafka)
        kafka.restart_broker(broker.node_id)
        kafka.wait_ready()
        _wait_in_sync(kafka)
    _produce_transactions(kafka)
    _copy(kafka, folder, ORDERS)
    assert min(_tiered_epochs(kafka, ORDERS, number) for number in REPLICAS) > 1
    with standalone(kafka, folder, {"copy.topics": ORDERS}) as running:
        running.wait_log("ready:")
        delete_records(kafka, ORDERS, 1, DELETED, through=running.bootstrap)
        _drop_local(kafka, ORDERS, dict.fromkeys(REPLICAS, DELETED + 1))
        _produce(kafka, ORDERS, len(REPLICAS))
        written = _read(running.bootstrap, ORDERS, REPLICAS)
    assert written["read_committed"] != written["read_uncommitted"]
    assert [each.first for each in written["read_uncommitted"].values()] == [0, DELETED, 0]
    return written


def _produce(kafka: KafkaCluster, topic: str, partitions: int = 1) -> None:
    records = orders(RECORDS, partitions, value_bytes=VALUE_BYTES if topic == ORDERS else 200)
    produce(kafka, topic, records, batch_num_messages=BATCH_RECORDS)


def _produce_transactions(kafka: KafkaCluster) -> None:
    """Plain records, and one transaction of each kind in all partitions."""
    _produce(kafka, ORDERS, len(REPLICAS))
    producer = transactional_producer(kafka, "shop")
    for commits in (True, False):
        producer.begin_transaction()
        for number in range(BATCH_RECORDS):
            for partition in REPLICAS:
                producer.produce(ORDERS, b"%d" % number * 20, partition=partition)
        producer.flush()
        end_transaction(producer, commits=commits)


def _copy(kafka: KafkaCluster, folder: Path, topics: str) -> None:
    properties = {
        "copy.topics": topics,
        "copy.segment.bytes": str(SEGMENT_BYTES if topics != ORDERS else 1024 * 1024),
        # If there are several brokers, none has all of the metadata topic.
        "rlmm.config.remote.log.metadata.topic.replication.factor": str(min(2, len(kafka.brokers))),
    }
    done = run_standalone(kafka, folder, "copy", "--once", properties=properties)
    assert done.returncode == 0, done.stdout + done.stderr


def _drop_local(kafka: KafkaCluster, topic: str, below: dict[int, int]) -> None:
    alter_configs(kafka, topic, {"retention.bytes": "1"})
    wait_dropped(kafka, topic, below)
    alter_configs(kafka, topic, {"retention.bytes": "-1"})


# --- the steps ---


def _dump(kafka: KafkaCluster, folder: Path) -> None:
    done = run_standalone(kafka, folder, "metadata dump")
    assert done.returncode == 0, done.stderr
    (folder / "metadata.jsonl").write_text(done.stdout)


def _takeover(kafka: KafkaCluster, folder: Path, *arguments: str, node_id: int = 1, code: int = 0) -> str:
    """Return what it said."""
    places = ("--from", str(folder / "metadata.jsonl"), "--log-dir", str(kafka.broker(node_id).data_dir))
    done = run_standalone(kafka, folder, "takeover", *places, *arguments)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def _take_over(kafka: KafkaCluster, folder: Path) -> None:
    """All but the topic `left`, each first as a dry run, and in the end once more."""
    before = _checkpoints(kafka)
    for topic in ("one-epoch", "epochs"):
        planned = _takeover(kafka, folder, "--topic", topic, "--dry-run")
        assert "1 partitions are to be restored; this was a dry run" in planned
    assert _checkpoints(kafka) == before
    for topic in ("one-epoch", "epochs"):
        assert "1 partitions restored" in _takeover(kafka, folder, "--topic", topic, "--yes")
    after = _checkpoints(kafka)
    again = _takeover(kafka, folder, "--topic", "epochs", "--yes")
    assert "nothing is left to do" in again
    assert _checkpoints(kafka) == after
    assert before["left-0"] == after["left-0"]


def _checkpoints(kafka: KafkaCluster) -> dict[str, str]:
    """By partition the broker's leader epochs; and its log starts."""
    data_dir = kafka.broker(1).data_dir
    found = {path.parent.name: path.read_text() for path in data_dir.glob("*/leader-epoch-checkpoint")}
    return {**found, "": (data_dir / "log-start-offset-checkpoint").read_text()}


def _mark(kafka: KafkaCluster, topic: str) -> None:
    """At the controller, while no broker runs."""
    controller = f"127.0.0.1:{kafka.plan.controller_port}"
    place = ("--bootstrap-controller", controller, "--entity-type", "topics", "--entity-name", topic)
    command = kafka.java_command("kafka.admin.ConfigCommand", *place, "--alter", "--add-config", MARK)
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@contextmanager
def _as_controller(kafka: KafkaCluster) -> Iterator[None]:
    """The one node, from a copy of its properties by which it is no broker."""
    node = kafka.broker(1)
    given = dict(line.split("=", 1) for line in node.server_properties_path.read_text().splitlines())
    listeners = f"CONTROLLER://127.0.0.1:{kafka.plan.controller_port}"
    properties = {**given, **WITH_TIER, "process.roles": "controller", "listeners": listeners}
    for key in ("advertised.listeners", "inter.broker.listener.name", "remote.log.metadata.manager.listener.name"):
        del properties[key]
    file = node.directory / "controller.properties"
    file.write_text(properties_text(properties))
    process = JavaProcess("Kafka controller", kafka.java_command("kafka.Kafka", str(file)), node.log_path)
    try:
        process.wait_for_log("Kafka Server started", 60)
        yield
    finally:
        process.stop(60)


def _replace_disk(kafka: KafkaCluster, node_id: int) -> None:
    data_dir = kafka.broker(node_id).data_dir
    shutil.rmtree(data_dir)
    format_log_folder(data_dir, kafka.cluster_id, node_id)


# --- what is seen ---


def _check_brokers_copy(kafka: KafkaCluster, topic: str) -> None:
    """They copy what is new."""
    tiered = {number: each.latest_tiered_offset for number, each in kafka.partition_offsets(topic).items()}
    _produce(kafka, topic, len(tiered))

    def has_grown() -> bool:
        found = kafka.partition_offsets(topic)
        return all(found[number].latest_tiered_offset > before for number, before in tiered.items())

    wait_until(has_grown, "new segments in the tier")


def _check_retention(kafka: KafkaCluster, folder: Path, topic: str) -> None:
    """The broker deletes the oldest segments of the tier by its retention, and no others.

    What it copied itself may begin in the middle of our last segment, and the log then in the middle of the broker's.
    """
    _dump(kafka, folder)
    records = [json.loads(line).get("record", {}) for line in (folder / "metadata.jsonl").read_text().splitlines()]
    ends = {each["segment_id"]: each["end_offset"] for each in records if "end_offset" in each}
    before = {each: ends[each] for each in _segments(kafka, topic) if each in ends}
    assert before
    alter_configs(kafka, topic, {"retention.bytes": str(2 * SEGMENT_BYTES)})
    kafka.wait_tiered(topic, until=lambda offsets: offsets.log_start_offset > 0)
    alter_configs(kafka, topic, {"retention.bytes": "-1"})

    def kept() -> set[str]:
        start = _offsets(kafka, topic).log_start_offset
        return {each for each, end in before.items() if end >= start}

    wait_until(lambda: _segments(kafka, topic) & before.keys() <= kept(), f"the oldest segments of `{topic}` to go")
    left = _segments(kafka, topic)
    assert left >= kept()


def _read(bootstrap_servers: str, topic: str, partitions: Iterable[int]) -> Reads:
    ends = dict.fromkeys(partitions, 0)
    return {each: read_with_confluent(bootstrap_servers, topic, ends, each) for each in ISOLATIONS}


def _wait_in_sync(kafka: KafkaCluster) -> None:
    def are_in_sync() -> bool:
        with RawClient("127.0.0.1", next(each.port for each in kafka.brokers if each.is_running)) as client:
            (topic,) = client.metadata([ORDERS]).topics
        return all(len(entry.isr_nodes) == 2 for entry in topic.partitions)

    wait_until(are_in_sync, "all replicas to be in sync")


def _tiered_epochs(kafka: KafkaCluster, topic: str, partition: int) -> int:
    """Return how many leader epochs the tier's newest segment knows."""
    folders = kafka.tier_dir.glob(f"kafka-tiered-storage/{topic}-{partition}-*/*.leader_epoch_checkpoint")
    checkpoints = sorted(folders, key=lambda path: path.name)
    return len(parse_leader_epochs(checkpoints[-1].read_bytes()))


def _objects(kafka: KafkaCluster) -> set[str]:
    return {f"{path.parent.name}/{path.name}" for path in kafka.tier_dir.glob("kafka-tiered-storage/*/*")}


def _starts(kafka: KafkaCluster, topic: str) -> list[int]:
    """Return where the tier's segments of a topic begin, by its objects; ascending."""
    logs = kafka.tier_dir.glob(f"kafka-tiered-storage/{topic}-0-*/*.log")
    return sorted(int(log.name[:20]) for log in logs)


def _segments(kafka: KafkaCluster, topic: str) -> set[str]:
    """Return the ids of the tier's segments of a topic, by its objects."""
    return {log.stem[21:] for log in kafka.tier_dir.glob(f"kafka-tiered-storage/{topic}-0-*/*.log")}


def _offsets(kafka: KafkaCluster, topic: str) -> PartitionOffsets:
    return kafka.partition_offsets(topic)[0]
