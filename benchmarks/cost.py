"""What a GB costs: processor time of all processes that Tidegate starts, beside a floor in the same run
(benchmarks/README.md).

    python benchmarks/cost.py [--rounds 5] [--megabytes 400] [--rows relay,memory,cold-http] [--json] [--save FILE]
    python benchmarks/cost.py --counts [--before CHECKOUT] [--rows relay]
    python benchmarks/cost.py --before CHECKOUT [--rounds 60] [--rows relay]

Core-seconds count, and not MB/s: with few cores client, broker and store share them with Tidegate. Where connections to
the store are slow, MB/s count: there are cores enough. The client is a bare Fetch, two partitions, 1 MiB of each; the
store a real S3 server with nothing before it. `--save` keeps the figures for `benchmarks/publish.py`. Exit code 1 when
Tidegate has served fewer bytes than the client read.

`--counts` prints what 100 answers of each row cost in calls, awaits, system calls and copied bytes: each figure is
defined at the top of `benchmarks/support/counts.py`. `--before` alone measures two versions in turns, a pair of
readings in each round, and prints each pair's ratio. Exit code 1 when the lower quartile of a row's is above 1.05.
"""

import argparse
import json
import math
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.box import SIMPLE_HEAVY
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.support import cost_rows, counts
from benchmarks.support.aiven_stage import ColdStage
from benchmarks.support.bare_fetch import Transfer, read_for
from benchmarks.support.bare_replica import Kept
from benchmarks.support.bare_store import SdkProcess
from benchmarks.support.comparison import alternate
from benchmarks.support.cost_rows import (
    BARE_ROWS,
    COLD_ROWS,
    PARTITIONS,
    RELAY_ROWS,
    WAYS,
    RelayStage,
    Side,
    cold_rows_stage,
    cold_side,
    relay_stage,
    scheme_of,
    topic_of,
)
from benchmarks.support.options import MEGABYTES_MIN
from benchmarks.support.plain_relay import PlainRelay, plain_relay
from benchmarks.support.processor_time import machine_ticks
from benchmarks.support.published import save
from benchmarks.support.tidegate_usage import tree_cpu_s, usage
from benchmarks.support.worker_processes import program_of
from tools.demo.kafka_properties import HOST

BEFORE_ROUNDS = 60
BEFORE_QUARTILE_MAX = 1.05
"""Lower quartile of the pairs' ratios, new to old: noise makes single pairs worse, and seldom better."""


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

    @property
    def dearer(self) -> list[float]:
        """Each round's ratio, turned round where MB/s are compared: above 1 where Tidegate is dearer or slower."""
        ratios = self._ratios([ours for _, ours in self.rounds])
        return ratios if WAYS[self.row].counts == "core_s_per_gb" else [1 / ratio for ratio in ratios]

    def _of_floor(self, sides: Sequence[Spent]) -> float:
        return statistics.median(self._ratios(sides))

    def _ratios(self, sides: Sequence[Spent]) -> list[float]:
        counts = WAYS[self.row].counts
        pairs = [
            (getattr(floor, counts), getattr(side, counts)) for (floor, _), side in zip(self.rounds, sides, strict=True)
        ]
        return [side / floor if floor else math.inf for floor, side in pairs]

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
    counts: bool = False
    before: Path | None = None


def main(arguments: list[str] | None = None) -> int:
    options = parse_cost_options(arguments)
    if options.counts:
        counts.show(count_rows(options), as_json=options.as_json)
        return 0
    if options.before:
        return 0 if compare_before(options) else 1
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
    of_before = f"; pairs with --before: {BEFORE_ROUNDS}"
    parser.add_argument("--rounds", type=int, help=f"of each row ({base.rounds}{of_before})")
    parser.add_argument("--megabytes", type=int, default=base.megabytes, help=f"of each topic ({base.megabytes})")
    parser.add_argument("--rows", default=",".join(base.rows), help="all by default: " + ", ".join(base.rows))
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--save", type=Path, help="the file for benchmarks/publish.py; rows of other runs stay in it")
    parser.add_argument("--counts", action="store_true", help="what answers cost in calls, system calls and copies")
    parser.add_argument("--before", type=Path, help="the checkout of another version, which is measured in turns")
    chosen = parser.parse_args(arguments)
    rows = tuple(chosen.rows.split(","))
    is_paired = chosen.before and not chosen.counts
    rounds, least = chosen.rounds or (BEFORE_ROUNDS if is_paired else base.rounds), 2 if is_paired else 1
    if not {*rows} <= {*base.rows} or rounds < least or chosen.megabytes < MEGABYTES_MIN:
        parser.error(f"rows are {', '.join(base.rows)}; rounds at least {least}, megabytes {MEGABYTES_MIN}")
    return CostOptions(
        rows=rows,
        rounds=rounds,
        megabytes=chosen.megabytes,
        as_json=chosen.json,
        save=chosen.save,
        counts=chosen.counts,
        before=chosen.before,
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
    with relay_stage(options.megabytes) as stage:
        for row in (each for each in RELAY_ROWS if each in options.rows):
            yield relay_cost(stage, row, options.rounds)


def relay_cost(stage: RelayStage, row: str, rounds: int) -> Cost:
    """Return a row of what is read over and over. The bare work is a relay without rules."""
    with ExitStack() as stack:
        side = stack.enter_context(stage.side(row))
        has_tls = row == "relay-tls"
        if has_tls:
            loop = stack.enter_context(plain_relay((HOST, stage.tls_port), stage.certificate))
        else:
            loop = stack.enter_context(plain_relay(stage.plain))
        bare = stack.enter_context(plain_relay(stage.plain, splices=True)) if row == "relay" else None

        def through(relay: PlainRelay) -> Spent:
            tls = stage.trusting if has_tls else None
            return spent_by(relay.pid, lambda: read_for(relay.address, stage.steps, cost_rows.SECONDS, tls))

        floor_name = "a loop that copies, with TLS" if has_tls else "a loop that copies"
        without_rules = partial(through, bare) if bare else None
        return measure(
            row, floor_name, rounds, partial(through, loop), partial(spent_by_side, row, side), without_rules
        )


def spent_by_side(row: str, side: Side) -> Spent:
    """Return what a reading costs.

    Raises:
        SystemExit: Tidegate was bypassed, or what is in memory was not.
    """
    before, transfers = usage(side.process), list[Transfer]()

    def read() -> Transfer:
        transfers.append(side.read())
        return transfers[-1]

    spent = spent_by(side.process.pid, read)
    after = usage(side.process) - before
    served = after.relayed_bytes if row.startswith("relay") else after.served_tier_bytes
    read_bytes = side.served_bytes_min or transfers[-1].read_bytes
    if served < read_bytes:
        raise SystemExit(f"{row}: Tidegate has counted {served:,} bytes, and the client read {read_bytes:,}")
    if row == "memory" and after.fills:
        raise SystemExit(f"memory: {after.fills} blocks were not in memory")
    return spent


# --- beside the store's SDK ---


def cold_costs(options: CostOptions) -> Iterator[Cost]:
    """Rows whose floor is boto3 with 16 threads, over the same objects."""
    with cold_rows_stage(options.rows, options.megabytes) as stage:
        for row in (each for each in COLD_ROWS if each in options.rows):
            with SdkProcess("s3", stage.store.ways[scheme_of(row)].url) as sdk:
                yield measure(row, "boto3, 16 threads", options.rounds, *cold_sides(stage, sdk, row))


def cold_sides(
    stage: ColdStage, sdk: SdkProcess, row: str
) -> tuple[Callable[[], Spent], Callable[[], Spent], Callable[[], Spent] | None]:
    """The SDK's round, that of a Tidegate that was just started, and that of a bare replica, just started too."""

    def received(by: SdkProcess) -> Spent:
        idle, total = machine_ticks()
        transfer, processor_s = by.read(topic_of(stage, row).stored("plain", PARTITIONS))
        idle_after, total_after = machine_ticks()
        idle_share = (idle_after - idle) / max(1, total_after - total)
        return Spent(processor_s / (transfer.read_bytes / 1e9), transfer.megabytes_per_s, idle_share)

    def received_bare() -> Spent:
        kept = BARE_ROWS[row]
        with SdkProcess(kept, stage.store.ways[scheme_of(row)].url) as program:
            if kept is Kept.DISK:
                received(program)
            return received(program)

    def ours() -> Spent:
        with cold_side(stage, row) as side:
            return spent_by_side(row, side)

    return partial(received, sdk), ours, received_bare if row in BARE_ROWS else None


# --- counted, and beside another version ---

Start = Callable[[Sequence[str]], AbstractContextManager[Side]]
"""Starts a Tidegate of that command, ready for a row."""


def started_rows(options: CostOptions) -> Iterator[tuple[str, Start]]:
    """Each row, and what starts a side of it."""
    for rows, stage in ((RELAY_ROWS, relay_starts), (COLD_ROWS, cold_starts)):
        if chosen := [row for row in rows if row in options.rows]:
            with stage(chosen, options.megabytes) as start:
                for row in chosen:
                    yield row, partial(start, row)


@contextmanager
def relay_starts(rows: Sequence[str], megabytes: int) -> Iterator[Callable[..., AbstractContextManager[Side]]]:
    with relay_stage(megabytes) as stage:
        yield stage.side


@contextmanager
def cold_starts(rows: Sequence[str], megabytes: int) -> Iterator[Callable[..., AbstractContextManager[Side]]]:
    with cold_rows_stage(rows, megabytes) as stage:
        yield partial(cold_side, stage)


def count_rows(options: CostOptions) -> list[dict[str, object]]:
    """Return the counts of each row, and of the version before behind its own. Both take turns."""
    if problem := counts.missing():
        raise SystemExit(problem)
    sides = {"": None, **({", before": options.before} if options.before else {})}
    rows = []
    for row, start in started_rows(options):
        rounds = [{side: counts_of(start, sides[side]) for side in sides} for _ in range(options.rounds)]
        rows += [counts.row_of(f"{row}{side}", [each[side] for each in rounds]) for side in sides]
    return rows


def counts_of(start: Start, checkout: Path | None) -> counts.Counts:
    """Return the counts of one reading by a Tidegate that counts and by one that is traced."""
    with start(counts.counted_program(checkout)) as side, counts.on_one_core(side.pids):
        profiled = counts.profiled(side.process.properties_path, side.read_answers)
    with start(program_of(checkout)) as side, counts.on_one_core(side.pids):
        traced = counts.traced(side.process.pid, side.read_answers)
    return counts.of_100_answers({**profiled, **traced}, side.answers)


def compare_before(options: CostOptions) -> bool:
    """Print each pair's ratio and the quartiles of each row; return whether all rows hold."""
    holds = True
    programs = program_of(options.before), program_of(None)
    for row, start in started_rows(options):
        with ExitStack() as stack:
            sides = [partial(spent_by_program, row, start, program) for program in programs]
            if row in RELAY_ROWS:
                running = [stack.enter_context(start(program)) for program in programs]
                sides = [partial(spent_by_side, row, side) for side in running]
            alternate(1, *sides)
            pairs = Cost(row, "before", alternate(options.rounds, *sides))
        text, row_holds = judged(row, pairs.dearer)
        print(text, flush=True)
        holds &= row_holds
    return holds


def judged(row: str, ratios: Sequence[float]) -> tuple[str, bool]:
    """Return two lines about a row's pairs, and whether it holds. `ratios`: new to old, two or more."""
    lower, median, upper = statistics.quantiles(ratios, n=4)
    holds = lower <= BEFORE_QUARTILE_MAX
    shown = " ".join(f"{ratio:.3f}" for ratio in ratios)
    quantiles = f"least {min(ratios):.3f}, quartiles {lower:.3f} {median:.3f} {upper:.3f}, most {max(ratios):.3f}"
    verdict = f"{'holds' if holds else 'failed'}: lower quartile at most {BEFORE_QUARTILE_MAX}"
    return f"{row}: {shown}\n{row}: new/old in {WAYS[row].counts}, {len(ratios)} pairs: {quantiles}; {verdict}", holds


def spent_by_program(row: str, start: Start, program: Sequence[str]) -> Spent:
    with start(program) as side:
        return spent_by_side(row, side)


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
