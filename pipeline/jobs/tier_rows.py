"""The tier source's rows, planned in this process: for a job that reads the same topics in many steps.

`format("tidegate")` is planned by Python processes that Spark starts beside the driver and ends when they have been
idle for a minute: steps that take longer would each read the metadata topic and the transaction indexes again. Here all
plans are made from the one tier that this process keeps open, and Spark is given a source whose plan is made already.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pipeline.data_source import TidegateDataSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAME = "tidegate-planned"

_registering = threading.Lock()
"""A session knows one source by this name, the last; what was loaded keeps its own."""


def tier_rows(spark: "SparkSession", options: Mapping[str, str]) -> "DataFrame":
    """The rows of `spark.read.format("tidegate").options(**options).load()`.

    Raises:
        OptionsError: the options are wrong; and whatever planning raises (pipeline.data_source.TierReader.partitions).
    """
    source = TidegateDataSource(dict(options))
    schema = source.schema()
    reader = source.reader(schema)
    reader.is_of_job = True
    planned = PlannedReader(reader, reader.partitions())

    # Made here, and not in the module: so Spark sends it as a value, with what it refers to.
    class PlannedSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return NAME

        def schema(self) -> StructType:
            return schema

        def reader(self, schema: StructType) -> DataSourceReader:
            return planned

    with _registering:
        spark.dataSource.register(PlannedSource)
        return spark.read.format(NAME).load()


class PlannedReader(DataSourceReader):
    """Reads what was planned before."""

    def __init__(self, reader: DataSourceReader, partitions: Sequence[InputPartition]) -> None:
        self._reader, self._partitions = reader, partitions

    def partitions(self) -> Sequence[InputPartition]:
        return self._partitions

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a task; Spark asks for None when there are no tasks."""
        rows: Iterator[pa.RecordBatch] = iter(self._reader.read(partition))
        return rows
