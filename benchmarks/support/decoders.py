"""What the benchmarks of decoders share: sides in turns within one run, in CPU time of the thread that works."""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.box import SIMPLE_HEAVY
from rich.console import Console
from rich.table import Table


def parsed(description: str, *, size: str, default: int, size_help: str) -> argparse.Namespace:
    """The command line: rounds, how much is decoded, and whether to print JSON. Exits with 2 for less than 1."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each comparison (5)")
    parser.add_argument(f"--{size}", type=int, default=default, help=f"{size_help} ({default:,})")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()
    if options.rounds < 1 or getattr(options, size) < 1:
        parser.error(f"--rounds and --{size} are at least 1")
    return options


def rates(rounds: int, rows: int, sides: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """The median rows per second of each side. The order of the sides changes with each round."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds):
        for name in list(sides) if number % 2 else reversed(list(sides)):
            started_s = time.process_time()
            sides[name]()
            seconds[name].append(time.process_time() - started_s)
    return {name: rows / statistics.median(measured) for name, measured in seconds.items()}


def show(
    title: str, headings: Sequence[str], cells: Sequence[Any], figures: Callable[[Any], Iterable[str]], *, as_json: bool
) -> None:
    """Print the cells, those that do not hold in red. `figures`: a cell's, one for each heading."""
    if as_json:
        print(json.dumps({"cells": [{**asdict(cell), "holds": cell.holds} for cell in cells]}, indent=2))
        return
    table = Table(title=title, box=SIMPLE_HEAVY, pad_edge=False, title_justify="left")
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "format" else "right")
    for cell in cells:
        table.add_row(*figures(cell), style="" if cell.holds else "bold red")
    console = Console(width=None if sys.stdout.isatty() else 140)
    console.print(table)
    for cell in cells:
        if not cell.are_equal:
            console.print(f"failed: rows differ: {cell}", style="bold red", highlight=False)
