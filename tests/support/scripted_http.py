"""An HTTP server that answers with the bytes that a test gives it, good HTTP or not.

    with scripted_http() as server:
        server.answer(response(503, headers={"Retry-After": "7"}))
        server.answer(response(206, b"abc", headers={"Content-Length": "10"}), then="close")

Each answer serves one request, in the order they were added; the last one serves all further requests. After an
answer the connection goes on ("keep"), is closed ("close"), is closed as TLS closes ("end"), is reset ("reset"), or
goes silent until the server is closed ("stall").
"""

import socket
import ssl
import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Literal

REQUEST_BYTES_MAX = 64 * 1024 * 1024
HOLD_S_MAX = 30.0

Then = Literal["keep", "close", "end", "reset", "stall"]


def response(status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> bytes:
    """The bytes of an answer; Content-Length is the body's unless it is given."""
    given = {"Content-Length": str(len(body)), **(headers or {})}
    lines = [f"HTTP/1.1 {status} Scripted", *(f"{name}: {value}" for name, value in given.items()), "", ""]
    return "\r\n".join(lines).encode() + body


def s3_error(status: int, code: str, headers: Mapping[str, str] | None = None) -> bytes:
    """An answer with S3's body of an error."""
    body = f"<?xml version='1.0' encoding='UTF-8'?><Error><Code>{code}</Code><Message>scripted</Message></Error>"
    return response(status, body.encode(), {"Content-Type": "application/xml", **(headers or {})})


@dataclass(slots=True)
class ScriptedHttp:
    """The server. `requests` are the first lines of all requests, `bodies` what followed their heads, `connections` how
    many there were."""

    endpoint_url: str
    requests: list[str] = field(default_factory=list)
    heads: list[str] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    connections: int = 0
    _answers: list[tuple[bytes, Then]] = field(default_factory=list)
    _open: set[socket.socket] = field(default_factory=set)
    _closed: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, data: bytes, *, then: Then = "keep") -> None:
        """Add an answer."""
        with self._lock:
            self._answers.append((data, then))

    def forget(self) -> None:
        """Begin again, without answers and with nothing asked; connections stay."""
        with self._lock:
            for each in (self.requests, self.heads, self.bodies, self._answers):
                each.clear()
            self.connections = 0

    def serve(self, listener: socket.socket) -> None:
        """Accept until the listener is closed."""
        threads = []
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                if listener.fileno() < 0 or self._closed.is_set():
                    break
                continue  # a handshake that failed
            self.connections += 1
            thread = threading.Thread(target=self._serve_connection, args=(connection,))
            thread.start()
            threads.append(thread)
        for thread in threads:
            thread.join(HOLD_S_MAX)

    def close(self) -> None:
        """End what stalls, also what waits for room to send: a client that closed may leave no word of that."""
        self._closed.set()
        with self._lock:
            for connection in self._open:
                with suppress(OSError):  # it has ended already
                    socket.socket.shutdown(connection, socket.SHUT_RDWR)

    def _serve_connection(self, connection: socket.socket) -> None:
        with self._lock:
            self._open.add(connection)
        # A client that goes away is the end of a connection, not of a test.
        with connection, suppress(OSError):
            while not self._closed.is_set():
                connection.settimeout(0.1)
                head = self._request(connection)
                if head is None:
                    return
                with self._lock:
                    self.heads.append(head)
                    self.requests.append(head.partition("\r\n")[0])
                    data, then = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
                connection.settimeout(HOLD_S_MAX)
                # An answer to HEAD is its head alone, or the body would be taken for the next answer.
                connection.sendall(data[: data.find(b"\r\n\r\n") + 4] if head.startswith("HEAD ") else data)
                if then == "reset":
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                if then == "end" and isinstance(connection, ssl.SSLSocket):
                    connection.unwrap()
                if then == "stall":
                    self._closed.wait(HOLD_S_MAX)
                if then != "keep":
                    return

    def _request(self, connection: socket.socket) -> str | None:
        """Read one request with its body and give its head; None when the connection ends."""
        data = b""
        while b"\r\n\r\n" not in data:
            more = self._receive(connection)
            if not more:
                return None
            data += more
        head, _, body = data.partition(b"\r\n\r\n")
        text = head.decode("latin-1")
        lengths = [
            int(line.partition(":")[2]) for line in text.split("\r\n") if line.lower().startswith("content-length:")
        ]
        left_bytes = min(sum(lengths), REQUEST_BYTES_MAX) - len(body)
        if "100-continue" in text.lower():
            connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        while left_bytes > 0:
            more = self._receive(connection)
            if not more:
                return None
            left_bytes -= len(more)
            body += more
        self.bodies.append(body)
        return text

    def _receive(self, connection: socket.socket) -> bytes:
        while not self._closed.is_set():
            with suppress(TimeoutError):  # only to look whether the server was closed
                return connection.recv(65536)
        return b""


@contextmanager
def scripted_http(tls: ssl.SSLContext | None = None) -> Iterator[ScriptedHttp]:
    """Start a server on a free port of this machine."""
    plain = socket.create_server(("127.0.0.1", 0))
    with plain if tls is None else tls.wrap_socket(plain, server_side=True) as listener:
        scheme = "http" if tls is None else "https"
        server = ScriptedHttp(f"{scheme}://127.0.0.1:{listener.getsockname()[1]}")
        thread = threading.Thread(target=server.serve, args=(listener,))
        thread.start()
        try:
            yield server
        finally:
            server.close()
            # Closing alone does not wake an accept.
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(HOLD_S_MAX)
