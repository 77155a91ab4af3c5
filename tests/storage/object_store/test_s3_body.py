"""Bodies that are received by one system call for each large piece: the same bytes, errors and connections."""

import io
import random
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

import pytest

from storage.errors import RetriableRemoteStorageError, StalledTransferError
from storage.object_store import s3_body
from storage.object_store.s3 import OpenSockets, S3Store
from storage.object_store.s3_body import RECEIVE_WHOLE_BYTES_MIN, WholeReceiver
from tests.support.certificates import server_certificate
from tests.support.s3_server import S3Server
from tests.support.scripted_http import ScriptedHttp, response, scripted_http
from tests.support.waiting import wait_until

BODY = random.Random(7).randbytes(5 * RECEIVE_WHOLE_BYTES_MIN + 17)
LARGE = RECEIVE_WHOLE_BYTES_MIN + 1


@pytest.fixture
def http() -> Iterator[ScriptedHttp]:
    with scripted_http() as server:
        yield server


@pytest.fixture(params=["http", "https"])
def any_http(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedHttp]:
    tls = None
    if request.param == "https":
        certificate, key = server_certificate(tmp_path)
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(certificate, key)
        monkeypatch.setenv("AWS_CA_BUNDLE", str(certificate))
    with scripted_http(tls) as server:
        yield server


@pytest.fixture
def open_store(request: pytest.FixtureRequest) -> Iterator[Callable[..., S3Store]]:
    stores = []
    name = "any_http" if "any_http" in request.fixturenames else "http"
    server: ScriptedHttp = request.getfixturevalue(name)

    def open_store(read_timeout_s: float = 5.0) -> S3Store:
        stores.append(S3Store(S3Server(server.endpoint_url).settings("tier", read_timeout_s=read_timeout_s)))
        return stores[-1]

    yield open_store
    for store in stores:
        store.close()


def ranged(body: bytes = BODY) -> bytes:
    return response(206, body, {"Content-Range": f"bytes 0-{len(body) - 1}/{len(body)}"})


def read(store: S3Store, pieces: list[int]) -> bytes:
    """The whole body in pieces of these sizes, in turn."""
    stream = store.get("key", 0, len(BODY))
    got = bytearray()
    turn = 0
    while len(got) < len(BODY):
        piece = bytearray(min(pieces[turn % len(pieces)], len(BODY) - len(got)))
        stream.readinto(memoryview(piece))
        got += piece
        turn += 1
    stream.close()
    return bytes(got)


@pytest.mark.parametrize(
    "pieces", [[len(BODY)], [LARGE], [LARGE, 1], [1, LARGE], [100, LARGE, 9000], [len(BODY) - 1], [len(BODY) - LARGE]]
)
def test_pieces_large_and_small_give_the_body_and_the_connection_back(
    http: ScriptedHttp, open_store: Callable[..., S3Store], pieces: list[int]
) -> None:
    store = open_store()
    for _ in range(3):
        http.answer(ranged())
        assert read(store, pieces) == BODY
    assert http.connections == 1


def test_a_connection_waits_as_usual_for_what_comes_after_a_large_body(
    http: ScriptedHttp, open_store: Callable[..., S3Store]
) -> None:
    store = open_store(read_timeout_s=0.2)
    http.answer(ranged())
    http.answer(b"", then="stall")
    assert read(store, [LARGE]) == BODY
    with pytest.raises(RetriableRemoteStorageError):
        store.get("key", 0, len(BODY))


@pytest.mark.parametrize("sent_bytes", [0, 200, LARGE, len(BODY) - 1])
@pytest.mark.parametrize("then", ["stall", "close", "reset"])
def test_a_large_body_that_breaks_is_retriable(
    http: ScriptedHttp, open_store: Callable[..., S3Store], monkeypatch: pytest.MonkeyPatch, then: str, sent_bytes: int
) -> None:
    monkeypatch.setattr(s3_body, "SILENCE_S_MAX", 0.5)
    store = open_store(read_timeout_s=60.0)
    http.answer(ranged()[: len(ranged()) - len(BODY) + sent_bytes], then=then)  # type: ignore[arg-type]  # one of Then
    http.answer(ranged())
    with pytest.raises(RetriableRemoteStorageError) as raised:
        read(store, [len(BODY)])
    assert isinstance(raised.value, StalledTransferError) == (then == "stall")
    assert read(store, [LARGE]) == BODY


# --- silence ---

TIMEOUT_S = 3.0


class ScriptedSocket:
    """Each receive gives so many bytes, or nothing, and then has waited for the rest as long as it was told to."""

    def __init__(self, *received: int) -> None:
        self.waited_s = 0.0
        self._received = list(received)
        self._receive_timeout_s = 0.0

    def gettimeout(self) -> float:
        return TIMEOUT_S

    def settimeout(self, seconds: float | None) -> None:
        assert seconds is None

    def setsockopt(self, level: int, option: int, value: bytes) -> None:
        assert (level, option) == (socket.SOL_SOCKET, socket.SO_RCVTIMEO)
        whole_s, more_us = struct.unpack("ll", value)
        self._receive_timeout_s = whole_s + more_us / 1_000_000

    def recv_into(self, view: memoryview, size_bytes: int, flags: int) -> int:
        assert (size_bytes, flags) == (0, socket.MSG_WAITALL)
        received = self._received.pop(0) if self._received else 0
        self.waited_s += self._receive_timeout_s
        if not received:
            raise BlockingIOError
        return received


def receiver_of(scripted: ScriptedSocket) -> WholeReceiver:
    return WholeReceiver(io.BufferedReader(io.BytesIO()), cast(socket.socket, scripted))


@pytest.mark.parametrize("received", [[], [100], [100, 100, 0, 0, 100]])
def test_a_body_that_falls_silent_is_waited_for_once(received: list[int]) -> None:
    """A piece of which some bytes had come was waited for twice as long as the time-out says."""
    scripted = ScriptedSocket(*received)
    with pytest.raises(TimeoutError):
        receiver_of(scripted).receive(memoryview(bytearray(1000)))
    assert scripted.waited_s - len(received) * TIMEOUT_S / s3_body.SILENCE_PARTS <= TIMEOUT_S * 1.001


def test_a_slow_body_that_goes_on_is_not_given_up() -> None:
    scripted = ScriptedSocket(*[0, 0, 1] * 100)
    assert receiver_of(scripted).receive(memoryview(bytearray(100))) == 100
    assert scripted.waited_s > 10 * TIMEOUT_S


@pytest.mark.parametrize("pieces", [[len(BODY)], [100]])
def test_silence_in_a_body_is_shorter_than_the_wait_for_an_answer(
    any_http: ScriptedHttp, open_store: Callable[..., S3Store], monkeypatch: pytest.MonkeyPatch, pieces: list[int]
) -> None:
    monkeypatch.setattr(s3_body, "SILENCE_S_MAX", 0.5)
    store = open_store(read_timeout_s=60.0)
    any_http.answer(ranged()[:-1], then="stall")
    with pytest.raises(StalledTransferError):
        read(store, pieces)


def test_a_connection_gets_its_own_time_out_back(any_http: ScriptedHttp, open_store: Callable[..., S3Store]) -> None:
    store = open_store(read_timeout_s=60.0)
    any_http.answer(ranged())
    stream = store.get("key", 0, len(BODY))
    connection = stream._socket
    assert connection is not None
    assert connection.gettimeout() == s3_body.SILENCE_S_MAX
    stream.readinto(memoryview(bytearray(len(BODY))))
    assert connection.gettimeout() == 60.0


# --- many at once, and the end of all ---


def test_as_many_connections_are_kept_as_were_used_at_once(
    http: ScriptedHttp, open_store: Callable[..., S3Store]
) -> None:
    """With 65 GETs at once one connection of them was opened again for each GET: the pool kept 64, whatever
    `tier.concurrent.gets.max` allowed."""
    store = open_store()
    http.answer(ranged(b"body"))
    for _ in range(2):
        streams = [store.get("key", 0, 4) for _ in range(70)]
        for stream in streams:
            stream.readinto(memoryview(bytearray(4)))
    assert http.connections == 70


@pytest.mark.parametrize("sent", [b"", ranged()[:-1], ranged()[: 1000 - len(BODY)]], ids=["no answer", "most", "some"])
@pytest.mark.parametrize("piece_bytes", [len(BODY), 100])
def test_closing_the_store_ends_what_a_thread_waits_for(
    any_http: ScriptedHttp, open_store: Callable[..., S3Store], sent: bytes, piece_bytes: int
) -> None:
    """It was waited for as long as an answer is, and the process with it."""
    store = open_store(read_timeout_s=60.0)
    any_http.answer(sent, then="stall")
    errors: list[Exception] = []

    def get() -> None:
        try:
            read(store, [piece_bytes])
        except Exception as error:
            errors.append(error)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(s3_body, "SILENCE_S_MAX", 60.0)
        thread = threading.Thread(target=get)
        thread.start()
        wait_until(lambda: bool(any_http.requests), "the request")
        store.close()
        thread.join(20)
        assert not thread.is_alive(), "the server gives up after 30 s"
    (error,) = errors
    assert isinstance(error, RetriableRemoteStorageError)


def test_a_connection_that_opens_while_the_store_is_closed_ends_too(http: ScriptedHttp) -> None:
    sockets, address = OpenSockets(), urlsplit(http.endpoint_url)
    sockets.shut_down()
    with socket.create_connection((str(address.hostname), int(address.port or 0))) as opened:
        sockets.add(opened)
        assert opened.recv(1) == b""
