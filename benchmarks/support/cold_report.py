"""What a run of cold reads has found, what of it is held against a bar, and the tables that show it."""

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from rich.box import SIMPLE_HEAVY
from rich.console import Console
from rich.table import Table

MIB = 1024 * 1024
FIRST, SECOND = "first", "second"
SDK = "SDK"
WIDTH_MIN = 170


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What is read, how it is stored and how it is reached: a row of the tables."""

    scheme: str
    batch_kib: int
    variant: str
    cache: str
    partitions: int

    @property
    def name(self) -> str:
        cache = "" if self.cache == "memory" else f", {self.cache}"
        return f"{self.scheme}, {self.batch_kib} KiB, {self.variant}{cache}, {self.partitions}p"


@dataclass(frozen=True, slots=True)
class Side:
    """One side of one round. `core_s`: processor seconds per GB of log, by process."""

    megabytes_per_s: float
    core_s: Mapping[str, float]
    idle_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading(Side):
    """One read through Tidegate. MB/s are of log bytes, on all sides."""

    log_gets_per_gb: float
    other_gets_per_gb: float
    stored_bytes_asked: float
    """Bytes asked of the store, as a multiple of what is stored: above 1 something was asked for twice."""
    readahead_wasted_mb: float
    hedges: int
    peak_rss_mib: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdRead:
    """All rounds of a cell's first or second read: SDK and Tidegate. Figures are medians; ratios those of the rounds'
    own ratios."""

    cell: Cell
    read: str
    log_bytes: int
    rounds: Sequence[tuple[Side, Reading]]
    of_first: float | None = None
    """How fast beside the first read; None of the first itself."""

    @property
    def name(self) -> str:
        return f"{self.cell.name}, {self.read} read"

    @property
    def ratios(self) -> list[float]:
        return [through.megabytes_per_s / direct.megabytes_per_s for direct, through in self.rounds]

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)

    @property
    def peak_rss_mib(self) -> float:
        return max(through.peak_rss_mib for _, through in self.rounds)

    def direct(self, figure: Callable[[Side], float]) -> float:
        """The median of the SDK's."""
        return statistics.median(figure(direct) for direct, _ in self.rounds)

    def through(self, figure: Callable[[Reading], float]) -> float:
        """The median of Tidegate's."""
        return statistics.median(figure(through) for _, through in self.rounds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seek:
    """A Fetch far from any other, to the end of its answer; the median of `count`, with the most GETs of any."""

    stored: str
    kind: str
    count: int
    first_byte_ms: float
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
    console = Console(width=max(WIDTH_MIN, Console().width))
    console.print(_reads_table(report), _processors_table(report), _seeks_table(report), checks_table(report.checks))
    for note in report.notes:
        console.print(note, highlight=False)
    for complaint in report.complaints:
        console.print(f"failed: {complaint}", style="bold red", highlight=False)


def _as_json(report: ColdReport) -> dict[str, object]:
    return {
        "title": report.title,
        "reads": [{**asdict(read), "name": read.name, "ratio": read.ratio} for read in report.reads],
        "seeks": [asdict(seek) for seek in report.seeks],
        "checks": [{**asdict(check), "verdict": check.verdict} for check in report.checks],
        "notes": report.notes,
        "complaints": report.complaints,
        "holds": report.holds,
    }


def _reads_table(report: ColdReport) -> Table:
    speeds = ("MB/s", "SDK", "ratio", "of rounds", "of the first")
    gets = ("log GETs/GB", "others/GB", "stored ×", "hedges", "wasted MB", "RSS MiB")
    table = figures_table(report.title, 2, (*speeds, *gets))
    for read in report.reads:
        table.add_row(
            read.cell.name,
            read.read,
            f"{read.through(lambda side: side.megabytes_per_s):,.0f}",
            f"{read.direct(lambda side: side.megabytes_per_s):,.0f}",
            f"{read.ratio:.2f}",
            f"{min(read.ratios):.2f}–{max(read.ratios):.2f}",
            "" if read.of_first is None else f"{read.of_first:.2f}",
            f"{read.through(lambda side: side.log_gets_per_gb):.0f}",
            f"{read.through(lambda side: side.other_gets_per_gb):.0f}",
            f"{read.through(lambda side: side.stored_bytes_asked):.2f}",
            f"{read.through(lambda side: side.hedges):.0f}",
            f"{read.through(lambda side: side.readahead_wasted_mb):,.0f}",
            f"{read.peak_rss_mib:,.0f}",
        )
    return table


def _processors_table(report: ColdReport) -> Table:
    """Idle is of the machine; others are whatever else runs on it, this benchmark excepted."""
    through = list(dict.fromkeys(name for read in report.reads for _, side in read.rounds for name in side.core_s))
    direct = list(dict.fromkeys(name for read in report.reads for side, _ in read.rounds for name in side.core_s))
    headings = (*through, "idle", *(name if name == SDK else f"its {name}" for name in direct), "its idle")
    table = figures_table("processor seconds per GB of log", 2, headings)
    for read in report.reads:
        table.add_row(
            read.cell.name,
            read.read,
            *(f"{read.through(_core_s_of(name)):.2f}" for name in through),
            f"{read.through(lambda side: side.idle_share):.0%}",
            *(f"{read.direct(_core_s_of(name)):.2f}" for name in direct),
            f"{read.direct(lambda side: side.idle_share):.0%}",
        )
    return table


def _core_s_of(process: str) -> Callable[[Side], float]:
    return lambda side: side.core_s[process]


def _seeks_table(report: ColdReport) -> Table:
    headings = ("first byte, ms", "answer, ms", "log GETs", "other GETs", "one after another", "seeks")
    table = figures_table("a cold seek", 2, headings)
    for seek in report.seeks:
        gets = (str(number) for number in (seek.log_gets, seek.other_gets, seek.serial_gets, seek.count))
        table.add_row(seek.stored, seek.kind, f"{seek.first_byte_ms:.0f}", f"{seek.milliseconds:.0f}", *gets)
    return table


def checks_table(checks: Sequence[Check]) -> Table:
    """Figures beside their bars."""
    table = figures_table("held against", 1, ("value", "floor", "aim", "verdict"))
    for check in checks:
        bars = [f"{bar:,.2f}" if bar is not None else "" for bar in (check.floor, check.aim)]
        style = "" if check.holds else "bold red"
        table.add_row(check.name, f"{check.value:,.2f} {check.unit}", *bars, check.verdict, style=style)
    return table


def figures_table(title: str, names: int, figures: Sequence[str]) -> Table:
    """An empty one: so many columns of names, and then those of figures."""
    table = Table(title=title, box=SIMPLE_HEAVY, pad_edge=False, title_justify="left")
    for _ in range(names):
        table.add_column("", no_wrap=True)
    for heading in figures:
        table.add_column(heading, justify="right")
    return table
