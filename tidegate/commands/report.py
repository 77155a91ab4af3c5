"""What a command prints: findings as they are made, tables, and a verdict; or all of that as one JSON document.

A finding is one line: `ok`, `warning` or `WRONG` and a sentence. Nothing here knows what is looked at.

The document (docs/operations.md#check) is written at the end, by `verdict`:

    {"keys": [{"name", "value", "origin"}], "sections": [{"title", "findings": [{"verdict", "sentence"}]}],
     "wrong": 0, "warnings": 0, "verdict": "nothing wrong"}
"""

import json
from collections.abc import Sequence
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tidegate.config.model import EffectiveKey

_PIPED_COLUMNS = 200
"""Where the output is no terminal: wide enough that a key, its value and its origin stay on one line."""


class Report:
    """Prints at once; counts what is wrong.

    Args:
        as_json: print nothing but one document, at the verdict.
        progress: where `progress` writes, if that is a terminal; None: nowhere.
    """

    def __init__(self, out: TextIO, *, as_json: bool = False, progress: TextIO | None = None) -> None:
        self.wrong_count = 0
        self.warning_count = 0
        self._out = out
        self._as_json = as_json
        self._progress = progress if progress is not None and progress.isatty() else None
        self._keys: list[dict[str, str]] = []
        self._sections: list[dict[str, Any]] = []
        self._console = Console(
            file=out, width=None if out.isatty() else _PIPED_COLUMNS, highlight=False, soft_wrap=True, emoji=False
        )

    def keys(self, effective: Sequence[EffectiveKey]) -> None:
        """Every effective key with its origin; secrets come masked already."""
        if self._as_json:
            self._keys = [{"name": key.name, "value": key.value, "origin": key.origin} for key in effective]
            return
        table = Table(box=None, pad_edge=False)
        for heading in ("key", "value", "origin"):
            table.add_column(heading, overflow="fold")
        for key in effective:
            table.add_row(Text(key.name), Text(key.value), Text(key.origin))
        self._console.print(table)

    def section(self, title: str) -> None:
        if self._as_json:
            self._sections.append({"title": title, "findings": []})
            return
        self._console.print()
        self._console.print(Text(title, style="bold"))

    def ok(self, sentence: str) -> None:
        self._line("ok", "green", sentence)

    def warning(self, sentence: str) -> None:
        self.warning_count += 1
        self._line("warning", "yellow", sentence)

    def wrong(self, sentence: str) -> None:
        self.wrong_count += 1
        self._line("WRONG", "bold red", sentence)

    def progress(self, words: str) -> None:
        """How far a long piece of work is; a line that the next one overwrites, for who sits in front of it."""
        if self._progress is not None:
            self._progress.write(f"\r\x1b[K{words}")
            self._progress.flush()

    def verdict(self) -> None:
        words = f"{self.wrong_count} wrong" if self.wrong_count else "nothing wrong"
        if self._as_json:
            counts = {"wrong": self.wrong_count, "warnings": self.warning_count, "verdict": words}
            self._out.write(json.dumps({"keys": self._keys, "sections": self._sections, **counts}, indent=1) + "\n")
            return
        self._console.print()
        self._console.print(Text(words, style="bold red" if self.wrong_count else "bold green"))

    def _line(self, word: str, style: str, sentence: str) -> None:
        if self._as_json:
            if not self._sections:
                self.section("")
            self._sections[-1]["findings"].append({"verdict": word.lower(), "sentence": sentence})
            return
        self.progress("")
        self._console.print(Text.assemble((f"{word:<8}", style), sentence))
