"""A FakeBroker behind real sockets, plain or with TLS, in threads of its own: it goes on while the test's loop stands.

with socket_broker(FakeBroker(), tls) as listening:
    connection = await open_broker_connection(*listening.address, settings, "role", nursery)
"""

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from inspect import isawaitable
from pathlib import Path

from protocol.client.messages import API_VERSIONS
from tests.support.certificates import server_certificate
from tests.support.fake_kafka import FakeBroker

SILENT_S_MAX = 30.0
"""After that a client is given up that neither speaks nor goes."""


@dataclass(slots=True)
class SocketBroker:
    """`answers_at_once`: so many answers go out in one send, and so in one TLS record; ApiVersions' go alone."""

    broker: FakeBroker
    address: tuple[str, int]
    answers_at_once: int = 1
    sent: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    """Released with each such send."""
    streams: set[socket.socket] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class BothSides:
    """TLS contexts of a server on this machine and of its clients."""

    server: ssl.SSLContext
    client: ssl.SSLContext


def both_sides(folder: Path) -> BothSides:
    """With a certificate of their own."""
    certificate, key = server_certificate(folder)
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(certificate, key)
    return BothSides(server, ssl.create_default_context(cafile=certificate))


@contextmanager
def socket_broker(broker: FakeBroker, tls: ssl.SSLContext | None = None) -> Iterator[SocketBroker]:
    """It listens on 127.0.0.1 until the block ends; what a connection of it meets ends that connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
        listening = SocketBroker(broker, (host, port))
        accepting = threading.Thread(target=_accept, args=(listener, listening, tls))
        accepting.start()
        try:
            yield listening
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            accepting.join()


def _accept(listener: socket.socket, listening: SocketBroker, tls: ssl.SSLContext | None) -> None:
    talks: list[threading.Thread] = []
    while True:
        try:
            accepted, _ = listener.accept()
        except OSError:
            break
        accepted.settimeout(SILENT_S_MAX)
        talks.append(threading.Thread(target=_talk, args=(accepted, listening, tls)))
        talks[-1].start()
    for stream in tuple(listening.streams):
        with suppress(OSError):
            stream.shutdown(socket.SHUT_RDWR)
    for talk in talks:
        talk.join()


def _talk(accepted: socket.socket, listening: SocketBroker, tls: ssl.SSLContext | None) -> None:
    # The client may go at any time, also in the handshake.
    with accepted, suppress(OSError, EOFError):
        stream = accepted if tls is None else tls.wrap_socket(accepted, server_side=True)
        listening.streams.add(stream)
        try:
            with stream, stream.makefile("rb") as received:
                _converse(stream, received.read, listening)
        finally:
            listening.streams.discard(stream)


def _converse(stream: socket.socket, read: Callable[[int], bytes], listening: SocketBroker) -> None:
    waiting: list[bytes] = []
    while True:
        frame = _exactly(read, int.from_bytes(_exactly(read, 4), "big"))
        given, encode = listening.broker.take(frame)
        assert not isawaitable(given), "there is no loop to wait on"
        waiting.append(encode(given))
        is_first = int.from_bytes(frame[:2], "big") == API_VERSIONS.key
        if is_first or len(waiting) >= listening.answers_at_once:
            stream.sendall(b"".join(waiting))
            waiting.clear()
        if not is_first:
            listening.sent.release()


def _exactly(read: Callable[[int], bytes], size: int) -> bytes:
    data = read(size)
    if len(data) < size:
        raise EOFError
    return data
