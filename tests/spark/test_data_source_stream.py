"""`readStream.format("tidegate")`: newly tiered segments, each record once, over restarts, by triggers of some size."""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pipeline.data_source import TOPIC_IDS
from tests.support.differential_steps import admin_client
from tests.support.kafka import TIERED, fresh_name, orders, produce, small_segments
from tests.support.source_rows import (
    assert_same_rows,
    cached,
    offsets_of,
    read_kafka,
    tier_options,
    with_tail,
    written_offsets,
)
from tests.support.spark_topics import TRANSACTIONAL, TRIMMED, SparkTopics
from tests.support.waiting import wait_until
from tools.demo.kafka_cluster import KafkaCluster

if TYPE_CHECKING:
    from tests.support.spark_session import RunningSpark

RECORDS = 400
"""Of one go: four segments of ten batches, three and a bit of which go to the tier."""
BATCH_RECORDS = 10
STARTS_AT = 900
"""In the tier of `trimmed`, inside a segment."""
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


def test_triggers_are_limited_from_the_start_on(spark: SparkSession, spark_topics: SparkTopics, tmp_path: Path) -> None:
    """Given an offset to start at and maxBytesPerTrigger, when a new query runs, then its first batch begins there and
    is no larger than the others. With AvailableNow Spark ends it after a batch, and the next run goes on."""
    limits = {"startingOffsets": json.dumps({TRIMMED: {"0": STARTS_AT}}), "maxBytesPerTrigger": "24k"}
    end = spark_topics.topics[TRIMMED].offsets[0].latest_tiered_offset + 1
    with running(spark, spark_topics, TRIMMED, tmp_path, limits, available_now=True) as query:
        assert query.awaitTermination(QUERY_S_MAX)
        (first,) = batches_of(query, TRIMMED)
    assert STARTS_AT < first[1] < end
    with running(spark, spark_topics, TRIMMED, tmp_path, limits) as query:
        query.processAllAvailable()
        batches = batches_of(query, TRIMMED)
    assert len(batches) > 1
    assert (batches[0][0], batches[-1][1]) == (first[1], end)
    assert written_offsets(spark, tmp_path / "rows") == list(range(STARTS_AT, end))


def test_available_now_takes_all_up_to_the_end_of_the_log(
    spark: SparkSession, spark_topics: SparkTopics, tmp_path: Path
) -> None:
    """Given a tail through Kafka, when a query takes what there is, then row by row what the broker has."""
    options = {"isolation": "read_committed", **with_tail(spark_topics)}
    with running(spark, spark_topics, TRANSACTIONAL, tmp_path, options, available_now=True) as query:
        assert query.awaitTermination(QUERY_S_MAX)
    servers = spark_topics.cluster.bootstrap_servers
    with cached(read_kafka(spark, servers, TRANSACTIONAL, {"kafka.isolation.level": "read_committed"})) as direct:
        assert_same_rows(spark.read.parquet(str(tmp_path / "rows")), direct)


def test_a_topic_that_was_made_anew_fails_the_query(
    spark: SparkSession, spark_topics: SparkTopics, tmp_path: Path
) -> None:
    """Given a query's checkpoint, when its topic was deleted and made anew meanwhile, then the query fails and says
    so: it does not take the new topic's records for the old one's."""
    topic, cluster = fresh_name("spark-anew"), spark_topics.cluster
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

    assert f"{topic} was deleted and made anew" in str(all_.value)
    assert len(offsets_of(spark.read.parquet(str(tmp_path / "rows")))) == 20


def test_kafkas_tools_see_where_a_stream_is(
    spark: SparkSession, spark_topics: SparkTopics, spark_files: "RunningSpark", tmp_path: Path
) -> None:
    """Given commitGroup, when a query has read the tier, then the broker has its offsets for the group, and the log
    says what is left. While the group has members, a query of that name does not start, and says why."""
    group, cluster = fresh_name("spark-group"), spark_topics.cluster
    tier_end = spark_topics.topics[TRIMMED].offsets[0].latest_tiered_offset + 1
    with running(spark, spark_topics, TRIMMED, tmp_path, {"commitGroup": group}) as query:
        query.processAllAvailable()
        assert committed(cluster, group) == {(TRIMMED, 0): tier_end}
    (told,) = re.findall(rf"event=stream_progress topics={TRIMMED} .*", spark_files.driver_log.read_text("utf-8"))[-1:]
    left = spark_topics.topics[TRIMMED].offsets[0].high_watermark - tier_end
    assert told.endswith(f" behind_tier_offsets=0 behind_log_offsets={left}")

    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": group})
    consumer.subscribe([TRIMMED])
    wait_until(lambda: consumer.poll(0.1) or consumer.assignment(), "the consumer has joined")
    try:
        with (
            running(spark, spark_topics, TRIMMED, tmp_path / "second", {"commitGroup": group}) as query,
            pytest.raises(StreamingQueryException, match=f"for group {group} is refused: the group has members"),
        ):
            query.processAllAvailable()
    finally:
        consumer.close()


def committed(cluster: KafkaCluster, group: str) -> dict[tuple[str, int], int]:
    """The offsets that the broker has for a group."""
    admin = admin_client(cluster)
    found = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(QUERY_S_MAX)
    return {(each.topic, each.partition): each.offset for each in found.topic_partitions}


@contextmanager
def running(
    spark: SparkSession,
    topics: SparkTopics,
    topic: str,
    folder: Path,
    options: Mapping[str, str] | None = None,
    *,
    available_now: bool = False,
) -> Iterator[StreamingQuery]:
    """A query to Parquet files in folder/rows."""
    source = tier_options(topics, topic, options)
    writer = spark.readStream.format("tidegate").options(**source).load().writeStream.format("parquet")
    writer = writer.option("checkpointLocation", str(folder / "checkpoint")).option("path", str(folder / "rows"))
    trigger = writer.trigger(availableNow=True) if available_now else writer.trigger(processingTime="0 seconds")
    query = trigger.start()
    try:
        yield query
    finally:
        query.stop()


def batches_of(query: StreamingQuery, topic: str) -> list[tuple[int, int]]:
    """Of partition 0, the first offset and the end of each batch that read something; Spark does not say where the
    first batch of a new query began, it is -1."""
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
    produce(cluster, topic, orders(RECORDS, 1, 50), batch_num_messages=BATCH_RECORDS, linger_ms=200)
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
