"""A real Kafka's tier, republished as Aiven's plugin would have written it, behind a slow link; all gone afterwards.

The broker fills a LocalTieredStorage and knows of nothing else. Tidegate gets another storage manager in its own file,
which wins over the broker's, and finds under the same segment ids the objects that were rewritten.

There is a topic for each size of batches. Partitions 0 and 1 are longer than the rest, so that one and two of them give
a read that is long enough to measure.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from confluent_kafka import Producer

from benchmarks.support.cold_options import VARIANTS, ColdOptions
from benchmarks.support.shaped_store import ShapedStore, shaped_store
from benchmarks.support.stage import JVM_OPTIONS
from protocol.record_batches import iterate_batches
from storage.formats.aiven.object_keys import ObjectSuffix, main_path, object_key
from storage.formats.segment_files import LOG_SUFFIX
from storage.model import RemoteLogSegmentMetadata
from storage.object_store.registry import open_object_store
from tests.support.aiven_tier import PREFIX, STORAGE_MANAGER_CLASS, finished_segments
from tests.support.aiven_writer import AivenWriterOptions, convert_tier, make_key_pair
from tests.support.kafka import TIERED, own_cluster
from tests.support.segments import object_path
from tools.demo.kafka_cluster import KafkaCluster, PartitionOffsets

LONG_PARTITIONS = 2
VALUE_BYTES = 1000
"""In a record: one makes a batch of 1 KiB, 64 one of 64 KiB."""
RECORD_OVERHEAD_BYTES, BATCH_OVERHEAD_BYTES = 7, 61
MIB = 1024 * 1024

RANDOM_BYTES = VALUE_BYTES * 3 // 10
"""In each record; the rest is the same in all of them. zstd makes a third of it."""

_POOL_BYTES = 32 * MIB
"""Longer than the random bytes of any chunk, or zstd would find them again."""
_QUEUE_RECORDS_MAX = 90_000
_FLUSH_S = 120.0
_TIERED_S = 300.0
_ACTIVE_BYTES = MIB // 4
"""Behind each partition's last whole segment, so that it is closed and tiered."""


@dataclass(frozen=True, slots=True)
class ColdTopic:
    """A topic of batches of one size. `segments` are each partition's, in order."""

    name: str
    segments: Mapping[int, Sequence[RemoteLogSegmentMetadata]]
    batch_bytes: float
    """On average."""
    objects: Mapping[str, Mapping[int, Sequence[tuple[str, int]]]]
    """By variant and partition: key and size in bytes of the logs, in order."""

    def ends(self, partitions: int) -> dict[int, int]:
        """The offset behind the tier's last, of the first so many partitions."""
        return {partition: self.segments[partition][-1].end_offset + 1 for partition in range(partitions)}

    def log_bytes(self, partitions: int) -> int:
        """Return the bytes of their segments, as Kafka has them."""
        return sum(each.segment_size_bytes for partition in range(partitions) for each in self.segments[partition])

    def stored(self, variant: str, partitions: int) -> list[tuple[str, int]]:
        """Key and size in bytes of their logs."""
        return [each for partition in range(partitions) for each in self.objects[variant][partition]]

    def stored_bytes(self, variant: str, partitions: int) -> int:
        """Return the bytes of their logs in the store."""
        return sum(size for _, size in self.stored(variant, partitions))


@dataclass(frozen=True, slots=True)
class ColdStage:
    """What a cold read is measured on. `topics` are by KiB of a batch, `variant_keys` what the plugin's configuration
    says of each variant."""

    cluster: KafkaCluster
    store: ShapedStore
    work: Path
    partitions: int
    topics: Mapping[int, ColdTopic]
    variant_keys: Mapping[str, Mapping[str, str]]

    def tidegate_properties(self, variant: str, scheme: str) -> dict[str, str]:
        """Return what goes into Tidegate's own file."""
        keys = {**self.store.ways[scheme].tidegate_keys(), **self.variant_keys[variant]}
        prefixed = {f"{PREFIX}{key}": value for key, value in keys.items()}
        return {"remote.log.storage.manager.class.name": STORAGE_MANAGER_CLASS, **prefixed}


@contextmanager
def cold_stage(options: ColdOptions) -> Iterator[ColdStage]:
    """A stage with what the options ask for."""
    partitions, segment_bytes = max(options.partitions), options.segment_mib * MIB
    counts = segment_counts(options.megabytes * 1_000_000, segment_bytes, partitions)
    link = {"first_byte_ms": options.first_byte_ms, "connection_megabytes_per_s": options.connection_megabytes_per_s}
    with (
        own_cluster(jvm_options=JVM_OPTIONS, brokers=options.brokers) as cluster,
        shaped_store(cluster.work, options.schemes, kind=options.store, **link) as store,
    ):
        pair = make_key_pair(cluster.work / "keys", "benchmark")
        keys = {name: _variant_keys(name, options.chunk_kib * 1024, pair) for name in options.variants}
        topics = {}
        for batch_kib in options.batch_kib:
            name = f"benchmark-cold-{batch_kib}k"
            segments = fill_tier(cluster, name, batch_kib, counts, segment_bytes)
            publish = partial(_publish, cluster.tier_dir, store, segments)
            with ThreadPoolExecutor(2) as threads:
                objects = dict(zip(keys, threads.map(publish, keys.values()), strict=True))
            topics[batch_kib] = ColdTopic(name, segments, _batch_bytes(cluster.tier_dir, segments[0][0]), objects)
        yield ColdStage(cluster, store, cluster.work, partitions, topics, keys)


def segment_counts(total_bytes: int, segment_bytes: int, partitions: int) -> list[int]:
    """Return how many segments each partition gets: one, and what is left of the total on those that are long."""
    counts = [1] * partitions
    for number in range(max(0, -(-total_bytes // segment_bytes) - partitions)):
        counts[number % min(LONG_PARTITIONS, partitions)] += 1
    return counts


def _variant_keys(name: str, chunk_bytes: int, pair: Mapping[str, str]) -> dict[str, str]:
    encrypted, compressed = VARIANTS[name]
    written = {"key.prefix": f"{name}/", "chunk.size": str(chunk_bytes)}
    return {**written, "compression.enabled": str(compressed).lower(), **(pair if encrypted else {})}


def fill_tier(
    cluster: KafkaCluster, topic: str, batch_kib: int, counts: Sequence[int], segment_bytes: int
) -> dict[int, list[RemoteLogSegmentMetadata]]:
    """A new topic with so many segments in each partition, in the tier alone; what the metadata topic says."""
    configs = {**TIERED, "segment.bytes": str(segment_bytes)}
    cluster.create_topic(topic, len(counts), configs, replication_factor=1)
    _produce(cluster.bootstrap_servers, topic, batch_kib, [count * segment_bytes + _ACTIVE_BYTES for count in counts])

    def only_active_is_local(offsets: PartitionOffsets) -> bool:
        is_tiered = 0 <= offsets.latest_tiered_offset == offsets.local_log_start_offset - 1
        return is_tiered and _local_logs(cluster, topic) == len(counts)

    offsets = cluster.wait_tiered(topic, until=only_active_is_local, timeout_s=_TIERED_S)
    segments = _segments_of(cluster, topic)
    for partition, known in offsets.items():
        found = segments.get(partition, [])
        if not found or found[-1].end_offset != known.latest_tiered_offset:
            raise RuntimeError(f"partition {partition}: the metadata topic has other segments than the broker")
    return segments


def _batch_bytes(tier_dir: Path, segment: RemoteLogSegmentMetadata) -> float:
    log = object_path(tier_dir, segment, LOG_SUFFIX).read_bytes()
    return len(log) / sum(1 for _ in iterate_batches([memoryview(log)]))


def _local_logs(cluster: KafkaCluster, topic: str) -> int:
    return sum(1 for _ in cluster.work.glob(f"node-*/data/{topic}-[0-9]*/*.log"))


def _produce(bootstrap_servers: str, topic: str, batch_kib: int, partition_bytes: Sequence[int]) -> None:
    """Produce so many bytes of batches into each partition, in turns; a record for each KiB of a batch."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "acks": 1,
            # The number of records closes a batch, not time nor its size.
            "linger.ms": 200,
            "batch.num.messages": batch_kib,
            "batch.size": 2 * batch_kib * 1024,
        }
    )
    source = random.Random(4)
    pool, constant = source.randbytes(_POOL_BYTES), source.randbytes(VALUE_BYTES - RANDOM_BYTES - 16)
    record_bytes = VALUE_BYTES + RECORD_OVERHEAD_BYTES + BATCH_OVERHEAD_BYTES / batch_kib
    records = [int(size / record_bytes) for size in partition_bytes]
    for number in range(max(records)):
        if number % 1000 == 0:
            while len(producer) > _QUEUE_RECORDS_MAX - 1000 * len(records):
                producer.poll(0.01)
        for partition, count in enumerate(records):
            if number < count:
                at = (number * len(records) + partition) * RANDOM_BYTES % (_POOL_BYTES - RANDOM_BYTES)
                producer.produce(
                    topic, b"%016d" % number + pool[at : at + RANDOM_BYTES] + constant, partition=partition
                )
    if left := producer.flush(_FLUSH_S):
        raise RuntimeError(f"{left} records were not produced in {_FLUSH_S:g} s")


def _segments_of(cluster: KafkaCluster, topic: str) -> dict[int, list[RemoteLogSegmentMetadata]]:
    """A topic's finished ones by the metadata topic, each partition's in order of offsets."""
    found: dict[int, list[RemoteLogSegmentMetadata]] = {}
    for segment in sorted(finished_segments(cluster), key=lambda each: each.start_offset):
        if segment.topic_id_partition.topic == topic:
            found.setdefault(segment.topic_id_partition.partition, []).append(segment)
    return found


def _publish(
    tier_dir: Path,
    store: ShapedStore,
    segments: Mapping[int, Sequence[RemoteLogSegmentMetadata]],
    keys: Mapping[str, str],
) -> dict[int, list[tuple[str, int]]]:
    """Write a topic's segments once more, under the variant's prefix, and look at what lies there then."""
    options = AivenWriterOptions(
        key_prefix=keys["key.prefix"],
        chunk_bytes=int(keys["chunk.size"]),
        compression=keys["compression.enabled"] == "true",
        key_pair=keys if "encryption.enabled" in keys else None,
    )
    bucket = open_object_store(store.plain_keys())
    objects: dict[int, list[tuple[str, int]]] = {}
    for partition, found in segments.items():
        for metadata in found:
            # One at a time, since each is held whole.
            convert_tier(tier_dir, [metadata], bucket, options)
            key = object_key(options.key_prefix, main_path(metadata), ObjectSuffix.LOG)
            objects.setdefault(partition, []).append((key, bucket.head(key).size_bytes))
    bucket.close()
    return objects
