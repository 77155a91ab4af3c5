"""The configuration as the rest of Tidegate sees it: frozen, typed, checked; and with it every key of `tidegate serve`.

- A key is a field here (`storage.config.keys`), or in `storage.config` if other readers of the tier share it. Nothing
  else has to know it: the loader, the nearest-key help, the environment's names, masking, what a reload may change and
  docs/configuration.md follow. `tidegate.config.load` checks keys against each other.
- Field names are the keys' words with units last (`expert.tier.inflight.bytes.max` → `config.tier.inflight_bytes_max`).
  Sizes are bytes, times milliseconds. Secrets are left out of every repr.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

from metrics.kip405 import Kip405Names
from proxy.settings import HOSTS, LISTEN, ProxyConfig
from standalone.copier.config import CopyConfig, MetadataTopicConfig
from storage.config.keys import KeyTable, Reload, key
from storage.config.model import HostPort
from storage.config.schema_registry import SchemaRegistryKeys
from storage.config.security import UpstreamKeys
from storage.config.tier_client import PluginKeys, TierClientConfig, TierReadsConfig
from storage.config.value_kinds import BOOLEAN, GIB, KIB, MIB, PATH, TEXT, TIB, Kind, integer, one_of, optional, size

DAY_MS: Final = 86_400_000
"""More than any age or interval here can sensibly be."""


# docs/protocol.md#own-connections: 1.5 GiB gives 256, 512 and 512 MiB. The remainder: manifests and indexes have 96
# MiB, what else is held for clients 64 MiB, and Fetch sessions 64 MiB; the rest is the process itself: interpreter,
# catalog and connections.
MEMORY_SHARES_TOTAL: Final = 1536
BUDGET_SHARES: Final = {
    "cache.memory.bytes": 256,
    "expert.readahead.total.max.bytes": 512,
    "expert.tier.inflight.bytes.max": 512,
    "expert.proxy.held.bytes.max": 64,
}
WORKER_MEMORY_BYTES_MIN: Final = 192 * MIB
"""The least that `memory.max.bytes` may be for a process."""

INDEXES_SHARE: Final = 96
SESSIONS_SHARE: Final = 64


def memory_share(memory_bytes_max: int, share: int) -> int:
    """One budget's part of `memory.max.bytes`, rounded down to a whole KiB so that it reads well."""
    return memory_bytes_max * share // MEMORY_SHARES_TOTAL // KIB * KIB


STDOUT: Final = "stdout"
AUDIT_LOG: Final = Kind(f"path, or `{STDOUT}`", TEXT.parse)


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def _parse_level(value: str) -> LogLevel:
    return one_of(LogLevel).parse("warning" if value.lower() == "warn" else value)


LEVEL: Final = Kind(f"{one_of(LogLevel).words}; `warn` is `warning`", _parse_level)


class LogFormat(StrEnum):
    """How a line looks."""

    JSON = "json"
    CONSOLE = "console"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """What is written to the log. `worker`: which one writes it; None: the process has no others."""

    level: LogLevel = key(
        "log.level", LEVEL, "The least severe line that is written.", default="info", reload=Reload.AT_ONCE
    )
    format: LogFormat = key(
        "log.format",
        one_of(LogFormat),
        "One JSON object a line, or text for a terminal.",
        default="json",
        reload=Reload.AT_ONCE,
    )
    worker: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TierConfig(TierReadsConfig):
    """How the tier is read, and when the broker reads in its place."""

    fallback_after_ms: int = key(
        "expert.fallback.after.ms",
        integer(0, 3_600_000),
        "The broker reads an offset that was asked for three times in it without a byte.",
        section="When the tier fails",
        default="5000",
        reload=Reload.AT_ONCE,
    )
    fallback_partitions_max: int = key(
        "fallback.partitions.max",
        integer(0, 10_000),
        "Partitions that one broker reads at a time because the tier fails; for the others clients get a "
        "retriable error.",
        default="4",
        reload=Reload.AT_ONCE,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """`path` None: memory only. `retention_ms` −1: until evicted."""

    path: Path | None = key(
        "cache.path",
        optional(PATH),
        "Folder of the disk cache, of one process only; unset: memory only.",
        section="Cache and read-ahead",
    )
    disk_bytes: int = key("cache.disk.bytes", size(0, 1024 * TIB), "What the disk cache may hold.", default="16 GiB")
    memory_bytes: int = key(
        "cache.memory.bytes",
        size(MIB, TIB),
        "What the memory cache may hold.",
        default_words="256 MiB, from `memory.max.bytes`",
    )
    block_bytes: int = key(
        "expert.cache.block.bytes",
        size(64 * KIB, 16 * MIB),
        "The cache's unit: whole chunks that cover at least this much.",
        default="1 MiB",
    )
    retention_ms: int = key(
        "cache.retention.ms",
        integer(-1, 10 * 365 * DAY_MS),
        "Blocks not read for so long are dropped; −1: never.",
        default="-1",
    )
    encrypt: bool = key("cache.encrypt", BOOLEAN, "Encrypt blocks on disk.", default="false")
    encrypt_key_file: Path | None = key(
        "cache.encrypt.key.file", optional(PATH), "Key of the encrypted cache; unset: a new one at each start."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadAheadConfig:
    """How far readers are read ahead of."""

    stream_bytes_max: int = key(
        "readahead.stream.max.bytes",
        size(0, 16 * GIB),
        "Read-ahead of one sequential reader; 0: none.",
        default_words="128 MiB, at most `expert.readahead.total.max.bytes`",
    )
    total_bytes_max: int = key(
        "expert.readahead.total.max.bytes",
        size(0, TIB),
        "Read-ahead of all readers.",
        default_words="512 MiB, from `memory.max.bytes`",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorityConfig:
    """How long a good probe may be reused (0: never), and how old a frontier may be before it is learnt again."""

    age_ms_max: int = key(
        "authority.max.age.ms",
        integer(0, 3_600_000),
        "How long a broker's word that a client may read a partition holds; 0: asked at every Fetch.",
        section="What is known of upstream and tier",
        default="1000",
        reload=Reload.AT_ONCE,
    )
    frontier_age_ms_max: int = key(
        "expert.frontier.max.age.ms",
        integer(0, 3_600_000),
        "How old a partition's known offsets may be.",
        default="1000",
        reload=Reload.AT_ONCE,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogConfig:
    """`snapshot_path` None: no snapshot is kept. `snapshot_is_written`: False for all workers but one."""

    snapshot_path: Path | None = key(
        "catalog.snapshot.path",
        optional(PATH),
        "Folder of the catalog's snapshot and of the known brokers, for a quick start.",
        default_words="`<cache.path>/catalog`",
    )
    snapshot_interval_ms: int = key(
        "expert.catalog.snapshot.interval.ms", integer(100, DAY_MS), "Between two snapshots.", default="30000"
    )
    snapshot_is_written: bool = True
    segments_max: int = key(
        "catalog.segments.max",
        integer(1, 100_000_000),
        "Segments known at once, up to 460 bytes each; beyond it new partitions are left to the broker.",
        default="2000000",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminConfig:
    """Where metrics and health are asked for. `allowed_hosts` in lower case."""

    listen: HostPort = key(
        "admin.listen",
        LISTEN,
        "The status page `/`, `/status.json`, `/metrics`, `/livez`, `/readyz`, `/streams`.",
        section="Administration",
        default="127.0.0.1:9464",
    )
    allowed_hosts: tuple[str, ...] | None = key(
        "admin.allowed.hosts",
        optional(HOSTS),
        "Names by which the admin listener may be asked, beside addresses, `localhost` and its own; `*`: any.",
    )
    client_names: bool = key(
        "admin.client.names",
        BOOLEAN,
        "Pages and log lines name clients by client id, sign-in name and group, beside their addresses.",
        default="true",
    )
    connections_max: int = key(
        "expert.admin.connections.max", integer(4, 10_000), "Connections to the admin listener.", default="64"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditConfig:
    """Who reads what. `log`: a path, STDOUT, or None for none."""

    log: str | None = key(
        "audit.log",
        optional(AUDIT_LOG),
        "A file, or `stdout`: one JSON line for each client, topic, partition and minute of reads from the tier.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsConfig:
    """What metrics are shown."""

    kip405_names: Kip405Names = key(
        "metrics.kip405.names",
        one_of(Kip405Names),
        "KIP-405's metrics under today's names, its first ones, or both.",
        section="Metrics",
        default="current",
    )
    topics_max: int = key(
        "metrics.topics.max",
        integer(0, 100_000),
        "Topics with series of their own in `/metrics`; the others share `__other__`.",
        default="1000",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectiveKey:
    """One key as it took effect: its value as it may be shown (secrets masked) and where it came from.

    `text` is the value unmasked, to tell whether it changed; it is never shown.
    """

    name: str
    value: str
    origin: str
    text: str = field(repr=False)
    note: str = ""
    """Why it has no effect, or what to set instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(TierClientConfig):
    """Everything that was configured."""

    memory_bytes_max: int = key(
        "memory.max.bytes",
        size(WORKER_MEMORY_BYTES_MIN, TIB),
        "`cache.memory.bytes` gets 1/6 of it, `expert.readahead.total.max.bytes` and "
        "`expert.tier.inflight.bytes.max` 1/3 each, `expert.proxy.held.bytes.max` 1/24, unless set themselves. "
        "Resident memory stays below this and 150 MiB.",
        default="1.5 GiB",
    )
    proxy: ProxyConfig
    tier: TierConfig
    cache: CacheConfig
    readahead: ReadAheadConfig
    authority: AuthorityConfig
    catalog: CatalogConfig
    admin: AdminConfig
    audit: AuditConfig
    copy: CopyConfig
    metadata_topic: MetadataTopicConfig
    """How a copier makes the metadata topic."""
    log: LogConfig
    metrics: MetricsConfig
    effective: tuple[EffectiveKey, ...] = field(repr=False)
    files: Mapping[str, Path]
    """FILE under the empty key, and the files that keys of the table name and that were read, by key."""


SERVE_KEYS: Final = KeyTable(
    Config,
    LogConfig,
    UpstreamKeys,
    ProxyConfig,
    PluginKeys,
    TierConfig,
    CacheConfig,
    ReadAheadConfig,
    AuthorityConfig,
    CatalogConfig,
    AdminConfig,
    AuditConfig,
    CopyConfig,
    MetricsConfig,
    SchemaRegistryKeys,
)
