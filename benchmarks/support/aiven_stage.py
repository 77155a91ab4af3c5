"""A real Kafka's tier, republished as Aiven's plugin would have written it, behind a slow link; all gone afterwards.

The broker fills a LocalTieredStorage and knows of nothing else. Tidegate gets another storage manager in its own file,
which wins over the broker's, and finds under the same segment ids the objects that were written anew.

Partitions 0 and 1 are longer than the rest, so that one and two of them give a read that is long enough to measure.
"""

import random
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks.support.shaped_store import ShapedStore, shaped_store
from benchmarks.support.stage import JARS, JVM_OPTIONS
from proxy.demo.kafka_cluster import KafkaCluster, PartitionOffsets
from proxy.demo.kafka_properties import METADATA_PARTITIONS
from storage.formats.aiven.key_ring import KeyRing
from storage.formats.aiven.object_keys import ObjectSuffix, main_path, object_key
from storage.metadata.serde import decode
from storage.model import RemoteLogSegmentMetadata, RemoteLogSegmentMetadataUpdate, RemoteLogSegmentState
from storage.object_store.s3 import S3Store
from storage.object_store.s3_config import s3_settings
from tests.support.aiven_writer import AivenWriterOptions, convert_tier, make_key_pair

PARTITIONS = 8
LONG_PARTITIONS = 2
TOPIC = "benchmark-cold"
RECORD_BYTES = 4096
BATCH_BYTES = 64 * 1024
MIB = 1024 * 1024

RANDOM_BYTES = RECORD_BYTES * 3 // 10
"""Of each record; the rest is the same in all of them. zstd makes a third of it."""

_POOL_BYTES = 32 * MIB
"""Longer than the random bytes of any chunk, or zstd would find them again."""
_QUEUE_BYTES_MAX = 128 * MIB
_FLUSH_S = 120.0
_READ_S = 30.0
_ACTIVE_BYTES = MIB // 4
"""Behind each partition's last whole segment, so that it is closed and tiered."""

STORAGE_MANAGER_CLASS = "io.aiven.kafka.tieredstorage.RemoteStorageManager"
PREFIX = "rsm.config."


@dataclass(frozen=True, slots=True)
class Variant:
    """How segments are stored. `keys`: what the plugin's configuration says of it."""

    name: str
    keys: Mapping[str, str]
    objects: Mapping[int, Sequence[tuple[str, int]]]
    """Key and size in bytes of each partition's logs, in order."""

    def stored_bytes(self, partitions: int) -> int:
        return sum(size for partition in range(partitions) for _, size in self.objects[partition])


@dataclass(frozen=True, slots=True)
class ColdStage:
    """What a cold read is measured on. `segments` are each partition's, in order."""

    cluster: KafkaCluster
    store: ShapedStore
    work: Path
    chunk_bytes: int
    segments: Mapping[int, Sequence[RemoteLogSegmentMetadata]]
    variants: Sequence[Variant]

    def ends(self, partitions: int) -> dict[int, int]:
        """The offset behind the tier's last, of the first so many partitions."""
        return {partition: self.segments[partition][-1].end_offset + 1 for partition in range(partitions)}

    def log_bytes(self, partitions: int) -> int:
        """Of their segments, as Kafka has them."""
        return sum(each.segment_size_bytes for partition in range(partitions) for each in self.segments[partition])

    def tidegate_properties(self, variant: Variant) -> dict[str, str]:
        """What goes into Tidegate's own file."""
        keys = {"chunk.size": str(self.chunk_bytes), **self.store.tidegate_keys(), **variant.keys}
        prefixed = {f"{PREFIX}{key}": value for key, value in keys.items()}
        return {"remote.log.storage.manager.class.name": STORAGE_MANAGER_CLASS, **prefixed}


@contextmanager
def cold_stage(
    *,
    megabytes: int,
    segment_bytes: int,
    chunk_bytes: int,
    variants: Sequence[tuple[bool, bool]],
    first_byte_ms: int,
    connection_megabytes_per_s: int,
) -> Iterator[ColdStage]:
    """A stage with these variants, each (encryption, zstd)."""
    work = Path(tempfile.mkdtemp(prefix="tidegate-benchmark-"))
    try:
        link = {"first_byte_ms": first_byte_ms, "connection_megabytes_per_s": connection_megabytes_per_s}
        with (
            KafkaCluster(jars=JARS, work=work, jvm_options=JVM_OPTIONS) as cluster,
            shaped_store(work, **link) as store,
        ):
            counts = segment_counts(megabytes * 1_000_000, segment_bytes)
            segments = _fill_tier(cluster, counts, segment_bytes)
            pair = make_key_pair(work / "keys", "benchmark")

            def publish(kind: tuple[bool, bool]) -> Variant:
                encrypted, compressed = kind
                keys = {"compression.enabled": str(compressed).lower(), **(pair if encrypted else {})}
                return _publish(cluster.tier_dir, store, segments, chunk_bytes, variant_name(*kind), keys)

            with ThreadPoolExecutor(2) as threads:
                published = list(threads.map(publish, variants))
            yield ColdStage(cluster, store, work, chunk_bytes, segments, published)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def segment_counts(total_bytes: int, segment_bytes: int) -> list[int]:
    """How many segments each partition gets: one, and what is left of the total on those that are long."""
    counts = [1] * PARTITIONS
    for number in range(max(0, -(-total_bytes // segment_bytes) - PARTITIONS)):
        counts[number % LONG_PARTITIONS] += 1
    return counts


def variant_name(encrypted: bool, compressed: bool) -> str:
    """As the tables show it."""
    return {(False, False): "plain", (True, False): "AES", (False, True): "zstd", (True, True): "AES + zstd"}[
        encrypted, compressed
    ]


def _fill_tier(
    cluster: KafkaCluster, counts: Sequence[int], segment_bytes: int
) -> dict[int, list[RemoteLogSegmentMetadata]]:
    configs = {
        "remote.storage.enable": "true",
        "retention.ms": "-1",
        "segment.bytes": str(segment_bytes),
        "local.retention.bytes": "1",
    }
    cluster.create_topic(TOPIC, PARTITIONS, configs)
    _produce(cluster.bootstrap_servers, [count * segment_bytes + _ACTIVE_BYTES for count in counts])

    def only_active_is_local(offsets: PartitionOffsets) -> bool:
        return 0 <= offsets.latest_tiered_offset == offsets.local_log_start_offset - 1 and _local_logs(cluster) == len(
            counts
        )

    offsets = cluster.wait_tiered(TOPIC, until=only_active_is_local, timeout_s=180)
    segments = _finished_segments(cluster.bootstrap_servers)
    for partition, known in offsets.items():
        found = segments.get(partition, [])
        if not found or found[-1].end_offset != known.latest_tiered_offset:
            raise RuntimeError(f"partition {partition}: the metadata topic has other segments than the broker")
    return segments


def _local_logs(cluster: KafkaCluster) -> int:
    return sum(1 for _ in cluster.broker(1).data_dir.glob(f"{TOPIC}-[0-9]/*.log"))


def _produce(bootstrap_servers: str, partition_bytes: Sequence[int]) -> None:
    """So many bytes of records into each partition, in turns."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "linger.ms": 20,
            "batch.size": BATCH_BYTES,
            "queue.buffering.max.kbytes": _QUEUE_BYTES_MAX // 1024 * 2,
        }
    )
    source = random.Random(4)
    pool, constant = source.randbytes(_POOL_BYTES), source.randbytes(RECORD_BYTES - RANDOM_BYTES - 16)
    records = [size // RECORD_BYTES for size in partition_bytes]
    for number in range(max(records)):
        while len(producer) > _QUEUE_BYTES_MAX // RECORD_BYTES:
            producer.poll(0.01)
        for partition, count in enumerate(records):
            if number < count:
                at = (number * PARTITIONS + partition) * RANDOM_BYTES % (_POOL_BYTES - RANDOM_BYTES)
                producer.produce(
                    TOPIC, b"%016d" % number + pool[at : at + RANDOM_BYTES] + constant, partition=partition
                )
        producer.poll(0)
    if left := producer.flush(_FLUSH_S):
        raise RuntimeError(f"{left} records were not produced in {_FLUSH_S:g} s")


def _finished_segments(bootstrap_servers: str) -> dict[int, list[RemoteLogSegmentMetadata]]:
    """By the metadata topic, each partition's in order of offsets."""
    started: dict[bytes, RemoteLogSegmentMetadata] = {}
    finished: dict[int, list[RemoteLogSegmentMetadata]] = {}
    for value in _metadata_values(bootstrap_servers):
        record = decode(value)
        if isinstance(record, RemoteLogSegmentMetadata):
            started[record.segment_id.id] = record
        elif isinstance(record, RemoteLogSegmentMetadataUpdate):
            segment = started[record.segment_id.id]
            if record.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED:
                finished.setdefault(segment.topic_id_partition.partition, []).append(segment)
    return {partition: sorted(found, key=lambda each: each.start_offset) for partition, found in finished.items()}


def _metadata_values(bootstrap_servers: str) -> Iterator[bytes]:
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "benchmark", "enable.auto.commit": False})
    try:
        partitions = [TopicPartition("__remote_log_metadata", number, 0) for number in range(METADATA_PARTITIONS)]
        left = sum(consumer.get_watermark_offsets(each, timeout=_READ_S)[1] for each in partitions)
        consumer.assign(partitions)
        while left:
            messages = consumer.consume(left, _READ_S)
            if not messages:
                raise RuntimeError(f"{left} records of the metadata topic did not come in {_READ_S:g} s")
            for message in messages:
                value = message.value()
                if value is None or message.error():
                    raise RuntimeError(f"the metadata topic: {message.error()}")
                yield value
            left -= len(messages)
    finally:
        consumer.close()


def _publish(
    tier_dir: Path,
    store: ShapedStore,
    segments: Mapping[int, Sequence[RemoteLogSegmentMetadata]],
    chunk_bytes: int,
    name: str,
    keys: Mapping[str, str],
) -> Variant:
    """Write all segments once more, under a prefix of the variant's own, and look at what lies there then."""
    prefix = f"{name.replace(' + ', '-')}/"
    options = AivenWriterOptions(
        key_prefix=prefix,
        chunk_bytes=chunk_bytes,
        compression=keys["compression.enabled"] == "true",
        key_ring=KeyRing(keys) if "encryption.enabled" in keys else None,
    )
    bucket = S3Store(s3_settings({**store.tidegate_keys(), "storage.s3.endpoint.url": store.plain_url}))
    objects: dict[int, list[tuple[str, int]]] = {}
    for partition, found in segments.items():
        for metadata in found:
            # One at a time, since each is held whole.
            convert_tier(tier_dir, [metadata], bucket, options)
            key = object_key(prefix, main_path(metadata), ObjectSuffix.LOG)
            objects.setdefault(partition, []).append((key, bucket.head(key).size_bytes))
    bucket.close()
    return Variant(name, {"key.prefix": prefix, **keys}, objects)
