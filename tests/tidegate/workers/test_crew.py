"""The crew over workers that are scripted: connections, ends and deaths, over real sockets and without processes."""

import os
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
from tidegate.workers.crew import (
    BACKOFF_S,
    DEATHS_MAX,
    DEATHS_WINDOW_S,
    FULL_S,
    HELD_MAX,
    HUNG_AGAIN_S_MAX,
    HUNG_S_MAX,
    LONE_S,
    REST_S,
    STATE_INTERVAL_S,
    Crew,
    Member,
)
from tidegate.workers.frames import Frame, FrameKind
from tidegate.workers.suspects import TRIAL_S
from tidegate.workers.template import NotStartedError, ProcessEnd, Template

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
    """A crew, its scripted template, and whether it asked for the end."""

    def __init__(self, nursery: trio.Nursery, workers: int = 2) -> None:
        self._nursery = nursery
        self.workers: list[ScriptedWorker] = []
        self.stops = 0
        self.asked_to_start = 0
        self.faults: list[Exception] = []
        self.may_start = trio.Event()
        self.may_start.set()
        self.has_gone = False
        self.crew = Crew(workers, cast(Template, self), self._stop)
        self.crew.start(tasks_in(nursery), self._no_answer)

    async def start(self, worker: int, *, is_first: bool) -> tuple[socket.socket, int]:
        """As the template's."""
        self.asked_to_start += 1
        if self.faults:
            raise self.faults.pop()
        if self.has_gone:
            raise NotStartedError("scripted")
        assert is_first == (not self.lives(worker))
        await self.may_start.wait()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.workers.append(ScriptedWorker(worker, theirs))
        self._nursery.start_soon(self.workers[-1].run)
        return ours, len(self.workers)

    async def keep(self) -> None:
        """As the template's."""
        await trio.sleep_forever()

    async def wait_ended(self, process_id: int) -> ProcessEnd:
        """As the template's."""
        await self.workers[process_id - 1].ended.wait()
        return ProcessEnd(process_id, "scripted")

    def lives(self, number: int) -> list[ScriptedWorker]:
        """All lives of a worker so far."""
        return [worker for worker in self.workers if worker.number == number]

    async def give(self, on_end: Callable[[], None], client: str = "", target: Target = BOOTSTRAP) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            ours.setblocking(False)
            with trio.socket.from_stdlib_socket(ours) as sock:
                await self.crew.give(sock, target, client, on_end)

    async def lived(self, number: int, times: int) -> None:
        """Return when a worker has begun so many lives; the test's clock goes on."""
        while len(self.lives(number)) < times or not self.crew.members[number].is_up:  # noqa: ASYNC110  # no real time
            await trio.sleep(0.05)

    async def die(self, number: int) -> None:
        """End a worker's life, and return when that has been seen."""
        lives = self.lives(number)
        lives[-1].life.cancel()
        await until(
            lambda: self.crew.members[number].channel is None or len(self.lives(number)) > len(lives), "its end"
        )

    def _stop(self) -> None:
        self.stops += 1
        self.crew.drain()

    async def _no_answer(self, _question: Mapping[str, Any]) -> Mapping[str, Any]:
        await trio.lowlevel.checkpoint()
        return {}


@asynccontextmanager
async def world(workers: int = 2, hang_s_max: float = HANG_S_MAX) -> AsyncIterator[World]:
    with trio.fail_after(hang_s_max):
        async with trio.open_nursery() as nursery:
            made = World(nursery, workers)
            await until(lambda: len(made.crew.assignment.up) == workers, "the workers")
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


@pytest.mark.autojump
async def test_a_worker_that_died_five_times_in_a_minute_rests_and_the_others_serve_on() -> None:
    """Failed before: everything drained and ended."""
    async with world(hang_s_max=10 * REST_S) as made:
        for lives in range(1, DEATHS_MAX + 1):
            await made.lived(1, lives)
            await made.die(1)
        began_at_s = trio.current_time()
        assert made.crew.members[1].is_resting
        assert made.crew.often(made.crew.members[1]).startswith("worker 1 died 5 times within 60 s")
        await made.lived(1, DEATHS_MAX + 1)
        assert REST_S <= trio.current_time() - began_at_s <= REST_S + 1

        await made.die(1)  # the next try is as late, as it has not lived for a minute
        began_at_s = trio.current_time()
        await made.lived(1, DEATHS_MAX + 2)
        assert trio.current_time() - began_at_s >= REST_S

        await trio.sleep(DEATHS_WINDOW_S + 2 * STATE_INTERVAL_S)
        assert not made.crew.members[1].deaths.is_repeated
        await made.die(1)
        await made.lived(1, DEATHS_MAX + 3)
        assert (made.stops, made.crew.exit_code, made.lives(0)[0].told) == (0, exit_codes.DONE, [])


@pytest.mark.autojump
async def test_when_no_worker_is_left_all_ends_with_the_reason() -> None:
    async with world(hang_s_max=REST_S) as made:
        with structlog.testing.capture_logs() as logs:
            for number in (1, 0):
                for lives in range(1, DEATHS_MAX + 1):
                    assert made.stops == 0
                    await made.lived(number, lives)
                    await made.die(number)
            await made.crew.wait_ended()
        assert (made.stops, made.crew.exit_code) == (1, exit_codes.FOUND_WRONG)
        (failed,) = [line["reason"] for line in logs if line["event"] == "workers_failed"]
        assert failed.startswith("no worker is left: worker 0 died 5 times")


@pytest.mark.autojump
async def test_a_reload_tries_a_worker_that_rests() -> None:
    async with world(hang_s_max=REST_S / 2) as made:
        for lives in range(1, DEATHS_MAX + 1):
            await made.lived(1, lives)
            await made.die(1)
        made.crew.try_again()
        await until(lambda: made.crew.assignment.up == {0, 1}, "its next try")
        assert not made.crew.members[1].is_resting
        await made.die(1)
        assert made.crew.members[1].is_resting


@pytest.mark.autojump
async def test_without_a_template_workers_serve_on_until_none_is_left() -> None:
    """Failed before: the template's end drained and ended everything."""
    async with world(hang_s_max=REST_S) as made:
        made.has_gone = True
        await made.die(1)
        await trio.sleep(sum(BACKOFF_S) + 1)
        assert made.crew.members[1].is_resting
        assert (made.stops, set(made.crew.assignment.up)) == (0, {0})
        assert made.crew.members[1].last_death == "it cannot be started: scripted"
        await made.give(lambda: None)
        assert len(made.lives(0)[0].taken) == 1
        await made.die(0)
        await made.crew.wait_ended()
        assert (made.stops, made.crew.exit_code) == (1, exit_codes.FOUND_WRONG)


@pytest.mark.autojump
async def test_a_client_that_repeats_what_killed_its_worker_meets_no_other() -> None:
    """Failed before: its next connection went to the next worker, and killed that, until none was left."""
    clients = [f"10.0.0.{number}" for number in range(16)]
    culprit = clients[5]
    async with world(4, hang_s_max=10 * REST_S) as made, trio.open_nursery() as nursery:
        to_broker = Target(1, (("broker-1", 9092),))
        made.crew.assignment.follow([1, 2, 3, 4])
        connected: dict[str, int] = {}

        async def repeat(client: str) -> None:
            """Connect again whenever the connection has ended, as clients do."""
            while True:
                ended = trio.Event()
                await made.give(ended.set, client, to_broker)
                connected[client] = connected.get(client, 0) + 1
                await ended.wait()

        async def kill() -> None:
            """Whatever worker has a connection of the culprit's dies of it."""
            while True:
                for member in made.crew.members:
                    has = [given for id_, given in member.given.items() if id_ not in member.sending]
                    if member.is_up and culprit in {given.client for given in has}:
                        await made.die(member.number)
                await trio.sleep(0.05)

        for client in clients:
            nursery.start_soon(repeat, client)
        await until(lambda: len(connected) == len(clients), "all clients")
        nursery.start_soon(kill)
        await trio.sleep(REST_S)
        assert [len(made.lives(number)) > 1 for number in range(4)] == [True, False, False, False]
        assert made.crew.suspects.of(0) == [culprit]
        assert made.crew.often(made.crew.members[0]).startswith(
            f"worker 0 died again and again with connections of {culprit}"
        )
        assert not made.crew.members[0].is_resting
        # It is not refused for long either, as it may be many behind one address.
        assert connected[culprit] >= REST_S / (LONE_S + 2)
        # All others are served, by workers that do not die.
        others = {given.client for member in made.crew.members[1:] for given in member.given.values()}
        assert others == {*clients} - {culprit}
        assert max(connected[each] for each in others) <= 2 + len(clients).bit_length()
        assert made.stops == 0
        nursery.cancel_scope.cancel()


@pytest.mark.autojump
async def test_a_killed_workers_clients_come_back_to_it_and_are_free_after_a_while() -> None:
    async with world() as made:
        ended = trio.Event()
        await made.give(ended.set, "10.0.0.1")
        await until(lambda: made.lives(0)[0].taken, "a connection")
        made.may_start = trio.Event()
        await made.die(0)
        assert ended.is_set()
        with trio.move_on_after(BACKOFF_S[-1]) as waiting:
            await made.give(lambda: None, "10.0.0.1")
        assert waiting.cancelled_caught
        await made.give(lambda: None, "10.0.0.2")
        assert len(made.lives(1)[0].taken) == 1
        made.may_start.set()
        await made.give(lambda: None, "10.0.0.1")
        await until(lambda: made.lives(0)[1].taken, "its connection")
        await trio.sleep(TRIAL_S + 2 * STATE_INTERVAL_S)
        assert made.crew.suspects.of(0) == []


@pytest.mark.autojump
async def test_suspects_that_wait_are_limited() -> None:
    async with world() as made, trio.open_nursery() as nursery:
        await made.give(lambda: None, "10.0.0.1")
        await until(lambda: made.lives(0)[0].taken, "a connection")
        made.may_start = trio.Event()
        await made.die(0)
        with trio.socket.from_stdlib_socket(socket.socket()) as sock:
            for _ in range(HELD_MAX):
                nursery.start_soon(made.crew.give, sock, BOOTSTRAP, "10.0.0.1", lambda: None)
            await settled()
            ends = list[int]()
            await made.crew.give(sock, BOOTSTRAP, "10.0.0.1", lambda: ends.append(1))
            assert ends == [1]
            nursery.cancel_scope.cancel()


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
