"""A backfill that is run every day, and the same by a stream: new segments, a new partition, retention behind it."""

from collections import defaultdict
from pathlib import Path

import pytest
from confluent_kafka.cimpl import NewPartitions
from pyspark.sql import SparkSession

from pipeline.jobs.command_line import main
from tests.support.differential_steps import TIMEOUT_S, admin_client, delete_records
from tests.support.kafka import TIERED, fresh_name, orders, produce, small_segments
from tests.support.source_rows import tier_options
from tests.support.spark_topics import SparkTopics
from tools.demo.kafka_cluster import KafkaCluster

pytestmark = pytest.mark.usefixtures("logs_stay_as_they_are")

DAYS = 2
RECORDS = 400
"""In each partition and day: four segments of ten batches, three and a bit of which go to the tier."""
BATCH_RECORDS = 10
KEPT = 150
"""Offsets of the days before that retention leaves: less than a segment and a bit, all of them read already."""
QUERY_S_MAX = 120


def test_each_day_gives_what_is_new_and_every_record_is_there_once(
    spark: SparkSession, spark_topics: SparkTopics, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Given days that each tier new segments, the second one with a new partition, and that delete what was read, when
    the same command runs on each, and a stream by availableNow from its checkpoint, then both have every record that
    was ever in the tier, once."""
    topic, cluster = fresh_name("spark-daily"), spark_topics.cluster
    cluster.create_topic(topic, 1, {**TIERED, **small_segments(RECORDS // BATCH_RECORDS // 4)})
    config = str(spark_topics.tidegate.process.properties_path)
    command = ["backfill", "--config", config, "--topic", topic, "--output", str(tmp_path / "out")]
    produced: dict[int, list[bytes]] = defaultdict(list)
    ends: dict[int, int] = {}
    for day in range(DAYS):
        if day == 1:
            admin = admin_client(cluster)
            admin.create_partitions([NewPartitions(topic, 2)])[topic].result(TIMEOUT_S)
        for partition, end in ends.items():
            delete_records(cluster, topic, partition, end - KEPT)
        before, ends = ends, one_day(cluster, topic, 1 if day == 0 else 2, produced)
        assert main(command) == 0
        new = sum(end - before.get(partition, 0) for partition, end in ends.items())
        assert f"run {day + 1}: {new:,} new offsets of {len(ends)} partitions" in capfd.readouterr().out
        stream_once(spark, tier_options(spark_topics, topic, {"includeHeaders": "false"}), tmp_path)
    assert main(command) == 0
    assert f"nothing new since run {DAYS}" in capfd.readouterr().out

    for folder in ("out", "rows"):
        rows = spark.read.parquet(str(tmp_path / folder)).select("partition", "offset", "value").collect()
        found = sorted((row.partition, row.offset, bytes(row.value)) for row in rows)
        assert found == [
            (partition, offset, produced[partition][offset])
            for partition, end in sorted(ends.items())
            for offset in range(end)
        ], folder


def one_day(cluster: KafkaCluster, topic: str, partitions: int, produced: dict[int, list[bytes]]) -> dict[int, int]:
    """Produce, and wait until nothing waits to be copied; where the tier ends then."""
    records = list(orders(RECORDS * partitions, partitions, 50))
    settings = {"batch_num_messages": BATCH_RECORDS, "max_in_flight_requests_per_connection": 1}
    produce(cluster, topic, iter(records), **settings)
    for record in records:
        produced[record.partition].append(record.value or b"")
    settled = cluster.wait_tiered(
        topic,
        until=lambda offsets: (
            offsets.latest_tiered_offset + 1 == offsets.local_log_start_offset > offsets.high_watermark - RECORDS // 2
        ),
    )
    return {partition: offsets.latest_tiered_offset + 1 for partition, offsets in settled.items()}


def stream_once(spark: SparkSession, options: dict[str, str], folder: Path) -> None:
    """The recipe of docs/spark.md: what is new since the checkpoint, and then it ends."""
    rows = spark.readStream.format("tidegate").options(**options).load()
    writer = rows.writeStream.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True)
    query = writer.format("parquet").option("path", str(folder / "rows")).start()
    try:
        assert query.awaitTermination(QUERY_S_MAX)
    finally:
        query.stop()
