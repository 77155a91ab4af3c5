"""Meters of the caches and of read-ahead; see `metrics.meters` for the rules that they keep."""

import enum
from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client import Counter, Histogram

from metrics.registry import Children, LabelLimit, Registry, value_of

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
            "tidegate_cache_expired",
            "Blocks dropped because nobody had read them for cache.retention.ms.",
            "level",
            CacheLevel,
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
            "tidegate_cache_disk_skipped_blocks",
            "Blocks not written to the disk cache because it was behind or unavailable.",
        )
        self._opened_segments = registry.gauge("tidegate_opened_segments", "Segments whose manifest is in memory.")
        self._fills = registry.counter("tidegate_cache_fills", "Blocks filled from the object store.")
        self._fill_bytes = registry.counter(
            "tidegate_cache_fill_bytes", "Plaintext bytes of blocks filled from the object store."
        )
        self._fill_failures = registry.counter(
            "tidegate_cache_fill_failures", "Fills that failed: store, format or checksum."
        )
        self._fill_seconds = registry.histogram(
            "tidegate_cache_fill_seconds", "Duration of one fill, from the request to the store to the block in memory."
        )
        self._fill_wait_seconds = registry.histogram(
            "tidegate_cache_fill_wait_seconds", "Time that a reader waited for a fill, its own or one under way."
        )
        self._quarantined = registry.counter(
            "tidegate_cache_quarantined_blocks", "Blocks set aside because their checksum did not hold."
        )
        rebuilds = registry.counter(
            "tidegate_index_rebuilds",
            "Indexes rebuilt from the segment's batches because the object was missing or corrupt.",
            "index",
        )
        self._index_rebuilds = Children[str, Counter](rebuilds, LabelLimit(_INDEX_TYPES_MAX))

    def on_hit(self, level: CacheLevel, block_bytes: int) -> None:
        """A block was found at this level."""
        self._hits[level].inc()
        self._hit_bytes[level].inc(block_bytes)

    def on_miss(self, level: CacheLevel) -> None:
        """A block was not found at this level."""
        self._misses[level].inc()

    def looked_up(self, level: CacheLevel) -> tuple[int, int]:
        """Return how often a block was found at this level, and how often not."""
        return value_of(self._hits[level]), value_of(self._misses[level])

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
        """Note how many segments have their manifest in memory now."""
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


class ReadAheadMeter:
    """Blocks that are fetched before anyone asks for them."""

    def __init__(self, registry: Registry) -> None:
        self._fetched = registry.counter(
            "tidegate_readahead_bytes", "Bytes of blocks that arrived before anyone asked for them."
        )
        self._used = registry.counter(
            "tidegate_readahead_used_bytes", "Bytes of blocks read ahead that were then read."
        )
        self._wasted = registry.counter(
            "tidegate_readahead_wasted_bytes", "Bytes of blocks read ahead that were dropped unread."
        )
        self._unread = registry.gauge(
            "tidegate_readahead_unread_bytes", "Bytes of blocks read ahead that nobody has read yet."
        )
        self._streams = registry.gauge("tidegate_readahead_streams", "Sequential readers that are read ahead for.")
        self._stalls = registry.counter_by(
            "tidegate_readahead_stalls",
            "How often read-ahead of a stream stopped, by reason; docs/operations.md says what to raise.",
            "reason",
            StallReason,
        )

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
        """Note how many sequential readers are known."""
        self._streams.set(streams)


# The meter of GETs of the object store; see `metrics.meters` for the rules that it keeps.
#
# A GET is counted when it ends, under its store, what it was for and how it ended: so the counts are those of the
# answers that the store gave, and a rate by outcome is a rate of errors.


UNNAMED_STORE = "unknown"


class GetObject(enum.StrEnum):
    """What a GET is for."""

    LOG = "log"
    MANIFEST = "manifest"
    INDEX = "index"


class GetOutcome(enum.StrEnum):
    """How a GET ended."""

    OK = "ok"
    NOT_FOUND = "not_found"
    DENIED = "denied"
    THROTTLED = "throttled"
    """The store asked for fewer requests."""
    RETRIABLE = "retriable"
    CORRUPT = "corrupt"
    CANCELLED = "cancelled"
    """Given up by Tidegate: another GET answered first, or nobody wants the rest."""
    ERROR = "error"


class GetMeter:
    """GETs of the object store."""

    def __init__(self, registry: Registry) -> None:
        self._gets = registry.counter(
            "tidegate_gets", "GETs of the object store that have ended.", "store", "object", "outcome"
        )
        self._bytes = registry.counter(
            "tidegate_get_bytes",
            "Bytes received from the object store by GETs of segments' logs, as stored.",
            "store",
            "outcome",
        )
        self._retries = registry.counter(
            "tidegate_get_retries", "GETs repeated after one that failed, for what it had not delivered."
        )
        self._first_byte_seconds = registry.histogram(
            "tidegate_get_first_byte_seconds",
            "Time from a GET of a segment's log to the beginning of its answer.",
            "store",
        )
        self._seconds = registry.histogram(
            "tidegate_get_seconds", "Time from a GET to the end of its answer, or to its failure.", "store", "outcome"
        )
        self._in_flight = registry.gauge("tidegate_gets_in_flight", "GETs under way.")
        self._queued = registry.gauge("tidegate_gets_queued", "GETs that wait for a slot or for memory.")
        self._hedges = registry.counter("tidegate_get_hedges", "Second GETs sent because the first byte was late.")
        self._hedges_won = registry.counter("tidegate_get_hedges_won", "Second GETs that brought the next block first.")
        self._splits = registry.counter("tidegate_get_splits", "Second GETs sent for the rest of a body that was slow.")
        self._limit = registry.gauge(
            "tidegate_gets_limit",
            "GETs that may be in flight: tier.concurrent.gets.max, or fewer after the store throttled some.",
        )
        self._inflight_bytes = registry.gauge(
            "tidegate_inflight_bytes", "Bytes held by GETs under way and by answers not yet sent."
        )
        self._of_store: _StoreSeries | None = None
        self.ended = 0
        """GETs that have ended, of any object and in any way."""

    def on_store(self, store: str) -> None:
        """GETs go to a store of this kind: `s3`, `filesystem`, `local`; told once, before the first."""
        self._begin(store)

    def on_end(self, kind: GetObject, outcome: GetOutcome, duration_s: float, received_bytes: int = 0) -> None:
        """A GET has ended; `received_bytes` is of a segment's log, as stored (0 for other objects)."""
        series = self._of_store or self._begin(UNNAMED_STORE)
        self.ended += 1
        series.gets[kind, outcome].inc()
        series.bytes[outcome].inc(received_bytes)
        series.seconds[outcome].observe(duration_s)

    def on_retry(self) -> None:
        """A GET is sent again for what the last one did not deliver."""
        self._retries.inc()

    def on_first_byte(self, duration_s: float) -> None:
        """The answer to a GET of a segment's log has begun."""
        series = self._of_store or self._begin(UNNAMED_STORE)
        series.first_byte_seconds.observe(duration_s)

    def on_gets(self, in_flight: int, queued: int) -> None:
        """Note how many GETs are under way, and how many wait."""
        self._in_flight.set(in_flight)
        self._queued.set(queued)

    def on_limit(self, gets_max: int) -> None:
        """Note how many GETs may be in flight at once: all that configuration allows, or fewer as the store has
        asked."""
        self._limit.set(gets_max)

    def on_hedge(self) -> None:
        """A second GET was sent for a first byte that is late."""
        self._hedges.inc()

    def on_hedge_won(self) -> None:
        """The second GET answered first."""
        self._hedges_won.inc()

    def on_split(self) -> None:
        """A slow GET's rest was given to another connection."""
        self._splits.inc()

    def inflight_bytes_from(self, held_bytes: Callable[[], int]) -> None:
        """Tells what GETs under way and answers not yet sent hold: at scrape time, since it changes twice a read."""
        self._inflight_bytes.set_function(held_bytes)

    def _begin(self, store: str) -> "_StoreSeries":
        """All series of a store, from zero: a rate needs the zero before the first event."""
        self._of_store = _StoreSeries(
            gets={
                (kind, outcome): self._gets.labels(store, kind, outcome) for kind in GetObject for outcome in GetOutcome
            },
            bytes={outcome: self._bytes.labels(store, outcome) for outcome in GetOutcome},
            seconds={outcome: self._seconds.labels(store, outcome) for outcome in GetOutcome},
            first_byte_seconds=self._first_byte_seconds.labels(store),
        )
        return self._of_store


@dataclass(frozen=True, slots=True)
class _StoreSeries:
    gets: dict[tuple[GetObject, GetOutcome], Counter]
    bytes: dict[GetOutcome, Counter]
    seconds: dict[GetOutcome, Histogram]
    first_byte_seconds: Histogram
