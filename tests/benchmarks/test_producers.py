"""The producers' benchmark once, on little data and in fractions of a second: that it runs and accounts."""

from pathlib import Path

import pytest

from benchmarks import producers
from benchmarks.producers import Options, parse_options
from benchmarks.support.producer_report import ALONE, THROUGH_BROKER, THROUGH_TIDEGATE, ProducerReport
from benchmarks.support.stage import TIERED_CONFIGS
from tests.support.kafka import fresh_name
from tools.demo.kafka_cluster import KafkaCluster

BRIEF = Options(rounds=1, seconds=0.2, megabytes=16, rate=4.0, nice=0, as_json=False)


def test_all_sides_are_measured_and_the_broker_reads_the_tier_for_its_own_alone(
    kafka: KafkaCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producers, "WARM_UP_S", 0.2)
    monkeypatch.setattr(producers, "SETTLE_S", 0.2)
    topics = [fresh_name(f"benchmark-{name}") for name in producers.TOPICS]
    configs = {**TIERED_CONFIGS, "segment.bytes": str(1024 * 1024)}
    report = ProducerReport("producers")
    with producers.sides_on(kafka, tmp_path, BRIEF, topics, configs) as ready:
        producers.measure(ready, BRIEF, report)
    assert report.complaints == []
    assert [len(pacing.rounds) for pacing in report.pacings] == [1, 1]
    for pacing in report.pacings:
        (runs,) = pacing.rounds
        assert runs[ALONE].backfill_megabytes_per_s == 0
        assert runs[THROUGH_TIDEGATE].served_bytes >= runs[THROUGH_TIDEGATE].read_bytes > 0
        assert runs[THROUGH_BROKER].remote_fetches > 0
        assert all(run.p99_ms > 0 for run in runs.values())


def test_quick_is_short() -> None:
    assert parse_options(["--quick", "--nice", "5"]) == Options(2, 3.0, 160, 10.0, 5, as_json=False)
