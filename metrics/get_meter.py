"""The meter of GETs of the object store; see `metrics.meters` for the rules that it keeps.

A GET is counted when it ends, under its store, what it was for and how it ended: so the counts are those of the
answers that the store gave, and a rate by outcome is a rate of errors.
"""

import enum
import threading
from collections.abc import Callable

from metrics.registry import Registry

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
        self._gets = registry.counters(
            "tidegate_gets", "GETs of the object store that have ended.", "store", "object", "outcome"
        )
        self._bytes = registry.counters(
            "tidegate_get_bytes", "Bytes of segments' logs received, as stored.", "store", "outcome"
        )
        self._retries = registry.counter(
            "tidegate_get_retries", "GETs repeated after one that failed, for what it had not delivered."
        )
        self._first_byte_seconds = registry.histograms(
            "tidegate_get_first_byte_seconds", "Time from a GET of a log to its answer's first byte.", "store"
        )
        self._seconds = registry.histograms("tidegate_get_seconds", "Time from a GET to its end.", "store", "outcome")
        self._in_flight = registry.gauge("tidegate_gets_in_flight", "GETs under way.")
        self._queued = registry.gauge("tidegate_gets_queued", "GETs that wait for a slot or for memory.")
        self._hedges = registry.counter("tidegate_get_hedges", "Second GETs sent because the first byte was late.")
        self._hedges_won = registry.counter("tidegate_get_hedges_won", "Second GETs that brought the next block first.")
        self._splits = registry.counter("tidegate_get_splits", "Second GETs sent for the rest of a body that was slow.")
        self._limit = registry.gauge("tidegate_gets_limit", "GETs that may be in flight; fewer after throttling.")
        self._inflight_bytes = registry.gauge(
            "tidegate_inflight_bytes", "Bytes of GETs under way and answers not yet sent."
        )
        self._store = UNNAMED_STORE
        self._lock = threading.Lock()
        """GETs of manifests and indexes end in worker threads."""
        self.ended = 0
        """GETs that have ended, of any object and in any way."""

    def on_store(self, store: str) -> None:
        """GETs go to a store of this kind: `s3`, `filesystem`, `local`; told once, before the first."""
        self._store = store  # and all its series are there from zero: a rate needs that before the first event
        for kind in GetObject:
            for outcome in GetOutcome:
                self._gets.labels(store, kind, outcome)
        for outcome in GetOutcome:
            self._bytes.labels(store, outcome)
            self._seconds.labels(store, outcome)
        self._first_byte_seconds.labels(store)

    def on_end(self, kind: GetObject, outcome: GetOutcome, duration_s: float, received_bytes: int = 0) -> None:
        """A GET has ended; `received_bytes` is of a segment's log, as stored (0 for other objects)."""
        with self._lock:
            self.ended += 1
            self._gets.labels(self._store, kind, outcome).value += 1
            self._bytes.labels(self._store, outcome).value += received_bytes
            self._seconds.labels(self._store, outcome).observe(duration_s)

    def on_retry(self) -> None:
        """A GET is sent again for what the last one did not deliver."""
        self._retries.value += 1

    def on_first_byte(self, duration_s: float) -> None:
        """The answer to a GET of a segment's log has begun."""
        self._first_byte_seconds.labels(self._store).observe(duration_s)

    def under_way_from(self, in_flight: Callable[[], int], queued: Callable[[], int]) -> None:
        """Tells how many GETs are under way, and how many wait: at scrape time, since it changes with each block."""
        self._in_flight.ask = in_flight
        self._queued.ask = queued

    def on_limit(self, gets_max: int) -> None:
        """Note how many GETs may be in flight at once: all that configuration allows, or fewer as the store has
        asked."""
        self._limit.value = gets_max

    def on_hedge(self) -> None:
        """A second GET was sent for a first byte that is late."""
        self._hedges.value += 1

    def on_hedge_won(self) -> None:
        """The second GET answered first."""
        self._hedges_won.value += 1

    def on_split(self) -> None:
        """A slow GET's rest was given to another connection."""
        self._splits.value += 1

    def inflight_bytes_from(self, held_bytes: Callable[[], int]) -> None:
        """Tells what GETs under way and answers not yet sent hold: at scrape time, since it changes twice a read."""
        self._inflight_bytes.ask = held_bytes
