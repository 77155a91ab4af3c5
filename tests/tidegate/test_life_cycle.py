"""Signals over an application that is scripted: start, ready, reload, drain, stop at once."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from signal import SIGHUP, SIGINT, SIGTERM
from typing import cast

import pytest
import structlog
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from proxy.connection.server import Server
from proxy.readiness import Readiness
from tests.tidegate.test_admin import make_ready, stage_of
from tidegate.life_cycle import LifeCycle, SystemdNotify
from tidegate.reload import Cause, Reloader


class ScriptedServer:
    """As many connections as the test says."""

    def __init__(self) -> None:
        self.connections = 0
        self.drained = False
        self.empty = trio.Event()

    def drain(self) -> None:
        self.drained = True

    async def wait_empty(self) -> None:
        await self.empty.wait()


class ScriptedApplication:
    """Implements `Running`, and what surrounds it."""

    def __init__(self) -> None:
        self.readiness = Readiness()
        self.scripted_server = ScriptedServer()
        self.server = cast(Server, self.scripted_server)
        self.reloader = cast(Reloader, self)
        self.closing = trio.CancelScope()
        self.drain_delay_s = 0.0
        self.drain_timeout_s = 30.0
        self.ready_line = "ready: scripted"
        self.may_start = trio.Event()
        self.may_close = trio.Event()
        self.may_start.set()
        self.may_close.set()
        self.reloads: list[Cause] = []
        self.steps: list[str] = []

    async def reload(self, cause: Cause) -> None:
        await trio.lowlevel.checkpoint()
        self.reloads.append(cause)

    def start(self) -> AbstractAsyncContextManager["ScriptedApplication"]:
        return self._run()

    @asynccontextmanager
    async def _run(self) -> AsyncIterator["ScriptedApplication"]:
        await self.may_start.wait()
        self.steps.append("started")
        yield self
        with self.closing:
            await self.may_close.wait()
            self.steps.append("snapshot")
        self.steps.append("ended")


class World:
    """A life cycle under way, with its signals."""

    def __init__(self) -> None:
        self.application = ScriptedApplication()
        self._send, signals = trio.open_memory_channel[int](10)
        self.life_cycle = LifeCycle(signals, SystemdNotify({}))
        self.ended = trio.Event()

    def has_ended(self) -> bool:
        return self.ended.is_set()

    async def live(self) -> None:
        await self.life_cycle.run(self.application.start)
        self.ended.set()

    async def signal(self, number: int) -> None:
        await self._send.send(number)
        await wait_all_tasks_blocked()


@pytest.fixture
async def world(nursery: trio.Nursery) -> World:
    made = World()
    nursery.start_soon(made.live)
    await wait_all_tasks_blocked()
    return made


async def test_ready_is_said_once_when_it_is(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert capsys.readouterr().err == ""
    make_ready(world.application.readiness)
    await wait_all_tasks_blocked()
    make_ready(world.application.readiness)
    await wait_all_tasks_blocked()
    assert capsys.readouterr().err == "ready: scripted\n"


@pytest.mark.parametrize("number", [SIGTERM, SIGINT])
async def test_a_first_signal_drains_and_ends_when_nobody_is_left(world: World, number: int) -> None:
    make_ready(world.application.readiness)
    with structlog.testing.capture_logs() as logs:
        await world.signal(number)
        assert world.application.scripted_server.drained
        assert world.application.readiness.reasons[0] == "draining"
        assert not world.has_ended()
        world.application.scripted_server.empty.set()
        await wait_all_tasks_blocked()
    assert world.has_ended()
    assert world.application.steps == ["started", "snapshot", "ended"]
    assert [entry["event"] for entry in logs] == ["draining"]


async def test_a_drain_has_its_time(world: World, autojump_clock: MockClock) -> None:
    with structlog.testing.capture_logs() as logs:
        await world.signal(SIGTERM)
        await trio.sleep(31)
    assert world.has_ended()
    assert world.application.steps == ["started", "snapshot", "ended"]
    assert [entry["event"] for entry in logs] == ["draining", "drain_timed_out"]


async def test_readiness_fails_first_and_listeners_close_after_the_delay(
    world: World, autojump_clock: MockClock
) -> None:
    make_ready(world.application.readiness)
    world.application.drain_delay_s = 20.0
    world.application.scripted_server.empty.set()
    assert stage_of(world.application.readiness) == "serving"
    await world.signal(SIGTERM)
    await trio.sleep(19)
    assert stage_of(world.application.readiness) == "draining"
    assert not world.application.readiness.ready
    assert not world.application.scripted_server.drained
    await trio.sleep(2)
    assert world.has_ended()


async def test_a_second_signal_stops_at_once_without_a_snapshot(world: World) -> None:
    world.application.may_close = trio.Event()
    with structlog.testing.capture_logs() as logs:
        await world.signal(SIGTERM)
        await world.signal(SIGTERM)
    assert world.has_ended()
    assert world.application.steps == ["started", "ended"]
    assert [entry["event"] for entry in logs] == ["draining", "stopped_at_once"]


async def test_a_signal_while_it_starts_ends_the_start(nursery: trio.Nursery) -> None:
    world = World()
    world.application.may_start = trio.Event()
    nursery.start_soon(world.live)
    await wait_all_tasks_blocked()
    await world.signal(SIGTERM)
    assert world.has_ended()
    assert world.application.steps == []


async def test_sighup_reloads_as_long_as_it_serves(world: World) -> None:
    await world.signal(SIGHUP)
    await world.signal(SIGHUP)
    assert world.application.reloads == [Cause.SIGNAL, Cause.SIGNAL]
    await world.signal(SIGTERM)
    await world.signal(SIGHUP)
    assert len(world.application.reloads) == 2
    world.application.scripted_server.empty.set()
    await wait_all_tasks_blocked()
    assert world.has_ended()
