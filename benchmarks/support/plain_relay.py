"""The least that any relay does: bytes copied from one socket to the other, in a process of its own.

It blocks, knows no frames and rewrites nothing, so Kafka's clients could not use it; a bare Fetch can. What it reaches
is what this machine leaves to a relay: the yardstick beside Tidegate's own ratio.
"""

import multiprocessing
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from benchmarks.support.stage import Address

_BUFFER_BYTES = 256 * 1024


@contextmanager
def plain_relay(target: Address) -> Iterator[Address]:
    """Run one; the address where it listens."""
    listener = socket.create_server((target[0], 0))
    # Spawned, not forked: the parent has threads of librdkafka's.
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(listener, target), daemon=True)
    process.start()
    host, port = listener.getsockname()[:2]
    listener.close()
    try:
        yield str(host), int(port)
    finally:
        process.terminate()
        process.join()


def _serve(listener: socket.socket, target: Address) -> None:
    """One connection after another, as the benchmark has no more."""
    while True:
        client, _ = listener.accept()
        with client, socket.create_connection(target) as upstream:
            for side in (client, upstream):
                side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            requests = threading.Thread(target=_copy, args=(client, upstream))
            requests.start()
            _copy(upstream, client)
            requests.join()


def _copy(source: socket.socket, destination: socket.socket) -> None:
    view = memoryview(bytearray(_BUFFER_BYTES))
    # Either side may go at any time; that is how a connection ends.
    with suppress(OSError):
        while size := source.recv_into(view):
            destination.sendall(view[:size])
    with suppress(OSError):
        destination.shutdown(socket.SHUT_WR)
