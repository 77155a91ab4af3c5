"""Probes of the caches and of read-ahead; see `metrics.probes` for the rules that they keep."""

import enum

from prometheus_client import Counter, Gauge

from metrics import tier_names as names
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
    OTHER = "other"


class CacheProbe:
    """The block cache and the indexes beside it."""

    def __init__(self, registry: Registry) -> None:
        self._hits = registry.enumerated_counter(names.CACHE_HITS, CacheLevel)
        self._hit_bytes = registry.enumerated_counter(names.CACHE_HIT_BYTES, CacheLevel)
        self._misses = registry.enumerated_counter(names.CACHE_MISSES, CacheLevel)
        self._evictions = registry.enumerated_counter(names.CACHE_EVICTIONS, CacheLevel)
        self._resident = Children[CacheLevel, Gauge](
            registry.gauge(names.CACHE_RESIDENT_BYTES), LabelLimit(len(CacheLevel))
        )
        self._expired = registry.enumerated_counter(names.CACHE_EXPIRED, CacheLevel)
        self._disk_errors = registry.enumerated_counter(names.CACHE_DISK_ERRORS, DiskErrorCause)
        self._disk_available = registry.gauge(names.CACHE_DISK_AVAILABLE)
        self._disk_skipped = registry.counter(names.CACHE_DISK_SKIPPED)
        self._opened_segments = registry.gauge(names.OPENED_SEGMENTS)
        self._fills = registry.counter(names.CACHE_FILLS)
        self._fill_bytes = registry.counter(names.CACHE_FILL_BYTES)
        self._fill_failures = registry.counter(names.CACHE_FILL_FAILURES)
        self._fill_seconds = registry.histogram(names.CACHE_FILL_SECONDS)
        self._fill_wait_seconds = registry.histogram(names.CACHE_FILL_WAIT_SECONDS)
        self._quarantined = registry.counter(names.CACHE_QUARANTINED)
        self._index_rebuilds = Children[str, Counter](
            registry.counter(names.INDEX_REBUILDS), LabelLimit(_INDEX_TYPES_MAX)
        )

    def on_hit(self, level: CacheLevel, block_bytes: int) -> None:
        """A block was found at this level."""
        self._hits[level].inc()
        self._hit_bytes[level].inc(block_bytes)

    def on_miss(self, level: CacheLevel) -> None:
        """A block was not found at this level."""
        self._misses[level].inc()

    def on_fill(self, block_bytes: int, duration_s: float) -> None:
        """A block came from the store; `block_bytes` is its plaintext."""
        self._fills.inc()
        self._fill_bytes.inc(block_bytes)
        self._fill_seconds.observe(duration_s)

    def on_fill_failed(self) -> None:
        """A fill failed."""
        self._fill_failures.inc()

    def on_fill_waited(self, duration_s: float) -> None:
        """A reader waited this long for a fill."""
        self._fill_wait_seconds.observe(duration_s)

    def on_evicted(self, level: CacheLevel, blocks: int = 1) -> None:
        """Blocks made room for others."""
        self._evictions[level].inc(blocks)

    def on_expired(self, level: CacheLevel, blocks: int = 1) -> None:
        """Blocks were dropped because nobody had read them for long."""
        self._expired[level].inc(blocks)

    def on_disk_error(self, cause: DiskErrorCause) -> None:
        """A block could not be written to or read from disk."""
        self._disk_errors[cause].inc()

    def on_disk_available(self, available: bool) -> None:
        """The disk cache works, or is done without."""
        self._disk_available.set(available)

    def on_disk_skipped(self, blocks: int = 1) -> None:
        """Blocks were not written to disk."""
        self._disk_skipped.inc(blocks)

    def on_opened_segments(self, segments: int) -> None:
        """So many segments have their manifest in memory now."""
        self._opened_segments.set(segments)

    def on_quarantined(self) -> None:
        """A block's checksum did not hold."""
        self._quarantined.inc()

    def on_resident(self, level: CacheLevel, resident_bytes: int) -> None:
        """The level now holds this much."""
        self._resident[level].set(resident_bytes)

    def on_index_rebuilt(self, index: str) -> None:
        """An index, by KIP-405's name of its type, was rebuilt from the segment."""
        self._index_rebuilds[index].inc()


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


class ReadAheadProbe:
    """Blocks that are fetched before anyone asks for them."""

    def __init__(self, registry: Registry) -> None:
        self._fetched = registry.counter(names.READAHEAD_BYTES)
        self._used = registry.counter(names.READAHEAD_USED_BYTES)
        self._wasted = registry.counter(names.READAHEAD_WASTED_BYTES)
        self._unread = registry.gauge(names.READAHEAD_UNREAD_BYTES)
        self._streams = registry.gauge(names.READAHEAD_STREAMS)
        self._stalls = registry.enumerated_counter(names.READAHEAD_STALLS, StallReason)

    def on_stalled(self, reason: StallReason) -> None:
        """Read-ahead of a stream went no further, for another reason than before."""
        self._stalls[reason].inc()

    def on_arrived(self, block_bytes: int) -> None:
        """A block arrived before anyone asked for it."""
        self._fetched.inc(block_bytes)

    def on_used(self, block_bytes: int) -> None:
        """A block that was read ahead is read for the first time."""
        self._used.inc(block_bytes)

    def on_wasted(self, block_bytes: int) -> None:
        """A block that was read ahead is dropped unread."""
        self._wasted.inc(block_bytes)

    def on_unread(self, unread_bytes: int) -> None:
        """Blocks that nobody has read yet hold this much."""
        self._unread.set(unread_bytes)

    def on_streams(self, streams: int) -> None:
        """So many sequential readers are known."""
        self._streams.set(streams)
