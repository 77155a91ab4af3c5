"""Tidegate on Spark: the KIP-405 tier as the data source `tidegate`.

    import tidegate_spark
    tidegate_spark.register(spark)
    rows = spark.read.format("tidegate").option("config", "tidegate.properties").option("subscribe", "orders").load()

Everything of ours is below this name, so that no module of yours is shadowed, whatever its name. Libraries that the
zip for `--py-files` brings stand at the end of sys.path: see `tidegate_spark._bundled`.
"""

import importlib
from typing import TYPE_CHECKING, Any

from tools.spark_package.shipped._bundled import make_importable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

make_importable()

__all__ = ["TidegateDataSource", "commit_offsets", "register"]


def register(spark: "SparkSession") -> None:
    """From now on `spark.read.format("tidegate")` and `spark.readStream.format("tidegate")` know us.

    Raises:
        RuntimeError: this Spark is older than 4.0.
    """
    importlib.import_module("pipeline.session").register(spark)


def __getattr__(name: str) -> Any:
    # Late, because executors import this package without ever needing the source itself.
    if name == "TidegateDataSource":
        return importlib.import_module("pipeline.data_source").TidegateDataSource
    if name == "commit_offsets":
        return importlib.import_module("pipeline.stream_offsets").commit_offsets
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
