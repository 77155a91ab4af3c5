"""A SOCKS5 server (RFC 1928, RFC 1929) that knows names which nobody else does, and takes no addresses.

    with socks_server({"store.test": "127.0.0.1"}) as proxy:
        ...  # http://store.test:9000 is reached through proxy.port alone

So a client with an answer has let the proxy resolve the name. `asked` are the names and ports in the order they came.
"""

import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

TIMEOUT_S = 30.0
_NAME, _REFUSED_TYPE, _REFUSED_HOST = 3, 8, 4


@dataclass(slots=True)
class SocksServer:
    """The server. `user`: name and password that it asks for; None: nobody's."""

    port: int
    names: Mapping[str, str]
    user: tuple[str, str] | None
    asked: list[tuple[str, int]] = field(default_factory=list)
    refused_addresses: int = 0
    _open: list[socket.socket] = field(default_factory=list)

    def serve(self, listener: socket.socket) -> None:
        """Accept until the listener is closed."""
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            self._open.append(client)
            threading.Thread(target=self._serve_client, args=(client,), daemon=True).start()

    def close(self) -> None:
        """End all connections."""
        for opened in self._open:
            with suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)

    def _serve_client(self, client: socket.socket) -> None:
        # A client that goes away is the end of a connection, not of a test.
        with client, suppress(OSError, EOFError):
            client.settimeout(TIMEOUT_S)
            if not self._lets_in(client):
                return
            _, _, _, kind = _exactly(client, 4)
            if kind != _NAME:
                self.refused_addresses += 1
                client.sendall(_answer(_REFUSED_TYPE))
                return
            name = _exactly(client, _exactly(client, 1)[0]).decode()
            port = int.from_bytes(_exactly(client, 2))
            self.asked.append((name, port))
            if name not in self.names:
                client.sendall(_answer(_REFUSED_HOST))
                return
            with socket.create_connection((self.names[name], port)) as server:
                self._open.append(server)
                client.sendall(_answer(0))
                client.settimeout(None)
                back = threading.Thread(target=copy, args=(server, client), daemon=True)
                back.start()
                copy(client, server)
                back.join(TIMEOUT_S)

    def _lets_in(self, client: socket.socket) -> bool:
        methods = _exactly(client, _exactly(client, 2)[1])
        wanted = 0 if self.user is None else 2
        if wanted not in methods:
            client.sendall(b"\x05\xff")
            return False
        client.sendall(bytes((5, wanted)))
        if self.user is None:
            return True
        _exactly(client, 1)
        given = tuple(_exactly(client, _exactly(client, 1)[0]).decode() for _ in range(2))
        client.sendall(b"\x01\x00" if given == self.user else b"\x01\x01")
        return given == self.user


@contextmanager
def socks_server(names: Mapping[str, str], *, user: tuple[str, str] | None = None) -> Iterator[SocksServer]:
    """Serve until the block ends."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = SocksServer(listener.getsockname()[1], names, user)
        thread = threading.Thread(target=server.serve, args=(listener,))
        thread.start()
        try:
            yield server
        finally:
            # Closing alone does not wake a thread that accepts.
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(TIMEOUT_S)
            server.close()


def _answer(code: int) -> bytes:
    return bytes((5, code, 0, 1, 0, 0, 0, 0, 0, 0))


def _exactly(opened: socket.socket, size_bytes: int) -> bytes:
    data = b""
    while len(data) < size_bytes:
        piece = opened.recv(size_bytes - len(data))
        if not piece:
            raise EOFError
        data += piece
    return data


def copy(source: socket.socket, target: socket.socket) -> None:
    """Pass on what comes, until one of them ends."""
    with suppress(OSError):
        while piece := source.recv(65536):
            target.sendall(piece)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)
