"""A process that speaks TLS for another one, which then sees plain sockets (`tls`). It imports nothing of ours.

TLS gives one record of at most 16 KiB a call, and each call takes the interpreter's lock again: threads beside a busy
event loop spend more time in line for it than on the bytes. Here one thread does nothing else.

Its argument is the descriptor of a socket that brings one message for each connection: `Wanted` as JSON, with two
descriptors: an open TCP connection, and one end of a pair of sockets. The other end hears DONE when the handshake is
done, or why it failed; from then on what the peer says, and its end. The process ends when nobody can send it messages.
"""

import json
import os
import select
import signal
import socket
import ssl
import sys
from contextlib import suppress
from dataclasses import dataclass, replace

DONE = b"+"

PIECE_BYTES = 256 * 1024
"""So much is decrypted before it is sent on: one system call of each side for sixteen records. While the other side
takes nothing more, as much waits here for each connection."""

RECORD_BYTES_MAX = 16 * 1024
"""A record holds no more plaintext (RFC 8446 §5.1). Where so much room is left, a call takes a record whole, and
nothing stays in OpenSSL's own buffer, which no poll sees."""

MESSAGE_BYTES_MAX = 64 * 1024

_NOTHING = memoryview(b"")


@dataclass(frozen=True, slots=True)
class Wanted:
    """How TLS is wanted. Where no authority is named, the system's are believed."""

    host: str | None
    verifies: bool = True
    ca_file: str | None = None
    ca_folder: str | None = None
    ca_text: str | None = None

    def context(self) -> ssl.SSLContext:
        """As urllib3 makes one.

        Raises:
            OSError: an authority's file cannot be read.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.hostname_checks_common_name = False
        context.set_alpn_protocols(["http/1.1"])
        if not self.verifies:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        elif self.ca_file or self.ca_folder or self.ca_text:
            context.load_verify_locations(self.ca_file, self.ca_folder, self.ca_text)
        else:
            context.load_default_certs()
        return context


class Way:
    """One connection. A side that takes nothing more stops the other.

    Args:
        piece: of PIECE_BYTES; all ways have the same.
    """

    def __init__(self, tls: ssl.SSLSocket, plain: socket.socket, piece: memoryview) -> None:
        self.sides: dict[socket.socket, int] = {tls: select.EPOLLIN, plain: select.EPOLLIN}
        """Each with what it is watched for."""
        self._tls = tls
        self._plain = plain
        self._piece = piece
        self._is_open = self._has_ended = False
        self._up = self._down = _NOTHING
        """What was received and not sent on."""

    def go_on(self) -> bool:
        """Move what can be moved now; False: it has ended."""
        try:
            if self._is_open or self._shakes_hands():
                self._send_up()
                self._send_down()
                self.sides[self._tls] = (0 if self._down else select.EPOLLIN) | (select.EPOLLOUT if self._up else 0)
                self.sides[self._plain] = (0 if self._up else select.EPOLLIN) | (select.EPOLLOUT if self._down else 0)
        except (OSError, EOFError) as error:
            if not self._is_open:
                refuse(self._plain, error)
            return False
        return True

    def _shakes_hands(self) -> bool:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self.sides[self._tls] = select.EPOLLIN
        except ssl.SSLWantWriteError:
            self.sides[self._tls] = select.EPOLLOUT
        else:
            self._plain.send(DONE)
            self._is_open = True
        return self._is_open

    def _send_up(self) -> None:
        with suppress(BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            if not self._up:
                self._up = memoryview(self._plain.recv(PIECE_BYTES))
                if not self._up:
                    raise EOFError
            self._up = self._up[self._tls.send(self._up) :]

    def _send_down(self) -> None:
        if not self._down:
            self._down = self._piece[: self._decrypted()]
        with suppress(BlockingIOError):
            self._down = self._down[self._plain.send(self._down) :] if self._down else _NOTHING
        if self._down:
            self._down = memoryview(bytes(self._down))
        elif self._has_ended:
            raise EOFError

    def _decrypted(self) -> int:
        count = 0
        with suppress(ssl.SSLWantReadError, ssl.SSLWantWriteError):
            while count <= PIECE_BYTES - RECORD_BYTES_MAX and not self._has_ended:
                received = self._tls.recv_into(self._piece[count:])
                self._has_ended = not received
                count += received
        return count


def refuse(plain: socket.socket, error: Exception) -> None:
    """Say why there is no connection: the class of the error by its module and name, and its words."""
    with suppress(OSError):
        plain.send(json.dumps([type(error).__name__, str(error)]).encode())


class Ways:
    """All connections."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._epoll = select.epoll()
        self._epoll.register(control, select.EPOLLIN)
        self._by_fd: dict[int, Way] = {}
        self._watched: dict[int, int] = {}
        self._kept: tuple[object, ssl.SSLContext] | None = None
        self._piece = memoryview(bytearray(PIECE_BYTES))

    def serve(self) -> None:
        """Until nobody can send messages."""
        while True:
            for fd, _ in self._epoll.poll():
                if fd == self._control.fileno():
                    message, fds, *_ = socket.recv_fds(self._control, MESSAGE_BYTES_MAX, 2)
                    if not message:
                        return
                    self._begin(Wanted(**json.loads(message)), *(socket.socket(fileno=each) for each in fds))
                elif fd in self._by_fd:
                    self._go_on(self._by_fd[fd])

    def _begin(self, wanted: Wanted, tcp: socket.socket, plain: socket.socket) -> None:
        try:
            tls = self._context(wanted).wrap_socket(tcp, server_hostname=wanted.host, do_handshake_on_connect=False)
        except (OSError, ValueError) as error:
            refuse(plain, error)
            tcp.close()
            plain.close()
            return
        way = Way(tls, plain, self._piece)
        for side in way.sides:
            side.setblocking(False)
            self._by_fd[side.fileno()] = way
        self._go_on(way)

    def _context(self, wanted: Wanted) -> ssl.SSLContext:
        """One for all connections that want the same, as long as its authorities' file is the same."""
        stat = os.stat(wanted.ca_file) if wanted.ca_file else None
        key = replace(wanted, host=None), stat and (stat.st_ino, stat.st_size, stat.st_mtime_ns)
        if self._kept is None or self._kept[0] != key:
            self._kept = key, wanted.context()
        return self._kept[1]

    def _go_on(self, way: Way) -> None:
        is_open = way.go_on()
        for side, wanted in way.sides.items():
            self._watch(side.fileno(), wanted if is_open else 0)
            if not is_open:
                del self._by_fd[side.fileno()]
                side.close()

    def _watch(self, fd: int, wanted: int) -> None:
        """One that is watched for nothing is not watched at all: it would still tell of its end, over and over."""
        known = self._watched.pop(fd, 0)
        if wanted:
            self._watched[fd] = wanted
        if wanted and not known:
            self._epoll.register(fd, wanted)
        elif known and not wanted:
            self._epoll.unregister(fd)
        elif wanted != known:
            self._epoll.modify(fd, wanted)


if __name__ == "__main__":
    # Its end is the other process's, which may still be answering.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    Ways(socket.socket(fileno=int(sys.argv[1]))).serve()
