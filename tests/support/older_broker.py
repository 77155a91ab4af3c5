"""A real broker that says it is older: a relay before it cuts what ApiVersions announces, and stands for it everywhere.

    with older_broker(cluster, {ApiKey.LIST_OFFSETS: 7}) as bootstrap_servers: ...

It is asked by the versions that it announces, as a broker before Kafka 3.6 would be (ListOffsets v8, for local log
starts, came with that). Only plain connections, one broker.
"""

import socket
import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from protocol.wire.addresses import carries_addresses, find_nodes, rewrite
from protocol.wire.identifiers import ApiKey
from protocol.wire.primitives import Cursor
from tools.demo.kafka_cluster import KafkaCluster

FRAME_BYTES_MAX = 64 * 1024 * 1024
_HEAD = struct.Struct(">hhi")


@contextmanager
def older_broker(cluster: KafkaCluster, versions_max: Mapping[int, int]) -> Iterator[str]:
    """Bootstrap servers behind which api versions above `versions_max` are not announced, and refused when asked."""
    (broker,) = cluster.brokers
    with socket.create_server(("127.0.0.1", 0)) as listener:
        relay = _Relay(listener, ("127.0.0.1", broker.port), versions_max)
        thread = threading.Thread(target=relay.run, daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
            relay.close()
            assert relay.refused == [], "asked for what is not announced"


class _Relay:
    def __init__(self, listener: socket.socket, upstream: tuple[str, int], versions_max: Mapping[int, int]) -> None:
        self.refused: list[tuple[int, int]] = []
        self._listener = listener
        self._upstream = upstream
        self._versions_max = versions_max
        self._sockets: list[socket.socket] = []

    def run(self) -> None:
        with suppress(OSError):  # the listener's end
            while True:
                client, _ = self._listener.accept()
                upstream = socket.create_connection(self._upstream)
                self._sockets += [client, upstream]
                asked: dict[int, tuple[int, int]] = {}
                for target in (self._requests, self._responses):
                    threading.Thread(target=target, args=(client, upstream, asked), daemon=True).start()

    def close(self) -> None:
        for each in self._sockets:
            each.close()

    def _requests(self, client: socket.socket, upstream: socket.socket, asked: dict[int, tuple[int, int]]) -> None:
        with suppress(OSError, EOFError):  # either side's end
            while True:
                frame = _read_frame(client)
                api_key, api_version, correlation_id = _HEAD.unpack_from(frame, 4)
                if api_version > self._versions_max.get(api_key, api_version):
                    self.refused.append((api_key, api_version))
                    break
                asked[correlation_id] = api_key, api_version
                upstream.sendall(frame)
        for each in (client, upstream):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _responses(self, client: socket.socket, upstream: socket.socket, asked: dict[int, tuple[int, int]]) -> None:
        with suppress(OSError, EOFError):  # either side's end
            while True:
                frame = memoryview(_read_frame(upstream))
                api_key, api_version = asked.pop(struct.unpack_from(">i", frame, 4)[0])
                client.sendall(self._as_older(frame, api_key, api_version))

    def _as_older(self, frame: memoryview, api_key: int, api_version: int) -> bytes | memoryview:
        if api_key == ApiKey.API_VERSIONS:
            _cut_versions(frame, api_version, self._versions_max)
        elif api_key != ApiKey.FETCH and carries_addresses(api_key, api_version):
            here = self._listener.getsockname()[:2]
            nodes = find_nodes(api_key, api_version, frame)
            return rewrite(api_key, api_version, frame, {node.node_id: here for node in nodes})
        return frame


def _cut_versions(frame: memoryview, api_version: int, versions_max: Mapping[int, int]) -> None:
    """In place: key, lowest and highest version stand one after the other."""
    cursor = Cursor(frame, 8)
    if cursor.int16():
        return  # refused
    flexible = api_version >= 3
    for _ in range(cursor.present_array_length(flexible=flexible)):
        api_key, _, highest = cursor.int16(), cursor.int16(), cursor.int16()
        struct.pack_into(">h", frame, cursor.position - 2, min(highest, versions_max.get(api_key, highest)))
        if flexible:
            cursor.skip_tags()


def _read_frame(source: socket.socket) -> bytearray:
    (size,) = struct.unpack(">i", _read(source, 4))
    assert 0 <= size <= FRAME_BYTES_MAX
    return bytearray(struct.pack(">i", size)) + _read(source, size)


def _read(source: socket.socket, size: int) -> bytearray:
    data = bytearray()
    while len(data) < size:
        part = source.recv(size - len(data))
        if not part:
            raise EOFError
        data += part
    return data
