"""`format("tidegate")` over a tier in GCS and in Azure, as Aiven's plug-in writes it there: executors read the store
themselves, with credentials that only the driver's machine has."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.test_other_stores import assert_reads_alike
from tests.support.azurite import azurite
from tests.support.spark_topics import SparkTopics


@pytest.mark.needs("azurite")
def test_a_tier_in_azure_is_read_by_a_connection_string(
    spark: SparkSession, spark_topics: SparkTopics, tmp_path: Path
) -> None:
    with azurite(tmp_path) as server:
        assert_reads_alike(spark, spark_topics, server, tmp_path)
