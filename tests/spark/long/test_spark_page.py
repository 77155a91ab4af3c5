"""docs/spark.md: every block of it is run as it stands, but for addresses, paths and the topic, or says here why not.

A new block needs an entry in RUNS or in NOT_RUN. Blocks of Python and SQL run in the session of the tests, commands as
processes: what starts a Spark of its own is long, and its command line alone is looked at otherwise.
"""

import os
import subprocess
import sys

import pytest

from tests.spark.test_spark_page import (
    BACKFILL,
    COMMAND_S_MAX,
    JAAS,
    JOBS,
    KAFKA,
    ON_A_CLUSTER,
    PAGE,
    SIGNED_IN,
    SIGNED_IN_JOB,
    SUBMITTED,
    Reader,
)
from tests.support.needs import ROOT, SPARK_JARS
from tests.support.secured_kafka import READ, password, secured_kafka
from tests.support.spark_cluster import SparkCluster
from tests.support.spark_topics import PLAIN
from tools.spark_package.build import Built

pytestmark = [pytest.mark.needs("spark", "java", "kafka"), pytest.mark.integration]
OF_A_JOB = "from pyspark.sql import SparkSession\nspark = SparkSession.builder.getOrCreate()\n"
COUNTED = '\nprint("ROWS", rows.count())\n'


@pytest.mark.parametrize("number", range(2), ids=["backfill", "audit"])
def test_jobs_are_done_by_their_commands(reader: Reader, number: int) -> None:
    found = reader.commands(JOBS)
    assert found[0] == reader.commands(BACKFILL)[0]
    assert [words[2] for words in found] == ["backfill", "audit"]
    program, *words = found[number]
    assert program == "tidegate"
    done = subprocess.run(
        [sys.executable, "-m", "tidegate", *words],
        cwd=reader.folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=COMMAND_S_MAX,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    if words[1] == "backfill":
        assert reader.spark.read.parquet(f"{reader.folder}/lake/orders").count() == reader.tiered_rows


def test_the_kafka_source_is_submitted(reader: Reader, spark_cluster: SparkCluster) -> None:
    job = spark_cluster.folder / "user" / "job.py"
    job.write_text(OF_A_JOB + reader.text(KAFKA) + COUNTED)
    done = submitted(spark_cluster, reader.commands(SUBMITTED))
    assert f"ROWS {reader.topics.topics[PLAIN].produced}" in done.stdout, done.stderr[-3000:]


def test_a_job_is_submitted(reader: Reader, spark_cluster: SparkCluster, spark_package: Built) -> None:
    own = {"dist/tidegate_spark_job.py": spark_package.launcher, "spark://host:7077": spark_cluster.master_url}
    zips = {word: spark_package.zip for word in PAGE[ON_A_CLUSTER].body.split() if word.endswith(".zip")}
    assert len(zips) == 1
    commands = [[str({**own, **zips}.get(word, word)) for word in words] for words in reader.commands(ON_A_CLUSTER)]
    done = submitted(spark_cluster, commands)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert reader.spark.read.parquet(f"{reader.folder}/lake/orders").count() == reader.tiered_rows


def test_a_job_signs_in_by_a_jaas_file(reader: Reader, spark_cluster: SparkCluster) -> None:
    """At the broker itself, which Tidegate passes the sign-in on to; without TLS, whose authority is the test's own."""
    user = spark_cluster.folder / "user"
    (user / "kafka-jaas.conf").write_text(PAGE[JAAS].body)
    assert f'password="{password("reader")}"' in PAGE[JAAS].body
    with secured_kafka() as secured:
        secured.allow("reader", READ, secured.topic.name)
        job = PAGE[SIGNED_IN_JOB].body.replace("tidegate.example.org:19092", secured.address("SASL_PLAINTEXT"))
        job = job.replace("SASL_SSL", "SASL_PLAINTEXT").replace('"orders"', f'"{secured.topic.name}"')
        job = job.replace(".load()", '.option("startingOffsets", "earliest").load()')
        (user / "signed_in_job.py").write_text(OF_A_JOB + job + COUNTED)
        done = submitted(spark_cluster, reader.commands(SIGNED_IN))
        assert f"ROWS {secured.topic.records}" in done.stdout, done.stderr[-3000:]


def submitted(cluster: SparkCluster, commands: list[list[str]]) -> subprocess.CompletedProcess[str]:
    """By the only command; what it names by coordinates is there already."""
    ((program, *words),) = commands
    assert program == "spark-submit"
    jars = ",".join(str(path) for path in sorted(SPARK_JARS.glob("*.jar")))
    if "--packages" in words:
        at = words.index("--packages")
        assert words[at + 1] == "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0"
        words[at : at + 2] = ["--jars", jars]
    return cluster.spark_submit(*words)
