"""The committed log starts of the partitions that one copier has, read together and kept for a while."""

from collections.abc import Callable, Iterable, Mapping

import trio

from standalone.copier.seams import LogStartStore
from storage.model import TopicIdPartition


class LogStarts:
    """Of one trio run.

    Args:
        partitions: those that are owned now: all of them are asked for at once.
        age_s_max: how old an answer may be.
    """

    def __init__(
        self, store: LogStartStore, partitions: Callable[[], Iterable[TopicIdPartition]], age_s_max: float
    ) -> None:
        self._store = store
        self._partitions = partitions
        self._age_s_max = age_s_max
        self._lock = trio.Lock()
        self._known: Mapping[TopicIdPartition, int] = {}
        self._asked: frozenset[TopicIdPartition] = frozenset()
        self._asked_at_s = -float("inf")

    async def get(self, partition: TopicIdPartition) -> int | None:
        """What was committed for the partition; None if nothing was.

        Raises:
            RemoteStorageError: as the store answers.
        """
        async with self._lock:
            is_old = trio.current_time() - self._asked_at_s > self._age_s_max
            if is_old or partition not in self._asked:
                asked = frozenset((partition, *self._partitions()))
                self._known = dict(await self._store.get(asked))
                self._asked, self._asked_at_s = asked, trio.current_time()
            return self._known.get(partition)

    async def raise_to(self, partition: TopicIdPartition, offset: int) -> None:
        """Commit the offset, unless one as high was; it is durable when this returns.

        Raises:
            RemoteStorageError: as the store answers.
        """
        async with self._lock:
            await self._store.commit({partition: offset})
            self._known = {**self._known, partition: max(offset, self._known.get(partition, offset))}
