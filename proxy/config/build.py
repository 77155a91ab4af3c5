"""From typed values to the groups of Config that are the proxy's own, with the checks that need more than one key."""

from collections.abc import Mapping
from ipaddress import ip_address
from typing import Final

from proxy.config import keys as table
from proxy.config.listener_kinds import NODE_ID_VARIABLE
from proxy.config.memory_shares import (
    CACHE_MEMORY_SHARE,
    HELD_SHARE,
    READAHEAD_TOTAL_SHARE,
    TIER_INFLIGHT_SHARE,
    memory_share,
)
from proxy.config.model import (
    AuthorityConfig,
    CacheConfig,
    CatalogConfig,
    Network,
    ProxyConfig,
    ReadAheadConfig,
    TierConfig,
)
from proxy.config.server_tls import server_tls
from storage.config import tier_keys as tier
from storage.config.model import HostPort
from storage.config.sizes import MIB, format_size
from storage.config.values import Values

# Over 30 ms and 60 MB/s a connection, ten GETs of 12 MiB at once; half of it would hold one partition to 280 MB/s.
READAHEAD_STREAM_BYTES_DEFAULT: Final = 128 * MIB


def proxy_config(values: Values, budgets: Mapping[str, int]) -> ProxyConfig:
    listen = values.of(table.PROXY_LISTEN)
    advertised_host = values.optional(table.PROXY_ADVERTISED_HOST)
    names_advertised = values.is_set(table.PROXY_ADVERTISED_HOST) or values.is_set(table.PROXY_TLS_SNI_PATTERN)
    if not names_advertised and _is_wildcard(listen.host):
        values.wrong(
            table.PROXY_LISTEN,
            f"a wildcard address is nothing that clients can be told: set {table.PROXY_ADVERTISED_HOST.name}",
        )
    return ProxyConfig(
        listen=listen,
        advertised_host=listen.host if advertised_host is None else advertised_host,
        broker_port_start=_broker_port_start(values, listen),
        broker_id_min=values.of(table.PROXY_BROKER_ID_MIN),
        broker_ports=_broker_ports(values, listen),
        advertised_port_start=values.optional(table.PROXY_ADVERTISED_PORT_START),
        read_prefer=values.of(table.PROXY_READ_PREFER),
        tls=server_tls(values),
        tls_sni_pattern=_sni_pattern(values, advertised_host),
        protocol_trusted=_protocol_trusted(values),
        connections_max=values.of(table.PROXY_CONNECTIONS_MAX),
        connections_idle_ms_max=values.of(table.PROXY_CONNECTIONS_IDLE_MS_MAX),
        connections_max_per_ip=values.optional(table.PROXY_CONNECTIONS_MAX_PER_IP),
        connections_rate_per_ip=values.optional(table.PROXY_CONNECTIONS_RATE_PER_IP),
        request_frame_bytes_max=values.of(table.PROXY_FRAME_REQUEST_BYTES_MAX),
        unauthenticated_frame_bytes_max=values.of(table.PROXY_FRAME_UNAUTHENTICATED_BYTES_MAX),
        response_held_bytes_max=values.of(table.PROXY_RESPONSE_HELD_BYTES_MAX),
        inflight_requests_max=values.of(table.PROXY_INFLIGHT_REQUESTS_MAX),
        held_bytes_max=budgets[table.PROXY_HELD_BYTES_MAX.name],
        send_stall_ms=values.of(table.PROXY_SEND_STALL_MS),
        relay_rewrite_bytes_max=values.of(table.RELAY_REWRITE_BYTES_MAX),
        upstream_connect_timeout_ms=values.of(table.PROXY_UPSTREAM_CONNECT_TIMEOUT_MS),
        drain_timeout_ms=values.of(table.PROXY_DRAIN_TIMEOUT_MS),
    )


def _is_wildcard(host: str) -> bool:
    try:
        return not host or ip_address(host).is_unspecified
    except ValueError:
        return False  # a host name


def _broker_port_start(values: Values, listen: HostPort) -> int:
    start = values.optional(table.PROXY_BROKER_PORT_START)
    if start is None and values.is_set(table.PROXY_TLS_SNI_PATTERN):
        return 0  # no broker gets a listener of its own
    if start is None:
        # A bootstrap listener on any free port has no "next" one: brokers get any free port too.
        start = 0 if listen.port == 0 else listen.port + 1
        if start > 65535:
            values.wrong(table.PROXY_LISTEN, f"no port is left after it: set {table.PROXY_BROKER_PORT_START.name}")
    return start


def _sni_pattern(values: Values, advertised_host: str | None) -> str | None:
    pattern, sni = values.optional(table.PROXY_TLS_SNI_PATTERN), table.PROXY_TLS_SNI_PATTERN.name
    if not values.is_set(table.PROXY_TLS_SNI_PATTERN):
        return None
    if not values.is_set(table.PROXY_TLS_CERTIFICATE_FILE):
        values.wrong(table.PROXY_TLS_SNI_PATTERN, f"needs {table.PROXY_TLS_CERTIFICATE_FILE.name}")
    for key in (table.PROXY_BROKER_PORT_START, table.PROXY_BROKER_PORTS):
        if values.is_set(key):
            values.wrong(key, f"cannot be set together with {sni}, which has one port for all brokers")
    if advertised_host is not None and NODE_ID_VARIABLE in advertised_host:
        values.wrong(
            table.PROXY_ADVERTISED_HOST,
            f"cannot hold {NODE_ID_VARIABLE} together with {sni}, which is what clients are told",
        )
    elif advertised_host is not None:
        values.warnings.append(f"{table.PROXY_ADVERTISED_HOST.name} has no effect: clients are told {sni}")
    if values.is_set(table.PROXY_BROKER_ID_MIN):
        values.warnings.append(f"{table.PROXY_BROKER_ID_MIN.name} has no effect: {sni} has one port for all brokers")
    return pattern


def _protocol_trusted(values: Values) -> tuple[Network, ...] | None:
    is_on, trusted = values.of(table.PROXY_PROTOCOL), values.optional(table.PROXY_PROTOCOL_TRUSTED)
    if is_on and not values.is_set(table.PROXY_PROTOCOL_TRUSTED):
        values.wrong(
            table.PROXY_PROTOCOL,
            f"whoever connects could claim any address: set {table.PROXY_PROTOCOL_TRUSTED.name} to the balancers' ones",
        )
    if trusted is not None and not is_on:
        values.wrong(table.PROXY_PROTOCOL_TRUSTED, f"needs {table.PROXY_PROTOCOL.name} = true")
    return trusted if is_on else None


def _broker_ports(values: Values, listen: HostPort) -> Mapping[int, int]:
    ports = values.optional(table.PROXY_BROKER_PORTS) or {}
    if listen.port in ports.values():
        values.wrong(table.PROXY_BROKER_PORTS, f"port {listen.port} is the bootstrap listener's")
    return ports


def memory_budgets(values: Values) -> dict[str, int]:
    """The budgets by key: as set, or their share of `memory.max.bytes`."""
    memory_bytes_max = values.of(table.MEMORY_MAX_BYTES)
    shares = (
        (tier.CACHE_MEMORY_BYTES, CACHE_MEMORY_SHARE),
        (tier.READAHEAD_TOTAL_MAX_BYTES, READAHEAD_TOTAL_SHARE),
        (tier.TIER_INFLIGHT_BYTES_MAX, TIER_INFLIGHT_SHARE),
        (table.PROXY_HELD_BYTES_MAX, HELD_SHARE),
    )
    budgets: dict[str, int] = {}
    for key, share in shares:
        given = values.optional(key)
        budgets[key.name] = memory_share(memory_bytes_max, share) if given is None else given
    total_bytes = sum(budgets.values())
    if total_bytes > memory_bytes_max:
        names = " + ".join(budgets)
        values.wrong(
            table.MEMORY_MAX_BYTES, f"less than {names} = {format_size(total_bytes)}: raise it or lower one of them"
        )
    return budgets


def readahead_config(values: Values, budgets: Mapping[str, int]) -> ReadAheadConfig:
    total_bytes_max = budgets[tier.READAHEAD_TOTAL_MAX_BYTES.name]
    stream_bytes_max = values.optional(tier.READAHEAD_STREAM_MAX_BYTES)
    if stream_bytes_max is None:
        stream_bytes_max = min(READAHEAD_STREAM_BYTES_DEFAULT, total_bytes_max)
    if stream_bytes_max > total_bytes_max:
        limit = f"{tier.READAHEAD_TOTAL_MAX_BYTES.name} = {format_size(total_bytes_max)}"
        values.wrong(tier.READAHEAD_STREAM_MAX_BYTES, f"at most {limit}")
    return ReadAheadConfig(stream_bytes_max=stream_bytes_max, total_bytes_max=total_bytes_max)


def tier_config(values: Values, budgets: Mapping[str, int]) -> TierConfig:
    return TierConfig(
        fetch_wait_ms_max=values.of(tier.REMOTE_FETCH_MAX_WAIT_MS),
        list_offsets_timeout_ms=values.of(tier.REMOTE_LIST_OFFSETS_TIMEOUT_MS),
        linger_ms=values.of(tier.TIER_LINGER_MS),
        concurrent_gets_max=values.of(tier.TIER_CONCURRENT_GETS_MAX),
        inflight_bytes_max=budgets[tier.TIER_INFLIGHT_BYTES_MAX.name],
        hedge_gets_per_minute_min=values.of(tier.TIER_HEDGE_GETS_PER_MINUTE_MIN),
        fallback_after_ms=values.of(table.FALLBACK_AFTER_MS),
        fallback_partitions_max=values.of(table.FALLBACK_PARTITIONS_MAX),
    )


def cache_config(values: Values, budgets: Mapping[str, int]) -> CacheConfig:
    encrypt, key_file = values.of(tier.CACHE_ENCRYPT), values.optional(tier.CACHE_ENCRYPT_KEY_FILE)
    if key_file is not None and not encrypt:
        values.wrong(tier.CACHE_ENCRYPT_KEY_FILE, f"needs {tier.CACHE_ENCRYPT.name} = true")
    if encrypt and values.optional(tier.CACHE_PATH) is None:
        values.wrong(tier.CACHE_ENCRYPT, f"needs {tier.CACHE_PATH.name}")
    memory_bytes, block_bytes = budgets[tier.CACHE_MEMORY_BYTES.name], values.of(tier.CACHE_BLOCK_BYTES)
    if block_bytes > memory_bytes:
        limit = f"{tier.CACHE_MEMORY_BYTES.name} = {format_size(memory_bytes)}"
        values.wrong(tier.CACHE_BLOCK_BYTES, f"at most {limit}")
    return CacheConfig(
        path=values.optional(tier.CACHE_PATH),
        disk_bytes=values.of(tier.CACHE_DISK_BYTES),
        memory_bytes=memory_bytes,
        block_bytes=block_bytes,
        retention_ms=values.of(tier.CACHE_RETENTION_MS),
        encrypt=encrypt,
        encrypt_key_file=key_file,
    )


def authority_config(values: Values) -> AuthorityConfig:
    return AuthorityConfig(
        age_ms_max=values.of(tier.AUTHORITY_MAX_AGE_MS), frontier_age_ms_max=values.of(tier.FRONTIER_MAX_AGE_MS)
    )


def catalog_config(values: Values) -> CatalogConfig:
    snapshot_path, cache_path = values.optional(tier.CATALOG_SNAPSHOT_PATH), values.optional(tier.CACHE_PATH)
    if snapshot_path is None and cache_path is not None:
        snapshot_path = cache_path / "catalog"
    return CatalogConfig(
        snapshot_path=snapshot_path,
        snapshot_interval_ms=values.of(tier.CATALOG_SNAPSHOT_INTERVAL_MS),
        segments_max=values.of(tier.CATALOG_SEGMENTS_MAX),
    )
