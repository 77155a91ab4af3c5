"""Our metrics of what reads the tier: the caches, GETs and read-ahead. Rules and use: `metrics.tidegate_names`."""

from metrics.family import LATENCY_BUCKETS_S, Family, Kind

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
    buckets=LATENCY_BUCKETS_S,
)
CACHE_FILL_WAIT_SECONDS = Family(
    name="tidegate_cache_fill_wait_seconds",
    kind=Kind.HISTOGRAM,
    help="Time that a reader waited for a fill, its own or one under way.",
    buckets=LATENCY_BUCKETS_S,
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
    help="GETs of the object store that have ended.",
    labels=("store", "object", "outcome"),
)
GET_BYTES = Family(
    name="tidegate_get_bytes",
    kind=Kind.COUNTER,
    help="Bytes received from the object store by GETs of segments' logs, as stored.",
    labels=("store", "outcome"),
)
GET_RETRIES = Family(
    name="tidegate_get_retries",
    kind=Kind.COUNTER,
    help="GETs repeated after one that failed, for what it had not delivered.",
)
GET_FIRST_BYTE_SECONDS = Family(
    name="tidegate_get_first_byte_seconds",
    kind=Kind.HISTOGRAM,
    help="Time from a GET of a segment's log to the beginning of its answer.",
    labels=("store",),
    buckets=LATENCY_BUCKETS_S,
)
GET_SECONDS = Family(
    name="tidegate_get_seconds",
    kind=Kind.HISTOGRAM,
    help="Time from a GET to the end of its answer, or to its failure.",
    labels=("store", "outcome"),
    buckets=LATENCY_BUCKETS_S,
)
GETS_IN_FLIGHT = Family(name="tidegate_gets_in_flight", kind=Kind.GAUGE, help="GETs under way.")
GETS_LIMIT = Family(
    name="tidegate_gets_limit",
    kind=Kind.GAUGE,
    help="GETs that may be in flight: tier.concurrent.gets.max, or fewer after the store throttled some.",
)
GETS_QUEUED = Family(name="tidegate_gets_queued", kind=Kind.GAUGE, help="GETs that wait for a slot or for memory.")
GET_HEDGES = Family(
    name="tidegate_get_hedges",
    kind=Kind.COUNTER,
    help="Second GETs sent because the first byte was late.",
)
GET_HEDGES_WON = Family(
    name="tidegate_get_hedges_won",
    kind=Kind.COUNTER,
    help="Second GETs that brought the next block first.",
)
GET_SPLITS = Family(
    name="tidegate_get_splits",
    kind=Kind.COUNTER,
    help="Second GETs sent for the rest of a body that was slow.",
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
READAHEAD_STALLS = Family(
    name="tidegate_readahead_stalls",
    kind=Kind.COUNTER,
    help="How often read-ahead of a stream stopped, by reason; docs/operations.md says what to raise.",
    labels=("reason",),
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
    GET_RETRIES,
    GET_FIRST_BYTE_SECONDS,
    GET_SECONDS,
    GETS_IN_FLIGHT,
    GETS_LIMIT,
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
    READAHEAD_STALLS,
)
