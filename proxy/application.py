"""`tidegate serve`: everything put together, from configuration to clean shutdown.

One nursery holds all that outlives a client: fills, accept loops, own connections, upkeep. SIGTERM or SIGINT
drains: no new connection, answers that have begun are finished within `proxy.drain.timeout.ms`, exit 0. A second
signal stops at once.
"""

import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import structlog
import trio

from metrics.kip405 import Kip405Names
from metrics.probes import Probes
from metrics.registry import Registry
from protocol.client_messages import preload_schemas
from protocol.fetch_sessions import SessionSlots
from proxy import exit_codes
from proxy.address_book import LISTEN_BACKLOG, AddressBook, Target
from proxy.admin import serve_admin
from proxy.allocator import keep_freed_memory
from proxy.authority import LogStartGeneration
from proxy.catalog_start import start_catalog
from proxy.client_exchanges import ClientExchanges
from proxy.config.model import Config, ReadPreference
from proxy.config.ssl_contexts import server_ssl_context
from proxy.connection import ConnectionLimits
from proxy.fetch_service import FetchService, FetchSettings
from proxy.frontier import Frontiers
from proxy.lineages import Lineages
from proxy.list_offsets_service import ListOffsetsService
from proxy.logs import LogFormat, configure_logs
from proxy.loop_stall import watch_loop
from proxy.readiness import Readiness
from proxy.server import Server, ServerSettings
from proxy.sni_addressing import SniAddressBook, SniPattern, hear_server_names
from proxy.tier import CatalogTail, Tier
from proxy.tier_storage import TierStorage, TierStorageSettings, open_tier_storage
from proxy.timestamp_lookup import TimestampLookup
from proxy.upkeep import follow_upstream, take_gauges, watch_tier
from proxy.upstream.cluster import Cluster
from proxy.upstream.from_config import upstream_settings
from proxy.upstream.frontier_client import FrontierClient
from storage.cache.block_cipher import BlockCipher
from storage.cache.disk import DiskBlocks
from storage.config.ssl_contexts import client_ssl_context
from storage.errors import StorageConfigError
from storage.metadata.catalog import Catalog
from storage.model import RemoteLogSegmentId
from storage.registry import open_remote_storage_manager
from storage.remote_storage_manager import RemoteStorageManager

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Application:
    """What runs, for those who start it in tests and in the demo."""

    bootstrap: tuple[str, int]
    admin: tuple[str, int]
    readiness: Readiness
    probes: Probes
    server: Server
    addresses: AddressBook | SniAddressBook
    catalog: Catalog
    cluster: Cluster


async def serve(config: Config) -> int:
    """Run until a signal; the exit code."""
    keep_freed_memory()
    configure_logs(config.log.level.value, LogFormat(config.log.format.value))
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        exit_code = exit_codes.DONE
        try:
            async with run(config) as application:
                await _until_signal(config, application, signals)
        except* StorageConfigError as group:
            exit_code = exit_codes.USAGE
            _say_errors(group)
        except* OSError as group:
            exit_code = exit_codes.FOUND_WRONG
            _say_errors(group)
    return exit_code


def _say_errors(group: BaseExceptionGroup[Exception]) -> None:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            _say_errors(error)
        else:
            print(f"tidegate: {error}", file=sys.stderr)


async def _until_signal(config: Config, application: Application, signals: AsyncIterator[int]) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_say_ready, application)
        await anext(signals)
        nursery.cancel_scope.cancel()
    _log.info("draining", connections=application.server.connections)
    application.readiness.drain()
    application.server.drain()
    async with trio.open_nursery() as nursery:

        async def stop_at_second_signal() -> None:
            await anext(signals)
            _log.warning("stopped_at_once", connections=application.server.connections)
            nursery.cancel_scope.cancel()

        nursery.start_soon(stop_at_second_signal)
        with trio.move_on_after(config.proxy.drain_timeout_ms / 1000) as drain:
            await application.server.wait_empty()
        if drain.cancelled_caught:
            _log.warning("drain_timed_out", connections=application.server.connections)
        nursery.cancel_scope.cancel()


async def _say_ready(application: Application) -> None:
    await application.readiness.wait_ready()
    host, port = application.bootstrap
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    brokers, segments = len(application.cluster.brokers), application.catalog.segment_count
    print(f"ready: bootstrap {address}, brokers {brokers}, segments {segments}", file=sys.stderr, flush=True)


@asynccontextmanager
async def run(
    config: Config,
    *,
    open_storage_manager: Callable[[str, Mapping[str, str]], RemoteStorageManager] = open_remote_storage_manager,
) -> AsyncIterator[Application]:
    """The application, listening; it is torn down when the block is left.

    Args:
        open_storage_manager: gives the object store's manager by class name and configuration; closed at the end.

    Raises:
        OSError: a listener cannot be bound (names address and key).
        RemoteStorageError: the storage plug-in's configuration is wrong.
    """
    probes = Probes(Registry(Kip405Names(config.metrics.kip405_names.value)))
    readiness = Readiness()
    storage_manager = open_storage_manager(config.remote_storage_manager_class_name, config.remote_storage_config)
    disk_blocks: DiskBlocks | None = None
    try:
        disk_blocks = _disk_blocks(config, storage_manager.identity, probes)
        async with trio.open_nursery() as nursery:
            cluster = Cluster(upstream_settings(config.upstream.bootstrap_servers, config.upstream.security), nursery)
            # A second of imports, better now than in the first question's way.
            await trio.to_thread.run_sync(preload_schemas)
            limiter = trio.CapacityLimiter(config.tier.concurrent_gets_max)
            catalog = Catalog(config.catalog.segments_max)
            tail = await start_catalog(config, cluster, catalog, readiness, probes, nursery)
            tier_storage = open_tier_storage(
                _tier_storage_settings(config),
                storage_manager,
                catalog,
                nursery=nursery,
                limiter=limiter,
                probes=probes,
                disk_blocks=disk_blocks,
            )
            nursery.start_soon(tier_storage.run)
            tier, lookup = _tier(config, cluster, catalog, tail, tier_storage, probes, nursery)
            server, addresses, bootstrap = await _listen(config, cluster, tier, lookup, probes, nursery)
            admin = await nursery.start(
                serve_admin, config.admin.listen.host, config.admin.listen.port, readiness, probes.registry
            )
            nursery.start_soon(follow_upstream, cluster, addresses, readiness)
            nursery.start_soon(watch_tier, storage_manager, catalog.any_segment, limiter, readiness)
            nursery.start_soon(take_gauges, tier_storage.slots, probes)
            nursery.start_soon(_sweep, readiness, tier_storage, catalog)
            nursery.start_soon(watch_loop, probes.loop)
            yield Application(bootstrap, admin, readiness, probes, server, addresses, catalog, cluster)
            nursery.cancel_scope.cancel()
    finally:
        if disk_blocks is not None:
            disk_blocks.close()
        storage_manager.close()


async def _sweep(readiness: Readiness, tier_storage: TierStorage, catalog: Catalog) -> None:
    # Not before the catalog is live: until then it does not know all that is in the tier.
    await readiness.wait_ready()
    await tier_storage.drop_unknown(catalog.known_among)


def _tier_storage_settings(config: Config) -> TierStorageSettings:
    cache, readahead, tier = config.cache, config.readahead, config.tier
    return TierStorageSettings(
        block_bytes=cache.block_bytes,
        memory_bytes_max=cache.memory_bytes,
        readahead_stream_bytes_max=readahead.stream_bytes_max,
        readahead_total_bytes_max=readahead.total_bytes_max,
        inflight_bytes_max=tier.inflight_bytes_max,
        gets_max=tier.concurrent_gets_max,
        hedge_gets_per_minute_min=tier.hedge_gets_per_minute_min,
        retention_s=_retention_s(config),
    )


def _retention_s(config: Config) -> float | None:
    return None if config.cache.retention_ms < 0 else config.cache.retention_ms / 1000


def _disk_blocks(config: Config, identity: str, probes: Probes) -> DiskBlocks | None:
    cache = config.cache
    if cache.path is None or cache.disk_bytes == 0:
        return None
    return DiskBlocks(
        cache.path,
        bytes_max=cache.disk_bytes,
        identity=identity,
        cipher=_block_cipher(config),
        retention_s=_retention_s(config),
        probe=probes.cache,
    )


def _tier(
    config: Config,
    cluster: Cluster,
    catalog: Catalog,
    tail: CatalogTail,
    tier_storage: TierStorage,
    probes: Probes,
    nursery: trio.Nursery,
) -> tuple[Tier, TimestampLookup]:
    token = trio.lowlevel.current_trio_token()

    def removed(segment_id: RemoteLogSegmentId) -> None:
        # The record may have been applied in another thread; the caches belong to this one.
        token.run_sync_soon(tier_storage.drop_segment, segment_id.id)

    catalog.on_segment_removed(removed)
    client = FrontierClient(cluster)
    lineages = Lineages(client, cluster, catalog)
    tier = Tier(
        catalog=catalog,
        tail=tail,
        reader=tier_storage.reader,
        frontiers=Frontiers(client, nursery, age_s_max=config.authority.frontier_age_ms_max / 1000),
        lineages=lineages,
        cluster=cluster,
        probe=probes.tier,
    )
    lookup = TimestampLookup(
        tier=tier, client=client, lineages=lineages, search=tier_storage.timestamps, probe=probes.tier
    )
    return tier, lookup


def _block_cipher(config: Config) -> BlockCipher | None:
    if not config.cache.encrypt:
        return None
    key_file = config.cache.encrypt_key_file
    return BlockCipher.generate() if key_file is None else BlockCipher.from_file(key_file)


async def _listen(
    config: Config, cluster: Cluster, tier: Tier, lookup: TimestampLookup, probes: Probes, nursery: trio.Nursery
) -> tuple[Server, AddressBook | SniAddressBook, tuple[str, int]]:
    proxy = config.proxy
    fetch_settings = FetchSettings(
        authority_age_s_max=config.authority.age_ms_max / 1000,
        fetch_wait_s_max=config.tier.fetch_wait_ms_max / 1000,
        linger_s=config.tier.linger_ms / 1000,
        read_prefer_tier=proxy.read_prefer is ReadPreference.TIER,
    )
    generation = LogStartGeneration()
    slots = SessionSlots(on_changed=probes.relay.on_fetch_sessions)

    def handlers() -> ClientExchanges:
        fetches = FetchService(tier=tier, settings=fetch_settings, generation=generation, slots=slots, probes=probes)
        return ClientExchanges(
            fetches, ListOffsetsService(lookup, timeout_s=config.tier.list_offsets_timeout_ms / 1000), generation
        )

    server = Server(
        _server_settings(config),
        nursery,
        handlers=handlers,
        node_at=lambda host, port: _node_at(cluster, host, port),
        probe=probes.relay,
        known_brokers=lambda: [(node.host, node.port) for node in cluster.brokers.values()],
    )
    try:
        listeners = await trio.open_tcp_listeners(
            proxy.listen.port, host=proxy.listen.host or None, backlog=LISTEN_BACKLOG
        )
    except OSError as error:
        raise OSError(f"cannot listen on {proxy.listen}, which proxy.listen names: {error}") from error
    host, port = listeners[0].socket.getsockname()[:2]
    target = Target(None, tuple((server.host, server.port) for server in config.upstream.bootstrap_servers))
    if proxy.tls_sni_pattern is None:
        book = server.addresses = AddressBook(proxy, nursery, server.serve)
        nursery.start_soon(server.serve, listeners, target)
        return server, book, (str(host), int(port))
    names = server.addresses = SniAddressBook(
        SniPattern(proxy.tls_sni_pattern),
        int(port) if proxy.advertised_port_start is None else proxy.advertised_port_start,
        bootstrap=target,
        known_address=lambda node_id: _address_of(cluster, node_id),
    )
    nursery.start_soon(server.serve_by_name, listeners, names.target_for)
    return server, names, (str(host), int(port))


def _server_settings(config: Config) -> ServerSettings:
    proxy, relay_tls = config.proxy, config.upstream.security.relay_tls
    client_tls = None if proxy.tls is None else server_ssl_context(proxy.tls)
    if client_tls is not None and proxy.tls_sni_pattern is not None:
        hear_server_names(client_tls)
    return ServerSettings(
        ConnectionLimits(
            proxy.request_frame_bytes_max,
            proxy.response_held_bytes_max,
            proxy.relay_rewrite_bytes_max,
            proxy.inflight_requests_max,
        ),
        proxy.connections_max,
        client_tls,
        None if relay_tls is None else client_ssl_context(relay_tls),
    )


def _address_of(cluster: Cluster, node_id: int) -> tuple[str, int] | None:
    """What the broker advertises, if there is one of this id."""
    node = cluster.brokers.get(node_id)
    return None if node is None else (node.host, node.port)


def _node_at(cluster: Cluster, host: str, port: int) -> int | None:
    """The broker that advertises this address, if one does."""
    return next((node.node_id for node in cluster.brokers.values() if (node.host, node.port) == (host, port)), None)
