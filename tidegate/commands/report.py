"""What a command prints: findings as they are made, then keys and a verdict; or all of that as one JSON document.

A finding is one line: `ok`, `warning` or `WRONG`, a sentence, and the id of the trouble that a running `serve` would
name for it (`metrics.troubles`). Nothing here knows what is looked at. Whatever an
examination raises is a finding too, and the next one is made all the same.

The document (docs/operate/troubleshoot.md#check) is written at the end, by `verdict`:

    {"keys": [{"name", "value", "origin", "note"}],
     "sections": [{"title", "findings": [{"verdict", "sentence", "id"}]}],
     "wrong": 0, "warnings": 0, "verdict": "nothing wrong"}
"""

import json
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.text import Text

from metrics.troubles import TroubleId
from tidegate.commands.output import PIPED_COLUMNS, print_table
from tidegate.config.model import EffectiveKey

UNSET = ("default", "derived")
"""Origins of values that nobody gave."""


class Report:
    """Prints at once; counts what is wrong.

    Args:
        as_json: print nothing but one document, at the verdict.
        progress: where `progress` writes, if that is a terminal; None: nowhere.
        complete: what each sentence becomes before it is printed.
    """

    def __init__(
        self,
        out: TextIO,
        *,
        as_json: bool = False,
        progress: TextIO | None = None,
        complete: Callable[[str], str] = str,
    ) -> None:
        self.wrong_count = 0
        self.warning_count = 0
        self._out = out
        self._as_json = as_json
        self._complete = complete
        self._progress = progress if progress is not None and progress.isatty() else None
        self._keys: list[dict[str, str]] = []
        self._sections: list[dict[str, Any]] = []
        self._console = Console(
            file=out, width=None if out.isatty() else PIPED_COLUMNS, highlight=False, soft_wrap=True, emoji=False
        )

    def keys(self, effective: Sequence[EffectiveKey], *, shows_defaults: bool) -> None:
        """Keys with their origins, those that nobody gave only if they are wanted; secrets come masked already. The
        document has them all."""
        if self._as_json:
            self._keys = [
                {"name": key.name, "value": key.value, "origin": key.origin} | ({"note": key.note} if key.note else {})
                for key in effective
            ]
            return
        shown = [key for key in effective if shows_defaults or key.origin not in UNSET]
        self._title("Keys")
        rows = [(key.name, key.value, key.origin, key.note) for key in shown]
        print_table(self._out, ("key", "value", "origin", ""), rows)
        if len(shown) < len(effective):
            self._console.print(Text(f"{len(effective) - len(shown)} more have their defaults: --keys shows them"))

    @contextmanager
    def section(self, title: str) -> Iterator[None]:
        """Findings about one thing."""
        if self._as_json:
            self._sections.append({"title": title, "findings": []})
        else:
            self._title(title)
        with self.guarded(f"section {title}"):
            yield

    @contextmanager
    def guarded(self, what: str) -> Iterator[None]:
        """Turn what is raised in here into a finding, which ends here."""
        try:
            yield
        except Exception as error:
            self.wrong(f"{what} ended early: {_words(error)}")

    def ok(self, sentence: str) -> None:
        self._line("ok", "green", sentence)

    def warning(self, sentence: str, trouble: TroubleId | None = None) -> None:
        self.warning_count += 1
        self._line("warning", "yellow", sentence, trouble)

    def wrong(self, sentence: str, trouble: TroubleId | None = None) -> None:
        self.wrong_count += 1
        self._line("WRONG", "bold red", sentence, trouble)

    def progress(self, words: str) -> None:
        """Show how far a long piece of work is, in a line that the next one overwrites, for a person in front of it."""
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

    def _title(self, title: str) -> None:
        self._console.print()
        self._console.print(Text(title, style="bold"))

    def _line(self, word: str, style: str, sentence: str, trouble: TroubleId | None = None) -> None:
        sentence = self._complete(sentence)
        if self._as_json:
            finding = {"verdict": word.lower(), "sentence": sentence} | ({"id": trouble.value} if trouble else {})
            self._sections[-1]["findings"].append(finding)
            return
        self.progress("")
        # A comment to a shell: the sentence may end with a command.
        self._console.print(Text.assemble((f"{word:<8}", style), sentence, f"  # {trouble}" if trouble else ""))


def _words(error: BaseException) -> str:
    """Return what was raised, and where: of a group, the first of it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    where = traceback.extract_tb(error.__traceback__)[-1:]
    return f"{type(error).__name__}: {error}" + "".join(f" ({Path(at.filename).name}:{at.lineno})" for at in where)
