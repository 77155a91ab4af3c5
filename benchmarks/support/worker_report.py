"""What `workers.py` measured, what of it is held against a bar, and the tables that show it."""

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from rich.console import Console

from benchmarks.support.cold_report import WIDTH_MIN, Check, checks_table, figures_table

BEFORE = "before"
ONE, TWO = "1", "2"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRun:
    """One side of one round. By worker: bytes that its clients moved, and its processor seconds."""

    moved_bytes: int
    seconds: float
    supervisor_cpu_s: float
    worker_cpu_s: Sequence[float]
    worker_bytes: Sequence[int]
    p50_ms: float
    p99_ms: float
    idle_share: float
    fills: int
    """GETs of the tier's store."""

    @property
    def megabytes_per_s(self) -> float:
        return self.moved_bytes / self.seconds / 1e6

    @property
    def supervisor_core_s(self) -> float:
        """Per GB of all that was moved."""
        return self.supervisor_cpu_s / self.moved_bytes * 1e9

    @property
    def worker_core_s(self) -> list[float]:
        """Return each worker's time per GB of all that was moved: with the supervisor's the cost of a GB."""
        return [cpu_s / self.moved_bytes * 1e9 for cpu_s in self.worker_cpu_s]

    @property
    def worker_megabytes_per_core_s(self) -> list[float]:
        """Return each worker's own bytes by its own time; 0 for a worker that had no connection."""
        return [
            moved / cpu_s / 1e6 if cpu_s else 0.0
            for moved, cpu_s in zip(self.worker_bytes, self.worker_cpu_s, strict=True)
        ]

    @property
    def megabytes_per_core_s(self) -> float:
        """Return the figure for all processes together, the supervisor among them."""
        return self.moved_bytes / max(0.01, self.supervisor_cpu_s + sum(self.worker_cpu_s)) / 1e6

    @property
    def busiest_bytes(self) -> float:
        """The share of all bytes that the worker with the most has."""
        return max(self.worker_bytes) / max(1, sum(self.worker_bytes))

    @property
    def busiest_cpu(self) -> float:
        """The same of processor time."""
        return max(self.worker_cpu_s) / max(0.01, sum(self.worker_cpu_s))


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """All rounds of one load; a round has each side once. A side is a number of workers, or BEFORE."""

    name: str
    rounds: Sequence[Mapping[str, WorkerRun]]

    @property
    def sides(self) -> list[str]:
        return list(self.rounds[0])

    def median(self, side: str, value: Callable[[WorkerRun], float]) -> float:
        return statistics.median(value(each[side]) for each in self.rounds)

    def medians(self, side: str, values: Callable[[WorkerRun], Sequence[float]]) -> list[float]:
        """Return the median of each worker's own figures."""
        return [statistics.median(each) for each in zip(*(values(one[side]) for one in self.rounds), strict=True)]

    def ratio(self, side: str, base: str, value: Callable[[WorkerRun], float]) -> float:
        """The median of the rounds' own ratios."""
        return statistics.median(value(each[side]) / value(each[base]) for each in self.rounds)


@dataclass(slots=True)
class WorkerReport:
    """A complaint is a failed run, as is a check whose floor does not hold."""

    title: str
    rows: list[WorkerRow] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        return not self.complaints and all(check.holds for check in self.checks)


_FIGURES: tuple[tuple[str, Callable[[WorkerRun], float], str], ...] = (
    ("MB/s", lambda run: run.megabytes_per_s, "{:,.0f}"),
    ("MB/core-s", lambda run: run.megabytes_per_core_s, "{:,.0f}"),
    ("supervisor core-s/GB", lambda run: run.supervisor_core_s, "{:.3f}"),
    ("busiest, bytes", lambda run: run.busiest_bytes, "{:.0%}"),
    ("its CPU", lambda run: run.busiest_cpu, "{:.0%}"),
    ("p50 ms", lambda run: run.p50_ms, "{:.1f}"),
    ("p99 ms", lambda run: run.p99_ms, "{:.1f}"),
    ("idle", lambda run: run.idle_share, "{:.0%}"),
)
_OF_EACH: tuple[tuple[str, Callable[[WorkerRun], Sequence[float]], str], ...] = (
    ("each worker, core-s/GB", lambda run: run.worker_core_s, "{:.2f}"),
    ("each worker, MB/core-s", lambda run: run.worker_megabytes_per_core_s, "{:,.0f}"),
)


def show(report: WorkerReport, *, as_json: bool) -> None:
    """Print the report."""
    if as_json:
        print(json.dumps(_as_json(report), indent=2))
        return
    console = Console(width=max(WIDTH_MIN, Console().width))
    if report.rows:
        headings = ("MB/core-s to 1's", *(name for name, *_ in (*_FIGURES, *_OF_EACH)))
        table = figures_table(report.title, 2, headings)
        for row in report.rows:
            for side in row.sides:
                ratio = row.ratio(side, ONE, lambda run: run.megabytes_per_core_s) if ONE in row.sides else 0.0
                table.add_row(
                    row.name if side == row.sides[0] else "",
                    side,
                    f"{ratio:.2f}" if ratio and side != ONE else "",
                    *(figure.format(row.median(side, value)) for _, value, figure in _FIGURES),
                    *(" ".join(map(figure.format, row.medians(side, values))) for _, values, figure in _OF_EACH),
                )
        console.print(table, checks_table(report.checks))
    for note in report.notes:
        console.print(note, highlight=False)
    for complaint in report.complaints:
        console.print(f"failed: {complaint}", style="bold red", highlight=False)


def _as_json(report: WorkerReport) -> dict[str, object]:
    return {
        "title": report.title,
        "rows": [
            {
                "name": row.name,
                "medians": {
                    side: {name: row.median(side, value) for name, value, _ in _FIGURES}
                    | {name: row.medians(side, values) for name, values, _ in _OF_EACH}
                    for side in row.sides
                },
                "rounds": [{side: asdict(run) for side, run in each.items()} for each in row.rounds],
            }
            for row in report.rows
        ],
        "checks": [{**asdict(check), "verdict": check.verdict} for check in report.checks],
        "notes": report.notes,
        "complaints": report.complaints,
        "holds": report.holds,
    }
