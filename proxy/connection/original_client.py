"""Whose a connection is: its own address, or the one that a trusted balancer's PROXY header names.

Only a header of a balancer's counts, since whoever connects could write one. It is taken from the socket to the byte,
by looking at what has come (MSG_PEEK) before it is received, so that TLS or Kafka's first frame is whole behind it.
"""

import socket as stdlib_socket
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address

import trio

from protocol.wire.errors import PeerProtocolError
from protocol.wire.proxy_header import ProxyHeader, ProxyHeaderDecoder
from proxy.config.model import Network
from proxy.upstream.transport import address_name, peer_name_of

HEADER_S_MAX = 5.0
"""A balancer sends its header before anything else, without being asked."""

_PEEK_BYTES = 2048


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
