"""Jobs by spark-submit, on a standalone Spark whose Python has none of our code and none of our libraries.

The user's program brings modules of its own that are called like our packages.
"""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.spark_cluster import SparkCluster
from tests.support.spark_package import USERS_NAMES, users_modules
from tests.support.spark_topics import PLAIN, SparkTopics
from tools.spark_package.build import Built

pytestmark = [pytest.mark.needs("spark", "java", "kafka"), pytest.mark.integration]


USERS_PROGRAM = """
import json, os, sys
import metrics, pipeline, protocol, proxy, storage, table
from pyspark.sql import SparkSession, functions
import tidegate
from tidegate.pipeline.data_source import TidegateDataSource
from tidegate.spark import register
from tidegate.table.tasks import ReadOptions

config, topic = sys.argv[1:]
spark = SparkSession.builder.appName("a user's program").getOrCreate()
register(spark)

def on_executor(options):
    import metrics, pipeline, protocol, proxy, storage, table
    import tidegate.storage.model
    return {
        "users": [each.WHOSE for each in (metrics, pipeline, protocol, proxy, storage, table)],
        "unpickled": type(options).__module__,
        "ours": tidegate.__file__,
        "libraries": sys.path[-1],
    }

rows = spark.read.format("tidegate").option("config", config).option("subscribe", topic).load()
grouped = rows.groupBy("topic", "partition").agg(
    functions.count("*"), functions.min("offset"), functions.max("offset"), functions.sum(functions.length("value"))
)
print("RESULT " + json.dumps({
    "executors": spark.sparkContext.parallelize([ReadOptions(columns=("key",))] * 4, 4).map(on_executor).collect(),
    "driver": [each.WHOSE for each in (metrics, pipeline, protocol, proxy, storage, table)],
    "source": TidegateDataSource.__module__,
    "partitions": sorted([list(row) for row in grouped.collect()]),
}))
"""


@pytest.fixture
def config(spark_topics: SparkTopics) -> Path:
    """Return what a user gives to `serve` and to Spark alike."""
    return spark_topics.tidegate.process.properties_path


def result(cluster: SparkCluster, *arguments: str | Path) -> Any:
    """Return what a program printed behind RESULT."""
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
    assert found["source"] == "tidegate.pipeline.data_source"
    for executor in found["executors"]:
        assert executor["users"] == the_users
        assert executor["unpickled"] == "tidegate.table.tasks"
        assert spark_package.zip.name in executor["ours"]
        assert str(spark_cluster.folder / "tmp") in executor["libraries"]
    wanted = [
        [PLAIN, partition, offsets.latest_tiered_offset + 1, 0, offsets.latest_tiered_offset]
        for partition, offsets in sorted(spark_topics.topics[PLAIN].offsets.items())
    ]
    assert [partition[:5] for partition in found["partitions"]] == wanted
    assert all(value_bytes > 0 for *_, value_bytes in found["partitions"])


def troubles(done: subprocess.CompletedProcess[str]) -> str:
    """Return what a program said, without what Spark tells anyway."""
    lines = [line for line in done.stderr.splitlines() if " INFO " not in line]
    return "\n".join([done.stdout, *lines[-60:]])
