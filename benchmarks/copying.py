"""How fast `tidegate copy` copies, beside plain uploads of the same segments, and what a producer notices of it.

    python benchmarks/copying.py [--quick] [--rounds 3] [--megabytes 512] [--stores folder,s3] [--json]

A broker without remote storage has one topic of two partitions. In each round of a row the same bytes are put into a
store twice: the broker's own segment files by the file system (copied and synced) or by boto3's upload_file, one after
another; and by `tidegate copy --once`, a process of its own that fetches them, indexes them, writes them in Aiven's
format (plain, zstd, zstd and encrypted) and publishes their metadata. It is timed from when it has the partitions to
when all is finished. Its core-seconds are the whole process's, less those of one that finds nothing left to copy.

Then a producer's latency at the broker, alone and while a copier copies as fast as it can, in alternating rounds.

The name is not copy.py, since the standard library has one and scripts come first. Exit code 1 when the tier does not
hold what the broker does.
"""

import argparse
import json
import os
import random
import secrets
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from benchmarks.support.comparison import Report, Row, alternate, latency_row, show, throughput_row
from benchmarks.support.stage import BATCH_BYTES, JVM_OPTIONS, MEGABYTE, PARTITIONS
from benchmarks.support.steady_producer import Latencies, SteadyProducer
from benchmarks.support.tidegate_usage import cpu_s
from tests.support.kafka import own_cluster
from tests.support.plain_kafka import WITHOUT_TIER, before_plain_kafka
from tests.support.s3_server import CREDENTIALS, REGION, S3Server
from tests.support.versitygw import versitygw
from tests.support.waiting import wait_until
from tests.support.writing_tiers import aiven_config
from tools.demo.kafka_cluster import KafkaCluster
from tools.demo.kafka_properties import properties_text

STORES = ("folder", "s3")
TRANSFORMS = {"plain": (False, False), "zstd": (True, False), "zstd+aes": (True, True)}
TOPIC, PRODUCED = "copied", "produced"
METADATA_TOPIC = "__remote_log_metadata"
AIVEN = "io.aiven.kafka.tieredstorage.RemoteStorageManager"
CHUNK_BYTES = 4 * 1024 * 1024
SEGMENT_BYTES = 64 * 1024 * 1024
RECORD_BYTES = 1024
RANDOM_BYTES = 307
"""In each record, so that zstd makes a third of it, as in store.py."""

PLAIN_AIM = 100.0
"""MB/s a core."""

RECORDS_PER_S = 400
PACED = "16 MiB"
BEGUN, DONE = "copy_partitions_assigned", "copy_once_done"
"""Events of a copier's log."""

BEGUN_S_MAX = 60.0


@dataclass(frozen=True, slots=True)
class Options:
    """`seconds` is one side of one round of the producer."""

    rounds: int
    megabytes: int
    seconds: float
    stores: tuple[str, ...]
    transforms: tuple[str, ...]
    as_json: bool


@dataclass(frozen=True, slots=True)
class Put:
    """One way of putting all segments into a store, once."""

    size_bytes: int
    wall_s: float
    core_s: float

    @property
    def megabytes_per_s(self) -> float:
        return self.size_bytes / self.wall_s / 1e6

    @property
    def megabytes_per_core_s(self) -> float:
        return self.size_bytes / self.core_s / 1e6


@dataclass(frozen=True, slots=True)
class Store:
    """A store that is empty each time: our keys for the next one, and the plain upload of a file."""

    next_keys: Callable[[], Mapping[str, str]]
    put_bare: Callable[[Path], None]


def main() -> int:
    options = parse_options()
    report = Report("segments copied out of a broker without remote storage")
    with own_cluster(jvm_options=JVM_OPTIONS, properties=WITHOUT_TIER) as kafka:
        fill(kafka, options.megabytes)
        with tempfile.TemporaryDirectory(prefix="tidegate-copying-") as work:
            measure(kafka, Path(work), options, report)
    show(report, as_json=options.as_json)
    return 0 if report.holds else 1


def parse_options(arguments: list[str] | None = None) -> Options:
    parser = argparse.ArgumentParser(description="`tidegate copy` beside plain uploads of the same segments.")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each comparison (3)")
    parser.add_argument("--megabytes", type=int, default=512, help="in the topic (512)")
    parser.add_argument("--seconds", type=float, default=3.0, help="duration of each side of the producer (3)")
    parser.add_argument("--stores", default=",".join(STORES), help=f"some of {','.join(STORES)} (all)")
    parser.add_argument("--transforms", default=",".join(TRANSFORMS), help=f"some of {','.join(TRANSFORMS)} (all)")
    parser.add_argument("--quick", action="store_true", help="one round of 128 MB and 1 s: does it run at all")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    chosen = parser.parse_args(arguments)
    stores, transforms = tuple(chosen.stores.split(",")), tuple(chosen.transforms.split(","))
    if (
        chosen.rounds < 1
        or not 4 <= chosen.megabytes <= 100_000
        or chosen.seconds <= 0
        or not set(stores) <= set(STORES)
        or not set(transforms) <= set(TRANSFORMS)
    ):
        parser.error("at least one round, 4 MB, more than 0 s, and of the stores and transformations that there are")
    if chosen.quick:
        return Options(1, 128, 1.0, stores, transforms, chosen.json)
    return Options(chosen.rounds, chosen.megabytes, chosen.seconds, stores, transforms, chosen.json)


def fill(kafka: KafkaCluster, megabytes: int) -> None:
    """The topic that is copied, with records that compress as records do, and the one that is produced to."""
    kafka.create_topic(TOPIC, PARTITIONS, {"retention.ms": "-1", "segment.bytes": str(SEGMENT_BYTES)})
    kafka.create_topic(PRODUCED, 1)
    producer = Producer(
        {"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 20, "batch.size": BATCH_BYTES, "acks": "all"}
    )
    source = random.Random(11)
    constant = source.randbytes(RECORD_BYTES - RANDOM_BYTES)
    for number in range(megabytes * MEGABYTE // RECORD_BYTES):
        while len(producer) > 50_000:
            producer.poll(0.01)
        producer.produce(TOPIC, source.randbytes(RANDOM_BYTES) + constant, partition=number % PARTITIONS)
    if left := producer.flush(120):
        raise RuntimeError(f"{left} records were not produced")


def measure(kafka: KafkaCluster, work: Path, options: Options, report: Report) -> None:
    """All rows."""
    for name in options.stores:
        (work / name).mkdir()
        with opened(name, work / name) as store:
            for transform in options.transforms:
                compression, encryption = TRANSFORMS[transform]
                keys = aiven_config(work, compression=compression, encryption=encryption, chunk_bytes=CHUNK_BYTES)
                _measure_store(f"{name}, {transform}", kafka, work, store, keys, options, report)
    with opened("folder", work) as store:
        keys = aiven_config(work, chunk_bytes=CHUNK_BYTES)
        _measure_producer(kafka, work, {**keys, **store.next_keys()}, options, report)
    report.notes.append(
        f"Medians of {options.rounds} rounds of {options.megabytes} MB. Broker, store, copier and producer share the "
        f"{os.cpu_count()} cores of this machine, and no network is between. Plain uploads read the broker's files; a "
        "copier fetches them, which costs the broker a page-cache read and the copier one copy."
    )


def _measure_store(
    name: str, kafka: KafkaCluster, work: Path, store: Store, keys: Mapping[str, str], options: Options, report: Report
) -> None:
    def ours() -> Put:
        return _copied(name, kafka, work, {**keys, **store.next_keys()}, report)

    rounds = alternate(options.rounds, lambda: _put_bare(kafka, store), ours)
    report.rows.append(
        throughput_row(name, [(bare.megabytes_per_s, copied.megabytes_per_s) for bare, copied in rounds])
    )
    bare, copied = (statistics.median(put.megabytes_per_core_s for put in side) for side in zip(*rounds, strict=True))
    aim = PLAIN_AIM if name.endswith("plain") else None
    sides = f"{bare:,.0f} MB/s", f"{copied:,.0f} MB/s"
    report.rows.append(Row(f"{name}, a core", *sides, copied, unit="MB/s", aim=aim))


def _logs(kafka: KafkaCluster) -> list[Path]:
    return sorted(path for path in kafka.broker(1).data_dir.glob(f"{TOPIC}-*/*.log") if path.stat().st_size)


def _put_bare(kafka: KafkaCluster, store: Store) -> Put:
    logs = _logs(kafka)
    wall_s, core_s = time.perf_counter(), time.process_time()
    for log in logs:
        store.put_bare(log)
    core_s, wall_s = time.process_time() - core_s, time.perf_counter() - wall_s
    return Put(sum(log.stat().st_size for log in logs), wall_s, core_s)


# --- the copier ---


def _copied(name: str, kafka: KafkaCluster, work: Path, keys: Mapping[str, str], report: Report) -> Put:
    """Copy everything into an empty tier, and look whether all is there."""
    with _fresh(kafka, work, keys) as folder:
        wall_s, core_s = _run_once(folder)
        held = _ls(folder)
    size_bytes = sum(log.stat().st_size for log in _logs(kafka))
    if held != size_bytes:
        report.complaints.append(f"{name}: the tier has {held} bytes of {size_bytes}")
    return Put(size_bytes, wall_s, core_s)


@contextmanager
def _fresh(
    kafka: KafkaCluster, work: Path, keys: Mapping[str, str], limit: Mapping[str, str] | None = None
) -> Iterator[Path]:
    """A configuration over a tier without a record."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    folder = work / "copier"
    folder.mkdir()
    tier = {"remote.log.storage.manager.class.name": AIVEN, **{f"rsm.config.{key}": keys[key] for key in keys}}
    copies = {
        "copy.topics": TOPIC,
        "copy.segment.bytes": str(SEGMENT_BYTES),
        # One that was killed would keep the next one waiting for its session.
        "copy.group.id": f"benchmark-{secrets.token_hex(4)}",
        **(limit or {}),
    }
    properties = before_plain_kafka(kafka, folder, {**tier, **copies})
    del properties["rsm.config.dir"]
    (folder / "tidegate.properties").write_text(properties_text(properties), encoding="utf-8")
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
        if METADATA_TOPIC in admin.list_topics(timeout=10).topics:
            admin.delete_topics([METADATA_TOPIC])[METADATA_TOPIC].result(30)
            wait_until(lambda: METADATA_TOPIC not in admin.list_topics(timeout=10).topics, "the metadata topic to go")


def _command(folder: Path, name: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "tidegate", name, str(folder / "tidegate.properties"), *arguments]


def _run_once(folder: Path) -> tuple[float, float]:
    """Seconds from when it had the partitions to when all was copied, and core-seconds of the process from then on."""
    with _copying(folder) as (process, log_path):
        begun_core_s = cpu_s(process.pid)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        log = log_path.read_text("utf-8", "replace")
    if process.returncode:
        raise RuntimeError(f"tidegate copy --once: exit code {process.returncode}\n{log}")
    began_s, ended_s = (_event_s(log, event) for event in (BEGUN, DONE))
    return ended_s - began_s, usage.ru_utime + usage.ru_stime - begun_core_s


def _event_s(log: str, name: str) -> float:
    """When the first log line of an event was written."""
    events = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    found = next(event for event in events if event["event"] == name)
    return datetime.fromisoformat(found["timestamp"]).timestamp()


def _ls(folder: Path) -> int:
    """Bytes of log that the tier's metadata tell of."""
    done = subprocess.run(_command(folder, "ls", "--json"), capture_output=True, check=True, timeout=120)
    return sum(topic["size_bytes"] for topic in json.loads(done.stdout)["topics"])


# --- the producer ---


def _measure_producer(
    kafka: KafkaCluster, work: Path, keys: Mapping[str, str], options: Options, report: Report
) -> None:
    producer = SteadyProducer(kafka.bootstrap_servers, PRODUCED, records_per_s=RECORDS_PER_S, record_bytes=RECORD_BYTES)
    producer.run(options.seconds)
    for words, limit in (("as fast as it can", {}), (f"of {PACED} a second", {"copy.max.bytes.per.second": PACED})):

        def beside(limit: Mapping[str, str] = limit) -> Latencies:
            with _fresh(kafka, work, keys, limit) as folder, _copying(folder) as (_, log_path):
                found = producer.run(options.seconds)
                if DONE in log_path.read_text("utf-8", "replace"):
                    report.notes.append("All was copied before the producer's time was over: give more --megabytes.")
                return found

        rounds = alternate(options.rounds, lambda: producer.run(options.seconds), beside)
        for share in (0.5, 0.99):
            sides = zip(*rounds, strict=True)
            alone, with_it = (statistics.median(each.percentile(share) for each in side) for side in sides)
            report.rows.append(latency_row(f"a producer's p{100 * share:g}, beside a copier {words}", alone, with_it))


@contextmanager
def _copying(folder: Path) -> Iterator[tuple["subprocess.Popen[bytes]", Path]]:
    """A copier that has begun, and its log. It is killed in the end, if it still runs."""
    log_path = folder / "copy.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(_command(folder, "copy", "--once"), stdout=log, stderr=subprocess.STDOUT)
    try:
        wait_until(lambda: BEGUN in log_path.read_text("utf-8", "replace"), "a copier to begin", timeout_s=BEGUN_S_MAX)
        yield process, log_path
    finally:
        process.kill()
        process.wait()


# --- the stores ---


@contextmanager
def opened(name: str, folder: Path) -> Iterator[Store]:
    """One of STORES."""
    with ExitStack() as stack:
        if name == "folder":
            yield _folder_store(folder)
        else:
            (folder / "gateway").mkdir()
            yield _s3_store(stack.enter_context(versitygw(folder / "gateway", folder)))


def _folder_store(folder: Path) -> Store:
    bucket = folder / "bucket"

    def next_keys() -> Mapping[str, str]:
        shutil.rmtree(bucket, ignore_errors=True)
        bucket.mkdir()
        backend = "io.aiven.kafka.tieredstorage.storage.filesystem.FileSystemStorage"
        return {"storage.backend.class": backend, "storage.root": str(bucket)}

    def put_bare(file: Path) -> None:
        with file.open("rb") as source, (folder / "bare").open("wb") as target:
            shutil.copyfileobj(source, target, 1024 * 1024)
            target.flush()
            os.fsync(target.fileno())

    return Store(next_keys, put_bare)


def _s3_store(server: S3Server) -> Store:
    import boto3

    client = boto3.client(
        "s3",
        endpoint_url=server.endpoint_url,
        region_name=REGION,
        aws_access_key_id=CREDENTIALS.access_key_id,
        aws_secret_access_key=CREDENTIALS.secret_access_key,
    )
    bare = server.make_bucket()
    return Store(
        next_keys=lambda: server.config(server.make_bucket()),
        put_bare=lambda file: client.upload_file(str(file), bare, "bare"),
    )


if __name__ == "__main__":
    sys.exit(main())
