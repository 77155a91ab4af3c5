"""The workers as the supervisor has them: started, watched, asked, stopped, and given connections.

Rule 1. A worker that ends is started again: at once, and after more deaths in a minute later and later. After
        DEATHS_MAX of one worker in a minute it rests: it is tried again every REST_S, and when the configuration is
        read again. The others serve on. When all rest, everything ends, with the reason.
Rule 2. A connection whose worker dies before it has it goes to another. While no worker is up, it waits. So do
        connections of clients that a worker may have died of, while they may only go there
        (`tidegate.workers.suspects`). Deaths of a worker that has suspects do not make it rest: it would refuse honest
        clients that are among them.
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
from typing import Any, Final, NamedTuple

import structlog
import trio

from proxy.connection.address_book import Target
from proxy.connection.spells import Spells
from proxy.tasks import Tasks
from tidegate import exit_codes
from tidegate.workers.assignment import Assignment
from tidegate.workers.channel import Channel, ChannelClosedError
from tidegate.workers.frames import Frame
from tidegate.workers.suspects import Suspects
from tidegate.workers.template import NotStartedError, ProcessEnd, Template

DEATHS_MAX: Final = 5
DEATHS_WINDOW_S: Final = 60.0
BACKOFF_S: Final = (0.0, 0.5, 1.0, 2.0)
"""Before a worker is started again, by its deaths in the window before: five within a minute stay possible."""

LONE_S: Final = 20.0
"""Before the second start in a minute of one that has a single suspect left."""

REST_S: Final = 600.0
"""Before one that rests is tried again."""

EXAMPLES_MAX: Final = 3
"""Client addresses in a line of the log."""

HELD_MAX: Final = 512
"""Connections of suspects that wait for their worker; more are closed. Half of what waits at most, so that others get
through."""

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
    """One worker's deaths, and when it is to be started again."""

    def __init__(self) -> None:
        self._at_s: deque[float] = deque()
        self._started_at_s = 0.0
        self.rests = False
        """It died too often, and has not lived for DEATHS_WINDOW_S since."""
        self.is_repeated = False
        """The same, or it died twice with a single suspect."""

    def on_start(self, now_s: float) -> None:
        """It is being started."""
        self._started_at_s = now_s

    def on_time(self, now_s: float) -> None:
        """It lives. After DEATHS_WINDOW_S of that, what was before does not count."""
        if now_s - self._started_at_s >= DEATHS_WINDOW_S:
            self.rests = self.is_repeated = False

    def on_death(self, now_s: float, suspects: int = 0) -> float:
        """Return the seconds to wait before the next start."""
        self.on_time(now_s)
        self._at_s.append(now_s)
        while self._at_s[0] <= now_s - DEATHS_WINDOW_S:
            self._at_s.popleft()
        deaths = len(self._at_s)
        self.rests = self.rests or (not suspects and deaths >= DEATHS_MAX)
        is_lone = suspects == 1 and deaths > 1
        self.is_repeated = self.is_repeated or self.rests or is_lone
        if self.rests:
            return REST_S
        return LONE_S if is_lone else BACKOFF_S[min(deaths, len(BACKOFF_S)) - 1]


class Given(NamedTuple):
    """A connection that a worker has: the broker whose listener's it is, the client's address, and what is to be called
    when it ends."""

    broker: int | None
    client: str
    on_end: Callable[[], None]


@dataclass(slots=True)
class Member:
    """One worker, over all its lives."""

    number: int
    channel: Channel | None = None
    process_id: int | None = None
    is_up: bool = False
    given: dict[int, Given] = field(default_factory=dict)
    """Connections of this life that have not ended."""
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
    had_clients: bool = False
    """When it ended."""
    is_resting: bool = False
    """It waits for its next try."""
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
        self.template = template
        self.suspects = Suspects()
        self._stop = stop
        self._answer: Answer | None = None
        self._spells = Spells(trio.current_time)
        self._draining = trio.Event()
        self._woken = trio.Event()
        """Set when who waits for a start is not to wait any longer."""
        self._changed = trio.Event()
        self.on_full: Callable[[], None] = lambda: None
        """Called when a worker had no open file left for a connection."""
        self._held = 0
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
        tasks.keep("template", self.template.keep)
        for member in self.members:
            tasks.keep(f"worker {member.name}", partial(self._keep, member))

    @property
    def connections(self) -> int:
        return sum(self.assignment.connections(member.number) for member in self.members)

    async def wait_up(self) -> None:
        """Return when a worker takes connections."""
        while not self.assignment.free:
            await self._changed.wait()

    async def give(self, sock: trio.socket.SocketType, target: Target, client: str, on_end: Callable[[], None]) -> None:
        """Give a connection to the worker whose it is; one that dies before it has it is not.

        Args:
            client: the address at its other end.
            on_end: called once, when the worker says that the connection has ended, or dies; or when it is given to
                nobody.
        """
        while True:
            number = await self._choose(target.node_id, client)
            if number is None:
                on_end()
                return
            member = self.members[number]
            channel, given = member.channel, member.given
            assert channel is not None
            self.assignment.on_given(number, target.node_id)
            id_ = next(self._ids)
            given[id_] = Given(target.node_id, client, on_end)  # before it is sent: the worker may be quick
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

    async def _choose(self, broker: int | None, client: str) -> int | None:
        """Return the worker for a connection, once one may have it; None: too many of suspects wait already."""
        while True:
            await self.wait_up()
            among = self.suspects.workers_for(client, self.assignment.free)
            if among:
                return self.assignment.choose(broker, among)
            if self._held >= HELD_MAX:
                return None
            self._held += 1
            try:
                await self._changed.wait()
            finally:
                self._held -= 1

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
        self.try_again()
        self.tell("drain")

    def try_again(self) -> None:
        """Start the workers now that wait for it."""
        self._woken.set()
        if not self._draining.is_set():
            self._woken = trio.Event()

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

    def often(self, member: Member) -> str:
        """Return how often it died, in words."""
        often = f"{DEATHS_MAX} times within {DEATHS_WINDOW_S:g} s"
        if not member.deaths.rests:
            clients = ", ".join(self.suspects.of(member.number))
            often = f"again and again with connections of {clients}" if clients else "again and again"
        return f"worker {member.name} died {often}, the last time: {member.last_death}"

    # --- one worker ---

    async def _keep(self, member: Member) -> None:
        """Start it, and again whenever it ends, until all drain. After a fault of ours it is called again."""
        has_failed = False
        try:
            while not self._draining.is_set():
                try:
                    end = await self._live(member)
                except NotStartedError as error:
                    end = ProcessEnd(0, f"it cannot be started: {error}")
                if self._draining.is_set():
                    return
                await self._rest(member, self._died(member, end))
        except Exception:
            has_failed = True
            raise
        finally:
            self._living -= not has_failed
            if not self._living:
                self._gone.set()

    async def _rest(self, member: Member, pause_s: float) -> None:
        """Wait before its next start. When all rest, none is left that could serve."""
        member.is_resting = member.deaths.rests
        if all(each.is_resting for each in self.members):
            self._fail(f"no worker is left: {self.often(member)}")
        with trio.move_on_after(pause_s):
            await self._woken.wait()
        member.is_resting = False

    async def _live(self, member: Member) -> ProcessEnd:
        """One life of a worker; how it ended.

        Raises:
            NotStartedError: it has none.
        """
        assert self._answer is not None
        member.is_killed = member.had_clients = False
        member.deaths.on_start(trio.current_time())
        ours, process_id = await self.template.start(member.number, is_first=member.starts == 0)
        member.starts += 1
        member.process_id = process_id
        member.heard_at_s = trio.current_time()
        channel = member.channel = Channel(
            _trio_socket(ours), answer=self._answer, hear=partial(self._hear, member), end=partial(self._lost, member)
        )
        if self._draining.is_set():  # while it was forked
            channel.tell("drain")
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch, member, channel)
                await channel.run()
                end = await self.template.wait_ended(process_id)
                nursery.cancel_scope.cancel()
        finally:
            self._down(member)
            member.channel = member.process_id = member.state = None
            member.has_been_ready = False
            given, member.given = member.given, {}
            for id_ in given.keys() - member.sending:
                given[id_].on_end()
        return end

    def _lost(self, member: Member) -> None:
        """It has died, or is about to end. Its clients may connect again in the loop's next turn."""
        self._down(member)
        if not self._draining.is_set():
            clients = {member.given[id_].client for id_ in member.given.keys() - member.sending}
            member.had_clients = bool(clients)
            self.suspects.on_death(member.number, clients)

    async def _watch(self, member: Member, channel: Channel) -> None:
        """Ask it how it is, again and again; kill it when it does not answer."""
        while True:
            wait_s_max = HUNG_S_MAX
            now_s = trio.current_time()
            member.deaths.on_time(now_s)
            if self.suspects.on_time(member.number, now_s):
                self._change()
            if member.full_at_s is not None and now_s - member.full_at_s >= FULL_S:
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
                self.suspects.on_up(member.number, trio.current_time())
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
            self.assignment.on_ended(member.number, given.broker)
            given.on_end()

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

    def _died(self, member: Member, end: ProcessEnd) -> float:
        """Return the seconds until it is to be started again."""
        member.last_death = end.reason
        self.on_death(member)
        if end.exit_code == exit_codes.USAGE and member.starts == 1:
            # It has said what is wrong with the configuration; that is so in each.
            self._fail(f"worker {member.name} refuses the configuration", exit_codes.USAGE)
            return REST_S
        suspects = self.suspects.of(member.number) if member.had_clients else []
        pause_s = member.deaths.on_death(trio.current_time(), len(suspects))
        if member.deaths.rests:
            self.suspects.clear(member.number)
            self._change()
        _log.error(
            "worker_died",
            worker=member.name,
            pid=end.process_id,
            reason=end.reason,
            again_in_s=pause_s,
            clients=len(suspects),
            examples=suspects[:EXAMPLES_MAX],
        )
        return pause_s

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
