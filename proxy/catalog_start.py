"""From configuration to a catalog that fills: which metadata manager, over which connections."""

import trio

from metrics.probes import Probes
from proxy.catalog_tail import InMemoryCatalogTail, TopicCatalogTail
from proxy.config.model import Config
from proxy.readiness import Readiness
from proxy.tier import CatalogTail
from proxy.upkeep import follow_catalog, measure_catalog
from proxy.upstream.cluster import Cluster
from proxy.upstream.from_config import upstream_settings
from proxy.upstream.metadata_topic import KafkaMetadataTopicClient
from storage.metadata.catalog import Catalog
from storage.metadata.in_memory import InMemoryRemoteLogMetadataManager
from storage.metadata.manager import TopicBasedRemoteLogMetadataManager
from storage.metadata.topic_log import TopicMetadataEventLog
from storage.registry import MetadataManagerKind, metadata_manager_kind


async def start_catalog(
    config: Config,
    cluster: Cluster,
    catalog: Catalog,
    readiness: Readiness,
    probes: Probes,
    nursery: trio.Nursery,
) -> CatalogTail:
    """Have the catalog filled and followed in the nursery; returns at once, `readiness` tells the rest."""
    if metadata_manager_kind(config.remote_log_metadata_manager_class_name) is MetadataManagerKind.IN_MEMORY:
        InMemoryRemoteLogMetadataManager(catalog).follow_all()
        readiness.catalog_live(0)
        return InMemoryCatalogTail()
    client, upstream = config.metadata_client, config.upstream
    metadata_cluster = cluster
    if (client.bootstrap_servers, client.security) != (upstream.bootstrap_servers, upstream.security):
        metadata_cluster = Cluster(upstream_settings(client.bootstrap_servers, client.security), nursery)
    event_log = TopicMetadataEventLog(KafkaMetadataTopicClient(metadata_cluster))
    manager = TopicBasedRemoteLogMetadataManager(event_log, catalog)

    async def follow() -> None:
        await nursery.start(event_log.run)
        manager.follow_all()
        nursery.start_soon(measure_catalog, event_log, manager, catalog, probes)

    nursery.start_soon(follow)
    nursery.start_soon(follow_catalog, event_log, manager, catalog, readiness, probes)
    await trio.lowlevel.checkpoint()
    return TopicCatalogTail(manager, event_log.partition_count, event_log.sample_high_watermarks)
