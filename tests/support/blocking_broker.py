"""A scripted broker on a loopback port, in threads: for clients that block.

Answers ApiVersions by itself; everything else is a handler per API that takes kio's request and gives the response's
values, raw bytes to send as the frame instead, or None to close the connection.
"""

import socket
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from kio import index, serial
from kio.schema.errors import ErrorCode

from protocol.client.messages import API_VERSIONS, APIS, METADATA, Api, Values, kio_uuid
from tests.support.fake_broker import api_versions_values, encode_response

Handler = Callable[[Any], Values | bytes | None]
Topics = Mapping[str, tuple[bytes, Sequence[int]]]
"""By name: topic id and the leader of each partition."""

HOST = "127.0.0.1"


class BlockingBroker:
    """A context manager; leaving it closes all connections and ends the threads."""

    def __init__(self, *, versions: dict[int, tuple[int, int]] | None = None) -> None:
        self.versions = versions or {api.key: (api.version_min, api.version_max) for api in APIS}
        self.requests: list[Any] = []
        self.client_ids: list[str] = []
        self.connections_taken = 0
        self._handlers: dict[int, Handler] = {}
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

    def on(self, api: Api, handler: Handler) -> None:
        self._handlers[api.key] = handler

    def answer(self, api: Api, values: Values) -> None:
        """Always this answer."""
        self._handlers[api.key] = lambda _request: values

    def serve_metadata(self, brokers: Mapping[int, tuple[str, int]], topics: Topics, leader_epoch: int = 4) -> None:
        """Answer Metadata from these; they may be changed later."""
        self._handlers[METADATA.key] = lambda request: _metadata(request, brokers, topics, leader_epoch)

    def asked(self, api: Api) -> list[Any]:
        return [request for request in self.requests if request.__api_key__ == api.key]

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
        key, version, correlation_id = struct.unpack_from(">hhi", frame)
        request_type = index.load_request_schema(key, version)
        header_type: Any = request_type.__header_schema__
        header, size = serial.entity_reader(header_type)(frame, 0)
        request, _ = serial.entity_reader(request_type)(frame, size)
        self.client_ids.append(header.client_id)
        self.requests.append(request)
        if key == API_VERSIONS.key and key not in self._handlers:
            values: Values | bytes | None = api_versions_values(self.versions)
        else:
            values = self._handlers[key](request)
        if values is None or isinstance(values, bytes):
            return values
        return encode_response(key, version, correlation_id, values)


def _metadata(request: Any, brokers: Mapping[int, tuple[str, int]], topics: Topics, leader_epoch: int) -> Values:
    names = list(topics) if request.topics is None else [topic.name for topic in request.topics]
    return {
        "brokers": [
            {"node_id": node_id, "host": host, "port": port, "rack": None} for node_id, (host, port) in brokers.items()
        ],
        "cluster_id": "fake",
        "controller_id": min(brokers),
        "topics": [_topic(name, topics.get(name), leader_epoch) for name in names],
        "error_code": ErrorCode.none,
    }


def _topic(name: str, known: tuple[bytes, Sequence[int]] | None, leader_epoch: int) -> Values:
    topic_id, leaders = known or (bytes(16), ())
    partitions = [
        {
            "error_code": ErrorCode.none,
            "partition_index": partition,
            "leader_id": leader,
            "leader_epoch": leader_epoch,
            "replica_nodes": (leader,),
            "isr_nodes": (leader,),
            "offline_replicas": (),
        }
        for partition, leader in enumerate(leaders)
    ]
    return {
        "error_code": ErrorCode.none if known else ErrorCode.unknown_topic_or_partition,
        "name": name,
        "topic_id": kio_uuid(topic_id),
        "is_internal": False,
        "partitions": partitions,
    }


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
