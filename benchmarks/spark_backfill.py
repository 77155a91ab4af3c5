"""A backfill by Spark, three ways over the same offsets: its Kafka source at broker and Tidegate, and the tier source.

    python benchmarks/spark_backfill.py [--rounds 3] [--megabytes 1600] [--stores local,s3] [--record-bytes 100,1024] \
[--json]

One topic of two partitions for each size of record, every offset that is read below the broker's local log start.
`local` is Kafka's LocalTieredStorage. `s3` is the same folder as a bucket of versitygw behind 30 ms to the first byte
and 60 MB/s a connection; broker (benchmarks/java/S3TieredStorage.java), Tidegate and Spark's tasks all read it from
there. Each round has a Tidegate of its own, so that its cache is empty.

Spark has two cores of its own accord and writes to nowhere (`noop`), so that decoding is all it does. Its Python
workers are a cluster's: pyspark, pyarrow, numpy, and the zip for `--py-files`. What each side costs the broker is
counted: its processor time, and its remote fetches, none for the last two.

Exit code 1 when the tier source is slower than the Kafka source at the broker, when a side gives other rows, or when
the broker read the tier for a side that is not its own.
"""

import argparse
import importlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from benchmarks.support.comparison import Report, Row, show
from benchmarks.support.processor_time import watch
from benchmarks.support.shaped_store import BUCKET, ShapedStore, s3_client, shaped_store
from benchmarks.support.stage import JVM_OPTIONS, TIERED_CONFIGS, bootstrap_of, fill_topic, stage_on
from pipeline.session import start_session
from tests.support.broker_plugin import jars_with
from tests.support.kafka import own_cluster
from tests.support.spark_cluster import cluster_python, processes_below
from tools.demo.kafka_cluster import KafkaCluster, PartitionOffsets
from tools.demo.kafka_properties import properties_text
from tools.spark_package.build import build

TOPIC = "benchmark"
FIRST_BYTE_MS, CONNECTION_MEGABYTES_PER_S = 30, 60
BROKER_FLOOR, BROKER_AIMS = 1.0, {"local": 1.5, "s3": 3.0}
TIDEGATE_AIM = 1.2
"""Aim for the tier source over S3, against the Kafka source at Tidegate."""
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


@dataclass(frozen=True, slots=True)
class Options:
    """What is measured."""

    rounds: int
    megabytes: int
    stores: tuple[str, ...]
    record_bytes: tuple[int, ...]
    as_json: bool


@dataclass(slots=True)
class Side:
    """One way to read, and what its rounds took."""

    name: str
    load: Callable[[], AbstractContextManager[DataFrame]]
    seconds: list[float] = field(default_factory=list)
    broker_cpu_s: list[float] = field(default_factory=list)
    remote_fetches: int = 0


@dataclass(frozen=True, slots=True)
class Tiered:
    """A filled topic, and how its tier is reached."""

    cluster: KafkaCluster
    offsets: Mapping[int, PartitionOffsets]
    tier_properties: Path
    """Name the tier to its readers as a broker would."""


def main() -> int:
    options = parse_options()
    report = Report("a backfill by Spark, rows written to nowhere")
    with tempfile.TemporaryDirectory(prefix="tidegate-benchmark-") as folder, cluster_session(Path(folder)) as spark:
        for store, record_bytes in product(options.stores, options.record_bytes):
            work = Path(folder, f"{store}-{record_bytes}")
            work.mkdir()
            with STORES[store](work, options.megabytes, record_bytes) as tiered:
                Comparison(spark, tiered, store, record_bytes, work, report).measure(options.rounds)
    show(report, as_json=options.as_json)
    return 0 if report.holds else 1


def parse_options(arguments: list[str] | None = None) -> Options:
    """From the command line."""
    parser = argparse.ArgumentParser(description="Spark: the Kafka source at broker and Tidegate, and the tier source.")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each comparison (3)")
    parser.add_argument("--megabytes", type=int, default=1600, help="data in each topic (1600)")
    parser.add_argument("--stores", default="local,s3", help="where the tier lies (local,s3)")
    parser.add_argument("--record-bytes", default="100,1024", help="sizes of records (100,1024)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    chosen = parser.parse_args(arguments)
    stores = tuple(chosen.stores.split(","))
    if unknown := set(stores) - set(STORES):
        parser.error(f"--stores: {', '.join(sorted(unknown))}; there are {', '.join(STORES)}")
    sizes = tuple(map(int, chosen.record_bytes.split(",")))
    return Options(chosen.rounds, chosen.megabytes, stores, sizes, chosen.json)


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
        importlib.import_module("tidegate.spark").register(spark)
        yield spark
    finally:
        spark.stop()


# --- where the tier lies ---


@contextmanager
def in_a_folder(work: Path, megabytes: int, record_bytes: int) -> Iterator[Tiered]:
    """Kafka's LocalTieredStorage, read where it is written."""
    with own_cluster(jvm_options=JVM_OPTIONS) as cluster:
        yield Tiered(cluster, _filled(cluster, megabytes, record_bytes), cluster.server_properties_path(1))


@contextmanager
def in_s3(work: Path, megabytes: int, record_bytes: int) -> Iterator[Tiered]:
    """The same folder, shown as a bucket over a slow link."""
    shape = {"first_byte_ms": FIRST_BYTE_MS, "connection_megabytes_per_s": CONNECTION_MEGABYTES_PER_S}
    with shaped_store(work, ["http"], kind="s3", **shape) as store:
        _let_everybody_read(store)
        tier_dir = work / "s3" / BUCKET
        plugin = {
            "remote.log.storage.manager.class.name": "S3TieredStorage",
            "rsm.config.dir": str(tier_dir),
            "rsm.config.url": f"{store.ways['http'].url}/{BUCKET}/",
        }
        jars = jars_with(Path(__file__).parent / "java" / "S3TieredStorage.java", work)
        with own_cluster(jvm_options=JVM_OPTIONS, jars=jars, properties=plugin) as cluster:
            offsets = _filled(cluster, megabytes, record_bytes)
            keys = {**store.ways["http"].tidegate_keys(), "key.prefix": "kafka-tiered-storage/"}
            path = work / "tier.properties"
            path.write_text(
                properties_text(
                    {"remote.log.storage.manager.class.name": "tidegate.PlainObjects"}
                    | {f"rsm.config.{name}": value for name, value in keys.items()}
                )
            )
            yield Tiered(cluster, offsets, path)


STORES: dict[str, Callable[[Path, int, int], AbstractContextManager[Tiered]]] = {"local": in_a_folder, "s3": in_s3}


def _filled(cluster: KafkaCluster, megabytes: int, record_bytes: int) -> dict[int, PartitionOffsets]:
    return fill_topic(cluster, TOPIC, megabytes, TIERED_CONFIGS, is_tiered=True, record_bytes=record_bytes)


def _let_everybody_read(store: ShapedStore) -> None:
    """The broker's class signs nothing."""
    statement = {
        "Effect": "Allow",
        "Principal": "*",
        "Action": ["s3:GetObject"],
        "Resource": [f"arn:aws:s3:::{BUCKET}/*"],
    }
    policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    s3_client(store.plain_url).put_bucket_policy(Bucket=BUCKET, Policy=policy)


# --- three sides ---


class Comparison:
    """One size of record in one store."""

    def __init__(
        self, spark: SparkSession, tiered: Tiered, store: str, record_bytes: int, work: Path, report: Report
    ) -> None:
        self._spark, self._tiered, self._work, self._report = spark, tiered, work, report
        self._store, self._record_bytes = store, record_bytes
        ends = {str(partition): known.local_log_start_offset for partition, known in tiered.offsets.items()}
        self._rows = sum(ends.values())
        self._bounds = {"subscribe": TOPIC, "startingOffsets": "earliest", "endingOffsets": json.dumps({TOPIC: ends})}
        self._sides = [Side(BROKER, self._at_broker), Side(TIDEGATE, self._at_tidegate), Side(TIER, self._at_tier)]

    def measure(self, rounds: int) -> None:
        """All rounds; the first read of each side also warms up Spark, page cache and JVMs, and is not timed."""
        digests = {side.name: self._digest(side) for side in self._sides}
        if len(set(digests.values())) > 1 or digests[TIER][0] != self._rows:
            self._report.complaints.append(f"{self._name}: rows and digests differ: {digests}; {self._rows} rows asked")
        for number in range(rounds):
            for side in self._sides if number % 2 == 0 else self._sides[::-1]:
                self._round(side)
        self._tell()

    @property
    def _name(self) -> str:
        return f"{self._store}, {self._record_bytes} B"

    @contextmanager
    def _at_broker(self) -> Iterator[DataFrame]:
        yield self._kafka(self._tiered.cluster.bootstrap_servers)

    @contextmanager
    def _at_tidegate(self) -> Iterator[DataFrame]:
        cluster, offsets = self._tiered.cluster, self._tiered.offsets
        # Each of its own, so that nothing is taken from the log of the last one.
        with (
            tempfile.TemporaryDirectory(dir=self._work) as folder,
            stage_on(cluster, TOPIC, offsets, Path(folder), None, self._tiered.tier_properties) as stage,
        ):
            yield self._kafka(bootstrap_of(stage.through))

    def _at_tier(self) -> AbstractContextManager[DataFrame]:
        path = self._work / "source.properties"
        lines = {
            "upstream.bootstrap.servers": self._tiered.cluster.bootstrap_servers,
            "broker.config": str(self._tiered.tier_properties),
        }
        path.write_text(properties_text(lines))
        return nullcontext(
            self._spark.read.format("tidegate").options(**self._bounds).option("config", str(path)).load()
        )

    def _kafka(self, bootstrap: str) -> DataFrame:
        reader = self._spark.read.format("kafka").options(**self._bounds)
        return reader.option("kafka.bootstrap.servers", bootstrap).load()

    def _digest(self, side: Side) -> tuple[int, str]:
        """Return how many rows, and a sum that does not depend on their order."""
        with side.load() as rows:
            value = sql.xxhash64("partition", "offset", "timestamp", "key", "value").cast("decimal(38,0)")
            (found,) = rows.agg(sql.count("*"), sql.sum(value)).collect()
        return int(found[0]), str(found[1])

    def _round(self, side: Side) -> None:
        broker = self._tiered.cluster.broker(1)
        fetches = broker.remote_fetch_requests(TOPIC)
        with side.load() as rows, watch({"broker": broker.pid}) as spent:
            started_s = time.monotonic()
            rows.write.format("noop").mode("overwrite").save()
            side.seconds.append(time.monotonic() - started_s)
        side.broker_cpu_s.append(spent.cpu_s["broker"])
        side.remote_fetches += broker.remote_fetch_requests(TOPIC) - fetches

    def _tell(self) -> None:
        broker, tidegate, tier = self._sides
        self._row(broker, tidegate)
        self._row(broker, tier, floor=BROKER_FLOOR, aim=BROKER_AIMS[self._store])
        self._row(tidegate, tier, floor=None, aim=TIDEGATE_AIM if self._store == "s3" else None)
        for side in self._sides:
            if side is not broker and side.remote_fetches:
                self._report.complaints.append(f"{self._name}: the broker read the tier for the {side.name}")
            megabytes_s = self._rows * self._record_bytes / 1e6 / statistics.median(side.seconds)
            self._report.notes.append(
                f"{self._name}, {side.name}: {megabytes_s:,.0f} MB/s of values, rounds "
                f"{', '.join(f'{each:.1f}' for each in side.seconds)} s; broker "
                f"{statistics.median(side.broker_cpu_s):.1f} core-s a round, {side.remote_fetches} remote fetches"
            )
        self._report.notes.append(
            f"{self._name}: Spark's Python workers held at most {workers_peak_mib():,.0f} MiB each"
        )

    def _row(self, direct: Side, side: Side, floor: float | None = None, aim: float | None = None) -> None:
        ratio = statistics.median(a / b for a, b in zip(direct.seconds, side.seconds, strict=True))
        figures = tuple(f"{self._rows / statistics.median(each.seconds):,.0f} rows/s" for each in (direct, side))
        name = f"{self._name}: {side.name} / {direct.name}"
        self._report.rows.append(Row(name, figures[0], figures[1], ratio, floor=floor, aim=aim))


def workers_peak_mib() -> float:
    """Return the largest resident set so far of any worker that runs now (Linux)."""
    peaks = [0.0]
    for pid in processes_below(Path(os.environ["PYSPARK_PYTHON"]).parents[2]):
        status = Path(f"/proc/{pid}/status")
        if status.exists():
            fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
            peaks.append(int(fields.get("VmHWM", "0 kB").split()[0]) / 1024)
    return max(peaks)


if __name__ == "__main__":
    sys.exit(main())
