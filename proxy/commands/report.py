"""What a command prints: findings as they are made, tables, and a verdict.

A finding is one line: `ok`, `warning` or `WRONG` and a sentence. Nothing here knows what is looked at.
"""

from collections.abc import Sequence
from typing import TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from proxy.config.model import EffectiveKey

_PIPED_COLUMNS = 200
"""Where the output is no terminal: wide enough that a key, its value and its origin stay on one line."""


class Report:
    """Prints at once; counts what is wrong."""

    def __init__(self, out: TextIO) -> None:
        self.wrong_count = 0
        self._console = Console(
            file=out, width=None if out.isatty() else _PIPED_COLUMNS, highlight=False, soft_wrap=True, emoji=False
        )

    def keys(self, effective: Sequence[EffectiveKey]) -> None:
        """Every effective key with its origin; secrets come masked already."""
        table = Table(box=None, pad_edge=False)
        for heading in ("key", "value", "origin"):
            table.add_column(heading, overflow="fold")
        for key in effective:
            table.add_row(Text(key.name), Text(key.value), Text(key.origin))
        self._console.print(table)

    def section(self, title: str) -> None:
        self._console.print()
        self._console.print(Text(title, style="bold"))

    def ok(self, sentence: str) -> None:
        self._line("ok", "green", sentence)

    def warning(self, sentence: str) -> None:
        self._line("warning", "yellow", sentence)

    def wrong(self, sentence: str) -> None:
        self.wrong_count += 1
        self._line("WRONG", "bold red", sentence)

    def verdict(self) -> None:
        self._console.print()
        if self.wrong_count:
            self._console.print(Text(f"{self.wrong_count} wrong", style="bold red"))
        else:
            self._console.print(Text("nothing wrong", style="bold green"))

    def _line(self, word: str, style: str, sentence: str) -> None:
        self._console.print(Text.assemble((f"{word:<8}", style), sentence))
