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
"""For a job that fails: what Java and Spark say before they know how much they are to say."""


def job(cluster: SparkCluster, package: Built, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """A job of ours, as docs/spark.md says."""
    return cluster.spark_submit("--py-files", package.zip, package.launcher, *arguments)


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
