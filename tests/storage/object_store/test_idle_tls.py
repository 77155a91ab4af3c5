"""An idle connection with TLS on which something came: an answer that nobody asked for ends it, TLS's own does not."""

import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from storage.object_store.http import get, tls
from tests.support.certificates import server_certificate
from tests.support.s3_stores import BODY, ranged
from tests.support.scripted_http import response

REQUEST = b"GET / HTTP/1.1\r\n\r\n"
RECORD_HEAD_BYTES = 5
WAIT_S = 10.0


class Peer:
    """The server of one connection: what it says leaves when `send` is called."""

    def __init__(self, context: ssl.SSLContext, raw: socket.socket) -> None:
        self._raw, self._incoming, self._outgoing = raw, ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls: Any = context.wrap_bio(self._incoming, self._outgoing, server_side=True)

    def shake_hands(self) -> None:
        while True:
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                self.send()
                self._incoming.write(self._raw.recv(65536))
            else:
                self.send()
                return

    def send(self, bytes_max: int = -1) -> None:
        self._raw.sendall(self._outgoing.read(bytes_max))

    def say(self, data: bytes) -> None:
        self.tls.write(data)
        self.send()

    def end(self) -> None:
        with pytest.raises(ssl.SSLWantReadError):  # for the client's own end
            self.tls.unwrap()
        self.send()

    def hang_up(self) -> None:
        self._raw.shutdown(socket.SHUT_WR)

    def openssl(self, function: str, *arguments: int) -> None:
        """Call a function of OpenSSL's that Python has no name for; what comes of it is to be sent."""
        openssl = tls.library()
        assert openssl is not None
        called = getattr(openssl, function)
        called.argtypes = [tls._POINTER, *(tls._INT for _ in arguments)]
        assert called(tls._inside(openssl, self.tls._sslobj, -1), *arguments) == 1
        self.tls.do_handshake()


Connect = Callable[[], tuple[get.Connection, Peer]]


@pytest.fixture(params=[pytest.param("openssl", marks=pytest.mark.needs("shared-openssl")), "python"])
def connect(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Connect]:
    """Opens connections with TLS 1.3."""
    monkeypatch.setattr(tls, "is_native", request.param == "openssl")
    certificate, key = server_certificate(tmp_path)
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(certificate, key)
    trusting = ssl.create_default_context(cafile=str(certificate))
    opened: list[socket.socket] = []

    def connect() -> tuple[get.Connection, Peer]:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            plain = socket.create_connection(listener.getsockname(), WAIT_S)
            raw, _ = listener.accept()
        peer = Peer(serving, raw)
        handshake = threading.Thread(target=peer.shake_hands)
        handshake.start()
        client = trusting.wrap_socket(plain, server_hostname="localhost")
        handshake.join(WAIT_S)
        assert client.version() == "TLSv1.3"
        opened.extend((client, raw))
        return get.Connection(client), peer

    yield connect
    for each in opened:
        each.close()


def answered(connection: get.Connection, peer: Peer) -> None:
    """A GET goes there and back."""
    peer.say(ranged())
    connection.ask(REQUEST, WAIT_S)
    body = bytearray(len(BODY))
    assert connection.receive(memoryview(body), WAIT_S) == len(BODY)
    assert body == BODY


def arrived(connection: get.Connection) -> None:
    assert select.select([connection.socket], [], [], WAIT_S)[0]


def test_one_on_which_nothing_came_is_used_again(connect: Connect) -> None:
    connection, peer = connect()
    for _ in range(3):
        answered(connection, peer)
        assert connection.is_quiet()


@pytest.mark.parametrize("unasked", [response(408), ranged()])
def test_an_answer_that_nobody_asked_for_ends_it(unasked: bytes, connect: Connect) -> None:
    """Failed before: only what was decrypted already was looked at, so the next GET got this for its answer."""
    connection, peer = connect()
    answered(connection, peer)
    peer.say(unasked)
    arrived(connection)
    assert not connection.is_quiet()


def test_the_next_get_goes_to_another(connect: Connect) -> None:
    (first, early), (second, late) = connect(), connect()
    waiting = [first.socket, second.socket]
    pool = get.ConnectionPool(lambda: waiting.pop(0), idle_max=2)
    for peer, unasked in ((early, response(408)), (late, b"")):
        peer.say(ranged())
        answer = pool.get(REQUEST, WAIT_S)
        assert answer.head is not None
        assert answer.head.status == 206
        answer.receive(memoryview(bytearray(len(BODY))), WAIT_S)
        answer.finish()
        if unasked:
            peer.say(unasked)
            arrived(first)


@pytest.mark.parametrize("end", [Peer.end, Peer.hang_up])
def test_one_that_ended_is_not_used_again(end: Callable[[Peer], None], connect: Connect) -> None:
    connection, peer = connect()
    answered(connection, peer)
    end(peer)
    arrived(connection)
    assert not connection.is_quiet()


@pytest.mark.needs("shared-openssl")
@pytest.mark.parametrize("own", [("SSL_new_session_ticket",), ("SSL_key_update", 0)])
def test_what_tls_sends_for_itself_is_no_reason_to_part(own: tuple[Any, ...], connect: Connect) -> None:
    connection, peer = connect()
    answered(connection, peer)
    for _ in range(3):
        peer.openssl(*own)
        peer.send()
        arrived(connection)
        assert connection.is_quiet()
        answered(connection, peer)
    peer.openssl(*own)
    peer.say(response(408))
    arrived(connection)
    assert not connection.is_quiet()


def test_a_part_of_a_record_is_no_silence(connect: Connect) -> None:
    connection, peer = connect()
    answered(connection, peer)
    peer.tls.write(response(408))
    peer.send(RECORD_HEAD_BYTES + 10)
    arrived(connection)
    assert connection.is_quiet() == (connection.records is None)  # Python's ssl does not show what it has of a record
