"""What more workers cost and bring: the same loads through Tidegate with 1, 2 and 4 (benchmarks/README.md).

    python benchmarks/workers.py [--quick] [--workers 1,2,4] [--rows consume,cold-https] [--brokers 4] \
[--connections 8] [--rounds 5] [--seconds 2] [--megabytes 600] [--before CHECKOUT] [--json] \
[--save FILE]

Loads are bare clients in processes of their own, as fast as they go, each with one connection to one partition's
leader. Sides take turns in each round. On few cores everything shares them, so what is compared is bytes per
core-second and how evenly workers are loaded; plain speed is compared on eight cores or more. Exit code 1 when a floor
does not hold, when Tidegate counted fewer bytes than clients moved through it, or when a warm read was not warm.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.support.aiven_stage import MIB, ColdStage, cold_stage, fill_tier
from benchmarks.support.bare_fetch import BareClient, fetch_request
from benchmarks.support.cold_options import ColdOptions
from benchmarks.support.cold_report import Check
from benchmarks.support.kernel_spread import SOCKETS, kernel_spread
from benchmarks.support.paced_backfill import (
    BackfillProcesses,
    Pace,
    Stretch,
    Work,
    backfill_processes,
    first_batch,
    produce,
)
from benchmarks.support.processor_time import Spent, watch
from benchmarks.support.published import save
from benchmarks.support.stage import JVM_OPTIONS, Address, fill
from benchmarks.support.steady_producer import Latencies
from benchmarks.support.tidegate_usage import Usage, usage
from benchmarks.support.worker_options import WorkerOptions, parse_options
from benchmarks.support.worker_processes import SUPERVISOR, Served, owners_of_ports, served_by, worker_name
from benchmarks.support.worker_report import BEFORE, ONE, TWO, WorkerReport, WorkerRow, WorkerRun, show
from tests.support.kafka import own_cluster
from tests.support.raw_client import address_of
from tools.demo.kafka_cluster import KafkaCluster

EXIT_TERMINATED = 143
LOCAL_TOPIC, PRODUCED_TOPIC = "benchmark-local", "benchmark-produced"
LOCAL_MEGABYTES = 160
"""In the brokers' page cache; read over and over."""
PRODUCED_CONFIGS = {"retention.bytes": str(64 * MIB), "segment.bytes": str(32 * MIB)}
MEMORY_BYTES_MIN = 1536 * MIB
"""For one worker: `memory.max.bytes`'s default."""
BATCH_KIB = 16
"""Size of the tier's batches."""
COLD = {"cold-http": ("http", "plain"), "cold-https": ("https", "aes")}
"""Scheme, and how segments are stored."""
SMALL_INTERVAL_S = 0.005
"""Between small requests: a poll of a consumer that has read everything."""

WARM_UP_ROUNDS = 2
"""Untimed: the brokers' compilers, the page cache, and each worker's own cache."""

EFFICIENCY_FLOOR, EFFICIENCY_AIM = 0.8, 0.9
"""Bytes per core-second of several workers, of one's."""
BUSIEST_OF_TWO_MAX = 0.6
BEFORE_FLOOR, BEFORE_AIM = 0.9, 0.97
"""Bytes per core-second of one worker, of those of a version before."""
SPEED_CORES_MIN, SPEED_AIM = 8, 1.8
"""Speed of two workers, of one's, where there are cores for all."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A cluster with filled topics. `cold`: the tier once more, in a store behind a slow link."""

    cluster: KafkaCluster
    tiered: Sequence[Stretch]
    local: Sequence[Stretch]
    cold: ColdStage | None
    clients: BackfillProcesses

    @property
    def direct(self) -> Address:
        """A broker."""
        return address_of(self.cluster.broker(1).address)


@dataclass(frozen=True, slots=True)
class Load:
    """What clients do in a row, and which of Tidegate's counters has to see it. `is_small_beside`: a small request is
    what is timed."""

    stretches: Sequence[Stretch]
    counted: Callable[[Usage], int]
    work: Work | None = None
    is_once: bool = False
    is_small_beside: bool = False


def main() -> int:
    options = parse_options()
    # What a stage has on disk is removed also when a time limit ends the run.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_TERMINATED))
    report = WorkerReport(
        f"workers: {options.brokers} brokers, {options.connections} connections, {os.cpu_count()} cores for all of it"
    )
    if options.is_live:
        with staged(options) as stage:
            measure(stage, options, report)
    if "spread" in options.rows:
        spreads = [kernel_spread(options.connections, sockets, options.spread_runs) for sockets in SOCKETS]
        report.notes += [spread.text() for spread in spreads]
    show(report, as_json=options.as_json)
    if options.save:
        save(options.save, [figures_of(row) for row in report.rows if {ONE, TWO} <= {*row.sides}])
    return 0 if report.holds else 1


def measure(stage: Stage, options: WorkerOptions, report: WorkerReport) -> None:
    """All rows on a stage that is ready."""
    loads = warm_loads(stage, options)
    if loads:
        with ExitStack() as stack:
            # What a worker reads of the tier fits into its part, whatever partitions it is given.
            properties = {side: warm_budgets(workers, options) for side, (workers, _) in options.sides.items()}
            running = {
                side: stack.enter_context(served_by(stage.cluster, *options.sides[side], properties[side]))
                for side in options.sides
            }
            for name, load in loads.items():
                measure_row(stage, options, report, name, load, lambda side: nullcontext(running[side]))
    for name in options.rows:
        if name in COLD and stage.cold is not None:
            keys = stage.cold.tidegate_properties(COLD[name][1], COLD[name][0])
            load = Load(stage.tiered, lambda used: used.served_tier_bytes, is_once=True)

            def fresh(side: str, keys: Mapping[str, str] = keys) -> AbstractContextManager[Served]:
                return served_by(stage.cluster, *options.sides[side], keys)

            measure_row(stage, options, report, name, load, fresh)
    report.checks += [check for row in report.rows for check in checks_of(row, os.cpu_count() or 1)]
    report.notes.append(
        f"Medians of {options.rounds} rounds of {options.seconds:g} s a side. MB per core-s: of Tidegate's own "
        "processor time, kernel copies and supervisor included. Brokers, clients and store share the machine's cores"
    )


def warm_budgets(workers: int, options: WorkerOptions) -> dict[str, str]:
    """Return the budgets with which each worker has room for all of the tier, and as much for the rest as others."""
    cache_bytes = options.megabytes * 1_250_000
    memory_bytes = max(MEMORY_BYTES_MIN, 4 * cache_bytes)
    return {"memory.max.bytes": str(workers * memory_bytes), "cache.memory.bytes": str(workers * cache_bytes)}


def warm_loads(stage: Stage, options: WorkerOptions) -> dict[str, Load]:
    """The rows that one Tidegate of each side serves for the whole run."""
    found: dict[str, Load] = {}
    for name in options.rows:
        match name:
            case "consume":
                found[name] = Load(stage.local, lambda used: used.relayed_bytes)
            case "produce":
                stretches = [Stretch(PRODUCED_TOPIC, each.partition, 0) for each in stage.local]
                batch = first_batch(stage.direct, stage.local[0])
                found[name] = Load(stretches, lambda used: used.taken_bytes, partial(produce, batch))
            case "warm":
                found[name] = Load(stage.tiered, lambda used: used.served_tier_bytes)
            case "small":
                found[name] = Load(stage.tiered, lambda used: used.served_tier_bytes, is_small_beside=True)
    return found


def measure_row(
    stage: Stage,
    options: WorkerOptions,
    report: WorkerReport,
    name: str,
    load: Load,
    start: Callable[[str], AbstractContextManager[Served]],
) -> None:
    """All rounds of one load, each side in turns, behind an untimed round where a Tidegate has run before."""
    print(name, file=sys.stderr)
    sides = list(options.sides)
    rounds: list[dict[str, WorkerRun]] = []
    for number in range(options.rounds + (0 if load.is_once else WARM_UP_ROUNDS)):
        turn = number % len(sides)
        measured = {}
        for side in (*sides[turn:], *sides[:turn]):
            with start(side) as served:
                measured[side] = measure_side(stage, options, report, f"{name}, {side}", load, served)
        rounds.append({side: measured[side] for side in sides})
    rounds = rounds if load.is_once else rounds[WARM_UP_ROUNDS:]
    report.rows.append(WorkerRow(name, rounds))
    if not load.is_once:
        for side, (workers, _) in options.sides.items():
            if gets := sum(each[side].fills for each in rounds):
                said = f"{name}, {side}: {gets} GETs in rounds that should be warm"
                # A broker that has several workers has any of them read a partition, and each has a cache of its own.
                (report.complaints if workers <= options.brokers else report.notes).append(said)


def measure_side(
    stage: Stage, options: WorkerOptions, report: WorkerReport, name: str, load: Load, served: Served
) -> WorkerRun:
    """One side of one round. The counters are read before and after the clock, since that costs processor time."""
    before, owners = usage(served.tidegate), dict[int, int]()
    spent, small = Spent(), None
    with ExitStack() as clock:

        def begin() -> None:
            nonlocal spent
            owners.update(owners_of_ports(served.workers))
            spent = clock.enter_context(watch(served.pids))

        finish = stage.clients.start(
            served.address,
            Pace(0.0, options.seconds, load.is_once, is_gated=True),
            work=load.work,
            stretches=load.stretches,
            connected=begin,
        )
        if load.is_small_beside:
            time.sleep(options.seconds / 4)
            small = small_requests(served.address, stage.local[0], options.seconds / 2)
        moved = finish()
    used = usage(served.tidegate) - before
    worker_bytes = dict.fromkeys(served.workers, 0)
    for each in moved:
        if each.port in owners:
            worker_bytes[owners[each.port]] += each.read_bytes
        else:
            report.complaints.append(f"{name}: nobody knows whose connection that of port {each.port} was")
    total = sum(each.read_bytes for each in moved)
    if load.counted(used) < total:
        counted = f"{load.counted(used) / 1e6:,.1f} MB of {total / 1e6:,.1f} MB"
        report.complaints.append(f"{name}: Tidegate has counted {counted} that clients moved through it")
    times = small or Latencies(tuple(sorted(ms * 1000 for each in moved for ms in each.exchange_s)))
    return WorkerRun(
        moved_bytes=total,
        seconds=max(each.seconds for each in moved),
        supervisor_cpu_s=spent.cpu_s.get(SUPERVISOR, 0.0),
        worker_cpu_s=[spent.cpu_s[worker_name(number)] for number in served.workers],
        worker_bytes=list(worker_bytes.values()),
        p50_ms=times.percentile(0.5),
        p99_ms=times.percentile(0.99),
        idle_share=spent.idle_share,
        fills=used.fills,
    )


def small_requests(address: Address, stretch: Stretch, seconds: float) -> Latencies:
    """A Fetch at the log's end every SMALL_INTERVAL_S, by a clock of its own: milliseconds to its answer."""
    found = []
    with BareClient(address) as client:
        leader = client.leader(stretch.topic, stretch.partition)
    with BareClient(leader) as client:
        frame = fetch_request(client.topic_id(stretch.topic), {stretch.partition: stretch.end}, max_wait_ms=0)
        started_s = time.perf_counter()
        for number in range(max(1, int(seconds / SMALL_INTERVAL_S))):
            time.sleep(max(0.0, started_s + number * SMALL_INTERVAL_S - time.perf_counter()))
            asked_s = time.perf_counter()
            client.ask(frame)
            found.append((time.perf_counter() - asked_s) * 1000)
    return Latencies(tuple(sorted(found)))


def checks_of(row: WorkerRow, cores: int) -> list[Check]:
    """Return what a row is held against."""
    checks = []
    if ONE in row.sides and BEFORE in row.sides:
        ratio = row.ratio(ONE, BEFORE, lambda run: run.megabytes_per_core_s)
        name = f"{row.name}: MB per core-s, 1 worker of the version before"
        checks.append(Check(name, ratio, "×", floor=BEFORE_FLOOR, aim=BEFORE_AIM))
    for side in row.sides:
        if side in (ONE, BEFORE):
            continue
        is_two = side == TWO
        if ONE in row.sides:
            ratio = row.ratio(side, ONE, lambda run: run.megabytes_per_core_s)
            floor = EFFICIENCY_FLOOR if is_two else None
            name = f"{row.name}: MB per core-s, {side} workers of one"
            checks.append(Check(name, ratio, "×", floor=floor, aim=EFFICIENCY_AIM))
            if is_two and cores >= SPEED_CORES_MIN:
                speed = row.ratio(side, ONE, lambda run: run.megabytes_per_s)
                checks.append(Check(f"{row.name}: MB/s, 2 workers of one", speed, "×", aim=SPEED_AIM))
        if is_two:
            name = f"{row.name}: bytes of the busier of 2"
            busiest = row.median(side, lambda run: run.busiest_bytes)
            checks.append(Check(name, busiest, "", floor=BUSIEST_OF_TWO_MAX, is_upper_bound=True))
    return checks


def figures_of(row: WorkerRow) -> dict[str, float | str]:
    """Return what is published of a row: two workers beside one; cores of the supervisor, whose work is serial."""
    return {
        "row": row.name,
        "one_core_s_per_gb": row.median(ONE, lambda run: 1000 / run.megabytes_per_core_s),
        "cost_of_two": 1 / row.ratio(TWO, ONE, lambda run: run.megabytes_per_core_s),
        "busiest": row.median(TWO, lambda run: run.busiest_bytes),
        "worker_core_s_per_gb": row.median(TWO, lambda run: sum(run.worker_core_s)),
        "serial_cores": row.median(TWO, lambda run: run.supervisor_cpu_s / run.seconds),
    }


@contextmanager
def staged(options: WorkerOptions) -> Iterator[Stage]:
    """Brokers, topics, and processes for the clients; the slow link where a row needs it."""
    segment_mib = -(-options.megabytes * 1_000_000 // options.connections // MIB)
    ways = [COLD[name] for name in options.rows if name in COLD]
    with ExitStack() as stack:
        cold, ends = None, {}
        if ways:
            cold = stack.enter_context(cold_stage(cold_options(options, segment_mib, ways)))
            cluster, tiered_topic = cold.cluster, cold.topics[BATCH_KIB].name
            ends = cold.topics[BATCH_KIB].ends(options.connections)
        else:
            cluster = stack.enter_context(own_cluster(jvm_options=JVM_OPTIONS, brokers=options.brokers))
            tiered_topic = "benchmark-tiered"
            if {"warm", "small"} & {*options.rows}:
                counts = [1] * options.connections
                segments = fill_tier(cluster, tiered_topic, BATCH_KIB, counts, segment_mib * MIB)
                ends = {partition: found[-1].end_offset + 1 for partition, found in segments.items()}
        tiered = [Stretch(tiered_topic, partition, end) for partition, end in sorted(ends.items())]
        local = fill_local(cluster, options.connections)
        clients = stack.enter_context(backfill_processes(local))
        yield Stage(cluster, tiered, local, cold, clients)


def cold_options(options: WorkerOptions, segment_mib: int, ways: Sequence[tuple[str, str]]) -> ColdOptions:
    """One segment in each partition, and one partition for each connection."""
    return ColdOptions(
        schemes=tuple(scheme for scheme, _ in ways),
        batch_kib=(BATCH_KIB,),
        variants=tuple(variant for _, variant in ways),
        partitions=(options.connections,),
        megabytes=0,
        segment_mib=segment_mib,
        brokers=options.brokers,
    )


def fill_local(cluster: KafkaCluster, partitions: int) -> list[Stretch]:
    """A topic in the brokers' page cache, and an empty one to produce to."""
    cluster.create_topic(LOCAL_TOPIC, partitions, replication_factor=1)
    cluster.create_topic(PRODUCED_TOPIC, partitions, PRODUCED_CONFIGS, replication_factor=1)
    fill(cluster.bootstrap_servers, LOCAL_TOPIC, LOCAL_MEGABYTES, partitions=partitions)
    offsets = cluster.partition_offsets(LOCAL_TOPIC)
    return [Stretch(LOCAL_TOPIC, partition, known.high_watermark) for partition, known in sorted(offsets.items())]


if __name__ == "__main__":
    sys.exit(main())
