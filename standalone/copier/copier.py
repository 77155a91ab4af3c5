"""The copier: the partitions that a group's member has, each a task of its own, and topics that are gone.

    copier = Copier(tools)
    await nursery.start(copier.run)
    await copier.assign(partitions, generation)     # by the group's member
    await copier.revoke(partitions)                 # returns once nothing of them is under way

Rules:
- A partition whose task fails by a fault of ours is logged and begun again; the others do not notice.
- The staging folder is this process's alone.
- Partitions that are let go of copy first what is staged, and of those first what upstream is about to delete.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import structlog
import trio

from standalone.copier import staging_folder
from standalone.copier.gone_topics import GoneTopics
from standalone.copier.partition_copier import PartitionCopier
from standalone.copier.progress import PartitionProgress
from standalone.copier.tools import RETRY_S_MAX, CopierTools
from storage.backoff import Backoff
from storage.model import TopicIdPartition

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Assigned:
    """A partition's task."""

    copier: PartitionCopier
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    ended: trio.Event = field(default_factory=trio.Event)


class Copier:
    """Copies and deletes for the partitions that are assigned to it. `settings.staging_path` must be set."""

    def __init__(self, tools: CopierTools) -> None:
        assert tools.settings.staging_path is not None, "checked before anything is copied"
        self._staging_path: Path = tools.settings.staging_path
        self._tools = tools
        self._assigned: dict[TopicIdPartition, _Assigned] = {}
        self._gone = GoneTopics(tools, self._end, self._begin)
        self._nursery: trio.Nursery | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """For ever. Reports started once partitions may be assigned.

        Cancellation: as PartitionCopier.run of all partitions.
        """
        for other in await self._tools.threads.run(lambda: staging_folder.strangers(self._staging_path)):
            _log.warning("staging_folder_not_ours", path=str(other), reason="no copier has written this: it stays")
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            await trio.sleep_forever()

    async def assign(self, partitions: Iterable[TopicIdPartition], generation: int) -> None:
        """These are ours from now on, beside those that are already. Not before `run` has started."""
        for partition in partitions:
            self._tools.granted[partition] = generation
            await self._begin(partition)

    async def revoke(self, partitions: Iterable[TopicIdPartition]) -> None:
        """These are not ours any more. Returns once their tasks have let go: what is staged is copied first."""
        for partition in partitions:
            self._tools.granted.pop(partition, None)
        await self._end(*partitions)

    def follow_gone(self, gone: Iterable[TopicIdPartition]) -> None:
        """These of the tier's partitions are of topics that upstream does not have any more, and no others
        (standalone.copier.gone_topics). Not before `run` has started."""
        assert self._nursery is not None, "it is running"
        self._gone.follow(gone, self._nursery)

    def gone(self) -> list[PartitionProgress]:
        """Partitions whose topics are gone, and that wait to be deleted."""
        return [*self._gone.waiting.values()]

    def progress(self) -> list[PartitionProgress]:
        """Return the progress of all partitions, by topic and number. Live objects: to be read, not kept."""
        found = (assigned.copier.progress for assigned in self._assigned.values())
        return sorted(found, key=lambda progress: (progress.topic, progress.partition))

    async def _begin(self, partition: TopicIdPartition) -> None:
        """Its task, unless it has one, is not ours, or its topic is gone."""
        assert self._nursery is not None, "it is running"
        while (known := self._assigned.get(partition)) is not None and known.scope.cancel_called:
            await known.ended.wait()
        generation = self._tools.granted.get(partition)
        if known is None and generation is not None and partition not in self._gone.waiting:
            copier = PartitionCopier(partition, generation, self._folder(partition), self._tools)
            assigned = self._assigned[partition] = _Assigned(copier)
            self._nursery.start_soon(self._keep, partition, assigned)

    async def _end(self, *partitions: TopicIdPartition) -> None:
        """Their tasks; of those first what upstream is about to delete."""
        ending = [self._assigned[partition] for partition in partitions if partition in self._assigned]
        for is_pressed in (True, False):
            some = [assigned for assigned in ending if assigned.copier.progress.is_pressed is is_pressed]
            for assigned in some:
                assigned.scope.cancel()
            for assigned in some:
                await assigned.ended.wait()

    async def _keep(self, partition: TopicIdPartition, assigned: _Assigned) -> None:
        """The partition's task, until it is revoked."""
        backoff = Backoff(max_s=RETRY_S_MAX)
        try:
            with assigned.scope:
                while True:
                    try:
                        await assigned.copier.run()
                    except Exception as error:
                        assigned.copier.progress.last_error = repr(error)
                        _log.exception("copy_failed", partition=str(partition), reason=repr(error))
                    await trio.sleep(backoff.next_delay_s())
        finally:
            with trio.CancelScope(shield=True):
                await self._tools.threads.run(lambda: staging_folder.remove_if_empty(self._folder(partition)))
            del self._assigned[partition]
            assigned.ended.set()

    def _folder(self, partition: TopicIdPartition) -> Path:
        return staging_folder.partition_folder(self._staging_path, partition)
