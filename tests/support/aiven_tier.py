"""The tier of topics on the shared broker once more, as Aiven's plug-in would have written it to a store.

    tier = publish_tier(kafka, s3, ["orders"], folder, compression=True, encryption=True)
    with own_tidegate(kafka, tier.properties()) as tidegate:
        ...

The broker goes on with its LocalTieredStorage and knows of nothing else. Tidegate's own file names another storage
manager, which wins over the broker's, and finds under the same segment ids the objects that were rewritten.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from storage.metadata import serde
from storage.metadata.catalog import Catalog
from storage.model import RemoteLogSegmentId, RemoteLogSegmentMetadata, RemoteLogSegmentState
from storage.object_store.registry import open_object_store
from tests.support.aiven_writer import AivenWriterOptions, convert_tier, make_key_pair
from tools.demo.kafka_cluster import KafkaCluster
from tools.demo.kafka_properties import METADATA_PARTITIONS

STORAGE_MANAGER_CLASS = "io.aiven.kafka.tieredstorage.RemoteStorageManager"
PREFIX = "rsm.config."
KEY_PREFIX = "tier-one/"
CHUNK_BYTES = 64 * 1024
METADATA_TOPIC = "__remote_log_metadata"
READ_TIMEOUT_S = 30.0


class StoreServer(Protocol):
    """A server of objects, of whatever kind."""

    @property
    def endpoint_url(self) -> str: ...

    def make_bucket(self) -> str:
        """Make a bucket under a name that nobody has."""
        ...

    def config(self, bucket: str) -> dict[str, str]:
        """A storage manager's keys, the broker's prefix stripped."""
        ...

    def at(self, endpoint_url: str) -> "StoreServer":
        """The same server, reached another way."""
        ...


@dataclass(frozen=True, slots=True)
class AivenTier:
    """What was published: `segments` in order of partition and offset; `keys` are the plug-in's own."""

    server: StoreServer
    bucket: str
    segments: Sequence[RemoteLogSegmentMetadata]
    keys: Mapping[str, str]

    def properties(self, *, endpoint_url: str | None = None, **changes: str | None) -> dict[str, str]:
        """Return what stands in Tidegate's own file.

        Args:
            endpoint_url: another way to the server.
            changes: more of the plug-in's keys, with _ for the dot; None takes a key away.
        """
        server = self.server if endpoint_url is None else self.server.at(endpoint_url)
        keys: dict[str, str | None] = {**server.config(self.bucket), **self.keys}
        keys |= {name.replace("_", "."): value for name, value in changes.items()}
        prefixed = {f"{PREFIX}{name}": value for name, value in keys.items() if value is not None}
        return {"remote.log.storage.manager.class.name": STORAGE_MANAGER_CLASS, **prefixed}


def publish_tier(
    kafka: KafkaCluster, server: StoreServer, topics: Collection[str], folder: Path, **written: Any
) -> AivenTier:
    """Write all finished segments of these topics into a new bucket; key files go to `folder`.

    Args:
        written: as of `publish_segments`.
    """
    segments = [each for each in finished_segments(kafka) if each.topic_id_partition.topic in topics]
    segments.sort(
        key=lambda each: (each.topic_id_partition.topic, each.topic_id_partition.partition, each.start_offset)
    )
    return publish_segments(kafka, server, segments, folder, **written)


def publish_segments(
    kafka: KafkaCluster,
    server: StoreServer,
    segments: Sequence[RemoteLogSegmentMetadata],
    folder: Path,
    *,
    compression: bool = False,
    encryption: bool = False,
    chunk_bytes: int = CHUNK_BYTES,
) -> AivenTier:
    """The same for these very segments."""
    pair = make_key_pair(folder, "key1") if encryption else {}
    options = AivenWriterOptions(
        key_prefix=KEY_PREFIX, chunk_bytes=chunk_bytes, compression=compression, key_pair=pair or None
    )
    bucket = server.make_bucket()
    with closing(open_object_store(server.config(bucket))) as store:
        convert_tier(kafka.tier_dir, segments, store, options)
    written_keys = {"compression.enabled": str(compression).lower(), "chunk.size": str(chunk_bytes)}
    return AivenTier(server, bucket, segments, {"key.prefix": KEY_PREFIX, **written_keys, **pair})


def finished_segments(kafka: KafkaCluster) -> list[RemoteLogSegmentMetadata]:
    """All finished segments as the catalog has them; one metadata partition after the other, and in each in the order
    in which they were announced."""
    catalog = Catalog()
    announced: list[RemoteLogSegmentId] = []
    for value in _metadata_values(kafka):
        record = serde.decode(value)
        catalog.apply(record, initialized=False)
        if isinstance(record, RemoteLogSegmentMetadata):
            announced.append(record.segment_id)
    found = map(catalog.find_segment, announced)
    finished = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
    return [segment for segment in found if segment is not None and segment.state is finished]


def _metadata_values(kafka: KafkaCluster) -> list[bytes]:
    """Return the values of the metadata topic's records, by partition and offset."""
    consumer = Consumer(
        {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "not-used", "enable.auto.commit": False}
    )
    try:
        partitions = [TopicPartition(METADATA_TOPIC, number, OFFSET_BEGINNING) for number in range(METADATA_PARTITIONS)]
        left = 0
        for partition in partitions:
            start, end = consumer.get_watermark_offsets(partition, timeout=READ_TIMEOUT_S)
            left += end - start
        consumer.assign(partitions)
        found = []
        while left > 0:
            messages = consumer.consume(left, READ_TIMEOUT_S)
            assert messages, f"{left} records of {METADATA_TOPIC} did not come in {READ_TIMEOUT_S:g} s"
            for message in messages:
                assert message.error() is None, str(message.error())
                found.append((message.partition() or 0, message.offset() or 0, message.value()))
            left -= len(messages)
    finally:
        consumer.close()
    return [value for _, _, value in sorted(found) if isinstance(value, bytes)]
