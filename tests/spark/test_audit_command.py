"""`audit` as a user runs it, over what a real broker tiered."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pipeline.jobs.command_line import main
from tests.support.checked_tier import flip
from tests.support.differential_known import tiered_logs
from tests.support.spark_topics import COMPRESSED, PLAIN, TOPICS, TRANSACTIONAL, TRIMMED, SparkTopics

pytestmark = pytest.mark.usefixtures("logs_stay_as_they_are")


def arguments(topics: SparkTopics, report: Path, *names: str) -> list[str]:
    named = [word for name in names for word in ("--topic", name)]
    return ["audit", "--config", str(topics.tidegate.process.properties_path), "--report", str(report), *named]


def read_report(folder: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return read


def test_what_a_real_broker_tiered_has_no_findings(
    spark: SparkSession, spark_topics: SparkTopics, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments(spark_topics, tmp_path / "report", *TOPICS)) == 0, capfd.readouterr()
    report = read_report(tmp_path / "report")
    assert report["findings"] == []
    assert report["partitions"] >= len({PLAIN, COMPRESSED, TRANSACTIONAL, TRIMMED})
    assert report["segments"] > report["partitions"]
    assert report["batches"] > report["segments"]
    told = capfd.readouterr()
    assert "no findings" in told.out
    assert f"{report['segments']} of {report['segments']} segments" in told.err


def test_planted_faults_are_found_with_exit_code_1_and_a_run_again_finds_them_again(
    spark: SparkSession, spark_topics: SparkTopics, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    wanted = arguments(spark_topics, tmp_path / "report", PLAIN)
    log = tiered_logs(spark_topics.cluster, PLAIN)[0]
    orphan = log.with_name(log.name.replace(log.name[21:43], "A" * 22))
    position = log.stat().st_size // 2
    flip(log, position)
    orphan.write_bytes(b"nobody's")
    os.utime(orphan, (0, 0))
    report: dict[str, Any] = {}
    try:
        for _ in range(2):
            assert main(wanted) == 1
            report = read_report(tmp_path / "report")
            assert {finding["object_name"] for finding in report["findings"]} == {str(log), str(orphan)}
            assert report["by_kind"]["orphan"] == 1
            assert len(report["findings"]) == 2
            assert "2 findings: " in capfd.readouterr().out
        assert report["segments_checked_before"] == report["segments"] - 1
    finally:
        flip(log, position)
        orphan.unlink()
    assert main(wanted) == 0
