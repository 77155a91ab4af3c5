"""What answers clients: the way of a request, put together over the tier that is read."""

from collections.abc import Callable
from dataclasses import dataclass

from protocol.fetch.sessions import PARTITION_BYTES, SessionSlots
from protocol.wire.identifiers import ApiKey
from proxy.connection.accounts import Accounts
from proxy.connection.audit import Audit
from proxy.connection.client_reads import ClientReads
from proxy.connection.names import Groups
from proxy.connection.request_handlers import RequestHandlers
from proxy.connection.server import Server
from proxy.fetch.authorities import LogStartGeneration
from proxy.fetch.fallback import Fallback
from proxy.fetch.frontiers import Frontiers
from proxy.fetch.lineages import Lineages
from proxy.fetch.service import FetchService
from proxy.fetch.tier import Tier
from proxy.offsets.service import ListOffsetsService
from proxy.offsets.timestamp_lookup import TimestampLookup
from proxy.upstream.cluster import Cluster
from proxy.upstream.partition_questions import FrontierClient
from storage.cache.byte_budget import ByteBudget
from storage.config.ssl_contexts import client_ssl_context
from tidegate.audit_log import AuditLog
from tidegate.config.model import SESSIONS_SHARE, memory_share
from tidegate.process import Process
from tidegate.read_tier import ReadTier


@dataclass(frozen=True, slots=True)
class Answering:
    """The server takes connections; `fallback` says which reads are left to the brokers."""

    server: Server
    frontiers: Frontiers
    fallback: Fallback


def open_answering(process: Process, read: ReadTier) -> Answering:
    """A server that listens nowhere yet.

    Raises:
        OSError: the audit log cannot be written.
    """
    config, settings, meters, tasks = process.config, process.settings, process.meters, process.tasks
    tier = _tier(process, read)
    fallback = Fallback(settings.fallback, meters.fallback, left_to=read.owner.left_to)
    groups = Groups() if config.admin.client_names or config.audit.log is not None else None
    cluster, relay_tls = process.cluster, config.upstream.security.relay_tls
    server = settings.server = Server(
        settings.server_settings,
        tasks,
        handlers=_handlers(process, read, tier, fallback),
        accounts=_accounts(process, read),
        node_at=lambda host, port: node_at(cluster, host, port),
        meter=meters.relay,
        upstream_tls=None if relay_tls is None else client_ssl_context(relay_tls),
        proxy_trusted=config.proxy.protocol_trusted,
        known_brokers=lambda: [(node.host, node.port) for node in cluster.brokers.values()],
        groups=groups,
        audit=None if groups is None else _audit(process, groups),
    )
    tasks.keep("idle connections", server.watch)
    return Answering(server, tier.frontiers, fallback)


def _tier(process: Process, read: ReadTier) -> Tier:
    settings, cluster, tasks = process.settings, process.cluster, process.tasks
    client = FrontierClient(cluster)
    frontiers = settings.frontiers = Frontiers(client, tasks, age_s_max=settings.frontier_age_s_max, owner=read.owner)
    return Tier(
        catalog=read.catalog,
        tail=read.started.tail,
        reader=read.storage.reader,
        frontiers=frontiers,
        lineages=Lineages(client, cluster, read.catalog, tasks, read.owner),
        cluster=cluster,
        meter=process.meters.tier,
        is_loaded=lambda: process.readiness.catalog_was_live,
    )


def _handlers(
    process: Process, read: ReadTier, tier: Tier, fallback: Fallback
) -> Callable[[ClientReads], RequestHandlers]:
    """Return what makes a connection's exchanges: its Fetches, its requests about offsets, and those of the owner."""
    settings, meters = process.settings, process.meters
    generation = LogStartGeneration()
    slots = SessionSlots(
        partitions_max=memory_share(process.config.memory_bytes_max, SESSIONS_SHARE) // PARTITION_BYTES,
        on_changed=meters.relay.on_fetch_sessions,
    )
    lookup = TimestampLookup(tier, read.storage.timestamps)
    owners = read.owner.exchanges(tier, read.storage.timestamps, generation)

    def handlers(client: ClientReads) -> RequestHandlers:
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
        return RequestHandlers(
            {ApiKey.LIST_OFFSETS: offsets.handle, **owners(timeout_s), ApiKey.FETCH: fetches.handle},
            on_answered=fetches.on_answered,
            close=fetches.close,
            forget_authority=fetches.forget_authority,
            on_log_start_moved=generation.move,
        )

    return handlers


def _accounts(process: Process, read: ReadTier) -> Accounts:
    held_bytes_max, meter = process.config.proxy.held_bytes_max, process.meters.relay
    held = ByteBudget(held_bytes_max, meter.on_held_bytes, little_bytes=held_bytes_max // 8)
    accounts = Accounts(held, read.storage.answers, process.settings.accounts, meter)
    meter.relay_held_bytes_from(lambda: accounts.relayed_bytes)
    process.tasks.keep("accounts", accounts.run)
    return accounts


def _audit(process: Process, groups: Groups) -> Audit | None:
    if process.config.audit.log is None:
        return None
    log = AuditLog(process.config.audit.log, process.meters.audit, groups, process.readiness)
    process.tasks.keep("audit log", log.run)
    return log.audit


def node_at(cluster: Cluster, host: str, port: int) -> int | None:
    """The broker that advertises this address, if one does."""
    return next((node.node_id for node in cluster.brokers.values() if (node.host, node.port) == (host, port)), None)
