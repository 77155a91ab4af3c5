"""Fixtures that the long tests share with the files that they continue."""

from tests.spark.test_spark_page import reader
from tests.spark.test_spark_submit import config

__all__ = ["config", "reader"]
