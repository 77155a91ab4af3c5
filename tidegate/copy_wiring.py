"""From the configuration to a copier that runs in a process: see `standalone.copying` for what it does then."""

from collections.abc import Callable

import structlog

from metrics.copy_meters import CopyMeter
from standalone.cluster_clock import ClusterClock
from standalone.copier.clock import ClockGuard
from standalone.copier.copier import Copier
from standalone.copier.librdkafka import client_properties
from standalone.copier.membership import MembershipError
from standalone.copier.threads import WorkerThreads
from standalone.copier.tools import CopierTools
from standalone.copying import Copying, CopyingParts
from standalone.metadata_guard import MetadataTopicGuard
from standalone.serving.broker_log import ROLE, ClusterBrokerLog
from standalone.serving.deletion_notes import DELETIONS_GROUP, DeletionNotes
from standalone.serving.group_offsets import GroupOffsets
from standalone.serving.log_starts import CommittedLogStarts, CopierLogStarts
from storage.formats.local_tiered_storage import LocalTieredStorage
from storage.metadata.catalog import Catalog
from storage.remote_storage_manager import RemoteStorageManager
from tidegate.catalog import StartedCatalog
from tidegate.process import Process

_log = structlog.get_logger(__name__)


def open_copying(
    process: Process,
    started: StartedCatalog,
    catalog: Catalog,
    storage_manager: RemoteStorageManager,
    log_starts: CommittedLogStarts,
    guard: MetadataTopicGuard,
    *,
    copies_all: bool = False,
) -> Copying:
    """A copier by `copy.*`, to be run.

    Args:
        storage_manager: a folder of its that a broker would make is made.
        copies_all: what there is at the end of a log is copied, too, without waiting for a segment to be whole.

    Raises:
        OSError: the folder cannot be made.
    """
    config, cluster = process.config, process.cluster
    meter = CopyMeter(process.meters.registry)
    event_log_read, metadata_cluster = started.event_log, started.cluster
    assert event_log_read is not None, "there is a guard of the metadata topic"
    assert metadata_cluster is not None, "there is a guard of the metadata topic"
    if isinstance(storage_manager, LocalTieredStorage):
        storage_manager.make_folder()

    brokers_clock = ClusterClock(cluster)
    clock = ClockGuard({"the store's": storage_manager.clock_offset_ms, "the brokers'": brokers_clock.offset_ms}, meter)
    deletions_stopped = _first_of(guard.deletions_stopped, clock)
    parts = CopyingParts(
        settings=config.copy,
        metadata_topic=config.metadata_topic,
        cluster=cluster,
        metadata_cluster=metadata_cluster,
        properties=client_properties(config.upstream, ROLE),
        metadata_properties=client_properties(config.metadata_producer, f"{ROLE}-metadata"),
        in_tier=catalog.partitions,
        guard=guard,
        clock=brokers_clock,
        deletions_stopped=deletions_stopped,
        meter=meter,
    )
    return Copying(
        parts,
        lambda publish, topics: Copier(
            CopierTools(
                settings=config.copy,
                brokers=ClusterBrokerLog(cluster),
                event_log=event_log_read,
                publish=publish,
                storage=storage_manager,
                kept_log_starts=CopierLogStarts(log_starts),
                kept_notes=DeletionNotes(GroupOffsets(cluster, DELETIONS_GROUP)),
                confirm_gone=topics.confirm_gone,
                meter=meter,
                retention_of=topics.retention_of,
                upstream_retention=topics.upstream_retention,
                is_disabled=lambda: not process.settings.copies,
                is_copied=topics.is_copied,
                deletions_stopped=deletions_stopped,
                copies_all=copies_all,
                threads=WorkerThreads(config.copy.concurrent_max),
                now_ms=clock.now_ms,
            )
        ),
    )


def _first_of(guard: Callable[[], str | None], clock: ClockGuard) -> Callable[[], str | None]:
    return lambda: guard() or clock.deletions_stopped()


async def keep_copying(copying: Copying) -> None:
    """`Copying.run` in a process that serves, too: what ends the copying for good does not end the serving."""
    try:
        await copying.run()
    except* MembershipError as group:
        reason = "; ".join(map(str, group.exceptions))
        copying.note_ended(reason)
        _log.exception("copying_ended", reason=reason)
