"""The workers as the supervisor has them: started, watched, asked, stopped, and given connections.

Rule 1. A worker that ends is started again: at once, and after more deaths in a minute later and later. After
        DEATHS_MAX of one worker in a minute, everything is drained and ends, with the reason: starting it once more
        would not help.
Rule 2. A connection whose worker dies before it has it goes to another. While no worker is up, it waits.
Rule 3. A worker whose event loop does not turn any more is killed, and started again.
Rule 4. A worker without an open file for a connection loses that one, and gets no more until one of its own has ended
        or FULL_S has passed. While all are full, connections wait.
"""

import itertools
import os
import signal
import socket as stdlib_socket
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import structlog
import trio

from proxy.connection.address_book import Target
from proxy.connection.spells import Spells
from proxy.tasks import Tasks
from tidegate import exit_codes
from tidegate.workers.assignment import Assignment
from tidegate.workers.channel import Channel, ChannelClosedError
from tidegate.workers.frames import Frame
from tidegate.workers.template import Template, TemplateGoneError, WorkerEvent

DEATHS_MAX: Final = 5
DEATHS_WINDOW_S: Final = 60.0
BACKOFF_S: Final = (0.0, 0.5, 1.0, 2.0)
"""Before a worker is started again, by its deaths in the window before: five within a minute stay possible."""

STATE_INTERVAL_S: Final = 0.2

FULL_S: Final = 1.0

HUNG_S_MAX: Final = 30.0
"""One that says nothing for so long is asked once more, and killed when it does not answer that either."""

HUNG_AGAIN_S_MAX: Final = 2.0
"""Where the supervisor itself, or the whole machine, stood still, workers' answers come now."""

STOP_S_MAX: Final = 3.0
"""What workers get to end at once when they have to, or when the supervisor cannot go on."""

Answer = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]
"""Answers a question."""

_log = structlog.get_logger(__name__)


class Deaths:
    """One worker's deaths: when it is to be started again, if it is."""

    def __init__(self) -> None:
        self._at_s: deque[float] = deque()

    def on_death(self, now_s: float) -> float | None:
        """Seconds to wait before the next start; None: it died too often."""
        self._at_s.append(now_s)
        while self._at_s[0] <= now_s - DEATHS_WINDOW_S:
            self._at_s.popleft()
        return None if len(self._at_s) >= DEATHS_MAX else BACKOFF_S[len(self._at_s) - 1]


@dataclass(slots=True)
class Member:
    """One worker, over all its lives."""

    number: int
    channel: Channel | None = None
    process_id: int | None = None
    is_up: bool = False
    given: dict[int, tuple[int | None, Callable[[], None]]] = field(default_factory=dict)
    """Connections of this life that have not ended: whose listener's, and what is to be called then."""
    state: Mapping[str, Any] | None = None
    """What it said last of itself; None: nothing in this life."""
    has_been_ready: bool = False
    """In this life."""
    sending: set[int] = field(default_factory=set)
    """Those among them that are on their way: the task that gives them sees to them."""
    heard_at_s: float = 0.0
    full_at_s: float | None = None
    is_killed: bool = False
    starts: int = 0
    ended: trio.MemorySendChannel[WorkerEvent] | None = None
    deaths: Deaths = field(default_factory=Deaths)
    last_death: str | None = None

    @property
    def name(self) -> str:
        return str(self.number)


class Crew:
    """The workers: started, watched, asked and stopped. Owned by the trio thread.

    Args:
        stop: has everything drained; called once no worker can do its work any more.
    """

    def __init__(self, workers: int, template: Template, stop: Callable[[], None]) -> None:
        self.members = [Member(number) for number in range(workers)]
        self.assignment = Assignment(workers)
        self.exit_code: int = exit_codes.DONE
        self.on_death: Callable[[Member], None] = lambda _member: None
        self._template = template
        self._stop = stop
        self._answer: Answer | None = None
        self._spells = Spells(trio.current_time)
        self._draining = trio.Event()
        self._changed = trio.Event()
        self.on_full: Callable[[], None] = lambda: None
        """Called when a worker had no open file left for a connection."""
        self._ids = itertools.count(1)
        self._living = 0
        self._gone = trio.Event()

    def start(self, tasks: Tasks, answer: Answer) -> None:
        """Start all workers.

        Args:
            answer: answers workers' questions.
        """
        self._answer = answer
        self._living = len(self.members)
        tasks.keep("template", self._hear_template)
        for member in self.members:
            tasks.keep(f"worker {member.name}", partial(self._keep, member))

    @property
    def connections(self) -> int:
        return sum(self.assignment.connections(member.number) for member in self.members)

    async def wait_up(self) -> None:
        """Return when a worker takes connections."""
        while not self.assignment.free:
            await self._changed.wait()

    async def give(self, sock: trio.socket.SocketType, target: Target, on_end: Callable[[], None]) -> None:
        """Give a connection to the worker whose it is; one that dies before it has it is not.

        Args:
            on_end: called once, when the worker says that the connection has ended, or dies.
        """
        while True:
            await self.wait_up()
            number = self.assignment.choose(target.node_id)
            assert number is not None
            member = self.members[number]
            channel, given = member.channel, member.given
            assert channel is not None
            self.assignment.on_given(number, target.node_id)
            id_ = next(self._ids)
            given[id_] = target.node_id, on_end  # before it is sent: the worker may be quick
            member.sending.add(id_)
            try:
                await channel.give(sock, id=id_, broker=target.node_id, addresses=[*target.addresses])
            except ChannelClosedError:
                given.pop(id_, None)
                if member.channel is channel:  # it may be in its next life
                    self._down(member)
            except BaseException:
                given.pop(id_, None)
                raise
            else:
                if member.given is not given and id_ in given:
                    on_end()  # it has got it, and has died since
                return
            finally:
                member.sending.discard(id_)

    async def ask(self, what: str, wait_s_max: float, **about: object) -> dict[str, Mapping[str, Any]]:
        """Return what each worker answers in time, by its name; without those that have died since they answered."""
        answers: dict[str, Mapping[str, Any]] = {}
        asked = [(member, member.channel) for member in self.members if member.channel is not None and member.is_up]

        async def one(member: Member, channel: Channel) -> None:
            with suppress(ChannelClosedError), trio.move_on_after(wait_s_max):
                answers[member.name] = await channel.ask(what, **about)

        async with trio.open_nursery() as nursery:
            for member, channel in asked:
                nursery.start_soon(one, member, channel)
        for member, channel in asked:
            if member.channel is not channel:
                answers.pop(member.name, None)
        return answers

    def tell(self, what: str) -> None:
        """Tell every worker."""
        for member in self.members:
            if member.channel is not None:
                member.channel.tell(what)

    def drain(self) -> None:
        """Make every worker finish what it has begun, and end; none is started any more."""
        self._draining.set()
        self.tell("drain")

    async def wait_ended(self) -> None:
        """Return when the last worker has ended."""
        if self._living:
            await self._gone.wait()

    async def stop(self) -> None:
        """End all that still runs, now."""
        self.drain()  # the second time they hear it, they stop at once
        with trio.move_on_after(STOP_S_MAX):
            await self.wait_ended()
        for member in self.members:
            self.kill(member)

    def kill(self, member: Member) -> None:
        """End a worker that does not end by itself."""
        if member.process_id is not None and not member.is_killed:
            member.is_killed = True
            with suppress(ProcessLookupError):
                os.kill(member.process_id, signal.SIGKILL)

    # --- one worker ---

    async def _keep(self, member: Member) -> None:
        """Start it, and again whenever it ends, until all drain. After a fault of ours it is called again."""
        has_failed = False
        try:
            while not self._draining.is_set():
                try:
                    event = await self._live(member)
                except TemplateGoneError as error:
                    self._fail(f"no worker can be started: {error}")
                    return
                if self._draining.is_set():
                    return
                pause_s = self._died(member, event)
                if pause_s is None:
                    return
                with trio.move_on_after(pause_s):
                    await self._draining.wait()
        except Exception:
            has_failed = True
            raise
        finally:
            self._living -= not has_failed
            if not self._living:
                self._gone.set()

    async def _live(self, member: Member) -> WorkerEvent:
        """One life of a worker; how it ended."""
        assert self._answer is not None
        member.is_killed, member.process_id = False, None
        member.ended, ended = trio.open_memory_channel[WorkerEvent](1)
        ours = await self._template.start(member.number, is_first=member.starts == 0)
        member.starts += 1
        member.heard_at_s = trio.current_time()
        channel = member.channel = Channel(_trio_socket(ours), answer=self._answer, hear=partial(self._hear, member))
        if self._draining.is_set():  # while it was forked
            channel.tell("drain")
        event, has_gone = None, trio.Event()

        async def carry() -> None:
            await channel.run()
            has_gone.set()

        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(carry)
                nursery.start_soon(self._watch, member, channel)
                with suppress(trio.EndOfChannel):
                    event = await ended.receive()
                if event is None:  # the template has gone, and only the channel's end tells of the worker's
                    await has_gone.wait()
                nursery.cancel_scope.cancel()
        finally:
            self._down(member)
            member.channel = member.process_id = member.state = None
            member.has_been_ready = False
            given, member.given = member.given, {}
            for id_ in given.keys() - member.sending:
                given[id_][1]()
        if event is None:
            raise TemplateGoneError("nobody tells how workers end")
        return event

    async def _watch(self, member: Member, channel: Channel) -> None:
        """Ask it how it is, again and again; kill it when it does not answer."""
        while True:
            wait_s_max = HUNG_S_MAX
            if member.full_at_s is not None and trio.current_time() - member.full_at_s >= FULL_S:
                self._set_full(member, None)
            while not await self._ask_state(member, channel, wait_s_max):
                if wait_s_max == HUNG_AGAIN_S_MAX:
                    _log.error("worker_hung", worker=member.name, silent_s=HUNG_S_MAX + HUNG_AGAIN_S_MAX)
                    self.kill(member)
                    return
                wait_s_max = HUNG_AGAIN_S_MAX
            await trio.sleep(STATE_INTERVAL_S)

    async def _ask_state(self, member: Member, channel: Channel, wait_s_max: float) -> bool:
        """Return whether it answered in time, or has ended."""
        with trio.move_on_after(wait_s_max) as waiting, suppress(ChannelClosedError):
            member.state = await channel.ask("state") or None
            member.heard_at_s = trio.current_time()
            member.has_been_ready |= bool(member.state and member.state["report"]["ready"])
        return not waiting.cancelled_caught

    def _hear(self, member: Member, frame: Frame) -> None:
        match frame.body.get("what"):
            case "started":
                member.is_up = True
                self.assignment.on_up(member.number)
                self._change()
                _log.info("worker_started", worker=member.name, pid=member.process_id)
            case "ended":
                self._ended(member, frame.body["id"])
                self._set_full(member, None)
            case "full":
                self._ended(member, frame.body["id"])
                self._set_full(member, trio.current_time())
                self.on_full()
                if self._spells.begins(member.number):
                    reason = f"worker {member.name} has no open file left: raise the limit (LimitNOFILE=, ulimit -n)"
                    _log.error("connections_not_accepted", reason=reason, key="proxy.connections.max")

    def _ended(self, member: Member, id_: int) -> None:
        if (given := member.given.pop(id_, None)) is not None:
            broker, on_end = given
            self.assignment.on_ended(member.number, broker)
            on_end()

    def _set_full(self, member: Member, at_s: float | None) -> None:
        if member.full_at_s != at_s:
            member.full_at_s = at_s
            self.assignment.on_full(member.number, at_s is not None)
            self._change()

    def _down(self, member: Member) -> None:
        self._set_full(member, None)
        if member.is_up:
            member.is_up = False
            self.assignment.on_down(member.number)
            self._change()

    def _died(self, member: Member, event: WorkerEvent) -> float | None:
        """Seconds until it is to be started again; None: all ends."""
        member.last_death = event.reason
        self.on_death(member)
        if event.exit_code == exit_codes.USAGE and member.starts == 1:
            # It has said what is wrong with the configuration; that is so in each.
            self._fail(f"worker {member.name} refuses the configuration", exit_codes.USAGE)
            return None
        pause_s = member.deaths.on_death(trio.current_time())
        _log.error("worker_died", worker=member.name, pid=event.process_id, reason=event.reason, again_in_s=pause_s)
        if pause_s is None:
            often = f"{DEATHS_MAX} times within {DEATHS_WINDOW_S:g} s"
            self._fail(f"worker {member.name} died {often}, the last time: {event.reason}")
        return pause_s

    async def _hear_template(self) -> None:
        try:
            while True:
                event = await self._template.next_event()
                member = self.members[event.worker]
                if event.status is None:
                    member.process_id = event.process_id
                elif member.ended is not None:
                    member.process_id = None
                    member.ended.send_nowait(event)
        except TemplateGoneError as error:
            self._fail(f"no worker can be started: {error}")
            # Their ends are not announced any more; their channels' ends are seen.
            for member in self.members:
                if member.ended is not None:
                    member.ended.close()

    def _fail(self, reason: str, exit_code: int = exit_codes.FOUND_WRONG) -> None:
        if self._draining.is_set() or self.exit_code:
            return
        self.exit_code = exit_code
        _log.error("workers_failed", reason=reason)
        self._stop()

    def _change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


def _trio_socket(sock: stdlib_socket.socket) -> trio.socket.SocketType:
    sock.setblocking(False)
    return trio.socket.from_stdlib_socket(sock)
