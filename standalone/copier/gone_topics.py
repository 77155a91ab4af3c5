"""Topics of the tier that upstream does not have any more: marked, waited for, asked for once more, then deleted.

    gone = GoneTopics(tools, take, give_back)
    gone.follow(partitions, nursery)        # after each look at the topics: all that are gone now

- The wait is `copy.delete.grace.ms` from the partition's last DELETE_PARTITION_MARKED on, which is in the metadata
  topic and so outlasts restarts and owners. One that is marked for the end of time is held, as is one whose deletions
  were held when its topic went; one for its beginning is approved (`tidegate deletions`).
- A topic that is there again is withdrawn, and copied again. If it goes once more it is marked once more.
- A partition whose deletion was begun by anybody waits no more, but is asked for as well.
"""

from collections.abc import Awaitable, Callable, Iterable

import structlog
import trio

from standalone.copier.ledger import Ledger
from standalone.copier.progress import PartitionProgress
from standalone.copier.segment_copy import SegmentCopy
from standalone.copier.tools import RETRY_S_MAX, CopierTools
from standalone.copier.waits import Waiting
from storage.backoff import Backoff
from storage.errors import RemoteStorageError
from storage.model import TopicIdPartition

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class GoneTopics:
    """Args:
    take: ends what is under way with the partition, here; `give_back` begins it again.
    """

    def __init__(
        self,
        tools: CopierTools,
        take: Callable[[TopicIdPartition], Awaitable[None]],
        give_back: Callable[[TopicIdPartition], Awaitable[None]],
    ) -> None:
        self._tools = tools
        self._take = take
        self._give_back = give_back
        self._gone: frozenset[TopicIdPartition] = frozenset()
        self._has_looked = False
        self.waiting: dict[TopicIdPartition, PartitionProgress] = {}
        """By partition, what is shown of it."""

    def follow(self, gone: Iterable[TopicIdPartition], nursery: trio.Nursery) -> None:
        """These are gone, and no others."""
        self._gone = frozenset(gone)
        for partition in sorted(self._gone - self.waiting.keys(), key=str):
            self.waiting[partition] = PartitionProgress(topic=partition.topic, partition=partition.partition)
            nursery.start_soon(self._see_off, partition, self._has_looked)
        self._has_looked = True

    async def _see_off(self, partition: TopicIdPartition, is_new: bool) -> None:
        await self._take(partition)
        try:
            is_deleted = await self._delete(partition, is_new)
        finally:
            del self.waiting[partition]
            self._tools.meter.on_released((partition.topic, partition.partition))
        if not is_deleted:
            _log.warning("deletion_withdrawn", partition=str(partition), reason="upstream has its topic")
            await self._give_back(partition)

    async def _delete(self, partition: TopicIdPartition, is_new: bool) -> bool:
        """Return whether the partition is deleted; else its topic is not gone."""
        backoff = Backoff(max_s=RETRY_S_MAX)
        while partition in self._gone:
            try:
                return await self._delete_when_due(partition, is_new)
            except RemoteStorageError as error:
                _log.warning("partition_not_deleted", partition=str(partition), reason=str(error))
                self.waiting[partition].last_error = str(error)
            await trio.sleep(backoff.next_delay_s())
        return False

    async def _delete_when_due(self, partition: TopicIdPartition, is_new: bool) -> bool:
        """Likewise."""
        tools, ledger = self._tools, Ledger(partition)
        async with tools.feed.followed(ledger):
            if not ledger.segments() and not ledger.is_being_deleted:
                return True
            segments = SegmentCopy(ledger, tools.new_id, tools.now_ms)
            now_ms, age_ms = tools.now_ms(), 2 * tools.settings.interval_ms
            if ledger.marked_ms is None or (is_new and ledger.marked_ms < now_ms - age_ms):
                noted = await tools.notes.get(partition)
                is_held = noted is not None and noted.is_held
                await tools.steps.do(segments.mark_partition(HELD_MS + 1 if is_held else now_ms))
            if not await self._wait(partition, ledger):
                return False
            ledger.claim(0)
            async with tools.slots.one():
                await tools.steps.do(segments.delete_partition())
        _log.info("partition_deleted", partition=str(partition), cause="topic_gone")
        return True

    async def _wait(self, partition: TopicIdPartition, ledger: Ledger) -> bool:
        """Return whether it is time, and the topic is gone still."""
        tools = self._tools
        while partition in self._gone:
            until_ms = 0 if ledger.is_being_deleted else (ledger.marked_ms or 0) + tools.settings.delete_grace_ms
            stopped = tools.deletions_stopped() or tools.steps.deletion_refusal()
            if until_ms <= tools.now_ms() and stopped is None:
                # Asked for once more: a broker may have been away when it was taken for gone.
                return partition in await tools.confirm_gone([partition])
            self._tell(partition, ledger, until_ms, stopped)
            await trio.sleep(tools.settings.interval_ms / 1000)
        return False

    def _tell(self, partition: TopicIdPartition, ledger: Ledger, until_ms: int, stopped: str | None) -> None:
        finished = ledger.finished()
        is_held = until_ms > HELD_MS
        waiting = Waiting(
            segments=len(finished),
            size_bytes=sum(segment.segment_size_bytes for segment in finished),
            until_ms=None if is_held or stopped else until_ms,
            why=stopped or ("an operator holds it" if is_held else "its topic is gone: copy.delete.grace.ms"),
            is_alarming=True,
        )
        progress = self.waiting[partition]
        self._tools.tell_waiting(partition, progress, waiting)
        progress.waits_for = waiting.why


HELD_MS = 2**62
"""A partition that is marked as of then is held."""
