"""How the tools print: tables for people, JSON for programs, and progress on a terminal.

Results go to standard output and nothing else does, so that `--json` can be piped; progress is on standard error and
only on a terminal. Everything that comes from outside (topic names, keys, object names) is printed as plain text.
"""

import base64
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress
from rich.table import Table
from rich.text import Text

PIPED_COLUMNS = 200
"""Width of what is no table, where the output is no terminal."""
_ROW_COLUMNS_MAX = 1_000_000

Cell = str | int | None


def print_table(out: TextIO, headings: Sequence[str], rows: Iterable[Sequence[Cell]]) -> None:
    """A table without borders; numbers stand right, None is empty. A row is one line, however long, so that an id or a
    key can be copied: where it is wider than a terminal, that wraps it."""
    console = _console(out, _ROW_COLUMNS_MAX)
    listed = [list(row) for row in rows]
    table = Table(box=None, pad_edge=False)
    for number, heading in enumerate(headings):
        is_number = bool(listed) and all(isinstance(row[number], int | None) for row in listed)
        table.add_column(heading, no_wrap=True, justify="right" if is_number else "left")
    for row in listed:
        table.add_row(*(Text("" if cell is None else printable(str(cell))) for cell in row))
    console.width = console.measure(table).maximum
    console.print(table)


def printable(text: str) -> str:
    """Without what would move a terminal's cursor: others may have written it."""
    return "".join(character if character.isprintable() else f"\\x{ord(character):02x}" for character in text)


def print_json(out: TextIO, document: Mapping[str, Any]) -> None:
    """One document, indented."""
    out.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")


def print_json_line(out: TextIO, document: Mapping[str, Any]) -> None:
    """One of many documents, a line each."""
    out.write(json.dumps(document, ensure_ascii=False, separators=(",", ":")) + "\n")


def text_or_base64(name: str, data: bytes | None) -> dict[str, str | None]:
    """A member of a JSON object: text where the bytes are UTF-8; else base64, and a second member says so."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {name: base64.b64encode(data).decode(), f"{name}_encoding": "base64"}


def iso_time(timestamp_ms: int) -> str | None:
    """2026-01-31T12:00:00.000Z; None: Kafka's -1, or a time that no calendar has."""
    try:
        at = datetime.fromtimestamp(timestamp_ms // 1000, UTC)
    except (OverflowError, OSError, ValueError):
        return None
    return None if timestamp_ms < 0 else f"{at:%Y-%m-%dT%H:%M:%S}.{timestamp_ms % 1000:03}Z"


class Progress:
    """A bar on standard error while this is entered, if that is a terminal. `unit`: what is counted."""

    def __init__(self, what: str, unit: str, *, is_wanted: bool = True) -> None:
        err = sys.stderr
        self._bar: RichProgress | None = None
        if is_wanted and err.isatty():
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
            )
            self._bar = RichProgress(
                *columns,
                TextColumn(f"{unit}{{task.fields[told]}}"),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                console=Console(file=err),
                transient=True,
            )
            self._task = self._bar.add_task(what, total=0, told="")

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def told(self, done: int, total: int, found: str = "") -> None:
        """Show how many are done. `found`: what it came to, behind the count."""
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total, told=found)

    def close(self) -> None:
        """Take the bar away. Idempotent."""
        if self._bar is not None:
            self._bar.stop()


class _Console(Console):
    """Leaves output that nobody reads to the command's caller."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def _console(out: TextIO, width: int) -> Console:
    return _Console(file=out, width=width, highlight=False, soft_wrap=True, emoji=False)
