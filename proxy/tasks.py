"""The application's background tasks: what fails is begun again, and ends neither the others nor the process.

Rule 1. A task that is kept (`keep`) is called again after a back-off, and begins from rebuilt state: it has what it
        knows from the objects that it is given, and nothing from its run before. One that returns has ended.
Rule 2. A task that is started once (`start_soon`: a connection, a fill, a question) is not begun again; those who wait
        for it hear of it by its own means.
Rule 3. Every failure is an error line with its trace, and counted by task. FAILURES_MAX of a kept one within
        FAILURES_WINDOW_S are reported, until it has run for so long without (`proxy.readiness`: not ready).
Rule 4. Exception is caught, in a group too, and nothing else: a group that also holds a cancellation keeps that.
Rule 5. What ends the process are the errors of `ends`, wrong configurations, and tasks of the nursery itself: accept
        loops, since a port that is lost would be missed by nobody but clients.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVarTuple

import structlog
import trio

from metrics.process_meters import TaskMeter
from storage.backoff import Backoff
from storage.errors import StorageConfigError

FAILURES_MAX = 5
FAILURES_WINDOW_S = 60.0
AGAIN_S_MAX = 8.0
"""With its spread, one that fails at once does so FAILURES_MAX times in each window."""

Arguments = TypeVarTuple("Arguments")

_log = structlog.get_logger(__name__)


class Tasks:
    """Implements `storage.tasks.TaskNursery`. Owned by the trio thread.

    Args:
        nursery: the application's.
        tell: gets a sentence for each task that fails again and again; none: no task does.
        ends: with these errors a task ends the process.
    """

    def __init__(
        self,
        nursery: trio.Nursery,
        meter: TaskMeter,
        tell: Callable[[Sequence[str]], None],
        *,
        ends: tuple[type[Exception], ...] = (StorageConfigError,),
    ) -> None:
        self.nursery = nursery
        self._meter = meter
        self._tell = tell
        self._ends = ends
        self._failures: dict[str, deque[float]] = {}
        """When each kept task has failed, within the window."""
        self._faults: dict[str, str] = {}

    def start_soon(
        self, async_fn: Callable[[*Arguments], Awaitable[object]], *args: *Arguments, name: object = None
    ) -> None:
        """Rule 2."""
        task = getattr(async_fn, "__qualname__", type(async_fn).__name__)
        self.nursery.start_soon(self._run, task, partial(async_fn, *args), name=name or task)

    def keep(self, task: str, run: Callable[[], Awaitable[object]]) -> None:
        """Rule 1. `task` is its name, for people."""
        self._failures[task] = deque(maxlen=FAILURES_MAX)
        self._meter.on_begins(task)
        self.nursery.start_soon(self._keep, task, run, name=task)

    async def _keep(self, task: str, run: Callable[[], Awaitable[object]]) -> None:
        backoff = Backoff(max_s=AGAIN_S_MAX)
        while await self._run(task, run):
            at_s = self._failures[task]
            if len(at_s) > 1 and at_s[-1] - at_s[-2] > FAILURES_WINDOW_S:
                backoff.reset()
            await trio.sleep(backoff.next_delay_s())

    async def _run(self, task: str, run: Callable[[], Awaitable[object]]) -> bool:
        """Return whether it has failed."""
        has_failed = False
        try:
            await run()
        except* self._ends:
            raise
        except* Exception as group:
            has_failed = True
            self._note(task, group)
        return has_failed

    def _note(self, task: str, group: ExceptionGroup[Exception]) -> None:
        reason = ", ".join(map(repr, group.exceptions))
        self._meter.on_failure(task)
        _log.error("task_failed", task=task, reason=reason, exc_info=group)
        if task in self._failures:
            self._failures[task].append(trio.current_time())
            self._faults[task] = reason
            if self._tell_failing():
                self.nursery.start_soon(self._tell_later)

    def _tell_failing(self) -> bool:
        """Return whether there are any."""
        since_s = trio.current_time() - FAILURES_WINDOW_S
        failing = [task for task, at_s in self._failures.items() if len(at_s) == FAILURES_MAX and at_s[0] > since_s]
        self._tell(
            [
                f"{task} has failed {FAILURES_MAX} times within {FAILURES_WINDOW_S:g} s, the last time by "
                f"{self._faults[task]}"
                for task in failing
            ]
        )
        return bool(failing)

    async def _tell_later(self) -> None:
        """When what failed may have run for long enough."""
        await trio.sleep(FAILURES_WINDOW_S)
        self._tell_failing()
