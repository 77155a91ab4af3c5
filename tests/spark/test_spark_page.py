"""docs/spark.md: every block of it is run as it stands, but for addresses, paths and the topic, or says here why not.

A new block needs an entry in RUNS or in NOT_RUN. Blocks of Python and SQL run in the session of the tests, commands as
processes: what starts a Spark of its own is long, and its command line alone is looked at otherwise.
"""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from pipeline.jobs.arguments import parser
from tests.support.kafka import fresh_name
from tests.support.needs import JARS, ROOT, SPARK_JARS
from tests.support.page_blocks import blocks_of
from tests.support.secured_kafka import READ, password, secured_kafka
from tests.support.spark_cluster import SparkCluster
from tests.support.spark_topics import PLAIN, SparkTopics
from tools.spark_package import shipped
from tools.spark_package.build import Built

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = [pytest.mark.needs("spark", "java", "kafka"), pytest.mark.integration]

PAGE = blocks_of((ROOT / "docs" / "spark.md").read_text("utf-8"))
KAFKA, SUBMITTED = "Spark's Kafka source, pointed at Tidegate 1", "Spark's Kafka source, pointed at Tidegate 2"
SOURCE, OTHER_SOURCE, VIEW, TABLE = "The tier as a source 1", "The tier as a source 2", "SQL 1", "SQL 2"
STREAM, GROUP, ENDED = "Streams 1", "Lag and progress 1", "Lag and progress 2"
JOBS, ON_A_CLUSTER = "Jobs 1", "On a cluster 1"
BACKFILL, AGAIN_BY_STREAM = "Backfill into a folder 1", "Backfill into a folder 4"
JAAS, SIGNED_IN, SIGNED_IN_JOB = "Signing in 1", "Signing in 2", "Signing in 3"
HERE = {KAFKA, SOURCE, OTHER_SOURCE, VIEW, TABLE, STREAM, GROUP, ENDED, JOBS, BACKFILL, AGAIN_BY_STREAM}
LONG = {SUBMITTED, JAAS, SIGNED_IN, SIGNED_IN_JOB, ON_A_CLUSTER, JOBS}
NOT_RUN: Mapping[str, str] = {
    "What to install 1": "the fixture spark_package builds the same, into a folder of the tests",
    "What to install 2": "tests/spark/test_spark_package.py installs the wheel, without asking a registry",
    "Values with a schema 1": "tests/spark/test_values.py runs it, with a registry",
    "Backfill into a folder 2": "what a run prints",
    "Backfill into a folder 3": "tests/spark/test_backfill_s3a.py runs it, with jars and a store that are here",
    "Into tables 1": "tests/spark/test_backfill_table.py runs it, with jars that are here",
    "Into tables 2": "tests/spark/test_backfill_table.py runs it, with jars that are here",
    "Lag and progress 3": "tests/integration/test_group_offsets.py grants them, at a broker that has an authorizer",
}
"""Why not here; a block that is run elsewhere says where."""

GROUP_TOOL = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
COMMAND_S_MAX = 300.0
OF_A_JOB = "from pyspark.sql import SparkSession\nspark = SparkSession.builder.getOrCreate()\n"
COUNTED = '\nprint("ROWS", rows.count())\n'


@dataclass(frozen=True, slots=True)
class Reader:
    """Who follows the page, with addresses and paths of their own: those of the tests."""

    spark: SparkSession
    topics: SparkTopics
    folder: Path
    group: str = field(default_factory=lambda: fresh_name("spark-page"))
    trigger: str = 'processingTime="0 seconds"'

    @property
    def own(self) -> dict[str, str]:
        config = self.topics.tidegate.process.properties_path
        return {
            r"import tidegate_spark\b": "import tools.spark_package.shipped as tidegate_spark",
            r"\btidegate\.properties\b": str(config),
            r"\btidegate\.example\.org:19092\b": self.topics.tidegate.bootstrap_servers,
            r"\bbroker-1:9092\b": self.topics.cluster.bootstrap_servers,
            r"s3a://lake\b": (self.folder / "lake").as_uri(),
            r"(?<![\w/])lake/": f"{self.folder}/lake/",
            r"\borders-to-lake\b": self.group,
            r"(?<=[\"' =])orders(?=[\"' ]|$)": PLAIN,
            r"\bprocessingTime=\"30 seconds\"": self.trigger,
        }

    def text(self, name: str) -> str:
        body = PAGE[name].body
        for pattern, own in self.own.items():
            body = re.sub(pattern, own.replace("\\", r"\\"), body, flags=re.MULTILINE)
        return body

    def python(self, name: str, **known: object) -> dict[str, Any]:
        """The names that a block leaves, `known` ones among them."""
        names: dict[str, Any] = {"spark": self.spark, **known}
        exec(compile(self.text(name), name, "exec"), names)
        return names

    def sql(self, name: str) -> list[DataFrame]:
        return [self.spark.sql(statement) for statement in self.text(name).split(";") if statement.strip()]

    def commands(self, name: str) -> list[list[str]]:
        lines = self.text(name).replace("\\\n", " ").splitlines()
        return [shlex.split(line) for line in lines if line and not line.startswith("#")]

    @property
    def tiered_rows(self) -> int:
        return sum(each.latest_tiered_offset + 1 for each in self.topics.topics[PLAIN].offsets.values())


@pytest.fixture
def reader(spark: SparkSession, spark_topics: SparkTopics, tmp_path: Path) -> Reader:
    return Reader(spark, spark_topics, tmp_path)


def test_every_block_is_run_or_says_why_not() -> None:
    assert {*PAGE} == HERE | LONG | {*NOT_RUN}
    assert not (HERE | LONG) & {*NOT_RUN}


def test_both_sources_read_the_topic(reader: Reader) -> None:
    assert reader.python(KAFKA)["rows"].count() == reader.topics.topics[PLAIN].produced
    assert reader.python(SOURCE)["rows"].count() == reader.tiered_rows
    assert reader.python(OTHER_SOURCE)["TidegateDataSource"].name() == "tidegate"


def test_sql_reads_the_topic(reader: Reader) -> None:
    try:
        rows = reader.sql(VIEW)[-1].collect()
        assert sum(row[1] for row in rows) == reader.tiered_rows
        assert reader.sql(TABLE)[-1].collect()[0][0] == reader.tiered_rows
    finally:
        reader.spark.catalog.dropTempView("orders_view")
        reader.spark.sql("DROP TABLE IF EXISTS orders_table")


def test_a_stream_reads_the_topic_and_kafkas_tool_says_how_far(reader: Reader) -> None:
    query: StreamingQuery = reader.python(STREAM)["query"]
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    assert reader.spark.read.parquet(f"{reader.folder}/lake/orders-stream").count() == reader.tiered_rows
    assert shown_by_the_tool(reader) == reader.tiered_rows


def test_a_stream_that_is_run_again_has_each_record_once(reader: Reader) -> None:
    for _ in range(2):
        reader.python(AGAIN_BY_STREAM)
        assert reader.spark.read.parquet(f"{reader.folder}/lake/orders-by-stream").count() == reader.tiered_rows


def test_offsets_of_a_query_that_has_ended_are_committed(reader: Reader) -> None:
    """Given a query that takes what there is and ends, when its offsets are committed, then all of them."""
    query: StreamingQuery = replace(reader, trigger="availableNow=True").python(STREAM)["query"]
    reader.python(ENDED, query=query, tidegate_spark=shipped)
    assert shown_by_the_tool(reader) == reader.tiered_rows


def shown_by_the_tool(reader: Reader) -> int:
    """Offsets that `kafka-consumer-groups.sh` has for the group, of both partitions together."""
    ((program, *arguments),) = reader.commands(GROUP)
    assert program == "kafka-consumer-groups.sh"
    java = ["java", "-XX:TieredStopAtLevel=1", "-Xmx128m", "-cp", f"{JARS}/*", GROUP_TOOL]
    done = subprocess.run([*java, *arguments], capture_output=True, text=True, check=True, timeout=COMMAND_S_MAX)
    found = re.findall(rf"^{reader.group} +{PLAIN} +\d+ +(\d+) ", done.stdout, re.MULTILINE)
    assert len(found) == 2, done.stdout
    return sum(map(int, found))


def test_command_lines_are_those_that_jobs_have(reader: Reader) -> None:
    for block in PAGE.values():
        for words in reader.commands(block.name) if block.language == "sh" else ():
            program = next((word for word in words if word == "pipeline" or word.endswith("_spark_job.py")), None)
            if program is not None:
                parser().parse_args(words[words.index(program) + 1 :])


@pytest.mark.long
@pytest.mark.parametrize("number", range(3), ids=["backfill", "audit", "stats"])
def test_jobs_are_done_by_their_commands(reader: Reader, number: int) -> None:
    found = reader.commands(JOBS)
    assert found[0] == reader.commands(BACKFILL)[0]
    assert [words[3] for words in found] == ["backfill", "audit", "stats"]
    python, *words = found[number]
    assert python == "python"
    done = subprocess.run(
        [sys.executable, *words],
        cwd=reader.folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=COMMAND_S_MAX,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    if words[2] == "backfill":
        assert reader.spark.read.parquet(f"{reader.folder}/lake/orders").count() == reader.tiered_rows
    assert (reader.folder / "orders.png").exists() == (words[2] == "stats")


@pytest.mark.long
def test_the_kafka_source_is_submitted(reader: Reader, spark_cluster: SparkCluster) -> None:
    job = spark_cluster.folder / "user" / "job.py"
    job.write_text(OF_A_JOB + reader.text(KAFKA) + COUNTED)
    done = submitted(spark_cluster, reader.commands(SUBMITTED))
    assert f"ROWS {reader.topics.topics[PLAIN].produced}" in done.stdout, done.stderr[-3000:]


@pytest.mark.long
def test_a_job_is_submitted(reader: Reader, spark_cluster: SparkCluster, spark_package: Built) -> None:
    own = {"dist/tidegate_spark_job.py": spark_package.launcher, "spark://host:7077": spark_cluster.master_url}
    zips = {word: spark_package.zip for word in PAGE[ON_A_CLUSTER].body.split() if word.endswith(".zip")}
    assert len(zips) == 1
    commands = [[str({**own, **zips}.get(word, word)) for word in words] for words in reader.commands(ON_A_CLUSTER)]
    done = submitted(spark_cluster, commands)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert reader.spark.read.parquet(f"{reader.folder}/lake/orders").count() == reader.tiered_rows


@pytest.mark.long
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
