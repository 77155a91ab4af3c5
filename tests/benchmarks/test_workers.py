"""The workers' benchmark: once on little data, that it runs and accounts."""

import pytest

from benchmarks import workers
from benchmarks.support.aiven_stage import MIB, fill_tier
from benchmarks.support.paced_backfill import Stretch, backfill_processes
from benchmarks.support.worker_options import WorkerOptions
from benchmarks.support.worker_report import WorkerReport
from tests.support.kafka import fresh_name
from tools.demo.kafka_cluster import KafkaCluster

BRIEF = WorkerOptions(
    workers=(2,), rows=("produce", "small"), brokers=1, connections=2, rounds=1, seconds=0.4, megabytes=16
)


def test_a_load_is_measured_and_each_worker_has_its_part(kafka: KafkaCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "WARM_UP_ROUNDS", 1)
    monkeypatch.setattr(workers, "LOCAL_MEGABYTES", 8)
    topic = fresh_name("benchmark-workers")
    segments = fill_tier(kafka, topic, workers.BATCH_KIB, [1, 1], 2 * MIB)
    tiered = [Stretch(topic, partition, found[-1].end_offset + 1) for partition, found in sorted(segments.items())]
    local = workers.fill_local(kafka, BRIEF.connections)
    report = WorkerReport("workers")
    with backfill_processes(local) as clients:
        workers.measure(workers.Stage(kafka, tiered, local, None, clients), BRIEF, report)
    assert report.complaints == []
    assert [row.name for row in report.rows] == list(BRIEF.rows)
    for row in report.rows:
        (runs,) = row.rounds
        assert runs["2"].p99_ms >= runs["2"].p50_ms > 0
        assert runs["2"].busiest_bytes < 1
        assert sum(runs["2"].worker_bytes) == runs["2"].moved_bytes > 0
