"""What a run of cold reads has found, what of it is held against a bar, and the tables that show it."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from rich.box import SIMPLE_HEAVY
from rich.console import Console
from rich.table import Table

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdRead:
    """One fresh Tidegate that read so many partitions from their beginning. MB/s are of log bytes, on all sides."""

    variant: str
    partitions: int
    reader: str
    megabytes_per_s: float
    boto3_megabytes_per_s: float
    log_gets_per_gb: float
    other_gets_per_gb: float
    stored_bytes_asked: float
    """Of the store, as a multiple of what is stored: above 1 something was asked for twice."""
    readahead_used_mb: float
    readahead_wasted_mb: float
    hedges: int
    splits: int
    core_seconds_per_gb: float
    peak_rss_mib: float
    get_usd_per_tb: float

    @property
    def name(self) -> str:
        return f"{self.variant}, {self.partitions}p, {self.reader}"

    @property
    def ratio(self) -> float:
        return self.megabytes_per_s / self.boto3_megabytes_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Seek:
    """A Fetch far from any other, to the end of its answer; the median of `count`, with the most GETs of any."""

    variant: str
    kind: str
    count: int
    milliseconds: float
    log_gets: int
    other_gets: int
    serial_gets: int
    """How many of them waited for another: objects of different kinds do, as each tells where to look in the next."""


@dataclass(frozen=True, slots=True)
class Check:
    """A figure and its bars. `floor` must hold, `aim` is what we are after; None where there is none.

    `is_upper_bound`: the figure must not be above them, where others must not be below.
    """

    name: str
    value: float
    unit: str
    floor: float | None = None
    aim: float | None = None
    is_upper_bound: bool = False

    @property
    def holds(self) -> bool:
        return self.floor is None or self._reaches(self.floor)

    @property
    def verdict(self) -> str:
        if not self.holds:
            return "the floor does not hold"
        if self.aim is not None and self._reaches(self.aim):
            return "aim reached"
        return "short of the aim" if self.floor is None else "floor holds"

    def _reaches(self, bar: float) -> bool:
        return self.value <= bar if self.is_upper_bound else self.value >= bar


@dataclass(slots=True)
class ColdReport:
    """A complaint is a failed run, as is a check whose floor does not hold."""

    title: str
    reads: list[ColdRead] = field(default_factory=list)
    seeks: list[Seek] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        return not self.complaints and all(check.holds for check in self.checks)


def show(report: ColdReport, *, as_json: bool) -> None:
    """Print the report."""
    if as_json:
        print(json.dumps(_as_json(report), indent=2))
        return
    # Wide enough for the columns also where the output is no terminal.
    console = Console(width=max(160, Console().width))
    console.print(_reads_table(report), _seeks_table(report), _checks_table(report))
    for note in report.notes:
        console.print(note, highlight=False)
    for complaint in report.complaints:
        console.print(f"failed: {complaint}", style="bold red", highlight=False)


def _as_json(report: ColdReport) -> dict[str, object]:
    return {
        "title": report.title,
        "reads": [{**asdict(read), "ratio": read.ratio} for read in report.reads],
        "seeks": [asdict(seek) for seek in report.seeks],
        "checks": [{**asdict(check), "verdict": check.verdict} for check in report.checks],
        "notes": report.notes,
        "complaints": report.complaints,
        "holds": report.holds,
    }


def _reads_table(report: ColdReport) -> Table:
    speeds, gets = ("MB/s", "boto3", "ratio"), ("log GETs/GB", "others/GB")
    ahead, costs = ("ahead MB", "wasted MB", "hedges", "splits"), ("core-s/GB", "RSS MiB", "USD/TB")
    table = _table(report.title, 2, (*speeds, *gets, *ahead, *costs))
    for read in report.reads:
        table.add_row(
            f"{read.variant}, {read.partitions}p",
            read.reader,
            f"{read.megabytes_per_s:,.0f}",
            f"{read.boto3_megabytes_per_s:,.0f}",
            f"{read.ratio:.2f}",
            f"{read.log_gets_per_gb:.0f}",
            f"{read.other_gets_per_gb:.0f}",
            f"{read.readahead_used_mb:,.0f}",
            f"{read.readahead_wasted_mb:,.0f}",
            f"{read.hedges}",
            f"{read.splits}",
            f"{read.core_seconds_per_gb:.2f}",
            f"{read.peak_rss_mib:,.0f}",
            f"{read.get_usd_per_tb:.3f}",
        )
    return table


def _seeks_table(report: ColdReport) -> Table:
    table = _table("a cold seek", 2, ("answer, ms", "log GETs", "other GETs", "one after another"))
    for seek in report.seeks:
        gets = (str(number) for number in (seek.log_gets, seek.other_gets, seek.serial_gets))
        table.add_row(seek.variant, seek.kind, f"{seek.milliseconds:.0f}", *gets)
    return table


def _checks_table(report: ColdReport) -> Table:
    table = _table("held against", 1, ("value", "floor", "aim", "verdict"))
    for check in report.checks:
        bars = [f"{bar:,.2f}" if bar is not None else "" for bar in (check.floor, check.aim)]
        style = "" if check.holds else "bold red"
        table.add_row(check.name, f"{check.value:,.2f} {check.unit}", *bars, check.verdict, style=style)
    return table


def _table(title: str, names: int, figures: Sequence[str]) -> Table:
    table = Table(title=title, box=SIMPLE_HEAVY, pad_edge=False, title_justify="left")
    for _ in range(names):
        table.add_column("", no_wrap=True)
    for heading in figures:
        table.add_column(heading, justify="right")
    return table
