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
import os
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import structlog
import trio

from metrics.troubles import TroubleId
from protocol.wire.addresses import NodeAddress
from proxy.connection.brokers_file import PORT_MAX
from proxy.readiness import Readiness
from proxy.settings import ProxyConfig
from storage.config.model import HostPort

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
