"""`serve` that copies, with two workers: one of them copies, both serve, `/metrics` has what the tier has, and a topic
that is deleted takes its own objects with it and no others."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from metrics.kip405 import EXPORTED
from protocol.wire.errors import ErrorCode
from storage.formats.local_tiered_storage import ROOT_DIRECTORY_NAME
from tests.support.differential_steps import alter_configs, delete_topic
from tests.support.digests import Digests, read_with_confluent
from tests.support.kafka import fresh_name, orders, produce
from tests.support.plain_kafka import drop_all, serving_copies
from tests.support.raw_client import RawClient
from tests.support.serving import Serving
from tests.support.tier_proofs import TierSegment, check_whole, copied_offsets, files_of, metadata_events, segments_of
from tests.support.waiting import wait_until
from tests.support.worker_processes import all_are_ready, connections_of
from tools.demo.kafka_cluster import KafkaCluster

pytestmark = [pytest.mark.integration, pytest.mark.needs("java", "kafka")]

PARTITIONS, RECORDS = 2, 2000
CONNECTIONS = 8
PARTITION_DELETED = ["DELETE_PARTITION_MARKED", "DELETE_PARTITION_STARTED", "DELETE_PARTITION_FINISHED"]
"""In the order of KIP-405."""


@dataclass(frozen=True, slots=True)
class Scene:
    """Two topics that are copied whole, and deleted at the broker. `direct`: what was read there of each."""

    kafka: KafkaCluster
    folder: Path
    served: Serving
    topics: Sequence[str]
    ends: dict[int, int]
    direct: dict[str, Digests]
    group: str

    def segments(self, topic: str) -> list[TierSegment]:
        return [segment for each in segments_of(self.kafka, topic).values() for segment in each]


@contextmanager
def copied(plain_kafka: KafkaCluster, folder: Path) -> Iterator[Scene]:
    stem = fresh_name("workers")
    topics = (f"{stem}-one", f"{stem}-two")
    ends = dict.fromkeys(range(PARTITIONS), RECORDS // PARTITIONS)
    for topic in topics:
        plain_kafka.create_topic(topic, PARTITIONS, {"retention.ms": "-1"})
        produce(plain_kafka, topic, orders(RECORDS, PARTITIONS), batch_num_messages=50)
    direct = {
        topic: read_with_confluent(plain_kafka.bootstrap_servers, topic, ends, "read_uncommitted") for topic in topics
    }
    with serving_copies(plain_kafka, folder, f"^{stem}-.*", copy_group_id=stem, proxy_workers="2") as served:
        wait_until(lambda: all_are_ready(served), "both workers")
        wanted = {(topic, partition): end - 1 for topic in topics for partition, end in ends.items()}
        wait_until(lambda: copied_offsets(served) == wanted, "everything to be copied")
        for topic in topics:
            drop_all(plain_kafka, topic, ends)
        yield Scene(plain_kafka, folder, served, topics, ends, direct, stem)


def test_two_workers_copy_and_serve(plain_kafka: KafkaCluster, tmp_path: Path) -> None:
    """One after another, since the later ones change what the earlier ones look at."""
    with copied(plain_kafka, tmp_path) as scene:
        check_one_worker_copies(scene)
        check_both_workers_read_the_tier(scene)
        check_metrics(scene)
        check_a_deleted_topic(scene)


def check_one_worker_copies(scene: Scene) -> None:
    """Given two workers, then the group of the copiers has one member, and each offset was copied once."""
    admin = AdminClient({"bootstrap.servers": scene.kafka.bootstrap_servers})
    described = admin.describe_consumer_groups([scene.group])[scene.group].result(30)
    [member] = described.members
    own = [each for each in member.assignment.topic_partitions if each.topic in scene.topics]
    assert len(own) == PARTITIONS * len(scene.topics)
    assert len(scene.served.wait_events("copy_partitions_assigned")) == 1
    for topic in scene.topics:
        copies = [event for each in metadata_events(scene.kafka, topic).values() for event in each]
        assert len(copies) == 2 * len(scene.segments(topic))  # STARTED and FINISHED, and nothing in vain


def check_both_workers_read_the_tier(scene: Scene) -> None:
    """Given connections to both workers, then each of them answers from the tier what the broker does not have."""
    [topic, _] = scene.topics
    with ExitStack() as stack:
        with scene.served.client() as bootstrap:
            [broker] = bootstrap.metadata([]).brokers
            topic_id: bytes | None = bootstrap.topic_id(topic)
        clients = [stack.enter_context(RawClient(broker.host, broker.port)) for _ in range(CONNECTIONS)]

        def both_have_some() -> bool:
            counts = connections_of(scene.served)
            return all(counts) and sum(counts) == CONNECTIONS

        wait_until(both_have_some, "connections to both workers")
        answers, wanted = set(), [(topic, topic_id, 0, 0, 1 << 16)]
        for client in clients:
            # The first one that hears where the broker's log starts by now may answer with a retriable error.
            while not (answer := client.fetch(13, wanted, max_wait_ms=5000).partitions[0]).records:
                assert answer.error_code in (ErrorCode.NONE, ErrorCode.REPLICA_NOT_AVAILABLE)
            answers.add(answer.records)
        assert len(answers) == 1
    for topic in scene.topics:
        found = read_with_confluent(scene.served.bootstrap, topic, scene.ends, "read_uncommitted")
        assert found == scene.direct[topic]


def check_metrics(scene: Scene) -> None:
    """Given two topics whose segments are known, then `/metrics` has their bytes, segments and copies; when the store
    is away, then what cannot be copied is a lag, and no lag any more when the store is there again."""
    for topic in scene.topics:
        segments = scene.segments(topic)
        size_bytes = sum(each.size_bytes for each in segments)
        assert size_bytes > 0
        wait_until(partial(metric, scene, "RemoteLogSizeBytes", topic), "the sizes")
        assert metric(scene, "RemoteCopyBytesPerSec", topic) == size_bytes
        assert metric(scene, "RemoteCopyRequestsPerSec", topic) == len(segments)
        assert metric(scene, "RemoteCopyErrorsPerSec", topic) == 0
        assert metric(scene, "RemoteDeleteRequestsPerSec", topic) == 0
        assert metric(scene, "RemoteCopyLagBytes", topic) == 0
        assert metric(scene, "RemoteLogSizeBytes", topic) == size_bytes
        assert metric(scene, "RemoteLogMetadataCount", topic) == len(segments)
    [topic, _] = scene.topics
    alter_configs(scene.kafka, topic, {"retention.ms": "-1"})
    folder, away = scene.kafka.tier_dir / ROOT_DIRECTORY_NAME, scene.kafka.tier_dir / "away"
    folder.rename(away)
    folder.write_bytes(b"no folder")
    try:
        produce(scene.kafka, topic, orders(100, 1))
        wait_until(lambda: metric(scene, "RemoteCopyErrorsPerSec", topic), "copies to fail")
        lag_bytes = metric(scene, "RemoteCopyLagBytes", topic)
    finally:
        folder.unlink()
        away.rename(folder)
    wait_until(lambda: copied_offsets(scene.served).get((topic, 0)) == scene.ends[0] + 99, "the rest", timeout_s=60)
    scene.ends[0] += 100
    last = segments_of(scene.kafka, topic)[0][-1]
    assert lag_bytes == last.size_bytes
    wait_until(lambda: metric(scene, "RemoteCopyLagBytes", topic) == 0, "no lag")


def metric(scene: Scene, name: str, topic: str) -> float:
    [row] = [row for row in EXPORTED if row.mbean.endswith(f"BrokerTopicMetrics,name={name}")]
    return scene.served.metric(row.family.exposed_name, topic=topic)


def check_a_deleted_topic(scene: Scene) -> None:
    """Given a topic that is deleted at the broker, then its segments go, state by state, and its files; those of the
    other topic stay, and are read."""
    [topic, other] = scene.topics
    segments = scene.segments(topic)
    others = files_of(scene.kafka, other)
    delete_topic(scene.kafka, topic)
    wait_until(lambda: not files_of(scene.kafka, topic), "its files to go")

    def states() -> dict[str, list[str]]:
        events = metadata_events(scene.kafka, topic)
        return {name: [state for state, _ in each] for name, each in events.items()}

    wait_until(lambda: all(states().get(str(number)) == PARTITION_DELETED for number in scene.ends), "its end")
    assert {name for name, each in states().items() if each[-1] == "DELETE_SEGMENT_FINISHED"} >= {
        each.segment_id for each in segments
    }
    assert scene.segments(topic) == []
    assert metric(scene, "RemoteDeleteRequestsPerSec", topic) >= len(segments)
    wait_until(lambda: metric(scene, "RemoteLogMetadataCount", topic) == 0, "no segments in the metrics")
    assert files_of(scene.kafka, other) == others
    check_whole(scene.kafka, scene.folder, other, dict.fromkeys(scene.ends, 0), dict.fromkeys(scene.ends, RECORDS // 2))
    found = read_with_confluent(scene.served.bootstrap, other, scene.ends, "read_uncommitted")
    assert found == scene.direct[other]
