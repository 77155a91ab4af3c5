"""Fixtures that the long tests share with the files that they continue."""

from tests.spark.test_spark_page import reader
from tests.spark.test_spark_submit import config
from tests.spark.test_values import values

__all__ = ["config", "reader", "values"]
