"""Our own connections: heads, time limits, which connection serves which GET."""

import gc
import socket
import struct
import threading
from collections.abc import Iterator
from typing import cast
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.object_store.http.get import (
    HEAD_BYTES_MAX,
    IDLE_S_MAX,
    SILENCE_PARTS,
    Answer,
    AnswerHead,
    Connection,
    ConnectionEndedError,
    ConnectionPool,
    plain_head,
)
from tests.support.for_each import for_each
from tests.support.scripted_http import ScriptedHttp, Then, response

REQUEST = b"GET /a HTTP/1.1\r\nhost:x\r\n\r\n"
BODY = bytes(range(256)) * 40
LIMIT_S = 5.0


# --- heads ---


def head_of(*lines: str) -> bytes:
    return "".join(f"{line}\r\n" for line in (*lines, "")).encode("latin-1")


def test_a_plain_head() -> None:
    found = plain_head(
        head_of("HTTP/1.1 206 Partial Content", "Date: x", "content-LENGTH:10 ", "Content-Range: bytes 0-9/100 ")
    )
    assert found == AnswerHead(206, 10, "bytes 0-9/100", keeps_open=True)


@for_each("value, keeps_open", [("keep-alive", True), ("close", False), ("Foo, Close", False)])
def test_a_connection_may_end_with_its_answer(value: str, keeps_open: bool) -> None:
    found = plain_head(head_of("HTTP/1.1 404", "Content-Length: 0", f"Connection: {value}"))
    assert found == AnswerHead(404, 0, None, keeps_open=keeps_open)


@for_each(
    "lines",
    [
        ["HTTP/1.0 200 OK", "Content-Length: 1"],
        ["HTTP/1.1 100 Continue", "Content-Length: 1"],
        ["HTTP/1.1 2000 OK", "Content-Length: 1"],
        ["HTTP/1.1 20x OK", "Content-Length: 1"],
        ["HTTP/2 200", "Content-Length: 1"],
        ["", "HTTP/1.1 200 OK", "Content-Length: 1"],
        ["HTTP/1.1 200 OK"],
        ["HTTP/1.1 200 OK", "Content-Length: "],
        ["HTTP/1.1 200 OK", "Content-Length: -1"],
        ["HTTP/1.1 200 OK", "Content-Length: 1, 1"],
        ["HTTP/1.1 200 OK", "Content-Length: 9999999999999999999"],
        ["HTTP/1.1 200 OK", "Content-Length: 1", "content-length: 1"],
        ["HTTP/1.1 200 OK", "Content-Length: 1", "Transfer-Encoding: chunked"],
        ["HTTP/1.1 200 OK", "Content-Length: 1", "Transfer-Encoding : chunked"],
        ["HTTP/1.1 200 OK", "Content-Length: 1", "Folded: a", " b"],
        ["HTTP/1.1 200 OK", "Content-Length: 1", "Folded: a", "\tb"],
        ["HTTP/1.1 200 OK", "Content-Length: 1\nTransfer-Encoding: chunked"],
        ["HTTP/1.1 200 OK", "Content-Length: 1\rTransfer-Encoding: chunked"],
    ],
)
def test_what_is_not_plain_is_left_to_http_client(lines: list[str]) -> None:
    assert plain_head(head_of(*lines)) is None


@given(st.binary(max_size=200))
def test_no_head_breaks_the_parser(data: bytes) -> None:
    plain_head(data + b"\r\n\r\n")
    plain_head(b"HTTP/1.1 200 OK\r\n" + data + b"\r\n\r\n")


# --- silence ---


class ScriptedSocket:
    """Each receive gives so many bytes, or nothing, and then has waited for the rest as long as it was told to."""

    def __init__(self, *received: int) -> None:
        self.waited_s = 0.0
        self._received = list(received)
        self._receive_timeout_s = 0.0

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


def connection_of(scripted: ScriptedSocket) -> Connection:
    with socket.socket() as unconnected:
        connection = Connection(unconnected)
    connection.socket = cast(socket.socket, scripted)
    return connection


@for_each("received", [[], [100], [100, 100, 0, 0, 100]])
def test_a_body_that_falls_silent_is_waited_for_once(received: list[int]) -> None:
    """A piece of which some bytes had come was waited for twice as long as the time-out says."""
    scripted = ScriptedSocket(*received)
    with pytest.raises(TimeoutError):
        connection_of(scripted).receive(memoryview(bytearray(1000)), LIMIT_S)
    assert scripted.waited_s - len(received) * LIMIT_S / SILENCE_PARTS <= LIMIT_S * 1.001


def test_a_slow_body_that_goes_on_is_not_given_up() -> None:
    scripted = ScriptedSocket(*[0, 0, 1] * 100)
    assert connection_of(scripted).receive(memoryview(bytearray(100)), LIMIT_S) == 100
    assert scripted.waited_s > 10 * LIMIT_S


# --- one connection ---


@pytest.fixture
def ends() -> Iterator[tuple[Connection, socket.socket]]:
    ours, theirs = socket.socketpair()
    with theirs:
        connection = Connection(ours)
        yield connection, theirs
        connection.close()


HEAD = head_of("HTTP/1.1 206 P", "Content-Length: 10240")


@pytest.mark.parametrize("cut", [1, len(HEAD) - 3, len(HEAD) - 1, len(HEAD), len(HEAD) + 5, len(HEAD) + len(BODY)])
def test_a_head_is_received_in_any_pieces_without_its_body(ends: tuple[Connection, socket.socket], cut: int) -> None:
    connection, server = ends
    data = HEAD + BODY
    server.sendall(data[:cut])

    def send_rest() -> None:
        server.recv(1000)
        server.sendall(data[cut:])

    sender = threading.Thread(target=send_rest)
    sender.start()
    assert connection.ask(REQUEST, LIMIT_S) == HEAD
    body = memoryview(bytearray(len(BODY)))
    assert connection.receive(body[:7], LIMIT_S) == 7
    assert connection.receive(body[7:], LIMIT_S) == len(BODY) - 7
    sender.join()
    assert body == BODY


def test_a_head_without_end_is_refused(ends: tuple[Connection, socket.socket]) -> None:
    connection, server = ends
    sender = threading.Thread(target=lambda: server.sendall(b"HTTP/1.1 200 OK\r\nx: " + b"x" * 2 * HEAD_BYTES_MAX))
    sender.start()
    with pytest.raises(ConnectionEndedError, match="more than"):
        connection.ask(REQUEST, LIMIT_S)
    connection.close()
    sender.join()


def test_an_answer_that_does_not_begin_ends_with_its_time(ends: tuple[Connection, socket.socket]) -> None:
    connection, server = ends
    server.sendall(HEAD[:-2])
    with pytest.raises(TimeoutError):
        connection.ask(REQUEST, 0.05)
    assert connection.has_answered


# --- the pool ---


class World:
    def __init__(self, http: ScriptedHttp, idle_max: int) -> None:
        self.now_s = 0.0
        self.pool = ConnectionPool(self._open, idle_max=idle_max, now_s=lambda: self.now_s)
        self.opened: list[socket.socket] = []
        self._address = urlsplit(http.endpoint_url)

    def get(self) -> Answer:
        return self.pool.get(REQUEST, LIMIT_S)

    def fetch(self) -> bytes:
        return received(self.get())

    def _open(self) -> socket.socket:
        self.opened.append(socket.create_connection((str(self._address.hostname), int(self._address.port or 0))))
        return self.opened[-1]


def received(answer: Answer) -> bytes:
    assert answer.head is not None
    body = bytearray(answer.head.content_length)
    count = answer.receive(memoryview(body), LIMIT_S)
    answer.finish()
    return bytes(body[:count])


@pytest.fixture
def world(request: pytest.FixtureRequest, http: ScriptedHttp) -> Iterator[World]:
    """A parameter is how many idle connections it keeps."""
    world = World(http, getattr(request, "param", 10))
    yield world
    world.pool.close()
    for opened in world.opened:
        opened.close()


def test_the_connection_that_was_used_last_serves_first(http: ScriptedHttp, world: World) -> None:
    http.answer(response(206, BODY))
    answers = [world.get() for _ in range(3)]
    for answer in answers:
        assert received(answer) == BODY
    for _ in range(5):
        world.now_s += IDLE_S_MAX / 2
        assert world.fetch() == BODY
    assert len(world.opened) == 3
    assert [opened.fileno() >= 0 for opened in world.opened] == [False, False, True]


@pytest.mark.parametrize("world", [2], indirect=True)
def test_no_connection_is_kept_beyond_the_bound_or_its_time(http: ScriptedHttp, world: World) -> None:
    http.answer(response(206, BODY))
    for answer in [world.get() for _ in range(5)]:
        received(answer)
    assert sum(opened.fileno() >= 0 for opened in world.opened) == 2
    world.now_s += IDLE_S_MAX * 1.01
    world.fetch()
    assert [opened.fileno() >= 0 for opened in world.opened] == [False] * 5 + [True]


@pytest.mark.parametrize("then", ["close", "reset"])
@pytest.mark.parametrize("is_noticed", [True, False], ids=["before the request", "after it"])
def test_a_connection_that_ended_while_idle_is_replaced_silently(
    http: ScriptedHttp, world: World, monkeypatch: pytest.MonkeyPatch, then: Then, is_noticed: bool
) -> None:
    if not is_noticed:
        monkeypatch.setattr(Connection, "is_quiet", lambda _: True)
    http.answer(response(206, BODY), then=then)
    http.answer(response(206, BODY))
    try:
        world.fetch()
    except ConnectionError:
        assert then == "reset", "a reset may overtake the answer"
    assert world.fetch() == BODY
    assert len(http.requests) == 2


def test_an_answer_that_had_begun_is_not_asked_for_again(http: ScriptedHttp, world: World) -> None:
    http.answer(response(206, BODY))
    http.answer(b"HTTP", then="close")
    world.fetch()
    with pytest.raises(ConnectionEndedError):
        world.fetch()
    assert len(http.requests) == 2


def test_bytes_that_nobody_asked_for_are_nobodys_answer(http: ScriptedHttp, world: World) -> None:
    http.answer(response(206, BODY) + response(206, b"another's"))
    http.answer(response(206, BODY))
    assert world.fetch() == BODY
    assert world.fetch() == BODY
    assert http.connections == 2


@pytest.mark.parametrize("headers", [{}, {"Connection": "close"}])
def test_an_unread_body_or_an_announced_end_closes(http: ScriptedHttp, world: World, headers: dict[str, str]) -> None:
    http.answer(response(206, BODY, headers))
    answer = world.get()
    answer.receive(memoryview(bytearray(len(BODY) if headers else 10)), LIMIT_S)
    answer.finish()
    assert world.opened[0].fileno() < 0


@pytest.mark.parametrize("whole_bytes_max", [0, len(BODY)])
def test_a_small_replay_gives_its_connection_back(http: ScriptedHttp, world: World, whole_bytes_max: int) -> None:
    whole = response(503, BODY)
    http.answer(whole)
    with world.get().replay(whole_bytes_max) as replay:
        assert replay.read(len(whole)) == whole
    assert (world.opened[0].fileno() >= 0) == (whole_bytes_max > 0)


def test_a_closed_pool_keeps_nothing_and_asks_nobody_again(http: ScriptedHttp, world: World) -> None:
    http.answer(response(206, BODY))
    answers = [world.get() for _ in range(2)]
    received(answers[0])
    world.pool.close()
    received(answers[1])
    assert [opened.fileno() for opened in world.opened] == [-1, -1]


def test_the_idle_connections_of_a_pool_that_nobody_holds_are_closed(http: ScriptedHttp, world: World) -> None:
    """Failed before: their sockets were left to the garbage collector, which warns of each."""
    http.answer(response(206, BODY))
    world.fetch()
    world.pool = ConnectionPool(pytest.fail, idle_max=1)
    gc.collect()
    assert [opened.fileno() for opened in world.opened] == [-1]
