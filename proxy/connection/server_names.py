"""One port for all brokers: the server name of a client's TLS handshake (SNI, RFC 6066) says which one is meant.

Rule 1. Broker N is `proxy.tls.sni.pattern` with its `$(nodeId)` filled in. Names are compared without regard to case.
        Any other name, or none, is the bootstrap's: any broker will do.
Rule 2. A broker that upstream's metadata does not name (any more) is refused. A client may remember a name for longer
        than we run, so brokers are known here before an answer has named them: from our own Metadata, and before that
        from what the last run knew (proxy.connection.address_book).
Rule 3. The newest word about a broker's address counts, be it an answer on its way to a client or our own Metadata.
"""

import re
import ssl
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

import structlog
import trio

from protocol.wire.addresses import NodeAddress
from proxy.connection.address_book import Target
from proxy.settings import NODE_ID_MAX, NODE_ID_VARIABLE

_log = structlog.get_logger(__name__)

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
