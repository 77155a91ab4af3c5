"""docs/spark.md: every block of it is run as it stands, but for addresses, paths and the topic, or says here why not.

A new block needs an entry in RUNS or in NOT_RUN. Blocks of Python and SQL run in the session of the tests, commands as
processes: what starts a Spark of its own is long, and its command line alone is looked at otherwise.
"""

import re
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from pipeline.jobs.arguments import parser
from tests.support.kafka import fresh_name
from tests.support.needs import JARS, ROOT
from tests.support.page_blocks import blocks_of
from tests.support.spark_topics import PLAIN, SparkTopics

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = [pytest.mark.needs("spark", "java", "kafka"), pytest.mark.integration]

PAGE = blocks_of((ROOT / "docs" / "spark.md").read_text("utf-8"))
KAFKA, SUBMITTED = "Spark's Kafka source, pointed at Tidegate 1", "Spark's Kafka source, pointed at Tidegate 2"
SOURCE, VIEW, TABLE = "The tier as a source 1", "SQL 1", "SQL 2"
STREAM, GROUP, ENDED = "Streams 1", "Lag and progress 1", "Lag and progress 2"
JOBS, ON_A_CLUSTER = "Jobs 1", "On a cluster 1"
BACKFILL = "Backfill into a folder 1"
JAAS, SIGNED_IN, SIGNED_IN_JOB = "Signing in 1", "Signing in 2", "Signing in 3"
HERE = {KAFKA, SOURCE, VIEW, TABLE, STREAM, GROUP, ENDED, JOBS, BACKFILL}
LONG = {SUBMITTED, JAAS, SIGNED_IN, SIGNED_IN_JOB, ON_A_CLUSTER, JOBS}
NOT_RUN: Mapping[str, str] = {
    "What to install 1": "the fixture spark_package builds the same, into a folder of the tests",
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


def test_offsets_of_a_query_that_has_ended_are_committed(reader: Reader) -> None:
    """Given a query that takes what there is and ends, when its offsets are committed, then all of them."""
    query: StreamingQuery = replace(reader, trigger="availableNow=True").python(STREAM)["query"]
    reader.python(ENDED, query=query)
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
            program = next((word for word in words if word == "spark" or word.endswith("_spark_job.py")), None)
            if program is not None:
                parser().parse_args(words[words.index(program) + 1 :])
