"""The source by SQL alone: a table, and what Spark does not do for it."""

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from tests.support.source_rows import tier_options
from tests.support.spark_topics import TRIMMED, TRIMMED_AT, SparkTopics

pytestmark = [pytest.mark.needs("spark", "java", "kafka"), pytest.mark.integration]

COUNTED = "count(*), min(offset), max(offset)"


@pytest.fixture
def options(spark_topics: SparkTopics) -> dict[str, str]:
    return tier_options(spark_topics, TRIMMED)


@pytest.fixture
def wanted(spark_topics: SparkTopics) -> tuple[int, int, int]:
    last = spark_topics.topics[TRIMMED].offsets[0].latest_tiered_offset
    return last + 1 - TRIMMED_AT, TRIMMED_AT, last


def test_a_table_reads_by_the_options_of_each_select_and_says_so(
    spark: SparkSession, options: dict[str, str], wanted: tuple[int, int, int]
) -> None:
    """Spark's catalog keeps a table's options to itself. Given a table, when it is read without options, then one
    sentence says what to write; with them in the SELECT it is read."""
    listed = ", ".join(f"{name} '{value}'" for name, value in options.items())
    given = ", ".join(f"{name} = '{value}'" for name, value in options.items())
    spark.sql(f"CREATE TABLE orders_table USING tidegate OPTIONS ({listed})")
    try:
        with pytest.raises(AnalysisException, match=r"TidegateError: there are no options: .* FROM … WITH \(config="):
            spark.sql("SELECT * FROM orders_table").count()
        assert tuple(spark.sql(f"SELECT {COUNTED} FROM orders_table WITH ({given})").first() or ()) == wanted
        with pytest.raises(AnalysisException):
            spark.sql("INSERT INTO orders_table SELECT * FROM orders_table")
    finally:
        spark.sql("DROP TABLE orders_table")
