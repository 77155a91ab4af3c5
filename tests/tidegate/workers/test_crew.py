"""The crew over workers that are scripted: connections, ends and deaths, over real sockets and without processes."""

import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
import structlog
import trio
from trio.testing import MockClock

from proxy.connection.address_book import Target
from tests.support.background_tasks import tasks_in
from tests.support.waiting import HANG_S_MAX, settled, until
from tidegate import exit_codes
from tidegate.workers.channel import Channel
from tidegate.workers.crew import DEATHS_MAX, FULL_S, HUNG_AGAIN_S_MAX, HUNG_S_MAX, STATE_INTERVAL_S, Crew, Member
from tidegate.workers.frames import Frame, FrameKind
from tidegate.workers.template import Template, TemplateGoneError, WorkerEvent

BOOTSTRAP = Target(None, (("broker-1", 9092),))


class ScriptedWorker:
    """The worker's end of a channel; it has no process."""

    def __init__(self, number: int, sock: socket.socket) -> None:
        self.number = number
        self.taken: list[int] = []
        self.told: list[str] = []
        self.asked: list[str] = []
        self.answers = True
        self.life = trio.CancelScope()
        self.ended = trio.Event()
        sock.setblocking(False)
        self.channel = Channel(trio.socket.from_stdlib_socket(sock), answer=self._answer, hear=self._hear)

    async def run(self) -> None:
        self.channel.tell("started")
        with self.life:
            await self.channel.run()
        self.ended.set()

    async def _answer(self, question: Mapping[str, Any]) -> Mapping[str, Any]:
        self.asked.append(question["what"])
        if not self.answers:
            await trio.sleep_forever()
        await trio.lowlevel.checkpoint()
        return {"report": {"ready": True}}

    def _hear(self, frame: Frame) -> None:
        if frame.kind is FrameKind.GIVE:
            assert frame.descriptor is not None
            os.close(frame.descriptor)
            self.taken.append(frame.body["id"])
        else:
            self.told.append(frame.body["what"])
            self.life.cancel()


class World:
    """A crew of two, its scripted template, and whether it asked for the end."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._send, self._events = trio.open_memory_channel[WorkerEvent](100)
        self.workers: list[ScriptedWorker] = []
        self.stops = 0
        self.asked_to_start = 0
        self.faults: list[Exception] = []
        self.may_start = trio.Event()
        self.may_start.set()
        self.crew = Crew(2, cast(Template, self), self._stop)
        self.crew.start(tasks_in(nursery), self._no_answer)

    async def start(self, worker: int, *, is_first: bool) -> socket.socket:
        """As the template's."""
        self.asked_to_start += 1
        if self.faults:
            raise self.faults.pop()
        assert is_first == (not self.lives(worker))
        await self.may_start.wait()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.workers.append(ScriptedWorker(worker, theirs))
        self._nursery.start_soon(self._live, self.workers[-1])
        return ours

    async def next_event(self) -> WorkerEvent:
        """As the template's."""
        try:
            return await self._events.receive()
        except trio.EndOfChannel:
            raise TemplateGoneError("scripted") from None

    def lives(self, number: int) -> list[ScriptedWorker]:
        """All lives of a worker so far."""
        return [worker for worker in self.workers if worker.number == number]

    def end_template(self) -> None:
        self._send.close()

    async def give(self, on_end: Callable[[], None]) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            ours.setblocking(False)
            with trio.socket.from_stdlib_socket(ours) as sock:
                await self.crew.give(sock, BOOTSTRAP, on_end)

    async def _live(self, worker: ScriptedWorker) -> None:
        await worker.run()
        try:
            self._send.send_nowait(WorkerEvent(worker.number, 0, signal.SIGKILL))
        except trio.ClosedResourceError:
            return  # the template has ended before it

    def _stop(self) -> None:
        self.stops += 1
        self.crew.drain()

    async def _no_answer(self, _question: Mapping[str, Any]) -> Mapping[str, Any]:
        await trio.lowlevel.checkpoint()
        return {}


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    with trio.fail_after(HANG_S_MAX):
        async with trio.open_nursery() as nursery:
            made = World(nursery)
            await until(lambda: len(made.crew.assignment.up) == 2, "two workers")
            yield made
            nursery.cancel_scope.cancel()


async def test_an_end_is_told_once_whether_the_connection_ends_or_its_worker() -> None:
    async with world() as made:
        ends: list[int] = []
        for number in range(4):
            await made.give(lambda number=number: ends.append(number))  # type: ignore[misc]  # each has its own
        first, second = sorted(made.workers, key=lambda worker: worker.number)
        await until(lambda: (len(first.taken), len(second.taken)) == (2, 2), "two connections each")
        first.channel.tell("ended", id=first.taken[0])
        await until(lambda: ends == [0], "the end of one")
        assert made.crew.connections == 3
        first.life.cancel()
        await until(lambda: len(made.lives(0)) == 2, "its next life")
        assert sorted(ends) == [0, 2]
        assert made.crew.connections == 2


async def test_a_worker_without_an_open_file_gets_no_more_for_a_while(autojump_clock: MockClock) -> None:
    """Failed before: it ended for want of one, and after five times everything did."""
    async with world() as made:
        first, second = sorted(made.workers, key=lambda worker: worker.number)
        ends, times_full = list[int](), list[int]()
        made.crew.on_full = lambda: times_full.append(1)
        await made.give(lambda: ends.append(0))
        await until(lambda: first.taken, "a connection")
        with structlog.testing.capture_logs() as logs:
            for _ in range(2):
                first.channel.tell("full", id=first.taken[0])
            await until(lambda: len(times_full) == 2, "both to be heard")
        assert (ends, set(made.crew.assignment.free)) == ([0], {1})
        assert [line["event"] for line in logs] == ["connections_not_accepted"]
        for _ in range(3):
            await made.give(lambda: None)
        assert (len(first.taken), len(second.taken)) == (1, 3)

        second.channel.tell("full", id=second.taken[0])
        await until(lambda: not made.crew.assignment.free, "all are full")
        with trio.move_on_after(FULL_S / 2) as waiting:
            await made.give(lambda: None)
        assert waiting.cancelled_caught
        second.channel.tell("ended", id=second.taken[1])
        await made.give(lambda: None)
        assert len(second.taken) == 4
        await trio.sleep(FULL_S + 2 * STATE_INTERVAL_S)
        assert made.crew.assignment.free == {0, 1}


async def test_a_connection_whose_worker_has_just_died_goes_to_another() -> None:
    async with world() as made:
        made.workers.sort(key=lambda worker: worker.number)
        made.workers[0].life.cancel()
        await made.workers[0].ended.wait()  # whether the crew has seen it or not
        ends: list[int] = []
        await made.give(lambda: ends.append(1))
        await until(lambda: sum(len(worker.taken) for worker in made.workers[1:]) == 1, "somebody else to take it")
        assert ends == []


async def test_what_a_worker_answered_before_it_died_does_not_count_as_its_next_lifes() -> None:
    """Its counters had been added to the sum at its death, and were added once more, until the next life answered."""
    async with world() as made:
        first, second = made.lives(0)[0], made.lives(1)[0]
        second.answers = False
        answers: dict[str, Mapping[str, Any]] = {}

        async def ask() -> None:
            answers.update(await made.crew.ask("metrics", HANG_S_MAX))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await until(lambda: "metrics" in first.asked and "metrics" in second.asked, "the question")
            await settled()
            first.life.cancel()
            await until(lambda: len(made.lives(0)) == 2, "its next life")
            second.life.cancel()
        assert answers == {}


@pytest.mark.autojump
async def test_a_worker_that_says_nothing_is_asked_once_more_and_killed() -> None:
    async with world() as made:
        hung = made.lives(1)[0]
        hung.answers = False
        killed_at_s: list[float] = []
        killed = trio.Event()

        def kill(member: Member) -> None:
            killed_at_s.append(trio.current_time())
            killed.set()
            made.lives(member.number)[-1].life.cancel()

        made.crew.kill = kill  # type: ignore[method-assign]  # it has no process
        began_at_s = trio.current_time()
        await killed.wait()
        await until(lambda: len(made.lives(1)) == 2, "its next life")
        assert HUNG_S_MAX + HUNG_AGAIN_S_MAX <= killed_at_s[0] - began_at_s <= HUNG_S_MAX + HUNG_AGAIN_S_MAX + 1
        assert len(made.lives(0)) == 1


async def test_five_deaths_of_one_worker_stop_all_with_the_reason() -> None:
    async with world() as made:
        for _ in range(DEATHS_MAX - 1):
            made.crew.members[1].deaths.on_death(trio.current_time())
        made.lives(1)[0].life.cancel()
        await made.crew.wait_ended()
        assert made.stops == 1
        assert made.crew.exit_code == exit_codes.FOUND_WRONG
        assert made.lives(0)[0].told == ["drain"]
        assert len(made.workers) == 2


async def test_without_a_template_all_drain_and_the_crew_waits_for_their_ends() -> None:
    async with world() as made:
        made.end_template()
        await made.crew.wait_ended()
        assert (made.stops, made.crew.exit_code) == (1, exit_codes.FOUND_WRONG)
        assert [worker.told for worker in made.workers] == [["drain"], ["drain"]]


async def test_a_drain_ends_the_pause_before_a_start() -> None:
    async with world() as made:
        for _ in range(DEATHS_MAX - 2):
            made.crew.members[1].deaths.on_death(trio.current_time())
        made.lives(1)[0].life.cancel()
        await until(lambda: made.crew.members[1].last_death is not None, "the pause")
        made.crew.drain()
        await made.crew.wait_ended()
        assert len(made.workers) == 2


async def test_one_that_is_being_forked_when_all_drain_hears_of_it() -> None:
    async with world() as made:
        made.may_start = trio.Event()
        made.lives(1)[0].life.cancel()
        await until(lambda: made.asked_to_start == 3, "a start")
        made.crew.drain()
        made.may_start.set()
        await made.crew.wait_ended()
        assert [worker.told for worker in made.lives(1)] == [[], ["drain"]]
        assert made.crew.exit_code == exit_codes.DONE


async def test_a_fault_of_ours_in_a_start_is_one_workers_affair(nursery: trio.Nursery) -> None:
    """How it failed: it ended the supervisor, and all workers with it."""
    world = World(nursery)
    world.faults = [KeyError("gone"), UnicodeError("label empty"), AssertionError("never")]
    await until(lambda: len(world.crew.assignment.up) == 2, "both workers are up")
    assert world.asked_to_start == 5
    world.crew.drain()
    await world.crew.wait_ended()
