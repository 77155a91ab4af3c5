"""Spark's own Kafka source, unmodified, pointed at Tidegate: the rows that the broker gives, and out of the tier.

Every read has failOnDataLoss=true: wherever EARLIEST or LATEST were not what can be served, Spark would fail it.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.support.differential_known import tiered_logs
from tests.support.source_rows import assert_same_rows, cached, read_kafka
from tests.support.spark_topics import RECORDS, TRANSACTIONAL, TRIMMED, TRIMMED_AT, WIDE, WIDE_RECORDS, SparkTopics
from tests.support.tidegate import RunningTidegate, own_tidegate

GETS = "tidegate_gets_total"
TASKS = 6
TRIGGER_OFFSETS = 400
QUERY_S_MAX = 120


def test_offsets_that_are_gone_are_data_loss(spark: SparkSession, spark_topics: SparkTopics) -> None:
    """Given records that were deleted, when they are asked for, then Spark fails as it does at the broker."""
    bounds = {"startingOffsets": json.dumps({TRIMMED: {"0": TRIMMED_AT - 1}})}
    for servers in (spark_topics.cluster.bootstrap_servers, spark_topics.tidegate.bootstrap_servers):
        with pytest.raises(Py4JJavaError) as raised:
            read_kafka(spark, servers, TRIMMED, bounds).count()
        assert f"Could not read records in offset [{TRIMMED_AT - 1}, {RECORDS})" in str(raised.value.java_exception)


def test_tasks_share_a_partition(spark: SparkSession, spark_topics: SparkTopics, cold: RunningTidegate) -> None:
    """Given one partition and `minPartitions`, when tasks read it at several offsets at once, then row by row alike,
    and the store is asked for no byte twice."""
    with (
        cached(read_kafka(spark, cold.bootstrap_servers, WIDE, {"minPartitions": str(TASKS)})) as through,
        cached(read_kafka(spark, spark_topics.cluster.bootstrap_servers, WIDE)) as direct,
    ):
        assert_same_rows(through, direct)
        assert through.count() == WIDE_RECORDS
        assert through.rdd.getNumPartitions() >= TASKS
    assert 0 < cold.metric("tidegate_get_bytes_total") <= spark_topics.topics[WIDE].tier_bytes
    assert cold.metric(GETS, object="log") <= len(tiered_logs(spark_topics.cluster, WIDE)) + TASKS


def test_a_query_limited_by_trigger_reads_all(spark: SparkSession, spark_topics: SparkTopics, tmp_path: Path) -> None:
    """Given AvailableNow with few offsets a trigger, when it ends, then it took many batches and has every row."""
    servers = spark_topics.tidegate.bootstrap_servers
    query = start(spark, servers, TRANSACTIONAL, tmp_path, {"kafka.isolation.level": "read_committed"})
    assert query.awaitTermination(QUERY_S_MAX)
    end = spark_topics.topics[TRANSACTIONAL].offsets[0].high_watermark
    assert len([each for each in query.recentProgress if each["numInputRows"]]) > 1
    assert json.loads(query.recentProgress[-1]["sources"][0]["endOffset"]) == {TRANSACTIONAL: {"0": end}}
    with cached(
        read_kafka(
            spark, spark_topics.cluster.bootstrap_servers, TRANSACTIONAL, {"kafka.isolation.level": "read_committed"}
        )
    ) as direct:
        assert_same_rows(spark.read.parquet(str(tmp_path / "rows")), direct)


@pytest.fixture(scope="module")
def cold(spark_topics: SparkTopics) -> Iterator[RunningTidegate]:
    """A Tidegate whose cache is empty, and which never asks the store a second time for being slow."""
    with own_tidegate(spark_topics.cluster, {"tier.hedge.gets.per.minute.min": "-1"}) as running:
        yield running


def start(
    spark: SparkSession, bootstrap_servers: str, topic: str, folder: Path, options: Mapping[str, str]
) -> StreamingQuery:
    """A query from EARLIEST to Parquet files in folder/rows; it ends at LATEST."""
    limits = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": str(TRIGGER_OFFSETS)}
    usual = {"kafka.bootstrap.servers": bootstrap_servers, "subscribe": topic, "includeHeaders": "true"}
    source = {**usual, "failOnDataLoss": "true", **limits, **options}
    writer = spark.readStream.format("kafka").options(**source).load().writeStream.format("parquet")
    writer = writer.option("checkpointLocation", str(folder / "checkpoint")).option("path", str(folder / "rows"))
    return writer.trigger(availableNow=True).start()
