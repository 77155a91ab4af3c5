"""Spark's own Kafka source, unmodified, pointed at Tidegate: the rows that the broker gives, and out of the tier.

Every read has failOnDataLoss=true: wherever EARLIEST or LATEST were not what can be served, Spark would fail it.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession, functions
from pyspark.sql.streaming.query import StreamingQuery

from tests.support.differential_known import tiered_logs
from tests.support.differential_steps import FIRST_TIMESTAMP_MS, TIMESTAMP_STEP_MS
from tests.support.source_rows import assert_same_rows, cached, offsets_of
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
    records_of,
)
from tests.support.tidegate import RunningTidegate, own_tidegate
from tests.support.waiting import wait_until

TIER_BYTES = "kafka_server_brokertopicmetrics_remotefetchbytes_total"
GETS = "tidegate_gets_total"
REQUESTS = "tidegate_requests_total"
MIDDLE_MS = FIRST_TIMESTAMP_MS + TIMESTAMP_STEP_MS * RECORDS
"""Half way through the timestamps of `plain`, in the tier; its two partitions take turns."""
Bounds = Mapping[str, str | Mapping[str, int]]
BOUNDS: Mapping[str, Bounds] = {
    "offsets": {"startingOffsets": {"0": 17, "1": -2}, "endingOffsets": {"0": 1003, "1": -1}},
    "times of partitions": {
        "startingOffsetsByTimestamp": {"0": MIDDLE_MS, "1": MIDDLE_MS + 100 * TIMESTAMP_STEP_MS},
        "endingOffsetsByTimestamp": {
            "0": MIDDLE_MS + 50 * TIMESTAMP_STEP_MS,
            "1": MIDDLE_MS + 200 * TIMESTAMP_STEP_MS,
        },
    },
    "one time": {"startingTimestamp": str(MIDDLE_MS), "endingTimestamp": str(MIDDLE_MS + 300 * TIMESTAMP_STEP_MS)},
    "from a time on": {"startingTimestamp": str(MIDDLE_MS)},
}
TASKS = 6
TRIGGER_OFFSETS = 400
QUERY_S_MAX = 120


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
def test_a_topic_reads_as_from_the_broker(
    spark: SparkSession, spark_topics: SparkTopics, name: str, isolation: str
) -> None:
    """Given a topic of two leader epochs that is mostly in the tier, when all of it is read, then row by row alike,
    and the broker does not read the tier for it."""
    options = {"kafka.isolation.level": isolation}
    broker, tidegate = spark_topics.cluster.broker(1), spark_topics.tidegate
    before = broker.remote_fetch_requests(name)
    with cached(read(spark, spark_topics.cluster.bootstrap_servers, name, options)) as direct:
        assert direct.count() == spark_topics.topics[name].visible(isolation)
        between, served = broker.remote_fetch_requests(name), tidegate.metric(TIER_BYTES, topic=name)
        with cached(read(spark, tidegate.bootstrap_servers, name, options)) as through:
            assert_same_rows(through, direct)
    assert before < between == broker.remote_fetch_requests(name)
    assert tidegate.metric(TIER_BYTES, topic=name) > served


@pytest.mark.parametrize("bounds", BOUNDS.values(), ids=BOUNDS)
def test_bounds_are_the_brokers(spark: SparkSession, spark_topics: SparkTopics, bounds: Bounds) -> None:
    """Given offsets or times to begin and end with, when a topic is read between them, then row by row alike, and as
    many as were produced there."""
    options = {name: value if isinstance(value, str) else json.dumps({PLAIN: value}) for name, value in bounds.items()}
    with (
        cached(read(spark, spark_topics.cluster.bootstrap_servers, PLAIN, options)) as direct,
        cached(read(spark, spark_topics.tidegate.bootstrap_servers, PLAIN, options)) as through,
    ):
        assert_same_rows(through, direct)
        ends = through.groupBy("partition").agg(functions.min("offset"), functions.max("offset"))
        assert {row[0]: (row[1], row[2] + 1) for row in ends.collect()} == expected_ends(bounds)


def test_earliest_is_what_can_be_served(spark: SparkSession, spark_topics: SparkTopics) -> None:
    """Given a log start within a batch in the tier, when EARLIEST is read, then from there on, and not from where the
    broker's own log begins."""
    rows = read(spark, spark_topics.tidegate.bootstrap_servers, TRIMMED)
    assert offsets_of(rows) == list(range(TRIMMED_AT, RECORDS))
    assert spark_topics.topics[TRIMMED].offsets[0].local_log_start_offset > TRIMMED_AT


def test_offsets_that_are_gone_are_data_loss(spark: SparkSession, spark_topics: SparkTopics) -> None:
    """Given records that were deleted, when they are asked for, then Spark fails as it does at the broker."""
    bounds = {"startingOffsets": json.dumps({TRIMMED: {"0": TRIMMED_AT - 1}})}
    for servers in (spark_topics.cluster.bootstrap_servers, spark_topics.tidegate.bootstrap_servers):
        with pytest.raises(Py4JJavaError) as raised:
            read(spark, servers, TRIMMED, bounds).count()
        assert f"Could not read records in offset [{TRIMMED_AT - 1}, {RECORDS})" in str(raised.value.java_exception)


def test_tasks_share_a_partition(spark: SparkSession, spark_topics: SparkTopics, cold: RunningTidegate) -> None:
    """Given one partition and `minPartitions`, when tasks read it at several offsets at once, then row by row alike,
    and the store is asked for no byte twice."""
    with (
        cached(read(spark, cold.bootstrap_servers, WIDE, {"minPartitions": str(TASKS)})) as through,
        cached(read(spark, spark_topics.cluster.bootstrap_servers, WIDE)) as direct,
    ):
        assert_same_rows(through, direct)
        assert through.count() == WIDE_RECORDS
        assert through.rdd.getNumPartitions() >= TASKS
    assert 0 < cold.metric("tidegate_get_bytes_total") <= spark_topics.topics[WIDE].tier_bytes
    assert cold.metric(GETS, object="log") <= len(tiered_logs(spark_topics.cluster, WIDE)) + TASKS


def test_list_offsets_for_earliest_and_latest_are_cheap(spark: SparkSession, spark_topics: SparkTopics) -> None:
    """Given a range that is cached, when it is read again, then the ListOffsets of Spark's driver and executors are
    passed on as they are, all of them, and nothing is asked of the store."""
    running = spark_topics.tidegate
    read(spark, running.bootstrap_servers, PLAIN).count()

    def counted() -> tuple[float, float, float]:
        asked = running.metric(REQUESTS, api_key="2")
        return asked, asked - running.metric(REQUESTS, api_key="2", route="relay"), running.metric(GETS)

    asked, decided, gets = counted()
    read(spark, running.bootstrap_servers, PLAIN, {"minPartitions": str(TASKS)}).count()
    asked_again, decided_again, gets_again = counted()
    assert asked_again >= asked + 2 * TASKS, "each task asks for both ends"
    assert (decided_again, gets_again) == (decided, gets)


def test_a_query_limited_by_trigger_reads_all(spark: SparkSession, spark_topics: SparkTopics, tmp_path: Path) -> None:
    """Given AvailableNow with few offsets a trigger, when it ends, then it took many batches and has every row."""
    servers = spark_topics.tidegate.bootstrap_servers
    query = start(spark, servers, TRANSACTIONAL, tmp_path, {"kafka.isolation.level": "read_committed"})
    assert query.awaitTermination(QUERY_S_MAX)
    end = spark_topics.topics[TRANSACTIONAL].offsets[0].high_watermark
    assert len([each for each in query.recentProgress if each["numInputRows"]]) > 1
    assert json.loads(query.recentProgress[-1]["sources"][0]["endOffset"]) == {TRANSACTIONAL: {"0": end}}
    with cached(
        read(spark, spark_topics.cluster.bootstrap_servers, TRANSACTIONAL, {"kafka.isolation.level": "read_committed"})
    ) as direct:
        assert_same_rows(spark.read.parquet(str(tmp_path / "rows")), direct)


def test_a_restart_from_the_checkpoint_repeats_nothing(
    spark: SparkSession, spark_topics: SparkTopics, tmp_path: Path
) -> None:
    """Given a query that was stopped half way, when it goes on from its checkpoint, then every row is there once."""
    servers = spark_topics.tidegate.bootstrap_servers
    first = start(spark, servers, TRIMMED, tmp_path, {"maxOffsetsPerTrigger": "50"}, is_endless=True)
    wait_until(lambda: len(first.recentProgress) >= 2, "two batches", timeout_s=QUERY_S_MAX)
    first.stop()
    rows = offsets_of(spark.read.parquet(str(tmp_path / "rows")))
    assert 0 < len(rows) < RECORDS - TRIMMED_AT, "stopped half way"

    second = start(spark, servers, TRIMMED, tmp_path, {})
    assert second.awaitTermination(QUERY_S_MAX)
    assert offsets_of(spark.read.parquet(str(tmp_path / "rows"))) == list(range(TRIMMED_AT, RECORDS))


@pytest.fixture(scope="module")
def cold(spark_topics: SparkTopics) -> Iterator[RunningTidegate]:
    """A Tidegate whose cache is empty, and which never asks the store a second time for being slow."""
    with own_tidegate(spark_topics.cluster, {"tier.hedge.gets.per.minute.min": "-1"}) as running:
        yield running


def expected_ends(bounds: Bounds) -> dict[int, tuple[int, int]]:
    """First and last offset (exclusive) of each partition of `plain`, out of what was produced."""
    records = [[each for each in records_of(PLAIN) if each.partition == partition] for partition in range(2)]

    def offset(kind: str, partition: int, special: int) -> int:
        for name, value in bounds.items():
            if name.startswith(kind):
                asked = int(value) if isinstance(value, str) else int(value[str(partition)])
                if name.endswith("Offsets"):
                    return asked if asked >= 0 else special
                return next(n for n, each in enumerate(records[partition]) if (each.timestamp_ms or 0) >= asked)
        return special

    return {each: (offset("starting", each, 0), offset("ending", each, RECORDS)) for each in range(2)}


def read(
    spark: SparkSession, bootstrap_servers: str, topic: str, options: Mapping[str, str] | None = None
) -> DataFrame:
    return spark.read.format("kafka").options(**source_options(bootstrap_servers, topic, options or {})).load()


def start(
    spark: SparkSession,
    bootstrap_servers: str,
    topic: str,
    folder: Path,
    options: Mapping[str, str],
    *,
    is_endless: bool = False,
) -> StreamingQuery:
    """A query from EARLIEST to Parquet files in folder/rows; it ends at LATEST unless it is endless."""
    limits = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": str(TRIGGER_OFFSETS)}
    source = source_options(bootstrap_servers, topic, {**limits, **options})
    writer = spark.readStream.format("kafka").options(**source).load().writeStream.format("parquet")
    writer = writer.option("checkpointLocation", str(folder / "checkpoint")).option("path", str(folder / "rows"))
    trigger = writer.trigger(processingTime="0 seconds") if is_endless else writer.trigger(availableNow=True)
    return trigger.start()


def source_options(bootstrap_servers: str, topic: str, options: Mapping[str, str]) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": bootstrap_servers,
        "subscribe": topic,
        "includeHeaders": "true",
        "failOnDataLoss": "true",
        **options,
    }
