"""Progress of the demo, one line a step: a moving bar on a terminal, plain lines anywhere else.

with steps.step("Reading directly") as step:
    step.show(done, total)
    step.result = "300,000 records"
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

PLAIN_LINE_INTERVAL_S: Final = 5.0
_TEXT_COLUMNS: Final = 34


class StepFailed(Exception):
    """A step of the demo did not get where it should; the message is for the user."""


class Step:
    """One step under way. `result` is what its last line says."""

    def __init__(self, console: Console, text: str, progress: Progress | None) -> None:
        self.result = ""
        self._console = console
        self._text = text
        self._progress = progress
        self._task: TaskID | None = None
        self._line_due_s = time.monotonic() + PLAIN_LINE_INTERVAL_S
        if progress is not None:
            self._task = progress.add_task(text, total=None)

    def show(self, done: int, total: int) -> None:
        """Say how far it is; cheap enough to be called for every batch of records."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=done, total=total)
        elif time.monotonic() >= self._line_due_s:
            self._line_due_s = time.monotonic() + PLAIN_LINE_INTERVAL_S
            _print(self._console, f"   {self._text}: {done:,} of {total:,}")


class Steps:
    """Writes to `console`; everything else that is written while a step is under way goes elsewhere."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._good, self._bad = ("✓", "✗") if console.encoding.startswith("utf") else ("ok", "--")

    @contextmanager
    def step(self, text: str) -> Iterator[Step]:
        """Show one step while the block runs, and how it ended."""
        started_s = time.monotonic()
        mark, colour, result = self._bad, "red", "not done"
        try:
            if self._console.is_terminal:
                with _bar(self._console) as progress:
                    step = Step(self._console, text, progress)
                    yield step
            else:
                _print(self._console, f"   {text}")
                step = Step(self._console, text, None)
                yield step
            mark, colour, result = self._good, "green", step.result
        finally:
            took = f"{time.monotonic() - started_s:5.1f} s"
            _print(self._console, f"[{colour}]{mark:2}[/] {text:{_TEXT_COLUMNS}} {took}   {result}")


def _bar(console: Console) -> Progress:
    return Progress(
        SpinnerColumn("line"),
        TextColumn(f"{{task.description:{_TEXT_COLUMNS - 1}}}"),
        TimeElapsedColumn(),
        BarColumn(24),
        TextColumn("{task.percentage:>3.0f} %"),
        console=console,
        transient=True,
    )


def _print(console: Console, text: str) -> None:
    console.print(text, highlight=False, soft_wrap=True)
