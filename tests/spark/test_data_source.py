"""`format("tidegate")`: the rows of Spark's Kafka source over the same range, and nothing asked of the broker for them.

The Kafka source is pointed at Tidegate, too: all three ways give the same.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession, functions

from pipeline.options import BYTES_PER_PARTITION_MIN
from tests.support.differential_steps import FIRST_TIMESTAMP_MS, TIMESTAMP_STEP_MS
from tests.support.source_rows import (
    assert_same_rows,
    cached,
    damaged_tier,
    offsets_of,
    read_kafka,
    read_tier,
    tier_options,
    with_tail,
)
from tests.support.spark_topics import (
    COMPRESSED,
    PLAIN,
    RECORDS,
    TRANSACTIONAL,
    TRIMMED,
    TRIMMED_AT,
    WIDE,
    WIDE_RECORDS,
    SparkTopics,
)

if TYPE_CHECKING:
    from tests.support.spark_session import RunningSpark

TASKS = 6
STREAM_S_MAX = 120
MIDDLE_MS = FIRST_TIMESTAMP_MS + TIMESTAMP_STEP_MS * RECORDS
"""Half way through the timestamps of `plain`, in the tier; its two partitions take turns."""
BOUNDS: Mapping[str, Mapping[str, str | Mapping[str, int]]] = {
    "offsets": {"startingOffsets": {"0": 17, "1": -2}, "endingOffsets": {"0": 1003, "1": -1}},
    "times of partitions": {
        "startingOffsetsByTimestamp": {"0": MIDDLE_MS, "1": MIDDLE_MS + 100 * TIMESTAMP_STEP_MS},
        "endingOffsetsByTimestamp": {"0": MIDDLE_MS + 50 * TIMESTAMP_STEP_MS, "1": MIDDLE_MS + 200 * TIMESTAMP_STEP_MS},
    },
    "one time": {"startingTimestamp": str(MIDDLE_MS), "endingTimestamp": str(MIDDLE_MS + 300 * TIMESTAMP_STEP_MS)},
    "from a time on": {"startingTimestamp": str(MIDDLE_MS)},
    "from one time, to times of partitions": {
        "startingTimestamp": str(MIDDLE_MS),
        "endingOffsetsByTimestamp": {"0": MIDDLE_MS + 500, "1": MIDDLE_MS + 2000},
    },
}
TIER_BYTES = "kafka_server_brokertopicmetrics_remotefetchbytes_total"
READ_COUNTERS = ("RemoteFetchRequestsPerSec", "BytesOutPerSec")


@pytest.mark.parametrize(
    ("name", "isolation"),
    [
        (PLAIN, "read_uncommitted"),
        (COMPRESSED, "read_uncommitted"),
        (TRIMMED, "read_committed"),
        (TRANSACTIONAL, "read_committed"),
        (TRANSACTIONAL, "read_uncommitted"),
    ],
)
def test_a_topic_reads_alike_in_all_three_ways_and_in_many_tasks(
    spark: SparkSession, spark_topics: SparkTopics, name: str, isolation: str
) -> None:
    """Given a topic of two leader epochs that is mostly in the tier, when all of it is read by the Kafka source through
    Tidegate, and by ours, with the rest through Tidegate, then row by row as from the broker: no gap, no repeat; and
    the broker does not read the tier for it."""
    topic, broker, tidegate = spark_topics.topics[name], spark_topics.cluster.broker(1), spark_topics.tidegate
    options = {"kafka.isolation.level": isolation}
    in_tasks = {**options, "bytesPerPartition": str(max(BYTES_PER_PARTITION_MIN, topic.tier_bytes // (2 * TASKS)))}
    before = broker.remote_fetch_requests(name)
    with cached(read_kafka(spark, spark_topics.cluster.bootstrap_servers, name, options)) as direct:
        assert direct.count() == topic.visible(isolation)
        between, served = broker.remote_fetch_requests(name), tidegate.metric(TIER_BYTES, topic=name)
        with (
            cached(read_kafka(spark, tidegate.bootstrap_servers, name, options)) as through,
            cached(read_tier(spark, spark_topics, name, with_tail(spark_topics, in_tasks))) as rows,
        ):
            assert_same_rows(through, direct)
            assert_same_rows(rows, direct)
    assert before < between == broker.remote_fetch_requests(name)
    assert tidegate.metric(TIER_BYTES, topic=name) > served


@pytest.mark.parametrize("bounds", BOUNDS.values(), ids=BOUNDS)
def test_bounds_are_those_of_the_kafka_source_directly_and_through_tidegate(
    spark: SparkSession, spark_topics: SparkTopics, bounds: Mapping[str, str | Mapping[str, int]]
) -> None:
    """Given offsets or times to begin and end with, when a topic is read by all three, then row by row alike."""
    options = {name: value if isinstance(value, str) else json.dumps({PLAIN: value}) for name, value in bounds.items()}
    with (
        cached(read_kafka(spark, spark_topics.cluster.bootstrap_servers, PLAIN, options)) as direct,
        cached(read_kafka(spark, spark_topics.tidegate.bootstrap_servers, PLAIN, options)) as through,
        cached(read_tier(spark, spark_topics, PLAIN, with_tail(spark_topics, options))) as rows,
    ):
        assert_same_rows(rows, direct)
        assert_same_rows(rows, through)


def test_many_tasks_read_one_partition_and_the_broker_reads_nothing(
    spark: SparkSession, spark_files: "RunningSpark", spark_topics: SparkTopics
) -> None:
    """Given a small `bytesPerPartition`, when a topic of one partition is read without saying where to end, then in
    many tasks, each offset of the tier once; the broker gives out no record, and a line says what is left out."""
    topic, broker = spark_topics.topics[WIDE], spark_topics.cluster.broker(1)
    options = {"bytesPerPartition": str(topic.tier_bytes // TASKS)}
    with cached(read_kafka(spark, spark_topics.cluster.bootstrap_servers, WIDE)) as direct:
        assert direct.count() == WIDE_RECORDS
        before = [broker.broker_topic_count(name, WIDE) for name in READ_COUNTERS]
        with cached(read_tier(spark, spark_topics, WIDE, options)) as rows:
            end = topic.offsets[0].latest_tiered_offset + 1
            assert_same_rows(rows, direct.where(f"offset < {end}"))
            assert rows.count() == end < WIDE_RECORDS
            assert rows.rdd.getNumPartitions() >= TASKS - 1
        assert [broker.broker_topic_count(name, WIDE) for name in READ_COUNTERS] == before
    assert before[0] > 0, "the Kafka source makes the broker read the tier"
    left_out = f"{WIDE}-0: {end} to {WIDE_RECORDS - 1}"
    assert left_out in spark_files.driver_log.read_text("utf-8", "replace")


def test_columns_and_times_are_chosen_in_the_source(spark: SparkSession, spark_topics: SparkTopics) -> None:
    """Given some columns and a time from and to, when a topic is read, then as Spark itself would choose them."""
    first, last = MIDDLE_MS, MIDDLE_MS + 300 * TIMESTAMP_STEP_MS
    options = {
        "columns": "offset,value,partition",
        "includeHeaders": "false",
        "timestampFrom": str(first),
        "timestampTo": str(last),
    }
    direct = read_kafka(spark, spark_topics.cluster.bootstrap_servers, PLAIN)
    kept = direct.where(functions.unix_millis("timestamp").between(first, last)).select("offset", "value", "partition")
    rows = read_tier(spark, spark_topics, PLAIN, options)
    assert rows.columns == ["offset", "value", "partition"]
    with cached(kept) as expected, cached(rows) as found:
        assert_same_rows(found, expected)
        assert found.count() < RECORDS


def test_a_schema_that_the_user_gives_is_taken_by_its_names(
    spark: SparkSession, spark_topics: SparkTopics, tmp_path: Path
) -> None:
    """Spark takes a source's columns by their place: keys came out as values. Given a schema of some of our columns in
    another order, when it is read by a batch, a view and a stream, then each column has its own; of one that we have
    not, a sentence names it."""
    schema, options = "value binary, offset bigint not null, key binary", tier_options(spark_topics, PLAIN)
    expected = read_tier(spark, spark_topics, PLAIN).where("partition = 0 and offset < 200")
    wanted = expected.select("value", "offset", "key").collect()
    listed = ", ".join(f"{name} '{value}'" for name, value in options.items() if name != "subscribe")
    one = {**options, "assign": json.dumps({PLAIN: [0]})}
    del one["subscribe"]
    assigned = f"""{listed}, assign '{one["assign"]}'"""
    query = spark.readStream.format("tidegate").options(**one).schema(schema).load().writeStream.format("parquet")
    query = query.option("checkpointLocation", str(tmp_path / "checkpoint")).option("path", str(tmp_path / "rows"))
    query.trigger(availableNow=True).start().awaitTermination(STREAM_S_MAX)
    spark.sql(f"CREATE TEMPORARY VIEW by_schema ({schema}) USING tidegate OPTIONS ({assigned})")
    try:
        for rows in (
            spark.read.format("tidegate").options(**one).schema(schema).load(),
            spark.table("by_schema"),
            spark.read.parquet(str(tmp_path / "rows")),
        ):
            assert rows.columns == ["value", "offset", "key"]
            assert sorted(rows.where("offset < 200").collect()) == sorted(wanted)
    finally:
        spark.catalog.dropTempView("by_schema")
    with pytest.raises((PySparkException, Py4JJavaError), match="TidegateError: the schema has value as string, and"):
        spark.read.format("tidegate").options(**one).schema("value string, key binary").load().count()


def test_a_flipped_bit_fails_the_task_or_is_left_out_and_written_down(
    spark: SparkSession, spark_topics: SparkTopics, tmp_path: Path
) -> None:
    """Given a tier with one bit flipped in a segment's log, when it is read, then the task fails with the object and
    the position; with badRecords=skip it gives all other batches, and a file tells what is missing."""
    config = damaged_tier(spark_topics, TRIMMED, tmp_path)

    with pytest.raises((PySparkException, Py4JJavaError)) as caught:
        read_tier(spark, spark_topics, TRIMMED, {"config": str(config)}).count()
    said = str(caught.value)
    assert re.search(rf"TidegateError: segment {TRIMMED}-0 \S+: batch at \d+: its CRC is wrong\n\nTraceback", said)

    skip = {"config": str(config), "badRecords": "skip", "badRecordsPath": str(tmp_path / "bad")}
    found = offsets_of(read_tier(spark, spark_topics, TRIMMED, skip))

    reports = [json.loads(path.read_text()) for path in (tmp_path / "bad").iterdir()]
    assert [report["bad_batches"] for report in reports] == [1]
    end = spark_topics.topics[TRIMMED].offsets[0].latest_tiered_offset + 1
    missing = sorted(set(range(TRIMMED_AT, end)) - set(found))
    assert missing
    assert missing == list(range(missing[0], missing[-1] + 1))
    assert missing[-1] + 1 in (end, *(part["end_offset"] for part in reports)), "it is a segment's last batch"
