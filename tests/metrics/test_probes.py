"""Each verb moves its own series and no other."""

import enum
import threading
from collections.abc import Callable

import pytest

from metrics.cache_probes import CacheLevel, DiskErrorCause
from metrics.family import Kind
from metrics.kip405 import ROWS, Writer
from metrics.probes import (
    CloseCause,
    DeadlineRequest,
    Direction,
    Probes,
    RefusalReason,
    ReloadOutcome,
    Route,
    SnapshotOutcome,
)
from metrics.registry import OTHER_LABEL, Registry
from metrics.tidegate_names import FAMILIES

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
    for condition in ("catalog", "upstream", "tier")
}

VERBS: list[tuple[Callable[[Probes], None], dict[str, float]]] = [
    (lambda p: p.tier.on_remote_fetch_started("t"), {f"{TOPIC_PREFIX}remotefetchrequests_total{{topic=t}}": 1}),
    (lambda p: p.tier.on_remote_fetch("t", 9), {f"{TOPIC_PREFIX}remotefetchbytes_total{{topic=t}}": 9}),
    (lambda p: p.tier.on_remote_fetch_error("t"), {f"{TOPIC_PREFIX}remotefetcherrors_total{{topic=t}}": 1}),
    (
        lambda p: p.tier.on_remote_fetch_expired(),
        {
            "kafka_server_delayedremotefetchmetrics_expires_total": 1,
            "tidegate_deadline_misses_total{request=fetch}": 1,
        },
    ),
    (
        lambda p: p.tier.on_look_up_expired("orders", 3),
        {
            "kafka_server_delayedremotelistoffsetsmetrics_expires_total{topic=orders}{partition=3}": 1,
            "tidegate_deadline_misses_total{request=list_offsets}": 1,
        },
    ),
    (
        lambda p: p.tier.on_delayed_fetch_parked(),
        {
            f"{PURGATORY_PREFIX}purgatorysize{{delayedOperation=RemoteFetch}}": 1,
            f"{PURGATORY_PREFIX}numdelayedoperations{{delayedOperation=RemoteFetch}}": 1,
        },
    ),
    (
        lambda p: p.cache.on_hit(CacheLevel.DISK, 9),
        {"tidegate_cache_hits_total{level=disk}": 1, "tidegate_cache_hit_bytes_total{level=disk}": 9},
    ),
    (lambda p: p.cache.on_miss(CacheLevel.MEMORY), {"tidegate_cache_misses_total{level=memory}": 1}),
    (
        lambda p: p.cache.on_fill(9, 0.5),
        {
            "tidegate_cache_fills_total": 1,
            "tidegate_cache_fill_bytes_total": 9,
            "tidegate_cache_fill_seconds_count": 1,
            "tidegate_cache_fill_seconds_sum": 0.5,
        },
    ),
    (lambda p: p.cache.on_fill_failed(), {"tidegate_cache_fill_failures_total": 1}),
    (
        lambda p: p.cache.on_fill_waited(0.25),
        {"tidegate_cache_fill_wait_seconds_count": 1, "tidegate_cache_fill_wait_seconds_sum": 0.25},
    ),
    (lambda p: p.cache.on_evicted(CacheLevel.DISK, 3), {"tidegate_cache_evictions_total{level=disk}": 3}),
    (lambda p: p.cache.on_quarantined(), {"tidegate_cache_quarantined_blocks_total": 1}),
    (lambda p: p.cache.on_resident(CacheLevel.DISK, 7), {"tidegate_cache_resident_bytes{level=disk}": 7}),
    (lambda p: p.cache.on_index_rebuilt("OFFSET"), {"tidegate_index_rebuilds_total{index=OFFSET}": 1}),
    (
        lambda p: p.relay.on_connection_accepted(),
        {"tidegate_connections_accepted_total": 1, "tidegate_connections_active": 1},
    ),
    (
        lambda p: p.relay.on_connection_closed(CloseCause.LIMIT),
        {"tidegate_connections_active": -1, "tidegate_connections_closed_total{cause=limit}": 1},
    ),
    (
        lambda p: p.relay.on_connection_refused(RefusalReason.FULL),
        {"tidegate_connections_refused_total{reason=full}": 1},
    ),
    (
        lambda p: p.relay.on_relayed(Direction.UPSTREAM_TO_CLIENT, 9),
        {"tidegate_relayed_bytes_total{direction=upstream_to_client}": 9},
    ),
    (lambda p: p.relay.on_connect_waiting(2), {"tidegate_upstream_connect_waits": 2}),
    (lambda p: p.relay.on_tier_served(9), {"tidegate_served_tier_bytes_total": 9}),
    (
        lambda p: p.relay.on_request(1, Route.EXCHANGE),
        {"tidegate_requests_total{api_key=1}{route=exchange}": 1},
    ),
    (lambda p: p.tier.on_request_unread(1), {"tidegate_requests_unread_total{api_key=1}": 1}),
    (lambda p: p.relay.on_malformed_frame(), {"tidegate_malformed_frames_total": 1}),
    (lambda p: p.relay.on_fetch_sessions(3), {"tidegate_fetch_sessions": 3}),
    (lambda p: p.relay.on_probe_sent(), {"tidegate_probes_sent_total": 1}),
    (lambda p: p.relay.on_probes_reused(3), {"tidegate_probes_reused_total": 3}),
    (
        lambda p: p.relay.on_probe_answered(0.5, 70),
        {
            "tidegate_probe_seconds_count": 1,
            "tidegate_probe_seconds_sum": 0.5,
            "tidegate_probe_discarded_bytes_total": 70,
        },
    ),
    (
        lambda p: p.relay.on_frontier_used(0.5),
        {"tidegate_frontier_age_seconds_count": 1, "tidegate_frontier_age_seconds_sum": 0.5},
    ),
    (lambda p: p.catalog.on_segments(3), {"tidegate_catalog_segments": 3}),
    (
        lambda p: p.catalog.on_topic("t", 3, 900),
        {
            f"{TOPIC_PREFIX}remotelogmetadatacount{{topic=t}}": 3,
            f"{TOPIC_PREFIX}remotelogsizebytes{{topic=t}}": 900,
        },
    ),
    (lambda p: p.catalog.on_record_undecodable(), {"tidegate_catalog_undecodable_records_total": 1}),
    (lambda p: p.catalog.on_partition_lag(4, 8), {"tidegate_catalog_lag_records{metadata_partition=4}": 8}),
    (lambda p: p.catalog.on_refused_partitions(2), {"tidegate_catalog_refused_partitions": 2}),
    (lambda p: p.catalog.on_memory(900), {"tidegate_catalog_memory_bytes": 900}),
    (
        lambda p: p.catalog.on_snapshot_written(900, 5.5),
        {
            "tidegate_catalog_snapshot_bytes": 900,
            "tidegate_catalog_snapshot_timestamp_seconds": 5.5,
            "tidegate_catalog_snapshot_writes_total{outcome=ok}": 1,
        },
    ),
    (lambda p: p.catalog.on_snapshot_failed(), {"tidegate_catalog_snapshot_writes_total{outcome=error}": 1}),
    (
        lambda p: p.catalog.on_snapshot_loaded(SnapshotOutcome.OLDER_FORMAT),
        {"tidegate_catalog_snapshot_loads_total{outcome=older_format}": 1},
    ),
]


@pytest.mark.parametrize(("verb", "moved"), VERBS, ids=lambda case: next(iter(case)) if isinstance(case, dict) else "")
def test_a_verb_moves_its_own_series(verb: Callable[[Probes], None], moved: dict[str, float]) -> None:
    probes = Probes()
    verb(probes)
    assert nonzero(probes.registry) == UNTOUCHED | moved


def test_every_family_of_both_tables_that_a_reader_feeds_is_registered() -> None:
    registered = {metric.name for metric in Probes().registry.collect() if not metric.name.startswith(OF_LIBRARY)}
    of_reader = {row.family.name for row in ROWS if row.family is not None and row.writer is Writer.READER}
    assert registered == of_reader | {family.name for family in FAMILIES}


def test_registered_kinds_are_those_of_the_tables() -> None:
    kinds = {metric.name: metric.type for metric in Probes().registry.collect()}
    families = [row.family for row in ROWS if row.family is not None and row.writer is Writer.READER]
    for family in (*families, *FAMILIES):
        assert kinds[family.name] == ("summary" if family.kind is Kind.TIMER else family.kind.value)


@pytest.mark.parametrize(
    ("name", "label", "values"),
    [
        ("relayed_bytes_total", "direction", Direction),
        ("deadline_misses_total", "request", DeadlineRequest),
        ("connections_closed_total", "cause", CloseCause),
        ("connections_refused_total", "reason", RefusalReason),
        ("catalog_snapshot_loads_total", "outcome", SnapshotOutcome),
        ("config_reloads_total", "outcome", ReloadOutcome),
        ("cache_hits_total", "level", CacheLevel),
        ("cache_misses_total", "level", CacheLevel),
        ("cache_evictions_total", "level", CacheLevel),
        ("cache_disk_errors_total", "cause", DiskErrorCause),
    ],
)
def test_enumerated_series_are_there_from_the_start(name: str, label: str, values: type[enum.StrEnum]) -> None:
    registry = Probes().registry
    for value in values:
        assert registry.sample_value(f"tidegate_{name}", {label: value.value}) == 0


def test_a_delayed_fetch_that_completes_is_no_longer_waiting() -> None:
    probes = Probes()
    probes.tier.on_delayed_fetch_parked()
    probes.tier.on_delayed_fetch_completed()
    assert nonzero(probes.registry) == UNTOUCHED


def test_reader_slots_give_queue_size_and_idle_share() -> None:
    probes = Probes()
    probes.tier.on_reader_slots(busy=4, total=4, waiting=7)
    assert probes.registry.sample_value(f"{POOL_PREFIX}remotelogreadertaskqueuesize") == 7
    idle = probes.registry.sample_value(f"{POOL_PREFIX}remotelogreaderavgidle_percent")
    assert idle is not None
    assert 0 <= idle <= 1


def test_the_timer_counts_a_read_that_fails() -> None:
    probes = Probes()
    with pytest.raises(ZeroDivisionError), probes.tier.remote_fetch_timer():
        raise ZeroDivisionError
    assert probes.registry.sample_value(f"{TIMER}_count") == 1


def test_catalog_sizes_follow_changes_and_add_up_beyond_the_topic_limit() -> None:
    probes = Probes(Registry(topics_max=1))
    for topic, segments in (("a", 5), ("b", 3), ("c", 4), ("a", 2), ("b", 0)):
        probes.catalog.on_topic(topic, segments, segments * 100)
    values = {
        topic: probes.registry.sample_value(f"{TOPIC_PREFIX}remotelogsizebytes", {"topic": topic})
        for topic in ("a", OTHER_LABEL)
    }
    assert values == {"a": 200, OTHER_LABEL: 400}


def test_strange_api_keys_share_one_series() -> None:
    probes = Probes()
    for api_key in range(-500, 500):
        probes.relay.on_request(api_key, Route.RELAY)
    series = [name for name in nonzero(probes.registry) if name.startswith("tidegate_requests_total")]
    assert len(series) == 129
    assert probes.registry.sample_value("tidegate_requests_total", {"api_key": OTHER_LABEL, "route": "relay"}) == 872


def test_verbs_lose_nothing_when_threads_call_them() -> None:
    probes = Probes()

    def count() -> None:
        for _ in range(2000):
            probes.cache.on_evicted(CacheLevel.DISK)
            probes.catalog.on_record_undecodable()

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert probes.registry.sample_value("tidegate_cache_evictions_total", {"level": "disk"}) == 8000
    assert probes.registry.sample_value("tidegate_catalog_undecodable_records_total") == 8000
