"""What Spark's tests read a topic with, by each source, and how rows are compared."""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from tests.support.spark_topics import SparkTopics

Options = Mapping[str, str]


def tier_options(topics: SparkTopics, topic: str, options: Options | None = None) -> dict[str, str]:
    """Return the tier source's options: everything in the tier, with headers."""
    config = str(topics.tidegate.process.properties_path)
    return {"config": config, "subscribe": topic, "includeHeaders": "true", **(options or {})}


def damaged_tier(topics: SparkTopics, topic: str, folder: Path) -> Path:
    """A configuration whose tier is a copy with one bit flipped, in the last batch of one of the topic's segments."""
    shutil.copytree(topics.cluster.tier_dir, folder / "tier")
    log = max((folder / "tier").glob(f"**/{topic}-0-*/*.log"))
    damaged = bytearray(log.read_bytes())
    damaged[-1] ^= 1
    log.write_bytes(damaged)
    serve = topics.tidegate.process.properties_path.read_text("utf-8")
    config = folder / "damaged.properties"
    config.write_text(f"{serve}\nrsm.config.dir={folder / 'tier'}\n", "utf-8")
    return config


def with_tail(topics: SparkTopics, options: Options | None = None) -> dict[str, str]:
    """And through Tidegate what is not in the tier."""
    return {"tail": "kafka", "kafka.bootstrap.servers": topics.tidegate.bootstrap_servers, **(options or {})}


def read_tier(spark: SparkSession, topics: SparkTopics, topic: str, options: Options | None = None) -> DataFrame:
    return spark.read.format("tidegate").options(**tier_options(topics, topic, options)).load()


def read_kafka(spark: SparkSession, bootstrap_servers: str, topic: str, options: Options | None = None) -> DataFrame:
    """By Spark's own Kafka source."""
    usual = {"kafka.bootstrap.servers": bootstrap_servers, "subscribe": topic, "includeHeaders": "true"}
    return spark.read.format("kafka").options(**{**usual, "failOnDataLoss": "true", **(options or {})}).load()


@contextmanager
def cached(rows: DataFrame) -> Iterator[DataFrame]:
    """The rows, read from their source once."""
    rows.persist()
    try:
        yield rows
    finally:
        rows.unpersist()


def assert_same_rows(rows: DataFrame, others: DataFrame) -> None:
    """The same columns and the same rows, each as often; and there are some."""
    assert rows.dtypes == others.dtypes
    assert rows.exceptAll(others).isEmpty()
    assert others.exceptAll(rows).isEmpty()
    assert rows.count() == others.count() > 0


def offsets_of(rows: DataFrame) -> list[int]:
    return [row.offset for row in rows.select("offset").orderBy("offset").collect()]


def written_offsets(spark: SparkSession, folder: Path) -> list[int]:
    """Return the offsets of the rows that a query has written as Parquet."""
    return offsets_of(spark.read.parquet(str(folder)))
