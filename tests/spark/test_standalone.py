"""Both Spark sources in front of brokers without remote storage: what only a tier of our own has is read, too."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.differential_steps import delete_records
from tests.support.kafka import orders, produce
from tests.support.plain_kafka import own_plain_cluster, run_standalone, standalone
from tests.support.source_rows import assert_same_rows, cached, read_kafka

pytestmark = [pytest.mark.integration, pytest.mark.needs("java", "kafka", "spark")]

TOPIC = "spark-own-tier"
RECORDS = 4000


def test_both_sources_read_what_the_broker_has_deleted(spark: SparkSession, tmp_path: Path) -> None:
    """Given two partitions that were copied, when the broker has deleted three quarters of each, then Spark's Kafka
    source through Tidegate and the tier source at the brokers give the rows that the broker gave before."""
    properties = {"copy.topics": TOPIC, "copy.segment.bytes": "64 KiB"}
    with own_plain_cluster() as kafka:
        kafka.create_topic(TOPIC, 2)
        produce(kafka, TOPIC, orders(RECORDS, 2))
        with cached(read_kafka(spark, kafka.bootstrap_servers, TOPIC)) as before:
            assert before.count() == RECORDS
            copied = run_standalone(kafka, tmp_path, "copy", "--once", properties=properties)
            assert copied.returncode == 0, copied.stderr
            for partition in range(2):
                delete_records(kafka, TOPIC, partition, RECORDS * 3 // 8)
            with standalone(kafka, tmp_path, properties) as tidegate:
                tidegate.wait_log("ready: ")
                options = {"config": str(tidegate.file), "subscribe": TOPIC, "includeHeaders": "true"}
                assert_same_rows(read_kafka(spark, tidegate.bootstrap, TOPIC), before)
                assert_same_rows(spark.read.format("tidegate").options(**options).load(), before)
