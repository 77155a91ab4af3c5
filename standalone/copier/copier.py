"""The copier: the partitions that a group's member has, each a task of its own, and topics that are gone.

    copier = Copier(settings=..., brokers=..., ...)
    nursery.start_soon(copier.run)
    await copier.assign(partitions, generation)     # by the group's member
    await copier.revoke(partitions)                 # returns once nothing of them is under way

Rules:
- A partition whose task fails by a fault of ours is logged and begun again; the others do not notice.
- The staging folder is this process's alone.
- Partitions that are let go of copy first what is staged, and of those first what upstream is about to delete.
"""

import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import structlog
import trio

from metrics.copy_meters import CopyMeter
from standalone.copier import staging_folder
from standalone.copier.config import CopyConfig
from standalone.copier.gone_topics import Confirm, GoneTopics
from standalone.copier.kept import Kept, KeptStore
from standalone.copier.limits import CopyRate, Slots
from standalone.copier.metadata_feed import MetadataFeed, Publish
from standalone.copier.partition_copier import PartitionCopier
from standalone.copier.progress import PartitionProgress
from standalone.copier.seams import BrokerLog, Retention
from standalone.copier.steps import StepRunner
from standalone.copier.threads import Threads, WorkerThreads
from standalone.copier.tools import RETRY_S_MAX, CopierTools
from standalone.copier.waits import Noted
from storage.backoff import Backoff
from storage.errors import StorageConfigError
from storage.metadata.event_log import MetadataEventLog
from storage.model import TopicIdPartition, Uuid
from storage.remote_storage_manager import RemoteStorageManager

_OTHER_THREADS = 32
"""Beside those of the slots: letting go of a partition does not wait for the uploads of others."""

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Assigned:
    """A partition's task."""

    copier: PartitionCopier
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    ended: trio.Event = field(default_factory=trio.Event)


class Copier:
    """Copies and deletes for the partitions that are assigned to it.

    Args:
        settings: `staging_path` must be set.
        event_log: reads the metadata topic, and `publish` writes it.
        retention_of: what the tier keeps of a topic, `upstream_retention` what upstream does; may change.
        notes: of deletions that wait.
        is_disabled: copy.disable, as it is now.
        is_copied: whether what is new in a topic goes to the tier; may change.
        confirm_gone: asks every broker.
        deletions_stopped: why nothing may be deleted now, a sentence; None: it may.
        copies_all: a segment ends where upstream's log ends, however small it is.
        now_ms: the time.
        threads, new_id: for tests.

    Raises:
        StorageConfigError: there is no staging path.
    """

    def __init__(
        self,
        *,
        settings: CopyConfig,
        brokers: BrokerLog,
        event_log: MetadataEventLog,
        publish: Publish,
        storage: RemoteStorageManager,
        log_starts: KeptStore[int],
        notes: KeptStore[Noted],
        meter: CopyMeter,
        retention_of: Callable[[str], Retention],
        is_disabled: Callable[[], bool],
        is_copied: Callable[[str], bool],
        upstream_retention: Callable[[str], Retention],
        confirm_gone: Confirm,
        deletions_stopped: Callable[[], str | None] = lambda: None,
        copies_all: bool = False,
        threads: Threads | None = None,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        new_id: Callable[[], Uuid] = lambda: Uuid(secrets.token_bytes(16)),
    ) -> None:
        if settings.staging_path is None:
            raise StorageConfigError("copy.staging.path is not set")
        self._staging_path: Path = settings.staging_path
        self._assigned: dict[TopicIdPartition, _Assigned] = {}
        self._taken: dict[TopicIdPartition, int | None] = {}
        """Partitions whose topics seem to be gone, and the generation that they were assigned with, if they were."""
        self._threads = threads or WorkerThreads(settings.concurrent_max + _OTHER_THREADS)
        feed, kept_s = MetadataFeed(event_log, publish, self._threads), settings.interval_ms / 2000
        self._tools = CopierTools(
            settings=settings,
            brokers=brokers,
            feed=feed,
            storage=storage,
            log_starts=Kept(log_starts, lambda: self._assigned, kept_s),
            notes=Kept(notes, lambda: self._assigned, kept_s),
            meter=meter,
            retention_of=retention_of,
            upstream_retention=upstream_retention,
            deletions_stopped=deletions_stopped,
            is_disabled=is_disabled,
            is_copied=is_copied,
            copies_all=copies_all,
            slots=Slots(settings.concurrent_max, meter.on_slots),
            rate=CopyRate(settings.bytes_per_second_max),
            threads=self._threads,
            steps=StepRunner(feed, storage, self._threads, meter),
            now_ms=now_ms,
            new_id=new_id,
        )
        self._gone = GoneTopics(self._tools, confirm_gone, self._take, self._give_back)
        self._nursery: trio.Nursery | None = None
        self._running = trio.Event()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """For ever. Reports started once partitions may be assigned.

        Cancellation: as PartitionCopier.run of all partitions.
        """
        for other in await self._threads.run(lambda: staging_folder.strangers(self._staging_path)):
            _log.warning("staging_folder_not_ours", path=str(other), reason="no copier has written this: it stays")
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self._running.set()
            task_status.started()
            await trio.sleep_forever()

    async def assign(self, partitions: Iterable[TopicIdPartition], generation: int) -> None:
        """These are ours from now on, beside those that are already. Waits for `run` to have begun."""
        await self._running.wait()
        assert self._nursery is not None, "it is running"
        for partition in partitions:
            if partition in self._taken:
                self._taken[partition] = generation
                continue
            known = self._assigned.get(partition)
            if known is not None and not known.scope.cancel_called:
                continue
            if known is not None:
                await known.ended.wait()
            copier = PartitionCopier(partition, generation, self._folder(partition), self._tools)
            assigned = self._assigned[partition] = _Assigned(copier)
            self._nursery.start_soon(self._keep, partition, assigned)

    async def revoke(self, partitions: Iterable[TopicIdPartition]) -> None:
        """These are not ours any more. Returns once their tasks have let go: what is staged is copied first."""
        for partition in partitions:
            if partition in self._taken:
                self._taken[partition] = None
        ending = [self._assigned[partition] for partition in partitions if partition in self._assigned]
        for is_pressed in (True, False):
            some = [assigned for assigned in ending if assigned.copier.progress.is_pressed is is_pressed]
            for assigned in some:
                assigned.scope.cancel()
            for assigned in some:
                await assigned.ended.wait()

    async def follow_gone(self, gone: Iterable[TopicIdPartition]) -> None:
        """These of the tier's partitions are of topics that upstream does not have any more, and no others
        (standalone.copier.gone_topics). Waits for `run` to have begun."""
        await self._running.wait()
        assert self._nursery is not None, "it is running"
        self._gone.follow(gone, self._nursery)

    def gone(self) -> list[PartitionProgress]:
        """Partitions whose topics are gone, and that wait to be deleted."""
        return [*self._gone.waiting.values()]

    def progress(self) -> list[PartitionProgress]:
        """Return the progress of all partitions, by topic and number. Live objects: to be read, not kept."""
        found = (assigned.copier.progress for assigned in self._assigned.values())
        return sorted(found, key=lambda progress: (progress.topic, progress.partition))

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
                await self._threads.run(lambda: staging_folder.remove_if_empty(self._folder(partition)))
            del self._assigned[partition]
            assigned.ended.set()

    async def _take(self, partition: TopicIdPartition) -> None:
        known = self._assigned.get(partition)
        generation = None if known is None else known.copier.generation
        await self.revoke([partition])
        self._taken[partition] = generation

    async def _give_back(self, partition: TopicIdPartition, begins_again: bool) -> None:
        generation = self._taken.pop(partition, None)
        if generation is not None and begins_again:
            await self.assign([partition], generation)

    def _folder(self, partition: TopicIdPartition) -> Path:
        return staging_folder.partition_folder(self._staging_path, partition)
