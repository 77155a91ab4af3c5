"""Meters of the caches and of read-ahead; see `metrics.meters` for the rules that they keep."""

import enum
import threading

from metrics.registry import Children, LabelLimit, Registry

_INDEX_TYPES_MAX = 8
"""KIP-405 has five."""


class CacheLevel(enum.StrEnum):
    """Where a block was looked for."""

    MEMORY = "memory"
    DISK = "disk"


class DiskErrorCause(enum.StrEnum):
    """What is wrong with the disk cache."""

    FULL = "full"
    READ_ONLY = "read_only"
    MISSING = "missing"
    DENIED = "denied"
    CORRUPT = "corrupt"
    IN_USE = "in_use"
    OTHER = "other"


class CacheMeter:
    """The block cache and the indexes beside it."""

    def __init__(self, registry: Registry) -> None:
        self._hits = registry.counter_by("tidegate_cache_hits", "Blocks found in the cache.", "level", CacheLevel)
        self._hit_bytes = registry.counter_by(
            "tidegate_cache_hit_bytes", "Bytes of blocks found in the cache.", "level", CacheLevel
        )
        self._misses = registry.counter_by(
            "tidegate_cache_misses", "Blocks not found at a level of the cache.", "level", CacheLevel
        )
        self._evictions = registry.counter_by(
            "tidegate_cache_evictions", "Blocks evicted for want of room.", "level", CacheLevel
        )
        self._resident = registry.gauge_by(
            "tidegate_cache_resident_bytes", "Bytes held by the cache.", "level", CacheLevel
        )
        self._expired = registry.counter_by(
            "tidegate_cache_expired", "Blocks that nobody read for `cache.retention.ms`.", "level", CacheLevel
        )
        self._disk_errors = registry.counter_by(
            "tidegate_cache_disk_errors",
            "Blocks that could not be written to or read from the disk cache.",
            "cause",
            DiskErrorCause,
        )
        self._disk_available = registry.gauge(
            "tidegate_cache_disk_available", "1 while the disk cache works, 0 while Tidegate serves without it."
        )
        self._disk_skipped = registry.counter(
            "tidegate_cache_disk_skipped_blocks", "Blocks that the disk cache was too slow for."
        )
        self._opened_segments = registry.gauge("tidegate_opened_segments", "Segments whose manifest is in memory.")
        self._fills = registry.counter("tidegate_cache_fills", "Blocks filled from the object store.")
        self._fill_bytes = registry.counter(
            "tidegate_cache_fill_bytes", "Plaintext bytes of blocks filled from the object store."
        )
        self._fill_failures = registry.counter(
            "tidegate_cache_fill_failures", "Fills that failed: store, format or checksum."
        )
        self._fill_seconds = registry.histogram("tidegate_cache_fill_seconds", "Duration of one fill.")
        self._fill_wait_seconds = registry.histogram(
            "tidegate_cache_fill_wait_seconds", "Time that a reader waited for a fill."
        )
        self._quarantined = registry.counter(
            "tidegate_cache_quarantined_blocks", "Blocks set aside because their checksum did not hold."
        )
        rebuilds = registry.counters(
            "tidegate_index_rebuilds", "Missing or corrupt indexes rebuilt from the segment's batches.", "index"
        )
        self._index_rebuilds = Children[str](rebuilds, LabelLimit(_INDEX_TYPES_MAX))
        self._lock = threading.Lock()
        """The disk cache's threads count, too."""

    def on_hit(self, level: CacheLevel, block_bytes: int) -> None:
        """A block was found at this level."""
        self._hits[level].value += 1
        self._hit_bytes[level].value += block_bytes

    def on_miss(self, level: CacheLevel) -> None:
        """A block was not found at this level."""
        self._misses[level].value += 1

    def looked_up(self, level: CacheLevel) -> tuple[int, int]:
        """Return how often a block was found at this level, and how often not."""
        return int(self._hits[level].value), int(self._misses[level].value)

    def on_fill(self, block_bytes: int, duration_s: float) -> None:
        """A block came from the store; `block_bytes` is its plaintext."""
        self._fills.value += 1
        self._fill_bytes.value += block_bytes
        self._fill_seconds.observe(duration_s)

    def on_fill_failed(self) -> None:
        """A fill failed."""
        self._fill_failures.value += 1

    def on_fill_waited(self, duration_s: float) -> None:
        """A reader waited this long for a fill."""
        self._fill_wait_seconds.observe(duration_s)

    def on_evicted(self, level: CacheLevel, blocks: int = 1) -> None:
        """Blocks made room for others."""
        with self._lock:
            self._evictions[level].value += blocks

    def on_expired(self, level: CacheLevel, blocks: int = 1) -> None:
        """Blocks were dropped because nobody had read them for long."""
        with self._lock:
            self._expired[level].value += blocks

    def on_disk_error(self, cause: DiskErrorCause) -> None:
        """A block could not be written to or read from disk."""
        with self._lock:
            self._disk_errors[cause].value += 1

    def on_disk_available(self, available: bool) -> None:
        """The disk cache works, or is done without."""
        self._disk_available.value = available

    def on_disk_skipped(self, blocks: int = 1) -> None:
        """Blocks were not written to disk."""
        with self._lock:
            self._disk_skipped.value += blocks

    def on_opened_segments(self, segments: int) -> None:
        """Note how many segments have their manifest in memory now."""
        self._opened_segments.value = segments

    def on_quarantined(self) -> None:
        """A block's checksum did not hold."""
        with self._lock:
            self._quarantined.value += 1

    def on_resident(self, level: CacheLevel, resident_bytes: int) -> None:
        """The level now holds this much."""
        self._resident[level].value = resident_bytes

    def on_index_rebuilt(self, index: str) -> None:
        """An index, by KIP-405's name of its type, was rebuilt from the segment."""
        self._index_rebuilds[index].value += 1


class StallReason(enum.StrEnum):
    """Why read-ahead of a stream went no further."""

    COLD_START = "cold_start"
    """There was no window yet, or the next segment was being opened."""
    DEPTH = "depth"
    """The window was full, and its reader waited."""
    MEMORY = "memory_budget"
    """No room for blocks read ahead, or for GETs under way."""
    CONCURRENCY = "concurrency"
    """As many GETs as fill the link were under way."""
    GET_SLOTS = "get_slots"
    """As many GETs as configuration or the store allows were under way."""
    FAILED = "failed"
    """A GET failed."""
    CONSUMER = "consumer"
    """The window was full, and its reader did not wait."""
    END_OF_TIER = "end_of_tier"
    """Everything that the tier has was asked for."""


class ReadAheadMeter:
    """Blocks that are fetched before anyone asks for them."""

    def __init__(self, registry: Registry) -> None:
        self._fetched = registry.counter("tidegate_readahead_bytes", "Bytes read ahead.")
        self._used = registry.counter("tidegate_readahead_used_bytes", "Bytes read ahead that were then read.")
        self._wasted = registry.counter("tidegate_readahead_wasted_bytes", "Bytes read ahead that were dropped unread.")
        self._unread = registry.gauge("tidegate_readahead_unread_bytes", "Bytes read ahead and not read yet.")
        self._streams = registry.gauge("tidegate_readahead_streams", "Sequential readers that are read ahead for.")
        self._stalls = registry.counter_by(
            "tidegate_readahead_stalls",
            "Times that read-ahead stopped; docs/operate/troubleshoot.md tells the reasons.",
            "reason",
            StallReason,
        )

    def on_stalled(self, reason: StallReason) -> None:
        """Read-ahead of a stream went no further, for another reason than before."""
        self._stalls[reason].value += 1

    def on_arrived(self, block_bytes: int) -> None:
        """A block arrived before anyone asked for it."""
        self._fetched.value += block_bytes

    def on_used(self, block_bytes: int) -> None:
        """A block that was read ahead is read for the first time."""
        self._used.value += block_bytes

    def on_wasted(self, block_bytes: int) -> None:
        """A block that was read ahead is dropped unread."""
        self._wasted.value += block_bytes

    def on_unread(self, unread_bytes: int) -> None:
        """Blocks that nobody has read yet hold this much."""
        self._unread.value = unread_bytes

    def on_streams(self, streams: int) -> None:
        """Note how many sequential readers are known."""
        self._streams.value = streams
