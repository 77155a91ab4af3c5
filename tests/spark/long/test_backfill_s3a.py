"""`backfill` into `s3a://`, on a real S3 server: by the magic committer, killed in the midst and run again."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.needs import ROOT, S3A_JARS
from tests.support.s3_server import CREDENTIALS, REGION, S3Server
from tests.support.source_rows import assert_same_rows, tier_options
from tests.support.spark_topics import WIDE, SparkTopics
from tests.support.versitygw import versitygw
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("logs_stay_as_they_are")
BUCKET = "lake"
JOB_S_MAX = 240.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[S3Server]:
    (tmp_path / "data" / BUCKET).mkdir(parents=True)
    with versitygw(tmp_path / "data", tmp_path / "gateway") as running:
        yield running


@pytest.mark.needs("versitygw")
@pytest.mark.needs("spark-s3a")
def test_a_killed_backfill_into_s3_goes_on_and_every_record_is_there_once(
    spark: SparkSession, spark_topics: SparkTopics, server: S3Server, tmp_path: Path
) -> None:
    """Given a job of several steps side by side that is killed while one is done and others are not, when it is run
    again, then the bucket has every record once, and nothing of a committer is left."""
    out = tmp_path / "data" / BUCKET / "out"
    command = [sys.executable, "-m", "pipeline", *arguments(spark_topics, server)]
    environ = {
        **os.environ,
        "AWS_ACCESS_KEY_ID": CREDENTIALS.access_key_id,
        "AWS_SECRET_ACCESS_KEY": CREDENTIALS.secret_access_key,
    }
    killed = subprocess.Popen(command, cwd=ROOT, env=environ, start_new_session=True)
    try:
        # What is not committed is nowhere but below the second name.
        wait_until(
            lambda: any(out.glob("_tidegate/steps/*.json")) and any(out.glob("__magic*")),
            "a step is done, and others write",
            timeout_s=JOB_S_MAX,
        )
    finally:
        os.killpg(killed.pid, signal.SIGKILL)
        killed.wait()
    assert not (out / "_tidegate" / "report.json").exists()

    ended = subprocess.run(
        command, cwd=ROOT, env=environ, check=False, timeout=JOB_S_MAX, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    assert "steps were done before" in ended.stderr
    assert "warning: s3a" not in ended.stderr

    rows = spark.read.format("tidegate").options(**tier_options(spark_topics, WIDE, {"includeHeaders": "false"})).load()
    assert_same_rows(rows, spark.read.parquet(str(out)).select(*rows.columns))
    assert not any(out.glob("__magic*"))
    assert not any(out.glob("_temporary"))


def arguments(topics: SparkTopics, server: S3Server) -> list[str]:
    config = str(topics.tidegate.process.properties_path)
    settings = {
        "spark.ui.enabled": "false",
        # Not as spark.jars, which copies each once more: it is half a gigabyte.
        "spark.driver.extraClassPath": f"{S3A_JARS}/*",
        "spark.hadoop.fs.s3a.endpoint": server.endpoint_url,
        "spark.hadoop.fs.s3a.endpoint.region": REGION,
        "spark.hadoop.fs.s3a.path.style.access": "true",
    }
    conf = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    wanted = ["--topic", WIDE, "--output", f"s3a://{BUCKET}/out", "--bytes-per-step", "3m", "--steps-at-once", "2"]
    return ["backfill", "--config", config, "--master", "local[2]", *wanted, "--verify", *conf]
