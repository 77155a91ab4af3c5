"""`backfill --table` by the commands of docs/spark.md, over a real topic: the table has what the source reads."""

import itertools
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipeline.jobs.command_line import main
from tests.support.needs import ROOT
from tests.support.page_blocks import blocks_of
from tests.support.source_rows import assert_same_rows, read_tier
from tests.support.spark_topics import PLAIN, SparkTopics

pytestmark = [pytest.mark.needs("spark"), pytest.mark.needs("tables"), pytest.mark.usefixtures("logs_stay_as_they_are")]
PAGE = blocks_of((ROOT / "docs" / "spark.md").read_text("utf-8"))
OF_A_NEW_SPARK = ("spark.jars.packages", "spark.sql.extensions")
"""What the session of all tests has from its start."""
TO = {PLAIN: {"0": 500, "1": 17}}


@pytest.fixture
def block() -> str:
    return "Into tables 1"


@pytest.fixture
def command(block: str, spark: SparkSession, spark_topics: SparkTopics, tmp_path: Path) -> Iterator[list[str]]:
    """A block's command as its reader has it; its settings are taken back."""
    text = PAGE[block].body.replace("\\\n", " ").replace("s3a://lake", tmp_path.as_uri())
    text = text.replace("tidegate.properties", str(spark_topics.tidegate.process.properties_path))
    words = shlex.split(re.sub(r"--topic orders\b", f"--topic {PLAIN}", text))
    assert words[:2] == ["tidegate", "spark"]
    settings = {
        key: value
        for name, pair in itertools.pairwise(words)
        if name == "--conf"
        for key, value in [pair.split("=", 1)]
    }
    # Delta cuts a table's log into 50 tasks.
    own = {"spark.databricks.delta.snapshotPartitions": "1"}
    own |= {key: value for key, value in settings.items() if key not in OF_A_NEW_SPARK}
    try:
        yield [
            *words[2 : words.index("--conf")],
            *(part for key, value in own.items() for part in ("--conf", f"{key}={value}")),
        ]
    finally:
        for name in own:
            spark.conf.unset(name)


def test_a_topic_goes_into_a_table_day_by_day(
    spark: SparkSession, spark_topics: SparkTopics, command: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    """Given a first run up to some offsets, when the command runs again and again, then every record is there once."""
    name = command[command.index("--table") + 1]
    assert main([*command, "--to", json.dumps(TO), "--steps-at-once", "1"]) == 0
    told = capfd.readouterr()
    assert f"created {name}" in told.err
    assert "run 1: " in told.out
    assert main([*command, "--include-headers"]) == 2
    assert "holds another backfill" in capfd.readouterr().err
    assert main(command) == 0
    assert "run 2: " in capfd.readouterr().out
    assert main(command) == 0
    assert "nothing new since run 2" in capfd.readouterr().out
    rows = spark.table(name).drop("date")
    assert_same_rows(rows, read_tier(spark, spark_topics, PLAIN, {"includeHeaders": "false"}))
