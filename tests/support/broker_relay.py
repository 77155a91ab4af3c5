"""A relay before a real broker: it makes the broker older, or changes what it says. Only plain connections.

    with older_broker(cluster, {ApiKey.LIST_OFFSETS: 7}) as bootstrap_servers: ...
    with broker_elsewhere(cluster, 2, ("127.0.0.1", 9), through=1) as bootstrap_servers: ...
    with altering_broker(cluster, Alterations(random.Random(seed), one_in=1000)) as bootstrap_servers: ...

An older one is asked by the versions that it announces, as a broker before Kafka 3.6 would be (ListOffsets v8, for
local log starts, came with that). The relay stands for the broker everywhere, and outlives its restarts.
"""

import random
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

from protocol.fetch.response import decode_response
from protocol.wire.addresses import carries_addresses, find_nodes, rewrite
from protocol.wire.errors import PeerProtocolError
from protocol.wire.identifiers import ApiKey
from protocol.wire.primitives import Cursor
from tools.demo.kafka_cluster import KafkaCluster

FRAME_BYTES_MAX = 64 * 1024 * 1024
_HEAD = struct.Struct(">hhi")

Alter = Callable[[bytearray, int, int], None]
"""Changes an answer (its length field included) of this api key and version in place."""


@contextmanager
def older_broker(cluster: KafkaCluster, versions_max: Mapping[int, int]) -> Iterator[str]:
    """Bootstrap servers behind which api versions above `versions_max` are not announced, and refused when asked."""
    with _relayed(cluster, versions_max, lambda *_: None) as relay:
        yield relay.address
    assert relay.refused == [], "asked for what is not announced"


@contextmanager
def altering_broker(cluster: KafkaCluster, alterations: "Alterations") -> Iterator[str]:
    """Bootstrap servers behind which answers come altered."""
    with _relayed(cluster, {}, alterations) as relay:
        yield relay.address


@contextmanager
def broker_elsewhere(cluster: KafkaCluster, node_id: int, at: tuple[str, int], *, through: int) -> Iterator[str]:
    """Bootstrap servers that say of a broker that it is `at` this address; broker `through` stands for all others."""
    with _relayed(cluster, {}, lambda *_: None, through, {node_id: at}) as relay:
        yield relay.address


class Alterations:
    """Flips one bit of one answer in so many, anywhere but in its record bytes and in the names of hosts."""

    def __init__(self, chance: random.Random, *, one_in: int) -> None:
        self._chance = chance
        self._one_in = one_in
        self.altered = 0

    def __call__(self, frame: bytearray, api_key: int, api_version: int) -> None:
        if self._chance.randrange(self._one_in):
            return
        before = bytes(frame)
        records = _record_ranges(before, api_version) if api_key == ApiKey.FETCH else []
        while True:
            position, bit = self._chance.randrange(len(frame)), 1 << self._chance.randrange(8)
            if any(start <= position < end for start, end in records):
                continue
            frame[position] ^= bit
            if _same_hosts(before, frame, api_key, api_version):
                break
            frame[position] ^= bit
        self.altered += 1


def _record_ranges(frame: bytes, api_version: int) -> list[tuple[int, int]]:
    ranges, position = [], 0
    for answer in decode_response(memoryview(frame), api_version).partitions:
        for view in answer.records:
            position = frame.index(view, position)
            ranges.append((position, position + len(view)))
    return ranges


def _same_hosts(before: bytes, frame: bytearray, api_key: int, api_version: int) -> bool:
    """Return whether nobody would be sent to another host than before: nothing here may leave this machine."""
    if api_key == ApiKey.FETCH or not carries_addresses(api_key, api_version):
        return True
    try:
        nodes = find_nodes(api_key, api_version, memoryview(frame))
    except (PeerProtocolError, ValueError):
        return True
    return {node.host for node in nodes} <= {node.host for node in find_nodes(api_key, api_version, memoryview(before))}


@contextmanager
def _relayed(
    cluster: KafkaCluster,
    versions_max: Mapping[int, int],
    alter: Alter,
    through: int = 1,
    elsewhere: Mapping[int, tuple[str, int]] | None = None,
) -> Iterator["_Relay"]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        upstream = ("127.0.0.1", cluster.broker(through).port)
        relay = _Relay(listener, upstream, versions_max, alter, elsewhere or {})
        thread = threading.Thread(target=relay.run, daemon=True)
        thread.start()
        try:
            yield relay
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
            relay.close()


class _Relay:
    def __init__(
        self,
        listener: socket.socket,
        upstream: tuple[str, int],
        versions_max: Mapping[int, int],
        alter: Alter,
        elsewhere: Mapping[int, tuple[str, int]],
    ) -> None:
        self.refused: list[tuple[int, int]] = []
        self.address = f"127.0.0.1:{listener.getsockname()[1]}"
        self._listener = listener
        self._upstream = upstream
        self._versions_max = versions_max
        self._alter = alter
        self._elsewhere = elsewhere
        self._sockets: set[socket.socket] = set()

    def run(self) -> None:
        with suppress(OSError):  # the listener's end
            while True:
                client, _ = self._listener.accept()
                try:
                    upstream = socket.create_connection(self._upstream)
                except OSError:
                    client.close()
                    continue
                pair, asked = (client, upstream), dict[int, tuple[int, int]]()
                self._sockets.update(pair)
                answering = threading.Thread(
                    target=self._until_an_end, args=(self._responses, pair, asked), daemon=True
                )
                answering.start()
                threading.Thread(target=self._asking, args=(pair, asked, answering), daemon=True).start()

    def close(self) -> None:
        for each in tuple(self._sockets):
            each.close()

    def _asking(
        self, pair: tuple[socket.socket, socket.socket], asked: dict[int, tuple[int, int]], answering: threading.Thread
    ) -> None:
        self._until_an_end(self._requests, pair, asked)
        answering.join()
        for each in pair:
            each.close()
            self._sockets.discard(each)

    def _until_an_end(
        self,
        pump: Callable[[socket.socket, socket.socket, dict[int, tuple[int, int]]], None],
        pair: tuple[socket.socket, socket.socket],
        asked: dict[int, tuple[int, int]],
    ) -> None:
        with suppress(OSError, EOFError):  # either side's end
            pump(*pair, asked)
        for each in pair:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _requests(self, client: socket.socket, upstream: socket.socket, asked: dict[int, tuple[int, int]]) -> None:
        while True:
            frame = _read_frame(client)
            api_key, api_version, correlation_id = _HEAD.unpack_from(frame, 4)
            if api_version > self._versions_max.get(api_key, api_version):
                self.refused.append((api_key, api_version))
                return
            asked[correlation_id] = api_key, api_version
            upstream.sendall(frame)

    def _responses(self, client: socket.socket, upstream: socket.socket, asked: dict[int, tuple[int, int]]) -> None:
        while True:
            frame = _read_frame(upstream)
            api_key, api_version = asked.pop(struct.unpack_from(">i", frame, 4)[0])
            frame = self._as_older(frame, api_key, api_version)
            self._alter(frame, api_key, api_version)
            client.sendall(frame)

    def _as_older(self, frame: bytearray, api_key: int, api_version: int) -> bytearray:
        view = memoryview(frame)
        if api_key == ApiKey.API_VERSIONS:
            _cut_versions(view, api_version, self._versions_max)
        elif api_key != ApiKey.FETCH and carries_addresses(api_key, api_version):
            here = self._listener.getsockname()[:2]
            nodes = find_nodes(api_key, api_version, view)
            told = {node.node_id: self._elsewhere.get(node.node_id, here) for node in nodes}
            return bytearray(rewrite(api_key, api_version, view, told))
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
