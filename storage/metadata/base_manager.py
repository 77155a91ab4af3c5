"""What the metadata managers have in common: queries from a catalog, and none of them before the partition is ready."""

import abc
from collections.abc import Iterator

from storage.errors import IllegalMetadataError, MetadataNotReadyError, MetadataRecordError
from storage.metadata.catalog import Catalog
from storage.metadata.serde import MetadataRecord, encode
from storage.model import RemoteLogSegmentMetadata, TopicIdPartition


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
        """Whether the catalog holds all there is to know of the partition."""

    def _require_open(self) -> None:
        if self._closed:
            raise MetadataNotReadyError("the metadata manager is closed")

    def _require_ready(self, partition: TopicIdPartition) -> None:
        self._require_open()
        if not self.is_ready(partition):
            raise MetadataNotReadyError(f"{partition}: the metadata is not loaded")


def encode_for_caller(record: MetadataRecord) -> bytes:
    """The record's wire form. What cannot be written is the caller's fault: IllegalMetadataError."""
    try:
        return encode(record)
    except MetadataRecordError as error:
        raise IllegalMetadataError(str(error)) from error
