"""What the next pyspark gives, told as JSON: `python -m tests.support.spark_next FOLDER CONFIG BOOTSTRAP TOPIC PARTS`.

It runs in a process of its own, whose PYTHONPATH begins with that pyspark: this process's is another.
"""

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pyspark import __version__
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, functions

from pipeline.session import register
from tests.support.needs import NEXT_SPARK_JARS
from tests.support.spark_cluster import QUICK_JAVA, local_settings

PLAN_MARKS = " +-:*()0123456789"
"""Before an operator's name, in a plan that is printed."""
FIRST, END = 100, 110
"""Offsets that are asked for by a filter, in the tier."""
TRIGGER_BYTES = "256k"
"""About a third of the topic."""


def main(folder: Path, config: str, bootstrap_servers: str, topic: str, parts: str) -> None:
    """Print parts of what the source says; `parts`: their keys, with commas."""
    spark = session(folder)
    register(spark)
    source = {"config": config, "subscribe": topic}
    rows = spark.read.format("tidegate").options(**source).load()
    tell: Mapping[str, Callable[[], object]] = {
        "version": lambda: __version__,
        "offsets": lambda: offsets(rows),
        "pushed": lambda: pushed(rows),
        "kafka": lambda: same_as_kafka(spark, rows, bootstrap_servers, topic),
        "stream": lambda: streamed(spark, folder, source),
        "said": lambda: said(spark, source),
        "sql": lambda: by_sql(spark, source),
        "values": lambda: typed(spark, folder, source),
    }
    found = {part: tell[part]() for part in parts.split(",")}
    spark.stop()
    print("FOUND " + json.dumps(found))


def session(folder: Path) -> SparkSession:
    (folder / "events").mkdir()
    settings = {
        **local_settings(folder),
        "spark.master": "local[2]",
        "spark.jars": ",".join(str(path) for path in sorted(NEXT_SPARK_JARS.glob("*.jar"))),
        "spark.driver.extraJavaOptions": QUICK_JAVA,
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": (folder / "warehouse").as_uri(),
        "spark.sql.session.timeZone": "UTC",
    }
    builder = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def offsets(rows: DataFrame) -> list[list[int]]:
    """By partition: rows, first and last offset."""
    grouped = rows.groupBy("partition").agg(functions.count("*"), functions.min("offset"), functions.max("offset"))
    return sorted([list(row) for row in grouped.collect()])


def pushed(rows: DataFrame) -> dict[str, Any]:
    """A read with filters on three columns: what is left to Spark, tasks, offsets; and by a list of offsets."""
    wanted = rows.where(f"partition = 0 and offset >= {FIRST} and offset < {END} and timestamp > timestamp'2001-01-01'")
    plan = wanted._jdf.queryExecution().executedPlan().toString()
    listed = rows.where(f"offset in ({FIRST}, {END}) and partition = 0")
    return {
        "left to Spark": [line for line in plan.splitlines() if line.lstrip(PLAN_MARKS).startswith("Filter")],
        "tasks": wanted.rdd.getNumPartitions(),
        "offsets": sorted(row["offset"] for row in wanted.select("offset").collect()),
        "of a list": sorted(row["offset"] for row in listed.select("offset").collect()),
    }


def same_as_kafka(spark: SparkSession, rows: DataFrame, bootstrap_servers: str, topic: str) -> bool:
    """Spark's Kafka source, through Tidegate, has all of these rows."""
    options = {"kafka.bootstrap.servers": bootstrap_servers, "subscribe": topic, "startingOffsets": "earliest"}
    kafka = spark.read.format("kafka").options(**options).load()
    return rows.exceptAll(kafka.select(*rows.columns)).isEmpty()


def streamed(spark: SparkSession, folder: Path, source: Mapping[str, str]) -> dict[str, Any]:
    """Everything, by a query that ends when it has it, a part in each batch, run twice."""
    batches = []
    for _ in range(2):
        limited = spark.readStream.format("tidegate").options(**source, maxBytesPerTrigger=TRIGGER_BYTES)
        writer = limited.load().writeStream.format("parquet")
        writer = writer.option("checkpointLocation", str(folder / "checkpoint")).option("path", str(folder / "rows"))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        batches.append(sum(1 for progress in query.recentProgress if progress["numInputRows"]))
    return {"batches": batches, "offsets": offsets(spark.read.parquet(str(folder / "rows")))}


def said(spark: SparkSession, source: Mapping[str, str]) -> str:
    """Return what Spark says to an option that there is not."""
    try:
        spark.read.format("tidegate").options(**source, minPartitions="3").load().count()
    except PySparkException as error:
        return str(error)
    return ""


def typed(spark: SparkSession, folder: Path, source: Mapping[str, str]) -> list[object]:
    """Values that are taken for JSON, which none is: their type, how many have it, whether there are letters."""
    schema = folder / "order.json"
    schema.write_text('{"type": "object", "properties": {"id": {"type": "integer"}}}', "utf-8")
    options = {**source, "valueFormat": "json", "valueSchemaFile": str(schema)}
    rows = spark.read.format("tidegate").options(**options).load()
    counts = (rows.where(f"{column} is not null").count() for column in ("value", "deadLetter"))
    return [dict(rows.dtypes)["value"], next(counts), next(counts) > 0]


def by_sql(spark: SparkSession, source: Mapping[str, str]) -> list[int]:
    """Rows of a view, and of a table."""
    listed = ", ".join(f"{name} '{value}'" for name, value in source.items())
    given = ", ".join(f"{name} = '{value}'" for name, value in source.items())
    spark.sql(f"CREATE TEMPORARY VIEW a_view USING tidegate OPTIONS ({listed})")
    spark.sql(f"CREATE TABLE a_table USING tidegate OPTIONS ({listed})")
    wanted = ("SELECT * FROM a_view", f"SELECT * FROM a_table WITH ({given})")
    return [spark.sql(statement).count() for statement in wanted]


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
