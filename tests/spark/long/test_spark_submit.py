"""Jobs by spark-submit, on a standalone Spark whose Python has none of our code and none of our libraries.

The user's program brings modules of its own that are called like our packages.
"""

import re
import subprocess
from pathlib import Path

import pytest

from tests.spark.test_spark_submit import troubles
from tests.support.source_rows import damaged_tier
from tests.support.spark_cluster import SparkCluster
from tests.support.spark_topics import PLAIN, SparkTopics
from tools.spark_package.build import Built

pytestmark = [pytest.mark.needs("spark", "java", "kafka"), pytest.mark.integration]
SPARKS_LINES_MAX = 20
"""Of a job that fails: what Java and Spark say before they know how much they are to say."""


def job(cluster: SparkCluster, package: Built, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """A job of ours, as docs/spark.md says."""
    return cluster.spark_submit("--py-files", package.zip, package.launcher, *arguments)


def rows_of(folder: Path) -> dict[int, list[int]]:
    """The offsets that a backfill wrote, by partition, in order."""
    from pyarrow import dataset

    table = dataset.dataset(folder, format="parquet", partitioning="hive").to_table(["partition", "offset"])
    found: dict[int, list[int]] = {}
    for partition, offset in zip(*(column.to_pylist() for column in table.columns), strict=True):
        found.setdefault(partition, []).append(offset)
    return {partition: sorted(offsets) for partition, offsets in found.items()}


def test_a_backfill_writes_every_offset_once_and_a_second_run_adds_nothing(
    spark_cluster: SparkCluster, spark_package: Built, spark_topics: SparkTopics, config: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    arguments = ("backfill", "--config", config, "--topic", PLAIN, "--output", output.as_uri())
    offsets = spark_topics.topics[PLAIN].offsets
    wanted = {partition: list(range(found.latest_tiered_offset + 1)) for partition, found in offsets.items()}
    for _ in range(2):
        done = job(spark_cluster, spark_package, *arguments)
        assert done.returncode == 0, troubles(done)
        assert rows_of(output) == wanted


@pytest.mark.parametrize(("name", "said"), [("audit", "no findings"), ("stats", "What the tier serves")])
def test_a_job_over_the_tier_is_done_on_executors_and_finds_nothing_wrong(
    spark_cluster: SparkCluster, spark_package: Built, config: Path, tmp_path: Path, name: str, said: str
) -> None:
    before = {*(spark_cluster.folder / "work").iterdir()}
    done = job(spark_cluster, spark_package, name, "--config", config, "--topic", PLAIN, "--report", tmp_path.as_uri())
    assert done.returncode == 0, troubles(done)
    assert said in done.stdout
    (application,) = {*(spark_cluster.folder / "work").iterdir()} - before
    assert [*application.glob(f"*/{spark_package.zip.name}")]


def test_the_exit_code_of_a_job_is_that_of_spark_submit(
    spark_cluster: SparkCluster, spark_package: Built, tmp_path: Path
) -> None:
    nowhere = tmp_path / "nowhere.properties"
    done = job(spark_cluster, spark_package, "stats", "--config", nowhere, "--topic", PLAIN)
    assert done.returncode == 2, troubles(done)
    assert str(nowhere) in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("flags", [(), ("--verbose",)], ids=["quiet", "verbose"])
def test_the_last_line_of_a_failed_job_is_its_cause(
    spark_cluster: SparkCluster, spark_package: Built, spark_topics: SparkTopics, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    """It was somewhere in 603 lines of Spark's, and was cut off in ours. Given a bit flipped in one object, when a job
    fails over it, then its last line says object, position and cause, and what Spark says of it is asked for."""
    config = damaged_tier(spark_topics, PLAIN, tmp_path)
    output = (tmp_path / "out").as_uri()
    done = job(
        spark_cluster, spark_package, "backfill", "--config", config, "--topic", PLAIN, "--output", output, *flags
    )
    assert done.returncode == 1, troubles(done)
    told = done.stderr.splitlines()
    assert re.fullmatch(rf"tidegate: segment {PLAIN}-0 \S+: batch at \d+: its CRC is wrong", told[-1]), troubles(done)
    assert ("Lost task" in done.stderr) == bool(flags)
    assert ("Traceback" in done.stdout + done.stderr) == bool(flags)
    assert ("--verbose shows" in done.stdout) != bool(flags)
    assert flags or len(told) < SPARKS_LINES_MAX, done.stderr
