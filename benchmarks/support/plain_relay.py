"""The least that any relay does: bytes copied from one socket to the other, in a process of its own.

It blocks and rewrites nothing, so Kafka's clients could not use it; a bare Fetch can. What it reaches is what this
machine leaves to a relay: the yardstick beside Tidegate's own ratio. With a certificate it speaks TLS on both sides,
and takes turns then: one request, one answer. In place of copying it can splice the answers.
"""

import fcntl
import multiprocessing
import os
import socket
import ssl
import struct
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.support.stage import Address

_BUFFER_BYTES = 256 * 1024
_PIPE_BYTES = 1024 * 1024
_LENGTH = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class PlainRelay:
    """It runs, and listens at `address`."""

    address: Address
    pid: int


@contextmanager
def plain_relay(
    target: Address, certificate: tuple[Path, Path] | None = None, *, splices: bool = False
) -> Iterator[PlainRelay]:
    """Run one. `certificate`, and its key: of both sides; None: no TLS, and answers may be spliced."""
    listener = socket.create_server((target[0], 0))
    # Spawned, not forked: the parent has threads of librdkafka's.
    process = multiprocessing.get_context("spawn").Process(
        target=_serve, args=(listener, target, certificate, splices), daemon=True
    )
    process.start()
    host, port = listener.getsockname()[:2]
    listener.close()
    try:
        assert process.pid is not None
        yield PlainRelay((str(host), int(port)), process.pid)
    finally:
        process.terminate()
        process.join()


def _serve(listener: socket.socket, target: Address, certificate: tuple[Path, Path] | None, splices: bool) -> None:
    """One connection after another, as the benchmark has no more."""
    if certificate is not None:
        _serve_tls(listener, target, *certificate)
    while True:
        client, _ = listener.accept()
        with client, socket.create_connection(target) as upstream:
            for side in (client, upstream):
                side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            requests = threading.Thread(target=_copy, args=(client, upstream))
            requests.start()
            (_splice if splices else _copy)(upstream, client)
            requests.join()


def _serve_tls(listener: socket.socket, target: Address, certificate: Path, key: Path) -> None:
    """One thread, as a TLS connection is no two threads' at once."""
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(certificate, key)
    trusting = ssl.create_default_context(cafile=str(certificate))
    while True:
        accepted, _ = listener.accept()
        connected = socket.create_connection(target)
        for side in (accepted, connected):
            side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with suppress(OSError), accepted, connected:
            client = server.wrap_socket(accepted, server_side=True)
            upstream = trusting.wrap_socket(connected, server_hostname=target[0])
            view = memoryview(bytearray(_BUFFER_BYTES))
            while _forward(client, upstream, view) and _forward(upstream, client, view):
                pass


def _forward(source: ssl.SSLSocket, destination: ssl.SSLSocket, view: memoryview) -> bool:
    """One frame; False at the end."""
    left = _LENGTH.size
    head = b""
    while left:
        size = source.recv_into(view)
        if not size:
            return False
        if len(head) < _LENGTH.size:
            head += view[: _LENGTH.size - len(head)]
            if len(head) == _LENGTH.size:
                left += _LENGTH.unpack(head)[0]
        left -= size
        destination.sendall(view[:size])
    return True


def _copy(source: socket.socket, destination: socket.socket) -> None:
    view = memoryview(bytearray(_BUFFER_BYTES))
    # Either side may go at any time; that is how a connection ends.
    with suppress(OSError):
        while size := source.recv_into(view):
            destination.sendall(view[:size])
    with suppress(OSError):
        destination.shutdown(socket.SHUT_WR)


def _splice(source: socket.socket, destination: socket.socket) -> None:
    assert sys.platform == "linux"
    reader, writer = os.pipe2(os.O_CLOEXEC)
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    with suppress(OSError):
        while size := os.splice(source.fileno(), writer, _PIPE_BYTES):
            while size:
                size -= os.splice(reader, destination.fileno(), size)
    with suppress(OSError):
        destination.shutdown(socket.SHUT_WR)
    os.close(reader)
    os.close(writer)
