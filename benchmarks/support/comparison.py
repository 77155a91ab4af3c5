"""Two sides measured in turns, and the verdict: pure functions of what was measured, and the table that shows them.

Sides alternate within one run, and so does which goes first: this machine's other work then falls on both. A row's
ratio is the median of the rounds' own ratios.
"""

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import TypeVar

from rich.box import SIMPLE_HEAVY
from rich.console import Console
from rich.table import Table

Direct = TypeVar("Direct")
Through = TypeVar("Through")


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of both sides. `floor` must hold and `aim` is what we are after; None where a row only informs.

    `higher_is_better` False: the figure compared is a difference, which must not be above the floor.
    """

    name: str
    direct: str
    through: str
    compared: float
    unit: str = "×"
    floor: float | None = None
    aim: float | None = None
    higher_is_better: bool = True

    @property
    def holds(self) -> bool:
        return self.floor is None or self._reaches(self.floor)

    @property
    def verdict(self) -> str:
        if self.floor is None:
            return ""
        if not self.holds:
            return "below the floor"
        return "aim reached" if self.aim is not None and self._reaches(self.aim) else "floor holds"

    def _reaches(self, bar: float) -> bool:
        return self.compared >= bar if self.higher_is_better else self.compared <= bar


@dataclass(slots=True)
class Report:
    """A benchmark's rows, and sentences about what it made sure of. A complaint is a failed run."""

    title: str
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        return not self.complaints and all(row.holds for row in self.rows)


def alternate(
    rounds: int, direct: Callable[[], Direct], through: Callable[[], Through]
) -> list[tuple[Direct, Through]]:
    """Measure both sides in each round, the one and then the other first."""
    measured = []
    for number in range(rounds):
        if number % 2:
            second, first = through(), direct()
        else:
            first, second = direct(), through()
        measured.append((first, second))
    return measured


def throughput_row(
    name: str, rounds: Sequence[tuple[float, float]], *, floor: float | None = None, aim: float | None = None
) -> Row:
    """A row of MB/s, from the rounds' (direct, through)."""
    direct = statistics.median(one for one, _ in rounds)
    through = statistics.median(other for _, other in rounds)
    ratio = statistics.median(other / one for one, other in rounds)
    return Row(name, f"{direct:,.0f} MB/s", f"{through:,.0f} MB/s", ratio, floor=floor, aim=aim)


def latency_row(
    name: str, direct_ms: float, through_ms: float, *, floor: float | None = None, aim: float | None = None
) -> Row:
    """A row of milliseconds, compared by what is added."""
    added = through_ms - direct_ms
    sides = f"{direct_ms:.2f} ms", f"{through_ms:.2f} ms"
    return Row(name, *sides, added, unit="ms", floor=floor, aim=aim, higher_is_better=False)


def show(report: Report, *, as_json: bool) -> None:
    """Print the report."""
    if as_json:
        rows = [{**asdict(row), "verdict": row.verdict} for row in report.rows]
        notes = {"notes": report.notes, "complaints": report.complaints, "holds": report.holds}
        print(json.dumps({"title": report.title, "rows": rows, **notes}, indent=2))
        return
    console = Console()
    console.print(_table(report))
    for note in report.notes:
        console.print(note, highlight=False)
    for complaint in report.complaints:
        console.print(f"failed: {complaint}", style="bold red", highlight=False)


def _table(report: Report) -> Table:
    table = Table(title=report.title, box=SIMPLE_HEAVY, pad_edge=False, title_justify="left")
    table.add_column("")
    for heading in ("direct", "through Tidegate", "compared", "floor", "aim"):
        table.add_column(heading, justify="right")
    table.add_column("verdict")
    for row in report.rows:
        style = "" if row.holds else "bold red"
        bars = [_figure(row, bar) if bar is not None else "" for bar in (row.compared, row.floor, row.aim)]
        table.add_row(row.name, row.direct, row.through, *bars, row.verdict, style=style)
    return table


def _figure(row: Row, value: float) -> str:
    return f"{value:.2f} {row.unit}" if row.higher_is_better else f"{value:+.2f} {row.unit}"
