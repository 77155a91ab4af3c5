"""A RemoteLogMetadataManager that keeps everything in this process: for tests, imports and trying things out.

A partition is ready as soon as it was named to `on_partition_leadership_changes`, or all are after `follow_all`. What
was recorded outlives `on_stop_partitions`, since there is no log to read it from again.
"""

from collections.abc import Iterable

from storage.metadata.base_manager import CatalogMetadataManager, encode_for_caller
from storage.metadata.catalog import Catalog
from storage.metadata.serde import MetadataRecord
from storage.model import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
    TopicIdPartition,
)


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
