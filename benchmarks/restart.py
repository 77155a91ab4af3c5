"""How long a restart takes: ready again from the catalog snapshot, and from the metadata topic (benchmarks/README.md).

    python benchmarks/restart.py [--segments 100000] [--partitions 1000] [--rounds 5] [--json]

One real broker, whose `__remote_log_metadata` (50 partitions) is filled with two records a segment, as brokers write
them. In each round one Tidegate starts without a snapshot, is stopped by SIGTERM, and starts again with the one that
it left. Time runs from the start of the process to its `ready:` line; memory is the most that the process ever had.
The tier behind it holds one object, since one without any would not be the brokers' and Tidegate would never be ready:
what a start asks of an object store is one small object and, as that is not there, a listing.

Exit code 1 when a floor does not hold, or when a start did not do what it was measured for.
"""

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.support.metadata_topic import fill_metadata_topic
from benchmarks.support.stage import JVM_OPTIONS
from benchmarks.support.tidegate_usage import cpu_s
from benchmarks.support.tier_usage import peak_rss_bytes
from metrics.meters import SnapshotOutcome
from storage.metadata.snapshot import SNAPSHOT_NAME
from tests.support.needs import JARS
from tools.demo.kafka_cluster import KafkaCluster
from tools.demo.tidegate_process import Tidegate

METADATA_PARTITIONS = 50
FLOORS_S = {SnapshotOutcome.USED: 5.0, SnapshotOutcome.ABSENT: 30.0}
AIM_S = 2.0
"""From the snapshot, 100,000 segments; as the floors are."""
FLOOR_SEGMENTS = 100_000
MEMORY_BYTES_MAX = 1024**3
"""With up to 1,000,000 segments."""
MEMORY_SEGMENTS = 1_000_000

READY_S_MAX = 600.0
POLL_S = 0.005


@dataclass(frozen=True, slots=True)
class Start:
    """One start of one process."""

    ready_s: float
    cpu_s: float
    """Spent by the process until then: what it would take on a machine that does nothing else, waiting left out."""
    memory_bytes: int
    outcome: SnapshotOutcome


@dataclass(frozen=True, slots=True)
class Result:
    """What was measured, and the verdict."""

    segments: int
    partitions: int
    from_topic: Sequence[Start]
    from_snapshot: Sequence[Start]
    snapshot_bytes: int
    complaints: Sequence[str]


def main() -> int:
    parser = argparse.ArgumentParser(description="Restart: from the catalog snapshot against from the metadata topic.")
    parser.add_argument("--segments", type=int, default=FLOOR_SEGMENTS, help=f"segments ({FLOOR_SEGMENTS})")
    parser.add_argument("--partitions", type=int, default=1000, help="user partitions they are of (1000)")
    parser.add_argument("--rounds", type=int, default=5, help="starts of each kind (5)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()
    if options.segments < options.partitions or options.partitions < 1 or options.rounds < 1:
        parser.error("at least one round, one partition, and one segment in each partition")
    with tempfile.TemporaryDirectory(prefix="tidegate-benchmark-", ignore_cleanup_errors=True) as work:
        result = measure(Path(work), options.segments, options.partitions, options.rounds)
    show(result, as_json=options.json)
    return 1 if result.complaints else 0


def measure(work: Path, segments: int, partitions: int, rounds: int) -> Result:
    """All rounds over one filled topic."""
    properties = {"rlmm.config.remote.log.metadata.topic.num.partitions": str(METADATA_PARTITIONS)}
    snapshots = work / "snapshots"
    starts: dict[SnapshotOutcome, list[Start]] = {SnapshotOutcome.ABSENT: [], SnapshotOutcome.USED: []}
    complaints: list[str] = []
    with KafkaCluster(jars=JARS, work=work / "kafka", properties=properties, jvm_options=JVM_OPTIONS) as cluster:
        fill_metadata_topic(cluster.bootstrap_servers, segments=segments, partitions=partitions)
        _put_object(work / "kafka" / "tier" / "kafka-tiered-storage")
        for number in range(rounds):
            shutil.rmtree(snapshots, ignore_errors=True)
            for expected, measured in starts.items():
                start = _start(cluster, work / f"{number}-{expected}", snapshots, segments)
                if start.outcome is not expected:
                    complaints.append(f"round {number}: the snapshot was {start.outcome}, not {expected}")
                measured.append(start)
    from_topic, from_snapshot = starts[SnapshotOutcome.ABSENT], starts[SnapshotOutcome.USED]
    snapshot_bytes = (snapshots / SNAPSHOT_NAME).stat().st_size
    complaints += [*_verdict(segments, starts)]
    return Result(segments, partitions, from_topic, from_snapshot, snapshot_bytes, complaints)


def show(result: Result, *, as_json: bool) -> None:
    """Print the result."""
    if as_json:
        print(json.dumps(asdict(result), indent=2))
        return
    print(
        f"restart with {result.segments:,} segments of {result.partitions:,} partitions, "
        f"snapshot {result.snapshot_bytes / 1e6:,.1f} MB, median (least to most) of {len(result.from_topic)}:"
    )
    for name, starts in (("metadata topic", result.from_topic), ("snapshot", result.from_snapshot)):
        times = [start.ready_s for start in starts]
        memory_mib = max(start.memory_bytes for start in starts) / 2**20
        spread = f"({min(times):.2f} to {max(times):.2f})"
        used_s = statistics.median(start.cpu_s for start in starts)
        print(
            f"  from the {name:15} ready in {statistics.median(times):6.2f} s {spread}, "
            f"{used_s:.1f} core-seconds, {memory_mib:,.0f} MiB at most"
        )
    ratios = [topic.ready_s / own.ready_s for topic, own in zip(result.from_topic, result.from_snapshot, strict=True)]
    print(
        f"  ratio: {statistics.median(ratios):.1f}; with {FLOOR_SEGMENTS:,} segments the aims are {AIM_S:g} s "
        f"from the snapshot and {FLOORS_S[SnapshotOutcome.ABSENT]:g} s from the topic"
    )
    for complaint in result.complaints:
        print(f"failed: {complaint}")


def _put_object(tier: Path) -> None:
    """A segment's file, by its name (LocalTieredStorage)."""
    folder = tier / f"benchmark-0-0-{'A' * 22}"
    folder.mkdir(parents=True)
    (folder / f"{0:020}-{'A' * 22}.log").write_bytes(b"")


def _start(cluster: KafkaCluster, work: Path, snapshots: Path, segments: int) -> Start:
    work.mkdir()
    tidegate = Tidegate(
        work=work,
        server_properties=cluster.server_properties_path(1),
        bootstrap_servers=cluster.bootstrap_servers,
        # Written at the end alone, so that no start meets a snapshot of less.
        properties={"catalog.snapshot.path": str(snapshots), "expert.catalog.snapshot.interval.ms": "86400000"},
    )
    began_s = time.monotonic()
    tidegate.start()
    try:
        line = ready_line(tidegate, began_s + READY_S_MAX)
        ready_s, used_s = time.monotonic() - began_s, cpu_s(tidegate.pid)
        if not line.endswith(f"segments {segments}"):
            raise RuntimeError(f"not what was produced: {line}")
        return Start(ready_s, used_s, peak_rss_bytes(tidegate.pid), outcome_of(tidegate))
    finally:
        tidegate.stop()


def ready_line(tidegate: Tidegate, until_s: float) -> str:
    while time.monotonic() < until_s:
        for line in tidegate.log_path.read_text("utf-8", "replace").splitlines(keepends=True):
            if line.startswith("ready: ") and line.endswith("\n"):
                return line.strip()
        time.sleep(POLL_S)
    raise RuntimeError(f"not ready after {READY_S_MAX:g} s:\n{tidegate.log_tail()}")


def outcome_of(tidegate: Tidegate) -> SnapshotOutcome:
    """Return what Tidegate says became of the snapshot."""
    name = "tidegate_catalog_snapshot_loads_total"
    with urllib.request.urlopen(f"http://{tidegate.admin_address}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    counted = [line for line in lines if line.startswith(f"{name}{{") and float(line.split()[-1]) > 0]
    return SnapshotOutcome(counted[0].partition('outcome="')[2].partition('"')[0])


def _verdict(segments: int, starts: dict[SnapshotOutcome, list[Start]]) -> list[str]:
    complaints = []
    for outcome, measured in starts.items():
        median_s = statistics.median(start.ready_s for start in measured)
        if segments <= FLOOR_SEGMENTS and median_s > FLOORS_S[outcome]:
            complaints.append(f"snapshot {outcome}: ready in {median_s:.2f} s, the floor is {FLOORS_S[outcome]:g} s")
        memory_bytes = max(start.memory_bytes for start in measured)
        if segments <= MEMORY_SEGMENTS and memory_bytes > MEMORY_BYTES_MAX:
            complaints.append(f"snapshot {outcome}: {memory_bytes / 2**20:,.0f} MiB of memory")
    return complaints


if __name__ == "__main__":
    sys.exit(main())
