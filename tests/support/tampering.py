"""A man in the middle: TLS records on their way from a server to its client, one of which he changes.

    with tampering(port, Tamper(Harm.FLIP, at=1)) as middle:
        connect(middle.port)

He knows records by their length alone: those of a body are large, and he counts them. `at` is the first of them that
comes to harm; each connection behind `connections` is left alone.
"""

import enum
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial

HEAD_BYTES = 5
LARGE_BYTES = 8 * 1024
WAIT_S_MAX = 30.0


class Harm(enum.Enum):
    """What happens to the record."""

    FLIP = "a bit of it is flipped"
    CUT = "half of it comes, then the connection ends"
    END = "the connection ends before it"
    RESET = "the connection is reset before it"


@dataclass(frozen=True, slots=True)
class Tamper:
    """`at`: of the large records, from 0 on."""

    harm: Harm
    at: int = 0


@dataclass(slots=True)
class Middle:
    """Where clients connect to, and how many have."""

    port: int
    connections: int = 0


@contextmanager
def tampering(server_port: int, tamper: Tamper, *, connections: int = 1) -> Iterator[Middle]:
    """Listen on a free port of this machine, before a server on another.

    Args:
        connections: how many come to harm, the first ones.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        middle, threads = Middle(listener.getsockname()[1]), list[threading.Thread]()

        def accept() -> None:
            with suppress(OSError):  # the listener was shut down
                while True:
                    client, _ = listener.accept()
                    # What waits to be sent would go with a reset.
                    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    middle.connections += 1
                    server = socket.create_connection(("127.0.0.1", server_port), WAIT_S_MAX)
                    harmed = tamper if middle.connections <= connections else None
                    for run in (partial(_relay, client, server), partial(_pass, server, client, harmed)):
                        threads.append(threading.Thread(target=run))
                        threads[-1].start()

        accepting = threading.Thread(target=accept)
        accepting.start()
        try:
            yield middle
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            accepting.join(WAIT_S_MAX)
            for thread in threads:
                thread.join(WAIT_S_MAX)


def _relay(client: socket.socket, server: socket.socket) -> None:
    with suppress(OSError):
        while data := client.recv(65536):
            server.sendall(data)
    _end(server)


def _pass(server: socket.socket, client: socket.socket, tamper: Tamper | None) -> None:
    large = 0
    with client, server, server.makefile("rb") as records, suppress(OSError):
        while len(head := records.read(HEAD_BYTES)) == HEAD_BYTES:
            body = bytearray(records.read(int.from_bytes(head[3:])))
            if tamper is not None and len(body) > LARGE_BYTES:
                if large == tamper.at and not _goes_on(tamper.harm, head, body, client):
                    return
                large += 1
            client.sendall(head + body)
        _end(client)


def _goes_on(harm: Harm, head: bytes, body: bytearray, client: socket.socket) -> bool:
    if harm is Harm.FLIP:
        body[len(body) // 2] ^= 0x10
        return True
    if harm is Harm.CUT:
        client.sendall(head + body[: len(body) // 2])
    if harm is Harm.RESET:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.shutdown(socket.SHUT_RD)  # wakes the other thread, and sends nothing before the reset
    else:
        _end(client)
    return False


def _end(connection: socket.socket) -> None:
    with suppress(OSError):  # it may have ended before
        connection.shutdown(socket.SHUT_RDWR)
