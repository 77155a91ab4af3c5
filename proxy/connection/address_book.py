"""The listeners that stand for upstream's brokers: one each, so that the listener says which broker is meant.

Rule 1. A listener is bound for every known broker (`follow`: the last run's at the start, upstream's from then on),
        and before an answer that names a new one goes out (`advertise`).
Rule 2. Broker N listens at `proxy.broker.port.start` + N − `proxy.broker.id.min`, unless `proxy.broker.ports`
        names its port; 0 is any free port. A broker whose port is out of range or taken is withheld: clients do not
        hear of it, the others are not concerned, readiness names broker and key, and it is tried again.
Rule 3. A broker that changes its address keeps its listener: the next connection goes to the new address. One that
        left upstream's metadata has its listener closed; when it comes back it gets one again, at the same port if
        that is still free: a broker that restarts leaves the metadata for a moment, and clients remember its port.
"""

import errno
import json
import os
import re
import ssl
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import structlog
import trio

from metrics.troubles import TroubleId
from protocol.wire.addresses import NodeAddress
from proxy.readiness import Readiness
from proxy.settings import NODE_ID_MAX, NODE_ID_VARIABLE, ProxyConfig
from storage.config.model import HostPort
from storage.owned_file import OwnedFile

# The brokers that were known last, in a file: a restart listens for them before any of them has answered.
#
# Clients that remember where brokers are do not ask anybody before they connect: Java clients before 4.0 know no other
# way back (KIP-899). So what a restart needs must not wait for an answer that names the brokers.
#
# Rule 1. `brokers.json` in `catalog.snapshot.path`, beside the catalog and not in it: it is a few lines that change
#         when brokers do, is needed before the catalog has been read, and is true whatever becomes of the metadata
#         topic. Without that path there is none, and the listeners come with the first answer of a broker.
# Rule 2. It holds addresses to which clients send their credentials, so it is in our user's hands alone, and is used
#         only with the `upstream.bootstrap.servers` that it was written with: with others it may be another cluster.
# Rule 3. It also holds the ports that brokers were given where any would do, also of brokers that have left.
# Rule 4. Trouble with it costs nothing but this: a log line, once a spell.


FILE_NAME: Final = "brokers.json"
FORMAT_VERSION: Final = 1
FILE_BYTES_MAX: Final = 4 * 1024 * 1024
"""Some 40,000 brokers."""

PORT_MAX = 65535


@dataclass(frozen=True, slots=True)
class KnownBrokers:
    """The brokers, and the ports that some were given when any would do."""

    brokers: tuple[NodeAddress, ...] = ()
    ports: Mapping[int, int] = field(default_factory=dict)


class KnownBrokersFile:
    """Keeps the file. Owned by the trio thread.

    Args:
        folder: `catalog.snapshot.path`; None: nothing is kept.
        bootstrap_servers: `upstream.bootstrap.servers`, in any order.
    """

    def __init__(self, folder: Path | None, bootstrap_servers: Iterable[str]) -> None:
        self._file = None if folder is None else OwnedFile(folder / FILE_NAME)
        self._bootstrap_servers = sorted(bootstrap_servers)
        self._noted = self._written = KnownBrokers()
        self._changed = trio.Event()
        self._is_failing = False

    async def read(self) -> KnownBrokers:
        """Return what the last run knew; nothing when there is no file, or one that must not be used."""
        if self._file is None:
            return KnownBrokers()
        try:
            found = await trio.to_thread.run_sync(self._read, self._file)
        except (OSError, ValueError) as error:
            _log.warning("known_brokers_not_used", reason=str(error))
            found = KnownBrokers()
        self._noted = self._written = found
        return found

    def note(self, brokers: Iterable[NodeAddress], ports: Mapping[int, int]) -> None:
        """Write this soon, unless it is what the file holds."""
        self._noted = KnownBrokers(tuple(sorted(brokers, key=lambda node: node.node_id)), dict(ports))
        if self._noted != self._written:
            self._changed.set()

    async def run(self) -> None:
        """Write what was noted, whenever that has changed."""
        while True:
            await self._changed.wait()
            self._changed = trio.Event()
            await self.write()

    async def write(self) -> None:
        """Write what was noted, unless the file holds it."""
        noted = self._noted
        if self._file is None or noted == self._written:
            return
        try:
            # A disk can hang, and nobody waits for it.
            await trio.to_thread.run_sync(self._write, self._file, noted, abandon_on_cancel=True)
        except OSError as error:
            if not self._is_failing:
                _log.warning("known_brokers_not_written", reason=str(error))
            self._is_failing = True
        else:
            self._written, self._is_failing = noted, False

    def _read(self, owned: OwnedFile) -> KnownBrokers:
        file = owned.open()
        if file is None:
            return KnownBrokers()
        with file:
            text = file.read(FILE_BYTES_MAX + 1)
        if len(text) > FILE_BYTES_MAX:
            raise ValueError(f"{owned.path}: more than {FILE_BYTES_MAX} bytes")
        try:
            found = json.loads(text)
            if found["format"] != FORMAT_VERSION:
                raise ValueError(f"it is of format {found['format']}, and this version reads {FORMAT_VERSION}")
            brokers = KnownBrokers(
                tuple(map(_broker, found["brokers"])),
                {_between(int(node_id), NODE_ID_MAX): _port(port) for node_id, port in found["ports"].items()},
            )
            written_with = found["bootstrap_servers"]
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ValueError(f"{owned.path}: {error!r}") from error
        if written_with != self._bootstrap_servers:
            raise ValueError(f"{owned.path}: it was written with other upstream.bootstrap.servers: {written_with}")
        return brokers

    def _write(self, owned: OwnedFile, known: KnownBrokers) -> None:
        content = {
            "format": FORMAT_VERSION,
            "bootstrap_servers": self._bootstrap_servers,
            "brokers": [{"node_id": node.node_id, "host": node.host, "port": node.port} for node in known.brokers],
            "ports": {str(node_id): port for node_id, port in sorted(known.ports.items())},
        }
        with owned.draft() as file:
            file.write(json.dumps(content, indent=1).encode() + b"\n")
        owned.keep_draft()


def _broker(entry: Any) -> NodeAddress:
    host = entry["host"]
    if not isinstance(host, str) or not host:
        raise ValueError(f"{host!r} is not a host")
    return NodeAddress(_between(entry["node_id"], NODE_ID_MAX), host, _port(entry["port"]))


def _port(value: Any) -> int:
    return _between(value, PORT_MAX)


def _between(value: Any, most: int) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"{value!r} is not a number up to {most}")
    return value


RETRY_S = 1.0
"""Between two attempts to bind a port that was taken, however many answers name the broker meanwhile."""

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Target:
    """The broker that a listener stands for. `node_id` None: the bootstrap listener, any broker will do."""

    node_id: int | None
    addresses: Sequence[tuple[str, int]]


@dataclass(slots=True)
class _BrokerListener:
    target: Target
    advertised: tuple[str, int]
    listeners: list[trio.SocketListener]
    scope: trio.CancelScope


@dataclass(frozen=True, slots=True)
class _Withheld:
    """A broker whose listener could not be bound."""

    node: NodeAddress
    reason: str
    again_at_s: float


_LISTEN_HINTS: Final = {
    errno.EADDRINUSE: "stop what listens there (`ss -ltnp` names it), or name another port",
    errno.EADDRNOTAVAIL: "this machine has no such address: name one of its own, or 0.0.0.0",
    errno.EACCES: "ports below 1024 take the right CAP_NET_BIND_SERVICE: grant it, or name a higher port",
    errno.EMFILE: "no open file is left: raise the limit (LimitNOFILE=, ulimit -n)",
}


async def open_listeners(address: HostPort, key: str) -> list[trio.SocketListener]:
    """Listeners at an address that a key names.

    Raises:
        OSError: it cannot be bound; the message names address and key, and what to do.
    """
    try:
        return await trio.open_tcp_listeners(address.port, host=address.host or None)  # as many wait as the system lets
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        hint = _LISTEN_HINTS.get(error.errno or 0, "check the host")
        raise OSError(f"cannot listen on {address}, which {key} names: {reason}; {hint}") from error


class _BindError(Exception):
    """A broker's listener cannot be bound; the message names address and key."""


Serve = Callable[[list[trio.SocketListener], Target], Awaitable[None]]
"""Accepts on the listeners until cancelled."""


class Book(Protocol):
    """What clients get for brokers, by listeners of this process or somebody else's. See `AddressBook`."""

    async def advertise(self, nodes: Iterable[NodeAddress]) -> dict[int, tuple[str, int]]: ...

    async def follow(self, nodes: Collection[NodeAddress]) -> None: ...

    async def retry_withheld(self) -> None: ...

    @property
    def withheld(self) -> Mapping[int, str]: ...

    @property
    def free_ports(self) -> Mapping[int, int]: ...


class AddressBook:
    """Listeners by broker.

    Args:
        nursery: the application's, where accept loops live.
        ports: what brokers were given by the last run where any free port would do.
    """

    def __init__(
        self,
        config: ProxyConfig,
        nursery: trio.Nursery,
        serve: Serve,
        *,
        readiness: Readiness,
        ports: Mapping[int, int] | None = None,
    ) -> None:
        self._config = config
        self._nursery = nursery
        self._serve = serve
        self._readiness = readiness
        self._brokers: dict[int, _BrokerListener] = {}
        self._withheld: dict[int, _Withheld] = {}
        self._free_ports = dict(ports or {})
        self._binding = trio.Lock()

    async def advertise(self, nodes: Iterable[NodeAddress]) -> dict[int, tuple[str, int]]:
        """Return what clients get for these brokers, whose listeners are bound when this returns; without those that
        are withheld."""
        told: dict[int, tuple[str, int]] = {}
        for node in nodes:
            listener = self._brokers.get(node.node_id) or await self._bind(node)
            if listener is None:
                continue
            address = (node.host, node.port)
            if listener.target.addresses[0] != address:
                _log.info("broker_moved", node=node.node_id, host=node.host, port=node.port)
                listener.target.addresses = (address,)
            told[node.node_id] = listener.advertised
        return told

    async def follow(self, nodes: Collection[NodeAddress]) -> None:
        """Keep a listener for each of these brokers, and for no other."""
        self.retire_all_but([node.node_id for node in nodes])
        await self.advertise(nodes)

    async def retry_withheld(self) -> None:
        """Try to bind what could not be bound."""
        await self.advertise([withheld.node for withheld in self._withheld.values()])

    def retire_all_but(self, node_ids: Iterable[int]) -> None:
        """Close the listeners of brokers that upstream does not name any more."""
        kept = set(node_ids)
        for node_id in self._withheld.keys() - kept:
            del self._withheld[node_id]
        self._tell_withheld()
        for node_id in self._brokers.keys() - kept:
            _log.info("broker_left", node=node_id)
            listener = self._brokers.pop(node_id)
            listener.scope.cancel()
            for each in listener.listeners:
                # Now, not when its accept loop next runs: the broker may be back, and its port wanted, before that.
                each.socket.close()

    @property
    def advertised(self) -> dict[int, tuple[str, int]]:
        """Return what clients get now, by broker."""
        return {node_id: listener.advertised for node_id, listener in self._brokers.items()}

    @property
    def withheld(self) -> Mapping[int, str]:
        """Why clients do not hear of a broker, by broker."""
        return {node_id: withheld.reason for node_id, withheld in self._withheld.items()}

    @property
    def free_ports(self) -> Mapping[int, int]:
        """The ports that brokers were given where any would do, also of those that have left."""
        return self._free_ports

    async def _bind(self, node: NodeAddress) -> _BrokerListener | None:
        async with self._binding:
            known = self._brokers.get(node.node_id)
            withheld = self._withheld.get(node.node_id)
            if known is not None or (withheld is not None and trio.current_time() < withheld.again_at_s):
                return known
            try:
                port, key = self._port_of(node.node_id)
                self._check_advertised(node.node_id)
                listeners = await self._listen(node.node_id, port, key)
            except _BindError as error:
                self._withhold(node, str(error))
                return None
            if self._withheld.pop(node.node_id, None) is not None:
                self._tell_withheld()
            bound_port = int(listeners[0].socket.getsockname()[1])
            listener = _BrokerListener(
                Target(node.node_id, ((node.host, node.port),)),
                (self.advertised_host(node.node_id), self._advertised_port(node.node_id, bound_port)),
                listeners,
                trio.CancelScope(),
            )
            self._brokers[node.node_id] = listener
            self._nursery.start_soon(self._run, listener)
            _log.info("broker_listening", node=node.node_id, host=self._config.listen.host, port=bound_port)
            return listener

    def _withhold(self, node: NodeAddress, reason: str) -> None:
        if node.node_id not in self._withheld:
            _log.error("broker_withheld", node=node.node_id, reason=reason)
        self._withheld[node.node_id] = _Withheld(node, reason, trio.current_time() + RETRY_S)
        self._tell_withheld()

    def _tell_withheld(self) -> None:
        self._readiness.tell(TroubleId.BROKER_WITHHELD, self.withheld)

    async def _listen(self, node_id: int, port: int, key: str) -> list[trio.SocketListener]:
        host = self._config.listen.host or None
        earlier_port = self._free_ports.get(node_id, 0)
        if not port and earlier_port:
            try:
                return await trio.open_tcp_listeners(earlier_port, host=host)
            except OSError:
                _log.info("broker_port_taken", node=node_id, port=earlier_port)
        try:
            listeners = await open_listeners(HostPort(self._config.listen.host, port), key)
        except OSError as error:
            raise _BindError(str(error)) from error
        if not port:
            self._free_ports[node_id] = int(listeners[0].socket.getsockname()[1])
        return listeners

    async def _run(self, listener: _BrokerListener) -> None:
        with listener.scope:
            await self._serve(listener.listeners, listener.target)

    def advertised_host(self, node_id: int) -> str:
        """`proxy.advertised.host` with its `$(nodeId)` filled in."""
        return self._config.advertised_host.replace("$(nodeId)", str(node_id))

    def _port_of(self, node_id: int) -> tuple[int, str]:
        """The port to bind, and the key that says so."""
        if node_id in self._config.broker_ports:
            return self._config.broker_ports[node_id], "proxy.broker.ports"
        if self._config.broker_port_start == 0:
            return 0, "proxy.broker.port.start"
        port = self._config.broker_port_start + node_id - self._config.broker_id_min
        if not self._config.broker_port_start <= port <= PORT_MAX:
            raise _BindError(
                f"proxy.broker.port.start {self._config.broker_port_start} and proxy.broker.id.min "
                f"{self._config.broker_id_min} give it port {port}; name its port in proxy.broker.ports"
            )
        return port, "proxy.broker.port.start"

    def _check_advertised(self, node_id: int) -> None:
        """Check before a listener is bound that what clients would get is a port."""
        start = self._config.advertised_port_start
        if start is not None and not start <= self._advertised_port(node_id, 0) <= PORT_MAX:
            raise _BindError(
                f"proxy.advertised.port.start {start} and proxy.broker.id.min "
                f"{self._config.broker_id_min} give clients port {self._advertised_port(node_id, 0)} for it"
            )

    def _advertised_port(self, node_id: int, bound_port: int) -> int:
        start = self._config.advertised_port_start
        return bound_port if start is None else start + node_id - self._config.broker_id_min


# One port for all brokers: the server name of a client's TLS handshake (SNI, RFC 6066) says which one is meant.
#
# Rule 1. Broker N is `proxy.tls.sni.pattern` with its `$(nodeId)` filled in. Names are compared without regard to case.
#         Any other name, or none, is the bootstrap's: any broker will do.
# Rule 2. A broker that upstream's metadata does not name (any more) is refused. A client may remember a name for longer
#         than we run, so brokers are known here before an answer has named them: from our own Metadata, and before that
#         from what the last run knew (proxy.connection.address_book).
# Rule 3. The newest word about a broker's address counts, be it an answer on its way to a client or our own Metadata.


_NODE_ID = re.compile("0|[1-9][0-9]{0,9}")


@dataclass(frozen=True, slots=True)
class SniPattern:
    """A host name that holds `$(nodeId)` once, as `tidegate.config.model` lets it through."""

    text: str

    def host_of(self, node_id: int) -> str:
        return self.text.replace(NODE_ID_VARIABLE, str(node_id))

    def node_id_of(self, server_name: str | None) -> int | None:
        """The broker that a name stands for; None: no broker's."""
        if server_name is None:
            return None
        before, _, after = self.text.partition(NODE_ID_VARIABLE)
        # RFC 6066 has no dot at the end; clients that were given a name with one send it nevertheless.
        found = re.fullmatch(
            f"{re.escape(before)}({_NODE_ID.pattern}){re.escape(after)}[.]?", server_name, re.IGNORECASE | re.ASCII
        )
        if found is None or int(found[1]) > NODE_ID_MAX:
            return None
        return int(found[1])


@dataclass(frozen=True, slots=True)
class _Told:
    """A broker's address in the last answer that named it, and what our own Metadata said at that time."""

    address: tuple[str, int]
    known_then: tuple[str, int] | None


class SniAddressBook:
    """What clients get, and whom a name stands for.

    Args:
        port: what clients get for every broker.
        bootstrap: for names that are no broker's.
        known_address: a broker's address by our own Metadata, None for one that it does not name.
    """

    def __init__(
        self,
        pattern: SniPattern,
        port: int,
        *,
        bootstrap: Target,
        known_address: Callable[[int], tuple[str, int] | None],
    ) -> None:
        self._pattern = pattern
        self._port = port
        self._bootstrap = bootstrap
        self._known_address = known_address
        self._told: dict[int, _Told] = {}

    async def advertise(self, nodes: Iterable[NodeAddress]) -> dict[int, tuple[str, int]]:
        """Return what clients get for these brokers; a connection made by it finds its broker when this returns."""
        advertised: dict[int, tuple[str, int]] = {}
        for node in nodes:
            before, address = self._address_of(node.node_id), (node.host, node.port)
            if before not in (None, address):
                _log.info("broker_moved", node=node.node_id, host=node.host, port=node.port)
            self._told[node.node_id] = _Told(address, self._known_address(node.node_id))
            advertised[node.node_id] = (self._pattern.host_of(node.node_id), self._port)
        return advertised

    async def follow(self, nodes: Collection[NodeAddress]) -> None:
        """Know these brokers, and no other."""
        self.retire_all_but([node.node_id for node in nodes])
        await self.advertise(nodes)

    async def retry_withheld(self) -> None:
        """No broker has a listener of its own, so none is ever withheld."""
        await trio.lowlevel.checkpoint()

    @property
    def withheld(self) -> Mapping[int, str]:
        return {}

    @property
    def free_ports(self) -> Mapping[int, int]:
        return {}

    def retire_all_but(self, node_ids: Iterable[int]) -> None:
        """Forget the brokers that upstream does not name any more."""
        for node_id in self._told.keys() - set(node_ids):
            _log.info("broker_left", node=node_id)
            del self._told[node_id]

    def target_for(self, server_name: str | None) -> Target | None:
        """Whom a client means that asked for this name; None: a broker that there is not."""
        node_id = self._pattern.node_id_of(server_name)
        if node_id is None:
            return self._bootstrap
        address = self._address_of(node_id)
        return None if address is None else Target(node_id, (address,))

    def _address_of(self, node_id: int) -> tuple[str, int] | None:
        told, known = self._told.get(node_id), self._known_address(node_id)
        # Our own Metadata has changed since: it is the newer word, also when it does not name the broker any more.
        return known if told is None or told.known_then != known else told.address


def hear_server_names(context: ssl.SSLContext) -> None:
    """Note for each connection that this context accepts the name that its client asked for."""

    def heard(connection: ssl.SSLSocket | ssl.SSLObject, server_name: str | None, _context: ssl.SSLContext) -> None:
        assert isinstance(connection, _AcceptedConnection)
        connection.asked_for = server_name

    context.sslobject_class = _AcceptedConnection
    context.sni_callback = heard


class _AcceptedConnection(ssl.SSLObject):
    """`server_hostname` is what a client asks for; on the server's side Python leaves it None."""

    asked_for: str | None = None

    @property
    def server_hostname(self) -> str | None:
        return self.asked_for
