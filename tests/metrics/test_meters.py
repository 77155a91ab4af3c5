"""Each verb moves its own series and no other."""

import enum
from collections.abc import Callable

from metrics.cache_meters import CacheLevel, DiskErrorCause, StallReason
from metrics.get_meter import GetObject, GetOutcome
from metrics.kip405 import EXPORTED, Writer
from metrics.meters import (
    AuditOutcome,
    CloseCause,
    DeadlineRequest,
    Direction,
    FallbackReason,
    HandshakeOutcome,
    Meters,
    RefusalReason,
    ReloadOutcome,
    Route,
    SnapshotOutcome,
)
from metrics.registry import OTHER_LABEL, Registry
from tests.support.for_each import for_each

TOPIC_PREFIX = "kafka_server_brokertopicmetrics_"
TIMER = "kafka_log_remote_remotelogmanager_remotelogreaderfetchrateandtimems"
POOL_PREFIX = "kafka_log_remote_remotestoragethreadpool_"
OF_LIBRARY = ("process_", "python_gc_")
OF_PROCESS = (*OF_LIBRARY, "tidegate_build_info")
PURGATORY_PREFIX = "kafka_server_delayedoperationpurgatory_"


def nonzero(registry: Registry) -> dict[str, float]:
    """Every sample that is not 0, without buckets and quantiles, and without what the process itself feeds."""
    return {
        sample.name + "".join(f"{{{label}={value}}}" for label, value in sample.labels.items()): sample.value
        for metric in registry.collect()
        for sample in metric.samples
        if sample.value
        and "le" not in sample.labels
        and "quantile" not in sample.labels
        and not sample.name.startswith(OF_PROCESS)
    }


UNTOUCHED = {f"{POOL_PREFIX}remotelogreaderavgidle_percent": 1.0} | {
    f"tidegate_condition_state{{condition={condition}}}{{state=pending}}": 1.0
    for condition in ("catalog", "upstream", "tier", "tasks")
}

Verb = Callable[[Meters], None]


def series_of(moved: str) -> dict[str, float]:
    """From `name=value name=value`; a name that does not begin as Kafka's does is one of Tidegate's."""
    values = (each.rpartition("=") for each in moved.split())
    return {name if name.startswith("kafka_") else f"tidegate_{name}": float(value) for name, _, value in values}


VERBS: list[tuple[Verb, str]] = [
    (lambda p: p.tier.on_remote_fetch_started("t"), f"{TOPIC_PREFIX}remotefetchrequests_total{{topic=t}}=1"),
    (lambda p: p.tier.on_remote_fetch("t", 9), f"{TOPIC_PREFIX}remotefetchbytes_total{{topic=t}}=9"),
    (lambda p: p.tier.on_remote_fetch_error("t"), f"{TOPIC_PREFIX}remotefetcherrors_total{{topic=t}}=1"),
    (
        lambda p: p.tier.on_remote_fetch_expired(),
        "kafka_server_delayedremotefetchmetrics_expires_total=1 deadline_misses_total{request=fetch}=1",
    ),
    (
        lambda p: p.tier.on_look_up_expired("orders", 3),
        "kafka_server_delayedremotelistoffsetsmetrics_expires_total{topic=orders}{partition=3}=1"
        " deadline_misses_total{request=list_offsets}=1",
    ),
    (
        lambda p: p.tier.on_delayed_fetch_parked(),
        f"{PURGATORY_PREFIX}purgatorysize{{delayedOperation=RemoteFetch}}=1"
        f" {PURGATORY_PREFIX}numdelayedoperations{{delayedOperation=RemoteFetch}}=1",
    ),
    (
        lambda p: p.cache.on_hit(CacheLevel.DISK, 9),
        "cache_hits_total{level=disk}=1 cache_hit_bytes_total{level=disk}=9",
    ),
    (lambda p: p.cache.on_miss(CacheLevel.MEMORY), "cache_misses_total{level=memory}=1"),
    (
        lambda p: p.cache.on_fill(9, 0.5),
        "cache_fills_total=1 cache_fill_bytes_total=9 cache_fill_seconds_count=1 cache_fill_seconds_sum=0.5",
    ),
    (lambda p: p.cache.on_fill_failed(), "cache_fill_failures_total=1"),
    (lambda p: p.cache.on_fill_waited(0.25), "cache_fill_wait_seconds_count=1 cache_fill_wait_seconds_sum=0.25"),
    (lambda p: p.cache.on_evicted(CacheLevel.DISK, 3), "cache_evictions_total{level=disk}=3"),
    (lambda p: p.cache.on_expired(CacheLevel.DISK, 3), "cache_expired_total{level=disk}=3"),
    (lambda p: p.cache.on_disk_error(DiskErrorCause.FULL), "cache_disk_errors_total{cause=full}=1"),
    (lambda p: p.cache.on_disk_available(True), "cache_disk_available=1"),
    (lambda p: p.cache.on_disk_skipped(3), "cache_disk_skipped_blocks_total=3"),
    (lambda p: p.cache.on_opened_segments(3), "opened_segments=3"),
    (lambda p: p.cache.on_quarantined(), "cache_quarantined_blocks_total=1"),
    (lambda p: p.cache.on_resident(CacheLevel.DISK, 7), "cache_resident_bytes{level=disk}=7"),
    (lambda p: p.tier.on_hole(), "tier_holes_stepped_over_total=1"),
    (lambda p: p.cache.on_index_rebuilt("OFFSET"), "index_rebuilds_total{index=OFFSET}=1"),
    (
        lambda p: p.gets.on_end(GetObject.LOG, GetOutcome.RETRIABLE, 0.25, 900),
        "gets_total{store=unknown}{object=log}{outcome=retriable}=1"
        " get_bytes_total{store=unknown}{outcome=retriable}=900"
        " get_seconds_count{store=unknown}{outcome=retriable}=1"
        " get_seconds_sum{store=unknown}{outcome=retriable}=0.25",
    ),
    (
        lambda p: p.gets.on_first_byte(0.25),
        "get_first_byte_seconds_count{store=unknown}=1 get_first_byte_seconds_sum{store=unknown}=0.25",
    ),
    (lambda p: p.gets.on_retry(), "get_retries_total=1"),
    (lambda p: p.gets.under_way_from(lambda: 3, lambda: 4), "gets_in_flight=3 gets_queued=4"),
    (lambda p: p.gets.on_limit(9), "gets_limit=9"),
    (lambda p: p.gets.on_hedge(), "get_hedges_total=1"),
    (lambda p: p.gets.on_hedge_won(), "get_hedges_won_total=1"),
    (lambda p: p.gets.on_split(), "get_splits_total=1"),
    (lambda p: p.gets.inflight_bytes_from(lambda: 900), "inflight_bytes=900"),
    (lambda p: p.relay.relay_held_bytes_from(lambda: 900), "relay_held_bytes=900"),
    (lambda p: p.read_ahead.on_arrived(9), "readahead_bytes_total=9"),
    (lambda p: p.read_ahead.on_used(9), "readahead_used_bytes_total=9"),
    (lambda p: p.read_ahead.on_wasted(9), "readahead_wasted_bytes_total=9"),
    (lambda p: p.read_ahead.on_unread(9), "readahead_unread_bytes=9"),
    (lambda p: p.read_ahead.on_streams(9), "readahead_streams=9"),
    (lambda p: p.read_ahead.on_stalled(StallReason.DEPTH), "readahead_stalls_total{reason=depth}=1"),
    (lambda p: p.relay.on_connection_accepted(), "connections_accepted_total=1 connections_active=1"),
    (
        lambda p: p.relay.on_connection_closed(CloseCause.LIMIT),
        "connections_active=-1 connections_closed_total{cause=limit}=1",
    ),
    (lambda p: p.relay.on_connection_refused(RefusalReason.FULL), "connections_refused_total{reason=full}=1"),
    (lambda p: p.relay.on_not_accepted(), "connections_not_accepted_total=1"),
    (
        lambda p: p.relay.on_relayed(Direction.UPSTREAM_TO_CLIENT, 9),
        "relayed_bytes_total{direction=upstream_to_client}=9",
    ),
    (lambda p: p.relay.on_handshake(HandshakeOutcome.NOT_TLS), "client_handshakes_total{outcome=not_tls}=1"),
    (lambda p: p.relay.on_connect_waiting(2), "upstream_connect_waits=2"),
    (lambda p: p.relay.on_tier_served(9), "served_tier_bytes_total=9"),
    (lambda p: p.relay.on_request(1, Route.EXCHANGE), "requests_total{api_key=1}{route=exchange}=1"),
    (lambda p: p.tier.on_request_unread(1), "requests_unread_total{api_key=1}=1"),
    (lambda p: p.relay.on_malformed_frame(), "malformed_frames_total=1"),
    (lambda p: p.relay.on_held_bytes(9), "held_bytes=9"),
    (lambda p: p.relay.on_answer_released(9), "answers_released_bytes_total=9"),
    (lambda p: p.relay.on_batch_too_large(), "batches_too_large_total=1"),
    (lambda p: p.relay.on_fetch_sessions(3), "fetch_sessions=3"),
    (lambda p: p.relay.on_probe_sent(), "probes_sent_total=1"),
    (lambda p: p.relay.on_probes_reused(3), "probes_reused_total=3"),
    (
        lambda p: p.relay.on_probe_answered(0.5, 70),
        "probe_seconds_count=1 probe_seconds_sum=0.5 probe_discarded_bytes_total=70",
    ),
    (lambda p: p.relay.on_frontier_used(0.5), "frontier_age_seconds_count=1 frontier_age_seconds_sum=0.5"),
    (lambda p: p.fallback.on_spell(FallbackReason.LATE, 3), "fallback_partitions{reason=late}=3"),
    (
        lambda p: p.fallback.on_read(FallbackReason.DENIED, 9),
        "fallback_reads_total{reason=denied}=1 fallback_bytes_total=9",
    ),
    (lambda p: p.fallback.on_refused(3), "fallback_refused_total=3"),
    (lambda p: p.fallback.on_corrupt("orders"), "corrupt_answers_total{topic=orders}=1"),
    (lambda p: p.catalog.on_segments(3), "catalog_segments=3"),
    (
        lambda p: p.catalog.on_topic("t", 3, 900),
        f"{TOPIC_PREFIX}remotelogmetadatacount{{topic=t}}=3 {TOPIC_PREFIX}remotelogsizebytes{{topic=t}}=900",
    ),
    (lambda p: p.catalog.on_record_undecodable(), "catalog_undecodable_records_total=1"),
    (lambda p: p.catalog.on_partition_lag(4, 8), "catalog_lag_records{metadata_partition=4}=8"),
    (lambda p: p.catalog.on_refused_partitions(2), "catalog_refused_partitions=2"),
    (lambda p: p.catalog.on_memory(900), "catalog_memory_bytes=900"),
    (
        lambda p: p.catalog.on_snapshot_written(900, 5.5),
        "catalog_snapshot_bytes=900 catalog_snapshot_timestamp_seconds=5.5 catalog_snapshot_writes_total{outcome=ok}=1",
    ),
    (lambda p: p.catalog.on_snapshot_failed(), "catalog_snapshot_writes_total{outcome=error}=1"),
    (
        lambda p: p.catalog.on_snapshot_loaded(SnapshotOutcome.OLDER_FORMAT),
        "catalog_snapshot_loads_total{outcome=older_format}=1",
    ),
    (lambda p: p.loop.on_tasks(7), "tasks=7"),
    (lambda p: p.loop.on_log_lines_lost(2), "log_lines_lost_total=2"),
    (
        lambda p: p.loop.on_woken(0.5),
        "loop_stall_seconds_count=1 loop_stall_seconds_sum=0.5 loop_stall_max_seconds=0.5",
    ),
    (lambda p: p.health.on_state(ready=True, degraded=False), "ready=1"),
    (lambda p: p.health.on_state(ready=False, degraded=True), "degraded=1"),
    (lambda p: p.health.on_partition_problems(3), "metadata_partition_problems=3"),
    (lambda p: p.workers.on_worker("1", True, 3), "worker_up{worker=1}=1 worker_connections{worker=1}=3"),
    (lambda p: p.workers.on_death("1"), "worker_deaths_total{worker=1}=1"),
    (lambda p: p.tasks.on_failure("upstream"), "task_failures_total{task=upstream}=1"),
    (lambda p: p.audit.on_lines(AuditOutcome.DROPPED, 3), "audit_lines_total{outcome=dropped}=3"),
    (
        lambda p: p.config.on_reload(ReloadOutcome.OK, 5.5, 2),
        "config_reloads_total{outcome=ok}=1 config_reload_timestamp_seconds=5.5 config_restart_needed=2",
    ),
    (
        lambda p: p.tls.on_certificate("proxy.tls.certificate.file", 1.8e9),
        "certificate_expiry_timestamp_seconds{key=proxy.tls.certificate.file}=1.8e9",
    ),
    (lambda p: p.tls.on_store(is_python=True), "store_tls_python=1"),
]

MOVED_OTHERWISE = {
    TIMER,
    f"{POOL_PREFIX}remotelogreadertaskqueuesize",
    f"{POOL_PREFIX}remotelogreaderavgidle_percent",
    "tidegate_condition_state",
    "tidegate_trouble",
    "tidegate_build_info",
}
"""Families that tests below and in `test_process_meters` move."""


@for_each("verb, moved", VERBS)
def test_a_verb_moves_its_own_series(verb: Verb, moved: str) -> None:
    meters = Meters()
    verb(meters)
    assert nonzero(meters.registry) == UNTOUCHED | series_of(moved)


def test_every_family_has_a_verb_that_moves_it() -> None:
    moved = {name.partition("{")[0] for _, series in VERBS for name in series_of(series)}
    unmoved = {each.name for each in Meters().registry.families if not {each.name, each.exposed_name} & moved}
    histograms = {name.removesuffix("_sum") for name in moved}
    assert unmoved - histograms == MOVED_OTHERWISE


ENUMERATED: list[tuple[type[enum.StrEnum], str, str]] = [
    (Direction, "direction", "relayed_bytes_total"),
    (DeadlineRequest, "request", "deadline_misses_total"),
    (CloseCause, "cause", "connections_closed_total"),
    (RefusalReason, "reason", "connections_refused_total"),
    (HandshakeOutcome, "outcome", "client_handshakes_total"),
    (FallbackReason, "reason", "fallback_partitions fallback_reads_total"),
    (SnapshotOutcome, "outcome", "catalog_snapshot_loads_total"),
    (ReloadOutcome, "outcome", "config_reloads_total"),
    (AuditOutcome, "outcome", "audit_lines_total"),
    (CacheLevel, "level", "cache_hits_total cache_hit_bytes_total cache_misses_total cache_evictions_total"),
    (CacheLevel, "level", "cache_expired_total cache_resident_bytes"),
    (DiskErrorCause, "cause", "cache_disk_errors_total"),
    (StallReason, "reason", "readahead_stalls_total"),
]


def test_enumerated_series_are_there_from_the_start(meters: Meters) -> None:
    for values, label, names in ENUMERATED:
        for name in names.split():
            found = [meters.registry.sample_value(f"tidegate_{name}", {label: value}) for value in values]
            assert found == [0] * len(values)
    unread = [meters.registry.sample_value("tidegate_requests_unread_total", {"api_key": key}) for key in "12"]
    assert unread == [0, 0]


def test_a_delayed_fetch_that_completes_is_no_longer_waiting(meters: Meters) -> None:
    meters.tier.on_delayed_fetch_parked()
    meters.tier.on_delayed_fetch_completed()
    assert nonzero(meters.registry) == UNTOUCHED


def test_reader_slots_give_queue_size_and_idle_share(meters: Meters) -> None:
    meters.tier.on_reader_slots(busy=4, total=4, waiting=7)
    assert meters.registry.sample_value(f"{POOL_PREFIX}remotelogreadertaskqueuesize") == 7
    idle = meters.registry.sample_value(f"{POOL_PREFIX}remotelogreaderavgidle_percent")
    assert idle is not None
    assert 0 <= idle <= 1


def test_the_timer_counts_reads_and_adds_up_milliseconds(meters: Meters) -> None:
    meters.tier.on_remote_fetch_ended(0.25)
    assert [meters.registry.sample_value(f"{TIMER}_{what}") for what in ("count", "sum")] == [1, 250]


def test_catalog_sizes_follow_changes_and_add_up_beyond_the_topic_limit() -> None:
    meters = Meters(Registry(topics_max=1))
    for topic, segments in (("a", 5), ("b", 3), ("c", 4), ("a", 2), ("b", 0)):
        meters.catalog.on_topic(topic, segments, segments * 100)
    values = {
        topic: meters.registry.sample_value(f"{TOPIC_PREFIX}remotelogsizebytes", {"topic": topic})
        for topic in ("a", OTHER_LABEL)
    }
    assert values == {"a": 200, OTHER_LABEL: 400}


def test_strange_api_keys_share_one_series(meters: Meters) -> None:
    for api_key in range(-500, 500):
        meters.relay.on_request(api_key, Route.RELAY)
    series = [name for name in nonzero(meters.registry) if name.startswith("tidegate_requests_total")]
    assert len(series) == 129
    assert meters.registry.sample_value("tidegate_requests_total", {"api_key": OTHER_LABEL, "route": "relay"}) == 872


def test_a_reader_registers_its_own_rows_and_no_other(meters: Meters) -> None:
    registered = {family for family in meters.registry.families if not family.name.startswith("tidegate_")}
    assert registered == {row.family for row in EXPORTED if row.writer is Writer.READER}
