"""GETs are counted when they end, under store, object and outcome."""

import pytest

from metrics.get_probe import GetObject, GetOutcome, GetProbe
from metrics.registry import Registry


@pytest.fixture
def registry() -> Registry:
    return Registry()


@pytest.fixture
def probe(registry: Registry) -> GetProbe:
    probe = GetProbe(registry)
    probe.on_store("s3")
    return probe


def test_all_outcomes_are_there_before_the_first_get(registry: Registry, probe: GetProbe) -> None:
    for outcome in GetOutcome:
        labels = {"store": "s3", "outcome": outcome.value}
        assert registry.sample_value("tidegate_get_bytes_total", labels) == 0
        assert registry.sample_value("tidegate_get_seconds_count", labels) == 0
        for kind in GetObject:
            assert registry.sample_value("tidegate_gets_total", labels | {"object": kind.value}) == 0
    assert registry.sample_value("tidegate_get_first_byte_seconds_count", {"store": "s3"}) == 0


def test_an_ended_get_moves_its_own_series(registry: Registry, probe: GetProbe) -> None:
    probe.on_first_byte(0.125)
    probe.on_end(GetObject.LOG, GetOutcome.RETRIABLE, 0.25, 900)
    moved = {
        (sample.name, *sample.labels.values()): sample.value
        for metric in registry.collect()
        for sample in metric.samples
        if sample.value and "le" not in sample.labels
    }
    assert moved == {
        ("tidegate_gets_total", "s3", "log", "retriable"): 1,
        ("tidegate_get_bytes_total", "s3", "retriable"): 900,
        ("tidegate_get_seconds_count", "s3", "retriable"): 1,
        ("tidegate_get_seconds_sum", "s3", "retriable"): 0.25,
        ("tidegate_get_first_byte_seconds_count", "s3"): 1,
        ("tidegate_get_first_byte_seconds_sum", "s3"): 0.125,
    }


def test_a_store_that_was_not_named_is_unknown(registry: Registry) -> None:
    GetProbe(registry).on_end(GetObject.INDEX, GetOutcome.OK, 0.25)
    labels = {"store": "unknown", "object": "index", "outcome": "ok"}
    assert registry.sample_value("tidegate_gets_total", labels) == 1


def test_hedges_retries_splits_and_what_is_under_way(registry: Registry, probe: GetProbe) -> None:
    probe.on_retry()
    probe.on_hedge()
    probe.on_hedge_won()
    probe.on_split()
    probe.on_gets(3, 4)
    probe.on_inflight_bytes(900)
    names = ("get_retries_total", "get_hedges_total", "get_hedges_won_total", "get_splits_total")
    assert [registry.sample_value(f"tidegate_{name}") for name in names] == [1, 1, 1, 1]
    gauges = ("gets_in_flight", "gets_queued", "inflight_bytes")
    assert [registry.sample_value(f"tidegate_{name}") for name in gauges] == [3, 4, 900]
