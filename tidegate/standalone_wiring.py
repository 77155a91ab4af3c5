"""What `serve` has more in standalone mode: log starts of a tier of its own, and the copier if it is to run here."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from metrics.copy_meters import CopyMeter, MetadataTopicMeter
from metrics.registry import Registry
from metrics.troubles import TroubleId
from proxy.readiness import Readiness
from proxy.tasks import Tasks
from proxy.upstream.cluster import Cluster
from standalone.metadata_guard import MetadataTopicGuard
from standalone.serving.group_offsets import GroupOffsets
from standalone.serving.log_starts import LOG_START_GROUP, CommittedLogStarts, TierLogStarts
from storage.config.model import Mode
from storage.config.registry import METADATA_MANAGER_KEY, MetadataManagerKind
from storage.errors import StorageConfigError
from storage.metadata.catalog import Catalog
from storage.remote_storage_manager import RemoteStorageManager
from tidegate.catalog import StartedCatalog
from tidegate.config.model import Config

if TYPE_CHECKING:
    from standalone.copying import Copying


@dataclass(frozen=True, slots=True)
class Standalone:
    """`segment_s_max`: after so many seconds a record is in the tier. `copying` None: nothing is copied here.

    If there are several workers, the one that writes the catalog's snapshot copies.
    """

    log_starts: TierLogStarts
    segment_s_max: float
    copying: "Copying | None"

    async def aclose(self) -> None:
        """Let go of all partitions; the nursery still runs."""
        if self.copying is not None:
            await self.copying.aclose()


def tier_log_starts(config: Config, cluster: Cluster, catalog: Catalog) -> TierLogStarts | None:
    """To be run; None in replica mode."""
    if config.mode is not Mode.STANDALONE:
        return None
    return TierLogStarts(CommittedLogStarts(GroupOffsets(cluster, LOG_START_GROUP)), catalog)


def open_standalone(
    config: Config,
    *,
    log_starts: TierLogStarts | None,
    cluster: Cluster,
    catalog: Catalog,
    started: StartedCatalog,
    storage_manager: RemoteStorageManager,
    readiness: Readiness,
    registry: Registry,
    copies: Callable[[], bool],
    tasks: Tasks,
) -> Standalone | None:
    """It runs among the tasks; None in replica mode.

    Args:
        copies: false while `copy.disable` is set.

    Raises:
        OSError: the tier's folder cannot be made.
        StorageConfigError: there is no metadata topic by this configuration, and it is copied here.
    """
    if log_starts is None:
        return None
    tasks.keep("log starts", partial(log_starts.run, partial(readiness.tell, TroubleId.LOG_STARTS_UNSURE)))
    copying = None
    is_copied_here = config.copy.is_enabled and config.catalog.snapshot_is_written
    if is_copied_here or started.event_log is not None:
        guard = open_guard(config, started, catalog, storage_manager, readiness, registry)
        tasks.keep("metadata guard", guard.run)
        if is_copied_here:
            from tidegate.copy_wiring import keep_copying, open_copying  # librdkafka, which nothing else here needs

            copying = open_copying(
                config,
                cluster=cluster,
                catalog=catalog,
                started=started,
                storage_manager=storage_manager,
                log_starts=log_starts.committed,
                guard=guard,
                meter=CopyMeter(registry),
                is_disabled=lambda: not copies(),
            )
            tasks.keep("copying", partial(keep_copying, copying))
    copy = config.copy
    return Standalone(log_starts, (copy.segment_ms + copy.lag_ms + 2 * copy.interval_ms) / 1000, copying)


def open_guard(
    config: Config,
    started: StartedCatalog,
    catalog: Catalog,
    storage_manager: RemoteStorageManager,
    readiness: Readiness,
    registry: Registry,
) -> MetadataTopicGuard:
    """Return what looks after the metadata topic, to be run.

    Raises:
        StorageConfigError: there is no metadata topic by this configuration.
    """
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
        meter=MetadataTopicMeter(registry),
        interval_s=config.copy.interval_ms / 1000,
    )
