"""The metrics that Kafka lacks: one row for every `tidegate_*` family.

Names are Prometheus' way: base units (seconds, bytes), unit last. Label values are bounded: either an enumeration of
`metrics.probes`, or a number that the registry caps. Topics are never a label here; `kip405` has the per-topic series.
"""

from metrics.family import Family, Kind

_MS_BUCKETS = (
    0.001,
    0.002,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
)
"""1 ms to 10 s. A probe takes 0.2-0.3 ms where nothing is wrong, a cold GET 30 ms, a deadline 0.5 s to 5 s."""

CACHE_HITS = Family(
    name="tidegate_cache_hits",
    kind=Kind.COUNTER,
    help="Blocks found in the cache.",
    labels=("level",),
)
CACHE_HIT_BYTES = Family(
    name="tidegate_cache_hit_bytes",
    kind=Kind.COUNTER,
    help="Bytes of blocks found in the cache.",
    labels=("level",),
)
CACHE_MISSES = Family(
    name="tidegate_cache_misses",
    kind=Kind.COUNTER,
    help="Blocks not found at a level of the cache.",
    labels=("level",),
)
CACHE_FILLS = Family(
    name="tidegate_cache_fills",
    kind=Kind.COUNTER,
    help="Blocks filled from the object store.",
)
CACHE_FILL_BYTES = Family(
    name="tidegate_cache_fill_bytes",
    kind=Kind.COUNTER,
    help="Plaintext bytes of blocks filled from the object store.",
)
CACHE_FILL_FAILURES = Family(
    name="tidegate_cache_fill_failures",
    kind=Kind.COUNTER,
    help="Fills that failed: store, format or checksum.",
)
CACHE_FILL_SECONDS = Family(
    name="tidegate_cache_fill_seconds",
    kind=Kind.HISTOGRAM,
    help="Duration of one fill, from the request to the store to the block in memory.",
    buckets=_MS_BUCKETS,
)
CACHE_FILL_WAIT_SECONDS = Family(
    name="tidegate_cache_fill_wait_seconds",
    kind=Kind.HISTOGRAM,
    help="Time that a reader waited for a fill, its own or one under way.",
    buckets=_MS_BUCKETS,
)
CACHE_EVICTIONS = Family(
    name="tidegate_cache_evictions",
    kind=Kind.COUNTER,
    help="Blocks evicted for want of room.",
    labels=("level",),
)
CACHE_QUARANTINED = Family(
    name="tidegate_cache_quarantined_blocks",
    kind=Kind.COUNTER,
    help="Blocks set aside because their checksum did not hold.",
)
CACHE_RESIDENT_BYTES = Family(
    name="tidegate_cache_resident_bytes",
    kind=Kind.GAUGE,
    help="Bytes held by the cache.",
    labels=("level",),
)
INDEX_REBUILDS = Family(
    name="tidegate_index_rebuilds",
    kind=Kind.COUNTER,
    help="Indexes rebuilt from the segment's batches because the object was missing or corrupt.",
    labels=("index",),
)

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
RELAYED_BYTES = Family(
    name="tidegate_relayed_bytes",
    kind=Kind.COUNTER,
    help="Bytes passed between clients and brokers.",
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
MALFORMED_FRAMES = Family(
    name="tidegate_malformed_frames",
    kind=Kind.COUNTER,
    help="Frames of a peer that closed their connection.",
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
    buckets=_MS_BUCKETS,
)
FRONTIER_AGE_SECONDS = Family(
    name="tidegate_frontier_age_seconds",
    kind=Kind.HISTOGRAM,
    help="Age of a partition's last seen offsets when a read was routed by them.",
    buckets=(0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
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

LOOP_STALL_SECONDS = Family(
    name="tidegate_loop_stall_seconds",
    kind=Kind.HISTOGRAM,
    help="How late the event loop woke a task that slept.",
    buckets=(0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0),
)
LOOP_STALL_MAX_SECONDS = Family(
    name="tidegate_loop_stall_max_seconds",
    kind=Kind.GAUGE,
    help="The latest waking among the last 600, about a minute.",
)

FAMILIES: tuple[Family, ...] = (
    CACHE_HITS,
    CACHE_HIT_BYTES,
    CACHE_MISSES,
    CACHE_FILLS,
    CACHE_FILL_BYTES,
    CACHE_FILL_FAILURES,
    CACHE_FILL_SECONDS,
    CACHE_FILL_WAIT_SECONDS,
    CACHE_EVICTIONS,
    CACHE_QUARANTINED,
    CACHE_RESIDENT_BYTES,
    INDEX_REBUILDS,
    CONNECTIONS_ACCEPTED,
    CONNECTIONS_ACTIVE,
    CONNECTIONS_CLOSED,
    RELAYED_BYTES,
    SERVED_TIER_BYTES,
    REQUESTS,
    MALFORMED_FRAMES,
    PROBES_SENT,
    PROBES_REUSED,
    PROBE_DISCARDED_BYTES,
    PROBE_SECONDS,
    FRONTIER_AGE_SECONDS,
    CATALOG_SEGMENTS,
    CATALOG_UNDECODABLE,
    CATALOG_LAG,
    CATALOG_REFUSED,
    LOOP_STALL_SECONDS,
    LOOP_STALL_MAX_SECONDS,
)
