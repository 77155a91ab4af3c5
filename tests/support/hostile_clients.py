"""Clients that misbehave: those that do not read, read slowly, send slowly, or connect in crowds.

    with crowd(stage.leader, 12) as clients:
        for client in clients:
            client.send_bytes(frame)
        with trickling_readers(clients):
            ...

All have small receive buffers, so that a full one is the server's trouble soon, and all are closed at the end.
"""

import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until
from tools.demo.readable import readable

RECEIVE_BUFFER_BYTES = 8 * 1024
TURN_S = 0.1
TRICKLE_BYTES = 4 * 1024
"""Read in a turn, so 40 KiB a second."""

FETCH = 1
FETCH_V4 = struct.Struct(">hhihiiiibi")
"""A Fetch of version 4 without a client id: key, version, correlation id, client id's length, replica, max wait,
min bytes, max bytes, isolation, topics. It has neither sessions nor topic ids."""


@contextmanager
def crowd(address: tuple[str, int], count: int, *, sign_in: tuple[str, str] | None = None) -> Iterator[list[RawClient]]:
    """Open so many connections that read nothing by themselves; `sign_in` is a user and a password."""
    with ExitStack() as stack:
        clients = []
        for _ in range(count):
            client = stack.enter_context(RawClient(*address, receive_buffer_bytes=RECEIVE_BUFFER_BYTES))
            if sign_in is not None:
                assert client.sasl_plain(*sign_in) == 0
            clients.append(client)
        yield clients


def wait_answers(clients: Sequence[RawClient], *, at_least: int = 1) -> None:
    """Return when so many of them have been answered, which they do not read.

    Raises:
        AssertionError: they are not, or one has been closed instead.
    """
    sockets = [client.socket for client in clients]

    def answered() -> list[socket.socket]:
        return readable(sockets)

    wait_until(lambda: len(answered()) >= at_least, f"{at_least} answers begun")
    for each in answered():
        assert each.recv(1, socket.MSG_PEEK), "closed, not answered"


@contextmanager
def trickling_readers(clients: Sequence[RawClient]) -> Iterator[Callable[[], int]]:
    """Read a little from each, turn by turn, until the block ends; yields how many bytes came."""
    received = 0

    def read() -> None:
        nonlocal received
        for client in clients:
            if readable([client.socket]):
                received += len(client.socket.recv(TRICKLE_BYTES))

    with _every_turn(read, TURN_S):
        yield lambda: received


@contextmanager
def trickling_senders(clients: Sequence[RawClient]) -> Iterator[None]:
    """Send a byte a second on each, until the block ends."""

    def send() -> None:
        for client in clients:
            # Being closed for it is one of the right answers.
            with suppress(OSError):
                client.socket.sendall(b"\x00")

    with _every_turn(send, 1.0):
        yield


@contextmanager
def _every_turn(act: Callable[[], None], turn_s: float) -> Iterator[None]:
    is_over, failures = threading.Event(), list[BaseException]()

    def turns() -> None:
        try:
            while not is_over.wait(turn_s):
                act()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=turns, name="trickling")
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
    if failures:
        raise failures[0]


def announced(size: int, api_key: int = FETCH, api_version: int = 12) -> bytes:
    """12 bytes: the length of a frame, and the beginning of its header."""
    return struct.pack(">ihhi", size, api_key, api_version, 1)


def fetch_v4(topics: Sequence[tuple[str, int]]) -> bytes:
    """A whole frame that asks for (topic, number of its partitions from 0 on), built fast for a million of them."""
    head = FETCH_V4.pack(FETCH, 4, 1, -1, -1, 100, 1, 50 * 1024 * 1024, 0, len(topics))
    entry = struct.Struct(">iqi")
    parts = [head]
    for name, partitions in topics:
        raw = name.encode()
        parts.append(struct.pack(f">h{len(raw)}si", len(raw), raw, partitions))
        parts += [entry.pack(number, 0, 1024 * 1024) for number in range(partitions)]
    body = b"".join(parts)
    return struct.pack(">i", len(body)) + body
