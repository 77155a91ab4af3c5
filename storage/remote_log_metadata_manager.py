"""KIP-405's RemoteLogMetadataManager: which segments there are. Synchronous and thread-safe, as Kafka's SPI is.

Strongly consistent for its caller: what add or update returned from is visible to the next lookup.
While `is_ready` is False for a partition, every other method on that partition raises MetadataNotReadyError.
"""

from collections.abc import Iterable, Iterator
from typing import Protocol

from storage.model import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
    TopicIdPartition,
)


class RemoteLogMetadataManager(Protocol):
    """Rules: docs/kafka-tier.md#states (states, overlap, queries)."""

    def add_remote_log_segment_metadata(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Record a new segment; its state must be COPY_SEGMENT_STARTED (else IllegalMetadataError)."""
        ...

    def update_remote_log_segment_metadata(self, update: RemoteLogSegmentMetadataUpdate) -> None:
        """Record a change of state. An unknown segment raises RemoteResourceNotFoundError; an illegal
        transition is logged and dropped, as Kafka does."""
        ...

    def remote_log_segment_metadata(
        self, partition: TopicIdPartition, epoch_for_offset: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        """The FINISHED segment that holds offset in that leader epoch, or None."""
        ...

    def highest_offset_for_epoch(self, partition: TopicIdPartition, leader_epoch: int) -> int | None:
        """The highest offset ever FINISHED in that epoch, or None; deletion does not lower it."""
        ...

    def list_remote_log_segments(
        self, partition: TopicIdPartition, leader_epoch: int | None = None
    ) -> Iterator[RemoteLogSegmentMetadata]:
        """Return one epoch's non-terminal segments by start offset; without an epoch all, in no order."""
        ...

    def put_remote_partition_delete_metadata(self, metadata: RemotePartitionDeleteMetadata) -> None:
        """Record a partition's deletion; DELETE_PARTITION_FINISHED forgets the partition."""
        ...

    def next_segment_with_txn_index(
        self, partition: TopicIdPartition, epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        """From the segment that holds offset onwards in that epoch, the first whose txn index may have entries."""
        ...

    def remote_log_size(self, partition: TopicIdPartition, leader_epoch: int) -> int:
        """Bytes of all listed segments of that epoch (KIP-852)."""
        ...

    def on_partition_leadership_changes(
        self, leader_partitions: Iterable[TopicIdPartition], follower_partitions: Iterable[TopicIdPartition]
    ) -> None:
        """Start to follow these partitions' metadata."""
        ...

    def on_stop_partitions(self, partitions: Iterable[TopicIdPartition]) -> None:
        """Stop to follow them."""
        ...

    def is_ready(self, partition: TopicIdPartition) -> bool:
        """Return whether lookups for this partition can be answered. Never raises; False after close."""
        ...

    def close(self) -> None:
        """Release what the manager holds; every later call but `is_ready` and `close` raises MetadataNotReadyError."""
        ...
