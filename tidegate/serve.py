"""`tidegate serve`: everything put together, from configuration to clean shutdown.

One nursery holds all that outlives a client: accept loops, and by way of `proxy.tasks`, which begins again what fails,
fills, own connections and upkeep. Signals are
`tidegate.life_cycle`'s matter.
"""

import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import trio

from metrics.meters import Meters
from metrics.registry import Registry
from protocol.client.messages import preload_schemas
from protocol.fetch.sessions import PARTITION_BYTES, SessionSlots
from protocol.wire.identifiers import ApiKey
from proxy.connection.accounts import Accounts
from proxy.connection.address_book import (
    AddressBook,
    Book,
    KnownBrokers,
    KnownBrokersFile,
    SniAddressBook,
    SniPattern,
    Target,
    open_listeners,
)
from proxy.connection.audit import Audit
from proxy.connection.connection import Advertiser
from proxy.connection.names import Groups
from proxy.connection.request_handlers import ClientReads, Exchange
from proxy.connection.server import Server, TargetFor
from proxy.fetch.fallback import Fallback
from proxy.fetch.known import Frontiers, Lineages, LogStartGeneration
from proxy.fetch.service import FetchService
from proxy.fetch.tier import CatalogTail, Tier
from proxy.offsets.service import ListOffsetsService
from proxy.offsets.timestamp_lookup import TimestampLookup
from proxy.readiness import Readiness
from proxy.tasks import Tasks
from proxy.tier_owner import TierOwner
from proxy.upstream.cluster import Cluster, FrontierClient
from storage.buffers import keep_freed_memory
from storage.cache.block_cipher import BlockCipher
from storage.cache.byte_budget import ByteBudget
from storage.cache.disk import DiskBlocks
from storage.config.client_settings import client_settings
from storage.config.registry import open_remote_storage_manager, stored_bytes
from storage.config.ssl_contexts import client_ssl_context
from storage.errors import StorageConfigError
from storage.metadata.catalog import Catalog
from storage.metadata.snapshot import Snapshot
from storage.remote_storage_manager import RemoteStorageManager
from tidegate import exit_codes
from tidegate.admin import OwnPages, Pages, serve_admin
from tidegate.audit_log import AuditLog
from tidegate.catalog import StartedCatalog, start_catalog
from tidegate.client_view import watch_client_view
from tidegate.config.load import load
from tidegate.config.model import INDEXES_SHARE, SESSIONS_SHARE, Config, memory_share
from tidegate.life_cycle import SIGNALS, LifeCycle, SystemdNotify
from tidegate.live_settings import LiveSettings
from tidegate.log_lines import lines_in_thread
from tidegate.logs import configure_logs
from tidegate.reload import Reloader
from tidegate.standalone_wiring import open_standalone, tier_owner
from tidegate.start_lines import say_end, say_errors, say_start, tell_start
from tidegate.status.collect import Collector, TierSide
from tidegate.tier_storage import TierStorage, TierStorageSettings, open_tier_storage
from tidegate.topics import follow_topics
from tidegate.upkeep import follow_brokers, take_gauges, watch_loop, watch_tier

# The listeners towards clients: the bootstrap listener, and how brokers are distinguished.


class Acceptor(Protocol):
    """Who has the connections that listeners accept; see `proxy.connection.server.Server`."""

    addresses: Advertiser | None

    async def serve(self, listeners: Sequence[trio.SocketListener], target: Target) -> None: ...

    async def serve_by_name(self, listeners: Sequence[trio.SocketListener], target_for: TargetFor) -> None: ...


async def listen(
    config: Config, cluster: Cluster, server: Acceptor, known: KnownBrokers, readiness: Readiness, nursery: trio.Nursery
) -> tuple[AddressBook | SniAddressBook, tuple[str, int]]:
    """Accept clients, for the known brokers too; return the listeners of brokers, and the bootstrap listener's address.

    Raises:
        OSError: it cannot be bound; the message names address and key.
    """
    proxy = config.proxy
    listeners = await open_listeners(proxy.listen, "proxy.listen")
    host, port = listeners[0].socket.getsockname()[:2]
    target = bootstrap_target(config)
    if proxy.tls_sni_pattern is None:
        book = server.addresses = AddressBook(proxy, nursery, server.serve, readiness=readiness, ports=known.ports)
        await book.follow(known.brokers)
        nursery.start_soon(server.serve, listeners, target)
        return book, (str(host), int(port))
    names = server.addresses = server_names(config, cluster, int(port))
    await names.follow(known.brokers)
    nursery.start_soon(server.serve_by_name, listeners, names.target_for)
    return names, (str(host), int(port))


def bootstrap_target(config: Config) -> Target:
    """Any broker."""
    return Target(None, tuple((server.host, server.port) for server in config.upstream.bootstrap_servers))


def server_names(config: Config, cluster: Cluster, bound_port: int) -> SniAddressBook:
    """Return what clients get where one port stands for all brokers."""
    assert config.proxy.tls_sni_pattern is not None
    told_port = config.proxy.advertised_port_start
    return SniAddressBook(
        SniPattern(config.proxy.tls_sni_pattern),
        bound_port if told_port is None else told_port,
        bootstrap=bootstrap_target(config),
        known_address=lambda node_id: address_of(cluster, node_id),
    )


def address_of(cluster: Cluster, node_id: int) -> tuple[str, int] | None:
    """Return what the broker advertises, if there is one of this id."""
    node = cluster.brokers.get(node_id)
    return None if node is None else (node.host, node.port)


def node_at(cluster: Cluster, host: str, port: int) -> int | None:
    """The broker that advertises this address, if one does."""
    return next((node.node_id for node in cluster.brokers.values() if (node.host, node.port) == (host, port)), None)


# How clients and operators reach a process: by listeners of its own, or through a supervisor (`proxy.workers`).


@dataclass(frozen=True, slots=True)
class Listening:
    """`known`: where the brokers are kept for the next start."""

    addresses: Book
    bootstrap: tuple[str, int]
    known: KnownBrokersFile


class Front(Protocol):
    """What faces clients and operators."""

    def load(self) -> Config:
        """The configuration as it is now; raises ConfigError."""
        ...

    async def listen(self, cluster: Cluster, server: Server, readiness: Readiness, tasks: Tasks) -> Listening:
        """Serve clients from now on; raises OSError."""
        ...

    async def show(self, pages: OwnPages, tasks: Tasks) -> tuple[str, int]:
        """Show the pages; return where. Raises OSError."""
        ...


class OwnFront:
    """Implements `Front` with listeners of its own."""

    def __init__(self, config: Config, settings: LiveSettings, workers: int = 1) -> None:
        self._config, self._settings, self._workers = config, settings, workers

    def load(self) -> Config:
        return load(self._config.files[""], os.environ)

    async def listen(self, cluster: Cluster, server: Acceptor, readiness: Readiness, tasks: Tasks) -> Listening:
        tell_start(self._config, readiness, self._workers)
        servers = map(str, self._config.upstream.bootstrap_servers)
        known = KnownBrokersFile(self._config.catalog.snapshot_path, servers)
        addresses, bootstrap = await listen(self._config, cluster, server, await known.read(), readiness, tasks.nursery)
        tasks.keep("known brokers", known.run)
        client_view = partial(watch_client_view, self._config.proxy, lambda: self._settings.tls, cluster, readiness)
        tasks.keep("client view", client_view)
        return Listening(addresses, bootstrap, known)

    async def show(self, pages: Pages, tasks: Tasks) -> tuple[str, int]:
        address: tuple[str, int] = await tasks.nursery.start(serve_admin, self._config.admin, pages)
        return address


# One client connection's exchanges: its Fetches and its requests about offsets, and what they have in common.


class ClientExchanges:
    """Implements `RequestHandlers`.

    Args:
        others: beside Fetch, by API key.
    """

    def __init__(self, fetches: FetchService, others: Mapping[int, Exchange], generation: LogStartGeneration) -> None:
        self.exchanges: Mapping[int, Exchange] = {**others, ApiKey.FETCH: fetches.handle}
        self._fetches = fetches
        self._generation = generation

    def on_answered(self) -> None:
        """Free what the answer held of the tier's memory."""
        self._fetches.on_answered()

    def close(self) -> None:
        """The client has gone."""
        self._fetches.close()

    def forget_authority(self) -> None:
        """The client may be somebody else from now on, or have other rights."""
        self._fetches.forget_authority()

    def on_log_start_moved(self) -> None:
        """Every connection's good probes are void."""
        self._generation.value += 1


@dataclass(slots=True)
class Application:
    """What runs, for those who start it in tests and in the demo; implements `tidegate.life_cycle.Running`."""

    bootstrap: tuple[str, int]
    admin: tuple[str, int]
    readiness: Readiness
    meters: Meters
    server: Server
    addresses: Book
    catalog: Catalog
    cluster: Cluster
    settings: LiveSettings
    reloader: Reloader
    closing: trio.CancelScope = field(default_factory=trio.CancelScope)

    @property
    def drain_delay_s(self) -> float:
        return self.settings.drain_delay_s

    @property
    def drain_timeout_s(self) -> float:
        return self.settings.drain_timeout_s

    @property
    def ready_line(self) -> str:
        """Return what is said at the first readiness."""
        listened = self.cluster.brokers.keys() - self.addresses.withheld.keys()
        return ready_line(self.bootstrap, len(listened), len(self.cluster.brokers), self.catalog.finished_count)


def ready_line(bootstrap: tuple[str, int], listened: int, known: int, segments: int) -> str:
    """Return what others wait for on standard error (docs/protocol.md).

    Args:
        listened: brokers that this process listens for, of those that are known.
    """
    host, port = bootstrap
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    brokers = f"{known}" if listened == known else f"{listened} of {known}"
    return f"ready: bootstrap {address}, brokers {brokers}, segments {segments}"


async def serve(config: Config) -> int:
    """Run until a signal; the exit code."""
    keep_freed_memory()
    configure_logs(config.log.level, config.log.format)
    with lines_in_thread():
        say_start(config)
        exit_code = exit_codes.DONE
        with trio.open_signal_receiver(*SIGNALS) as signals:
            try:
                await LifeCycle(signals, SystemdNotify(os.environ)).run(lambda: run(config))
            except* StorageConfigError as group:
                exit_code = exit_codes.USAGE
                say_errors(group)
            except* OSError as group:
                exit_code = exit_codes.FOUND_WRONG
                say_errors(group)
        say_end(exit_code)
    return exit_code


@asynccontextmanager
async def run(
    config: Config,
    *,
    front: Front | None = None,
    snapshot: Snapshot | None = None,
    open_storage_manager: Callable[[str, Mapping[str, str]], RemoteStorageManager] | None = None,
) -> AsyncIterator[Application]:
    """The application, listening; it is torn down when the block is left.

    Args:
        front: how it is reached; None: by listeners of its own.
        snapshot: the catalog's, if somebody has read it already.
        open_storage_manager: gives the object store's manager by class name and configuration; closed at the end.

    Raises:
        OSError: a listener cannot be bound, or the audit log not written (names key and address or path).
        RemoteStorageError: the storage plug-in's configuration is wrong.
    """
    meters = Meters(Registry(config.metrics.kip405_names, config.metrics.topics_max))
    readiness, settings = Readiness(meters.health, logs=front is None), LiveSettings(config)
    front = OwnFront(config, settings) if front is None else front
    storage_manager = _storage_manager(config, open_storage_manager)
    disk_blocks: DiskBlocks | None = None
    try:
        disk_blocks = _disk_blocks(config, storage_manager.identity, meters)
        async with trio.open_nursery() as nursery:
            tasks = Tasks(nursery, meters.tasks, readiness.tasks_fail)
            cluster = Cluster(client_settings(config.upstream), tasks)
            # A second of imports, better now than in the first question's way.
            await trio.to_thread.run_sync(preload_schemas)
            limiter = trio.CapacityLimiter(config.tier.concurrent_gets_max)
            catalog = Catalog(config.catalog.segments_max)
            owner = tier_owner(config, cluster, catalog, meters.tier)
            started_catalog = await start_catalog(config, cluster, catalog, readiness, meters, tasks, snapshot, owner)
            tier_storage = _tier_storage(config, storage_manager, catalog, disk_blocks, limiter, meters, tasks)
            tasks.start_soon(_close_at_end, storage_manager)
            tier_parts = _TierParts(
                cluster, catalog, owner, started_catalog, storage_manager, tier_storage, disk_blocks
            )
            server, read_tier = _serving(config, settings, tier_parts, readiness, meters, tasks)
            listening = await front.listen(cluster, server, readiness, tasks)
            collector = Collector(readiness, cluster, read_tier, server, meters)
            pages = OwnPages(readiness, meters.registry, tier_storage.streams, collector.status, server.groups)
            admin = await front.show(pages, tasks)
            reloader = Reloader(config, front.load, settings.follow, meters, readiness)
            bootstrap, book = listening.bootstrap, listening.addresses
            tasks.keep("configuration", reloader.run)
            tasks.keep("status", collector.run)
            tasks.keep("upstream", partial(follow_brokers, cluster, book, listening.known, readiness))
            tasks.keep("topics", partial(follow_topics, cluster, catalog, read_tier.fallback))
            tasks.keep("tier", partial(watch_tier, storage_manager, catalog.some_segments, limiter, readiness))
            tasks.keep("gauges", partial(take_gauges, tier_storage, read_tier.fallback, server, readiness, meters))
            tasks.keep("cache sweep", partial(_sweep, readiness, tier_storage, catalog))
            tasks.keep("loop", partial(watch_loop, meters.loop))
            application = Application(
                bootstrap, admin, readiness, meters, server, book, catalog, cluster, settings, reloader
            )
            yield application
            with application.closing:
                if read_tier.copying is not None:
                    await read_tier.copying.aclose()
                await started_catalog.aclose()
            nursery.cancel_scope.cancel()
    finally:
        if disk_blocks is not None:
            disk_blocks.close()
        storage_manager.close()


def _storage_manager(
    config: Config, open_manager: Callable[[str, Mapping[str, str]], RemoteStorageManager] | None
) -> RemoteStorageManager:
    if open_manager is None:
        open_manager = partial(open_remote_storage_manager, prefix=config.remote_storage_prefix)
    return open_manager(config.remote_storage_manager_class_name, config.remote_storage_config)


async def _close_at_end(storage_manager: RemoteStorageManager) -> None:
    """The nursery ends when its threads do, and one may wait for a store that says nothing more."""
    try:
        await trio.sleep_forever()
    finally:
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
        indexes_bytes_max=memory_share(config.memory_bytes_max, INDEXES_SHARE),
        gets_max=tier.concurrent_gets_max,
        hedge_gets_per_minute_min=tier.hedge_gets_per_minute_min,
        retention_s=_retention_s(config),
    )


def _retention_s(config: Config) -> float | None:
    return None if config.cache.retention_ms < 0 else config.cache.retention_ms / 1000


def _disk_blocks(config: Config, identity: str, meters: Meters) -> DiskBlocks | None:
    cache = config.cache
    if cache.path is None or cache.disk_bytes == 0:
        return None
    return DiskBlocks(
        cache.path,
        bytes_max=cache.disk_bytes,
        identity=identity,
        cipher=_block_cipher(config),
        retention_s=_retention_s(config),
        meter=meters.cache,
    )


def _tier(
    settings: LiveSettings,
    cluster: Cluster,
    catalog: Catalog,
    tail: CatalogTail,
    tier_storage: TierStorage,
    meters: Meters,
    tasks: Tasks,
    owner: TierOwner,
    is_loaded: Callable[[], bool],
) -> Tier:
    catalog.on_segment_removed(tier_storage.segment_removed)
    client = FrontierClient(cluster)
    frontiers = settings.frontiers = Frontiers(client, tasks, age_s_max=settings.frontier_age_s_max, owner=owner)
    lineages = Lineages(client, cluster, catalog, tasks, owner)
    tier = Tier(
        catalog=catalog,
        tail=tail,
        reader=tier_storage.reader,
        frontiers=frontiers,
        lineages=lineages,
        cluster=cluster,
        meter=meters.tier,
        is_loaded=is_loaded,
    )
    return tier


@dataclass(frozen=True, slots=True)
class _TierParts:
    cluster: Cluster
    catalog: Catalog
    owner: TierOwner
    started: StartedCatalog
    storage_manager: RemoteStorageManager
    storage: TierStorage
    disk_blocks: DiskBlocks | None


def _serving(
    config: Config, settings: LiveSettings, parts: _TierParts, readiness: Readiness, meters: Meters, tasks: Tasks
) -> tuple[Server, TierSide]:
    """Return what answers clients, and what of the tier the status page tells."""
    cluster, catalog, started, storage = parts.cluster, parts.catalog, parts.started, parts.storage

    def is_loaded() -> bool:
        return readiness.catalog_was_live

    tier = _tier(settings, cluster, catalog, started.tail, storage, meters, tasks, parts.owner, is_loaded)
    fallback = Fallback(settings.fallback, meters.fallback, left_to=parts.owner.left_to)
    copying = open_standalone(
        config,
        parts.owner,
        frontiers=tier.frontiers,
        cluster=cluster,
        catalog=catalog,
        started=started,
        storage_manager=parts.storage_manager,
        readiness=readiness,
        registry=meters.registry,
        copies=lambda: settings.copies,
        tasks=tasks,
    )
    server = _server(config, settings, cluster, tier, fallback, storage, readiness, meters, tasks)
    return server, TierSide(
        catalog,
        started,
        tier.frontiers,
        storage,
        parts.disk_blocks,
        fallback,
        parts.storage_manager.identity,
        partial(stored_bytes, config.remote_storage_manager_class_name),
        copying,
    )


def _tier_storage(
    config: Config,
    storage_manager: RemoteStorageManager,
    catalog: Catalog,
    disk_blocks: DiskBlocks | None,
    limiter: trio.CapacityLimiter,
    meters: Meters,
    tasks: Tasks,
) -> TierStorage:
    tier_storage = open_tier_storage(
        _tier_storage_settings(config),
        storage_manager,
        catalog,
        nursery=tasks,
        limiter=limiter,
        meters=meters,
        disk_blocks=disk_blocks,
    )
    tasks.keep("cache", tier_storage.run)
    return tier_storage


def _block_cipher(config: Config) -> BlockCipher | None:
    if not config.cache.encrypt:
        return None
    key_file = config.cache.encrypt_key_file
    return BlockCipher.generate() if key_file is None else BlockCipher.from_file(key_file)


def _accounts(config: Config, settings: LiveSettings, tier_storage: TierStorage, meters: Meters) -> Accounts:
    held_bytes_max = config.proxy.held_bytes_max
    held = ByteBudget(held_bytes_max, meters.relay.on_held_bytes, little_bytes=held_bytes_max // 8)
    return Accounts(held, tier_storage.answers, settings.accounts, meters.relay)


def _server(
    config: Config,
    settings: LiveSettings,
    cluster: Cluster,
    tier: Tier,
    fallback: Fallback,
    tier_storage: TierStorage,
    readiness: Readiness,
    meters: Meters,
    tasks: Tasks,
) -> Server:
    accounts = _accounts(config, settings, tier_storage, meters)
    tasks.keep("accounts", accounts.run)
    generation, relay_tls = LogStartGeneration(), config.upstream.security.relay_tls
    groups = Groups() if config.admin.client_names or config.audit.log is not None else None
    slots = SessionSlots(
        partitions_max=memory_share(config.memory_bytes_max, SESSIONS_SHARE) // PARTITION_BYTES,
        on_changed=meters.relay.on_fetch_sessions,
    )
    lookup = TimestampLookup(tier, tier_storage.timestamps)
    owners = tier.owner.exchanges(tier, tier_storage.timestamps, generation)

    def handlers(client: ClientReads) -> ClientExchanges:
        fetches = FetchService(
            tier=tier,
            client=client,
            fallback=fallback,
            settings=settings.fetch,
            generation=generation,
            slots=slots,
            meters=meters,
        )
        timeout_s = settings.list_offsets_timeout_s
        offsets = ListOffsetsService(lookup, fallback, timeout_s=timeout_s)
        return ClientExchanges(fetches, {ApiKey.LIST_OFFSETS: offsets.handle, **owners(timeout_s)}, generation)

    server = settings.server = Server(
        settings.server_settings,
        tasks,
        handlers=handlers,
        accounts=accounts,
        node_at=lambda host, port: node_at(cluster, host, port),
        meter=meters.relay,
        upstream_tls=None if relay_tls is None else client_ssl_context(relay_tls),
        proxy_trusted=config.proxy.protocol_trusted,
        known_brokers=lambda: [(node.host, node.port) for node in cluster.brokers.values()],
        groups=groups,
        audit=None if groups is None else _audit(config, groups, readiness, meters, tasks),
    )
    tasks.keep("idle connections", server.watch)
    return server


def _audit(config: Config, groups: Groups, readiness: Readiness, meters: Meters, tasks: Tasks) -> Audit | None:
    if config.audit.log is None:
        return None
    log = AuditLog(config.audit.log, meters.audit, groups, readiness)
    tasks.keep("audit log", log.run)
    return log.audit
