"""A backfill by Spark, three ways over the same offsets: its Kafka source at broker and Tidegate, and the tier source.

    python benchmarks/spark_backfill.py [--rounds 5] [--megabytes 1500] [--json]

One topic of two partitions for each size of record, 100 B and 1 KB, every offset that is read below the broker's local
log start, in Kafka's LocalTieredStorage. Spark has two cores of its own accord and writes to nowhere (`noop`), so that
decoding is all it does. Its Python workers are a cluster's: pyspark, pyarrow, numpy, and `tidegate_spark` as it is
shipped. What each side costs the broker is counted: its remote fetches, none for the last two. A range of a gigabyte
or more: planning takes the tier source a second, and Spark some 0.15 s a core for any Python task.

Exit code 1 when the tier source is slower than the Kafka source at the broker, when a side gives other rows, or when
the broker read the tier for a side that is not its own.
"""

import importlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pyspark.sql import DataFrame, SparkSession

from benchmarks.support.comparison import Report, Row, show
from benchmarks.support.options import parse_options
from benchmarks.support.stage import TIERED_CONFIGS, Stage, bootstrap_of, set_up
from pipeline.session import start_session
from tests.support.spark_cluster import cluster_python
from tools.spark_package.build import build

RECORD_SIZES = (100, 1024)
TIER_FLOOR, TIER_AIM = 1.0, 2.0
SPARK_JARS = Path(__file__).resolve().parents[1] / "build" / "spark" / "jars"
SPARK = {
    "spark.master": "local[2]",
    "spark.driver.memory": "2g",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
}
BROKER, TIDEGATE, TIER = "Kafka source, broker", "Kafka source, Tidegate", "tier source"


@dataclass(slots=True)
class Side:
    """One way to read, and what its rounds took."""

    name: str
    load: Callable[[], DataFrame]
    seconds: list[float]
    remote_fetches: int = 0


def main() -> int:
    options = parse_options(
        "Spark: the Kafka source at the broker and at Tidegate, and the tier source.", megabytes=1500
    )
    report = Report("a backfill by Spark, rows written to nowhere")
    with tempfile.TemporaryDirectory(prefix="tidegate-benchmark-") as folder, cluster_session(Path(folder)) as spark:
        for record_bytes in RECORD_SIZES:
            with set_up(
                megabytes=options.megabytes, topic_configs=TIERED_CONFIGS, is_tiered=True, record_bytes=record_bytes
            ) as stage:
                measure(spark, stage, record_bytes, options.rounds, report)
    show(report, as_json=options.as_json)
    return 0 if report.holds else 1


@contextmanager
def cluster_session(folder: Path) -> Iterator[SparkSession]:
    """Spark with the connector's jars, and Python workers that have what a cluster has and the zip of ours."""
    built = build(folder / "package")
    os.environ["PYSPARK_PYTHON"] = str(cluster_python(folder / "python"))
    jars = ",".join(str(jar) for jar in sorted(SPARK_JARS.glob("*.jar")))
    spark = start_session("tidegate-benchmark", {**SPARK, "spark.jars": jars})
    try:
        spark.sparkContext.addPyFile(str(built.zip))
        sys.path.insert(0, str(built.zip))
        importlib.import_module("tidegate_spark").register(spark)
        yield spark
    finally:
        spark.stop()


def measure(spark: SparkSession, stage: Stage, record_bytes: int, rounds: int, report: Report) -> None:
    """The rows of one size of record, on a stage that is ready."""
    ends = {str(partition): known.local_log_start_offset for partition, known in stage.offsets.items()}
    rows = sum(ends.values())
    with tempfile.TemporaryDirectory() as folder:
        sides = _sides(spark, stage, _properties(stage, Path(folder)), {stage.topic: ends})
        for side in sides:
            # The first read of each also warms up Spark, page cache and JVMs.
            if (count := side.load().count()) != rows:
                report.complaints.append(f"{side.name}: {count} rows of {rows}")
        for number in range(rounds):
            for side in sides if number % 2 == 0 else sides[::-1]:
                _round(stage, side)
    _report(report, record_bytes, rows, sides)


def _round(stage: Stage, side: Side) -> None:
    broker = stage.cluster.broker(1)
    fetches, started_s = broker.remote_fetch_requests(stage.topic), time.monotonic()
    side.load().write.format("noop").mode("overwrite").save()
    side.seconds.append(time.monotonic() - started_s)
    side.remote_fetches += broker.remote_fetch_requests(stage.topic) - fetches


def _report(report: Report, record_bytes: int, rows: int, sides: list[Side]) -> None:
    direct = sides[0]
    for side in sides:
        if side is direct:
            continue
        is_tier = side.name == TIER
        ratio = statistics.median(a / b for a, b in zip(direct.seconds, side.seconds, strict=True))
        figures = tuple(f"{rows / statistics.median(each.seconds):,.0f} rows/s" for each in (direct, side))
        floor, aim = (TIER_FLOOR, TIER_AIM) if is_tier else (None, None)
        report.rows.append(Row(f"{record_bytes} B: {side.name}", figures[0], figures[1], ratio, floor=floor, aim=aim))
        if side.remote_fetches:
            report.complaints.append(f"{record_bytes} B: the broker read the tier for the {side.name}")
    for side in sides:
        megabytes_s = rows * record_bytes / 1e6 / statistics.median(side.seconds)
        report.notes.append(
            f"{record_bytes} B, {side.name}: {megabytes_s:,.0f} MB/s of values, {side.remote_fetches} remote fetches by"
            f" the broker, rounds {', '.join(f'{each:.1f}' for each in side.seconds)} s"
        )


def _sides(spark: SparkSession, stage: Stage, config: Path, ends: Mapping[str, Mapping[str, int]]) -> list[Side]:
    bounds = {"subscribe": stage.topic, "startingOffsets": "earliest", "endingOffsets": json.dumps(ends)}

    def kafka(bootstrap: str) -> Callable[[], DataFrame]:
        return lambda: spark.read.format("kafka").options(**bounds).option("kafka.bootstrap.servers", bootstrap).load()

    def tier() -> DataFrame:
        return spark.read.format("tidegate").options(**bounds).option("config", str(config)).load()

    return [
        Side(BROKER, kafka(bootstrap_of(stage.direct)), []),
        Side(TIDEGATE, kafka(bootstrap_of(stage.through)), []),
        Side(TIER, tier, []),
    ]


def _properties(stage: Stage, folder: Path) -> Path:
    path = folder / "tidegate.properties"
    lines = {
        "upstream.bootstrap.servers": bootstrap_of(stage.direct),
        "broker.config": str(stage.cluster.server_properties_path(1)),
    }
    path.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    return path


if __name__ == "__main__":
    sys.exit(main())
