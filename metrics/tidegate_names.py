"""The metrics that Kafka lacks: one row for every `tidegate_*` family; those of the tier's readers are in `tier_names`.

Names are Prometheus' way: base units (seconds, bytes), unit last. Label values are bounded: either an enumeration of
`metrics.probes`, or a number that the registry caps. Topics are never a label here; `kip405` has the per-topic series.
"""

from metrics import tier_names
from metrics.family import LATENCY_BUCKETS_S, Family, Kind

CONNECTIONS_ACCEPTED = Family(
    name="tidegate_connections_accepted",
    kind=Kind.COUNTER,
    help="Client connections accepted.",
)
CONNECTIONS_ACTIVE = Family(
    name="tidegate_connections_active",
    kind=Kind.GAUGE,
    help="Client connections open now.",
)
CONNECTIONS_CLOSED = Family(
    name="tidegate_connections_closed",
    kind=Kind.COUNTER,
    help="Client connections closed.",
    labels=("cause",),
)
CONNECTIONS_REFUSED = Family(
    name="tidegate_connections_refused",
    kind=Kind.COUNTER,
    help="Client connections closed at once: no slot is free, their address is over its limit, or no PROXY header.",
    labels=("reason",),
)
RELAYED_BYTES = Family(
    name="tidegate_relayed_bytes",
    kind=Kind.COUNTER,
    help="Bytes passed between clients and brokers, as the client sends and gets them.",
    labels=("direction",),
)
SERVED_TIER_BYTES = Family(
    name="tidegate_served_tier_bytes",
    kind=Kind.COUNTER,
    help="Record bytes from the tier sent to clients.",
)
REQUESTS = Family(
    name="tidegate_requests",
    kind=Kind.COUNTER,
    help="Requests of clients, by Kafka api key and by what was done with them.",
    labels=("api_key", "route"),
)
REQUESTS_UNREAD = Family(
    name="tidegate_requests_unread",
    kind=Kind.COUNTER,
    help="Fetch and ListOffsets requests of more than 10,000 partitions or 1 MiB, left to the broker.",
    labels=("api_key",),
)
MALFORMED_FRAMES = Family(
    name="tidegate_malformed_frames",
    kind=Kind.COUNTER,
    help="Frames of a peer that closed their connection.",
)
HELD_BYTES = Family(
    name="tidegate_held_bytes",
    kind=Kind.GAUGE,
    help="Bytes of requests and responses that are held whole for clients.",
)
ANSWERS_RELEASED_BYTES = Family(
    name="tidegate_answers_released_bytes",
    kind=Kind.COUNTER,
    help="Bytes of blocks that answers gave up because their clients took nothing while others waited.",
)
FETCH_SESSIONS = Family(
    name="tidegate_fetch_sessions",
    kind=Kind.GAUGE,
    help="Incremental Fetch sessions (KIP-227) of clients, relayed ones among them.",
)
PROBES_SENT = Family(
    name="tidegate_probes_sent",
    kind=Kind.COUNTER,
    help="Questions to a broker that a read from the tier rides on.",
)
PROBES_REUSED = Family(
    name="tidegate_probes_reused",
    kind=Kind.COUNTER,
    help="Reads from the tier that rode on an earlier good probe.",
)
PROBE_DISCARDED_BYTES = Family(
    name="tidegate_probe_discarded_bytes",
    kind=Kind.COUNTER,
    help="Record bytes in probe answers, thrown away.",
)
PROBE_SECONDS = Family(
    name="tidegate_probe_seconds",
    kind=Kind.HISTOGRAM,
    help="Time from a probe to its answer.",
    buckets=LATENCY_BUCKETS_S,
)
FRONTIER_AGE_SECONDS = Family(
    name="tidegate_frontier_age_seconds",
    kind=Kind.HISTOGRAM,
    help="Age of a partition's last seen offsets when a read was routed by them.",
    buckets=(0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)
UPSTREAM_CONNECT_WAITS = Family(
    name="tidegate_upstream_connect_waits",
    kind=Kind.GAUGE,
    help="Client connections that wait for a connection to their broker.",
)
DEADLINE_MISSES = Family(
    name="tidegate_deadline_misses",
    kind=Kind.COUNTER,
    help="Reads from the tier that missed their deadline: one a Fetch, one a partition of a ListOffsets.",
    labels=("request",),
)

FALLBACK_PARTITIONS = Family(
    name="tidegate_fallback_partitions",
    kind=Kind.GAUGE,
    help="Partitions that are left to the brokers for now, as reading them from the tier failed.",
    labels=("reason",),
)
FALLBACK_READS = Family(
    name="tidegate_fallback_reads",
    kind=Kind.COUNTER,
    help="Partition reads that a broker did because the tier failed.",
    labels=("reason",),
)
FALLBACK_BYTES = Family(
    name="tidegate_fallback_bytes",
    kind=Kind.COUNTER,
    help="Record bytes that brokers gave in the tier's place.",
)
FALLBACK_REFUSED = Family(
    name="tidegate_fallback_refused",
    kind=Kind.COUNTER,
    help="Partition reads that were put off, as the broker had `fallback.partitions.max` already.",
)

CATALOG_SEGMENTS = Family(name="tidegate_catalog_segments", kind=Kind.GAUGE, help="Segments in the catalog.")
CATALOG_UNDECODABLE = Family(
    name="tidegate_catalog_undecodable_records",
    kind=Kind.COUNTER,
    help="Records of the metadata topic that could not be decoded and were skipped.",
)
CATALOG_LAG = Family(
    name="tidegate_catalog_lag_records",
    kind=Kind.GAUGE,
    help="Records of a metadata partition that the catalog has not yet read.",
    labels=("metadata_partition",),
)
CATALOG_REFUSED = Family(
    name="tidegate_catalog_refused_partitions",
    kind=Kind.GAUGE,
    help="Partitions that the full catalog did not take in.",
)
CATALOG_MEMORY = Family(
    name="tidegate_catalog_memory_bytes",
    kind=Kind.GAUGE,
    help="Estimate of the catalog's memory.",
)
CATALOG_SNAPSHOT_TIMESTAMP = Family(
    name="tidegate_catalog_snapshot_timestamp_seconds",
    kind=Kind.GAUGE,
    help="Unix time of the last catalog snapshot that was written or read; 0: none.",
)
CATALOG_SNAPSHOT_BYTES = Family(
    name="tidegate_catalog_snapshot_bytes",
    kind=Kind.GAUGE,
    help="Size of the last catalog snapshot that was written; 0: none.",
)
CATALOG_SNAPSHOT_WRITES = Family(
    name="tidegate_catalog_snapshot_writes",
    kind=Kind.COUNTER,
    help="Catalog snapshots written, or not.",
    labels=("outcome",),
)
CATALOG_SNAPSHOT_LOADS = Family(
    name="tidegate_catalog_snapshot_loads",
    kind=Kind.COUNTER,
    help="What became of the catalog snapshot that was looked for at the start.",
    labels=("outcome",),
)

LOOP_STALL_SECONDS = Family(
    name="tidegate_loop_stall_seconds",
    kind=Kind.HISTOGRAM,
    help="How late the event loop woke a task that slept.",
    buckets=LATENCY_BUCKETS_S,
)
LOOP_STALL_MAX_SECONDS = Family(
    name="tidegate_loop_stall_max_seconds",
    kind=Kind.GAUGE,
    help="The latest waking among the last 600, about a minute.",
)
TASKS = Family(
    name="tidegate_tasks",
    kind=Kind.GAUGE,
    help="Tasks of the event loop, its own ones included: a number that does not follow the connections is a leak.",
)

READY = Family(
    name="tidegate_ready",
    kind=Kind.GAUGE,
    help="1 while clients should be sent here, as /readyz says.",
)
DEGRADED = Family(
    name="tidegate_degraded",
    kind=Kind.GAUGE,
    help="1 while ready with complaints, as /readyz says.",
)
CONDITION_STATE = Family(
    name="tidegate_condition_state",
    kind=Kind.GAUGE,
    help="What readiness depends on: 1 for the state that holds, 0 for the others.",
    labels=("condition", "state"),
)
METADATA_PARTITION_PROBLEMS = Family(
    name="tidegate_metadata_partition_problems",
    kind=Kind.GAUGE,
    help="Metadata partitions that are not being read.",
)
CERTIFICATE_EXPIRY = Family(
    name="tidegate_certificate_expiry_timestamp_seconds",
    kind=Kind.GAUGE,
    help="Unix time at which a certificate in use expires, by the configuration key that names it.",
    labels=("key",),
)
CONFIG_RELOADS = Family(
    name="tidegate_config_reloads",
    kind=Kind.COUNTER,
    help="Times that the configuration was read again.",
    labels=("outcome",),
)
CONFIG_RELOAD_TIMESTAMP = Family(
    name="tidegate_config_reload_timestamp_seconds",
    kind=Kind.GAUGE,
    help="Unix time of the last reading of the configuration that was not refused; 0: only at the start.",
)
CONFIG_RESTART_NEEDED = Family(
    name="tidegate_config_restart_needed",
    kind=Kind.GAUGE,
    help="Changed configuration keys that wait for a restart.",
)
BUILD_INFO = Family(
    name="tidegate_build_info",
    kind=Kind.GAUGE,
    help="1, with Tidegate's version and Python's.",
    labels=("version", "python"),
)

FAMILIES: tuple[Family, ...] = (
    *tier_names.FAMILIES,
    CONNECTIONS_ACCEPTED,
    CONNECTIONS_ACTIVE,
    CONNECTIONS_CLOSED,
    CONNECTIONS_REFUSED,
    RELAYED_BYTES,
    SERVED_TIER_BYTES,
    REQUESTS,
    REQUESTS_UNREAD,
    MALFORMED_FRAMES,
    HELD_BYTES,
    ANSWERS_RELEASED_BYTES,
    FETCH_SESSIONS,
    PROBES_SENT,
    PROBES_REUSED,
    PROBE_DISCARDED_BYTES,
    PROBE_SECONDS,
    FRONTIER_AGE_SECONDS,
    UPSTREAM_CONNECT_WAITS,
    DEADLINE_MISSES,
    FALLBACK_PARTITIONS,
    FALLBACK_READS,
    FALLBACK_BYTES,
    FALLBACK_REFUSED,
    CATALOG_SEGMENTS,
    CATALOG_UNDECODABLE,
    CATALOG_LAG,
    CATALOG_REFUSED,
    CATALOG_MEMORY,
    CATALOG_SNAPSHOT_TIMESTAMP,
    CATALOG_SNAPSHOT_BYTES,
    CATALOG_SNAPSHOT_WRITES,
    CATALOG_SNAPSHOT_LOADS,
    LOOP_STALL_SECONDS,
    LOOP_STALL_MAX_SECONDS,
    TASKS,
    READY,
    DEGRADED,
    CONDITION_STATE,
    METADATA_PARTITION_PROBLEMS,
    CERTIFICATE_EXPIRY,
    CONFIG_RELOADS,
    CONFIG_RELOAD_TIMESTAMP,
    CONFIG_RESTART_NEEDED,
    BUILD_INFO,
)
"""Every family of ours; the one table that the registry, docs/metrics.md and tests are made of."""
