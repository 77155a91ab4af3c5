"""Waiting for the catalog to reach the end of the metadata topic, and telling readiness how far it is.

The manager is synchronous and thread-safe; this is its trio side. `catch_up` is what a read does that found no
segment: it asks where the metadata partition ends now and waits until everything before that is applied.
"""

from collections.abc import Awaitable, Callable, Mapping

import trio

from storage.metadata.manager import TopicBasedRemoteLogMetadataManager
from storage.metadata.partitioner import metadata_partition
from storage.model import TopicIdPartition


class TopicCatalogTail:
    """Follows a topic-based manager. Owned by the trio thread.

    Args:
        high_watermarks: where each metadata partition ends now.
    """

    def __init__(
        self,
        manager: TopicBasedRemoteLogMetadataManager,
        partition_count: Callable[[], int],
        high_watermarks: Callable[[], Awaitable[Mapping[int, int]]],
    ) -> None:
        self._manager = manager
        self._partition_count = partition_count
        self._high_watermarks = high_watermarks
        self._progress = trio.Event()
        token = trio.lowlevel.current_trio_token()
        # From whichever thread applied the records.
        manager.on_progress(lambda _partition, _position: token.run_sync_soon(self._wake, idempotent=True))

    def is_ready(self, partition: TopicIdPartition) -> bool:
        """Whether the partition's metadata was read to the end that the topic had at start."""
        return self._manager.is_ready(partition)

    async def catch_up(self, partition: TopicIdPartition) -> None:
        """Return once everything is applied that the partition's metadata partition holds now.

        Raises:
            RemoteStorageError: the metadata topic does not say where it ends.
        """
        number = metadata_partition(partition.topic_id, partition.partition, self._partition_count())
        end_offset = (await self._high_watermarks()).get(number, 0)
        while self._manager.position(number) < end_offset:
            await self._progress.wait()

    def _wake(self) -> None:
        # A new event for those that have to wait on: many reads wait at a time.
        self._progress.set()
        self._progress = trio.Event()


class InMemoryCatalogTail:
    """The tail of a manager that has no log: always there."""

    def is_ready(self, partition: TopicIdPartition) -> bool:
        """Always."""
        return True

    async def catch_up(self, partition: TopicIdPartition) -> None:
        """Nothing to wait for."""
        await trio.lowlevel.checkpoint()
