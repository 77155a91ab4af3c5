"""What is kept of the partitions that one copier has, read together and believed for a while."""

from collections.abc import Iterable, Mapping
from typing import Generic, Protocol, TypeVar

import trio

from storage.model import TopicIdPartition

V = TypeVar("V")


class KeptStore(Protocol[V]):
    """A value for each partition, durable once `commit` returns. Both raise RemoteStorageError."""

    async def get(self, partitions: Iterable[TopicIdPartition]) -> Mapping[TopicIdPartition, V]:
        """Return what was committed; partitions of which nothing was, or of another topic id, are left out."""
        ...

    async def commit(self, values: Mapping[TopicIdPartition, V]) -> None:
        """Commit these."""
        ...


class Kept(Generic[V]):
    """For one trio run.

    Args:
        partitions: those that are owned, as they are now: all of them are asked for at once.
        age_s_max: how old an answer may be.
    """

    def __init__(self, store: KeptStore[V], partitions: Iterable[TopicIdPartition], age_s_max: float) -> None:
        self._store = store
        self._partitions = partitions
        self._age_s_max = age_s_max
        self._lock = trio.Lock()
        self._known: Mapping[TopicIdPartition, V] = {}
        self._asked: frozenset[TopicIdPartition] = frozenset()
        self._asked_at_s = -float("inf")

    async def get(self, partition: TopicIdPartition) -> V | None:
        """Return what was committed for the partition; None if nothing was.

        Raises:
            RemoteStorageError: as the store answers.
        """
        async with self._lock:
            is_old = trio.current_time() - self._asked_at_s > self._age_s_max
            if is_old or partition not in self._asked:
                asked = frozenset((partition, *self._partitions))
                self._known = dict(await self._store.get(asked))
                self._asked, self._asked_at_s = asked, trio.current_time()
            return self._known.get(partition)

    async def commit(self, partition: TopicIdPartition, value: V) -> None:
        """Commit the value; it is durable when this returns.

        Raises:
            RemoteStorageError: as the store answers.
        """
        async with self._lock:
            await self._store.commit({partition: value})
            self._known = {**self._known, partition: value}
