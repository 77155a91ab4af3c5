"""How many bytes a socket certainly takes at once, so that a relay leaves the others in the socket that they came by.

Rule 1. Linux takes bytes while what it counts for a socket is below the socket's limit. It counts each byte, and
        HEAD_BYTES more for each packet. So the free bytes of SO_MEMINFO are not room: 100 KiB of them are 40 KiB of
        room for a client whose packets hold 1 KiB.
Rule 2. A packet holds a segment (TCP_MAXSEG) or more, but for the last one of a send, and for a splice, which puts at
        most PACKET_PARTS_MAX parts of the pipe into one: a pipe of PIPE_PARTS parts makes SPLICE_HEADS_BYTES more.
Rule 3. A socket keeps UNSENT_BYTES_MAX for a peer that takes nothing (TCP_NOTSENT_LOWAT). Without that limit it grows
        to 4 MiB. A few hundred such peers use up what the system has for TCP, and then it takes less from everybody.
Rule 4. An answer of the system holds until so much was sent: nobody else sends, and a peer only makes room.
Rule 5. A system that is short of memory for TCP takes less, of any socket. What one did not take is in our memory then.
        So for SHORTAGE_S no socket has room for sure, and what is passed on is passed on in small parts.
Rule 6. Another system does not say. There all is room, since nothing is spliced there.
"""

import socket as stdlib_socket
import struct
import sys
from typing import Final
from weakref import WeakSet

import trio

HEAD_BYTES: Final = 1280
"""What Linux 4.18 to 6.18 count for a packet beside its bytes, at most."""

PIPE_PARTS: Final = 256
"""Of a pipe of 1 MiB."""

PACKET_PARTS_MAX: Final = 17

SPLICE_HEADS_BYTES: Final = (PIPE_PARTS // PACKET_PARTS_MAX + 2) * HEAD_BYTES

UNSENT_BYTES_MAX: Final = 512 * 1024
"""A fast peer has them before the next splice. What is sent and not acknowledged yet is not among them."""

SHORTAGE_S: Final = 5.0

_ANY_BYTES: Final = 1 << 62

_TCP = stdlib_socket.IPPROTO_TCP
_SO_MEMINFO, _MEMINFO = 55, struct.Struct("=6I")
"""Linux: how much a socket holds, and may hold. The fourth is the limit of what is to be sent, the last what is."""

_UNSENT = struct.Struct("=144xI")
"""Linux 4.6 and later: tcpi_notsent_bytes of TCP_INFO."""


class _Shortage:
    """By trio's clock; None: none is known."""

    since_s: float | None = None


class SendRoom:
    """The room of one TCP socket. Its owner takes what it sends off `sure_bytes`, and a head for each send."""

    __slots__ = ("__weakref__", "_segment_bytes", "_socket", "sure_bytes")

    def __init__(self, sock: trio.socket.SocketType) -> None:
        self._socket = sock
        self._segment_bytes = 0
        _rooms.add(self)
        self.sure_bytes = 0 if sys.platform == "linux" else _ANY_BYTES
        """The socket takes these at once; may be negative. It may take more: `ask`."""

    def ask(self) -> None:
        """Ask the system how much there is now."""
        try:
            self.sure_bytes = self._room_bytes() if sys.platform == "linux" else _ANY_BYTES
        except OSError:
            self.sure_bytes = 0  # it is closed, or no TCP socket: the next send finds out which

    def _room_bytes(self) -> int:
        if _Shortage.since_s is not None and _is_short():
            return 0
        sock = self._socket
        memory = sock.getsockopt(stdlib_socket.SOL_SOCKET, _SO_MEMINFO, _MEMINFO.size)
        _received, _receive, _sent, limit_bytes, _ahead, counted_bytes = _MEMINFO.unpack(memory)
        self._segment_bytes = self._segment_bytes or sock.getsockopt(_TCP, stdlib_socket.TCP_MAXSEG)
        unsent_bytes: int = counted_bytes  # no more than that
        if unsent_bytes:
            (unsent_bytes,) = _UNSENT.unpack(sock.getsockopt(_TCP, stdlib_socket.TCP_INFO, _UNSENT.size))
        free_bytes: int = limit_bytes - counted_bytes - SPLICE_HEADS_BYTES
        sure_bytes = free_bytes * self._segment_bytes // (self._segment_bytes + HEAD_BYTES)
        return min(sure_bytes, UNSENT_BYTES_MAX - unsent_bytes)


_rooms: WeakSet[SendRoom] = WeakSet()


def on_refused() -> None:
    """Note that a socket took less than what was sure (rule 5)."""
    _Shortage.since_s = trio.current_time()
    for room in _rooms:
        room.sure_bytes = min(0, room.sure_bytes)


def _is_short() -> bool:
    assert _Shortage.since_s is not None
    if 0 <= trio.current_time() - _Shortage.since_s < SHORTAGE_S:
        return True
    _Shortage.since_s = None  # over, or of an event loop that has ended
    return False
