"""The keys of the tier: its two plug-ins, reading it, the cache and the catalog. See `storage.config.keys`."""

from typing import Final

from storage.config.kinds import BOOLEAN, PATH, TEXT, Key, KeyGroup, Reload, integer, size
from storage.config.sizes import GIB, KIB, MIB, TIB

# Five seconds cap a tier read (design L3); a day is more than any age or interval here can sensibly be.
FETCH_WAIT_MS_LIMIT: Final = 5_000
DAY_MS: Final = 86_400_000
TOPIC_BASED_RLMM: Final = (
    "org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager"  # Kafka's own default
)

STORAGE_MANAGER_CLASS = Key(
    name="remote.log.storage.manager.class.name",
    kind=TEXT,
    stand_in="unset",
    doc="Kafka's `org.apache.kafka.server.log.remote.storage.LocalTieredStorage`, Aiven's "
    "`io.aiven.kafka.tieredstorage.RemoteStorageManager`, or `tidegate.PlainObjects`.",
)
STORAGE_MANAGER_PREFIX = Key(
    name="remote.log.storage.manager.impl.prefix",
    kind=TEXT,
    default="rsm.config.",
    doc="What the storage plug-in's own keys begin with.",
)
METADATA_MANAGER_CLASS = Key(
    name="remote.log.metadata.manager.class.name",
    kind=TEXT,
    default=TOPIC_BASED_RLMM,
    doc="`tidegate.InMemory` is for tests and imports.",
)
METADATA_MANAGER_PREFIX = Key(
    name="remote.log.metadata.manager.impl.prefix",
    kind=TEXT,
    default="rlmm.config.",
    doc="What the metadata plug-in's own keys begin with.",
)
REMOTE_FETCH_MAX_WAIT_MS = Key(
    name="remote.fetch.max.wait.ms",
    kind=integer(0, FETCH_WAIT_MS_LIMIT),
    default="500",
    doc="How long a tier read may take if the client's own `max_wait` is shorter.",
    reload=Reload.AT_ONCE,
)
REMOTE_LIST_OFFSETS_TIMEOUT_MS = Key(
    name="remote.list.offsets.request.timeout.ms",
    kind=integer(1, 3_600_000),
    default="30000",
    doc="How long a look-up by time may take in the tier; a shorter time that the request names counts instead.",
    reload=Reload.NEW_CONNECTIONS,
)
TIER_LINGER_MS = Key(
    name="tier.linger.ms",
    kind=integer(0, FETCH_WAIT_MS_LIMIT),
    default="20",
    doc="How much longer once another partition of the request has records.",
    reload=Reload.AT_ONCE,
)
TIER_CONCURRENT_GETS_MAX = Key(
    name="tier.concurrent.gets.max", kind=integer(1, 1024), default="32", doc="GETs under way at once."
)
TIER_INFLIGHT_BYTES_MAX = Key(
    name="tier.inflight.bytes.max",
    kind=size(16 * MIB, TIB),
    default_words="512 MiB, from `memory.max.bytes`",
    doc="Bytes of GETs under way and of answers not yet sent, half of it each.",
)
TIER_HEDGE_GETS_PER_MINUTE_MIN = Key(
    name="tier.hedge.gets.per.minute.min",
    kind=integer(-1, 1_000_000),
    default="60",
    doc="From this rate of GETs on, one whose first byte is later than 95 in 100 gets a second; −1: never.",
)

CACHE_PATH = Key(name="cache.path", kind=PATH, doc="Folder of the disk cache, of one process only; unset: memory only.")
CACHE_DISK_BYTES = Key(
    name="cache.disk.bytes", kind=size(0, 1024 * TIB), default="16 GiB", doc="What the disk cache may hold."
)
CACHE_MEMORY_BYTES = Key(
    name="cache.memory.bytes",
    kind=size(MIB, TIB),
    default_words="256 MiB, from `memory.max.bytes`",
    doc="What the memory cache may hold.",
)
CACHE_BLOCK_BYTES = Key(
    name="cache.block.bytes",
    kind=size(64 * KIB, 16 * MIB),
    default="1 MiB",
    doc="The cache's unit: whole chunks that cover at least this much.",
)
CACHE_RETENTION_MS = Key(
    name="cache.retention.ms",
    kind=integer(-1, 10 * 365 * DAY_MS),
    default="-1",
    doc="Blocks not read for this long are dropped; −1: only when room is needed.",
)
CACHE_ENCRYPT = Key(name="cache.encrypt", kind=BOOLEAN, default="false", doc="Encrypt blocks on disk.")
CACHE_ENCRYPT_KEY_FILE = Key(
    name="cache.encrypt.key.file", kind=PATH, doc="Key of the encrypted cache; unset: a new one at each start."
)
READAHEAD_STREAM_MAX_BYTES = Key(
    name="readahead.stream.max.bytes",
    kind=size(0, 16 * GIB),
    default_words="128 MiB, at most `readahead.total.max.bytes`",
    doc="Read-ahead of one sequential reader; 0: none.",
)
READAHEAD_TOTAL_MAX_BYTES = Key(
    name="readahead.total.max.bytes",
    kind=size(0, TIB),
    default_words="512 MiB, from `memory.max.bytes`",
    doc="Read-ahead of all readers.",
)

AUTHORITY_MAX_AGE_MS = Key(
    name="authority.max.age.ms",
    kind=integer(0, 3_600_000),
    default="1000",
    doc="How long the broker's word that a client may read a partition holds; 0: asked at every Fetch.",
    reload=Reload.AT_ONCE,
)
FRONTIER_MAX_AGE_MS = Key(
    name="frontier.max.age.ms",
    kind=integer(0, 3_600_000),
    default="1000",
    doc="How old a partition's known offsets may be before they are asked again.",
    reload=Reload.AT_ONCE,
)
CATALOG_SNAPSHOT_PATH = Key(
    name="catalog.snapshot.path",
    kind=PATH,
    default_words="`<cache.path>/catalog`",
    doc="Folder of the catalog's snapshot and of the known brokers, for a quick start.",
)
CATALOG_SNAPSHOT_INTERVAL_MS = Key(
    name="catalog.snapshot.interval.ms", kind=integer(100, DAY_MS), default="30000", doc="Between two snapshots."
)
CATALOG_SEGMENTS_MAX = Key(
    name="catalog.segments.max",
    kind=integer(1, 100_000_000),
    default="2000000",
    doc="Segments known at once, up to 400 bytes each; beyond it new partitions are left to the broker.",
)

PLUGIN_GROUP: Final = KeyGroup(
    "The tier, named as the broker names it",
    (STORAGE_MANAGER_CLASS, STORAGE_MANAGER_PREFIX, METADATA_MANAGER_CLASS, METADATA_MANAGER_PREFIX),
)
TIER_READS_GROUP: Final = KeyGroup(
    "Tier reads",
    (
        REMOTE_FETCH_MAX_WAIT_MS,
        REMOTE_LIST_OFFSETS_TIMEOUT_MS,
        TIER_LINGER_MS,
        TIER_CONCURRENT_GETS_MAX,
        TIER_INFLIGHT_BYTES_MAX,
        TIER_HEDGE_GETS_PER_MINUTE_MIN,
    ),
)
CACHE_GROUP: Final = KeyGroup(
    "Cache and read-ahead",
    (
        CACHE_PATH,
        CACHE_DISK_BYTES,
        CACHE_MEMORY_BYTES,
        CACHE_BLOCK_BYTES,
        CACHE_RETENTION_MS,
        CACHE_ENCRYPT,
        CACHE_ENCRYPT_KEY_FILE,
        READAHEAD_STREAM_MAX_BYTES,
        READAHEAD_TOTAL_MAX_BYTES,
    ),
)
KNOWN_GROUP: Final = KeyGroup(
    "What is known of upstream and tier",
    (
        AUTHORITY_MAX_AGE_MS,
        FRONTIER_MAX_AGE_MS,
        CATALOG_SNAPSHOT_PATH,
        CATALOG_SNAPSHOT_INTERVAL_MS,
        CATALOG_SEGMENTS_MAX,
    ),
)
