"""A real broker's segments as Aiven's objects in S3, read through Tidegate: the broker's own answers to the byte.

The broker reads its LocalTieredStorage, Tidegate the objects that were written anew from it (tests.support.aiven_tier):
equal answers say that neither keys, manifest, chunks nor indexes were misread. What Tidegate counts says that it was
S3 that it read.
"""

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import KafkaError

from protocol.wire.errors import ErrorCode
from tests.integration.reading import Reading, final_answer
from tests.support.aiven_tier import finished_segments, publish_tier
from tests.support.digests import Digests, read_with_confluent
from tests.support.disk_cache import log_blocks_below
from tests.support.kafka import TieredTopic
from tests.support.raw_client import FetchedPartition, FetchTarget, RawClient
from tests.support.replicas import broker_ports
from tests.support.s3_server import S3Server
from tests.support.tidegate import RunningTidegate, own_tidegate
from tests.support.waiting import wait_until
from tools.demo.kafka_cluster import KafkaCluster, free_port
from tools.demo.kafka_properties import HOST

VERSION = 17
BLOCK_BYTES = 64 * 1024
SMALL_BYTES, LARGE_BYTES = 10_000, 1024 * 1024
FIRST_RECORDS = 4000
"""What the consumer has read when Tidegate is stopped: less than half."""

NO_READ_AHEAD = {"fetch.message.max.bytes": BLOCK_BYTES, "fetch.queue.backoff.ms": 10, "reconnect.backoff.max.ms": 200}
"""Of librdkafka: the whole partition would be at the client's side before anything is stopped."""


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


@pytest.mark.parametrize(
    ("stop", "encryption"),
    [
        pytest.param(signal.SIGKILL, "key file", id="killed-and-encrypted"),
        pytest.param(signal.SIGTERM, "key of its own", id="stopped-and-its-key-gone"),
    ],
)
def test_a_restart_in_the_middle(
    kafka: KafkaCluster,
    tiered: TieredTopic,
    expected: Expected,
    s3_endpoint: S3Server,
    tmp_path: Path,
    stop: signal.Signals,
    encryption: str,
) -> None:
    """A consumer goes on where it was, and what was read before comes from disk, unless its key is gone."""
    tier = publish_tier(kafka, s3_endpoint, [tiered.name], tmp_path, compression=True)
    cache = tmp_path / "cache"
    ports = {"proxy.listen": f"{HOST}:{free_port()}", "proxy.broker.ports": f"1:{free_port()}"}
    properties = {**tier.properties(), **disk_cache_keys(cache, encryption, tmp_path), **ports}
    first = [target for target in expected.answers if target[2] == 0]
    with (
        own_tidegate(kafka, properties) as tidegate,
        Reading(tidegate.bootstrap_servers, tiered.name, NO_READ_AHEAD, partitions=[1]) as reading,
    ):
        reading.read_on(lambda: len(reading.offsets[1]) >= FIRST_RECORDS)
        listener = HOST, broker_ports(tidegate)[1]
        assert answers(listener, first) == [expected.answers[each] for each in first]
        wait_all_on_disk(tidegate, cache)

        if stop == signal.SIGKILL:
            tidegate.kill()
        tidegate.process.stop()
        tidegate.start_again()
        reading.read_on(lambda: len(reading.offsets[1]) >= expected.ends[1])
        assert reading.digest.result() == {1: expected.digests[1]}
        assert set(reading.errors) <= {KafkaError._TRANSPORT}
        gets = log_gets(tidegate)
        assert gets > 0
        assert answers(listener, first) == [expected.answers[each] for each in first]
        if encryption == "key of its own":
            assert log_gets(tidegate) > gets
            assert tidegate.metric("tidegate_cache_hits_total", level="disk") == 0
        else:
            assert log_gets(tidegate) == gets
            assert tidegate.metric("tidegate_cache_hits_total", level="disk") > 0
        assert tidegate.metric("tidegate_cache_disk_errors_total") == 0
        assert tidegate.metric("tidegate_cache_quarantined_blocks_total") == 0


def disk_cache_keys(cache: Path, encryption: str, folder: Path) -> dict[str, str]:
    """A disk cache of small blocks, and so little read-ahead that a restart comes before the end."""
    keys = {
        "cache.path": str(cache),
        "cache.block.bytes": str(BLOCK_BYTES),
        "readahead.stream.max.bytes": str(2 * BLOCK_BYTES),
        "cache.encrypt": "true",
    }
    if encryption == "key file":
        key_file = folder / "cache.key"
        key_file.write_bytes(bytes(range(32)))
        key_file.chmod(0o400)
        keys["cache.encrypt.key.file"] = str(key_file)
    return keys


def read_all(tidegate: RunningTidegate, topic: TieredTopic, expected: Expected) -> Digests:
    return read_with_confluent(tidegate.bootstrap_servers, topic.name, expected.ends, "read_uncommitted")


def answers(address: tuple[str, int], targets: Sequence[FetchTarget]) -> list[FetchedPartition]:
    """One Fetch for each target; what came too late for one is asked again."""
    with RawClient(*address) as client:
        return [final_answer(client, VERSION, target) for target in targets]


def log_gets(tidegate: RunningTidegate) -> float:
    return tidegate.metric("tidegate_gets_total", object="log")


def wait_all_on_disk(tidegate: RunningTidegate, cache: Path) -> None:
    """Blocks are written behind the readers' backs."""

    def all_there() -> bool:
        filled = tidegate.metric("tidegate_cache_fills_total")
        return len(log_blocks_below(cache)) == filled > 0

    wait_until(all_there, "every block is on disk")
    assert tidegate.metric("tidegate_cache_disk_skipped_blocks_total") == 0
