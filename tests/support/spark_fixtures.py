"""Fixtures that cost seconds, for tests/spark/conftest.py to import: the built package, and a standalone Spark.

Both are of the session. Nothing of pyspark is imported before one of them is used. Their folders are removed at the
end, unlike pytest's own, which stay for three runs: they hold the libraries several times over.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.spark_cluster import SparkCluster, own_spark_cluster
from tools.spark_package.build import Built, build


@pytest.fixture(scope="session")
def spark_package() -> Iterator[Built]:
    """Yield what `make spark-package` makes."""
    with tempfile.TemporaryDirectory(prefix="tidegate-spark-package-") as folder:
        yield build(Path(folder))


@pytest.fixture(scope="session")
def spark_cluster() -> Iterator[SparkCluster]:
    """A master and two workers for all tests; submit what you like, and read the logs of your own application."""
    with (
        tempfile.TemporaryDirectory(prefix="tidegate-spark-cluster-", ignore_cleanup_errors=True) as folder,
        own_spark_cluster(Path(folder)) as cluster,
    ):
        yield cluster
