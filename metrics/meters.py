"""Meters: what the rest of Tidegate tells about itself, in its own words. No other file touches a metrics library.

Rules:
1. A verb never raises, waits or logs. It is called in the trio thread, as `metrics.series` tells why; those that worker
   threads call, too, count under their meter's lock: the disk cache's, and the end of a GET.
2. A verb of the hot path is one lookup and one addition.
3. Label values come from the enumerations below, from Kafka's numbers, or are topics under the registry's limit.

The question to a broker that a tier read rides on is a probe; `RelayMeter.on_probe_*` count those.
"""

import enum
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from metrics.cache_meters import CacheMeter, ReadAheadMeter
from metrics.get_meter import GetMeter
from metrics.idle_share import IdleAverage
from metrics.process_meters import (
    AuditMeter,
    ConfigMeter,
    HealthMeter,
    LoopMeter,
    ProcessMeter,
    TaskMeter,
    TlsMeter,
    WorkersMeter,
)
from metrics.process_meters import AuditOutcome as AuditOutcome
from metrics.process_meters import ReloadOutcome as ReloadOutcome
from metrics.registry import Children, LabelLimit, Registry

_API_KEYS_MAX = 128
"""Kafka 4.3 has some 90 api keys; the number comes from the peer and may be any of 65,536."""

_READ_API_KEYS = (1, 2)
"""Fetch and ListOffsets: the requests that are read, unless they are too large."""

_PARTITION_SERIES_MAX = 1000
"""For the one family that is by topic and partition: partitions whose look-ups missed their deadline."""

_METADATA_PARTITIONS_MAX = 1000
"""`remote.log.metadata.topic.num.partitions` is 50 unless set."""


_AGE_BUCKETS_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""To a minute: reads may be routed by offsets that are so old."""


class Direction(enum.StrEnum):
    """Which way relayed bytes went."""

    CLIENT_TO_UPSTREAM = "client_to_upstream"
    UPSTREAM_TO_CLIENT = "upstream_to_client"


class Route(enum.StrEnum):
    """What was done with a request."""

    RELAY = "relay"
    REWRITE = "rewrite"
    EXCHANGE = "exchange"


class CloseCause(enum.StrEnum):
    """Why a client connection ended."""

    CLIENT = "client"
    UPSTREAM = "upstream"
    UPSTREAM_UNREACHABLE = "upstream_unreachable"
    MALFORMED_FRAME = "malformed_frame"
    LIMIT = "limit"
    IDLE = "idle"
    """Nothing was asked or answered for `proxy.connections.idle.max.ms`."""
    NOT_SIGNED_IN = "not_signed_in"
    """Slots ran out, and it was the oldest that had not signed in."""
    BROKER_HUNG = "broker_hung"
    """Slots ran out, and its broker had left it without an answer for longest."""
    DRAIN = "drain"
    FAULT = "fault"
    """A fault of our own."""


class HandshakeOutcome(enum.StrEnum):
    """How a client's TLS handshake ended."""

    OK = "ok"
    UNTRUSTED = "untrusted"
    """The client knows no issuer of our certificate."""
    REFUSED = "refused"
    """The client refuses our certificate for another reason: its dates, its names."""
    CLIENT_CERTIFICATE = "client_certificate"
    """The client's own is missing, or not vouched for."""
    NOT_TLS = "not_tls"
    PROTOCOL = "protocol"
    """No version or cipher in common."""
    TIMEOUT = "timeout"
    CLOSED = "closed"
    """Without a word, as balancers' looks at the port do."""
    OTHER = "other"


class RefusalReason(enum.StrEnum):
    """Why a connection was closed before it was accepted."""

    FULL = "full"
    ADDRESS_CONNECTIONS = "address_connections"
    """Its address has `proxy.connections.max.per.ip` connections."""
    ADDRESS_RATE = "address_rate"
    """Its address connects more often than `proxy.connections.rate.per.ip`."""
    PROXY_UNTRUSTED = "proxy_untrusted"
    """`proxy.protocol.trusted` does not name its address."""
    PROXY_HEADER = "proxy_header"
    """It does not begin with a PROXY header, or not in time."""


class DeadlineRequest(enum.StrEnum):
    """Whose deadline was missed."""

    FETCH = "fetch"
    LIST_OFFSETS = "list_offsets"


class FallbackReason(enum.StrEnum):
    """Why a partition's tier reads are left to the broker (`proxy.fetch.fallback`)."""

    IDENTITY = "identity"
    """Tidegate's own connection was refused or lost, or the leader's lineage is not known."""
    DENIED = "denied"
    """The store refuses our credentials."""
    NOT_FOUND = "not_found"
    """A bucket or an object is not there."""
    CORRUPT = "corrupt"
    """Bytes are wrong, also after a fresh GET; or the key is."""
    ICEBERG = "iceberg"
    """The segment was written in Iceberg mode, which only brokers read."""
    STALLED = "stalled"
    """Two transfers of the same bytes stopped."""
    LATE = "late"
    """No byte came in time, several times over."""
    FAULT = "fault"
    """Anything else: a fault of our own."""
    NOT_DESCRIBED = "not_described"
    """Tidegate's own identity may not describe the topic. Nobody need have asked for it."""


class SnapshotOutcome(enum.StrEnum):
    """What became of the catalog snapshot at the start."""

    USED = "used"
    ABSENT = "absent"
    UNREADABLE = "unreadable"
    """Torn, its checksum does not hold, or the disk did not give it."""
    FOREIGN = "foreign"
    """Another cluster's, another metadata topic's, or of another partition count."""
    OLDER_FORMAT = "older_format"
    OUT_OF_RANGE = "out_of_range"
    """It goes on from an offset that the metadata topic does not have."""


class TierMeter:
    """Reads from the tier, under KIP-405's names."""

    def __init__(self, registry: Registry) -> None:
        topics = registry.topics
        self._requests = Children[str](registry.kip405_counter("BrokerTopicMetrics.RemoteFetchRequestsPerSec"), topics)
        self._bytes = Children[str](registry.kip405_counter("BrokerTopicMetrics.RemoteFetchBytesPerSec"), topics)
        self._errors = Children[str](registry.kip405_counter("BrokerTopicMetrics.RemoteFetchErrorsPerSec"), topics)
        self._expired = registry.kip405_counter("DelayedRemoteFetchMetrics.ExpiresPerSec").labels()
        self._look_ups_expired = Children[tuple[str, int]](
            registry.kip405_counter("DelayedRemoteListOffsetsMetrics.ExpiresPerSec"), topics, _PARTITION_SERIES_MAX
        )
        self._deadline_misses = registry.counter_by(
            "tidegate_deadline_misses", "Reads from the tier that missed their deadline.", "request", DeadlineRequest
        )
        unread = registry.counters(
            "tidegate_requests_unread",
            "Requests of more than 10,000 partitions or 1 MiB, left to the broker.",
            "api_key",
        )
        self._unread = Children[int](unread, LabelLimit(len(_READ_API_KEYS)), from_start=_READ_API_KEYS)
        self._holes = registry.counter(
            "tidegate_tier_holes_stepped_over", "Holes in a tier of our own that reads stepped over."
        )
        self._timer = registry.kip405_timer("RemoteLogManager.RemoteLogReaderFetchRateAndTimeMs")
        self._queue = registry.kip405_gauge("RemoteStorageThreadPool.RemoteLogReaderTaskQueueSize").labels()
        self._idle = IdleAverage()
        idle = registry.kip405_gauge("RemoteStorageThreadPool.RemoteLogReaderAvgIdlePercent")
        idle.labels().ask = self._idle.idle_share
        waiting = (
            registry.kip405_gauge("DelayedOperationPurgatory.PurgatorySize"),
            registry.kip405_gauge("DelayedOperationPurgatory.NumDelayedOperations"),
        )
        self._waiting = tuple(gauge.labels("RemoteFetch") for gauge in waiting)
        self._look_ups_waiting = tuple(gauge.labels("RemoteListOffsets") for gauge in waiting)

    def on_remote_fetch_started(self, topic: str) -> None:
        """A read was submitted."""
        if topic not in self._requests:
            self._errors[topic].value += 0  # there before the first error, or a rate would miss that one
        self._requests[topic].value += 1

    def on_remote_fetch(self, topic: str, bytes_read: int) -> None:
        """A read returned `bytes_read` bytes of records."""
        self._bytes[topic].value += bytes_read

    def on_remote_fetch_error(self, topic: str) -> None:
        """A read failed; an offset out of range is no failure."""
        self._errors[topic].value += 1

    def on_remote_fetch_expired(self) -> None:
        """A read missed its Fetch's deadline."""
        self._expired.value += 1
        self._deadline_misses[DeadlineRequest.FETCH].value += 1

    def on_hole(self) -> None:
        """A hole in a tier of our own was met for the first time."""
        self._holes.value += 1

    def on_delayed_fetch_parked(self) -> None:
        """A Fetch began to wait for the tier."""
        for gauge in self._waiting:
            gauge.value += 1

    def on_delayed_fetch_completed(self) -> None:
        """A Fetch that waited for the tier was answered or given up."""
        for gauge in self._waiting:
            gauge.value -= 1

    def on_look_up_expired(self, topic: str, partition: int) -> None:
        """A look-up by time missed its ListOffsets' deadline."""
        self._look_ups_expired[topic, partition].value += 1
        self._deadline_misses[DeadlineRequest.LIST_OFFSETS].value += 1

    def on_request_unread(self, api_key: int) -> None:
        """A request that may have been the tier's names too much to be read: it is the broker's."""
        self._unread[api_key].value += 1

    @contextmanager
    def look_up_waiting(self) -> Iterator[None]:
        """A ListOffsets waits for the tier meanwhile."""
        for gauge in self._look_ups_waiting:
            gauge.value += 1
        try:
            yield
        finally:
            for gauge in self._look_ups_waiting:
                gauge.value -= 1

    def on_reader_slots(self, busy: int, total: int, waiting: int) -> None:
        """The read limiter changed: slots taken, slots in all, reads that wait for one."""
        self._idle.on_slots(busy, total)
        self._queue.value = waiting

    def on_remote_fetch_ended(self, duration_s: float) -> None:
        """A read took so long, also one that failed or was cancelled."""
        self._timer.observe(duration_s * 1000)


class RelayMeter:
    """Client connections and what passes through them."""

    def __init__(self, registry: Registry) -> None:
        self._accepted = registry.counter("tidegate_connections_accepted", "Client connections accepted.")
        self._active = registry.gauge("tidegate_connections_active", "Client connections open now.")
        self._closed = registry.counter_by(
            "tidegate_connections_closed", "Client connections closed.", "cause", CloseCause
        )
        self._refused = registry.counter_by(
            "tidegate_connections_refused", "Client connections closed at once.", "reason", RefusalReason
        )
        self._not_accepted = registry.counter("tidegate_connections_not_accepted", "Times that no open file was left.")
        self._handshakes = registry.counter_by(
            "tidegate_client_handshakes", "TLS handshakes of clients by how they ended.", "outcome", HandshakeOutcome
        )
        self._connect_waits = registry.gauge(
            "tidegate_upstream_connect_waits", "Client connections that wait for a connection to their broker."
        )
        self._relayed = registry.counter_by(
            "tidegate_relayed_bytes", "Bytes passed between clients and brokers.", "direction", Direction
        )
        requests = registry.counters(
            "tidegate_requests", "Requests of clients, by what was done with them.", "api_key", "route"
        )
        self._requests = Children[tuple[int, Route]](requests, LabelLimit(_API_KEYS_MAX))
        self.served_bytes = 0
        served = registry.counter("tidegate_served_tier_bytes", "Record bytes from the tier sent to clients.")
        served.ask = lambda: self.served_bytes
        self._malformed = registry.counter("tidegate_malformed_frames", "Frames that closed their connection.")
        self._held_bytes = 0
        held = registry.gauge("tidegate_held_bytes", "Bytes of requests and responses held for clients.")
        held.ask = lambda: self._held_bytes
        self._relay_held = registry.gauge(
            "tidegate_relay_held_bytes", "Bytes received and not passed on yet, of what is relayed."
        )
        self._released = registry.counter(
            "tidegate_answers_released_bytes", "Bytes that answers gave up because their clients took nothing."
        )
        self._too_large = registry.counter(
            "tidegate_batches_too_large",
            "Partitions put off: their batch exceeds `expert.proxy.response.held.bytes.max`.",
        )
        self._fetch_sessions = registry.gauge(
            "tidegate_fetch_sessions", "Incremental Fetch sessions (KIP-227) of clients."
        )
        self._probes_sent = registry.counter("tidegate_probes_sent", "Probes sent.")
        self._probes_reused = registry.counter("tidegate_probes_reused", "Reads from the tier by an earlier probe.")
        self._probe_discarded = registry.counter(
            "tidegate_probe_discarded_bytes", "Record bytes in probe answers, thrown away."
        )
        self._probe_seconds = registry.histogram("tidegate_probe_seconds", "Time from a probe to its answer.")
        self._frontier_age = registry.histogram(
            "tidegate_frontier_age_seconds", "Age of the offsets by which a read was routed.", buckets=_AGE_BUCKETS_S
        )

    def on_connection_accepted(self) -> None:
        """A client connected."""
        self._accepted.value += 1
        self._active.value += 1

    def on_connection_closed(self, cause: CloseCause) -> None:
        """A client connection that was accepted has ended."""
        self._active.value -= 1
        self._closed[cause].value += 1

    def on_connection_refused(self, reason: RefusalReason) -> None:
        """A connection was closed before it was accepted."""
        self._refused[reason].value += 1

    def on_not_accepted(self) -> None:
        """Nothing could be accepted: no open file is left."""
        self._not_accepted.value += 1

    def on_handshake(self, outcome: HandshakeOutcome) -> None:
        """A client's TLS handshake has ended."""
        self._handshakes[outcome].value += 1

    def on_connect_waiting(self, connections: int) -> None:
        """Note how many client connections wait for a connection to their broker."""
        self._connect_waits.value = connections

    def on_relayed(self, direction: Direction, byte_count: int) -> None:
        """Bytes went through unread or rewritten; those of Tidegate's own answers are not among them."""
        self._relayed[direction].value += byte_count

    def on_tier_served(self, byte_count: int) -> None:
        """Record bytes from the tier were put into an answer."""
        self.served_bytes += byte_count

    def on_request(self, api_key: int, route: Route) -> None:
        """A request's way was decided."""
        self._requests[api_key, route].value += 1

    def on_malformed_frame(self) -> None:
        """A peer's frame could not be read; its connection closes."""
        self._malformed.value += 1

    def on_held_bytes(self, byte_count: int) -> None:
        """Note how much is held of requests and responses now."""
        self._held_bytes = byte_count  # asked for at scrape time: it changes with each answer of ours

    def relay_held_bytes_from(self, held_bytes: Callable[[], int]) -> None:
        """Whom to ask, at scrape time, how much of what is relayed is in memory."""
        self._relay_held.ask = held_bytes

    def on_answer_released(self, byte_count: int) -> None:
        """An answer gave up blocks that its client did not take."""
        self._released.value += byte_count

    def on_batch_too_large(self) -> None:
        """A partition's batch could not be held, and its client has to come again."""
        self._too_large.value += 1

    def on_fetch_sessions(self, sessions: int) -> None:
        """Note how many Fetch sessions are open now."""
        self._fetch_sessions.value = sessions

    def on_probe_sent(self) -> None:
        """A probe went to a broker."""
        self._probes_sent.value += 1

    def on_probes_reused(self, partitions: int) -> None:
        """Count partitions for which an earlier probe was still held."""
        self._probes_reused.value += partitions

    def on_probe_answered(self, duration_s: float, discarded_bytes: int) -> None:
        """A probe's answer came, good or not, with this many record bytes to throw away."""
        self._probe_seconds.observe(duration_s)
        self._probe_discarded.value += discarded_bytes

    def on_frontier_used(self, age_s: float) -> None:
        """A partition was routed by offsets that were seen this long ago."""
        self._frontier_age.observe(age_s)


class FallbackMeter:
    """What brokers read because the tier fails."""

    def __init__(self, registry: Registry) -> None:
        self._partitions = registry.gauge_by(
            "tidegate_fallback_partitions", "Partitions that are left to the brokers for now.", "reason", FallbackReason
        )
        self._reads = registry.counter_by(
            "tidegate_fallback_reads",
            "Partition reads that a broker did because the tier failed.",
            "reason",
            FallbackReason,
        )
        self._bytes = registry.counter("tidegate_fallback_bytes", "Record bytes that brokers gave in the tier's place.")
        self._refused = registry.counter("tidegate_fallback_refused", "Partition reads that the broker could not take.")
        self._corrupt = Children[str](
            registry.counters("tidegate_corrupt_answers", "Partition reads answered with CORRUPT_MESSAGE.", "topic"),
            registry.topics,
        )

    def on_spell(self, reason: FallbackReason, partitions: int) -> None:
        """Note how many partitions are left to the brokers for this reason now."""
        self._partitions[reason].value = partitions

    def on_read(self, reason: FallbackReason, records_bytes: int) -> None:
        """A broker has read a partition in the tier's place."""
        self._reads[reason].value += 1
        self._bytes.value += records_bytes

    def on_corrupt(self, topic: str) -> None:
        """A broker's batch was damaged, too."""
        self._corrupt[topic].value += 1

    def on_refused(self, partitions: int) -> None:
        """The broker is not to have these too at the moment."""
        self._refused.value += partitions


class CatalogMeter:
    """The catalog and the metadata topic behind it."""

    def __init__(self, registry: Registry) -> None:
        self._segments = registry.gauge("tidegate_catalog_segments", "Segments in the catalog.")
        self._undecodable = registry.counter(
            "tidegate_catalog_undecodable_records", "Records of the metadata topic that were skipped."
        )
        lag = registry.gauges(
            "tidegate_catalog_lag_records", "Records that the catalog has not yet read.", "metadata_partition"
        )
        self._lag = Children[int](lag, LabelLimit(_METADATA_PARTITIONS_MAX))
        self._refused = registry.gauge(
            "tidegate_catalog_refused_partitions", "Partitions that the full catalog did not take in."
        )
        self._memory = registry.gauge("tidegate_catalog_memory_bytes", "Estimate of the catalog's memory.")
        self._snapshot_at = registry.gauge(
            "tidegate_catalog_snapshot_timestamp_seconds", "Unix time of the last catalog snapshot; 0: none."
        )
        self._snapshot_bytes = registry.gauge(
            "tidegate_catalog_snapshot_bytes", "Size of the last catalog snapshot; 0: none."
        )
        self._snapshot_writes = registry.counter_by(
            "tidegate_catalog_snapshot_writes", "Catalog snapshots written, or not.", "outcome", _SnapshotWrite
        )
        self._snapshot_loads = registry.counter_by(
            "tidegate_catalog_snapshot_loads", "What became of the snapshot at the start.", "outcome", SnapshotOutcome
        )
        self._topic_segments = _TopicSums(registry, "BrokerTopicMetrics.RemoteLogMetadataCount")
        self._topic_bytes = _TopicSums(registry, "BrokerTopicMetrics.RemoteLogSizeBytes")

    def on_segments(self, segments: int) -> None:
        """The catalog now holds this many segments."""
        self._segments.value = segments

    def on_topic(self, topic: str, segments: int, size_bytes: int) -> None:
        """A topic now has this many segments in the catalog, in any state, of this size together."""
        self._topic_segments.set(topic, segments)
        self._topic_bytes.set(topic, size_bytes)

    def on_record_undecodable(self) -> None:
        """A metadata record was skipped."""
        self._undecodable.value += 1

    def on_partition_lag(self, metadata_partition: int, records: int) -> None:
        """A metadata partition has this many records that are not yet read."""
        self._lag[metadata_partition].value = records

    def on_refused_partitions(self, partitions: int) -> None:
        """The full catalog now keeps out this many partitions."""
        self._refused.value = partitions

    def on_memory(self, memory_bytes: int) -> None:
        """The catalog takes about this much."""
        self._memory.value = memory_bytes

    def on_snapshot_written(self, size_bytes: int, at_s: float) -> None:
        """A snapshot was written; `at_s` is Unix time."""
        self._snapshot_writes[_SnapshotWrite.OK].value += 1
        self.on_snapshot_kept(size_bytes, at_s)

    def on_snapshot_kept(self, size_bytes: int, at_s: float) -> None:
        """The snapshot that is there, written now or by an earlier process."""
        self._snapshot_bytes.value = size_bytes
        self._snapshot_at.value = at_s

    def on_snapshot_failed(self) -> None:
        """A snapshot could not be written; the one before it stays."""
        self._snapshot_writes[_SnapshotWrite.ERROR].value += 1

    def on_snapshot_loaded(self, outcome: SnapshotOutcome) -> None:
        """The start looked for a snapshot."""
        self._snapshot_loads[outcome].value += 1


class Meters:
    """All meters over one registry.

    Args:
        registry: without one the meters count into a registry of their own that nobody exposes, as tests want it.
    """

    def __init__(self, registry: Registry | None = None) -> None:
        self.registry = Registry() if registry is None else registry
        self.tier = TierMeter(self.registry)
        self.cache = CacheMeter(self.registry)
        self.gets = GetMeter(self.registry)
        self.read_ahead = ReadAheadMeter(self.registry)
        self.relay = RelayMeter(self.registry)
        self.fallback = FallbackMeter(self.registry)
        self.catalog = CatalogMeter(self.registry)
        self.loop = LoopMeter(self.registry)
        self.health = HealthMeter(self.registry)
        self.config = ConfigMeter(self.registry)
        self.tls = TlsMeter(self.registry)
        self.audit = AuditMeter(self.registry)
        self.tasks = TaskMeter(self.registry)
        self.workers = WorkersMeter(self.registry)
        ProcessMeter(self.registry)


class _SnapshotWrite(enum.StrEnum):
    OK = "ok"
    ERROR = "error"


class _TopicSums:
    """A gauge per topic, set by differences, so that topics which share `__other__` add up there."""

    def __init__(self, registry: Registry, bean: str) -> None:
        self._gauges = Children[str](registry.kip405_gauge(bean), registry.topics)
        self._values: dict[str, int] = {}

    def set(self, topic: str, value: int) -> None:
        before = self._values.pop(topic, 0)
        if value:  # a topic that is gone costs nothing here
            self._values[topic] = value
        self._gauges[topic].value += value - before
