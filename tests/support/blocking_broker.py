"""A scripted broker on a loopback port, in threads: for clients that block.

Answers ApiVersions by itself; everything else is a handler per API that takes kio's request and gives the response's
values, raw bytes to send as the frame instead, or None to close the connection.
"""

import socket
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from protocol.client.messages import METADATA, Api, Values
from tests.support.fake_broker import ScriptedBroker, api_versions_values
from tests.support.fake_cluster import FakeTopic, metadata_answer

Handler = Callable[[Any], Values | bytes | None]
Topics = Mapping[str, tuple[bytes, Sequence[int]]]
"""By name: topic id and the leader of each partition."""

HOST = "127.0.0.1"


class BlockingBroker(ScriptedBroker[Handler]):
    """A context manager; leaving it closes all connections and ends the threads."""

    def __init__(self, *, versions: dict[int, tuple[int, int]] | None = None) -> None:
        super().__init__(versions=versions)
        self.connections_taken = 0
        self._listener = socket.create_server((HOST, 0))
        self._connections: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]

    @property
    def port(self) -> int:
        port: int = self._listener.getsockname()[1]
        return port

    @property
    def address(self) -> tuple[str, int]:
        return HOST, self.port

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        self._listener.close()
        self.disconnect_all()
        for thread in self._threads:
            thread.join()

    def answer(self, api: Api, values: Values) -> None:
        """Always this answer."""
        self.handlers[api.key] = lambda _request: values

    def serve_metadata(self, brokers: Mapping[int, tuple[str, int]], topics: Topics, leader_epoch: int = 4) -> None:
        """Answer Metadata from these; they may be changed later."""

        def answer(request: Any) -> Values:
            known = {name: FakeTopic(topic_id, [*leaders]) for name, (topic_id, leaders) in topics.items()}
            return metadata_answer(request, brokers, known, leader_epoch)

        self.handlers[METADATA.key] = answer

    def disconnect_all(self) -> None:
        while self._connections:
            connection = self._connections.pop()
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # its peer was first

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # the listener was shut down
            self.connections_taken += 1
            self._connections.append(connection)
            thread = threading.Thread(target=self._serve, args=(connection,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                while (answer := self._answer(_frame(connection))) is not None:
                    connection.sendall(struct.pack(">i", len(answer)) + answer)
            except (EOFError, OSError):
                return  # the client's end of the connection, or ours

    def _answer(self, frame: bytes) -> bytes | None:
        request, encode = self.take(frame)
        handler = self.handler_of(request)
        return encode(api_versions_values(self.versions) if handler is None else handler(request))


def _frame(connection: socket.socket) -> bytes:
    (size,) = struct.unpack(">i", _exactly(connection, 4))
    return _exactly(connection, size)


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        received = connection.recv(size - len(data))
        if not received:
            raise EOFError
        data += received
    return data
