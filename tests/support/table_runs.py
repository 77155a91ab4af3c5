"""Runs of a backfill into tables without Kafka: rows that follow from their offsets alone, and what is in a table.

`driver` is a process that does a run, for a test to kill.
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from pipeline.jobs.sink import OffsetRange, Run, RunState, Step, in_order
from pipeline.jobs.table_format import TableName
from pipeline.jobs.tables import DELTA, TableOptions, TableSink
from tests.support.needs import ROOT
from tests.support.waiting import wait_until

TOPIC = "orders"
PARTITIONS = 2
STEPS = 6
OFFSETS = 60
"""By partition and run."""
DRIVER_S_MAX = 180.0
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")


def table_settings(folder: Path) -> dict[str, str]:
    """Catalogs of both formats: `lake` keeps Iceberg tables in the folder."""
    return {
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "hadoop",
        "spark.sql.catalog.lake.warehouse": folder.as_uri(),
        # Delta cuts a table's log into 50 tasks.
        "spark.databricks.delta.snapshotPartitions": "1",
    }


def table_folder(table_format: str, folder: Path, name: str) -> Path:
    """Return where its files are."""
    return folder / ("delta" if table_format == DELTA else "db") / name


def table_name(table_format: str, folder: Path, name: str) -> str:
    """A table that outlives its driver."""
    return f"delta.`{table_folder(table_format, folder, name)}`" if table_format == DELTA else f"lake.db.{name}"


def run_of(number: int, *, offsets: int = OFFSETS, steps: int = STEPS) -> Run:
    """The number of a run gives its ranges: each goes on where the one before it ended."""
    first = (number - 1) * offsets
    ranges = [OffsetRange(TOPIC, partition, first, first + offsets) for partition in range(PARTITIONS)]
    return Run(number=number, topics={TOPIC: "id"}, ranges=in_order(ranges), steps_count=steps, options={"a": "it's"})


def rows_of(spark: SparkSession, ranges: Sequence[OffsetRange]) -> DataFrame:
    """A record for each offset, over three days."""
    parts = [
        spark.range(each.start, each.end, 1, 1).select(
            sql.encode(sql.concat(sql.lit("key-"), sql.col("id")), "utf-8").alias("key"),
            sql.unhex(sql.sha2(sql.concat_ws("/", sql.lit(each.partition), "id"), 256)).alias("value"),
            sql.lit(each.topic).alias("topic"),
            sql.lit(each.partition).alias("partition"),
            sql.col("id").alias("offset"),
            sql.timestamp_millis(sql.col("id") * 7_200_000 % 259_200_000).alias("timestamp"),
            sql.lit(0).alias("timestampType"),
        )
        for each in ranges
    ]
    return reduce(DataFrame.unionByName, parts)


def contents(rows: DataFrame) -> tuple[int, int, int]:
    """Rows, offsets, and a digest of all of it that does not depend on the order."""
    digest = sql.sum(sql.xxhash64(*COLUMNS).cast("decimal(38,0)")).alias("digest")
    found = rows.agg(sql.count("*"), sql.count_distinct("partition", "offset"), digest).collect()[0]
    return int(found[0]), int(found[1]), int(found[2] or 0)


def expected(spark: SparkSession, *runs: Run) -> tuple[int, int, int]:
    return contents(rows_of(spark, [each for run in runs for each in run.ranges]))


def sink_of(spark: SparkSession, name: str, told: list[str] | None = None, **options: Any) -> TableSink:
    tell = print if told is None else told.append
    return TableSink(spark, TableOptions(name=TableName.parse(name), **options), tell)


def do(spark: SparkSession, sink: TableSink, run: Run, *, steps: int | None = None) -> RunState:
    """Go on with this run, or begin it, as a driver does. `steps`: how many at most; else to its end."""
    state = begun(sink, run)
    for step in state.left[:steps]:
        append(spark, sink, run, step)
    if steps is None:
        sink.finish(state, {"steps": run.steps_count})
    return state


def begun(sink: TableSink, run: Run) -> RunState:
    state = sink.last_run()
    if state is None or state.run.number != run.number:
        assert state is None or not state.left
        state = RunState(run)
        sink.begin(run)
    sink.clean(state)
    return state


def append(spark: SparkSession, sink: TableSink, run: Run, step: Step) -> Mapping[str, Any]:
    return sink.append(rows_of(spark, step.ranges), run, step, lambda: {"rows": step.offsets, "digest": "0"})


@contextmanager
def driver(table_format: str, folder: Path, name: str) -> Iterator["subprocess.Popen[str]"]:
    """A process that does the first run into this table, in a group of its own; nothing of it is left."""
    command = [sys.executable, "-m", __name__, table_format, str(folder), name]
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True
        )
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):  # it has ended by itself
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def wait_for_files(folder: Path, count: int, process: "subprocess.Popen[str]") -> None:
    """Until a table's folder has so many files, or its driver is done."""
    wait_until(
        lambda: sum(len(files) for _, _, files in os.walk(folder)) >= count or process.poll() is not None,
        f"{count} files in {folder}",
        timeout_s=DRIVER_S_MAX,
    )


def main(table_format: str, folder: Path, name: str) -> None:
    """See above."""
    from tests.support.spark_session import running_spark

    with (
        tempfile.TemporaryDirectory(prefix="tidegate-tables-", ignore_cleanup_errors=True) as own,
        running_spark(Path(own), table_settings(folder)) as running,
    ):
        spark = running.session
        do(spark, sink_of(spark, table_name(table_format, folder, name), format=table_format), run_of(1))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
