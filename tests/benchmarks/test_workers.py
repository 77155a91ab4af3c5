"""The workers' benchmark: once on little data, that it runs and accounts; and what it makes of figures."""

import json
import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import workers
from benchmarks.support.aiven_stage import MIB, fill_tier
from benchmarks.support.kernel_spread import kernel_spread, ours
from benchmarks.support.paced_backfill import Stretch, backfill_processes
from benchmarks.support.worker_options import WorkerOptions, parse_options
from benchmarks.support.worker_processes import owners_of_ports
from benchmarks.support.worker_report import BEFORE, ONE, WorkerReport, WorkerRow, WorkerRun, show
from tests.support.kafka import fresh_name
from tools.demo.kafka_cluster import KafkaCluster

BRIEF = WorkerOptions(
    workers=(2,), rows=("produce", "small"), brokers=1, connections=2, rounds=1, seconds=0.4, megabytes=16
)
RUN = WorkerRun(
    moved_bytes=1_000_000_000,
    seconds=2.0,
    supervisor_cpu_s=0.25,
    worker_cpu_s=[0.5, 0.25],
    worker_bytes=[750_000_000, 250_000_000],
    p50_ms=1.0,
    p99_ms=9.0,
    idle_share=0.5,
    fills=0,
)
ALONE = replace(RUN, supervisor_cpu_s=0.0, worker_cpu_s=[0.75], worker_bytes=[1_000_000_000])


# --- live ---


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


@pytest.mark.needs("linux")
def test_a_connection_belongs_to_the_process_that_has_it_open() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as client:
        with listener.accept()[0]:
            assert owners_of_ports({3: os.getpid()})[client.getsockname()[1]] == 3
        assert client.getsockname()[1] not in owners_of_ports({})


@pytest.mark.needs("linux")
def test_the_kernels_spread_counts_every_connection() -> None:
    spread = kernel_spread(8, 4, 5)
    assert len(spread.busiest) == 5
    assert all(0.25 <= share <= 1 for share in spread.busiest)
    assert "8 connections over 4 sockets" in spread.text()


def test_our_own_spread_is_even_with_any_number_of_brokers() -> None:
    assert [ours(8, 4, brokers) for brokers in (1, 4, 8)] == [0.25, 0.25, 0.25]
    assert ours(8, 2, 1) == 0.5


# --- figures ---


def test_a_worker_is_measured_by_its_own_bytes_and_its_own_time() -> None:
    assert RUN.worker_megabytes_per_core_s == [1500.0, 1000.0]
    assert RUN.worker_core_s == [0.5, 0.25]
    assert (RUN.supervisor_core_s, RUN.megabytes_per_core_s, RUN.megabytes_per_s) == (0.25, 1000.0, 500.0)
    assert RUN.busiest_bytes == 0.75
    assert RUN.busiest_cpu == pytest.approx(2 / 3)


def test_a_row_is_held_against_one_worker_and_against_the_version_before() -> None:
    row = WorkerRow("warm", [{ONE: ALONE, "2": RUN, "4": RUN, BEFORE: ALONE}])
    checks = {check.name.partition(": ")[2]: check for check in workers.checks_of(row, 2)}
    assert checks["MB per core-s, 1 worker of the version before"].value == 1.0
    assert checks["MB per core-s, 2 workers of one"].value == pytest.approx(0.75)
    assert not checks["MB per core-s, 2 workers of one"].holds
    assert checks["MB per core-s, 4 workers of one"].holds
    assert not checks["bytes of the busier of 2"].holds
    assert "MB/s, 2 workers of one" not in checks
    assert "warm: MB/s, 2 workers of one" in [check.name for check in workers.checks_of(row, 8)]


def test_a_report_shows_all_sides_and_what_was_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    row = WorkerRow("warm", [{ONE: ALONE, "2": RUN}])
    report = WorkerReport("workers", [row], workers.checks_of(row, 8), ["a note"], ["a complaint"])
    said = ""
    for as_json in (False, True):
        show(report, as_json=as_json)
        said = capsys.readouterr().out
        assert all(text in said for text in ("warm", "MB/core-s", "a note", "a complaint", "busier of 2"))
    figures = json.loads(said)
    assert figures["rows"][0]["medians"]["2"]["each worker, MB/core-s"] == [1500.0, 1000.0]
    assert not figures["holds"]


def test_sides_are_numbers_of_workers_and_the_version_before() -> None:
    folder = Path(__file__).resolve().parents[2]
    options = parse_options(["--workers", "1,2", "--before", str(folder), "--quick"])
    assert options.sides == {"1": (1, None), "2": (2, None), BEFORE: (1, folder)}
    assert (options.rounds, options.is_live) == (1, True)
    assert not parse_options(["--rows", "spread"]).is_live
