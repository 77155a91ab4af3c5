"""The source on the pyspark after the one that the other tests have: a selection, in a process of its own."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.needs import NEXT_PYSPARK, ROOT
from tests.support.spark_next import END, FIRST
from tests.support.spark_topics import PLAIN, SparkTopics

pytestmark = [pytest.mark.needs("spark", "spark-4.3", "java", "kafka"), pytest.mark.integration]

END_S_MAX = 300


def found_by_next(topics: SparkTopics, folder: Path, parts: str) -> dict[str, Any]:
    config, servers = topics.tidegate.process.properties_path, topics.tidegate.bootstrap_servers
    environ = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
    environ |= {"PYTHONPATH": f"{NEXT_PYSPARK}{os.pathsep}{ROOT}", "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.spark_next", folder, config, servers, PLAIN, parts],
        cwd=folder,
        env={**environ, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=END_S_MAX,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    sys.stderr.write(done.stderr)
    (line,) = re.findall(r"^FOUND (.*)$", done.stdout, re.MULTILINE)
    found: dict[str, Any] = json.loads(line)
    return found


def test_filters_come_to_the_source_on_spark_4_3(
    spark_topics: SparkTopics, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody had set it, and all was read. Given a session in which our source is registered, when rows are filtered,
    then Spark has nothing of that to do, other partitions are not planned, and a line tells how little is read; a list
    of offsets is read from the first to the last, and Spark takes these out. What is wrong is said first."""
    found = found_by_next(spark_topics, tmp_path, "version,pushed,said")
    assert found["version"].startswith("4.3.")
    offsets = {"offsets": list(range(FIRST, END)), "of a list": [FIRST, END]}
    assert found["pushed"] == {"left to Spark": [], "tasks": 1, **offsets}
    lines = [line for line in capsys.readouterr().err.splitlines() if "event=read_planned" in line]
    assert lines
    for line in lines:
        planned, all_ = (float(value) for value in re.findall(r"tier_mb=([\d.]+)", line))
        assert planned < all_ / 50, line
    # This Spark hands option names over in lower case.
    assert (
        found["said"]
        .lower()
        .startswith(
            "[python_data_source_error] failed to initialize python data source reader: "
            "pipeline.failures.tidegateerror: minpartitions is not an option of this source: "
        )
    )
