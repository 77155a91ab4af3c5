"""A RemoteLogMetadataManager that keeps everything in this process: for tests, imports and trying things out.

A partition is ready as soon as it was named to `on_partition_leadership_changes`, or all are after `follow_all`. What
was recorded outlives `on_stop_partitions`, since there is no log to read it from again.
"""

import abc
from collections.abc import Iterable, Iterator

from storage.errors import MetadataNotReadyError
from storage.metadata.catalog import Catalog
from storage.metadata.encoding import encode_for_caller
from storage.metadata.serde import MetadataRecord
from storage.model import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
    TopicIdPartition,
)

# What the metadata managers have in common: queries from a catalog, and none of them before the partition is ready.


class CatalogMetadataManager(abc.ABC):
    """The query half of RemoteLogMetadataManager. Subclasses record changes and say which partitions are loaded."""

    def __init__(self, catalog: Catalog | None) -> None:
        self._catalog = Catalog() if catalog is None else catalog
        self._closed = False

    @property
    def catalog(self) -> Catalog:
        """The segments known so far, without regard to readiness."""
        return self._catalog

    def remote_log_segment_metadata(
        self, partition: TopicIdPartition, epoch_for_offset: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        self._require_ready(partition)
        return self._catalog.lookup(partition.topic_id, partition.partition, epoch_for_offset, offset)

    def highest_offset_for_epoch(self, partition: TopicIdPartition, leader_epoch: int) -> int | None:
        self._require_ready(partition)
        return self._catalog.highest_offset_for_epoch(partition.topic_id, partition.partition, leader_epoch)

    def list_remote_log_segments(
        self, partition: TopicIdPartition, leader_epoch: int | None = None
    ) -> Iterator[RemoteLogSegmentMetadata]:
        self._require_ready(partition)
        return iter(self._catalog.list_segments(partition.topic_id, partition.partition, leader_epoch))

    def next_segment_with_txn_index(
        self, partition: TopicIdPartition, epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        self._require_ready(partition)
        return self._catalog.next_segment_with_txn_index(partition.topic_id, partition.partition, epoch, offset)

    def remote_log_size(self, partition: TopicIdPartition, leader_epoch: int) -> int:
        self._require_ready(partition)
        return self._catalog.log_size(partition.topic_id, partition.partition, leader_epoch)

    def is_ready(self, partition: TopicIdPartition) -> bool:
        return (
            not self._closed
            and self._is_loaded(partition)
            and not self._catalog.is_refused(partition.topic_id, partition.partition)
        )

    @abc.abstractmethod
    def _is_loaded(self, partition: TopicIdPartition) -> bool:
        """Return whether the catalog holds all there is to know of the partition."""

    def _require_open(self) -> None:
        if self._closed:
            raise MetadataNotReadyError("the metadata manager is closed")

    def _require_ready(self, partition: TopicIdPartition) -> None:
        self._require_open()
        if not self.is_ready(partition):
            raise MetadataNotReadyError(f"{partition}: the metadata is not loaded")


class InMemoryRemoteLogMetadataManager(CatalogMetadataManager):
    """Implements storage.remote_log_metadata_manager.RemoteLogMetadataManager."""

    def __init__(self, catalog: Catalog | None = None) -> None:
        super().__init__(catalog)
        self._assigned: frozenset[TopicIdPartition] = frozenset()
        self._follows_all = False

    def add_remote_log_segment_metadata(self, metadata: RemoteLogSegmentMetadata) -> None:
        self._record(metadata.topic_id_partition, metadata)

    def update_remote_log_segment_metadata(self, update: RemoteLogSegmentMetadataUpdate) -> None:
        self._record(update.segment_id.topic_id_partition, update)

    def put_remote_partition_delete_metadata(self, metadata: RemotePartitionDeleteMetadata) -> None:
        self._record(metadata.topic_id_partition, metadata)

    def follow_all(self) -> None:
        """Be ready for every partition."""
        self._require_open()
        self._follows_all = True

    def on_partition_leadership_changes(
        self, leader_partitions: Iterable[TopicIdPartition], follower_partitions: Iterable[TopicIdPartition]
    ) -> None:
        self._require_open()
        self._assigned = self._assigned.union(leader_partitions, follower_partitions)

    def on_stop_partitions(self, partitions: Iterable[TopicIdPartition]) -> None:
        self._require_open()
        self._assigned = self._assigned.difference(partitions)

    def close(self) -> None:
        self._closed = True

    def _is_loaded(self, partition: TopicIdPartition) -> bool:
        return self._follows_all or partition in self._assigned

    def _record(self, partition: TopicIdPartition, record: MetadataRecord) -> None:
        self._require_ready(partition)
        encode_for_caller(record)  # refuses here what the topic could not hold either
        self._catalog.apply(record, initialized=True)
