"""Whose a connection is: its own address, or the one that a trusted balancer's PROXY header names.

Only a header of a balancer's counts, since any client could write one. It is taken from the socket to the byte,
by looking at what has come (MSG_PEEK) before it is received, so that TLS or Kafka's first frame is whole behind it.
"""

import errno
import os
import socket as stdlib_socket
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address

import structlog
import trio

from metrics.meters import RelayMeter
from protocol.wire.errors import PeerProtocolError
from protocol.wire.proxy_header import ProxyHeader, ProxyHeaderDecoder
from proxy.connection.spells import Spells
from proxy.settings import Network
from proxy.upstream.transport import address_name, peer_name_of

_log = structlog.get_logger(__name__)

HEADER_S_MAX = 5.0
"""A balancer sends its header before anything else, without being asked."""

_PEEK_BYTES = 2048


ACCEPTED_AT_ONCE_MAX = 32

BEGUN_AND_ENDED_MAX = 16
"""In one turn of the loop: each costs half a millisecond or so, and everybody else waits some turns for an answer."""

TURN_S = 0.01
"""A turn that took longer lets fewer through next time."""


ACCEPT_AGAIN_S = 0.1
NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
"""The process, or the machine, has no open file left, or no memory for one."""


class CrowdListener(trio.abc.Listener[trio.SocketStream]):
    """A listener that accepts up to ACCEPTED_AT_ONCE_MAX connections in one turn of the loop. Owns `listener`.

    One a turn would do, but in a crowd turns are long, and a newcomer would wait one for each that came before it.

    Args:
        make_room: called when the process has no open file left; returns whether there may be one now. If not, it is
            asked again each ACCEPT_AGAIN_S.
    """

    def __init__(self, listener: trio.SocketListener, make_room: Callable[[OSError], bool]) -> None:
        self._listener = listener
        self._make_room = make_room
        self._further = stdlib_socket.socket(fileno=os.dup(listener.socket.fileno()))  # it does not block either
        self._accepted: deque[trio.SocketStream] = deque()

    async def accept(self) -> trio.SocketStream:
        """The next connection. A checkpoint only where none has been accepted yet."""
        if not self._accepted:
            self._accepted.append(await self._next())
            with suppress(OSError):  # there are no more; or what is wrong is said by the turn that waits
                while len(self._accepted) < ACCEPTED_AT_ONCE_MAX:
                    sock, _ = self._further.accept()
                    self._accepted.append(trio.SocketStream(trio.socket.from_stdlib_socket(sock)))
        return self._accepted.popleft()

    async def _next(self) -> trio.SocketStream:
        while True:
            try:
                return await self._listener.accept()
            except OSError as error:
                if error.errno not in NO_ROOM:
                    raise
                has_room = self._make_room(error)
            if not has_room:
                await trio.sleep(ACCEPT_AGAIN_S)

    async def aclose(self) -> None:
        self._further.close()
        await self._listener.aclose()


def tell_no_room(spells: Spells, meter: RelayMeter, error: OSError) -> bool:
    """Count a client that is not accepted, and log it once a spell; False: it waits."""
    meter.on_not_accepted()
    if spells.begins(error.errno):
        reason = f"{error.strerror}: raise the limit (LimitNOFILE=, ulimit -n) or lower the key"
        _log.error("connections_not_accepted", reason=reason, key="proxy.connections.max")
    return False


class Turns:
    """Lets BEGUN_AND_ENDED_MAX or fewer through in one turn of the loop; others wait, in order. `run` must be running.

    When a broker restarts, or a host with many clients, all their connections end in the same turn. Without this that
    turn, and the next ones, took as long as all of them together.
    """

    def __init__(self) -> None:
        self._waiting = trio.lowlevel.ParkingLot()
        self._more = trio.Event()

    async def wait(self) -> None:
        """Return when it is the caller's turn."""
        self._more.set()
        await self._waiting.park()

    async def run(self) -> None:
        """Let them through, for ever."""
        count = BEGUN_AND_ENDED_MAX
        while True:
            await self._more.wait()
            self._more = trio.Event()
            while self._waiting:
                self._waiting.unpark(count=count)
                began_s = trio.current_time()
                await trio.lowlevel.checkpoint()
                is_long = trio.current_time() - began_s > TURN_S
                count = max(1, count // 2) if is_long else min(BEGUN_AND_ENDED_MAX, count + 1)


class UntrustedPeerError(Exception):
    """A connection that is to begin with a PROXY header, from an address that may not send one."""


@dataclass(frozen=True, slots=True)
class ClientAddress:
    """`host` is what limits count; `name`, with the port, is for messages."""

    host: str
    name: str


def own_address(sock: trio.socket.SocketType) -> ClientAddress:
    """The address at the other end of the connection itself."""
    try:
        peer = sock.getpeername()
    except OSError:
        peer = None  # it has gone already
    host = str(peer[0]) if isinstance(peer, tuple) and len(peer) >= 2 else ""
    return ClientAddress(str(_plain(host) or host), peer_name_of(sock))


async def original_address(sock: trio.socket.SocketType, trusted: Sequence[Network]) -> ClientAddress | None:
    """The address that the connection's PROXY header names, and its own one if that names none.

    None: it ended before the first byte, as balancers' health checks do.

    Raises:
        UntrustedPeerError: it does not come from one of these networks; nothing was read.
        PeerProtocolError: it begins with something else, or with nothing in time.
        OSError: it broke.
    """
    own = own_address(sock)
    host = _plain(own.host)
    if host is None or not any(host in network for network in trusted):
        raise UntrustedPeerError(own.name)
    try:
        with trio.fail_after(HEADER_S_MAX):
            header = await _read_header(sock)
    except trio.TooSlowError:
        raise PeerProtocolError(f"no PROXY header within {HEADER_S_MAX:g} s") from None
    if header is None or header.source is None:
        return None if header is None else own
    source_host, port = header.source
    source_host = str(_plain(source_host) or source_host)
    return ClientAddress(source_host, address_name(source_host, port))


async def _read_header(sock: trio.socket.SocketType) -> ProxyHeader | None:
    decoder = ProxyHeaderDecoder()
    while decoder.header is None:
        seen = await sock.recv(_PEEK_BYTES, stdlib_socket.MSG_PEEK)
        if not seen:
            if decoder.taken_bytes:
                raise PeerProtocolError("the connection ended inside a PROXY header")
            return None
        left = decoder.feed(seen)
        while left:
            left -= len(await sock.recv(left))
    return decoder.header


def _plain(host: str) -> IPv4Address | IPv6Address | None:
    """The address, an IPv4 one that a listener of both kinds shows as IPv6 as what it is; None: it is none."""
    try:
        address = ip_address(host)
    except ValueError:
        return None
    return address.ipv4_mapped or address if isinstance(address, IPv6Address) else address
