"""What the differential test knows of its partitions when they have settled: every border, batch and epoch.

Read from the broker's own files and from its answers, never by way of Tidegate.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import AdminClient

from protocol.record_batches import HEADER_BYTES, read_header
from tests.support.raw_client import RawClient, address_of
from tools.demo.kafka_cluster import KafkaCluster, KafkaClusterError, PartitionOffsets

SETTLED_TIMEOUT_S = 120.0
QUIET_S = 3.0
"""Several rounds of the copier and of both retentions."""

QUIET_ANYHOW_S = 10.0
"""A broker may leave a small segment where it is: then nothing moving for this long will do."""

POLL_S = 0.3
_OFFSETS_VERSION = 9


@dataclass(frozen=True, slots=True)
class KnownBatch:
    """One batch in the tier or in the local log. Timestamps are the header's."""

    base_offset: int
    last_offset: int
    size_bytes: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    leader_epoch: int
    is_control: bool


@dataclass(frozen=True, slots=True)
class KnownPartition:
    """A partition that questions are asked about, and the offsets at which something changes.

    `epochs` are (leader epoch, its first offset) as the leader remembers them.
    """

    topic: str
    topic_id: bytes
    partition: int
    offsets: PartitionOffsets
    last_stable_offset: int
    leader_epoch: int
    epochs: tuple[tuple[int, int], ...]
    segments: tuple[int, ...]
    batches: tuple[KnownBatch, ...]

    @property
    def borders(self) -> tuple[int, ...]:
        ends = (
            self.offsets.log_start_offset,
            self.offsets.local_log_start_offset,
            self.last_stable_offset,
            self.offsets.high_watermark,
        )
        return tuple(sorted({*self.segments, *ends, *(start for _, start in self.epochs)}))

    def epoch_of(self, offset: int) -> int:
        """The epoch that wrote `offset`; -1 below the first."""
        return max((epoch for epoch, start in self.epochs if start <= offset), default=-1)


Partitions = dict[tuple[str, int], tuple[PartitionOffsets, int]]
"""Offsets and last stable offset by topic and partition."""


def local_logs(cluster: KafkaCluster, topic: str, partition: int = 0) -> list[Path]:
    return sorted((cluster.broker(1).data_dir / f"{topic}-{partition}").glob("*.log"))


def tiered_logs(cluster: KafkaCluster, topic: str, partition: int = 0) -> list[Path]:
    return sorted((cluster.tier_dir / "kafka-tiered-storage").glob(f"{topic}-{partition}-*/*.log"))


def segment_starts(cluster: KafkaCluster, topic: str, partition: int = 0) -> list[int]:
    """First offsets of all segments, wherever they are."""
    logs = (*tiered_logs(cluster, topic, partition), *local_logs(cluster, topic, partition))
    return sorted({int(log.name[:20]) for log in logs})


def wait_all_settled(cluster: KafkaCluster, topics: Mapping[str, Mapping[str, str]]) -> None:
    """Block until nothing moves: all that may be copied is in the tier, all that retention takes has gone.

    Args:
        topics: their settings by name.

    Raises:
        KafkaClusterError: not in time; with what was still waited for.
    """
    counts = _partition_counts(cluster, topics)
    last_seen: object = None
    unchanged_since_s = started_s = time.monotonic()
    while True:
        partitions = partition_offsets(cluster, counts)
        files = {key: _files(cluster, *key) for key in partitions}
        if (partitions, files) != last_seen:
            last_seen, unchanged_since_s = (partitions, files), time.monotonic()
        waited_for = [
            key
            for key, (offsets, stable) in partitions.items()
            if not _has_settled(files[key][0], offsets, stable, topics[key[0]])
        ]
        quiet_s = time.monotonic() - unchanged_since_s
        if quiet_s > (QUIET_ANYHOW_S if waited_for else QUIET_S):
            return
        if time.monotonic() - started_s > SETTLED_TIMEOUT_S:
            raise KafkaClusterError(f"not settled after {SETTLED_TIMEOUT_S:g} s: {waited_for or partitions}")
        time.sleep(POLL_S)


def partition_offsets(cluster: KafkaCluster, counts: Mapping[str, int]) -> Partitions:
    """The frontiers of all partitions in a handful of questions."""
    asked = [(topic, partition) for topic, count in counts.items() for partition in range(count)]
    kinds = ((-2, 0), (-4, 0), (-5, 0), (-1, 0), (-1, 1))
    with RawClient(*address_of(cluster.bootstrap_servers)) as client:
        columns = [_listed(client, asked, timestamp, isolation) for timestamp, isolation in kinds]
    return {
        key: (PartitionOffsets(*(column[key] for column in columns[:4])), columns[4][key])
        for key in asked
        if all(key in column for column in columns)
    }


def look_up(cluster: KafkaCluster, topics: Sequence[str]) -> Iterator[KnownPartition]:
    """All partitions of settled topics."""
    with RawClient(*address_of(cluster.bootstrap_servers)) as client:
        described = {str(topic.name): topic for topic in client.metadata(list(topics)).topics}
    counts = {topic: len(described[topic].partitions) for topic in topics}
    for (topic, partition), (offsets, stable) in partition_offsets(cluster, counts).items():
        known = next(each for each in described[topic].partitions if each.partition_index == partition)
        yield KnownPartition(
            topic,
            described[topic].topic_id.bytes,
            partition,
            offsets,
            stable,
            int(known.leader_epoch),
            _leader_epochs(cluster, topic, partition),
            tuple(segment_starts(cluster, topic, partition)),
            _batches(cluster, topic, partition),
        )


def _partition_counts(cluster: KafkaCluster, topics: Mapping[str, object]) -> dict[str, int]:
    known = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0}).list_topics(timeout=20).topics
    return {topic: len(known[topic].partitions) for topic in topics}


def _listed(
    client: RawClient, asked: Sequence[tuple[str, int]], timestamp: int, isolation: int
) -> dict[tuple[str, int], int]:
    targets = [(topic, partition, timestamp) for topic, partition in asked]
    answers = client.list_offsets(_OFFSETS_VERSION, targets, isolation=isolation)
    return {(each.topic, each.partition): each.offset for each in answers if each.error_code == 0}


def _files(cluster: KafkaCluster, topic: str, partition: int) -> tuple[list[tuple[int, int]], list[str]]:
    """Local segments as (first offset, bytes), and the tier's names."""
    local = []
    for log in local_logs(cluster, topic, partition):
        try:
            local.append((int(log.stem), log.stat().st_size))
        except FileNotFoundError:
            continue  # deleted meanwhile: the next look finds it changed
    return local, [log.name for log in tiered_logs(cluster, topic, partition)]


def _has_settled(
    local: Sequence[tuple[int, int]], offsets: PartitionOffsets, stable: int, configs: Mapping[str, str]
) -> bool:
    """Return whether neither the copier nor local retention has anything left to do."""
    if configs.get("remote.storage.enable") != "true" or not local:
        return True
    starts = [start for start, _ in local]
    copied_to = max((start for start in starts if start <= stable), default=starts[0])
    if offsets.latest_tiered_offset + 1 < copied_to:
        return False
    surplus_bytes = sum(size for _, size in local) - int(configs["local.retention.bytes"])
    may_go = len(local) > 1 and starts[1] - 1 <= offsets.latest_tiered_offset and surplus_bytes >= local[0][1]
    return not may_go and offsets.local_log_start_offset >= starts[0]


def _leader_epochs(cluster: KafkaCluster, topic: str, partition: int) -> tuple[tuple[int, int], ...]:
    path = cluster.broker(1).data_dir / f"{topic}-{partition}" / "leader-epoch-checkpoint"
    lines = path.read_text().splitlines()[2:]
    return tuple((int(epoch), int(start)) for epoch, start in map(str.split, lines))


def _batches(cluster: KafkaCluster, topic: str, partition: int) -> tuple[KnownBatch, ...]:
    found: dict[int, KnownBatch] = {}
    for log in (*tiered_logs(cluster, topic, partition), *local_logs(cluster, topic, partition)):
        try:
            data, position = log.read_bytes(), 0
        except FileNotFoundError:
            continue  # deleted meanwhile: all of it lay below the log start
        while position + HEADER_BYTES <= len(data):
            header = read_header(data, position)
            found[header.base_offset] = KnownBatch(
                header.base_offset,
                header.last_offset,
                header.size_bytes,
                header.base_timestamp,
                header.max_timestamp,
                header.partition_leader_epoch,
                header.is_control,
            )
            position += header.size_bytes
    return tuple(found[base] for base in sorted(found))
