"""A broker's own deletion passes a read that was planned before it: real segments, gone from the tier by then."""

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pipeline.jobs.tier_rows import tier_rows
from tests.spark.test_data_source_stream import BATCH_RECORDS, RECORDS, tier_more
from tests.support.differential_steps import delete_records
from tests.support.kafka import TIERED, fresh_name, small_segments
from tests.support.source_rows import offsets_of, tier_options
from tests.support.spark_topics import SparkTopics
from tests.support.waiting import wait_until
from tools.demo.kafka_cluster import KafkaCluster


def test_what_a_broker_deletes_under_a_running_read_is_left_out_or_told(
    spark: SparkSession, spark_topics: SparkTopics
) -> None:
    """Given reads that are planned, when DeleteRecords has raised the log start and the broker has deleted a segment
    from the tier, then with failOnDataLoss=false the others' rows come; with true the task's sentence has the offsets
    and what to set."""
    topic, cluster = fresh_name("spark-retention"), spark_topics.cluster
    cluster.create_topic(topic, 1, {**TIERED, **small_segments(RECORDS // BATCH_RECORDS // 4)})
    end = tier_more(cluster, topic, above=-1)
    kept = tier_rows(spark, tier_options(spark_topics, topic, {"failOnDataLoss": "false"}))
    failing = tier_rows(spark, tier_options(spark_topics, topic))

    starts = segment_starts(cluster, topic)
    log_start = starts[1] + BATCH_RECORDS // 2
    delete_records(cluster, topic, 0, log_start)
    wait_until(lambda: segment_starts(cluster, topic)[0] == starts[1], "the first segment is deleted")

    assert offsets_of(kept) == list(range(starts[1], end))
    told = (
        f"TidegateError: {topic}-0: offsets 0 to {starts[1] - 1} are below the log start {log_start}; failOnDataLoss=f"
    )
    with pytest.raises((PySparkException, Py4JJavaError), match=told):
        failing.count()


def segment_starts(cluster: KafkaCluster, topic: str) -> list[int]:
    return sorted(int(path.name[:20]) for path in cluster.tier_dir.glob(f"**/{topic}-0-*/*.log"))
