"""Accepting clients: a connection is paired with one to the broker that its listener, or its server name, stands for.

Rule 1. `proxy.connection.slots` says who gets one of `proxy.connections.max` slots and who goes for a newcomer; a
        connection that gets none is closed at once, counted and logged once a spell.
Rule 2. TLS towards clients is finished, and upstream reached, within time limits of their own
        (`proxy.connection.upstream_connect`).
Rule 3. Connections live in a nursery of the server's: `drain` closes the listeners, ends what has no request yet, and
        lets each connection answer what it has begun.
Rule 4. `settings` may be replaced at any time: each connection has those of the moment in which it was accepted, and
        limits on slots count at once.
Rule 5. With `proxy.protocol` a connection has no slot until its PROXY header is read: limits count the client's
        address, not the balancer's. How many such ones there are is bounded, and how long.
"""

import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import cast

import structlog
import trio

from metrics.meters import CloseCause, HandshakeOutcome, RefusalReason, RelayMeter
from protocol.client.errors import TransportError, UpstreamError
from protocol.sign_in_name import TLS_MECHANISM, SignInName, shown_name
from protocol.wire.errors import PeerProtocolError
from proxy.connection.accounts import Accounts
from proxy.connection.address_book import Target
from proxy.connection.audit import Audit
from proxy.connection.client_reads import ClientReads
from proxy.connection.connection import Advertiser, ClientConnection, ConnectionLimits
from proxy.connection.handshakes import Handshakes, outcome_of
from proxy.connection.names import Groups
from proxy.connection.peer_address import (
    ClientAddress,
    CrowdListener,
    Turns,
    UntrustedPeerError,
    original_address,
    own_address,
    tell_no_room,
)
from proxy.connection.request_handlers import RequestHandlers
from proxy.connection.slots import LOOK_S, Slot, SlotLimits, Slots
from proxy.connection.spells import Spells
from proxy.connection.upstream_connect import UpstreamConnector, has_gone, has_left
from proxy.settings import Network
from proxy.upstream.transport import TlsTransport, Transport, address_name, plain_transport, tls_server_transport
from storage.tasks import TaskNursery

HANDSHAKE_S_MAX = 10.0
"""For a client's TLS handshake."""

HEADERS_AWAITED_MAX = 1024
"""Connections whose PROXY header is not yet there: a balancer sends it with its first packet."""

SIGN_INS_TOLD_EVERY_S = 10.0
"""A client with a wrong password comes again at once; its line says how many were refused since the one before."""

TargetFor = Callable[[str | None], Target | None]
"""Whom a client means by the server name of its TLS handshake; None: a broker that there is not."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """`client_tls`: our certificate towards clients; None: plaintext. `connect_wait_s_max`: while no broker answers."""

    limits: ConnectionLimits
    slots: SlotLimits
    client_tls: ssl.SSLContext | None
    connect_wait_s_max: float = 0.0


class Server:
    """All client connections.

    Args:
        node_at: names the broker at an upstream address, if it is known.
        upstream_tls: how brokers are reached; None: plaintext.
        known_brokers: the brokers' addresses now.
        proxy_trusted: whose connections begin with a PROXY header, and no others are taken; None: no header is.
        groups: what clients are called, and tell of their groups; None: nobody wants to know.
        audit: hears who reads what of the tier; None: nobody wants to know.
    """

    def __init__(
        self,
        settings: ServerSettings,
        nursery: TaskNursery,
        *,
        handlers: Callable[[ClientReads], RequestHandlers],
        accounts: Accounts,
        node_at: Callable[[str, int], int | None],
        meter: RelayMeter,
        upstream_tls: ssl.SSLContext | None = None,
        known_brokers: Callable[[], Iterable[tuple[str, int]]] = tuple,
        proxy_trusted: Sequence[Network] | None = None,
        groups: Groups | None = None,
        audit: Audit | None = None,
    ) -> None:
        self.addresses: Advertiser | None = None
        """Set once, before the first accept: the book needs the server's accept loop, the server the book."""
        self.settings = settings
        self._nursery = nursery
        self._handlers = handlers
        self._accounts = accounts
        self._node_at = node_at
        self._meter = meter
        self._connector = UpstreamConnector(upstream_tls, known_brokers, meter)
        self._connections: dict[ClientConnection, None] = {}
        self._unbegun: set[trio.CancelScope] = set()
        """Accept loops, handshakes and waits for upstream: what a drain cuts short."""
        self._proxy_trusted = proxy_trusted
        self._groups = groups
        self._audit = audit
        self._headers_awaited = 0
        self._turns = Turns()
        nursery.start_soon(self._turns.run)
        self._spells = Spells(trio.current_time)
        self._slots = Slots(settings.slots, trio.current_time, self._spells)
        self.handshakes = Handshakes(meter)
        self._accepted = 0
        self._sign_ins_refused = 0
        self._sign_ins_told_s = -SIGN_INS_TOLD_EVERY_S
        self._draining = False
        self._left = trio.Event()

    @property
    def connections(self) -> int:
        return self._accepted

    @property
    def groups(self) -> Groups | None:
        """Return what clients tell of their groups, if anybody wants to know."""
        return self._groups

    @property
    def slots(self) -> Slots:
        """Who has which of `proxy.connections.max`."""
        return self._slots

    @property
    def accounts(self) -> Accounts:
        """Return what is held in memory for each connection."""
        return self._accounts

    async def serve(self, listeners: Sequence[trio.SocketListener], target: Target) -> None:
        """Accept until cancelled, or drained."""
        await self.serve_by_name(listeners, lambda _server_name: target)

    async def serve_by_name(self, listeners: Sequence[trio.SocketListener], target_for: TargetFor) -> None:
        """Accept until cancelled, or drained; each client's target is asked for when its TLS handshake is done."""

        async def handle(stream: trio.SocketStream) -> None:
            await self._handle(stream.socket, target_for)

        with self._cut_by_drain():
            # trio's own loop: it closes the listeners when it is cancelled. A connection lives in our nursery, as it
            # outlives its listener.
            no_room = partial(tell_no_room, self._spells, self._meter)
            crowds = [CrowdListener(listener, no_room) for listener in listeners]
            await trio.serve_listeners(handle, crowds, handler_nursery=cast(trio.Nursery, self._nursery))

    def take(self, sock: trio.socket.SocketType, target_for: TargetFor, on_end: Callable[[], None]) -> None:
        """Serve a connection that somebody else accepted; `on_end` is called when it has ended."""

        async def handle() -> None:
            try:
                await self._handle(sock, target_for)
            finally:
                on_end()

        self._nursery.start_soon(handle)

    def drain(self) -> None:
        """Close the listeners, and have every connection end once it has answered what it began."""
        self._draining = True
        for scope in self._unbegun:
            scope.cancel()
        for connection in tuple(self._connections):
            connection.drain()

    async def watch(self) -> None:
        """Close connections that idle, or whose clients have gone, until cancelled (`proxy.connection.slots`)."""
        while True:
            await trio.sleep(LOOK_S)
            self._slots.limits = self.settings.slots
            for _ in self._slots.look_round():
                await trio.lowlevel.checkpoint()

    async def wait_empty(self) -> None:
        """Return once no connection is left."""
        while self._accepted:
            await self._left.wait()

    async def _handle(self, sock: trio.socket.SocketType, target_for: TargetFor) -> None:
        await self._turns.wait()
        if has_gone(sock):  # while it waited, with many others perhaps
            sock.close()
            return
        client = await self._client_address(sock)
        if client is None or self._draining:
            sock.close()
            return
        scope = trio.CancelScope()
        closed_for: CloseCause | None = None

        def close(cause: CloseCause) -> None:
            nonlocal closed_for
            closed_for = cause
            scope.cancel()

        self._slots.limits = self.settings.slots
        slot = self._slots.take(client.host, close, lambda: has_left(sock))
        if isinstance(slot, RefusalReason):
            self._refuse(sock, slot, client.name)
            return
        self._accepted += 1
        self._meter.on_connection_accepted()
        cause = CloseCause.DRAIN  # also when all is stopped at once
        try:
            with scope:
                cause = await self._serve_client(sock, client, slot, target_for)
        except Exception as error:
            # One connection's fault is not the process's (docs/protocol.md#malformed-frames).
            cause = CloseCause.FAULT
            _log.error("connection_fault", exc_info=error)
        finally:
            if scope.cancelled_caught and closed_for is not None:
                cause = closed_for
                _log.debug("connection_closed", client=client.name, cause=cause.value)
            self._slots.release(slot)
            self._accepted -= 1
            self._left.set()
            self._left = trio.Event()
            self._meter.on_connection_closed(cause)

    async def _client_address(self, sock: trio.socket.SocketType) -> ClientAddress | None:
        """Whose the connection is; None: it is not to be served."""
        if self._proxy_trusted is None:
            return own_address(sock)
        if self._headers_awaited >= HEADERS_AWAITED_MAX:
            self._refuse(sock, RefusalReason.PROXY_HEADER, own_address(sock).name, "too many have sent none yet")
            return None
        self._headers_awaited += 1
        try:
            with self._cut_by_drain():
                return await original_address(sock, self._proxy_trusted)
        except UntrustedPeerError as error:
            self._refuse(sock, RefusalReason.PROXY_UNTRUSTED, str(error))
        except (PeerProtocolError, OSError) as error:
            self._refuse(sock, RefusalReason.PROXY_HEADER, own_address(sock).name, str(error))
        finally:
            self._headers_awaited -= 1
        return None

    def _refuse(self, sock: trio.socket.SocketType, reason: RefusalReason, client: str, detail: str = "") -> None:
        sock.close()
        if self._draining:
            return
        self._meter.on_connection_refused(reason)
        if self._spells.begins(reason):
            event, key, usual_detail = REFUSALS[reason]
            _log.warning(event, client=client, detail=detail or usual_detail, key=key, connections=self._accepted)

    async def _serve_client(
        self, sock: trio.socket.SocketType, address: ClientAddress, slot: Slot, target_for: TargetFor
    ) -> CloseCause:
        settings = self.settings
        with self._cut_by_drain() as greeting:
            try:
                client, server_name = await _client_transport(sock, settings.client_tls, address.name)
            except TransportError as error:
                self.handshakes.note(outcome := outcome_of(error))
                _log.info("client_handshake_failed", outcome=outcome.value, reason=str(error))
                return CloseCause.CLIENT
        if greeting.cancelled_caught:
            return CloseCause.DRAIN
        if settings.client_tls is not None:
            self.handshakes.note(HandshakeOutcome.OK)
        target = target_for(server_name)
        if target is None:
            say = _log.warning if self._spells.begins("broker_unknown") else _log.debug
            say("broker_unknown", client=client.peer_name, server_name=server_name)
            await client.aclose()
            return CloseCause.UPSTREAM_UNREACHABLE
        if not settings.limits.demands_sign_in:  # it keeps its slot while it waits for its broker
            self._slots.on_signed_in(slot)
        try:
            with self._cut_by_drain() as connecting:
                upstream, upstream_address = await self._connector.open(
                    target, wait_s_max=settings.connect_wait_s_max, has_left=lambda: has_left(sock)
                )
        except UpstreamError as error:
            say = _log.warning if self._spells.begins(("unreachable", target.node_id)) else _log.debug
            say("upstream_unreachable", client=client.peer_name, node=target.node_id, reason=str(error))
            await client.aclose()
            return CloseCause.UPSTREAM_UNREACHABLE
        except BaseException:
            client.abort()
            raise
        if connecting.cancelled_caught:
            await client.aclose()
            return CloseCause.DRAIN
        assert self.addresses is not None
        node_id = target.node_id if target.node_id is not None else self._node_at(*upstream_address)
        connection = ClientConnection(
            client,
            upstream,
            node_id=node_id,
            limits=settings.limits,
            addresses=self.addresses,
            handlers=self._handlers,
            accounts=self._accounts,
            meter=self._meter,
            on_signed_in=lambda: self._slots.on_signed_in(slot),
            on_sign_in_refused=self._on_sign_in_refused,
            groups=self._groups,
            audit=self._audit,
            certified_as=None if self._groups is None else _certified_as(client),
            is_news=lambda cause, host: self._spells.begins((cause, host)),
            turn_to_end=self._turns.wait,
        )
        slot.occupant, slot.broker = connection, address_name(*upstream_address)
        self._connections[connection] = None
        if self._draining:
            connection.drain()
        try:
            return await connection.run()
        finally:
            del self._connections[connection]

    def _on_sign_in_refused(self, reason: str, who: Mapping[str, object]) -> None:
        self._sign_ins_refused += 1
        now_s = trio.current_time()
        if now_s >= self._sign_ins_told_s + SIGN_INS_TOLD_EVERY_S:
            _log.warning("client_sign_in_refused", **who, reason=reason, refused=self._sign_ins_refused)
            self._sign_ins_refused, self._sign_ins_told_s = 0, now_s

    @contextmanager
    def _cut_by_drain(self) -> Iterator[trio.CancelScope]:
        with trio.CancelScope() as scope:
            if self._draining:
                scope.cancel()
            self._unbegun.add(scope)
            try:
                yield scope
            finally:
                self._unbegun.discard(scope)


def _certified_as(client: Transport) -> SignInName | None:
    subject = client.peer_subject if isinstance(client, TlsTransport) else None
    return None if subject is None else SignInName(TLS_MECHANISM, shown_name(subject))


REFUSALS = {
    RefusalReason.FULL: ("connections_full", "proxy.connections.max", "all slots are taken"),
    RefusalReason.ADDRESS_CONNECTIONS: (
        "connection_refused",
        "proxy.connections.max.per.ip",
        "its address has as many connections as it may",
    ),
    RefusalReason.ADDRESS_RATE: (
        "connection_refused",
        "proxy.connections.rate.per.ip",
        "its address connects too often",
    ),
    RefusalReason.PROXY_UNTRUSTED: (
        "connection_refused",
        "proxy.protocol.trusted",
        "the key does not name its address, so no PROXY header is taken from it",
    ),
    RefusalReason.PROXY_HEADER: ("connection_refused", "proxy.protocol", "it began with no PROXY header"),
}
"""By reason: log line, key that the operator looks at, and what is said where nothing more is known."""


async def _client_transport(
    sock: trio.socket.SocketType, tls: ssl.SSLContext | None, name: str
) -> tuple[Transport, str | None]:
    """The client's transport, and the server name that it asked for."""
    if tls is None:
        return plain_transport(sock, name), None
    try:
        with trio.fail_after(HANDSHAKE_S_MAX):
            client = await tls_server_transport(sock, tls, name)
            return client, client.server_name
    except trio.TooSlowError as error:
        raise TransportError(f"no TLS handshake within {HANDSHAKE_S_MAX} s") from error
