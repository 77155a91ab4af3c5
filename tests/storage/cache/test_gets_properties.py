"""Whatever is wanted, whatever fails and whatever is late: each block once, within the budget, and nothing is left.

In virtual time, threads too (`tests.support.simulated_time`), so that an example is the same each time.
"""

import contextlib
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace
from unittest import mock

import trio
from hypothesis import given
from hypothesis import strategies as st

from storage.cache.pace import Pace
from storage.cache.segment_entries import Flight
from storage.errors import (
    CorruptObjectError,
    RemoteAccessDeniedError,
    RemoteStorageError,
    RetriableRemoteStorageError,
    StalledTransferError,
    ThrottledError,
)
from storage.log.block import Block
from storage.object_store import retries
from storage.remote_storage_manager import SegmentStream
from tests.support.drawn import drawn
from tests.support.scripted_gets import MIB, GetWorld, Script, ScriptedGet, ScriptedSegment
from tests.support.simulated_time import Simulation, simulate

BLOCKS = 40
GETS_MAX = 3
LATE_S = 0.1
"""An answer is late after that; a body after half a second."""

DELAYS_S = st.sampled_from([0.0, 0.0, 0.0, 0.03, 0.3, 2.0])


class Delays:
    """What threads of a simulation wait for (an EventSource)."""

    def __init__(self) -> None:
        self._simulation: Simulation | None = None
        self._due_s: list[float] = []

    def begin(self, simulation: Simulation) -> None:
        self._simulation = simulation

    def wait(self, seconds: float) -> None:
        """In a thread."""
        assert self._simulation is not None
        clock, due_s = self._simulation.clock, self._simulation.clock.now_s + seconds
        self._due_s.append(due_s)
        self._simulation.threads.wait(lambda: clock.now_s >= due_s)

    def next_event_s(self) -> float:
        return min(self._due_s, default=math.inf)

    def advance(self, now_s: float) -> None:
        self._due_s = [due_s for due_s in self._due_s if due_s > now_s]


@dataclass(slots=True, eq=False)
class DelayedStream:
    inner: ScriptedGet
    segment: "DelayedSegment"

    def read(self, size_bytes: int) -> bytes | bytearray:
        self.segment.delay()
        return self.inner.read(size_bytes)

    def close(self) -> None:
        self.inner.close()


@dataclass(slots=True, eq=False)
class Lateness:
    """What answers and blocks wait for, in turn, over and over."""

    delays: Delays
    seconds: list[float]
    count: int = 0

    def next(self) -> None:
        self.count += 1
        if (seconds := self.seconds[self.count % len(self.seconds)]) > 0:
            self.delays.wait(seconds)


class DelayedSegment(ScriptedSegment):
    """Its answers and blocks come late; notes how many GETs were open."""

    def __init__(self, lateness: Lateness, unit_blocks: int = 1) -> None:
        super().__init__(BLOCKS, unit_blocks=unit_blocks)
        self._lateness = lateness
        self.open_max = 0

    def delay(self) -> None:
        self._lateness.next()

    def open_stream(self, start_position: int, end_position: int) -> SegmentStream:
        self.delay()
        get = super().open_stream(start_position, end_position)
        assert isinstance(get, ScriptedGet)
        self.open_max = max(self.open_max, len(self.open_gets))
        return DelayedStream(get, self)


@dataclass(frozen=True)
class Step:
    """A GET of a run of blocks, of which every so many are not wanted; who waits for which, and the time after it."""

    first: int
    count: int
    not_wanted: int
    waits_every: int
    pause_s: float

    def of(self, world: GetWorld, segment: ScriptedSegment, asked: Counter[int]) -> dict[Flight[Block], int]:
        numbers = range(self.first, min(self.first + self.count, BLOCKS))
        source = segment.source

        def is_under_way(number: int) -> bool:
            before = len(world.gets)
            found = world.gets.want_if_under_way(source.key(number))
            # One that a GET is being read over is wanted of it from now on.
            asked.update([number] * (len(world.gets) - before))
            return found

        missing = [
            number for number in numbers if not is_under_way(number) and (number - self.first + 1) % self.not_wanted
        ]
        if missing:
            run = range(missing[0], missing[-1] + 1)
            if self.waits_every or not world.gets.may_read_ahead:
                world.gets.fetch(source, run, missing)
                asked.update(missing)
            elif world.gets.fetch_ahead(source, run, missing):
                asked.update(missing)
        if not self.waits_every:
            return {}
        under_way = [number for number in numbers if is_under_way(number)]
        return {world.gets.wait_for(source.key(number)): number for number in under_way[:: self.waits_every]}


STEPS = st.builds(
    Step,
    first=st.integers(0, BLOCKS - 1),
    count=st.integers(1, 30),
    not_wanted=st.integers(2, 40),
    waits_every=st.integers(0, 4),
    pause_s=st.sampled_from([0.0, 0.01, 0.2, 1.0]),
)
ERRORS = st.sampled_from(
    [
        RetriableRemoteStorageError("500"),
        StalledTransferError("silence"),
        ThrottledError("503"),
        CorruptObjectError("?"),
        RemoteAccessDeniedError("403"),
    ]
)
SCRIPTS = st.builds(
    Script, refusal=st.none() | ERRORS, fails=st.dictionaries(st.integers(0, BLOCKS - 1), ERRORS, max_size=2)
)


def taught() -> Pace:
    """It knows what is late."""
    pace = Pace(GETS_MAX, 0)
    for _ in range(200):
        pace.on_sent(0.0)
    pace.on_begun(LATE_S)
    pace.on_end(0.0, 100 * MIB, 1.0, all_in_use=False)
    return pace


@contextlib.contextmanager
def even_backoff() -> Iterator[None]:
    """Back-off has the same jitter in each run."""
    with mock.patch.object(retries, "random", SimpleNamespace(Random=lambda: Random(7))):
        yield


@dataclass(slots=True, eq=False)
class Seen:
    """What came of an example."""

    asked: Counter[int] = field(default_factory=Counter)
    flights: dict[Flight[Block], int] = field(default_factory=dict)


def check_nothing_is_left(world: GetWorld, segment: DelayedSegment) -> None:
    assert (len(world.gets), world.gets.read_ahead_bytes, world.gets.slots) == (0, 0, (0, GETS_MAX, 0))
    assert world.budget.held == 0
    assert segment.open_gets == []


@drawn(60)
@given(
    steps=st.lists(STEPS, min_size=1, max_size=8),
    scripts=st.lists(SCRIPTS, max_size=12),
    delays_s=st.lists(DELAYS_S, min_size=1, max_size=20),
    unit_blocks=st.integers(1, 3),
    budget_mib=st.integers(1, 12),
)
def test_each_block_comes_once_or_fails_and_the_budget_holds(
    steps: list[Step], scripts: list[Script], delays_s: list[float], unit_blocks: int, budget_mib: int
) -> None:
    delays = Delays()
    segment = DelayedSegment(Lateness(delays, delays_s), unit_blocks)
    segment.script(*scripts)
    seen = Seen()

    async def main(simulation: Simulation) -> GetWorld:
        delays.begin(simulation)
        async with trio.open_nursery() as application:
            world = GetWorld(application, gets_max=GETS_MAX, budget_bytes=budget_mib * MIB, pace=taught())
            for step in steps:
                seen.flights.update(step.of(world, segment, seen.asked))
                assert world.gets.slots.busy <= GETS_MAX
                await trio.sleep(step.pause_s)
            for flight, number in seen.flights.items():
                with contextlib.suppress(RemoteStorageError):
                    assert bytes((await flight.wait()).data) == segment.block(number)
        return world

    with even_backoff():
        world = simulate(main, delays)
    check_nothing_is_left(world, segment)
    landed = Counter(world.numbers())
    assert all(landed[number] <= times for number, times in seen.asked.items())
    assert landed.total() + world.sample("cache_fill_failures_total") == seen.asked.total()
    assert all(landing.data == segment.block(landing.key.number) for landing in world.landed)
    assert segment.open_max <= 2 * GETS_MAX
    # What is larger than the whole budget goes alone; here that is one GET.
    largest_bytes = max((segment.source.reservation_bytes(get.numbers) for get in segment.gets), default=0)
    assert world.held_bytes_max <= max(budget_mib * MIB, largest_bytes)


@drawn(60)
@given(
    steps=st.lists(STEPS, min_size=1, max_size=8),
    delays_s=st.lists(DELAYS_S, min_size=1, max_size=20),
    budget_mib=st.integers(1, 12),
    end_s=st.sampled_from([0.0, 0.02, 0.31, 1.5]),
)
def test_every_flight_ends_at_shutdown(steps: list[Step], delays_s: list[float], budget_mib: int, end_s: float) -> None:
    delays = Delays()
    segment = DelayedSegment(Lateness(delays, delays_s))
    seen = Seen()

    async def main(simulation: Simulation) -> GetWorld:
        delays.begin(simulation)
        async with trio.open_nursery() as application:
            world = GetWorld(application, gets_max=GETS_MAX, budget_bytes=budget_mib * MIB, pace=taught())
            for step in steps:
                seen.flights.update(step.of(world, segment, seen.asked))
            await trio.sleep(end_s)
            application.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                ended_s = trio.current_time()
                for flight in seen.flights:
                    with contextlib.suppress(trio.ClosedResourceError):
                        await flight.wait()
                assert trio.current_time() == ended_s, "at once, whatever threads wait for"
        return world

    with even_backoff():
        world = simulate(main, delays)
    check_nothing_is_left(world, segment)
    assert len(world.numbers()) + world.sample("cache_fill_failures_total") == seen.asked.total()
