"""How many bytes a socket certainly takes at once, so that a relay leaves the others in the socket that they came by.

Rule 1. Linux takes bytes while what it counts for a socket is below the socket's limit. It counts each byte, and
        HEAD_BYTES more for each packet. So the free bytes of SO_MEMINFO are not room: 100 KiB of them are 40 KiB of
        room for a client whose packets hold 1 KiB.
Rule 2. A packet holds a segment (TCP_MAXSEG) or more, but for the last one of a send, and for a splice, which puts at
        most PACKET_PARTS_MAX parts of the pipe into one: a pipe of PIPE_PARTS parts makes SPLICE_HEADS_BYTES more.
Rule 3. An answer of the system holds until so much was sent: nobody else sends, and a peer only makes room.
Rule 4. The system lets a socket keep up to 4 MiB that its peer does not take, and as many unread bytes of the socket
        they come by. Some hundred such pairs use up what it has for TCP, and then all connections stand. So a peer that
        has not taken PROOF_BYTES yet gets no more than those in advance, and the source keeps its first buffer.
Rule 5. A system that is short of memory for TCP takes less, of any socket. What one did not take is in our memory then.
        So for SHORTAGE_S no socket has room for sure, and what is passed on is passed on in small parts.
Rule 6. Another system than Linux does not say. There all is room, since nothing is spliced there.
"""

import socket as stdlib_socket
import struct
import sys
from contextlib import suppress
from typing import Final
from weakref import WeakSet

import trio

HEAD_BYTES: Final = 1280
"""Linux 6.18 counts no more for a packet beside its bytes. `test_a_socket_takes_what_is_sure` tries the kernel that it
runs on. Rule 5 holds for one that counts more."""

PIPE_PARTS: Final = 256
"""A pipe of 1 MiB has so many."""

PACKET_PARTS_MAX: Final = 17

SPLICE_HEADS_BYTES: Final = (PIPE_PARTS // PACKET_PARTS_MAX + 2) * HEAD_BYTES

PROOF_BYTES: Final = 128 * 1024

UNKNOWN_BYTES: Final = 64 * 1024
"""For a system that does not say: the least that is worth a splice."""

SHORTAGE_S: Final = 5.0

_ANY_BYTES: Final = 1 << 62

_TCP = stdlib_socket.IPPROTO_TCP
_SO_MEMINFO, _MEMINFO = 55, struct.Struct("=6I")
"""Linux: how much a socket holds, and may hold. The fourth is the limit of what is to be sent, the last what is."""

_TCP_INFO = struct.Struct("=120xQ16xI")
"""Linux 4.6 and later, of TCP_INFO: tcpi_bytes_acked and tcpi_notsent_bytes."""

_SO_BUF_LOCK, _RECEIVE_BUFFER = 72, 2
"""Linux 5.15 and later: which buffers keep their size."""


class _Shortage:
    """By trio's clock; None: none is known."""

    since_s: float | None = None


class SendRoom:
    """The room of one TCP socket. Its owner takes what it sends off `sure_bytes`, and a head for each send.

    Args:
        sock: None: something that is no socket, and has endless room.
    """

    __slots__ = ("__weakref__", "_is_limited", "_is_proven", "_segment_bytes", "_socket", "_source", "sure_bytes")

    def __init__(self, sock: trio.socket.SocketType | None) -> None:
        self._socket = sock if sys.platform == "linux" else None
        self._source: SendRoom | None = None
        self._segment_bytes = 0
        self._is_proven = False
        """The peer has taken PROOF_BYTES."""
        self._is_limited = False
        """The system counts a socket with PROOF_BYTES unsent as full."""
        self.sure_bytes = _ANY_BYTES if self._socket is None else 0
        """The socket takes these at once; may be negative. It may take more: `ask`."""
        if self._socket is not None:
            _rooms.add(self)

    def fill_from(self, source: "SendRoom") -> None:
        """From now on what comes by another socket is passed on to this one (rule 4)."""
        self._source = source
        source.lock_unread(_RECEIVE_BUFFER)

    def lock_unread(self, buffers: int) -> None:
        """Let the system keep no more of what is unread than now, or what it sees fit."""
        if self._socket is not None:
            with suppress(OSError):  # an older kernel; or the socket has broken, as its next call finds out
                self._socket.setsockopt(stdlib_socket.SOL_SOCKET, _SO_BUF_LOCK, buffers)

    def ask(self) -> None:
        """Ask the system how much there is now."""
        if self._socket is not None:
            try:
                self.sure_bytes = self._room_bytes(self._socket)
            except (OSError, struct.error):
                # It is closed, as the next send finds out; or this Linux is emulated, and lacks the question.
                self.sure_bytes = UNKNOWN_BYTES

    def limit_unsent(self) -> None:
        """Before a wait until the socket takes bytes: for a peer that may take nothing it is full with PROOF_BYTES."""
        if self._socket is not None and not self._is_proven and not self._is_limited:
            self._is_limited = True
            with suppress(OSError):  # it has broken, as the wait finds out
                self._socket.setsockopt(_TCP, stdlib_socket.TCP_NOTSENT_LOWAT, PROOF_BYTES)

    def _room_bytes(self, sock: trio.socket.SocketType) -> int:
        if _Shortage.since_s is not None and _is_short():
            return 0
        memory = sock.getsockopt(stdlib_socket.SOL_SOCKET, _SO_MEMINFO, _MEMINFO.size)
        _received, _receive, _sent, limit_bytes, _ahead, counted_bytes = _MEMINFO.unpack(memory)
        in_advance_bytes = _ANY_BYTES if self._is_proven else self._in_advance_bytes(sock)
        free_bytes: int = limit_bytes - counted_bytes - SPLICE_HEADS_BYTES
        return min(free_bytes * self._segment_bytes // (self._segment_bytes + HEAD_BYTES), in_advance_bytes)

    def _in_advance_bytes(self, sock: trio.socket.SocketType) -> int:
        """Return how much more a peer gets that may take nothing."""
        self._segment_bytes = sock.getsockopt(_TCP, stdlib_socket.TCP_MAXSEG)
        taken_bytes, unsent_bytes = _TCP_INFO.unpack(sock.getsockopt(_TCP, stdlib_socket.TCP_INFO, _TCP_INFO.size))
        if taken_bytes < PROOF_BYTES:
            return PROOF_BYTES - int(unsent_bytes)
        self._is_proven = True
        if self._is_limited:
            sock.setsockopt(_TCP, stdlib_socket.TCP_NOTSENT_LOWAT, 0)  # the system's own value again
        if self._source is not None:
            self._source.lock_unread(0)
        return _ANY_BYTES


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
