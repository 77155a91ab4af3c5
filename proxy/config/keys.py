"""The table of `tidegate serve`'s keys: name, kind, default, limits and what each is for.

The loader, the nearest-key help, the environment's names, what a reload may change (`proxy.process.reload`) and
docs/configuration.md all come from here. What other
readers of the tier need too is in `storage.config.keys` and `storage.config.tier_keys`. A key is added to the table
and read in `proxy.config.build`; nothing else needs to know it.
"""

from typing import Final

from proxy.config.listener_kinds import ADVERTISED_HOST, BROKER_PORTS, LISTEN, NETWORKS, NODE_ID_MAX, SNI_PATTERN
from proxy.config.model import ClientAuth, Kip405Names, LogFormat, LogLevel, ReadPreference
from storage.config.key_table import KeyTable
from storage.config.keys import BROKER_CONFIG, MODE, UPSTREAM_GROUP
from storage.config.kinds import BOOLEAN, PATH, TEXT, Key, KeyGroup, Reload, integer, one_of, size
from storage.config.sizes import GIB, KIB, MIB, TIB
from storage.config.tier_keys import CACHE_GROUP, KNOWN_GROUP, PLUGIN_GROUP, TIER_READS_GROUP

MEMORY_MAX_BYTES = Key(
    name="memory.max.bytes",
    kind=size(192 * MIB, TIB),
    default="1.5 GiB",
    doc="Of this `cache.memory.bytes` gets 1/6, `readahead.total.max.bytes` and `tier.inflight.bytes.max` 1/3 each, "
    "and `proxy.held.bytes.max` 1/24, unless set themselves. Manifests and indexes get 1/16, Fetch sessions 1/24 "
    "(111,000 partitions at 1.5 GiB; while others want room, no connection keeps more than its share); the rest is for "
    "the process. Resident memory stays below this and 150 MiB.",
)
LOG_LEVEL = Key(
    name="log.level",
    kind=one_of(LogLevel),
    default="info",
    doc="The least severe line that is written.",
    reload=Reload.AT_ONCE,
)
LOG_FORMAT = Key(
    name="log.format",
    kind=one_of(LogFormat),
    default="json",
    doc="One JSON object a line, or text for a terminal.",
    reload=Reload.AT_ONCE,
)

PROXY_LISTEN = Key(
    name="proxy.listen",
    kind=LISTEN,
    default="127.0.0.1:19092",
    doc="The bootstrap listener; port 0: any free one. A wildcard address needs `proxy.advertised.host`.",
)
PROXY_ADVERTISED_HOST = Key(
    name="proxy.advertised.host",
    kind=ADVERTISED_HOST,
    default_words="the listen host",
    doc="What clients are told; may hold `$(nodeId)`.",
)
PROXY_BROKER_PORT_START = Key(
    name="proxy.broker.port.start",
    kind=integer(0, 65535),
    default_words="listen port + 1",
    doc="Broker N listens at start + N − `proxy.broker.id.min`; 0: any free port, kept over restarts if it can be.",
)
PROXY_BROKER_ID_MIN = Key(
    name="proxy.broker.id.min", kind=integer(0, NODE_ID_MAX), default="0", doc="The node id that gets the first port."
)
PROXY_BROKER_PORTS = Key(
    name="proxy.broker.ports", kind=BROKER_PORTS, doc="Ports of single brokers; overrides `proxy.broker.port.start`."
)
PROXY_ADVERTISED_PORT_START = Key(
    name="proxy.advertised.port.start",
    kind=integer(1, 65535),
    default_words="the bound ports",
    doc="Shifts the broker ports that clients are told, for a load balancer or port mapping in front. With "
    "`proxy.tls.sni.pattern`: the port of all brokers.",
)
PROXY_READ_PREFER = Key(
    name="proxy.read.prefer",
    kind=one_of(ReadPreference),
    default="local",
    doc="`tier`: offsets that are in both places come from the tier too.",
    reload=Reload.AT_ONCE,
)
PROXY_TLS_CERTIFICATE_FILE = Key(
    name="proxy.tls.certificate.file",
    kind=PATH,
    doc="PEM file of the certificate (and chain) shown to clients; setting it turns TLS on, which needs a restart.",
    reload=Reload.NEW_CONNECTIONS,
)
PROXY_TLS_KEY_FILE = Key(
    name="proxy.tls.key.file",
    kind=PATH,
    doc="PEM file of its private key; unset: the certificate's file.",
    reload=Reload.NEW_CONNECTIONS,
)
PROXY_TLS_KEY_PASSWORD = Key(
    name="proxy.tls.key.password",
    kind=TEXT,
    secret=True,
    doc="The private key's password.",
    reload=Reload.NEW_CONNECTIONS,
)
PROXY_TLS_CLIENT_CA_FILE = Key(
    name="proxy.tls.client.ca.file",
    kind=PATH,
    doc="PEM file of the CA certificates that clients' ones must chain to.",
    reload=Reload.NEW_CONNECTIONS,
)
PROXY_TLS_CLIENT_AUTH = Key(
    name="proxy.tls.client.auth",
    kind=one_of(ClientAuth),
    default="none",
    doc="Whether a client must show a certificate.",
    reload=Reload.NEW_CONNECTIONS,
)
PROXY_TLS_SNI_PATTERN = Key(
    name="proxy.tls.sni.pattern",
    kind=SNI_PATTERN,
    doc="One port for all brokers, told apart by the TLS server name: the host that clients are told for broker N, "
    "with `$(nodeId)` once, as `broker-$(nodeId).kafka.example.org`. Any other name is for the bootstrap. Needs "
    "`proxy.tls.certificate.file`, valid for all these names; instead of `proxy.broker.port.start`, "
    "`proxy.broker.ports` and `$(nodeId)` in `proxy.advertised.host`.",
)

PROXY_PROTOCOL = Key(
    name="proxy.protocol",
    kind=BOOLEAN,
    default="false",
    doc="`true`: each connection begins with a PROXY header (version 1 or 2), as a balancer in front sends it; the "
    "address that it names is the client's in limits and logs. Needs `proxy.protocol.trusted`.",
)
PROXY_PROTOCOL_TRUSTED = Key(
    name="proxy.protocol.trusted",
    kind=NETWORKS,
    doc="The balancers' own addresses or networks, as `10.0.0.7, 192.0.2.0/24`: a connection from elsewhere is closed.",
)

PROXY_CONNECTIONS_MAX = Key(
    name="proxy.connections.max",
    kind=integer(1, 1_000_000),
    default="4096",
    doc="Client connections. Half are kept for clients that have signed in. When they run out, a new one takes the "
    "place of the oldest that has not, and is closed at once if there is none. Each needs two open files.",
    reload=Reload.AT_ONCE,
)
PROXY_CONNECTIONS_IDLE_MS_MAX = Key(
    name="proxy.connections.idle.max.ms",
    kind=integer(1000, 2**31 - 1),
    default="3600000",
    doc="A connection on which nothing was asked or answered for so long is closed; never one that awaits an answer. "
    "A backstop: brokers' own `connections.max.idle.ms` (10 minutes) closes them earlier.",
    reload=Reload.AT_ONCE,
)
PROXY_CONNECTIONS_MAX_PER_IP = Key(
    name="proxy.connections.max.per.ip",
    kind=integer(1, 1_000_000),
    default_words="no limit",
    doc="Connections of one address; one more is closed at once. Behind NAT or a balancer many clients have one "
    "address; see `proxy.protocol`. Kafka's `max.connections.per.ip`.",
    reload=Reload.AT_ONCE,
)
PROXY_CONNECTIONS_RATE_PER_IP = Key(
    name="proxy.connections.rate.per.ip",
    kind=integer(1, 1_000_000),
    default_words="no limit",
    doc="New connections a second of one address, five seconds' worth at once; one more is closed at once. Kafka's "
    "quota of an address, `connection_creation_rate`.",
    reload=Reload.AT_ONCE,
)
PROXY_FRAME_REQUEST_BYTES_MAX = Key(
    name="proxy.frame.request.bytes.max",
    kind=size(KIB, 2 * GIB - 1),
    default="100 MiB",
    doc="A larger request closes its connection; Kafka's `socket.request.max.bytes`.",
    reload=Reload.NEW_CONNECTIONS,
)
PROXY_FRAME_UNAUTHENTICATED_BYTES_MAX = Key(
    name="proxy.frame.unauthenticated.bytes.max",
    kind=size(KIB, 2 * GIB - 1),
    default="512 KiB",
    doc="A larger request of a client that has not signed in closes its connection, where `upstream.security.protocol` "
    "has SASL; so does a larger one that is part of a sign-in. Kafka's `sasl.server.max.receive.size`.",
    reload=Reload.NEW_CONNECTIONS,
)
PROXY_RESPONSE_HELD_BYTES_MAX = Key(
    name="proxy.response.held.bytes.max",
    kind=size(64 * MIB, 2 * GIB - 1),
    default="64 MiB",
    doc="The largest response that may be held whole, to be rewritten or merged (a merged Fetch has 55 MiB at most); "
    "others are streamed.",
    reload=Reload.NEW_CONNECTIONS,
)
PROXY_INFLIGHT_REQUESTS_MAX = Key(
    name="proxy.inflight.requests.max",
    kind=integer(1, 100_000),
    default="128",
    doc="Requests of one connection that await their response; beyond it no more is read from the client.",
    reload=Reload.NEW_CONNECTIONS,
)
PROXY_HELD_BYTES_MAX = Key(
    name="proxy.held.bytes.max",
    kind=size(4 * MIB, TIB),
    default_words="from `memory.max.bytes`",
    doc="What is held in memory for all clients together: requests that are decoded, responses that are rewritten or "
    "merged. Beyond it requests and responses wait, and then the connection that has kept others waiting longest ends.",
)
PROXY_SEND_STALL_MS = Key(
    name="proxy.send.stall.ms",
    kind=integer(100, 3_600_000),
    default="30000",
    doc="A client that takes no bytes for so long may keep others from theirs no longer: what its answer holds of the "
    "tier is given up, and read again when the client goes on. While nobody waits for the memory, clients may take "
    "their time.",
    reload=Reload.AT_ONCE,
)
RELAY_REWRITE_BYTES_MAX = Key(
    name="relay.rewrite.bytes.max",
    kind=size(KIB, MIB),
    default="64 KiB",
    doc="Fetch responses up to this size are rewritten whole, larger ones in place.",
    reload=Reload.NEW_CONNECTIONS,
)
PROXY_UPSTREAM_CONNECT_TIMEOUT_MS = Key(
    name="proxy.upstream.connect.timeout.ms",
    kind=integer(0, 3_600_000),
    default="30000",
    doc="How long a client's connection is held while no broker answers; then it is closed.",
    reload=Reload.NEW_CONNECTIONS,
)
PROXY_DRAIN_TIMEOUT_MS = Key(
    name="proxy.drain.timeout.ms",
    kind=integer(0, 3_600_000),
    default="30000",
    doc="How long SIGTERM waits for answers under way.",
    reload=Reload.AT_ONCE,
)

FALLBACK_AFTER_MS = Key(
    name="fallback.after.ms",
    kind=integer(0, 3_600_000),
    default="5000",
    doc="An offset that was asked for three times in this time, and of which the tier gave no byte, is read by the "
    "broker. Where the tier fails for good (access denied, an object gone or corrupt), the broker reads at once.",
    reload=Reload.AT_ONCE,
)
FALLBACK_PARTITIONS_MAX = Key(
    name="fallback.partitions.max",
    kind=integer(0, 10_000),
    default="4",
    doc="Partitions that one broker reads at a time because the tier fails; clients of the others are told to come "
    "again. 0: brokers read none.",
    reload=Reload.AT_ONCE,
)

ADMIN_LISTEN = Key(
    name="admin.listen", kind=LISTEN, default="127.0.0.1:9464", doc="`/metrics`, `/livez`, `/readyz`, `/`."
)
METRICS_KIP405_NAMES = Key(
    name="metrics.kip405.names",
    kind=one_of(Kip405Names),
    default="current",
    doc="KIP-405's metrics under today's names, its first ones, or both.",
)
METRICS_TOPICS_MAX = Key(
    name="metrics.topics.max",
    kind=integer(0, 100_000),
    default="1000",
    doc="Topics with series of their own in `/metrics`, the first that are read; the others share the topic "
    "`__other__`.",
)


SERVE_KEYS: Final = KeyTable(
    (
        KeyGroup("General", (MODE, BROKER_CONFIG, MEMORY_MAX_BYTES, LOG_LEVEL, LOG_FORMAT)),
        UPSTREAM_GROUP,
        KeyGroup(
            "Listeners",
            (
                PROXY_LISTEN,
                PROXY_ADVERTISED_HOST,
                PROXY_BROKER_PORT_START,
                PROXY_BROKER_ID_MIN,
                PROXY_BROKER_PORTS,
                PROXY_ADVERTISED_PORT_START,
                PROXY_READ_PREFER,
                PROXY_TLS_CERTIFICATE_FILE,
                PROXY_TLS_KEY_FILE,
                PROXY_TLS_KEY_PASSWORD,
                PROXY_TLS_CLIENT_CA_FILE,
                PROXY_TLS_CLIENT_AUTH,
                PROXY_TLS_SNI_PATTERN,
                PROXY_PROTOCOL,
                PROXY_PROTOCOL_TRUSTED,
            ),
        ),
        KeyGroup(
            "Limits on clients",
            (
                PROXY_CONNECTIONS_MAX,
                PROXY_CONNECTIONS_IDLE_MS_MAX,
                PROXY_CONNECTIONS_MAX_PER_IP,
                PROXY_CONNECTIONS_RATE_PER_IP,
                PROXY_FRAME_REQUEST_BYTES_MAX,
                PROXY_FRAME_UNAUTHENTICATED_BYTES_MAX,
                PROXY_RESPONSE_HELD_BYTES_MAX,
                PROXY_INFLIGHT_REQUESTS_MAX,
                PROXY_HELD_BYTES_MAX,
                PROXY_SEND_STALL_MS,
                RELAY_REWRITE_BYTES_MAX,
                PROXY_UPSTREAM_CONNECT_TIMEOUT_MS,
                PROXY_DRAIN_TIMEOUT_MS,
            ),
        ),
        PLUGIN_GROUP,
        TIER_READS_GROUP,
        KeyGroup("When the tier fails", (FALLBACK_AFTER_MS, FALLBACK_PARTITIONS_MAX)),
        CACHE_GROUP,
        KNOWN_GROUP,
        KeyGroup("Administration", (ADMIN_LISTEN, METRICS_KIP405_NAMES, METRICS_TOPICS_MAX)),
    )
)
