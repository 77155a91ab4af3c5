"""The options of `workers.py`."""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.support.options import MEGABYTES_MIN
from benchmarks.support.worker_report import BEFORE

ROWS = ("consume", "produce", "warm", "small", "cold-http", "cold-https", "spread")
"""Local data, batches produced, the tier in memory, small requests beside the latter, the tier over a slow link, and
how few connections spread."""
WORKERS_MAX = 64
CONNECTIONS_MAX = 64
SPREAD_RUNS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """`seconds` is one side of one round; `before` the folder of another version of Tidegate."""

    workers: tuple[int, ...] = (1, 2, 4)
    rows: tuple[str, ...] = ROWS
    brokers: int = 4
    connections: int = 8
    rounds: int = 5
    seconds: float = 2.0
    megabytes: int = 600
    before: Path | None = None
    spread_runs: int = SPREAD_RUNS
    as_json: bool = False
    save: Path | None = None

    @property
    def sides(self) -> Mapping[str, tuple[int, Path | None]]:
        """By name: how many workers, and of which version."""
        sides: dict[str, tuple[int, Path | None]] = {str(count): (count, None) for count in self.workers}
        return sides if self.before is None else {**sides, BEFORE: (1, self.before)}

    @property
    def is_live(self) -> bool:
        """Return whether a row needs brokers."""
        return bool({*self.rows} - {"spread"})


def parse_options(arguments: list[str] | None = None) -> WorkerOptions:
    """From the command line."""
    base = WorkerOptions()
    parser = argparse.ArgumentParser(description="The same loads through 1, 2 and 4 workers.")

    def option(name: str, kind: type, default: float, words: str) -> None:
        parser.add_argument(name, type=kind, default=default, help=f"{words} ({default})")

    parser.add_argument("--workers", default="1,2,4", help="proxy.workers of each side (1,2,4)")
    parser.add_argument("--rows", default=",".join(ROWS), help=f"of {', '.join(ROWS)} (all)")
    option("--brokers", int, base.brokers, "brokers")
    option("--connections", int, base.connections, "clients with a connection each; so many partitions has a topic")
    option("--rounds", int, base.rounds, "rounds, all sides in each")
    option("--seconds", float, base.seconds, "duration of each side of a round")
    option("--megabytes", int, base.megabytes, "data in the tier")
    parser.add_argument("--before", type=Path, help="folder of another version, measured as a side of its own")
    parser.add_argument("--quick", action="store_true", help="one round of 1 s and 80 MB: does it run at all")
    parser.add_argument("--json", action="store_true", help="print the figures, those of each round too, as JSON")
    parser.add_argument("--save", type=Path, help="the file for benchmarks/publish.py; rows of other runs stay in it")
    chosen = parser.parse_args(arguments)
    try:
        workers = tuple(dict.fromkeys(map(int, chosen.workers.split(","))))
    except ValueError:
        parser.error(f"--workers: numbers, not {chosen.workers!r}")
    options = WorkerOptions(
        workers=workers,
        rows=tuple(dict.fromkeys(chosen.rows.split(","))),
        brokers=chosen.brokers,
        connections=chosen.connections,
        rounds=1 if chosen.quick else chosen.rounds,
        seconds=1.0 if chosen.quick else chosen.seconds,
        megabytes=80 if chosen.quick else chosen.megabytes,
        before=chosen.before.resolve() if chosen.before else None,
        as_json=chosen.json,
        save=chosen.save,
    )
    if wrong := _wrong(options):
        parser.error(wrong)
    return options


def _wrong(options: WorkerOptions) -> str:
    """Return what is out of range, in words; empty when nothing is."""
    limits = (
        (all(1 <= each <= WORKERS_MAX for each in options.workers), f"1 to {WORKERS_MAX} workers"),
        ({*options.rows} <= {*ROWS}, f"rows are {', '.join(ROWS)}"),
        (
            1 <= options.brokers <= options.connections <= CONNECTIONS_MAX,
            f"brokers, and connections up to {CONNECTIONS_MAX}",
        ),
        (options.rounds >= 1 and options.seconds > 0, "at least one round, of more than 0 s"),
        (options.megabytes >= MEGABYTES_MIN, f"at least {MEGABYTES_MIN} MB"),
        (options.before is None or (options.before / "proxy").is_dir(), "--before: no Tidegate in this folder"),
    )
    return "; ".join(words for holds, words in limits if not holds)
