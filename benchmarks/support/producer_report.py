"""What `producers.py` measured, and the tables that show it."""

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field

from rich.box import SIMPLE_HEAVY
from rich.console import Console
from rich.table import Table

from benchmarks.support.steady_producer import Latencies

ALONE, THROUGH_TIDEGATE, THROUGH_BROKER = "no backfill", "through Tidegate", "through the broker"
P50, P99, P999 = 0.5, 0.99, 0.999


@dataclass(frozen=True, slots=True)
class Run:
    """One side of one round."""

    side: str
    latencies: Latencies
    backfill_megabytes_per_s: float
    """All backfills together."""
    broker_cpu_s: float
    tidegate_cpu_s: float
    remote_fetches: int
    """The broker's own."""
    tidegate_fill_share: float
    """Share of the bytes served by Tidegate that it fetched from the tier meanwhile."""
    read_bytes: int
    """By the backfills."""
    served_bytes: int
    """From the tier, by Tidegate."""

    @property
    def p99_ms(self) -> float:
        return self.latencies.percentile(P99)


@dataclass(frozen=True, slots=True)
class Pacing:
    """All rounds at one rate of backfills; a round has each side once."""

    name: str
    rounds: Sequence[dict[str, Run]]

    @property
    def sides(self) -> list[str]:
        return [side for side in (ALONE, THROUGH_TIDEGATE, THROUGH_BROKER) if side in self.rounds[0]]

    def median(self, side: str, value: Callable[[Run], float]) -> float:
        return statistics.median(value(each[side]) for each in self.rounds)

    def ratios(self, side: str, base: str) -> list[float]:
        """The rounds' own p99 of one side in terms of another's."""
        return [each[side].p99_ms / each[base].p99_ms for each in self.rounds]


@dataclass(slots=True)
class ProducerReport:
    """A complaint is a failed run."""

    title: str
    pacings: list[Pacing] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)


_COMPARED = ((THROUGH_TIDEGATE, ALONE), (THROUGH_BROKER, ALONE), (THROUGH_TIDEGATE, THROUGH_BROKER))
_FIGURES: tuple[tuple[str, Callable[[Run], float], str], ...] = (
    ("p50", lambda run: run.latencies.percentile(P50), "{:.2f} ms"),
    ("p99", lambda run: run.p99_ms, "{:.2f} ms"),
    ("p99.9", lambda run: run.latencies.percentile(P999), "{:.1f} ms"),
    ("backfills", lambda run: run.backfill_megabytes_per_s, "{:,.0f} MB/s"),
    ("broker CPU", lambda run: run.broker_cpu_s, "{:.2f} s"),
    ("Tidegate CPU", lambda run: run.tidegate_cpu_s, "{:.2f} s"),
    ("broker's remote fetches", lambda run: run.remote_fetches, "{:,.0f}"),
    ("of what Tidegate served, fetched for it", lambda run: 100 * run.tidegate_fill_share, "{:.0f} %"),
)


def show(report: ProducerReport, *, as_json: bool) -> None:
    """Print the report: medians of the rounds, and each ratio's rounds."""
    if as_json:
        print(json.dumps(_figures(report), indent=2))
        return
    console = Console()
    for pacing in report.pacings:
        console.print(_table(f"{report.title}; {pacing.name}", pacing))
        for side, base in _COMPARED:
            ratios = pacing.ratios(side, base)
            rounds = ", ".join(f"{ratio:.2f}" for ratio in ratios)
            console.print(f"p99 {side} / {base}: {statistics.median(ratios):.2f} (rounds {rounds})", highlight=False)
        console.print()
    for note in report.notes:
        console.print(note, highlight=False)
    for complaint in report.complaints:
        console.print(f"failed: {complaint}", style="bold red", highlight=False)


def _table(title: str, pacing: Pacing) -> Table:
    table = Table(title=title, box=SIMPLE_HEAVY, pad_edge=False, title_justify="left")
    table.add_column("four backfills")
    for side in pacing.sides:
        table.add_column(side, justify="right")
    for heading, value, figure in _FIGURES:
        table.add_row(heading, *(figure.format(pacing.median(side, value)) for side in pacing.sides))
    return table


def _figures(report: ProducerReport) -> dict[str, object]:
    return {
        "title": report.title,
        "pacings": [
            {
                "name": pacing.name,
                "medians": {
                    side: {heading: pacing.median(side, value) for heading, value, _ in _FIGURES}
                    for side in pacing.sides
                },
                "p99 ratios": {f"{side} / {base}": pacing.ratios(side, base) for side, base in _COMPARED},
                "rounds": [
                    {
                        side: {**asdict(run), "latencies": len(run.latencies.milliseconds), "p99_ms": run.p99_ms}
                        for side, run in each.items()
                    }
                    for each in pacing.rounds
                ],
            }
            for pacing in report.pacings
        ],
        "notes": report.notes,
        "complaints": report.complaints,
        "holds": not report.complaints,
    }
