"""Each script once, on little data and in fractions of a second: that it runs and accounts, not how fast it is."""

import argparse
import json
from collections import Counter
from pathlib import Path

import pytest

from benchmarks import copying, cost, crowd_closes, crowd_reads, fetch_exchange, growth, relay, store, warm_read
from benchmarks.support import cost_rows
from benchmarks.support.comparison import Report
from benchmarks.support.options import Options
from benchmarks.support.published import load
from benchmarks.support.stage import TIERED_CONFIGS, fill_topic, stage_on
from tests.support.kafka import fresh_name
from tests.support.plain_kafka import own_plain_cluster
from tools.demo.kafka_cluster import KafkaCluster

BRIEF = Options(rounds=1, seconds=0.1, megabytes=8, as_json=False)


def rows_of(report: Report) -> list[str]:
    return [row.name for row in report.rows]


@pytest.mark.needs("toxiproxy", "versitygw")
def test_what_a_gb_costs_is_measured_beside_a_floor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One row of each kind of floor; the script itself ends where bytes are missing."""
    monkeypatch.setattr(cost_rows, "SECONDS", 0.5)
    saved = tmp_path / "cost.jsonl"
    rows = "relay-tls,memory,again-disk,slow"
    assert cost.main(["--rounds", "1", "--megabytes", "16", "--rows", rows, "--json", "--save", str(saved)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["row"] for row in found] == ["relay-tls", "memory", "again-disk", "slow"]
    assert all(row["core_s_per_gb"] > 0 <= row["floor_core_s_per_gb"] and row["ratio"] > 0 for row in found)
    assert [{**row, **each} for row, each in zip(load(saved), found, strict=True)] == load(saved)


@pytest.mark.needs("toxiproxy", "versitygw")
def test_growth_is_measured_by_connections_and_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two points of each of these axes; the others differ in what they ask, and take minutes."""
    monkeypatch.setattr(growth, "MEGABYTES", 16)
    monkeypatch.setattr(growth, "COLD_READS", 1)
    saved = tmp_path / "growth.jsonl"
    assert growth.main(["--quick", "--seconds", "0.2", "--axes", "connections,batches", "--save", str(saved)]) == 0
    points = load(saved)
    assert all(each["y"] >= 0 for each in points)
    assert Counter(each["series"] for each in points) == {
        "idle connections, cores": 2,
        "idle connections, MiB": 2,
        "connections, relay, core-s/GB": 2,
        "connections, memory, core-s/GB": 2,
        "batches, cold, core-s/GB": 2,
        "batches, memory, core-s/GB": 2,
    }


def test_the_relay_is_measured_and_all_bytes_are_accounted_for(
    kafka: KafkaCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "LATENCY_REQUESTS", 20)
    topic = fresh_name("benchmark-relay")
    offsets = fill_topic(kafka, topic, BRIEF.megabytes, {}, is_tiered=False)
    with stage_on(kafka, topic, offsets, tmp_path) as stage:
        report = relay.measure(stage, BRIEF)
    assert report.complaints == []
    assert rows_of(report)[:3] == ["bare Fetch", "(a relay that only copies)", "consumer"]
    assert len(report.rows) == 7
    assert all(row.compared > 0 for row in report.rows[:3])


def test_the_warm_tier_is_measured_without_a_get(kafka: KafkaCluster, tmp_path: Path) -> None:
    topic = fresh_name("benchmark-warm")
    configs = {**TIERED_CONFIGS, "segment.bytes": str(1024 * 1024)}
    offsets = fill_topic(kafka, topic, BRIEF.megabytes, configs, is_tiered=True)
    assert all(known.local_log_start_offset > 0 for known in offsets.values())
    with stage_on(kafka, topic, offsets, tmp_path) as stage:
        report = warm_read.measure(stage, BRIEF)
    assert report.complaints == []
    assert rows_of(report) == ["bare Fetch", "consumer"]
    assert sum("0 GETs" in note for note in report.notes) == 2


@pytest.mark.needs("linux")
def test_a_crowd_of_random_reads_is_answered_by_the_tier(kafka: KafkaCluster) -> None:
    topic = fresh_name("benchmark-crowd")
    configs = {**TIERED_CONFIGS, "segment.bytes": str(1024 * 1024)}
    offsets = fill_topic(kafka, topic, BRIEF.megabytes, configs, is_tiered=True)
    ends = {partition: known.local_log_start_offset for partition, known in offsets.items()}
    crowd = crowd_reads.Crowd(topic, ends, clients=4, seconds=1.0)
    found = crowd_reads.measure(kafka, crowd, argparse.Namespace(rounds=1, before=None))
    assert crowd_reads.judge(found) == []
    assert all(answers[crowd_reads.GOOD] for (answers,) in found.values())


def test_what_others_wait_is_measured_while_a_crowd_leaves(kafka: KafkaCluster) -> None:
    found = crowd_closes.measure(kafka, clients=20, rounds=1, restarts=False)
    assert set(found) == {crowd_closes.BROKER, crowd_closes.CLOSES}
    assert all(wait_s > 0 for waits in found.values() for wait_s in waits)
    crowd_closes.judge(found)


def test_exchanges_of_every_kind_are_measured_and_no_record_byte_is_copied(kafka: KafkaCluster, tmp_path: Path) -> None:
    topics = fetch_exchange.fill_topics(kafka, fresh_name("benchmark-exchange"), 3)
    cells = fetch_exchange.measure(kafka, tmp_path, topics, 0.05, 1)
    assert len(cells) == 3 * 2 * 2
    assert {(cell.kind, cell.mode) for cell in cells} == {
        (kind, mode) for kind in ("all local", "all tier", "half and half") for mode in ("full", "incremental")
    }
    for cell in cells:
        assert cell.through_us > 0
        assert (cell.direct_errors, cell.through_errors) == (0, 0)
        assert 0 <= cell.copied_bytes < fetch_exchange.RECORD_BYTES
    quiet = [cell for cell in cells if (cell.kind, cell.mode) == ("all local", "incremental")]
    # Nothing to say: a session's head, whatever the partitions are; and it is relayed, so nothing is copied.
    assert len({cell.answer_bytes for cell in quiet}) == 1
    assert [cell.copied_bytes for cell in quiet] == [0, 0]


def test_stores_are_measured_by_each_transformation(tmp_path: Path) -> None:
    report = Report("stores")
    options = store.parse_options(["--rounds", "1", "--megabytes", "1", "--stores", "folder"])
    with store.opened("folder", tmp_path) as (config, bare):
        store.measure("folder", config, bare, tmp_path, options, report)
    assert report.complaints == []
    expected = [f"folder, {name}: {verb}" for name in store.TRANSFORMS for verb in ("put", "get")]
    assert rows_of(report) == expected
    assert all(row.compared > 0 for row in report.rows)
    assert len(report.notes) == len(expected)


@pytest.mark.integration
@pytest.mark.needs("java", "kafka")
def test_copying_is_measured_and_all_bytes_are_in_the_tier(tmp_path: Path) -> None:
    """A broker of its own, since the metadata topic is created again for each copy."""
    report = Report("copying")
    with own_plain_cluster() as kafka:
        copying.fill(kafka, 4)
        options = copying.Options(1, 4, 0.3, ("folder",), ("zstd+aes",), as_json=False)
        copying.measure(kafka, tmp_path, options, report)
    assert report.complaints == []
    assert rows_of(report)[:2] == ["folder, zstd+aes", "folder, zstd+aes, a core"]
    assert all(row.compared > 0 for row in report.rows[:2])
    assert len(report.rows) == 2 + 4
