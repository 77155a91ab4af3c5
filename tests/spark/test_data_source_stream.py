"""`readStream.format("tidegate")`: newly tiered segments, each record once, over restarts; never another topic's."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pipeline.stream_progress import TOPIC_IDS
from tests.support.differential_steps import admin_client
from tests.support.kafka import TIERED, fresh_name, orders, produce, small_segments
from tests.support.source_rows import offsets_of, tier_options, with_tail, written_offsets
from tests.support.spark_topics import SparkTopics
from tools.demo.kafka_cluster import KafkaCluster

RECORDS = 400
"""In one go: four segments of ten batches, three and a bit of which go to the tier."""
BATCH_RECORDS = 10
QUERY_S_MAX = 120


def test_newly_tiered_segments_are_read_once_also_over_a_restart(
    spark: SparkSession, spark_topics: SparkTopics, tmp_path: Path
) -> None:
    """Given a query that runs, when segments become remote, then their records come, once. When it was stopped and goes
    on from its checkpoint with maxBytesPerTrigger, then in several batches, from where it was."""
    topic, cluster = fresh_name("spark-stream"), spark_topics.cluster
    cluster.create_topic(topic, 1, {**TIERED, **small_segments(RECORDS // BATCH_RECORDS // 4)})
    end = tier_more(cluster, topic, above=-1)
    with running(spark, spark_topics, topic, tmp_path) as query:
        query.processAllAvailable()
        assert written_offsets(spark, tmp_path / "rows") == list(range(end))
        newer = tier_more(cluster, topic, above=end)
        query.processAllAvailable()
    assert written_offsets(spark, tmp_path / "rows") == list(range(newer))

    newest = tier_more(cluster, topic, above=newer)
    with running(spark, spark_topics, topic, tmp_path, {"maxBytesPerTrigger": "12k"}) as query:
        query.processAllAvailable()
        batches = batches_of(query, topic)
    assert len(batches) > 1, batches
    assert (batches[0][0], batches[-1][1]) == (newer, newest)
    assert [end for _, end in batches[:-1]] == [start for start, _ in batches[1:]]
    assert written_offsets(spark, tmp_path / "rows") == list(range(newest))


def test_a_topic_that_was_made_anew_fails_the_query(
    spark: SparkSession, spark_topics: SparkTopics, tmp_path: Path
) -> None:
    """Given a query's checkpoint, when its topic was deleted and created again meanwhile, then the query fails and says
    so: it does not take the new topic's records for the old one's."""
    topic, cluster = fresh_name("spark-again"), spark_topics.cluster
    cluster.create_topic(topic, 1, TIERED)
    produce(cluster, topic, orders(20, 1))
    options = with_tail(spark_topics, {"kafka.bootstrap.servers": cluster.bootstrap_servers})
    with running(spark, spark_topics, topic, tmp_path, options) as query:
        query.processAllAvailable()
    admin = admin_client(cluster)  # named: it would end with the call
    admin.delete_topics([topic])[topic].result(QUERY_S_MAX)
    cluster.create_topic(topic, 1, TIERED)
    produce(cluster, topic, orders(30, 1))

    with (
        running(spark, spark_topics, topic, tmp_path, options) as query,
        pytest.raises(StreamingQueryException) as all_,
    ):
        query.processAllAvailable()

    assert f"{topic} was deleted and created again" in str(all_.value)
    assert len(offsets_of(spark.read.parquet(str(tmp_path / "rows")))) == 20


@contextmanager
def running(
    spark: SparkSession, topics: SparkTopics, topic: str, folder: Path, options: Mapping[str, str] | None = None
) -> Iterator[StreamingQuery]:
    """A query to Parquet files in folder/rows."""
    source = tier_options(topics, topic, options)
    writer = spark.readStream.format("tidegate").options(**source).load().writeStream.format("parquet")
    writer = writer.option("checkpointLocation", str(folder / "checkpoint")).option("path", str(folder / "rows"))
    query = writer.trigger(processingTime="0 seconds").start()
    try:
        yield query
    finally:
        query.stop()


def batches_of(query: StreamingQuery, topic: str) -> list[tuple[int, int]]:
    """Return from partition 0 the first offset and the end of each batch that read something; Spark does not say where
    the first batch of a new query began, it is -1."""
    found = []
    for progress in query.recentProgress:
        if progress["numInputRows"]:
            source: dict[str, Any] = progress["sources"][0]
            begun = source["startOffset"]
            start = json.loads(begun)[topic]["0"] if begun and begun.startswith("{") else -1
            end = json.loads(source["endOffset"])
            assert TOPIC_IDS in end
            found.append((start, end[topic]["0"]))
    return found


def tier_more(cluster: KafkaCluster, topic: str, *, above: int) -> int:
    """Produce, and wait until more is in the tier and nothing waits to be copied; where the tier ends then."""
    produce(cluster, topic, orders(RECORDS, 1, 50), batch_num_messages=BATCH_RECORDS)
    settled = cluster.wait_tiered(
        topic,
        until=lambda offsets: (
            above
            < offsets.latest_tiered_offset + 1
            == offsets.local_log_start_offset
            > offsets.high_watermark - RECORDS // 2
        ),
    )
    return settled[0].latest_tiered_offset + 1
