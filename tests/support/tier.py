"""A whole tier in memory for tests of what reads it: store, catalog, caches and reader; and the answer it must give.

    async with trio.open_nursery() as nursery:
        tier = open_tier(nursery, [filled_segment(0), filled_segment(200)], block_bytes=100)
        records = await tier.read(17, max_bytes=1000)
        assert b"".join(records.buffers) == expected_bytes(tier.logs, 17, max_bytes=1000)

`expected_bytes` is the oracle: it knows raw log bytes and spec/kafka-remote.md §3.4, nothing of the code under test.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import trio

from metrics.probes import CacheProbe
from metrics.registry import Registry
from storage.cache.block_cache import BlockCache
from storage.cache.index_cache import OffsetIndexCache
from storage.errors import RemoteResourceNotFoundError
from storage.leader_epoch_lineage import LeaderEpochLineage
from storage.metadata.catalog import Catalog
from storage.model import (
    IndexType,
    LogSegmentData,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    TopicIdPartition,
    Uuid,
)
from storage.reader import TierReader, TierRecords
from storage.remote_storage_manager import RemoteStorageManager
from tests.support.scripted_store import ScriptedStore
from tests.support.segments import SyntheticSegment, metadata_of, topic_partition

PARTITION = topic_partition()
GETS_MAX = 8


@dataclass(slots=True)
class MemoryStore:
    """A RemoteStorageManager over a dictionary: objects by segment id, then by the suffix of LocalTieredStorage."""

    objects: dict[Uuid, dict[str, bytes]] = field(default_factory=dict)

    def copy_log_segment_data(self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData) -> None:
        raise NotImplementedError("tests put objects there themselves")

    def fetch_log_segment(
        self, metadata: RemoteLogSegmentMetadata, start_position: int, end_position: int | None = None
    ) -> bytes:
        if start_position < 0 or (end_position is not None and end_position < start_position):
            raise ValueError(f"{start_position} to {end_position}")
        log = self._object(metadata, "log")
        return log[start_position : None if end_position is None else end_position + 1]

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> bytes:
        return self._object(metadata, index_type.value)

    def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        self.objects.pop(metadata.segment_id.id, None)

    def close(self) -> None:
        """Nothing is held."""

    def _object(self, metadata: RemoteLogSegmentMetadata, suffix: str) -> bytes:
        found = self.objects.get(metadata.segment_id.id, {}).get(suffix)
        if found is None:
            raise RemoteResourceNotFoundError(f"{metadata.segment_id} has no {suffix}")
        return found


@dataclass(slots=True)
class Tier:
    """A reader and all that is behind it. `logs` are (metadata, log bytes) by start offset."""

    reader: TierReader
    store: ScriptedStore
    cache: BlockCache
    indexes: OffsetIndexCache
    catalog: Catalog
    lineage: LeaderEpochLineage
    logs: Sequence[tuple[RemoteLogSegmentMetadata, bytes]]
    metrics: Registry

    async def read(self, offset: int, *, max_bytes: int = 1024 * 1024, minimum_one_batch: bool = True) -> TierRecords:
        """Read the tier's only partition under its lineage."""
        return await self.reader.read(
            PARTITION, offset, max_bytes=max_bytes, minimum_one_batch=minimum_one_batch, lineage=self.lineage
        )

    async def read_bytes(self, offset: int, *, max_bytes: int = 1024 * 1024, minimum_one_batch: bool = True) -> bytes:
        """The same, joined; its size is checked."""
        records = await self.read(offset, max_bytes=max_bytes, minimum_one_batch=minimum_one_batch)
        joined = b"".join(records.buffers)
        assert len(joined) == records.size_bytes
        return joined

    def sample(self, name: str, labels: Mapping[str, str] | None = None) -> float:
        """A metric's value; 0 when it was never fed."""
        for family in self.metrics.collect():
            for sample in family.samples:
                if sample.name == name and sample.labels == dict(labels or {}):
                    return sample.value
        return 0.0


def open_tier(
    nursery: trio.Nursery,
    segments: Sequence[SyntheticSegment],
    *,
    block_bytes: int = 4096,
    memory_bytes_max: int = 64 * 1024 * 1024,
    partition: TopicIdPartition = PARTITION,
) -> Tier:
    """Segments as the FINISHED segments of one partition, on one lineage."""
    store = MemoryStore()
    metadatas = []
    for segment in segments:
        metadata = metadata_of(partition, segment)
        store.objects[metadata.segment_id.id] = segment.objects()
        metadatas.append(metadata)
    logs = [(metadata, segment.log) for metadata, segment in zip(metadatas, segments, strict=True)]
    return open_reader(nursery, store, logs, block_bytes=block_bytes, memory_bytes_max=memory_bytes_max)


def open_reader(
    nursery: trio.Nursery,
    store: RemoteStorageManager,
    logs: Sequence[tuple[RemoteLogSegmentMetadata, bytes]],
    *,
    block_bytes: int = 4096,
    memory_bytes_max: int = 64 * 1024 * 1024,
) -> Tier:
    """A reader over any store whose segments have this metadata."""
    metrics = Registry()
    scripted, probe = ScriptedStore(store), CacheProbe(metrics)
    limiter = trio.CapacityLimiter(GETS_MAX)
    cache = BlockCache(
        scripted,
        nursery=nursery,
        limiter=limiter,
        memory_bytes_max=memory_bytes_max,
        block_bytes=block_bytes,
        probe=probe,
    )
    indexes = OffsetIndexCache(scripted, nursery=nursery, limiter=limiter, probe=probe)
    metadatas = [metadata for metadata, _ in logs]
    catalog = catalog_of(metadatas)
    reader = TierReader(catalog, indexes, cache)
    return Tier(reader, scripted, cache, indexes, catalog, lineage_of(metadatas), logs, metrics)


def catalog_of(metadatas: Sequence[RemoteLogSegmentMetadata]) -> Catalog:
    """A catalog in which these are FINISHED."""
    catalog = Catalog()
    for metadata in metadatas:
        started = replace(metadata, state=RemoteLogSegmentState.COPY_SEGMENT_STARTED)
        catalog.apply(started, initialized=True)
        catalog.apply(
            RemoteLogSegmentMetadataUpdate(
                metadata.segment_id, metadata.event_timestamp_ms, RemoteLogSegmentState.COPY_SEGMENT_FINISHED, 1
            ),
            initialized=True,
        )
    return catalog


def lineage_of(metadatas: Sequence[RemoteLogSegmentMetadata]) -> LeaderEpochLineage:
    """The lineage on which all of these lie; the newest epoch is the leader's."""
    starts: dict[int, int] = {}
    for metadata in metadatas:
        for epoch, start in metadata.segment_leader_epochs.items():
            starts[epoch] = min(start, starts.get(epoch, start))
    epochs = sorted(starts)
    ends = [*(starts[epoch] for epoch in epochs[1:]), 2**62]
    return LeaderEpochLineage(epochs[-1], {epoch: (epoch, end) for epoch, end in zip(epochs, ends, strict=True)})


def expected_bytes(
    logs: Sequence[tuple[RemoteLogSegmentMetadata, bytes]],
    offset: int,
    *,
    max_bytes: int,
    minimum_one_batch: bool = True,
) -> bytes | None:
    """What a read must give (spec/kafka-remote.md §3.4 items 4 to 8), or None where the tier has nothing."""
    for metadata, log in logs:
        if not metadata.start_offset <= offset <= metadata.end_offset:
            continue
        for position, size, last_offset in _batches(log):
            if last_offset < offset:
                continue
            if size > max_bytes:
                return log[position : position + size] if minimum_one_batch else b""
            return log[position : position + max_bytes]
        offset = metadata.end_offset + 1
    return None


def _batches(log: bytes) -> Iterator[tuple[int, int, int]]:
    position = 0
    while position < len(log):
        base_offset, length = struct.unpack_from(">qi", log, position)
        (last_offset_delta,) = struct.unpack_from(">i", log, position + 23)
        yield position, 12 + length, base_offset + last_offset_delta
        position += 12 + length
