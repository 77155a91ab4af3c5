"""The process that clients, operators and systemd see when there are several workers.

Rule 1. It binds every listener, the admin listener among them, and gives each accepted connection to a worker
        (`tidegate.workers.assignment`); it reads none of its bytes.
Rule 2. Workers are `tidegate.workers.crew`'s. While none is up, connections wait in the kernel's queue.
Rule 3. SIGTERM drains as without workers: readiness fails, listeners close after the delay, workers finish.
        While a worker is down and another is ready, all together are ready, and degraded: a balancer that left this
        host for one worker's death would take its work from all the others.
Rule 4. When it dies, workers find their channel's end and drain; the templates end.
"""

import gc
import os
import signal
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

import structlog
import trio

from metrics.meters import RelayMeter
from metrics.page import render
from metrics.troubles import TroubleId
from protocol.client.messages import preload_schemas
from protocol.wire.addresses import NodeAddress
from proxy.connection.address_book import Book, Target
from proxy.connection.address_limits import AddressLimits
from proxy.connection.names import join_groups
from proxy.connection.peer_address import CrowdListener, own_address, tell_no_room
from proxy.connection.server import REFUSALS, TargetFor
from proxy.connection.slots import SlotLimits
from proxy.connection.spells import Spells
from proxy.readiness import Condition, ConditionName, ConditionState, Readiness, Stage
from storage.tasks import TaskNursery
from tidegate.admin import readiness_report
from tidegate.application import ready_line
from tidegate.catalog import LAST_WRITE_S_MAX
from tidegate.config.model import Config
from tidegate.front import OwnFront
from tidegate.life_cycle import SIGNALS, LifeCycle, SystemdNotify, exit_code_of
from tidegate.log_lines import lines_in_thread
from tidegate.logs import configure_logs
from tidegate.process import Process, open_process
from tidegate.reload import Cause, Reloader
from tidegate.start_lines import python_tls, say_end, say_start
from tidegate.status.collect import addresses_at_limit, empty_status
from tidegate.status.model import FailedStatus, LimitStatus, Query, Status, merged, shown_troubles
from tidegate.upkeep import follow_brokers
from tidegate.workers.crew import REST_S, STATE_INTERVAL_S, STOP_S_MAX, Crew, Member
from tidegate.workers.samples import Collected, Together
from tidegate.workers.template import Template
from tidegate.workers.worker import frozen, prepare

if TYPE_CHECKING:
    from proxy.connection.connection import Advertiser

WAITING_MAX: Final = 1024
"""Accepted connections that no worker has taken yet; beyond it none is accepted, and the kernel's queue fills."""

SILENT_S_MAX: Final = 5.0
"""A worker that says nothing for so long is not ready."""

PAGE_S_MAX: Final = 5.0
"""What a page waits for workers; below what Prometheus waits for the page, 10 s."""


_STARTS: Final = "is starting"

Report = Mapping[str, Any] | str
"""What a worker says of itself, or why it says nothing."""

_log = structlog.get_logger(__name__)


def serve(config: Config, workers: int) -> int:
    """Run until a signal; the exit code. The process has one thread yet, and no event loop."""
    configure_logs(config.log.level, config.log.format)
    say_start(config, workers)
    preload_schemas()  # once for all
    gc.freeze()  # or collections would write here into what the template and the workers share
    template = Template(partial(prepare, config, workers))
    try:
        with lines_in_thread():
            exit_code = trio.run(_serve, config, workers, template)
            say_end(exit_code)
        return exit_code
    finally:
        template.close()


async def _serve(config: Config, workers: int, template: Template) -> int:
    send_signal, signals = trio.open_memory_channel[int](8)
    crew = Crew(workers, template, lambda: send_signal.send_nowait(signal.SIGTERM))

    async def live(heard: AsyncIterator[int]) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_pass_on, heard, send_signal)
            await LifeCycle(signals, SystemdNotify(os.environ)).run(lambda: run(config, crew))
            nursery.cancel_scope.cancel()

    with trio.open_signal_receiver(*SIGNALS) as heard:
        return await exit_code_of(live(heard)) or crew.exit_code


async def _pass_on(heard: AsyncIterator[int], send_signal: trio.MemorySendChannel[int]) -> None:
    async for number in heard:
        await send_signal.send(number)


class Acceptor:
    """Implements `tidegate.front.Acceptor`: has workers serve what listeners accept.

    Limits for each client address are kept here, for all workers together; behind a balancer only workers know the
    address, and each keeps them by itself.

    Args:
        limits: as they are now; None: a PROXY header will tell the address.
    """

    def __init__(
        self, crew: Crew, nursery: TaskNursery, meter: RelayMeter, limits: Callable[[], SlotLimits] | None
    ) -> None:
        self.addresses: Advertiser | None = None
        self._meter = meter
        crew.on_full = meter.on_not_accepted
        self._limits = limits
        self._by_address = AddressLimits(trio.current_time)
        self._spells = Spells(trio.current_time)
        self._crew = crew
        self._nursery = nursery
        self._brokers: set[int] = set()
        self._scopes: set[trio.CancelScope] = set()
        self._draining = False
        self._waiting = 0
        self._fewer = trio.Event()

    async def serve(self, listeners: Sequence[trio.SocketListener], target: Target) -> None:
        """Accept until cancelled, or drained."""

        async def handle(stream: trio.SocketStream) -> None:
            self._waiting += 1
            try:
                await self._give(stream.socket, target)
            finally:
                stream.socket.close()
                self._waiting -= 1
                self._fewer.set()
                self._fewer = trio.Event()

        with trio.CancelScope() as scope:
            if self._draining:
                scope.cancel()
            self._scopes.add(scope)
            self._serves(target.node_id, True)
            try:
                no_room = partial(tell_no_room, self._spells, self._meter)
                crowds = [CrowdListener(each, no_room) for each in listeners]
                accepting = [_WhenThereIsRoom(each, self._wait_room) for each in crowds]
                await trio.serve_listeners(handle, accepting, handler_nursery=cast(trio.Nursery, self._nursery))
            finally:
                self._scopes.discard(scope)
                self._serves(target.node_id, False)

    async def serve_by_name(self, listeners: Sequence[trio.SocketListener], target_for: TargetFor) -> None:
        """The same: only the worker will hear the name."""
        await self.serve(listeners, Target(None, ()))

    def drain(self) -> None:
        """Close the listeners."""
        self._draining = True
        for scope in self._scopes:
            scope.cancel()

    async def _give(self, sock: trio.socket.SocketType, target: Target) -> None:
        client = own_address(sock)
        if self._limits is None:
            await self._crew.give(sock, target, client.host, lambda: None)
            return
        limits = self._limits()
        refusal = self._by_address.refusal(
            client.host, connections_max=limits.connections_max_per_address, rate_max=limits.rate_max_per_address
        )
        if refusal is not None:
            self._meter.on_connection_refused(refusal)
            if self._spells.begins(refusal):
                event, key, detail = REFUSALS[refusal]
                _log.warning(event, client=client.name, detail=detail, key=key, connections=self._crew.connections)
            return
        self._by_address.entered(client.host)
        is_given = False
        try:
            await self._crew.give(sock, target, client.host, lambda: self._by_address.left(client.host))
            is_given = True
        finally:
            if not is_given:
                self._by_address.left(client.host)

    def addresses_at_limit(self) -> list[LimitStatus]:
        """Client addresses that have as many connections as they may."""
        limits = None if self._limits is None else self._limits()
        return addresses_at_limit(
            self._by_address.connections, None if limits is None else limits.connections_max_per_address
        )

    def _serves(self, node_id: int | None, does: bool) -> None:
        if node_id is not None:
            self._brokers = self._brokers | {node_id} if does else self._brokers - {node_id}
            self._crew.assignment.follow(self._brokers)

    async def _wait_room(self) -> None:
        await self._crew.wait_up()
        while self._waiting >= WAITING_MAX:
            await self._fewer.wait()


class _WhenThereIsRoom(trio.abc.Listener[trio.SocketStream]):
    """Accepts only while somebody could take the connection."""

    def __init__(self, listener: CrowdListener, wait_room: Callable[[], Any]) -> None:
        self._listener = listener
        self._wait_room = wait_room

    async def accept(self) -> trio.SocketStream:
        await self._wait_room()
        return await self._listener.accept()

    async def aclose(self) -> None:
        await self._listener.aclose()


class Supervisor:
    """Implements `tidegate.life_cycle.Running` and, for it, what it drains and reloads; and `Pages`."""

    def __init__(self, process: Process, crew: Crew, acceptor: Acceptor, reloader: Reloader) -> None:
        self.readiness = Readiness(process.meters.health)
        self.server = self.reloader = self
        self.closing = trio.CancelScope()
        self.bootstrap = ("", 0)
        self._config = process.config
        self.addresses: Book | None = None
        self._crew, self._acceptor, self._cluster = crew, acceptor, process.cluster
        self._settings, self._own_reloader, self._meters = process.settings, reloader, process.meters
        self._own_view = process.readiness
        """What the supervisor finds by itself."""
        self._together = Together(process.meters.registry)
        self._collecting = trio.Lock()
        for member in crew.members:
            process.meters.workers.on_begins(member.name)
        crew.on_death = self._on_death

    # --- `Running` ---

    @property
    def drain_delay_s(self) -> float:
        return self._settings.drain_delay_s

    @property
    def drain_timeout_s(self) -> float:
        """Workers keep to the time themselves, and write what is to be written."""
        return self._settings.drain_timeout_s + LAST_WRITE_S_MAX + STOP_S_MAX

    @property
    def ready_line(self) -> str:
        segments = max((member.state["segments"] for member in self._crew.members if member.state), default=0)
        withheld = () if self.addresses is None else self.addresses.withheld.keys()
        known = self._cluster.brokers.keys()
        slower = python_tls(self._config)
        return ready_line(self.bootstrap, len(known - withheld), len(known), segments, slower)

    @property
    def connections(self) -> int:
        return self._crew.connections

    def drain(self) -> None:
        """Listeners close, and workers finish."""
        self._acceptor.drain()
        self._crew.drain()

    async def wait_empty(self) -> None:
        """Return when all workers have ended."""
        await self._crew.wait_ended()

    async def reload(self, cause: Cause) -> None:
        """Make all read the configuration again."""
        self._crew.tell("reload")
        await self._own_reloader.reload(cause)

    # --- `Pages` ---

    async def metrics(self, accept: str) -> tuple[str, bytes]:
        async with self._collecting:
            for name, answer in (await self._crew.ask("metrics", PAGE_S_MAX)).items():
                self._together.heard(name, answer.get("families", ()))
            metrics = await trio.to_thread.run_sync(self._together.collect)
        return await trio.to_thread.run_sync(render, Collected(metrics), accept)

    async def report(self) -> Mapping[str, Any]:
        self._tell_readiness()
        return readiness_report(self.readiness) | {"workers": self._workers()}

    async def streams(self) -> Sequence[Mapping[str, object]]:
        answers = await self._crew.ask("streams", PAGE_S_MAX)
        rows = [{"worker": int(name), **row} for name, answer in sorted(answers.items()) for row in answer["streams"]]
        join_groups(rows, _groups(answers))
        return rows

    async def status(self, query: Query) -> Status:
        """The workers' documents as one; of those that do not answer in time there is nothing but that."""
        self._tell_readiness()
        answers = await self._crew.ask("status", PAGE_S_MAX, page=query.page, topic=query.topic)
        told = {name: answer["status"] for name, answer in answers.items() if "status" in answer}
        own = empty_status(self.readiness, query)
        own["workers"], own["limits"] = self._workers(), self._acceptor.addresses_at_limit()
        own["failed_sections"] = [
            FailedStatus(section=f"worker {member.name}", reason="it does not answer")
            for member in self._crew.members
            if member.name not in told
        ]
        status = merged(own, told)
        join_groups(status["streams"]["rows"], _groups(answers))
        return status

    def _workers(self) -> list[dict[str, Any]]:
        return [
            {
                "worker": member.number,
                "pid": member.process_id,
                "up": member.is_up,
                "ready": bool(member.state and member.state["report"]["ready"]),
                "connections": self._crew.assignment.connections(member.number),
                "starts": member.starts,
                "last_death": member.last_death,
            }
            for member in self._crew.members
        ]

    # --- readiness ---

    async def watch(self) -> None:
        """Keep readiness and the workers' metrics current."""
        while True:
            self._tell_readiness()
            for member in self._crew.members:
                connections = self._crew.assignment.connections(member.number)
                self._meters.workers.on_worker(member.name, member.is_up, connections)
            await trio.sleep(STATE_INTERVAL_S)

    def _tell_readiness(self) -> None:
        now_s = trio.current_time()
        members = self._crew.members
        reports = {member.name: _report(member, now_s) for member in members}
        down = stood_in_for(
            reports, {member.name for member in members if member.last_death and not member.has_been_ready}
        )
        for name in ConditionName:
            found = {
                f"worker {worker}": condition_of(report, name)
                for worker, report in reports.items()
                if worker not in down
            }
            if name in (ConditionName.UPSTREAM, ConditionName.TASKS):
                found["supervisor"] = self._own_view.conditions[name]
            self.readiness.take(name, worst(found))
        self._tell_deaths(down, sum(not isinstance(report, str) and report["ready"] for report in reports.values()))
        limits = self._acceptor.addresses_at_limit()
        self._own_view.tell(TroubleId.LIMIT_REACHED, shown_troubles(limits, (), ())[TroubleId.LIMIT_REACHED])
        workers = (
            member.state["told"] for member in members if member.state and isinstance(reports[member.name], dict)
        )
        self.readiness.take_told([self._own_view.told, *workers])

    def _tell_deaths(self, down: Mapping[str, str], ready: int) -> None:
        members, tell = self._crew.members, self._own_view.tell
        serve = f"{ready} of {len(members)} workers serve"
        often = {member.name: self._crew.often(member) for member in members if member.deaths.is_repeated}
        tell(TroubleId.WORKER_DIES, [f"{serve}; {reason}" for reason in often.values()])
        once = {worker: reason for worker, reason in down.items() if worker not in often}
        tell(TroubleId.WORKER_DOWN, [f"{serve}; worker {worker}: {reason}" for worker, reason in once.items()])
        gone = ["the processes that workers are forked from have ended"] if self._crew.template.has_gone else []
        tell(TroubleId.NO_NEW_WORKER, gone)

    def _on_death(self, member: Member) -> None:
        self._together.ended(member.name)
        self._meters.workers.on_death(member.name)


def _report(member: Member, now_s: float) -> Report:
    """Return what the worker says of itself, or why it says nothing."""
    if member.state is None:
        if member.last_death is not None:
            when = f"is tried again every {REST_S / 60:g} min" if member.is_resting else "starts again"
            return f"{when} ({member.last_death})"
        return "has ended" if member.starts and member.channel is None else _STARTS
    if now_s - member.heard_at_s > SILENT_S_MAX:
        return f"has not answered for {SILENT_S_MAX:g} s"
    report: Mapping[str, Any] = member.state["report"]
    return report


def _groups(answers: Mapping[str, Mapping[str, Any]]) -> list[list[Any]]:
    return [told for answer in answers.values() for told in answer.get("groups", ())]


def stood_in_for(reports: Mapping[str, Report], not_ready_again: Collection[str]) -> dict[str, str]:
    """Return the workers that are down while another serves, and why.

    Args:
        reports: what each says of itself.
        not_ready_again: those that have not been ready since they died.
    """
    if not any(not isinstance(report, str) and report["ready"] for report in reports.values()):
        return {}
    down = {}
    for worker, report in reports.items():
        if isinstance(report, str):
            if report != _STARTS:
                down[worker] = report
        elif report["state"] == Stage.DRAINING.value:
            down[worker] = "is draining"
        elif worker in not_ready_again and not report["ready"]:
            down[worker] = "is not ready again yet"
    return down


def condition_of(report: Report, name: ConditionName) -> Condition:
    """One worker's condition."""
    pending = ConditionState.PENDING
    if isinstance(report, str):
        return Condition(pending, report, TroubleId.STARTING if report == _STARTS else TroubleId.WORKER_DOWN)
    if name is ConditionName.CATALOG and report["state"] == Stage.DRAINING.value:
        return Condition(pending, "is draining", TroubleId.DRAINING)
    told = report["conditions"][name.value]
    trouble = told["trouble"] and TroubleId(told["trouble"])
    return Condition(ConditionState(told["state"]), told["reason"], trouble)


def worst(found: Mapping[str, Condition]) -> Condition:
    """Return what a condition of several amounts to: their worst state, and who says why."""
    for state in (ConditionState.PENDING, ConditionState.DEGRADED):
        reasons: dict[str, list[str]] = {}
        troubles = set[TroubleId]()
        for who, condition in found.items():
            if condition.state is state:
                reasons.setdefault(condition.reason, []).append(who)
                troubles.add(condition.trouble or TroubleId.STARTING)
        if reasons:
            said = "; ".join(f"{', '.join(who)}: {reason}" for reason, who in reasons.items())
            return Condition(state, said, max(troubles, key=[*TroubleId].index))
    return Condition(ConditionState.MET, next(iter(found.values())).reason)


@asynccontextmanager
async def run(config: Config, crew: Crew) -> AsyncIterator[Supervisor]:
    """Listeners, workers and pages; all is torn down when the block is left.

    Raises:
        OSError: a listener cannot be bound (names address and key).
    """
    async with open_process(config, logs=False, is_measured=False) as process:
        cluster, settings, own_view, tasks = process.cluster, process.settings, process.readiness, process.tasks
        # It finds nothing of these by itself: its own view is ready when upstream has answered.
        own_view.catalog_live(0)
        own_view.tier_answered()
        front = OwnFront(config, settings, len(crew.members))
        limits = None if config.proxy.protocol else lambda: settings.server_settings.slots
        acceptor = Acceptor(crew, tasks, process.meters.relay, limits)
        try:
            listening = await front.listen(cluster, acceptor, own_view, tasks)
            bootstrap, addresses = listening.bootstrap, listening.addresses

            def follow(wanted: Config) -> None:
                settings.follow(wanted)
                crew.try_again()

            reloader = Reloader(config, front.load, follow, process.meters, own_view)
            supervisor = Supervisor(process, crew, acceptor, reloader)
            supervisor.bootstrap, supervisor.addresses = bootstrap, addresses
            crew.start(tasks, partial(_answer, bootstrap, addresses, reloader))
            await front.show(supervisor, tasks)
            tasks.keep("configuration", reloader.run)
            known, words = listening.known, process.reasons.no_broker
            tasks.keep("upstream", partial(follow_brokers, cluster, addresses, known, own_view, words))
            tasks.keep("workers", supervisor.watch)
            yield supervisor
        finally:
            with trio.CancelScope(shield=True):
                await crew.stop()


async def _answer(
    bootstrap: tuple[str, int], addresses: Book, reloader: Reloader, question: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Answer a question of a worker."""
    match question["what"]:
        case "listening":
            return {"host": bootstrap[0], "port": bootstrap[1]}
        case "configuration":
            return {"pickle": frozen(reloader.followed)}
        case "advertise":
            nodes = [NodeAddress(int(node_id), str(host), int(port)) for node_id, host, port in question["nodes"]]
            told = await addresses.advertise(nodes)
            return {"told": [[node_id, host, port] for node_id, (host, port) in told.items()]}
    return {}
