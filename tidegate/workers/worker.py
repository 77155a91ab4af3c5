"""A worker: the application of `tidegate.serve`, whose connections and questions come from the supervisor.

Rule 1. It listens nowhere. Before clients hear of a broker, the supervisor is asked, which binds its listener
        first: so all workers tell the same.
Rule 2. Signals are ignored. The supervisor says `drain` (again: at once) and `reload`; its end means `drain`.
Rule 3. It has its part of the host's budgets, at the start and after each reload. One that is started again begins with
        the configuration of the supervisor's start, and then follows what the supervisor follows by now, as that has it
        in memory: FILE may be half edited.
"""

import base64
import copyreg
import importlib
import os
import pickle  # noqa: TID251  # no file: both ends are forked from one process
import signal
import socket as stdlib_socket
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import structlog
import trio

from protocol.wire.addresses import NodeAddress
from proxy.connection.address_book import Book, Target
from proxy.connection.brokers_file import KnownBrokersFile
from proxy.connection.names import group_rows
from proxy.connection.server import Server
from proxy.readiness import Readiness
from proxy.tasks import Tasks
from proxy.upstream.cluster import Cluster
from storage.buffers import keep_freed_memory
from storage.config.model import Mode
from storage.metadata.snapshot import Snapshot, SnapshotFile
from storage.metadata.snapshot_stream import SnapshotError
from tidegate.admin import OwnPages
from tidegate.application import Application
from tidegate.changed_files import Seen
from tidegate.config.load import load
from tidegate.config.model import Config
from tidegate.front import Listening, bootstrap_target, server_names
from tidegate.life_cycle import LifeCycle, SystemdNotify, exit_code_of
from tidegate.log_lines import lines_in_thread
from tidegate.logs import configure_logs
from tidegate.serve import run
from tidegate.status.model import Query
from tidegate.workers.channel import Channel, ChannelClosedError
from tidegate.workers.frames import Frame, FrameKind
from tidegate.workers.samples import samples_of
from tidegate.workers.shares import share_of
from tidegate.workers.template import Work

if TYPE_CHECKING:
    from proxy.connection.server_names import SniAddressBook

_log = structlog.get_logger(__name__)


def prepare(config: Config, workers: int) -> Work:
    """Return what workers do, once what they share was read: the catalog's snapshot, whose memory then is there once.

    Only the first worker of each number begins with it. What a later one reads is newer, and a snapshot as old as the
    host's start may have to be followed by records that the metadata topic has no more.

    Args:
        config: the host's.
    """
    if config.mode is Mode.STANDALONE:
        importlib.import_module("tidegate.standalone_wiring")  # its memory is there once, too
    snapshot = None
    if config.catalog.snapshot_path is not None:
        with suppress(SnapshotError, OSError):  # each worker finds that out itself, and says so
            snapshot = SnapshotFile(config.catalog.snapshot_path).read()
    return partial(work, config, workers, snapshot)


def work(
    config: Config, workers: int, snapshot: Snapshot | None, worker: int, is_first: bool, channel: stdlib_socket.socket
) -> int:
    """A worker's whole life, in a process of its own; the exit code.

    Args:
        config: the host's.
        snapshot: as it was at the host's start.
        is_first: whether no worker of this number has been before.
    """
    keep_freed_memory()
    own = share_of(config, worker, workers)
    configure_logs(own.log.level, own.log.format, worker=own.log.worker)
    with lines_in_thread():
        return trio.run(_work, own, worker, workers, snapshot if is_first else None, is_first, channel)


async def _work(
    config: Config, worker: int, workers: int, snapshot: Snapshot | None, is_first: bool, sock: stdlib_socket.socket
) -> int:
    async def live() -> None:
        async with trio.open_nursery() as nursery:
            front = WorkerFront(config, worker, workers, trio.socket.from_stdlib_socket(sock))
            nursery.start_soon(front.run)
            await LifeCycle(front.signals, SystemdNotify({})).run(lambda: front.start(snapshot, is_first))
            nursery.cancel_scope.cancel()

    return await exit_code_of(live(), (OSError, ChannelClosedError))


def _read_only(items: dict[Any, Any]) -> MappingProxyType[Any, Any]:
    return MappingProxyType(items)


copyreg.pickle(MappingProxyType, lambda mapping: (_read_only, (dict(mapping),)))  # Python cannot by itself


def frozen(followed: tuple[Config, Seen]) -> str:
    """Return a configuration, and the state of its files, for another process of the same build. It has secrets."""
    return base64.b64encode(pickle.dumps(followed)).decode()


def thawed(text: str) -> tuple[Config, Seen]:
    """Return what was `frozen`. The text must be the supervisor's."""
    followed: tuple[Config, Seen] = pickle.loads(base64.b64decode(text))
    return followed


class WorkerFront:
    """Implements `tidegate.front.Front` by way of the supervisor."""

    def __init__(self, config: Config, worker: int, workers: int, sock: trio.socket.SocketType) -> None:
        self._config = config
        self._worker, self._workers = worker, workers
        self._channel = Channel(sock, answer=self._answer, hear=self._hear)
        self._send_signal, self.signals = trio.open_memory_channel[int](8)
        self._application: Application | None = None
        self._pages: OwnPages | None = None
        self._server: Server | None = None
        self._names: SniAddressBook | None = None

    async def run(self) -> None:
        """Hear the supervisor until it has gone; then the worker drains."""
        await self._channel.run()
        self._signal(signal.SIGTERM)

    @asynccontextmanager
    async def start(self, snapshot: Snapshot | None, is_first: bool) -> AsyncIterator["WorkerApplication"]:
        """The application, known to the supervisor."""
        followed = None if is_first else await self._channel.ask("configuration")
        async with run(self._config, front=self, snapshot=snapshot) as application:
            self._application = application
            if followed is not None:
                config, seen = thawed(followed["pickle"])
                await application.reloader.take_over(share_of(config, self._worker, self._workers), seen)
            self._channel.tell("started")
            try:
                yield WorkerApplication(application)
            finally:
                self._server = None  # its nursery takes no connection any more

    # --- `Front` ---

    def load(self) -> Config:
        """This worker's part of the configuration as it is now."""
        return share_of(load(self._config.files[""], os.environ), self._worker, self._workers)

    async def listen(self, cluster: Cluster, server: Server, readiness: Readiness, tasks: Tasks) -> Listening:
        """Serve the supervisor's connections."""
        told = await self._channel.ask("listening")
        bootstrap = str(told["host"]), int(told["port"])
        servers = [str(each) for each in self._config.upstream.bootstrap_servers]
        book: Book
        if self._config.proxy.tls_sni_pattern is not None:
            book = self._names = server.addresses = server_names(self._config, cluster, bootstrap[1])
            known = await KnownBrokersFile(self._config.catalog.snapshot_path, servers).read()
            await book.follow(known.brokers)
        else:
            book = server.addresses = SupervisorsBook(self._channel)
        self._server = server
        await trio.lowlevel.checkpoint()
        # The supervisor keeps the file.
        return Listening(book, bootstrap, KnownBrokersFile(None, servers))

    async def show(self, pages: OwnPages, tasks: Tasks) -> tuple[str, int]:
        """Answer the supervisor's questions."""
        self._pages = pages
        await trio.lowlevel.checkpoint()
        admin = self._config.admin.listen
        return admin.host, admin.port

    # --- the supervisor's words ---

    def _hear(self, frame: Frame) -> None:
        if frame.kind is FrameKind.GIVE:
            if frame.descriptor is None:
                self._channel.tell("full", id=frame.body["id"])
            else:
                self._take(stdlib_socket.socket(fileno=frame.descriptor), frame.body)
            return
        match frame.body["what"]:
            case "drain":
                self._signal(signal.SIGTERM)
            case "reload":
                self._signal(signal.SIGHUP)
            case other:
                _log.error("worker_channel_fault", reason=f"nothing is known of {other}")

    def _take(self, sock: stdlib_socket.socket, about: Mapping[str, Any]) -> None:
        if self._server is None:  # it is given none before it says that it has started; some on their way at its end
            sock.close()
            return
        sock.setblocking(False)
        node_id = about["broker"]
        addresses = tuple((str(host), int(port)) for host, port in about["addresses"])
        target = bootstrap_target(self._config) if node_id is None else Target(node_id, addresses)

        def target_for(server_name: str | None) -> Target | None:
            return target if self._names is None else self._names.target_for(server_name)

        self._server.take(
            trio.socket.from_stdlib_socket(sock), target_for, lambda: self._channel.tell("ended", id=about["id"])
        )

    async def _answer(self, question: Mapping[str, Any]) -> Mapping[str, Any]:
        pages, application = self._pages, self._application
        if pages is None or application is None:
            return {}
        match question["what"]:
            case "state":
                return {
                    "report": await pages.report(),
                    "told": application.readiness.told,
                    "segments": application.catalog.finished_count,
                }
            case "metrics":
                return {"families": await trio.to_thread.run_sync(samples_of, pages.registry)}
            case "streams":
                return {"streams": [*await pages.streams()], "groups": self._groups(pages)}
            case "status":
                status = await pages.status(Query(question["page"], question["topic"]))
                return {"status": status, "groups": self._groups(pages)}
        return {}

    def _groups(self, pages: OwnPages) -> list[list[Any]]:
        return [] if pages.groups is None else group_rows(pages.groups)

    def _signal(self, number: int) -> None:
        try:
            self._send_signal.send_nowait(number)
        except (trio.WouldBlock, trio.BrokenResourceError):
            _log.debug("worker_signal_dropped", number=number)  # it has been told often enough, or has ended


class WorkerApplication:
    """Implements `tidegate.life_cycle.Running`: the application, which leaves `ready:` to the supervisor."""

    ready_line = None

    def __init__(self, application: Application) -> None:
        self.readiness = application.readiness
        self.server = application.server
        self.reloader = application.reloader
        self.closing = application.closing
        self._application = application

    @property
    def drain_delay_s(self) -> float:
        """None: the supervisor has waited already."""
        return 0.0

    @property
    def drain_timeout_s(self) -> float:
        return self._application.drain_timeout_s


class SupervisorsBook:
    """Implements `proxy.connection.address_book.Book` by asking the supervisor, once for each broker and address."""

    free_ports: Mapping[int, int] = {}  # never changed
    withheld: Mapping[int, str] = {}

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._told: dict[NodeAddress, tuple[str, int]] = {}

    async def advertise(self, nodes: Iterable[NodeAddress]) -> dict[int, tuple[str, int]]:
        """Return what clients get for these brokers; without those that the supervisor cannot listen for."""
        wanted = [*nodes]
        unknown = [node for node in wanted if node not in self._told]
        if unknown:
            self._told |= await self._ask(unknown)
        return {node.node_id: self._told[node] for node in wanted if node in self._told}

    async def follow(self, nodes: Collection[NodeAddress]) -> None:
        """Know these brokers and no other, and where the supervisor listens for them now."""
        self._told = await self._ask(nodes)

    async def retry_withheld(self) -> None:
        """That is the supervisor's matter."""
        await trio.lowlevel.checkpoint()

    async def _ask(self, nodes: Iterable[NodeAddress]) -> dict[NodeAddress, tuple[str, int]]:
        asked = [*nodes]
        try:
            told = await self._channel.ask("advertise", nodes=[[each.node_id, each.host, each.port] for each in asked])
        except ChannelClosedError:
            # The drain has begun. What was told before holds until its end.
            return {node: self._told[node] for node in asked if node in self._told}
        listened = {int(node_id): (str(host), int(port)) for node_id, host, port in told["told"]}
        return {node: listened[node.node_id] for node in asked if node.node_id in listened}
