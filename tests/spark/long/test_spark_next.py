"""The source on the pyspark after the one that the other tests have: a selection, in a process of its own."""

from pathlib import Path

import pytest

from tests.spark.test_spark_next import found_by_next
from tests.support.spark_topics import PLAIN, SparkTopics

pytestmark = [pytest.mark.needs("spark", "spark-4.3", "java", "kafka"), pytest.mark.integration]


def tiered(topics: SparkTopics) -> list[list[int]]:
    """By partition: rows in the tier, first and last offset."""
    return [
        [partition, offsets.latest_tiered_offset + 1, 0, offsets.latest_tiered_offset]
        for partition, offsets in sorted(topics.topics[PLAIN].offsets.items())
    ]


def test_batches_streams_sql_and_the_kafka_source_read_on_spark_4_3(spark_topics: SparkTopics, tmp_path: Path) -> None:
    """`availableNow` ended after its first batch, 16,514 of 296,634 rows. It takes all, in several."""
    found = found_by_next(spark_topics, tmp_path, "offsets,kafka,stream,sql,values")
    wanted = tiered(spark_topics)
    first_run, second_run = found["stream"].pop("batches")
    assert first_run > 1
    assert second_run == 0
    assert found == {
        "offsets": wanted,
        "kafka": True,
        "stream": {"offsets": wanted},
        "sql": [sum(rows for _, rows, *_ in wanted)] * 2,
        "values": ["struct<id:bigint>", 0, True],
    }
