"""A whole tier in memory for tests of what reads it: store, catalog, caches and reader; and the answer it must give.

    async with trio.open_nursery() as nursery:
        tier = open_tier(nursery, [filled_segment(0), filled_segment(200)], block_bytes=100)
        records = await tier.read(17, max_bytes=1000)
        assert b"".join(records.buffers) == expected_bytes(tier.logs, 17, max_bytes=1000)

`expected_bytes` is the oracle: it knows raw log bytes and docs/kafka-tier.md#the-read, nothing of the code under test.
"""

import struct
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import trio

from metrics.meters import Meters
from metrics.registry import Registry
from storage.cache.block_cache import BlockCache
from storage.cache.blocks import SegmentBlocks
from storage.cache.disk import DiskBlocks
from storage.cache.segment_parts import OffsetIndexes, OpenedSegments
from storage.errors import RemoteResourceNotFoundError
from storage.metadata.catalog import Catalog
from storage.metadata.epoch_history import LeaderEpochLineage
from storage.model import (
    IndexType,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    TopicIdPartition,
    Uuid,
)
from storage.reading.reader import TierReader, TierRecords
from storage.remote_storage_manager import RemoteStorageManager
from storage.steps import finish
from storage.wall_clock import wall_clock_ms
from tests.support.opened_bytes import OpenedBytes, ReadOnlyManager
from tests.support.samples import sum_of
from tests.support.scripted_store import ScriptedStore
from tests.support.segments import SyntheticSegment, metadata_of, topic_partition
from tidegate.tier_storage import TierStorage, TierStorageSettings, open_tier_storage

PARTITION = topic_partition()
GETS_MAX = 8
INFLIGHT_BYTES_MAX = 64 * 1024 * 1024
QUIET_TURNS = 20


class MemoryStore(ReadOnlyManager):
    """A RemoteStorageManager over a dictionary: objects by segment id, then by the suffix of LocalTieredStorage.

    With `chunk_bytes` above 1 it behaves as a format with a manifest: GETs are of whole chunks, and opening a segment
    without a log fails.
    """

    def __init__(self, objects: dict[Uuid, dict[str, bytes]] | None = None, chunk_bytes: int = 1) -> None:
        super().__init__("memory-store")
        self.objects = {} if objects is None else objects
        self.chunk_bytes = chunk_bytes
        self.has_manifests = chunk_bytes > 1

    def open_log_segment(self, metadata: RemoteLogSegmentMetadata) -> OpenedBytes:
        if self.chunk_bytes > 1:
            self._object(metadata, "log")
        return OpenedBytes(
            metadata,
            lambda: self._object(metadata, "log"),
            lambda index_type: self.fetch_index(metadata, index_type),
            chunk_bytes=self.chunk_bytes,
        )

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

    def _object(self, metadata: RemoteLogSegmentMetadata, suffix: str) -> bytes:
        found = self.objects.get(metadata.segment_id.id, {}).get(suffix)
        if found is None:
            raise RemoteResourceNotFoundError(f"{metadata.segment_id} has no {suffix}")
        return found


@dataclass(slots=True)
class Tier:
    """A reader and all that is behind it. `logs` are (metadata, log bytes) by start offset."""

    storage: TierStorage
    store: ScriptedStore
    catalog: Catalog
    lineage: LeaderEpochLineage
    logs: Sequence[tuple[RemoteLogSegmentMetadata, bytes]]
    metrics: Registry
    limiter: trio.CapacityLimiter

    @property
    def reader(self) -> TierReader:
        return self.storage.reader

    @property
    def cache(self) -> BlockCache:
        return self.storage.blocks

    @property
    def segments(self) -> OpenedSegments:
        return self.storage.parts.opened

    @property
    def indexes(self) -> OffsetIndexes:
        return self.storage.parts.offset_indexes

    @property
    def resident_bytes(self) -> int:
        """Bytes of blocks in memory, read ones and unread ones."""
        return int(self.sample("tidegate_cache_resident_bytes", {"level": "memory"}))

    @property
    def inflight_bytes(self) -> int:
        """Bytes of GETs under way and of answers that are not released."""
        return int(self.sample("tidegate_inflight_bytes"))

    @property
    def misses(self) -> int:
        """Blocks that a read did not find in memory."""
        return int(self.sample("tidegate_cache_misses_total", {"level": "memory"}))

    async def read(
        self, offset: int, *, max_bytes: int = 1024 * 1024, minimum_one_batch: bool = True, reader: Hashable = None
    ) -> TierRecords:
        """Read the tier's only partition under its lineage. The answer is to be released."""
        return await finish(
            self.reader.read(
                PARTITION,
                offset,
                max_bytes=max_bytes,
                minimum_one_batch=minimum_one_batch,
                lineage=self.lineage,
                reader=reader,
            )
        )

    async def read_bytes(self, offset: int, **named: Any) -> bytes:
        """The same, joined, and released; its size is checked."""
        records = await self.read(offset, **named)
        joined = b"".join(records.buffers)
        assert len(joined) == records.size_bytes
        records.release()
        return joined

    def source(self, number: int = 0) -> SegmentBlocks:
        """A segment as the block cache sees it, opened again."""
        metadata = self.logs[number][0]
        return self.cache.blocks_of(metadata, self.store.open_log_segment(metadata))

    def delete(self, number: int) -> None:
        """Begin to delete a segment, and tell caches; its objects stay."""
        metadata = self.logs[number][0]
        started = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
        self.catalog.apply(
            RemoteLogSegmentMetadataUpdate(metadata.segment_id, metadata.event_timestamp_ms, started, 1),
            initialized=True,
        )
        self.storage.drop_segment(metadata.segment_id.id)

    async def settled(self) -> None:
        """Return when no GET is under way and none is to come by itself; no virtual time passes meanwhile."""
        quiet = 0
        # A manifest or an index read ahead is in a thread that no gauge shows; it takes a few turns to ask for more.
        while quiet < QUIET_TURNS:
            await trio.lowlevel.checkpoint()
            is_busy = len(self.storage.gets) or self.limiter.borrowed_tokens
            quiet = 0 if is_busy else quiet + 1

    def sample(self, name: str, labels: Mapping[str, str] | None = None) -> float:
        """A metric's value, summed over the labels that are not given; 0 when it was never fed."""
        return sum_of(self.metrics, name, labels or {})


def open_tier(
    nursery: trio.Nursery,
    segments: Sequence[SyntheticSegment],
    *,
    chunk_bytes: int = 1,
    partition: TopicIdPartition = PARTITION,
    **settings: Any,
) -> Tier:
    """Segments as the FINISHED segments of one partition, on one lineage. `settings`: of `open_reader`."""
    store = MemoryStore(chunk_bytes=chunk_bytes)
    metadatas = []
    for segment in segments:
        metadata = metadata_of(partition, segment)
        store.objects[metadata.segment_id.id] = segment.objects()
        metadatas.append(metadata)
    logs = [(metadata, segment.log) for metadata, segment in zip(metadatas, segments, strict=True)]
    return open_reader(nursery, store, logs, **settings)


def open_reader(
    nursery: trio.Nursery,
    store: RemoteStorageManager,
    logs: Sequence[tuple[RemoteLogSegmentMetadata, bytes]],
    *,
    block_bytes: int = 4096,
    memory_bytes_max: int = 64 * 1024 * 1024,
    readahead_bytes_max: int = 0,
    readahead_total_bytes_max: int | None = None,
    inflight_bytes_max: int = INFLIGHT_BYTES_MAX,
    indexes_bytes_max: int = INFLIGHT_BYTES_MAX,
    retention_s: float | None = None,
    disk_blocks: DiskBlocks | None = None,
    now_ms: Callable[[], int] = wall_clock_ms,
) -> Tier:
    """A reader over any store whose segments have this metadata; without read-ahead unless it is asked for.

    `TierStorage.run` is not running: nothing expires and nothing goes to disk unless a test starts it.
    """
    meters, scripted = Meters(Registry()), ScriptedStore(store)
    metadatas = [metadata for metadata, _ in logs]
    catalog = catalog_of(metadatas)
    storage = open_tier_storage(
        TierStorageSettings(
            block_bytes=block_bytes,
            memory_bytes_max=memory_bytes_max,
            readahead_stream_bytes_max=readahead_bytes_max,
            readahead_total_bytes_max=readahead_total_bytes_max or readahead_bytes_max,
            inflight_bytes_max=inflight_bytes_max,
            indexes_bytes_max=indexes_bytes_max,
            gets_max=GETS_MAX,
            retention_s=retention_s,
        ),
        scripted,
        catalog,
        nursery=nursery,
        meters=meters,
        disk_blocks=disk_blocks,
        now_ms=now_ms,
    )
    return Tier(storage, scripted, catalog, lineage_of(metadatas), logs, meters.registry, storage.limiter)


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
    """Return what a read must give (docs/kafka-tier.md#the-read), or None where the tier has nothing."""
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
