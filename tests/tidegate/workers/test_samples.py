"""One /metrics out of several: what is added, what is not, and that sums never fall."""

import json

import pytest

from metrics.kip405 import Kind
from metrics.meters import Direction, FallbackReason, Meters
from metrics.page import render
from metrics.registry import Registry
from tidegate.workers.samples import RULES, Collected, Rule, Together, samples_of


class World:
    """A supervisor's meters and those of two workers."""

    def __init__(self) -> None:
        self.own, self.workers = Meters(Registry()), [Meters(Registry()), Meters(Registry())]
        self.together = Together(self.own.registry)

    def hear(self) -> None:
        for number, meters in enumerate(self.workers):
            # By way of JSON, as it comes.
            self.together.heard(str(number), json.loads(json.dumps(samples_of(meters.registry))))

    def value(self, name: str, **labels: str) -> float | None:
        found = [
            sample.value
            for metric in self.together.collect()
            for sample in metric.samples
            if (sample.name, sample.labels) == (name, labels)
        ]
        assert len(found) <= 1
        return found[0] if found else None


@pytest.fixture
def world() -> World:
    return World()


def test_every_gauge_has_a_rule_and_every_rule_a_gauge() -> None:
    gauges = {family.name for family in Meters(Registry()).registry.families if family.kind is Kind.GAUGE}
    counters = {"tidegate_worker_deaths": Rule.OWN, "tidegate_connections_refused": Rule.ALL}
    assert RULES.keys() - counters.keys() == gauges
    assert counters.items() <= RULES.items()


def test_counters_gauges_and_histograms_are_added(world: World) -> None:
    for number, meters in enumerate(world.workers, start=1):
        meters.relay.on_relayed(Direction.UPSTREAM_TO_CLIENT, 100 * number)
        meters.relay.on_connection_accepted()
        meters.loop.on_woken(0.2)
    world.hear()
    assert world.value("tidegate_connections_active") == 2
    assert world.value("tidegate_loop_stall_seconds_bucket", le="0.25") == 2
    assert world.value("tidegate_loop_stall_seconds_sum") == pytest.approx(0.4)
    assert world.value("tidegate_loop_stall_max_seconds", worker="1") == pytest.approx(0.2)


def test_what_each_worker_knows_of_the_whole_counts_once(world: World) -> None:
    world.workers[0].catalog.on_segments(40)
    world.workers[1].catalog.on_segments(42)
    world.workers[0].tls.on_certificate("proxy.tls.certificate.file", 2000)
    world.workers[1].tls.on_certificate("proxy.tls.certificate.file", 1000)
    for meters, partitions in zip(world.workers, (7, 5), strict=True):
        meters.fallback.on_spell(FallbackReason.NOT_DESCRIBED, partitions)
        meters.fallback.on_spell(FallbackReason.DENIED, partitions)
    world.hear()
    assert world.value("tidegate_fallback_partitions", reason="not_described") == 7
    assert world.value("tidegate_fallback_partitions", reason="denied") == 12
    assert world.value("tidegate_catalog_segments") == 42
    assert world.value("tidegate_certificate_expiry_timestamp_seconds", key="proxy.tls.certificate.file") == 1000


def test_what_a_dead_worker_had_counted_stays_and_its_gauges_do_not(world: World) -> None:
    for meters in world.workers:
        meters.relay.on_connection_accepted()
        meters.loop.on_woken(0.0)
    world.hear()
    assert world.value("tidegate_connections_accepted_total") == 2
    for _ in range(2):
        world.together.ended("1")
        assert world.value("tidegate_connections_accepted_total") == 2
        assert world.value("tidegate_loop_stall_seconds_count") == 2
        assert world.value("tidegate_connections_active") == 1
    world.workers[1] = Meters(Registry())
    world.workers[1].relay.on_connection_accepted()
    world.hear()
    assert world.value("tidegate_connections_accepted_total") == 3
    assert world.value("tidegate_connections_active") == 2


def test_the_process_and_what_cannot_be_added_is_shown_for_each(world: World) -> None:
    world.hear()
    page = render(Collected(world.together.collect()))[1].decode()
    for who in ("supervisor", "0", "1"):
        assert f'process_cpu_seconds_total{{worker="{who}"}}' in page or "process_cpu_seconds" not in page
        assert f'tidegate_loop_stall_max_seconds{{worker="{who}"}}' in page
    assert "tidegate_build_info{" in page
