"""Jobs by spark-submit, on a standalone Spark whose Python has none of our code and none of our libraries.

The user's program brings modules of its own that are called like our packages.
"""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.source_rows import damaged_tier
from tests.support.spark_cluster import SparkCluster
from tests.support.spark_package import USERS_NAMES, users_modules
from tests.support.spark_topics import PLAIN, SparkTopics
from tools.spark_package.build import NAME, Built

pytestmark = [pytest.mark.needs("spark", "java", "kafka"), pytest.mark.integration]

SPARKS_LINES_MAX = 20
"""Of a job that fails: what Java and Spark say before they know how much they are to say."""

USERS_PROGRAM = """
import json, os, sys
import metrics, pipeline, protocol, proxy, storage
from pyspark.sql import SparkSession, functions
import tidegate_spark
from tidegate_spark import TidegateDataSource
from tidegate_spark.pipeline.tasks import ReadOptions

config, topic = sys.argv[1:]
spark = SparkSession.builder.appName("a user's program").getOrCreate()
tidegate_spark.register(spark)

def on_executor(options):
    import metrics, pipeline, protocol, proxy, storage
    import tidegate_spark.storage.model
    return {
        "users": [metrics.WHOSE, pipeline.WHOSE, protocol.WHOSE, proxy.WHOSE, storage.WHOSE],
        "unpickled": type(options).__module__,
        "ours": tidegate_spark.__file__,
        "libraries": sys.path[-1],
    }

rows = spark.read.format("tidegate").option("config", config).option("subscribe", topic).load()
grouped = rows.groupBy("topic", "partition").agg(
    functions.count("*"), functions.min("offset"), functions.max("offset"), functions.sum(functions.length("value"))
)
print("RESULT " + json.dumps({
    "executors": spark.sparkContext.parallelize([ReadOptions(columns=("key",))] * 4, 4).map(on_executor).collect(),
    "driver": [metrics.WHOSE, pipeline.WHOSE, protocol.WHOSE, proxy.WHOSE, storage.WHOSE],
    "source": TidegateDataSource.__module__,
    "partitions": sorted([list(row) for row in grouped.collect()]),
}))
"""


@pytest.fixture
def config(spark_topics: SparkTopics) -> Path:
    """What a user gives to `serve` and to Spark alike."""
    return spark_topics.tidegate.process.properties_path


def result(cluster: SparkCluster, *arguments: str | Path) -> Any:
    """What a program printed behind RESULT."""
    done = cluster.spark_submit(*arguments)
    assert done.returncode == 0, troubles(done)
    (line,) = re.findall(r"^RESULT (.*)$", done.stdout, re.MULTILINE)
    return json.loads(line)


def test_a_users_program_reads_the_tier_beside_its_own_modules_of_our_names(
    spark_cluster: SparkCluster, spark_package: Built, spark_topics: SparkTopics, config: Path, tmp_path: Path
) -> None:
    users = users_modules(tmp_path / "users")
    program = tmp_path / "program.py"
    program.write_text(USERS_PROGRAM)
    files = ",".join(str(path) for path in (spark_package.zip, *sorted(users.glob("*.py"))))
    found = result(spark_cluster, "--py-files", files, program, config, PLAIN)

    the_users = ["the user's"] * len(USERS_NAMES)
    assert found["driver"] == the_users
    assert found["source"] == f"{NAME}.pipeline.data_source"
    for executor in found["executors"]:
        assert executor["users"] == the_users
        assert executor["unpickled"] == f"{NAME}.pipeline.tasks"
        assert spark_package.zip.name in executor["ours"]
        assert str(spark_cluster.folder / "tmp") in executor["libraries"]
    wanted = [
        [PLAIN, partition, offsets.latest_tiered_offset + 1, 0, offsets.latest_tiered_offset]
        for partition, offsets in sorted(spark_topics.topics[PLAIN].offsets.items())
    ]
    assert [partition[:5] for partition in found["partitions"]] == wanted
    assert all(value_bytes > 0 for *_, value_bytes in found["partitions"])


def troubles(done: subprocess.CompletedProcess[str]) -> str:
    """What a program said, without what Spark tells anyway."""
    lines = [line for line in done.stderr.splitlines() if " INFO " not in line]
    return "\n".join([done.stdout, *lines[-60:]])


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


@pytest.mark.long
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


@pytest.mark.long
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


@pytest.mark.long
def test_the_exit_code_of_a_job_is_that_of_spark_submit(
    spark_cluster: SparkCluster, spark_package: Built, tmp_path: Path
) -> None:
    nowhere = tmp_path / "nowhere.properties"
    done = job(spark_cluster, spark_package, "stats", "--config", nowhere, "--topic", PLAIN)
    assert done.returncode == 2, troubles(done)
    assert str(nowhere) in done.stderr.splitlines()[-1]


@pytest.mark.long
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
