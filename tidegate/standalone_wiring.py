"""What `serve` has more in standalone mode: log starts of a tier of its own, and the copier if it is to run here."""

from functools import partial
from typing import TYPE_CHECKING

from metrics.copy_meters import MetadataTopicMeter
from metrics.meters import TierMeter
from metrics.troubles import TroubleId
from proxy.fetch.frontiers import Frontiers
from proxy.tier_owner import TierOwner
from proxy.upstream.cluster import Cluster
from standalone.metadata_guard import MetadataTopicGuard
from standalone.serving.group_offsets import GroupOffsets
from standalone.serving.hanging_transactions import HangingTransactions
from standalone.serving.log_starts import LOG_START_GROUP, CommittedLogStarts, TierLogStarts
from standalone.serving.owner import WeOwnIt
from storage.config.registry import METADATA_MANAGER_KEY, MetadataManagerKind
from storage.errors import StorageConfigError
from storage.metadata.catalog import Catalog
from storage.remote_storage_manager import RemoteStorageManager
from tidegate.catalog import StartedCatalog
from tidegate.config.model import Config
from tidegate.process import Process

if TYPE_CHECKING:
    from standalone.copying import Copying
    from tidegate.read_tier import ReadTier


def tier_owner(config: Config, cluster: Cluster, catalog: Catalog, meter: TierMeter) -> TierOwner:
    """Return what owns a tier of our own."""
    log_starts = TierLogStarts(CommittedLogStarts(GroupOffsets(cluster, LOG_START_GROUP)), catalog)
    copy = config.copy
    segment_s_max = (copy.segment_ms + copy.lag_ms + 2 * copy.interval_ms) / 1000
    return WeOwnIt(catalog, log_starts, meter, segment_s_max=segment_s_max)


def open_standalone(process: Process, read: "ReadTier", frontiers: Frontiers) -> "Copying | None":
    """Return what copies, if it does so here. If there are several workers, the one that writes the catalog's snapshot
    copies. It runs among the tasks.

    Raises:
        OSError: the tier's folder cannot be made.
        StorageConfigError: there is no metadata topic by this configuration, and it is copied here.
    """
    config, cluster, owner, started = process.config, process.cluster, read.owner, read.started
    readiness, tasks = process.readiness, process.tasks
    assert isinstance(owner, WeOwnIt), "a tier of our own"
    tasks.keep("log starts", partial(owner.log_starts.run, partial(readiness.tell, TroubleId.LOG_STARTS_UNSURE)))
    tell = partial(readiness.tell, TroubleId.TRANSACTION_HANGS)
    tasks.keep("hanging transactions", HangingTransactions(owner.held_back, frontiers, cluster, tell).run)
    is_copied_here = config.copy.is_enabled and config.catalog.snapshot_is_written
    if not is_copied_here and started.event_log is None:
        return None
    guard = open_guard(process, started, read.catalog, read.manager)
    tasks.keep("metadata guard", guard.run)
    if not is_copied_here:
        return None
    from tidegate.copy_wiring import keep_copying, open_copying  # librdkafka, which nothing else here needs

    copying = open_copying(process, started, read.catalog, read.manager, owner.log_starts.committed, guard)
    tasks.keep("copying", partial(keep_copying, copying))
    return copying


def open_guard(
    process: Process, started: StartedCatalog, catalog: Catalog, storage_manager: RemoteStorageManager
) -> MetadataTopicGuard:
    """Return what looks after the metadata topic, to be run.

    Raises:
        StorageConfigError: there is no metadata topic by this configuration.
    """
    config, readiness = process.config, process.readiness
    if started.event_log is None or started.cluster is None or started.follower is None:
        raise StorageConfigError(
            f"{METADATA_MANAGER_KEY}={config.remote_log_metadata_manager_class_name} keeps nothing outside of one "
            f"process, so nothing can be copied: name {MetadataManagerKind.TOPIC_BASED.value}, or leave the key out"
        )
    return MetadataTopicGuard(
        cluster=started.cluster,
        event_log=started.event_log,
        follower=started.follower,
        catalog=catalog,
        storage=storage_manager,
        catalog_was_live=readiness.wait_catalog,
        tell=lambda reason: readiness.tell(
            TroubleId.METADATA_TOPIC_UNSAFE, [] if reason is None else [f"nothing is deleted from the tier: {reason}"]
        ),
        meter=MetadataTopicMeter(process.meters.registry),
        interval_s=config.copy.interval_ms / 1000,
    )
