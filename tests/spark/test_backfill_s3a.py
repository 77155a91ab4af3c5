"""`backfill` into `s3a://`, on a real S3 server: by the magic committer, killed in the midst and run again."""

import pytest
from pyspark.sql import SparkSession

from pipeline.jobs.command_line import main
from tests.support.spark_topics import WIDE, SparkTopics

pytestmark = pytest.mark.usefixtures("logs_stay_as_they_are")


def test_without_hadoops_client_a_sentence_says_what_to_add(
    spark: SparkSession, spark_topics: SparkTopics, capfd: pytest.CaptureFixture[str]
) -> None:
    config = str(spark_topics.tidegate.process.properties_path)
    assert main(["backfill", "--config", config, "--topic", WIDE, "--output", "s3a://lake/out"]) == 2
    told = capfd.readouterr().err
    assert "s3a:// needs Hadoop's S3A client: --conf spark.jars.packages=org.apache.hadoop:hadoop-aws:3." in told
    assert f",org.apache.spark:spark-hadoop-cloud_2.13:{spark.version}" in told
