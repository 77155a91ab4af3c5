"""Virtual time for the trio thread and for worker threads alike: a run costs no waiting, and is the same each time.

    def main(simulation):                      # an async function
        ...trio.sleep, trio.to_thread.run_sync: both in virtual time
    simulate(main)

Rule 1. One thread runs at a time. A worker thread runs while the trio thread stands still inside the simulation's own
        task, until it waits for virtual time (`SimulatedThreads.wait`) or ends. So nothing depends on real time.
Rule 2. Worker threads run when trio has nothing to do: all tasks are blocked, and what threads posted to trio is done.
        Among those that may go on, who waits longest goes first.
Rule 3. When trio and all threads wait, the clock moves on to the next thing that happens: the next event of a source
        (`EventSource`) or trio's next deadline.
Rule 4. What is random has a fixed seed: the order of trio's tasks, and generators that ask for no seed of their own
        (the jitter of retries).

A worker thread must wait by `wait` only: one that waits for the trio thread would wait for ever, and fails the run.
Real clocks (`time.monotonic`) are left alone: the product uses them for metrics.
"""

import itertools
import math
import random
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, TypeVarTuple, Unpack
from unittest import mock

import outcome
import trio
import trio.testing

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

STUCK_S = 60.0
"""Real seconds after which a thread that neither waits nor ends is taken to wait for something that cannot come."""

TIME_S_MAX = 3600.0
"""Virtual seconds: a run that goes on for longer is stuck, though something is due again and again."""


class SimulationStuckError(Exception):
    """Nothing is due any more, and the run has not ended; or a thread waits for something other than virtual time."""


class EventSource(Protocol):
    """Something outside of trio that happens in virtual time."""

    def next_event_s(self) -> float:
        """When something happens next; infinity: nothing does by itself."""
        ...

    def advance(self, now_s: float) -> None:
        """It is now_s, at most `next_event_s`."""
        ...


class SimulatedClock(trio.abc.Clock):
    """Trio's clock; `now_s` is moved by the simulation alone."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def start_clock(self) -> None:
        """It stands."""

    def current_time(self) -> float:
        return self.now_s

    def deadline_to_sleep_time(self, deadline: float) -> float:
        return 0.0 if deadline <= self.now_s else math.inf


@dataclass(slots=True, eq=False)
class _Job:
    """One call in a worker thread. `is_due`: whether it may go on. `post`: the trio token's run_sync_soon."""

    call: Callable[[], Any]
    post: Callable[[Callable[[], None]], None]
    is_due: Callable[[], bool] = lambda: True
    is_started: bool = False
    resumed: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    result: outcome.Outcome[Any] | None = None
    ended: trio.Event = field(default_factory=trio.Event)


class SimulatedThreads:
    """Worker threads (rules 1 and 2). `live` of them have not ended."""

    def __init__(self, stuck_s: float = STUCK_S) -> None:
        self._stuck_s = stuck_s
        self._is_aborted = False
        self._waiting: deque[_Job] = deque()
        self._running: _Job | None = None
        self._stopped = threading.Semaphore(0)
        self.live = 0

    # --- in the trio thread ---

    async def run_sync(
        self,
        sync_fn: Callable[[Unpack[Ts]], T],
        *args: *Ts,
        thread_name: str | None = None,
        abandon_on_cancel: bool = False,
        limiter: trio.CapacityLimiter | None = None,
    ) -> T:
        """As trio.to_thread.run_sync."""
        await trio.lowlevel.checkpoint_if_cancelled()
        self._raise_if_aborted()
        limiter = limiter or trio.to_thread.current_default_thread_limiter()
        job = _Job(lambda: sync_fn(*args), trio.lowlevel.current_trio_token().run_sync_soon)
        await limiter.acquire_on_behalf_of(job)
        self._waiting.append(job)
        self.live += 1
        try:
            with trio.CancelScope(shield=not abandon_on_cancel):
                await job.ended.wait()
        finally:
            if job.result is not None:
                limiter.release_on_behalf_of(job)
            else:  # abandoned: the thread goes on, and keeps its token until it ends
                trio.lowlevel.spawn_system_task(self._release_when_ended, limiter, job)
        assert job.result is not None
        value: T = job.result.unwrap()
        return value

    async def _release_when_ended(self, limiter: trio.CapacityLimiter, job: _Job) -> None:
        await job.ended.wait()
        limiter.release_on_behalf_of(job)

    def step(self) -> bool:
        """Run one thread that may go on until it waits again or ends; whether there was one.

        Raises:
            SimulationStuckError: it does neither.
        """
        job = next((job for job in self._waiting if job.is_due()), None)
        if job is None:
            return False
        self._waiting.remove(job)
        self._running = job
        if job.is_started:
            job.resumed.release()
        else:
            job.is_started = True
            trio.lowlevel.start_thread_soon(job.call, self._on_end)
        if not self._stopped.acquire(timeout=self._stuck_s):
            error = SimulationStuckError("a worker thread waits for something other than virtual time")
            job.result = outcome.Error(error)
            job.ended.set()
            raise error
        self._running = None
        self.live -= job.result is not None
        return True

    def abort(self) -> None:
        """Time will not pass any more: have all threads end, each with an error where it waits."""
        self._is_aborted = True
        for job in self._waiting:
            job.is_due = lambda: True
        while self.step():
            pass

    def _raise_if_aborted(self) -> None:
        if self._is_aborted:
            raise SimulationStuckError("time does not pass any more")

    # --- in a worker thread ---

    def wait(self, is_due: Callable[[], bool]) -> None:
        """Wait in virtual time until that is so; it is asked in the trio thread."""
        self._raise_if_aborted()
        if is_due():
            return
        job = self._running
        assert job is not None, "only a worker thread of the simulation can wait"
        job.is_due = is_due
        self._waiting.append(job)
        self._stopped.release()
        job.resumed.acquire()
        self._raise_if_aborted()

    def _on_end(self, result: outcome.Outcome[Any]) -> None:
        assert self._running is not None
        self._running.result = result
        # The way that trio takes: behind what the thread has posted.
        self._running.post(self._running.ended.set)
        self._stopped.release()


class Simulation:
    """One run."""

    def __init__(self, *sources: EventSource, stuck_s: float = STUCK_S) -> None:
        self.clock = SimulatedClock()
        self.threads = SimulatedThreads(stuck_s)
        self._sources = sources

    async def drive(self) -> None:
        """Make time pass (rules 2 and 3); runs as a task until it is cancelled.

        Raises:
            SimulationStuckError: nothing is due any more.
        """
        try:
            while True:
                await trio.testing.wait_all_tasks_blocked()
                if not self.threads.step():
                    self._advance()
        except SimulationStuckError:
            self.threads.abort()
            raise

    def _advance(self) -> None:
        now_s = self.clock.now_s
        deadline_s = now_s + trio.lowlevel.current_statistics().seconds_to_next_deadline
        next_s = min([deadline_s, *(source.next_event_s() for source in self._sources)])
        if next_s > TIME_S_MAX:
            raise SimulationStuckError(f"at {now_s} s all wait, {self.threads.live} threads among them")
        # A difference of two times, added again, may be the earlier one.
        now_s = self.clock.now_s = max(next_s, math.nextafter(now_s, math.inf))
        for source in self._sources:
            source.advance(now_s)


def simulate(main: Callable[[Simulation], Awaitable[T]], *sources: EventSource, stuck_s: float = STUCK_S) -> T:
    """Run `main` in virtual time until it returns.

    Raises:
        SimulationStuckError: in an exception group.
    """

    async def run() -> T:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(simulation.drive)
            result = await main(simulation)
            nursery.cancel_scope.cancel()
        return result

    simulation = Simulation(*sources, stuck_s=stuck_s)
    with in_order(), _as_in_trio_threads(simulation):
        return trio.run(run, clock=simulation.clock)


@contextmanager
def _as_in_trio_threads(simulation: Simulation) -> Iterator[None]:
    with (
        mock.patch.object(trio.to_thread, "run_sync", simulation.threads.run_sync),
        mock.patch.object(trio.from_thread, "check_cancelled", return_value=None),
    ):
        yield


@contextmanager
def in_order(seed: int = 0) -> Iterator[None]:
    """Rule 4; of trio it is what Hypothesis asks, with our seed."""
    seeds, state = itertools.count(1), random.getstate()

    class Seeded(random.Random):
        def __init__(self, seed: int | None = None) -> None:
            super().__init__(next(seeds) if seed is None else seed)

    with (
        mock.patch.object(trio._core._run, "_ALLOW_DETERMINISTIC_SCHEDULING", new=True),
        mock.patch.object(trio._core._run, "_r", random.Random(seed)),
        mock.patch.object(random, "Random", Seeded),
    ):
        random.seed(seed)
        try:
            yield
        finally:
            random.setstate(state)
