"""How far a job is: a bar on a terminal, lines elsewhere. All of it goes to standard error.

Within a step Spark's status tracker says how many tasks are done; a thread asks it. Elsewhere than on a terminal that
is a line now and then, if it is another than the last, so that a log of hours stays readable.
"""

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from pyspark import SparkContext

POLL_S = 0.5
LINES_S = 15.0
"""Between two lines about tasks."""


class JobProgress:
    """One job's. `unit`: what is counted, for example "steps"."""

    def __init__(
        self,
        console: Console,
        job: str,
        unit: str,
        *,
        context: "SparkContext | None" = None,
        clock: Callable[[], float] = time.monotonic,
        lines_s: float = LINES_S,
    ) -> None:
        self._console = console
        self._job = job
        self._unit = unit
        self._context = context
        self._clock = clock
        self._started_s = clock()
        self._first: int | None = None
        self._bar: Progress | None = None
        self._task = TaskID(0)
        self._poll_s = POLL_S if console.is_terminal else lines_s
        self._told_tasks = (0, 0)
        self._ended = threading.Event()
        self._poller: threading.Thread | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.completed:.0f}/{task.total} " + self._unit),
                TextColumn("{task.fields[tasks]}"),
                TextColumn("{task.fields[told]}"),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                console=self._console,
            )
            self._task = self._bar.add_task(self._job, total=None, tasks="", told="")
            self._bar.start()
        if self._context is not None:
            self._poller = threading.Thread(target=self._poll, name="job-progress", daemon=True)
            self._poller.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._poller is not None:
            self._poller.join()
        if self._bar is not None:
            self._bar.stop()

    def begin(self, done: int, total: int) -> None:
        """Show how many are done already, and how many there are."""
        self._first, self._started_s = done, self._clock()
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total)
        elif done:
            self._print(f"{done} of {total} {self._unit} were done before")
        else:
            self._print(f"{total} {self._unit}")

    def advance(self, done: int, total: int, told: str) -> None:
        """Show how many are done now; the first call begins, if nothing has. `told`: what it came to, for the line."""
        if self._first is None:
            self.begin(done, total)
            return
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total, told=told)
            return
        left_s = (self._clock() - self._started_s) * (total - done) / max(1, done - self._first)
        self._print(f"{done} of {total} {self._unit}: {told}{f', {duration(left_s)} left' if done < total else ''}")

    def _print(self, text: str) -> None:
        self._console.print(f"{self._job}: {text}", markup=False, highlight=False, soft_wrap=True)

    def _poll(self) -> None:
        while not self._ended.wait(self._poll_s):
            done, total = running_tasks(self._context)
            if self._bar is not None:
                self._bar.update(self._task, tasks=f"{done}/{total} tasks" if total else "")
            elif total and (done, total) != self._told_tasks:
                self._told_tasks = done, total
                self._print(f"{done} of {total} tasks are done")


def running_tasks(context: "SparkContext | None") -> tuple[int, int]:
    """Return how many tasks of the stages that run now are done, and how many there are."""
    if context is None:
        return 0, 0
    tracker = context.statusTracker()
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    found = [stage for stage in stages if stage is not None]
    return sum(stage.numCompletedTasks for stage in found), sum(stage.numTasks for stage in found)


def duration(seconds: float) -> str:
    """1:02:03, or 2:03."""
    hours, rest = divmod(round(seconds), 3600)
    minutes, left = divmod(rest, 60)
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"
