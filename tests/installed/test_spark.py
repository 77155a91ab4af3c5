"""The installed package as Spark's data source."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.support.built import Installed, link
from tests.support.kafka import fresh_name, orders, produce
from tests.support.plain_kafka import run_standalone
from tools.demo.kafka_cluster import KafkaCluster

pytestmark = [pytest.mark.integration, pytest.mark.needs("java", "kafka", "spark")]

PROGRAM = """
import json, sys
from pyspark.sql import SparkSession
from tidegate.spark import register

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
register(spark)
rows = spark.read.format("tidegate").option("config", sys.argv[1]).option("subscribe", sys.argv[2]).load()
print("RESULT " + json.dumps([row.offset for row in rows.select("offset").orderBy("offset").collect()]))
"""


def test_its_workers_import_it_too(installed: Installed, plain_kafka: KafkaCluster, tmp_path: Path) -> None:
    topic = fresh_name("installed-spark")
    plain_kafka.create_topic(topic)
    produce(plain_kafka, topic, orders(300, 1))
    copied = run_standalone(
        plain_kafka, tmp_path, "copy", "--once", properties={"copy.topics": topic, "copy.group.id": topic}
    )
    assert copied.returncode == 0, copied.stderr
    libraries = tmp_path / "libraries"
    libraries.mkdir()
    for name in ("numpy", "py4j", "pyarrow", "pyspark"):
        link(name, libraries)
    command: list[str | Path] = [installed.python, "-c", PROGRAM, tmp_path / "copy.properties", topic]
    environ = {**os.environ, "PYTHONPATH": str(libraries)}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    [said] = (line for line in done.stdout.splitlines() if line.startswith("RESULT "))
    assert json.loads(said.removeprefix("RESULT ")) == list(range(300))
