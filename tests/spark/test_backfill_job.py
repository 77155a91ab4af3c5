"""`backfill` with a real Spark: the rows that the broker has, after a job was cut off, too; folders; refusals."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from pipeline.jobs.arguments import parser
from pipeline.jobs.backfill import BackfillRange, BackfillRefusedError, run_backfill
from pipeline.jobs.backfill_command import BackfillJob, prepare
from pipeline.jobs.backfill_plan import OffsetRange, Step
from pipeline.jobs.command_line import main
from tests.support.needs import ROOT, SPARK_JARS
from tests.support.source_rows import read_kafka
from tests.support.spark_topics import PLAIN, TRANSACTIONAL, TRIMMED, TRIMMED_AT, WIDE, SparkTopics
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("logs_stay_as_they_are")

STEPS = 2
CUT_OFF_S_MAX = 120.0


class CutOff(Exception):
    """The job ends here, as if it had been killed."""


@pytest.fixture(scope="module")
def finished(spark: SparkSession, spark_topics: SparkTopics, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a job that nothing has happened to; a test that changes it takes a copy."""
    out = tmp_path_factory.mktemp("finished") / "out"
    assert main(arguments(spark_topics, "tier", out)) == 0
    return out


def test_a_job_that_was_cut_off_and_run_again_gives_what_one_gives_that_was_not(
    spark: SparkSession, spark_topics: SparkTopics, tmp_path: Path, finished: Path
) -> None:
    """Given a job that ends after its first step, and one that ends while it moves the files of its second, when it is
    run again, then rows, file names and report are those of a job that nothing has happened to; and the broker's."""
    cut = tmp_path / "cut"
    job = job_of(arguments(spark_topics, "tier", cut))
    with pytest.raises(CutOff):
        run(spark, job, finished, after=1)
    assert len(done_steps(cut)) == 1
    leave_half_a_step(cut)

    assert main(arguments(spark_topics, "tier", cut)) == 0

    assert parquet_files(cut) == parquet_files(finished)
    assert report(cut) == report(finished)
    same_rows(spark.read.parquet(str(finished)), spark.read.parquet(str(cut)))
    ends = ends_of(spark_topics)
    rows = read_kafka(spark, spark_topics.cluster.bootstrap_servers, PLAIN, {"includeHeaders": "false"}).where(
        f"partition = 0 and offset < {ends['0']} or partition = 1 and offset < {ends['1']}"
    )
    same_rows(rows, spark.read.parquet(str(cut)))
    assert report(cut)["rows"] == sum(part["rows"] for part in report(cut)["partitions"]) == sum(ends.values())
    assert spark.read.parquet(str(cut)).where("date <> to_date(timestamp)").count() == 0


def test_a_job_that_is_done_does_nothing_again(
    spark_topics: SparkTopics, finished: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*.[pj]*")}

    assert main(arguments(spark_topics, "tier", finished)) == 0

    assert {path: path.stat().st_mtime_ns for path in finished.rglob("*.[pj]*")} == before
    told = capfd.readouterr()
    assert f"{STEPS} of {STEPS} steps were done before" in told.err
    assert "_tidegate/report.json" in told.out


def test_another_backfill_in_the_same_folder_is_refused_until_it_is_begun_anew(
    spark_topics: SparkTopics, tmp_path: Path, finished: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Given a finished job, and a file of somebody else's, when the same folder is asked for by offsets, then that is
    refused; and with --restart the job's files are gone, the others are not."""
    out = tmp_path / "out"
    shutil.copytree(finished, out)
    (out / "date=2020-01-01").mkdir()
    (out / "date=2020-01-01" / "of-others.parquet").write_bytes(b"")
    by_offsets = [*arguments(spark_topics, "tier", out, bytes_per_step=1 << 30), "--partition-by", "offsets"]

    assert main(by_offsets) == 2
    assert "partition_by was date, is offsets" in capfd.readouterr().err
    assert main([*by_offsets, "--restart"]) == 0

    assert sorted(path.name for path in out.glob("[!_.]*")) == ["date=2020-01-01", "partition=0", "partition=1"]
    assert (report(out)["partition_by"], report(out)["steps"]) == ("offsets", 1)
    digests = [part["digest"] for part in report(out)["partitions"]]
    assert digests == [part["digest"] for part in report(finished)["partitions"]]


def test_a_topic_that_was_made_anew_is_refused(spark: SparkSession, spark_topics: SparkTopics, tmp_path: Path) -> None:
    """Given a plan of a topic's offsets, when the name means another topic, then nothing of that is read."""
    job = job_of(arguments(spark_topics, "tier", tmp_path))
    ids = iter(["before", "after"])
    found = BackfillRange((OffsetRange(0, 0, 5),), 5)
    with pytest.raises(BackfillRefusedError, match="made anew"):
        run_backfill(spark, job.options, lambda: found, lambda *_: None, find_topic_id=lambda: next(ids))
    assert parquet_files(tmp_path) == done_steps(tmp_path) == []


def test_a_folder_with_something_else_in_it_is_refused(
    spark: SparkSession, spark_topics: SparkTopics, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    assert main(arguments(spark_topics, "tier", tmp_path)) == 2
    assert "notes.txt" in capfd.readouterr().err
    assert main([*arguments(spark_topics, "tier", tmp_path), "--restart"]) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_folders_of_offset_ranges_hold_their_offsets(
    spark: SparkSession, spark_topics: SparkTopics, tmp_path: Path
) -> None:
    folders = ["--partition-by", "offsets", "--offsets-per-folder", "500", "--bytes-per-step", "1g"]
    wanted = [*base_arguments(spark_topics, TRIMMED, tmp_path), *folders, "--isolation", "read_committed"]
    assert main(wanted) == 0

    rows = spark.read.parquet(str(tmp_path))
    outside = "offset < cast(offset_range as bigint) or offset >= cast(offset_range as bigint) + 500"
    assert rows.where(outside).count() == 0
    assert {path.split("/")[1] for path in parquet_files(tmp_path)} >= {f"offset_range={500:020d}"}
    part = report(tmp_path)["partitions"][0]
    assert (part["start_offset"], part["offsets_without_row"]) == (TRIMMED_AT, 0)
    assert part["rows"] == rows.count() == part["end_offset"] - TRIMMED_AT


@pytest.mark.parametrize("source", ["kafka", "tail"])
def test_transactions_headers_and_bounds_are_as_from_the_broker(
    spark: SparkSession, spark_topics: SparkTopics, tmp_path: Path, source: str
) -> None:
    """Given committed reads with headers up to the log's end, when backfilled, then the broker's rows, and a report
    whose offsets add up: each is a row, or has none."""
    through = ["--bootstrap", spark_topics.tidegate.bootstrap_servers]
    how = ["--source", "kafka", *through] if source == "kafka" else ["--tail", "kafka", *through]
    wanted = base_arguments(spark_topics, TRANSACTIONAL, tmp_path)
    assert main([*wanted, *how, "--isolation", "read_committed", "--include-headers"]) == 0

    told = report(tmp_path)
    (part,) = told["partitions"]
    expected = read_kafka(
        spark, spark_topics.cluster.bootstrap_servers, TRANSACTIONAL, {"kafka.isolation.level": "read_committed"}
    )
    got = spark.read.parquet(str(tmp_path))
    assert "headers" in got.columns
    assert part["end_offset"] - part["start_offset"] == part["rows"] + part["offsets_without_row"]
    assert told["rows"] == part["rows"] == got.count()
    assert part["end_offset"] == spark_topics.topics[TRANSACTIONAL].offsets[0].high_watermark
    same_rows(expected, got)


def test_what_is_written_must_be_what_was_asked_for(spark: SparkSession, tmp_path: Path) -> None:
    """Given a topic that has rows below the offsets of the plan, when a step is counted, then the job ends there."""
    from pipeline.jobs import backfill, job_folder

    rows = spark.range(10, 20).selectExpr("cast(0 as int) partition", "id offset", "date'2026-01-01' date")
    rows.write.parquet(str(tmp_path / "_tidegate/staging/step-000000"))
    folder = job_folder.JobFolder(spark, str(tmp_path))
    for start, end, told in ((11, 20, "from 10 to 19"), (10, 19, "from 10 to 19"), (0, 0, "partitions")):
        step = Step(0, (OffsetRange(0, start, end),) if end else (OffsetRange(1, 0, 5),))
        with pytest.raises(backfill.BackfillError, match=told):
            backfill.count_written(spark, folder, "_tidegate/staging/step-000000", step)


@pytest.mark.long
@pytest.mark.parametrize("source", ["tier", "kafka"])
def test_a_process_that_is_killed_goes_on(
    spark: SparkSession, spark_topics: SparkTopics, tmp_path: Path, source: str
) -> None:
    """Given `python -m pipeline backfill`, when it is killed in a step and run again, then nothing tells the two."""
    whole, cut = tmp_path / "whole", tmp_path / "cut"

    def command(out: Path) -> list[str]:
        jars = ",".join(str(path) for path in sorted(SPARK_JARS.glob("*.jar")))
        extra = ["--master", "local[2]", "--conf", f"spark.jars={jars}", "--conf", "spark.ui.enabled=false"]
        wanted = arguments(spark_topics, source, out, topic=WIDE, bytes_per_step=1 << 20)
        return [sys.executable, "-m", "pipeline", *wanted, *extra]

    subprocess.run(command(whole), cwd=ROOT, check=True, timeout=CUT_OFF_S_MAX * 2)
    killed = subprocess.Popen(command(cut), cwd=ROOT, start_new_session=True)
    try:
        wait_until(lambda: len(done_steps(cut)) >= 2, "two steps", timeout_s=CUT_OFF_S_MAX)
    finally:
        os.killpg(killed.pid, signal.SIGKILL)
        killed.wait()
    assert 2 <= len(done_steps(cut)) < report(whole)["steps"]

    subprocess.run(command(cut), cwd=ROOT, check=True, timeout=CUT_OFF_S_MAX * 2)

    assert parquet_files(cut) == parquet_files(whole)
    assert report(cut) == report(whole)
    same_rows(spark.read.parquet(str(whole)), spark.read.parquet(str(cut)))


@pytest.mark.long
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_process_that_is_asked_to_end_says_so(
    spark_topics: SparkTopics, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    wanted = arguments(spark_topics, "tier", tmp_path / "out", topic=WIDE, bytes_per_step=1 << 19)
    command = [sys.executable, "-m", "pipeline", *wanted, "--master", "local[2]", "--conf", "spark.ui.enabled=false"]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: len(done_steps(tmp_path / "out")) >= 1, "a step", timeout_s=CUT_OFF_S_MAX)
        process.send_signal(number)
        _, told = process.communicate(timeout=CUT_OFF_S_MAX)
    finally:
        process.kill()
    assert process.returncode == code, told
    assert "the same command goes on" in told
    assert "Traceback" not in told


def base_arguments(topics: SparkTopics, topic: str, out: Path) -> list[str]:
    config = str(topics.tidegate.process.properties_path)
    return ["backfill", "--config", config, "--topic", topic, "--output", str(out)]


def arguments(
    topics: SparkTopics, source: str, out: Path, *, topic: str = PLAIN, bytes_per_step: int | None = None
) -> list[str]:
    """STEPS steps of all that the tier has of a topic; of PLAIN a bit less, up to `ends_of`."""
    size = bytes_per_step or -(-topics.topics[topic].tier_bytes // STEPS)
    through = ["--source", "kafka", "--bootstrap", topics.tidegate.bootstrap_servers] if source == "kafka" else []
    bounds = ["--ending-offsets", json.dumps({topic: ends_of(topics)})] if topic == PLAIN else []
    return [*base_arguments(topics, topic, out), "--bytes-per-step", str(size), *through, *bounds]


def ends_of(topics: SparkTopics) -> dict[str, int]:
    """Of PLAIN: inside a segment, and where the tier ends."""
    return {"0": 1003, "1": topics.topics[PLAIN].offsets[1].latest_tiered_offset + 1}


def job_of(wanted: list[str]) -> BackfillJob:
    job = prepare(parser().parse_args(wanted))
    assert isinstance(job, BackfillJob)
    return job


def run(spark: SparkSession, job: BackfillJob, like: Path, *, after: int) -> None:
    """The job, that ends when so many steps are done; its range and topic are those of a finished one."""
    topic_id = str(json.loads((like / "_tidegate/plan.json").read_text())["topic_id"])

    def on_step(_step: Step, _report: Mapping[str, Any], done: int, _total: int) -> None:
        if done == after:
            raise CutOff

    run_backfill(spark, job.options, lambda: ranges_of(like), on_step, find_topic_id=lambda: topic_id)


def ranges_of(out: Path) -> BackfillRange:
    """What a finished job has found there is, as far as its plan tells: the same steps again."""
    parts = report(out)["partitions"]
    ranges = tuple(OffsetRange(part["partition"], part["start_offset"], part["end_offset"]) for part in parts)
    plan = json.loads((out / "_tidegate/plan.json").read_text())
    return BackfillRange(ranges, len(plan["steps"]) * int(plan["bytes_per_step"]))


def leave_half_a_step(out: Path) -> None:
    """What a job leaves that is killed while it moves the files of its second step."""
    some = next(out.glob("date=*/step-000000-*.parquet"))
    (some.parent / "step-000001-00000.parquet").write_bytes(some.read_bytes())
    (some.parent / "step-000001-00077.parquet").write_bytes(some.read_bytes())
    (out / "_tidegate/staging/step-000001/date=2020-01-01").mkdir(parents=True)
    (out / "_tidegate/staging/step-000001/date=2020-01-01/part-0.parquet").write_bytes(b"cut o")


def done_steps(out: Path) -> list[str]:
    return sorted(path.name for path in (out / "_tidegate/steps").glob("step-??????.json"))


def parquet_files(out: Path) -> list[str]:
    return sorted(str(path.relative_to(out)) for path in out.rglob("*.parquet"))


def report(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "_tidegate/report.json").read_text())
    del found["seconds"]
    return found


def same_rows(one: DataFrame, other: DataFrame) -> None:
    other = other.select(*one.columns)
    assert one.count() == other.count() > 0
    assert one.exceptAll(other).count() == other.exceptAll(one).count() == 0
