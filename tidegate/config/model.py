"""The configuration as the rest of Tidegate sees it: frozen, typed, checked; and with it every key of `tidegate serve`.

- A key is a field here (`storage.config.keys`), or in `storage.config` if other readers of the tier share it. Nothing
  else has to know it: the loader, the nearest-key help, the environment's names, masking, what a reload may change and
  docs/configuration.md follow. `tidegate.config.load` checks keys against each other.
- Field names are the keys' words with units last (`tier.inflight.bytes.max` → `config.tier.inflight_bytes_max`).
  Sizes are bytes, times milliseconds. Secrets are left out of every repr.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from types import MappingProxyType
from typing import Final

from metrics.kip405 import Kip405Names
from standalone.copier.config import CopyConfig, MetadataTopicConfig
from storage.config.keys import (
    BOOLEAN,
    FILE,
    GIB,
    HOST_LENGTH_MAX,
    KIB,
    MIB,
    PATH,
    TEXT,
    TIB,
    KeyTable,
    Kind,
    Reload,
    integer,
    key,
    one_of,
    optional,
    parse_host,
    parse_host_port,
    parse_port,
    size,
)
from storage.config.model import HostPort
from storage.config.schema_registry import SchemaRegistryKeys
from storage.config.security import UpstreamKeys
from storage.config.tier_client import PluginKeys, TierClientConfig, TierReadsConfig

Network = IPv4Network | IPv6Network
"""One address is a network too."""

DAY_MS: Final = 86_400_000
"""More than any age or interval here can sensibly be."""

NODE_ID_MAX: Final = 2**31 - 1
BROKER_PORTS_MAX: Final = 10_000
NETWORKS_MAX: Final = 1000

NODE_ID_VARIABLE: Final = "$(nodeId)"

_LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")

# docs/protocol.md#own-connections: 1.5 GiB gives 256, 512 and 512 MiB. Of what is left manifests and indexes have 96
# MiB, what else is held for clients 64 MiB, and Fetch sessions 64 MiB; the rest is the process itself: interpreter,
# catalog and connections.
MEMORY_SHARES_TOTAL: Final = 1536
BUDGET_SHARES: Final = {
    "cache.memory.bytes": 256,
    "readahead.total.max.bytes": 512,
    "tier.inflight.bytes.max": 512,
    "proxy.held.bytes.max": 64,
}
WORKERS_MAX: Final = 64
WORKER_MEMORY_BYTES_MIN: Final = 192 * MIB
"""The least that `memory.max.bytes` may be for a process."""

INDEXES_SHARE: Final = 96
SESSIONS_SHARE: Final = 64


def memory_share(memory_bytes_max: int, share: int) -> int:
    """One budget's part of `memory.max.bytes`, rounded down to a whole KiB so that it reads well."""
    return memory_bytes_max * share // MEMORY_SHARES_TOTAL // KIB * KIB


def _parse_advertised_host(value: str) -> str:
    # Any one digit may stand for the variable: what is left must be a host name.
    parse_host(value.replace(NODE_ID_VARIABLE, "1"))
    return value[1:-1] if value.startswith("[") else value


def _parse_sni_pattern(value: str) -> str:
    if value.count(NODE_ID_VARIABLE) != 1:
        raise ValueError(f"must hold {NODE_ID_VARIABLE} exactly once")
    # Checked with the longest node id. A number at the end would make an IP address of it, which no SNI can hold.
    longest = value.replace(NODE_ID_VARIABLE, str(NODE_ID_MAX))
    labels = longest.split(".")
    if len(longest) > HOST_LENGTH_MAX or not all(map(_LABEL.fullmatch, labels)) or labels[-1].isdigit():
        raise ValueError("must be a host name with any node id in it (international names as xn--…)")
    return value


def _parse_listen(value: str) -> HostPort:
    return parse_host_port(value, minimum_port=0)


def _parse_broker_ports(value: str) -> Mapping[int, int]:
    ports: dict[int, int] = {}
    for item in value.split(","):
        node_id, colon, port = item.strip().partition(":")
        if not colon or re.fullmatch(r"\d{1,10}", node_id) is None or int(node_id) > NODE_ID_MAX:
            raise ValueError("must be id:port, separated by commas")
        if int(node_id) in ports:
            raise ValueError(f"names broker {node_id} twice")
        if parse_port(port) in ports.values():
            raise ValueError(f"gives port {port} to two brokers")
        ports[int(node_id)] = int(port)
        if len(ports) > BROKER_PORTS_MAX:
            raise ValueError(f"at most {BROKER_PORTS_MAX} brokers")
    return MappingProxyType(ports)


def _parse_networks(value: str) -> tuple[Network, ...]:
    try:
        networks = tuple(ip_network(item.strip()) for item in value.split(","))
    except ValueError:
        raise ValueError("must be IP addresses or networks (192.0.2.0/24), separated by commas") from None
    if len(networks) > NETWORKS_MAX:
        raise ValueError(f"at most {NETWORKS_MAX} of them")
    return networks


def _parse_hosts(value: str) -> tuple[str, ...]:
    hosts = [item.strip() for item in value.split(",") if item.strip()]
    if not hosts:
        raise ValueError("must be host names, separated by commas")
    return tuple(host if host == "*" else parse_host(host).lower() for host in hosts)


def _parse_workers(value: str) -> int:
    if value.lower() == "auto":
        return 0
    if re.fullmatch(r"\d{1,4}", value) is None or not 1 <= int(value) <= WORKERS_MAX:
        raise ValueError(f"must be auto or a number from 1 to {WORKERS_MAX}")
    return int(value)


WORKERS: Final = Kind(f"`auto`, or integer, 1 to {WORKERS_MAX}", _parse_workers)
ADVERTISED_HOST: Final = Kind("host", _parse_advertised_host)
SNI_PATTERN: Final = Kind("host", _parse_sni_pattern)
LISTEN: Final = Kind("host:port", _parse_listen)
BROKER_PORTS: Final = Kind("id:port, …", _parse_broker_ports)
HOSTS: Final = Kind("host, …", _parse_hosts)
NETWORKS: Final = Kind("address or network, …", _parse_networks)
STDOUT: Final = "stdout"
AUDIT_LOG: Final = Kind(f"path, or `{STDOUT}`", TEXT.parse)


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


def _parse_level(value: str) -> LogLevel:
    return one_of(LogLevel).parse("warning" if value.lower() == "warn" else value)


LEVEL: Final = Kind(f"{one_of(LogLevel).words}; `warn` is `warning`", _parse_level)


class LogFormat(StrEnum):
    """How a line looks."""

    JSON = "json"
    CONSOLE = "console"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTls:
    """TLS towards clients. PEM, the key as in ClientTls; client CA certificates only if clients may authenticate."""

    certificate_chain_pem: bytes = field(repr=False)
    private_key_pem: bytes = field(repr=False)
    client_ca_certificates_pem: bytes | None = field(default=None, repr=False)
    client_auth: ClientAuth = ClientAuth.NONE


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
class ProxyConfig:
    """Listeners and the limits on clients.

    `broker_port_start` 0 means any free port. `broker_ports` (node id → port) overrides it broker by broker.
    `advertised_host` may hold `$(nodeId)`; `advertised_port_start` None: clients are told the bound port.
    `tls` is what the keys `proxy.tls.*` say together. `tls_sni_pattern` holds `$(nodeId)` once and puts all brokers on
    one port; it is set only if `tls` is. `workers` 0: as many as there are cores, 8 at most. `protocol_trusted` None:
    no PROXY header is expected; else whose connections begin with one. Limits for each address are connections and
    connections a second; None: no limit.
    """

    listen: HostPort = key(
        "proxy.listen",
        LISTEN,
        "The bootstrap listener; port 0: any free one. A wildcard address needs `proxy.advertised.host`.",
        section="Listeners",
        default="127.0.0.1:19092",
    )
    advertised_host: str = key(
        "proxy.advertised.host",
        ADVERTISED_HOST,
        "What clients are told; may hold `$(nodeId)`.",
        default_words="the listen host",
    )
    broker_port_start: int = key(
        "proxy.broker.port.start",
        integer(0, 65535),
        "Broker N listens at start + N − `proxy.broker.id.min`; 0: any free port, kept over restarts if it can be.",
        default_words="listen port + 1",
    )
    broker_id_min: int = key(
        "proxy.broker.id.min", integer(0, NODE_ID_MAX), "The node id that gets the first port.", default="0"
    )
    broker_ports: Mapping[int, int] = key(
        "proxy.broker.ports",
        BROKER_PORTS,
        "Ports of single brokers; overrides `proxy.broker.port.start`.",
        default_words="none",
    )
    advertised_port_start: int | None = key(
        "proxy.advertised.port.start",
        optional(integer(1, 65535)),
        "Shifts the broker ports that clients are told, for a load balancer or port mapping in front. With "
        "`proxy.tls.sni.pattern`: the port of all brokers.",
        default_words="the bound ports",
    )
    workers: int = key(
        "proxy.workers",
        WORKERS,
        "Processes that serve clients, each on a core of its own; `auto`: one for each core, 8 at most, while "
        "`memory.max.bytes` has 192 MiB for each. With more than one, a supervisor accepts connections and hands them "
        "out, and what is for the host is divided: `memory.max.bytes`, `cache.disk.bytes`, `tier.concurrent.gets.max`, "
        "`proxy.connections.max`.",
        default="1",
    )
    read_prefer: ReadPreference = key(
        "proxy.read.prefer",
        one_of(ReadPreference),
        "`tier`: offsets that are in both places come from the tier too.",
        default="local",
        reload=Reload.AT_ONCE,
    )
    tls_certificate_file: Path | None = key(
        "proxy.tls.certificate.file",
        optional(FILE),
        "PEM file of the certificate (and chain) shown to clients; setting it turns TLS on, which needs a restart.",
        reload=Reload.NEW_CONNECTIONS,
    )
    tls_key_file: Path | None = key(
        "proxy.tls.key.file",
        optional(FILE),
        "PEM file of its private key; unset: the certificate's file.",
        reload=Reload.NEW_CONNECTIONS,
    )
    tls_key_password: str | None = key(
        "proxy.tls.key.password",
        optional(TEXT),
        "The private key's password.",
        secret=True,
        reload=Reload.NEW_CONNECTIONS,
    )
    tls_client_ca_file: Path | None = key(
        "proxy.tls.client.ca.file",
        optional(FILE),
        "PEM file of the CA certificates that clients' ones must chain to.",
        reload=Reload.NEW_CONNECTIONS,
    )
    tls_client_auth: ClientAuth = key(
        "proxy.tls.client.auth",
        one_of(ClientAuth),
        "Whether a client must show a certificate.",
        default="none",
        reload=Reload.NEW_CONNECTIONS,
    )
    tls: ServerTls | None = None
    tls_sni_pattern: str | None = key(
        "proxy.tls.sni.pattern",
        optional(SNI_PATTERN),
        "One port for all brokers, told apart by the TLS server name: the host that clients are told for broker N, "
        "with `$(nodeId)` once, as `broker-$(nodeId).kafka.example.org`. Any other name is for the bootstrap. Needs "
        "`proxy.tls.certificate.file`, valid for all these names; instead of `proxy.broker.port.start`, "
        "`proxy.broker.ports` and `$(nodeId)` in `proxy.advertised.host`.",
    )
    protocol: bool = key(
        "proxy.protocol",
        BOOLEAN,
        "`true`: each connection begins with a PROXY header (version 1 or 2), as a balancer in front sends it; the "
        "address that it names is the client's in limits and logs. Needs `proxy.protocol.trusted`.",
        default="false",
    )
    protocol_trusted: tuple[Network, ...] | None = key(
        "proxy.protocol.trusted",
        optional(NETWORKS),
        "The balancers' own addresses or networks, as `10.0.0.7, 192.0.2.0/24`: a connection from elsewhere is closed.",
    )
    connections_max: int = key(
        "proxy.connections.max",
        integer(1, 1_000_000),
        "Client connections. Half are kept for clients that have signed in. When they run out, a new one takes the "
        "place of the oldest that has not, and is closed at once if there is none. Each needs two open files.",
        section="Limits on clients",
        default="4096",
        reload=Reload.AT_ONCE,
    )
    connections_idle_ms_max: int = key(
        "proxy.connections.idle.max.ms",
        integer(1000, 2**31 - 1),
        "A connection on which nothing was asked or answered for so long is closed; never one that awaits an answer. "
        "A backstop: brokers' own `connections.max.idle.ms` (10 minutes) closes them earlier.",
        default="3600000",
        reload=Reload.AT_ONCE,
    )
    connections_max_per_ip: int | None = key(
        "proxy.connections.max.per.ip",
        optional(integer(1, 1_000_000)),
        "Connections of one address; one more is closed at once. Behind NAT or a balancer many clients have one "
        "address; see `proxy.protocol`. Kafka's `max.connections.per.ip`.",
        default_words="no limit",
        reload=Reload.AT_ONCE,
    )
    connections_rate_per_ip: int | None = key(
        "proxy.connections.rate.per.ip",
        optional(integer(1, 1_000_000)),
        "New connections a second of one address, five seconds' worth at once; one more is closed at once. Kafka's "
        "quota of an address, `connection_creation_rate`.",
        default_words="no limit",
        reload=Reload.AT_ONCE,
    )
    request_frame_bytes_max: int = key(
        "proxy.frame.request.bytes.max",
        size(KIB, 2 * GIB - 1),
        "A larger request closes its connection; Kafka's `socket.request.max.bytes`.",
        default="100 MiB",
        reload=Reload.NEW_CONNECTIONS,
    )
    unauthenticated_frame_bytes_max: int = key(
        "proxy.frame.unauthenticated.bytes.max",
        size(KIB, 2 * GIB - 1),
        "A larger request of a client that has not signed in closes its connection, where `upstream.security.protocol` "
        "has SASL; so does a larger one that is part of a sign-in. Kafka's `sasl.server.max.receive.size`.",
        default="512 KiB",
        reload=Reload.NEW_CONNECTIONS,
    )
    response_held_bytes_max: int = key(
        "proxy.response.held.bytes.max",
        size(64 * MIB, 2 * GIB - 1),
        "The largest response that may be held whole, to be rewritten or merged (a merged Fetch has 55 MiB at most); "
        "others are streamed.",
        default="64 MiB",
        reload=Reload.NEW_CONNECTIONS,
    )
    inflight_requests_max: int = key(
        "proxy.inflight.requests.max",
        integer(1, 100_000),
        "Requests of one connection that await their response; beyond it no more is read from the client.",
        default="128",
        reload=Reload.NEW_CONNECTIONS,
    )
    held_bytes_max: int = key(
        "proxy.held.bytes.max",
        size(4 * MIB, TIB),
        "What is held in memory for all clients together: requests that are decoded, responses that are rewritten or "
        "merged. Beyond it requests and responses wait, and then the connection that has kept others waiting longest "
        "ends.",
        default_words="from `memory.max.bytes`",
    )
    send_stall_ms: int = key(
        "proxy.send.stall.ms",
        integer(100, 3_600_000),
        "A client that takes no bytes for so long may keep others from theirs no longer: what its answer holds of the "
        "tier is given up, and read again when the client goes on. While nobody waits for the memory, clients may take "
        "their time.",
        default="30000",
        reload=Reload.AT_ONCE,
    )
    relay_rewrite_bytes_max: int = key(
        "relay.rewrite.bytes.max",
        size(KIB, MIB),
        "Fetch responses up to this size are rewritten whole, larger ones in place.",
        default="64 KiB",
        reload=Reload.NEW_CONNECTIONS,
    )
    upstream_connect_timeout_ms: int = key(
        "proxy.upstream.connect.timeout.ms",
        integer(0, 3_600_000),
        "How long a client's connection is held while no broker answers; then it is closed. Less than the 10 s after "
        "which librdkafka gives up its first request and takes the broker for one older than 0.10.",
        default="8000",
        reload=Reload.NEW_CONNECTIONS,
    )
    drain_delay_ms: int = key(
        "proxy.drain.delay.ms",
        integer(0, 3_600_000),
        "How long listeners go on accepting after SIGTERM, while `/readyz` already says `draining`: until balancers "
        "and Kubernetes have noticed. `proxy.drain.timeout.ms` begins afterwards.",
        default="0",
        reload=Reload.AT_ONCE,
    )
    drain_timeout_ms: int = key(
        "proxy.drain.timeout.ms",
        integer(0, 3_600_000),
        "How long SIGTERM waits for answers under way.",
        default="30000",
        reload=Reload.AT_ONCE,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TierConfig(TierReadsConfig):
    """How the tier is read, and when the broker reads in its place."""

    fallback_after_ms: int = key(
        "fallback.after.ms",
        integer(0, 3_600_000),
        "An offset that was asked for three times in this time, and of which the tier gave no byte, is read by the "
        "broker. Where the tier fails for good (access denied, an object gone or corrupt), the broker reads at once.",
        section="When the tier fails",
        default="5000",
        reload=Reload.AT_ONCE,
    )
    fallback_partitions_max: int = key(
        "fallback.partitions.max",
        integer(0, 10_000),
        "Partitions that one broker reads at a time because the tier fails; clients of the others are told to come "
        "again. 0: brokers read none.",
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
        "cache.block.bytes",
        size(64 * KIB, 16 * MIB),
        "The cache's unit: whole chunks that cover at least this much.",
        default="1 MiB",
    )
    retention_ms: int = key(
        "cache.retention.ms",
        integer(-1, 10 * 365 * DAY_MS),
        "Blocks not read for this long are dropped; −1: only when room is needed.",
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
        default_words="128 MiB, at most `readahead.total.max.bytes`",
    )
    total_bytes_max: int = key(
        "readahead.total.max.bytes",
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
        "How long the broker's word that a client may read a partition holds; 0: asked at every Fetch.",
        section="What is known of upstream and tier",
        default="1000",
        reload=Reload.AT_ONCE,
    )
    frontier_age_ms_max: int = key(
        "frontier.max.age.ms",
        integer(0, 3_600_000),
        "How old a partition's known offsets may be before they are asked again.",
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
        "catalog.snapshot.interval.ms", integer(100, DAY_MS), "Between two snapshots.", default="30000"
    )
    snapshot_is_written: bool = True
    segments_max: int = key(
        "catalog.segments.max",
        integer(1, 100_000_000),
        "Segments known at once, up to 400 bytes each; beyond it new partitions are left to the broker.",
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
        "Host names by which the admin listener may be asked, beside addresses, `localhost`, this host's (or pod's) "
        "own name and that of `admin.listen`; `*`: any. A request by another name gets 403, since a web page elsewhere "
        "may have sent it.",
    )
    connections_max: int = key(
        "admin.connections.max",
        integer(4, 10_000),
        "Connections to the admin listener; at that number a new one takes the place of the one that has waited "
        "longest for its request.",
        default="64",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditConfig:
    """Who reads what. `log`: a path, STDOUT, or None for none."""

    log: str | None = key(
        "audit.log",
        optional(AUDIT_LOG),
        "Where one JSON line for each client, topic, partition and minute of reads from the tier is written: a file, "
        "made with mode 0600 in a folder that is there, or `stdout`.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsConfig:
    """What metrics are shown."""

    kip405_names: Kip405Names = key(
        "metrics.kip405.names",
        one_of(Kip405Names),
        "KIP-405's metrics under today's names, its first ones, or both.",
        default="current",
    )
    topics_max: int = key(
        "metrics.topics.max",
        integer(0, 100_000),
        "Topics with series of their own in `/metrics`, the first that are read; the others share the topic "
        "`__other__`.",
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(TierClientConfig):
    """Everything that was configured."""

    memory_bytes_max: int = key(
        "memory.max.bytes",
        size(WORKER_MEMORY_BYTES_MIN, TIB),
        "Of this `cache.memory.bytes` gets 1/6, `readahead.total.max.bytes` and `tier.inflight.bytes.max` 1/3 each, "
        "and `proxy.held.bytes.max` 1/24, unless set themselves. Manifests and indexes get 1/16, Fetch sessions 1/24 "
        "(111,000 partitions at 1.5 GiB; while others want room, no connection keeps more than its share); the rest is "
        "for the process. Resident memory stays below this and 150 MiB.",
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
