"""`backfill` with a real Spark: the rows that the broker has, run after run, cut off or not; folders; refusals."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.test_backfill_job import CUT_OFF_S_MAX, arguments, done_steps, parquet_files, report, same_rows
from tests.support.needs import ROOT, SPARK_JARS
from tests.support.spark_topics import WIDE, SparkTopics
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("logs_stay_as_they_are")
KILLS = 2


@pytest.mark.parametrize("source", ["tier", "kafka"])
def test_a_process_that_is_killed_at_any_moment_goes_on(
    spark: SparkSession, spark_topics: SparkTopics, tmp_path: Path, source: str
) -> None:
    """Given `tidegate spark backfill`, when it is killed at drawn moments and run again, then nothing tells it from
    one that was not."""
    whole, cut = tmp_path / "whole", tmp_path / "cut"

    def command(out: Path) -> list[str]:
        jars = ",".join(str(path) for path in sorted(SPARK_JARS.glob("*.jar")))
        extra = ["--master", "local[2]", "--conf", f"spark.jars={jars}", "--conf", "spark.ui.enabled=false"]
        wanted = arguments(spark_topics, source, out, topic=WIDE, bytes_per_step=1 << 20)
        return [sys.executable, "-m", "tidegate", "spark", *wanted, *extra]

    subprocess.run(command(whole), cwd=ROOT, check=True, timeout=CUT_OFF_S_MAX * 2)
    count = report(whole)["steps"]
    for moment in sorted(random.Random(source).sample(range(1, len(parquet_files(whole)) - 2), KILLS)):
        kill_at(command(cut), cut, moment)
        assert len(done_steps(cut)) < count

    subprocess.run(command(cut), cwd=ROOT, check=True, timeout=CUT_OFF_S_MAX * 2)

    assert parquet_files(cut) == parquet_files(whole)
    assert report(cut) == report(whole)
    same_rows(spark.read.parquet(str(whole)), spark.read.parquet(str(cut)))


def kill_at(command: list[str], out: Path, files: int) -> None:
    """Run it, and kill it and its JVM when there are so many files."""
    killed = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
    try:
        wait_until(lambda: len(parquet_files(out)) >= files, f"{files} files", timeout_s=CUT_OFF_S_MAX)
    finally:
        os.killpg(killed.pid, signal.SIGKILL)
        killed.wait()
