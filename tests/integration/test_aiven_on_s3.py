"""A real broker's segments as Aiven's objects in S3, read through Tidegate: the broker's own answers to the byte.

The broker reads its LocalTieredStorage, Tidegate the objects that were written anew from it (tests.support.aiven_tier):
equal answers say that neither keys, manifest, chunks nor indexes were misread. What Tidegate counts says that it was
S3 that it read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from protocol.wire.errors import ErrorCode
from tests.integration.reading import final_answer
from tests.support.aiven_tier import finished_segments, publish_tier
from tests.support.digests import Digests, read_with_confluent
from tests.support.kafka import TieredTopic
from tests.support.raw_client import FetchedPartition, FetchTarget, RawClient
from tests.support.replicas import broker_ports
from tests.support.s3_server import S3Server
from tests.support.tidegate import RunningTidegate, own_tidegate
from tools.demo.kafka_cluster import KafkaCluster
from tools.demo.kafka_properties import HOST

VERSION = 17
BLOCK_BYTES = 64 * 1024
SMALL_BYTES, LARGE_BYTES = 10_000, 1024 * 1024


@dataclass(frozen=True, slots=True)
class Expected:
    """What the broker itself answers."""

    ends: Mapping[int, int]
    digests: Digests
    answers: Mapping[FetchTarget, FetchedPartition]


@pytest.fixture(scope="module")
def expected(kafka: KafkaCluster, tiered: TieredTopic) -> Expected:
    """All records, and answers from the tier's first offsets, its last, its segments' borders, and between."""
    with RawClient("127.0.0.1", kafka.broker(1).port) as client:
        topic_id = client.topic_id(tiered.name)
    borders = {
        (segment.topic_id_partition.partition, offset)
        for segment in finished_segments(kafka)
        if segment.topic_id_partition.topic == tiered.name
        for offset in (segment.start_offset, (segment.start_offset + segment.end_offset) // 2, segment.end_offset)
    }
    targets = [
        (tiered.name, topic_id, partition, offset, max_bytes)
        for partition, offset in sorted(borders)
        for max_bytes in (SMALL_BYTES, LARGE_BYTES)
    ]
    ends = {partition: offsets.high_watermark for partition, offsets in tiered.offsets.items()}
    direct = answers(("127.0.0.1", kafka.broker(1).port), targets)
    assert all(answer.error_code == ErrorCode.NONE for answer in direct)
    return Expected(
        ends,
        read_with_confluent(kafka.bootstrap_servers, tiered.name, ends, "read_uncommitted"),
        dict(zip(targets, direct, strict=True)),
    )


@pytest.mark.parametrize(
    ("compression", "encryption"),
    [(False, False), (True, False), (False, True), (True, True)],
    ids=["plain", "zstd", "encrypted", "zstd-encrypted"],
)
def test_digests_and_answers_are_the_brokers_own(
    kafka: KafkaCluster,
    tiered: TieredTopic,
    expected: Expected,
    s3_endpoint: S3Server,
    tmp_path: Path,
    compression: bool,
    encryption: bool,
) -> None:
    tier = publish_tier(kafka, s3_endpoint, [tiered.name], tmp_path, compression=compression, encryption=encryption)
    remote_fetches = kafka.broker(1).remote_fetch_requests(tiered.name)
    with own_tidegate(kafka, {**tier.properties(), "cache.block.bytes": str(BLOCK_BYTES)}) as tidegate:
        assert read_all(tidegate, tiered, expected) == expected.digests
        address = HOST, broker_ports(tidegate)[1]
        assert answers(address, list(expected.answers)) == list(expected.answers.values())
        assert log_gets(tidegate) >= len(tier.segments)
        # None for an index that the manifest says is empty, as when batches are large.
        assert tidegate.metric("tidegate_gets_total", object="index") <= len(tier.segments)
        log_bytes = sum(segment.segment_size_bytes for segment in tier.segments)
        assert tidegate.metric("tidegate_cache_fill_bytes_total") == log_bytes
        asked_bytes = tidegate.metric("tidegate_get_bytes_total")
        assert asked_bytes < log_bytes if compression else asked_bytes >= log_bytes
        assert tidegate.metric("tidegate_gets_total") == tidegate.metric("tidegate_gets_total", outcome="ok")
    assert kafka.broker(1).remote_fetch_requests(tiered.name) == remote_fetches


def read_all(tidegate: RunningTidegate, topic: TieredTopic, expected: Expected) -> Digests:
    return read_with_confluent(tidegate.bootstrap_servers, topic.name, expected.ends, "read_uncommitted")


def answers(address: tuple[str, int], targets: Sequence[FetchTarget]) -> list[FetchedPartition]:
    """One Fetch for each target; what came too late for one is asked again."""
    with RawClient(*address) as client:
        return [final_answer(client, VERSION, target) for target in targets]


def log_gets(tidegate: RunningTidegate) -> float:
    return tidegate.metric("tidegate_gets_total", object="log")
