"""The catalog snapshot's life: read at the start, written now and then and at the end (docs/kafka-tier.md#readiness).

- Reading needs no broker. What was read is used once the cluster is known, and only if it is of this cluster, this
  metadata topic and its partition count, and if every metadata partition's log goes on from it. Otherwise it is set
  aside with one log line, and everything is read from the topic: nothing of it has come into the catalog then.
- A snapshot is of one instant: delivery is held while a thread writes the draft, and goes on before the disk is asked
  to keep it. Look-ups go on all the time. A hold has an end (HOLD_S_MAX), whatever the disk does.
- Nothing is written while a metadata partition is not read to its end, when the topic as a whole cannot be trusted,
  or when nothing was read since the snapshot before.
- Trouble with the disk is counted, logged once a spell, and harms nobody else.
"""

import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog
import trio

from metrics.meters import CatalogMeter, SnapshotOutcome
from metrics.troubles import TroubleId
from proxy.fetch.tier import CatalogTail
from proxy.tier_owner import BROKERS_OWN_IT, TierOwner
from proxy.upstream.cluster import Cluster
from proxy.upstream.gathered import Gathered
from proxy.upstream.metadata_topic import NOT_MADE, KafkaMetadataTopicClient
from storage.config.client_settings import client_settings
from storage.config.model import Mode
from storage.config.registry import MetadataManagerKind, metadata_manager_kind
from storage.errors import MetadataNotReadyError, RemoteStorageError
from storage.metadata.catalog import Catalog
from storage.metadata.event_log import metadata_partition
from storage.metadata.follower import CatalogFollower
from storage.metadata.snapshot import Snapshot, SnapshotFile, SnapshotOrigin
from storage.metadata.snapshot_stream import (
    ForeignSnapshotError,
    OlderSnapshotError,
    SnapshotError,
    SnapshotOutOfRangeError,
)
from storage.metadata.topic_log import TopicMetadataEventLog
from storage.model import TopicIdPartition
from storage.tasks import TaskNursery
from storage.wall_clock import wall_clock_ms
from tidegate.process import Process
from tidegate.upkeep import follow_catalog, measure_catalog

HOLD_S_MAX = 20.0
"""A publisher waits for its own record for 30 s; it must come through after a hold."""

LAST_WRITE_S_MAX = 10.0
"""What shutdown waits for the last snapshot. Without it the next start reads on from the one before."""

RANGES_S_MAX = 10.0
"""How long the start waits for every metadata partition to say where its log begins and ends. Unchecked it is not
used, and reading everything takes about as long."""

RANGES_RETRY_S = 0.5

BUSY_SHARE_MAX = 0.05
"""At most this part of the time goes into writing snapshots: those of a large catalog come less often."""

_OUTCOMES: Mapping[type[SnapshotError], SnapshotOutcome] = {
    ForeignSnapshotError: SnapshotOutcome.FOREIGN,
    OlderSnapshotError: SnapshotOutcome.OLDER_FORMAT,
    SnapshotOutOfRangeError: SnapshotOutcome.OUT_OF_RANGE,
}

_log = structlog.get_logger(__name__)


class CatalogSnapshots:
    """Snapshots of one catalog. Owned by the trio thread.

    Args:
        folder: `catalog.snapshot.path`.
        interval_s: between two snapshots.
        cluster_id: of the metadata topic's cluster; asked once the topic was described.
        is_ours: False: another process writes it and sets it aside, and this one only reads it.
        found: what is there, if it was read already.
        tell: gets why none can be written; nothing: it can.
    """

    def __init__(
        self,
        folder: Path,
        *,
        interval_s: float,
        catalog: Catalog,
        event_log: TopicMetadataEventLog,
        follower: CatalogFollower,
        cluster_id: Callable[[], str | None],
        meter: CatalogMeter,
        is_ours: bool = True,
        found: Snapshot | None = None,
        tell: Callable[[Sequence[str]], None] = lambda _: None,
    ) -> None:
        self._tell = tell
        self._is_ours = is_ours
        self._file = SnapshotFile(folder)
        self._interval_s = interval_s
        self._catalog = catalog
        self._event_log = event_log
        self._follower = follower
        self._cluster_id = cluster_id
        self._meter = meter
        self._found = found
        self._found_bytes = 0
        self._written_offsets: tuple[int, ...] | None = None
        """Offsets of the snapshot that is there."""
        self._writing = trio.Lock()
        self._thread_is_busy = False
        self._is_failing = False

    async def read(self) -> None:
        """Read what is there, for `adopt`."""
        if self._found is not None:
            with suppress(OSError):  # it may be another one by now, or none
                self._found_bytes = self._file.size_bytes()
            return
        try:
            self._found = await trio.to_thread.run_sync(self._file.read, abandon_on_cancel=True)
            self._found_bytes = 0 if self._found is None else self._file.size_bytes()
        except (SnapshotError, OSError) as error:
            await self._set_aside(error)
        else:
            if self._found is None:
                self._meter.on_snapshot_loaded(SnapshotOutcome.ABSENT)

    async def adopt(self) -> Mapping[int, int]:
        """Put what `read` found into the catalog, if it may; return the offsets to read the metadata topic from.

        Once the topic was described, and before it is followed.
        """
        snapshot, self._found = self._found, None
        if snapshot is None:
            return {}
        try:
            snapshot.check_origin(self._origin())
            ranges = await self._ranges()
            if ranges is None:
                # It may be right, so it stays for the next start; this one does without.
                self._meter.on_snapshot_loaded(SnapshotOutcome.OUT_OF_RANGE)
                return {}
            snapshot.check_range(ranges)
        except SnapshotError as error:
            await self._set_aside(error)
            return {}
        self._catalog.adopt(snapshot.contents)
        self._written_offsets = snapshot.next_offsets
        self._meter.on_snapshot_loaded(SnapshotOutcome.USED)
        self._meter.on_snapshot_kept(self._found_bytes, snapshot.written_at_ms / 1000)
        age_s = round(time.time() - snapshot.written_at_ms / 1000)
        _log.info("catalog_snapshot_used", segments=snapshot.contents.segment_count, age_s=age_s)
        return dict(enumerate(snapshot.next_offsets))

    async def run(self) -> None:
        """Write one after each interval, until cancelled."""
        pause_s = self._interval_s
        while True:
            await trio.sleep(pause_s)
            began_at_s = trio.current_time()
            await self._write()
            pause_s = max(self._interval_s, (trio.current_time() - began_at_s) / BUSY_SHARE_MAX)

    async def aclose(self) -> None:
        """Write the last one, within LAST_WRITE_S_MAX. The event log still runs."""
        with trio.move_on_after(LAST_WRITE_S_MAX) as last:
            await self._write()
        if last.cancelled_caught:
            self._failed(f"the last one was not written within {LAST_WRITE_S_MAX} s")

    # --- reading ---

    def _origin(self) -> SnapshotOrigin:
        topic = self._event_log.description()
        return SnapshotOrigin(
            self._cluster_id() or "", topic.topic_id, topic.partition_count, self._catalog.segments_max
        )

    async def _ranges(self) -> Mapping[int, tuple[int, int]] | None:
        """Return where each metadata partition's log begins and ends; None: not all of them said so in time."""
        numbers = range(self._event_log.partition_count())
        reason = ""
        with trio.move_on_after(RANGES_S_MAX):
            while True:
                try:
                    return await self._event_log.sample_ranges(numbers)
                except RemoteStorageError as error:
                    reason = str(error)
                await trio.sleep(RANGES_RETRY_S)
        _log.warning("catalog_snapshot_left_alone", reason=reason, waited_s=RANGES_S_MAX)
        return None

    async def _set_aside(self, error: SnapshotError | OSError) -> None:
        outcome = _OUTCOMES.get(type(error), SnapshotOutcome.UNREADABLE)  # type: ignore[arg-type]  # OSError: not in it
        self._meter.on_snapshot_loaded(outcome)
        if not self._is_ours:
            return
        try:
            aside: str = str(await trio.to_thread.run_sync(self._file.set_aside))
        except OSError as move_error:
            aside = f"nowhere: {move_error}"
        _log.warning("catalog_snapshot_set_aside", outcome=outcome.value, reason=str(error), set_aside=aside)

    # --- writing ---

    async def _write(self) -> None:
        async with self._writing:
            if not self._is_worth_writing():
                return
            try:
                await self._draft_and_keep()
            except Exception as error:
                # Also a fault of ours: it costs the snapshot, never the service.
                self._failed(str(error) or repr(error))
            else:
                if self._is_failing:
                    _log.info("catalog_snapshot_written_again")
                self._is_failing = False
                self._tell([])

    def _is_worth_writing(self) -> bool:
        if self._event_log.failure() is not None:
            return False
        try:
            numbers = range(self._event_log.partition_count())
        except MetadataNotReadyError:
            return False
        return all(map(self._follower.is_caught_up, numbers)) and self._next_offsets() != self._written_offsets

    def _next_offsets(self) -> tuple[int, ...]:
        return tuple(map(self._follower.position, range(self._event_log.partition_count())))

    async def _draft_and_keep(self) -> None:
        if self._thread_is_busy:
            raise OSError("the disk has not answered since the last one was given up")
        with trio.move_on_after(HOLD_S_MAX) as hold:
            async with self._event_log.delivery_held():
                now_ms = wall_clock_ms()
                snapshot = Snapshot(self._origin(), self._next_offsets(), now_ms, self._catalog.contents())
                size_bytes = await self._draft(snapshot)
        if hold.cancelled_caught:
            raise OSError(f"it was not written within {HOLD_S_MAX} s")
        await self._in_thread(self._file.keep_draft)
        self._written_offsets = snapshot.next_offsets
        self._meter.on_snapshot_written(size_bytes, snapshot.written_at_ms / 1000)
        _log.debug("catalog_snapshot_written", size_bytes=size_bytes, segments=snapshot.contents.segment_count)

    async def _draft(self, snapshot: Snapshot) -> int:
        changes, is_over = self._catalog.changes, threading.Event()

        def keep_on() -> None:
            if is_over.is_set() or self._catalog.changes != changes:
                raise OSError("the catalog did not stand still while it was written")

        size_bytes = 0

        def draft() -> None:
            nonlocal size_bytes
            size_bytes = self._file.draft(snapshot, keep_on)

        try:
            await self._in_thread(draft)
        finally:
            # A thread that was given up must not go on: the catalog will change under it.
            is_over.set()
        return size_bytes

    async def _in_thread(self, call: Callable[[], None]) -> None:
        """Call in a thread that may be given up: a disk can hang."""

        def busily() -> None:
            try:
                call()
            finally:
                self._thread_is_busy = False

        self._thread_is_busy = True
        await trio.to_thread.run_sync(busily, abandon_on_cancel=True)

    def _failed(self, reason: str) -> None:
        self._meter.on_snapshot_failed()
        self._tell([reason])
        if not self._is_failing:
            _log.warning("catalog_snapshot_failed", reason=reason)
        self._is_failing = True


class TopicCatalogTail:
    """Waiting for the catalog to reach the end of the metadata topic, and telling readiness how far it is.

    `catch_up` is what a read does that found no segment: it asks where the metadata partition ends now and waits until
    everything before that is applied. Many reads that miss at a time share the question to their metadata partition
    (proxy.upstream.gathered).

    Owned by the trio thread.

    Args:
        ranges: where metadata partitions begin and end now.
        nursery: the application's; questions live in it.
    """

    def __init__(
        self,
        follower: CatalogFollower,
        partition_count: Callable[[], int],
        ranges: Callable[[Sequence[int]], Awaitable[Mapping[int, tuple[int, int]]]],
        nursery: TaskNursery,
    ) -> None:
        self._follower = follower
        self._partition_count = partition_count
        self._ranges = ranges
        self._nursery = nursery
        self._questions: dict[int, Gathered[int, tuple[int, int]]] = {}
        """By metadata partition: a leader that does not answer holds up nobody else's question."""
        self._progress = trio.Event()
        follower.on_progress(self._wake)

    def is_ready(self, partition: TopicIdPartition) -> bool:
        """Return whether the partition's metadata was read to the end that the topic had at start."""
        return self._follower.is_ready(partition)

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
        while self._follower.position(number) < end_offset:
            await self._progress.wait()

    def _wake(self) -> None:
        # A new event for those that have to wait on: many reads wait at a time.
        self._progress.set()
        self._progress = trio.Event()


class InMemoryCatalogTail:
    """The tail where there is no metadata topic: always there."""

    def is_ready(self, partition: TopicIdPartition) -> bool:
        """Always."""
        return True

    async def catch_up(self, partition: TopicIdPartition) -> None:
        """Nothing to wait for."""
        await trio.lowlevel.checkpoint()


@dataclass(slots=True)
class StartedCatalog:
    """A catalog that fills, and what fills it; without a metadata topic nothing does."""

    tail: CatalogTail
    snapshots: CatalogSnapshots | None = None
    event_log: TopicMetadataEventLog | None = None
    follower: CatalogFollower | None = None
    cluster: Cluster | None = None
    """That has the metadata topic."""

    async def aclose(self) -> None:
        """Write the last snapshot, within a time limit of its own; before the nursery of `start_catalog` ends."""
        if self.snapshots is None:
            await trio.lowlevel.checkpoint()
        else:
            await self.snapshots.aclose()


async def start_catalog(
    process: Process, catalog: Catalog, owner: TierOwner = BROKERS_OWN_IT, snapshot: Snapshot | None = None
) -> StartedCatalog:
    """Start to fill and follow the catalog; return at once, `readiness` tells the rest.

    Args:
        owner: of the tier that is served; it may have something to wait for, too.
        snapshot: what is in `catalog.snapshot.path`, if it was read already; it becomes the catalog's own.
    """
    config, meters, readiness, tasks = process.config, process.meters, process.readiness, process.tasks
    if metadata_manager_kind(config.remote_log_metadata_manager_class_name) is MetadataManagerKind.IN_MEMORY:
        readiness.catalog_live(0)
        return StartedCatalog(InMemoryCatalogTail())
    metadata_cluster = process.cluster
    if config.metadata_client != config.upstream:
        metadata_cluster = Cluster(client_settings(config.metadata_client), tasks)
    is_topic_made = config.mode is Mode.STANDALONE and config.copy.is_enabled
    client = KafkaMetadataTopicClient(metadata_cluster, absence=_absence(config.mode, is_topic_made))
    event_log = TopicMetadataEventLog(client, is_topic_made=is_topic_made)
    follower = CatalogFollower(event_log, catalog)

    snapshots = None
    if config.catalog.snapshot_path is not None:
        snapshots = CatalogSnapshots(
            config.catalog.snapshot_path,
            interval_s=config.catalog.snapshot_interval_ms / 1000,
            is_ours=config.catalog.snapshot_is_written,
            catalog=catalog,
            event_log=event_log,
            follower=follower,
            cluster_id=lambda: metadata_cluster.cluster_id,
            meter=meters.catalog,
            found=snapshot,
            tell=partial(readiness.tell, TroubleId.SNAPSHOT_FAILS),
        )

    async def follow() -> None:
        if snapshots is not None:
            await snapshots.read()
        await event_log.described.wait()
        follower.follow({} if snapshots is None else await snapshots.adopt())
        if snapshots is not None and config.catalog.snapshot_is_written:
            tasks.keep("catalog snapshots", snapshots.run)
        tasks.keep("catalog sizes", partial(measure_catalog, event_log, follower, catalog, readiness, meters))

    tasks.keep("metadata topic", event_log.run)
    tasks.keep("catalog", follow)
    watch = partial(follow_catalog, event_log, follower, catalog, readiness, meters, owner)
    tasks.keep("catalog readiness", watch)
    await trio.lowlevel.checkpoint()
    tail: CatalogTail = TopicCatalogTail(follower, event_log.partition_count, event_log.sample_ranges, tasks)
    written = snapshots if config.catalog.snapshot_is_written else None
    return StartedCatalog(owner.tail(tail), written, event_log, follower, metadata_cluster)


def _absence(mode: Mode, is_topic_made: bool) -> str:
    if mode is Mode.REPLICA:
        return NOT_MADE
    return "the copier is making it" if is_topic_made else "tidegate copy makes it, and has to run once"
