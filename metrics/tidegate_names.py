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

CACHE_EXPIRED = Family(
    name="tidegate_cache_expired",
    kind=Kind.COUNTER,
    help="Blocks dropped because nobody had read them for cache.retention.ms.",
    labels=("level",),
)
CACHE_DISK_ERRORS = Family(
    name="tidegate_cache_disk_errors",
    kind=Kind.COUNTER,
    help="Blocks that could not be written to or read from the disk cache.",
    labels=("cause",),
)
CACHE_DISK_AVAILABLE = Family(
    name="tidegate_cache_disk_available",
    kind=Kind.GAUGE,
    help="1 while the disk cache works, 0 while Tidegate serves without it.",
)
CACHE_DISK_SKIPPED = Family(
    name="tidegate_cache_disk_skipped_blocks",
    kind=Kind.COUNTER,
    help="Blocks not written to the disk cache because it was behind or unavailable.",
)
OPENED_SEGMENTS = Family(
    name="tidegate_opened_segments",
    kind=Kind.GAUGE,
    help="Segments whose manifest is in memory.",
)

GETS = Family(
    name="tidegate_gets",
    kind=Kind.COUNTER,
    help="GETs sent to the object store.",
    labels=("object",),
)
GET_BYTES = Family(
    name="tidegate_get_bytes",
    kind=Kind.COUNTER,
    help="Bytes asked of the object store by GETs of segments' logs, as stored.",
)
GET_ERRORS = Family(
    name="tidegate_get_errors",
    kind=Kind.COUNTER,
    help="GETs that failed, by cause.",
    labels=("cause",),
)
GET_RETRIES = Family(
    name="tidegate_get_retries",
    kind=Kind.COUNTER,
    help="GETs repeated after one that failed, for what it had not delivered.",
)
GET_FIRST_BYTE_SECONDS = Family(
    name="tidegate_get_first_byte_seconds",
    kind=Kind.HISTOGRAM,
    help="Time from a GET to the beginning of its answer.",
    buckets=_MS_BUCKETS,
)
GET_SECONDS = Family(
    name="tidegate_get_seconds",
    kind=Kind.HISTOGRAM,
    help="Time from a GET to the end of its answer.",
    buckets=_MS_BUCKETS,
)
GETS_IN_FLIGHT = Family(name="tidegate_gets_in_flight", kind=Kind.GAUGE, help="GETs under way.")
GETS_QUEUED = Family(name="tidegate_gets_queued", kind=Kind.GAUGE, help="GETs that wait for a slot or for memory.")
GET_HEDGES = Family(
    name="tidegate_get_hedges",
    kind=Kind.COUNTER,
    help="Second GETs sent because the first byte was late.",
)
GET_HEDGES_WON = Family(
    name="tidegate_get_hedges_won",
    kind=Kind.COUNTER,
    help="Second GETs that answered first.",
)
GET_SPLITS = Family(
    name="tidegate_get_splits",
    kind=Kind.COUNTER,
    help="GETs whose rest was given to another connection because theirs was slow.",
)
INFLIGHT_BYTES = Family(
    name="tidegate_inflight_bytes",
    kind=Kind.GAUGE,
    help="Bytes held by GETs under way and by answers not yet sent.",
)

READAHEAD_BYTES = Family(
    name="tidegate_readahead_bytes",
    kind=Kind.COUNTER,
    help="Bytes of blocks that arrived before anyone asked for them.",
)
READAHEAD_USED_BYTES = Family(
    name="tidegate_readahead_used_bytes",
    kind=Kind.COUNTER,
    help="Bytes of blocks read ahead that were then read.",
)
READAHEAD_WASTED_BYTES = Family(
    name="tidegate_readahead_wasted_bytes",
    kind=Kind.COUNTER,
    help="Bytes of blocks read ahead that were dropped unread.",
)
READAHEAD_UNREAD_BYTES = Family(
    name="tidegate_readahead_unread_bytes",
    kind=Kind.GAUGE,
    help="Bytes of blocks read ahead that nobody has read yet.",
)
READAHEAD_STREAMS = Family(
    name="tidegate_readahead_streams",
    kind=Kind.GAUGE,
    help="Sequential readers that are read ahead for.",
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
    CACHE_EXPIRED,
    CACHE_DISK_ERRORS,
    CACHE_DISK_AVAILABLE,
    CACHE_DISK_SKIPPED,
    OPENED_SEGMENTS,
    GETS,
    GET_BYTES,
    GET_ERRORS,
    GET_RETRIES,
    GET_FIRST_BYTE_SECONDS,
    GET_SECONDS,
    GETS_IN_FLIGHT,
    GETS_QUEUED,
    GET_HEDGES,
    GET_HEDGES_WON,
    GET_SPLITS,
    INFLIGHT_BYTES,
    READAHEAD_BYTES,
    READAHEAD_USED_BYTES,
    READAHEAD_WASTED_BYTES,
    READAHEAD_UNREAD_BYTES,
    READAHEAD_STREAMS,
    CONNECTIONS_ACCEPTED,
    CONNECTIONS_ACTIVE,
    CONNECTIONS_CLOSED,
    RELAYED_BYTES,
    SERVED_TIER_BYTES,
    REQUESTS,
    MALFORMED_FRAMES,
    FETCH_SESSIONS,
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
