"""Waiting for the catalog to reach the end of the metadata topic, and telling readiness how far it is.

The manager is synchronous and thread-safe; this is its trio side. `catch_up` is what a read does that found no
segment: it asks where the metadata partition ends now and waits until everything before that is applied.
Many reads that miss at a time share the question to their metadata partition (proxy.upstream.gathered).
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence

import trio

from proxy.upstream.gathered import Gathered
from storage.metadata.manager import TopicBasedRemoteLogMetadataManager
from storage.metadata.partitioner import metadata_partition
from storage.model import TopicIdPartition


class TopicCatalogTail:
    """Follows a topic-based manager. Owned by the trio thread.

    Args:
        ranges: where metadata partitions begin and end now.
        nursery: the application's; questions live in it.
    """

    def __init__(
        self,
        manager: TopicBasedRemoteLogMetadataManager,
        partition_count: Callable[[], int],
        ranges: Callable[[Sequence[int]], Awaitable[Mapping[int, tuple[int, int]]]],
        nursery: trio.Nursery,
    ) -> None:
        self._manager = manager
        self._partition_count = partition_count
        self._ranges = ranges
        self._nursery = nursery
        self._questions: dict[int, Gathered[int, tuple[int, int]]] = {}
        """By metadata partition: a leader that does not answer holds up nobody else's question."""
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
        questions = self._questions.get(number)
        if questions is None:
            name = f"end of metadata partition {number}"
            questions = self._questions[number] = Gathered(self._nursery, self._ranges, name=name)
        _, end_offset = await questions.get(number)
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
