"""From configuration to a catalog that fills: which metadata manager, over which connections."""

from dataclasses import dataclass

import trio

from metrics.probes import Probes
from proxy.config.model import Config
from proxy.fetch.tier import CatalogTail
from proxy.process.catalog_snapshot import CatalogSnapshots
from proxy.process.catalog_tail import InMemoryCatalogTail, TopicCatalogTail
from proxy.process.upkeep import follow_catalog, measure_catalog
from proxy.readiness import Readiness
from proxy.upstream.cluster import Cluster
from proxy.upstream.metadata_topic import KafkaMetadataTopicClient
from storage.config.client_settings import client_settings
from storage.metadata.catalog import Catalog
from storage.metadata.in_memory import InMemoryRemoteLogMetadataManager
from storage.metadata.manager import TopicBasedRemoteLogMetadataManager
from storage.metadata.topic_log import TopicMetadataEventLog
from storage.registry import MetadataManagerKind, metadata_manager_kind


@dataclass(slots=True)
class StartedCatalog:
    """A catalog that fills."""

    tail: CatalogTail
    snapshots: CatalogSnapshots | None = None

    async def aclose(self) -> None:
        """Write the last snapshot, within a time limit of its own; before the nursery of `start_catalog` ends."""
        if self.snapshots is None:
            await trio.lowlevel.checkpoint()
        else:
            await self.snapshots.aclose()


async def start_catalog(
    config: Config,
    cluster: Cluster,
    catalog: Catalog,
    readiness: Readiness,
    probes: Probes,
    nursery: trio.Nursery,
) -> StartedCatalog:
    """Have the catalog filled and followed in the nursery; returns at once, `readiness` tells the rest."""
    if metadata_manager_kind(config.remote_log_metadata_manager_class_name) is MetadataManagerKind.IN_MEMORY:
        InMemoryRemoteLogMetadataManager(catalog).follow_all()
        readiness.catalog_live(0)
        return StartedCatalog(InMemoryCatalogTail())
    client, upstream = config.metadata_client, config.upstream
    metadata_cluster = cluster
    if (client.bootstrap_servers, client.security) != (upstream.bootstrap_servers, upstream.security):
        metadata_cluster = Cluster(client_settings(client.bootstrap_servers, client.security), nursery)
    event_log = TopicMetadataEventLog(KafkaMetadataTopicClient(metadata_cluster))
    manager = TopicBasedRemoteLogMetadataManager(event_log, catalog)

    snapshots = None
    if config.catalog.snapshot_path is not None:
        snapshots = CatalogSnapshots(
            config.catalog.snapshot_path,
            interval_s=config.catalog.snapshot_interval_ms / 1000,
            catalog=catalog,
            event_log=event_log,
            manager=manager,
            cluster_id=lambda: metadata_cluster.cluster_id,
            probe=probes.catalog,
        )

    async def follow() -> None:
        async with trio.open_nursery() as reading:
            if snapshots is not None:
                reading.start_soon(snapshots.read)
            await nursery.start(event_log.run)
        manager.follow_all({} if snapshots is None else await snapshots.adopt())
        if snapshots is not None:
            nursery.start_soon(snapshots.run)
        nursery.start_soon(measure_catalog, event_log, manager, catalog, probes)

    nursery.start_soon(follow)
    nursery.start_soon(follow_catalog, event_log, manager, catalog, readiness, probes)
    await trio.lowlevel.checkpoint()
    tail = TopicCatalogTail(manager, event_log.partition_count, event_log.sample_ranges, nursery)
    return StartedCatalog(tail, snapshots)
