"""How Tidegate's cost grows: with connections, partitions in a Fetch, the size of batches, segments in the catalog
(docs/performance.md).

    python benchmarks/growth.py [--axes connections,partitions,batches,segments] [--seconds 1.5] [--quick] [--save FILE]

One point is one figure of all processes that Tidegate starts: core-seconds a GB, processor time, memory, or the time
until it is ready. Each axis has a broker of its own. Points are printed as JSON lines; `--save` keeps them for
`benchmarks/publish.py`. Little data, as only what is spent on a byte or a request counts, and not how fast it is.
"""

import argparse
import json
import shutil
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import cycle
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.fetch_exchange import fill_topics, kinds_of
from benchmarks.restart import METADATA_PARTITIONS, READY_S_MAX, outcome_of, ready_line
from benchmarks.support.aiven_stage import cold_stage
from benchmarks.support.bare_fetch import (
    BareClient,
    FetchStep,
    Transfer,
    learn_requests,
    metadata_request,
    read_for,
    warm_up,
)
from benchmarks.support.cold_options import ColdOptions
from benchmarks.support.exchanges import exchange_for
from benchmarks.support.fresh_tidegate import fresh_tidegate
from benchmarks.support.metadata_topic import fill_metadata_topic
from benchmarks.support.published import save
from benchmarks.support.stage import JVM_OPTIONS, TIERED_CONFIGS, Address, fill_topic, stage_on
from benchmarks.support.tidegate_usage import tree_cpu_s
from benchmarks.support.tier_fetch import read_partitions
from benchmarks.support.tier_usage import peak_rss_bytes
from metrics.meters import SnapshotOutcome
from tests.support.kafka import own_cluster
from tests.support.raw_client import address_of
from tools.demo.kafka_cluster import KafkaCluster
from tools.demo.tidegate_process import Tidegate

MEGABYTES = 80
READERS = (1, 4, 16, 64, 256)
IDLE = (0, 250, 1000, 2500)
FETCH_PARTITIONS = (1, 10, 100, 1000)
BATCH_KIB = (1, 4, 16, 64, 256, 1024)
SEGMENTS = (100, 1_000, 10_000, 100_000, 1_000_000)
STARTS = {"topic": SnapshotOutcome.ABSENT, "snapshot": SnapshotOutcome.USED}
QUICK = 2
"""Points of each axis, the first ones."""
OPENED_S = 60.0
MEMORY_READS = 5
COLD_READS = 3
MIB = 1024 * 1024
TIERED = {**TIERED_CONFIGS, "segment.bytes": str(4 * MIB)}

Point = dict[str, float | str]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="How the cost grows.")
    parser.add_argument("--axes", default=",".join(AXES), help="all by default: " + ", ".join(AXES))
    parser.add_argument("--seconds", type=float, default=1.5, help="of each point that is read over and over (1.5)")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} points of each axis")
    parser.add_argument("--save", type=Path, help="the file for benchmarks/publish.py; points of other runs stay in it")
    options = parser.parse_args(arguments)
    axes = options.axes.split(",")
    if not {*axes} <= {*AXES} or options.seconds <= 0:
        parser.error(f"axes are {', '.join(AXES)}; more than 0 s")
    for axis in axes:
        for each in AXES[axis](options.seconds, QUICK if options.quick else None):
            print(json.dumps(each), flush=True)
            if options.save:
                save(options.save, [each])
    return 0


def point(series: str, x: float, y: float) -> Point:
    """One figure of a series."""
    return {"row": f"{series} {x:g}", "series": series, "x": x, "y": y}


# --- connections ---


def by_connections(seconds: float, few: int | None) -> Iterator[Point]:
    """Readers at once, each with a connection of its own, of local records and of the tier in memory; idle ones."""
    with own_cluster(jvm_options=JVM_OPTIONS) as cluster, ExitStack() as stack:
        steps = {
            "relay": fetches(cluster, "local", {}, is_tiered=False),
            "memory": fetches(cluster, "tiered", TIERED, is_tiered=True),
        }
        folder = cluster.work / "idle"
        folder.mkdir()
        with stage_on(cluster, "local", {}, folder) as stage:
            yield from idle_points(stack, stage.through, stage.tidegate.pid, IDLE[:few], seconds)
        stack.close()
        with stage_on(cluster, "local", {}, cluster.work) as stage:
            for series, asked in steps.items():
                warm_up(stage.through, asked)
                for readers in READERS[:few]:
                    cost = cost_of_readers(stage.tidegate.pid, stage.through, asked, readers, seconds)
                    yield point(f"connections, {series}, core-s/GB", readers, cost)


def fetches(cluster: KafkaCluster, topic: str, configs: Mapping[str, str], *, is_tiered: bool) -> list[FetchStep]:
    """A topic, and the Fetches that read it at the broker."""
    found = fill_topic(cluster, topic, MEGABYTES, configs, is_tiered=is_tiered)
    ends = {number: each.local_log_start_offset if is_tiered else each.high_watermark for number, each in found.items()}
    return learn_requests(address_of(cluster.bootstrap_servers), topic, ends)


def idle_points(
    stack: ExitStack, address: Address, pid: int, counts: tuple[int, ...], seconds: float
) -> Iterator[Point]:
    """Connections that have asked one thing, and wait."""
    held, before_bytes = 0, peak_rss_bytes(pid)
    for count in counts:
        for _ in range(count - held):
            client = stack.enter_context(socket.create_connection(address))
            client.sendall(metadata_request("local"))
            client.recv(MIB)
        held = count
        before_s = tree_cpu_s(pid)
        time.sleep(2 * seconds)
        yield point("idle connections, cores", count, (tree_cpu_s(pid) - before_s) / (2 * seconds))
        yield point("idle connections, MiB", count, (peak_rss_bytes(pid) - before_bytes) / MIB)


def cost_of_readers(pid: int, address: Address, steps: list[FetchStep], readers: int, seconds: float) -> float:
    """Core-seconds a GB while so many threads read, each over a connection that is open already."""
    together = threading.Barrier(readers + 1)

    def read(number: int) -> int:
        read_bytes = 0
        with BareClient(address) as client:
            client.ask(steps[0].frame)
            together.wait(OPENED_S)
            until_s = time.monotonic() + seconds
            for step in cycle([*steps[number % len(steps) :], *steps[: number % len(steps)]]):
                read_bytes += len(client.ask(step.frame))
                if time.monotonic() > until_s:
                    break
        return read_bytes

    with ThreadPoolExecutor(readers) as threads:
        reads = [threads.submit(read, number) for number in range(readers)]
        together.wait(OPENED_S)
        before_s = tree_cpu_s(pid)
        read_bytes = sum(each.result() for each in reads)
    return (tree_cpu_s(pid) - before_s) / (read_bytes / 1e9)


# --- partitions in a Fetch ---


def by_partitions(seconds: float, few: int | None) -> Iterator[Point]:
    """One Fetch over and over: milliseconds of processor time."""
    counts = FETCH_PARTITIONS[:few]
    with own_cluster(jvm_options=JVM_OPTIONS) as cluster:
        topics = fill_topics(cluster, "growth", counts[-1])
        with stage_on(cluster, topics.local, {}, cluster.work) as stage:
            kinds = kinds_of(stage, topics)
            for kind, is_incremental in (("all local", True), ("all local", False), ("all tier", False)):
                for count in counts:
                    exchanges, spent_s = exchange_for(
                        stage.through,
                        kinds[kind](count),
                        seconds,
                        incremental=is_incremental,
                        cpu_s=lambda: tree_cpu_s(stage.tidegate.pid),
                    )
                    mode = "incremental" if is_incremental else "full"
                    yield point(f"partitions, {kind}, {mode}, ms", count, spent_s * 1000 / exchanges.count)


# --- the size of batches ---


def by_batches(_seconds: float, few: int | None) -> Iterator[Point]:
    """Read cold, by a Tidegate that has just started, and then from its memory."""
    sizes = BATCH_KIB[:few]
    options = ColdOptions(
        schemes=("http",),
        batch_kib=sizes,
        partitions=(2,),
        megabytes=MEGABYTES,
        segment_mib=8,
        connection_megabytes_per_s=0,
    )
    with cold_stage(options) as stage:
        for size in sizes:
            topic = stage.topics[size]
            figures: dict[str, list[float]] = {"cold": [], "memory": []}
            for _ in range(COLD_READS):
                with fresh_tidegate(stage, "plain", "http") as fresh:
                    read = partial(read_over, fresh.address, topic.name, topic.ends(2))
                    figures["cold"].append(core_s_per_gb(fresh.process.pid, partial(read, 1)))
                    figures["memory"].append(core_s_per_gb(fresh.process.pid, partial(read, MEMORY_READS)))
            for series, found in figures.items():
                yield point(f"batches, {series}, core-s/GB", size, statistics.median(found))


def read_over(address: Address, topic: str, ends: Mapping[int, int], times: int) -> Transfer:
    """All of it, so many times."""
    found = [read_partitions(address, topic, ends) for _ in range(times)]
    return Transfer(sum(each.read_bytes for each in found), sum(each.seconds for each in found))


# --- segments in the catalog ---


def by_segments(seconds: float, few: int | None) -> Iterator[Point]:
    """A catalog of so many segments: until it is ready, what it holds, and what a GB from memory costs then."""
    properties = {"rlmm.config.remote.log.metadata.topic.num.partitions": str(METADATA_PARTITIONS)}
    with own_cluster(properties=properties, jvm_options=JVM_OPTIONS) as cluster:
        steps = fetches(cluster, "tiered", TIERED, is_tiered=True)
        held = 0
        for segments in SEGMENTS[:few]:
            more = segments - held
            fill_metadata_topic(cluster.bootstrap_servers, segments=more, partitions=max(1, more // 100))
            held = segments
            shutil.rmtree(cluster.work / "snapshots", ignore_errors=True)
            for origin in STARTS:
                yield from start_points(cluster, origin, segments, steps, seconds)


def start_points(
    cluster: KafkaCluster, origin: str, segments: int, steps: list[FetchStep], seconds: float
) -> Iterator[Point]:
    """One start."""
    work = cluster.work / f"{segments}-{origin}"
    work.mkdir()
    snapshots = {"catalog.snapshot.path": str(cluster.work / "snapshots")}
    tidegate = Tidegate(
        work=work,
        server_properties=cluster.server_properties_path(1),
        bootstrap_servers=cluster.bootstrap_servers,
        # Written at the end alone, so that no start meets a snapshot of less.
        properties={**snapshots, "expert.catalog.snapshot.interval.ms": "86400000"},
    )
    began_s = time.monotonic()
    tidegate.start()
    try:
        line = ready_line(tidegate, began_s + READY_S_MAX)
        ready_s = time.monotonic() - began_s
        if outcome_of(tidegate) is not STARTS[origin]:
            print(f"{segments} segments: not from the {origin}, so no point", file=sys.stderr)
            return
        yield point(f"segments, ready from the {origin}, s", segments, ready_s)
        yield point(f"segments, ready from the {origin}, core-s", segments, tree_cpu_s(tidegate.pid))
        yield point(f"segments, from the {origin}, MiB", segments, peak_rss_bytes(tidegate.pid) / MIB)
        if origin == "topic":
            address = address_of(line.removeprefix("ready: bootstrap ").partition(",")[0])
            warm_up(address, steps)
            cost = core_s_per_gb(tidegate.pid, partial(read_for, address, steps, seconds))
            yield point("segments, memory, core-s/GB", segments, cost)
    finally:
        tidegate.stop()


def core_s_per_gb(pid: int, read: Callable[[], Transfer]) -> float:
    """Return what a process and its children spend on what is read through it."""
    before_s = tree_cpu_s(pid)
    transfer = read()
    return (tree_cpu_s(pid) - before_s) / (transfer.read_bytes / 1e9)


AXES = {"connections": by_connections, "partitions": by_partitions, "batches": by_batches, "segments": by_segments}


if __name__ == "__main__":
    sys.exit(main())
