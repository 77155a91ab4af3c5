"""Segments of remote log metadata with short names: ids from words, epochs as given, everything else plausible."""

import hashlib
from collections.abc import Mapping

from storage.metadata.catalog import Catalog
from storage.metadata.reading import MetadataEvent
from storage.metadata.record_batches import build_batches
from storage.metadata.serde import MetadataRecord
from storage.model import (
    CustomMetadata,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
    TopicIdPartition,
    Uuid,
)

COPY_STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
COPY_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
DELETE_STARTED = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
DELETE_FINISHED = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED


def named_uuid(name: str) -> Uuid:
    return Uuid(hashlib.md5(name.encode(), usedforsecurity=False).digest())


def named_partition(topic: str = "orders", partition: int = 0) -> TopicIdPartition:
    return TopicIdPartition(named_uuid(topic), partition, topic)


PARTITION = named_partition()


def started(
    name: str,
    start_offset: int,
    end_offset: int,
    epochs: Mapping[int, int] | None = None,
    *,
    partition: TopicIdPartition = PARTITION,
    size_bytes: int = 1_000,
    txn_index_empty: bool = False,
    state: RemoteLogSegmentState = COPY_STARTED,
) -> RemoteLogSegmentMetadata:
    return RemoteLogSegmentMetadata(
        segment_id=RemoteLogSegmentId(partition, named_uuid(name)),
        start_offset=start_offset,
        end_offset=end_offset,
        max_timestamp_ms=1_700_000_000_000,
        broker_id=1,
        event_timestamp_ms=1_700_000_001_000,
        segment_size_bytes=size_bytes,
        segment_leader_epochs={0: start_offset} if epochs is None else epochs,
        state=state,
        txn_index_empty=txn_index_empty,
    )


def moved(
    metadata: RemoteLogSegmentMetadata, state: RemoteLogSegmentState, custom_metadata: bytes | None = None
) -> RemoteLogSegmentMetadataUpdate:
    return RemoteLogSegmentMetadataUpdate(
        segment_id=metadata.segment_id,
        event_timestamp_ms=1_700_000_002_000 + state,
        state=state,
        broker_id=2,
        custom_metadata=None if custom_metadata is None else CustomMetadata(custom_metadata),
    )


def apply_all(catalog: Catalog, *records: MetadataRecord) -> None:
    for record in records:
        catalog.apply(record, initialized=True)


def finish(catalog: Catalog, *segments: RemoteLogSegmentMetadata) -> None:
    """Each segment copied: its first record, then its completion."""
    for metadata in segments:
        apply_all(catalog, metadata, moved(metadata, COPY_FINISHED))


def name_of(found: RemoteLogSegmentMetadata | None, *segments: RemoteLogSegmentMetadata) -> int | None:
    """Which of these segments was found; None for no segment."""
    if found is None:
        return None
    return [metadata.segment_id for metadata in segments].index(found.segment_id)


def batch_of(value: bytes, timestamp_ms: int) -> bytes:
    """A batch of the metadata topic with one record, at offset 0."""
    [batch] = build_batches([MetadataEvent(-1, -1, timestamp_ms, None, value)])
    return batch


def forget(catalog: Catalog, topic_id: bytes, partition: int) -> None:
    """The partition's topic was deleted: nothing is known of it any more."""
    place = TopicIdPartition(Uuid(topic_id), partition, "gone")
    finished = RemotePartitionDeleteState.DELETE_PARTITION_FINISHED
    catalog.apply(RemotePartitionDeleteMetadata(place, finished, 1_700_000_003_000, 1), initialized=True)
