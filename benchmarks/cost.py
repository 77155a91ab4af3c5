"""What a GB costs: processor time of all processes that Tidegate starts, beside a floor in the same run
(benchmarks/README.md).

    python benchmarks/cost.py [--rounds 5] [--megabytes 400] [--rows relay,memory,cold-http] [--json] [--save FILE]

Core-seconds count, and not MB/s: with few cores client, broker and store share them with Tidegate. Where connections to
the store are slow, MB/s count: there are cores enough. The client is a bare Fetch, two partitions, 1 MiB of each; the
store a real S3 server with nothing before it. `--save` keeps the figures for `benchmarks/publish.py`. Exit code 1 when
Tidegate has served fewer bytes than the client read.
"""

import argparse
import json
import math
import ssl
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from rich.box import SIMPLE_HEAVY
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.support.aiven_stage import ColdStage, cold_stage
from benchmarks.support.bare_fetch import FetchStep, Transfer, learn_requests, read_for
from benchmarks.support.bare_replica import Kept
from benchmarks.support.bare_store import THREADS, SdkProcess
from benchmarks.support.cold_options import ColdOptions
from benchmarks.support.comparison import alternate
from benchmarks.support.fresh_tidegate import fresh_tidegate
from benchmarks.support.options import MEGABYTES_MIN
from benchmarks.support.plain_relay import PlainRelay, plain_relay
from benchmarks.support.processor_time import machine_ticks
from benchmarks.support.published import save
from benchmarks.support.shaped_store import slowed
from benchmarks.support.stage import JVM_OPTIONS, TIERED_CONFIGS, Address, fill_topic
from benchmarks.support.tidegate_usage import tree_cpu_s, usage
from benchmarks.support.tier_fetch import read_partitions
from tests.support.certificates import server_certificate
from tests.support.needs import JARS
from tests.support.raw_client import address_of
from tools.demo.kafka_cluster import KafkaCluster, free_port
from tools.demo.kafka_properties import HOST
from tools.demo.tidegate_process import Tidegate


@dataclass(frozen=True, slots=True)
class Way:
    """What a row is called, and its aim: core-seconds of the floor's at most, or MB/s of the floor's at least."""

    name: str
    aim: float
    counts: str = "core_s_per_gb"


RELAY_ROWS = {
    "relay": Way("relay", 1.0),
    "relay-tls": Way("relay, TLS on both sides", 1.3),
    "memory": Way("tier, from memory", 1.5),
}
COLD_ROWS = {
    "cold-http": Way("tier, cold, HTTP, batches of 64 KB", 1.5),
    "cold-small": Way("tier, cold, HTTP, batches of 6 KB", 2.0),
    "cold-https": Way("tier, cold, HTTPS, batches of 64 KB", 0.5),
    "again-memory": Way("tier, once more, four times the memory cache", 1.5),
    "again-disk": Way("tier, once more, the same with a disk cache", 1.5),
    "slow": Way("tier, cold, connections of 10 MB/s and 30 ms", 0.95, "megabytes_per_s"),
}
WAYS = {**RELAY_ROWS, **COLD_ROWS}
BARE_ROWS = {
    **dict.fromkeys(("cold-http", "cold-small", "cold-https"), Kept.MEMORY),
    "again-memory": Kept.NOWHERE,
    "again-disk": Kept.DISK,
}
LOCAL_CONFIGS = {"retention.ms": "-1", "segment.bytes": str(512 * 1024 * 1024)}
MIB = 1024 * 1024
SECONDS = 1.5
"""One side of one round, where the same data is read over and over."""
LARGE_KIB, SMALL_KIB = 64, 6
SLOW = "slow"
"""A way to the store by HTTP, as the others are named by their scheme."""
SLOW_LINK = {"first_byte_ms": 30, "connection_megabytes_per_s": 10}
PARTITIONS = 2


@dataclass(frozen=True, slots=True)
class Spent:
    """One side of one round."""

    core_s_per_gb: float
    megabytes_per_s: float
    idle_share: float


@dataclass(frozen=True, slots=True)
class Cost:
    """A row: the rounds' (floor, Tidegate), and what each of them found of a program that does the bare work."""

    row: str
    floor_name: str
    rounds: Sequence[tuple[Spent, Spent]]
    bare: Sequence[Spent] = ()

    @property
    def ratio(self) -> float:
        """The median of the rounds' own; infinite where a round was too short for the clock to count its floor."""
        return self._of_floor([ours for _, ours in self.rounds])

    def _of_floor(self, sides: Sequence[Spent]) -> float:
        counts = WAYS[self.row].counts
        pairs = [
            (getattr(floor, counts), getattr(side, counts)) for (floor, _), side in zip(self.rounds, sides, strict=True)
        ]
        return statistics.median(side / floor if floor else math.inf for floor, side in pairs)

    def figures(self) -> dict[str, float | str]:
        way = WAYS[self.row]
        floors, ours = ([sides[at] for sides in self.rounds] for at in (0, 1))
        return {
            "row": self.row,
            "way": way.name,
            "core_s_per_gb": statistics.median(each.core_s_per_gb for each in ours),
            "least": min(each.core_s_per_gb for each in ours),
            "most": max(each.core_s_per_gb for each in ours),
            "floor": self.floor_name,
            "floor_core_s_per_gb": statistics.median(each.core_s_per_gb for each in floors),
            "counts": way.counts,
            "ratio": self.ratio,
            "aim": way.aim,
            "megabytes_per_s": statistics.median(each.megabytes_per_s for each in ours),
            "floor_megabytes_per_s": statistics.median(each.megabytes_per_s for each in floors),
            "idle_share": statistics.median(each.idle_share for each in ours),
            **({"bare_ratio": self._of_floor(self.bare)} if self.bare else {}),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class CostOptions:
    rows: Sequence[str] = (*RELAY_ROWS, *COLD_ROWS)
    rounds: int = 5
    megabytes: int = 400
    as_json: bool = False
    save: Path | None = None


def main(arguments: list[str] | None = None) -> int:
    options = parse_cost_options(arguments)
    figures = []
    for rows, measure in ((RELAY_ROWS, relay_costs), (COLD_ROWS, cold_costs)):
        for cost in measure(options) if {*rows} & {*options.rows} else ():
            figures.append(cost.figures())
            if options.save:
                save(options.save, figures[-1:])
    show(figures, as_json=options.as_json)
    return 0


def parse_cost_options(arguments: list[str] | None = None) -> CostOptions:
    """From the command line."""
    base = CostOptions()
    parser = argparse.ArgumentParser(description="Core-seconds a GB, beside a floor.")
    parser.add_argument("--rounds", type=int, default=base.rounds, help=f"of each row ({base.rounds})")
    parser.add_argument("--megabytes", type=int, default=base.megabytes, help=f"of each topic ({base.megabytes})")
    parser.add_argument("--rows", default=",".join(base.rows), help="all by default: " + ", ".join(base.rows))
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--save", type=Path, help="the file for benchmarks/publish.py; rows of other runs stay in it")
    chosen = parser.parse_args(arguments)
    rows = tuple(chosen.rows.split(","))
    if not {*rows} <= {*base.rows} or chosen.rounds < 1 or chosen.megabytes < MEGABYTES_MIN:
        parser.error(f"rows are {', '.join(base.rows)}; at least one round and {MEGABYTES_MIN} MB")
    return CostOptions(
        rows=rows, rounds=chosen.rounds, megabytes=chosen.megabytes, as_json=chosen.json, save=chosen.save
    )


def measure(
    row: str,
    floor_name: str,
    rounds: int,
    floor: Callable[[], Spent],
    ours: Callable[[], Spent],
    bare: Callable[[], Spent] | None = None,
) -> Cost:
    """All sides in turns, once untimed."""
    found: list[Spent] = []

    def floors() -> Spent:
        found.extend([bare()] if bare else [])
        return floor()

    alternate(1, floors, ours)
    found.clear()
    return Cost(row, floor_name, alternate(rounds, floors, ours), found)


def spent_by(pid: int, read: Callable[[], Transfer]) -> Spent:
    """Return what a process and its children spend while something is read through it."""
    idle, total = machine_ticks()
    before_s = tree_cpu_s(pid)
    transfer = read()
    core_s = tree_cpu_s(pid) - before_s
    idle_after, total_after = machine_ticks()
    idle_share = (idle_after - idle) / max(1, total_after - total)
    return Spent(core_s / (transfer.read_bytes / 1e9), transfer.megabytes_per_s, idle_share)


# --- beside a loop that copies ---


def relay_costs(options: CostOptions) -> Iterator[Cost]:
    """Rows whose floor is a loop that copies the broker's own answers."""
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tidegate-cost-")))
        certificate = server_certificate(work)
        cluster, tls_port = stack.enter_context(tls_cluster(certificate))
        stands = {"plain": cluster.bootstrap_servers, "tls": f"{HOST}:{tls_port}"}
        ends = {
            number: each.high_watermark
            for number, each in fill_topic(cluster, "local", options.megabytes, LOCAL_CONFIGS, is_tiered=False).items()
        }
        steps = learn_requests(address_of(cluster.bootstrap_servers), "local", ends)
        loop = stack.enter_context(plain_relay(address_of(stands["plain"])))
        floor = "a loop that copies"
        if {"relay", "memory"} & {*options.rows}:
            cache_bytes = options.megabytes * 1_250_000
            properties = {"cache.memory.bytes": str(cache_bytes), "memory.max.bytes": str(cache_bytes + 2048 * MIB)}
            ours = stack.enter_context(tidegate(cluster, work / "plain", stands["plain"], properties))
            if "relay" in options.rows:
                spliced = stack.enter_context(plain_relay(address_of(stands["plain"]), splices=True))
                yield compare("relay", floor, options, loop, steps, ours, steps, bare=spliced)
            if "memory" in options.rows:
                yield compare("memory", floor, options, loop, steps, ours, tiered_steps(cluster, options, ours))
        if "relay-tls" in options.rows:
            path, key = map(str, certificate)
            properties = {
                "upstream.security.protocol": "SSL",
                "upstream.ssl.ca.location": path,
                "proxy.tls.certificate.file": path,
                "proxy.tls.key.file": key,
            }
            ours = stack.enter_context(tidegate(cluster, work / "tls", stands["tls"], properties))
            loop = stack.enter_context(plain_relay((HOST, tls_port), certificate))
            trusting = ssl.create_default_context(cafile=path)
            yield compare("relay-tls", f"{floor}, with TLS", options, loop, steps, ours, steps, trusting)


@contextmanager
def tls_cluster(certificate: tuple[Path, Path]) -> Iterator[tuple[KafkaCluster, int]]:
    """A broker at full speed, that also listens with TLS; and where."""
    path, key = certificate
    keystore = path.with_name("keystore.pem")
    keystore.write_bytes(key.read_bytes() + path.read_bytes())
    cluster = KafkaCluster(jars=JARS, work=path.parent, jvm_options=JVM_OPTIONS)
    ports = {"PLAINTEXT": cluster.broker(1).port, "SSL": free_port()}
    listeners = ",".join(f"{name}://{HOST}:{port}" for name, port in ports.items())
    cluster.change_properties(
        {
            "listeners": f"{listeners},CONTROLLER://{HOST}:{cluster.plan.controller_port}",
            "advertised.listeners": listeners,
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SSL:SSL,CONTROLLER:PLAINTEXT",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(keystore),
        }
    )
    with cluster:
        yield cluster, ports["SSL"]


@contextmanager
def tidegate(
    cluster: KafkaCluster, work: Path, upstream: str, properties: Mapping[str, str]
) -> Iterator[tuple[Tidegate, Address]]:
    """One that is ready, and where."""
    work.mkdir()
    process = Tidegate(
        work=work,
        server_properties=cluster.server_properties_path(1),
        bootstrap_servers=upstream,
        properties=properties,
    )
    process.start()
    try:
        yield process, address_of(process.wait_ready())
    finally:
        process.stop()


def tiered_steps(cluster: KafkaCluster, options: CostOptions, ours: tuple[Tidegate, Address]) -> list[FetchStep]:
    """A topic that is in the tier alone, read once, so that all of it is in memory."""
    configs = {**TIERED_CONFIGS, "segment.bytes": str(min(16, options.megabytes // 8) * MIB)}
    offsets = fill_topic(cluster, "tiered", options.megabytes, configs, is_tiered=True)
    ends = {partition: known.local_log_start_offset for partition, known in offsets.items()}
    return learn_requests(ours[1], "tiered", ends)


def compare(
    row: str,
    floor_name: str,
    options: CostOptions,
    loop: PlainRelay,
    loop_steps: Sequence[FetchStep],
    ours: tuple[Tidegate, Address],
    our_steps: Sequence[FetchStep],
    tls: ssl.SSLContext | None = None,
    bare: PlainRelay | None = None,
) -> Cost:
    """Return a row of what is read over and over. `bare`: a relay without rules."""
    process, address = ours

    def through(relay: PlainRelay) -> Spent:
        return spent_by(relay.pid, lambda: read_for(relay.address, loop_steps, SECONDS, tls))

    def through_tidegate() -> Spent:
        before = usage(process)
        spent = spent_by(process.pid, lambda: counted(read_for(address, our_steps, SECONDS, tls)))
        after = usage(process) - before
        served = after.served_tier_bytes if row == "memory" else after.relayed_bytes
        if served < read_bytes[-1]:
            raise SystemExit(f"{row}: Tidegate has counted {served:,} bytes, and the client read {read_bytes[-1]:,}")
        if row == "memory" and after.fills:
            raise SystemExit(f"memory: {after.fills} blocks were not in memory")
        return spent

    read_bytes: list[int] = []

    def counted(transfer: Transfer) -> Transfer:
        read_bytes.append(transfer.read_bytes)
        return transfer

    without_rules = partial(through, bare) if bare else None
    return measure(row, floor_name, options.rounds, partial(through, loop), through_tidegate, without_rules)


# --- beside the store's SDK ---


def cold_costs(options: CostOptions) -> Iterator[Cost]:
    """Rows whose floor is boto3 with 16 threads, over the same objects."""
    sizes = {SMALL_KIB if row == "cold-small" else LARGE_KIB for row in options.rows if row in COLD_ROWS}
    wanted = ColdOptions(
        schemes=("http", "https") if "cold-https" in options.rows else ("http",),
        batch_kib=tuple(sorted(sizes)),
        partitions=(PARTITIONS,),
        megabytes=options.megabytes,
        segment_mib=min(64, options.megabytes // 8),
        connection_megabytes_per_s=0,
    )
    with cold_stage(wanted) as stage, ExitStack() as stack:
        if SLOW in options.rows:
            way = stack.enter_context(slowed(stage.work, stage.store.ways["http"], **SLOW_LINK))
            stage = replace(stage, store=replace(stage.store, ways={**stage.store.ways, SLOW: way}))
        for row in (each for each in COLD_ROWS if each in options.rows):
            scheme = {"cold-https": "https", SLOW: SLOW}.get(row, "http")
            with SdkProcess("s3", stage.store.ways[scheme].url) as sdk:
                yield measure(row, "boto3, 16 threads", options.rounds, *cold_sides(stage, sdk, row, scheme))


def cold_sides(
    stage: ColdStage, sdk: SdkProcess, row: str, scheme: str
) -> tuple[Callable[[], Spent], Callable[[], Spent], Callable[[], Spent] | None]:
    """The SDK's round, that of a Tidegate that was just started, and that of a bare replica, just started too."""
    topic = stage.topics[SMALL_KIB if row == "cold-small" else LARGE_KIB]
    log_bytes, ends = topic.log_bytes(PARTITIONS), topic.ends(PARTITIONS)

    def received(by: SdkProcess) -> Spent:
        idle, total = machine_ticks()
        transfer, processor_s = by.read(topic.stored("plain", PARTITIONS))
        idle_after, total_after = machine_ticks()
        idle_share = (idle_after - idle) / max(1, total_after - total)
        return Spent(processor_s / (transfer.read_bytes / 1e9), transfer.megabytes_per_s, idle_share)

    def received_bare() -> Spent:
        kept = BARE_ROWS[row]
        with SdkProcess(kept, stage.store.ways[scheme].url) as program:
            if kept is Kept.DISK:
                received(program)
            return received(program)

    def ours() -> Spent:
        with tempfile.TemporaryDirectory(dir=stage.work) as folder:
            keys = {"cache.memory.bytes": str(log_bytes // 4)} if row.startswith("again") else {}
            if row == SLOW:
                keys["tier.concurrent.gets.max"] = str(THREADS)
            if row == "again-disk":
                keys |= {"cache.path": folder, "cache.disk.bytes": str(log_bytes * 2)}
            with fresh_tidegate(stage, "plain", scheme, keys) as fresh:
                if row.startswith("again"):
                    read_partitions(fresh.address, topic.name, ends)
                before = fresh.usage()
                spent = spent_by(fresh.process.pid, lambda: read_partitions(fresh.address, topic.name, ends))
                if fresh.usage().since(before).served_bytes < log_bytes:
                    raise SystemExit(f"{row}: Tidegate has served less than the log's {log_bytes:,} bytes")
                return spent

    return partial(received, sdk), ours, received_bare if row in BARE_ROWS else None


def show(figures: Sequence[Mapping[str, float | str]], *, as_json: bool) -> None:
    """Print them."""
    if as_json:
        print(json.dumps(figures, indent=2))
        return
    table = Table(title="core-seconds a GB", box=SIMPLE_HEAVY, pad_edge=False, title_justify="left")
    for heading in (
        "way",
        "Tidegate",
        "least – most",
        "floor",
        "of the floor (aim)",
        "bare work",
        "MB/s",
        "floor's MB/s",
        "idle",
    ):
        table.add_column(heading, justify="left" if heading in ("way", "floor") else "right")
    for row in figures:
        table.add_row(
            str(row["way"]),
            f"{row['core_s_per_gb']:.2f}",
            f"{row['least']:.2f} – {row['most']:.2f}",
            f"{row['floor']}: {row['floor_core_s_per_gb']:.2f}",
            f"{row['ratio']:.2f} × ({'≤' if row['counts'] == 'core_s_per_gb' else 'MB/s, ≥'} {row['aim']:g})",
            f"{row['bare_ratio']:.2f} ×" if "bare_ratio" in row else "",
            f"{row['megabytes_per_s']:,.0f}",
            f"{row['floor_megabytes_per_s']:,.0f}",
            f"{row['idle_share']:.0%}",
        )
    Console(width=150).print(table)


if __name__ == "__main__":
    sys.exit(main())
