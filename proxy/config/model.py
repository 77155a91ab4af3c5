"""The configuration as the rest of Tidegate sees it: frozen, typed, checked. `proxy.config.load` makes it.

Field names are the keys' words with units last (`tier.inflight.bytes.max` → `config.tier.inflight_bytes_max`).
Sizes are bytes, times milliseconds. Secrets are left out of every repr.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path

from storage.config.model import HostPort, MetadataClientConfig, Mode, UpstreamConfig

Network = IPv4Network | IPv6Network
"""One address is a network too."""


class ReadPreference(StrEnum):
    """Where an offset is read that both the broker's disk and the tier hold."""

    LOCAL = "local"
    TIER = "tier"


class ClientAuth(StrEnum):
    """Whether a client must show a certificate; Kafka's words of `ssl.client.auth`."""

    NONE = "none"
    REQUESTED = "requested"
    REQUIRED = "required"


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    JSON = "json"
    CONSOLE = "console"


class Kip405Names(StrEnum):
    """Which of KIP-405's metric names are shown: today's, the first ones, or both."""

    CURRENT = "current"
    ORIGINAL = "original"
    BOTH = "both"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTls:
    """TLS towards clients. PEM, the key as in ClientTls; client CA certificates only if clients may authenticate."""

    certificate_chain_pem: bytes = field(repr=False)
    private_key_pem: bytes = field(repr=False)
    client_ca_certificates_pem: bytes | None = field(default=None, repr=False)
    client_auth: ClientAuth = ClientAuth.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyConfig:
    """Listeners and the limits on clients.

    `broker_port_start` 0 means any free port. `broker_ports` (node id → port) overrides it broker by broker.
    `advertised_host` may hold `$(nodeId)`; `advertised_port_start` None: clients are told the bound port.
    `tls_sni_pattern` holds `$(nodeId)` once and puts all brokers on one port; it is set only if `tls` is.
    `protocol_trusted` None: no PROXY header is expected; else whose connections begin with one. Limits for each
    address are connections and connections a second; None: no limit.
    """

    listen: HostPort
    advertised_host: str
    broker_port_start: int
    broker_id_min: int
    broker_ports: Mapping[int, int]
    advertised_port_start: int | None
    read_prefer: ReadPreference
    tls: ServerTls | None
    tls_sni_pattern: str | None
    protocol_trusted: tuple[Network, ...] | None
    connections_max: int
    connections_idle_ms_max: int
    connections_max_per_ip: int | None
    connections_rate_per_ip: int | None
    request_frame_bytes_max: int
    unauthenticated_frame_bytes_max: int
    response_held_bytes_max: int
    inflight_requests_max: int
    held_bytes_max: int
    send_stall_ms: int
    relay_rewrite_bytes_max: int
    upstream_connect_timeout_ms: int
    drain_timeout_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TierConfig:
    """`hedge_gets_per_minute_min` −1: never."""

    fetch_wait_ms_max: int
    list_offsets_timeout_ms: int
    linger_ms: int
    concurrent_gets_max: int
    inflight_bytes_max: int
    hedge_gets_per_minute_min: int
    fallback_after_ms: int
    fallback_partitions_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """`path` None: memory only. `retention_ms` −1: until evicted."""

    path: Path | None
    disk_bytes: int
    memory_bytes: int
    block_bytes: int
    retention_ms: int
    encrypt: bool
    encrypt_key_file: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadAheadConfig:
    stream_bytes_max: int
    total_bytes_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorityConfig:
    """How long a good probe may be reused (0: never), and how old a frontier may be before it is learnt again."""

    age_ms_max: int
    frontier_age_ms_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogConfig:
    """`snapshot_path` None: no snapshot is kept."""

    snapshot_path: Path | None
    snapshot_interval_ms: int
    segments_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminConfig:
    listen: HostPort


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    level: LogLevel
    format: LogFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsConfig:
    kip405_names: Kip405Names
    topics_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectiveKey:
    """One key as it took effect: its value as it may be shown (secrets masked) and where it came from.

    `text` is the value unmasked, to tell whether it changed; it is never shown.
    """

    name: str
    value: str
    origin: str
    text: str = field(repr=False)

    def __str__(self) -> str:
        return f"{self.name} = {self.value}  ({self.origin})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Everything that was configured. The two plug-in mappings hold their keys with the impl prefix off."""

    mode: Mode
    upstream: UpstreamConfig
    proxy: ProxyConfig
    tier: TierConfig
    cache: CacheConfig
    readahead: ReadAheadConfig
    authority: AuthorityConfig
    catalog: CatalogConfig
    admin: AdminConfig
    log: LogConfig
    metrics: MetricsConfig
    metadata_client: MetadataClientConfig
    memory_bytes_max: int
    remote_storage_manager_class_name: str
    remote_storage_config: Mapping[str, str] = field(repr=False)
    remote_log_metadata_manager_class_name: str
    remote_log_metadata_config: Mapping[str, str] = field(repr=False)
    effective: tuple[EffectiveKey, ...] = field(repr=False)
    files: Mapping[str, Path]
    """FILE under the empty key, and the files that keys of the table name and that were read, by key."""
    warnings: tuple[str, ...]
