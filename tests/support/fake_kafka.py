"""A cluster in memory that answers whole Kafka frames, for clients that wait on trio and for clients that block.

    kafka = FakeKafka(nursery)
    kafka.add(1, "a", 9092)
    monkeypatch.setattr("proxy.upstream.connection.open_transport", kafka.open_transport)
    orders = kafka.add_log(partition, end_offset=500)       # led by broker 1
    kafka.brokers[1].on(FETCH, answer)                      # in place of what a broker would answer

Brokers answer ApiVersions, Metadata, ListOffsets, OffsetForLeaderEpoch, Fetch and Produce from topics and logs that a
test may change at any time. A handler takes kio's request and gives the response's values (as `messages.build` takes
them), raw bytes to send as the frame instead, or None for no answer: a client that blocks finds its connection closed.
On trio, a handler may give an awaitable of one of these.
"""

import io
import struct
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from inspect import isawaitable
from typing import Any
from unittest import mock

import trio
from kio import index, serial
from kio.schema.errors import ErrorCode

from protocol.client.errors import TransportError, UpstreamConnectionError
from protocol.client.messages import (
    API_VERSIONS,
    APIS,
    DESCRIBE_CONFIGS,
    FETCH,
    LIST_OFFSETS,
    METADATA,
    OFFSET_FOR_LEADER_EPOCH,
    PRODUCE,
    Api,
    Values,
    build,
    kio_uuid,
)
from protocol.client.settings import ClientSettings
from proxy.upstream.metadata_topic import METADATA_TOPIC
from proxy.upstream.transport import Transport
from storage.model import TopicIdPartition
from table.brokers.client import BrokerClient
from tests.support.memory_transport import transport_pair
from tests.support.metadata_records import batch_of

Answer = Values | bytes | None
Handler = Callable[[Any], Answer | Awaitable[Answer]]

NO_TIME = timedelta(0)
SILENCE = b"no answer, and no end either"
"""What a handler gives for it, to a client that blocks."""
PIECE_BYTES = 1000
"""A client that blocks receives no more at a time."""


@dataclass(slots=True)
class FakeLog:
    """What a partition's leader says of it. `epoch_ends` are epoch asked → (epoch answered, end offset), `times` the
    offsets by the time asked for; `batches` have their last offset, `aborted` are (producer id, first offset, marker).
    """

    log_start_offset: int = 0
    local_log_start_offset: int = 0
    end_offset: int = 0
    last_stable_offset: int | None = None
    leader_epoch: int = 4
    error_code: ErrorCode = ErrorCode.none
    epoch_ends: dict[int, tuple[int, int]] = field(default_factory=dict)
    times: dict[int, int] = field(default_factory=dict)
    batches: list[tuple[int, bytes]] = field(default_factory=list)
    aborted: Sequence[tuple[int, int, int]] = ()
    fetch_batches: int = 100
    """In one answer, at most."""
    cut_bytes: bytes = b""
    """At the end of each answer."""

    @property
    def stable_offset(self) -> int:
        return self.end_offset if self.last_stable_offset is None else self.last_stable_offset

    def append(self, batch: bytes, last_offset: int) -> None:
        self.batches.append((last_offset, batch))
        self.end_offset = last_offset + 1

    def put(self, value: bytes) -> None:
        """One more record, in a batch of its own."""
        self.append(struct.pack(">q", self.end_offset) + batch_of(value, 0)[8:], self.end_offset)

    def offset_at(self, timestamp: int, *, committed: bool) -> int:
        """-1: there is none."""
        known = {
            -1: self.stable_offset if committed else self.end_offset,
            -2: self.log_start_offset,
            -4: self.local_log_start_offset,
        }
        return (known | self.times).get(timestamp, -1)


@dataclass
class FakeTopic:
    topic_id: bytes
    leaders: list[int]
    """By partition's number; -1 for none."""
    error_code: ErrorCode = ErrorCode.none
    logs: dict[int, FakeLog] = field(default_factory=dict)
    followers: tuple[int, ...] = ()
    """For every partition."""

    def log(self, partition: int) -> FakeLog:
        return self.logs.setdefault(partition, FakeLog())


class FakeBroker:
    """Answers one request after another, as brokers do; remembers what it was asked."""

    def __init__(self, *, versions: dict[int, tuple[int, int]] | None = None) -> None:
        self.versions = versions or {api.key: (api.version_min, api.version_max) for api in APIS}
        self.handlers: dict[int, Handler] = {API_VERSIONS.key: lambda _: api_versions_values(self.versions)}
        self.requests: list[Any] = []
        self.client_ids: list[str] = []
        self.connections: list[Any] = []
        """A Transport or a FakeSocket each."""
        self.connections_taken = 0

    def on(self, api: Api, handler: Handler) -> None:
        self.handlers[api.key] = handler

    def answer(self, api: Api, values: Values) -> None:
        """Always this answer."""
        self.handlers[api.key] = lambda _request: values

    def describe_configs(self, configs_of: Callable[[str], Mapping[str, str] | ErrorCode]) -> None:
        """Say that of a topic, or the error."""

        def described(asked: Any) -> Values:
            found = configs_of(asked.resource_name)
            code, given = (found, {}) if isinstance(found, ErrorCode) else (ErrorCode.none, found)
            others = {"read_only": False, "is_sensitive": False, "synonyms": (), "documentation": None}
            configs = [{"name": name, "value": value, **others} for name, value in given.items()]
            named = {"resource_type": 2, "resource_name": asked.resource_name}
            return {"error_code": code, "error_message": None, **named, "configs": configs}

        self.on(DESCRIBE_CONFIGS, lambda request: {"results": [described(each) for each in request.resources]})

    def asked(self, api: Api) -> list[Any]:
        return [request for request in self.requests if request.__api_key__ == api.key]

    def take(self, frame: bytes) -> tuple[Answer | Awaitable[Answer], Callable[[Answer], bytes]]:
        """The handler's answer, and what makes a frame of it, its length included."""
        key, version, correlation_id = struct.unpack_from(">hhi", frame)
        request_type = index.load_request_schema(key, version)
        header_type: Any = request_type.__header_schema__
        header, size = serial.entity_reader(header_type)(frame, 0)
        request, _ = serial.entity_reader(request_type)(frame, size)
        self.client_ids.append(header.client_id)
        self.requests.append(request)

        def encode(answer: Answer) -> bytes:
            if answer is None:
                return b""
            body = answer if isinstance(answer, bytes) else encode_response(key, version, correlation_id, answer)
            return struct.pack(">i", len(body)) + body

        return self.handlers[key](request), encode

    async def serve(self, transport: Transport) -> None:
        self.connections.append(transport)
        self.connections_taken += 1
        try:
            while True:
                size_bytes = int.from_bytes(await _exactly(transport, 4), "big")
                given, encode = self.take(await _exactly(transport, size_bytes))
                answer = encode(await given if isawaitable(given) else given)
                if answer:
                    await transport.send_all(answer)
        except TransportError:
            transport.abort()

    def disconnect_all(self) -> None:
        for transport in self.connections:
            transport.abort()
        self.connections.clear()


class FakeKafka:
    """Brokers, what they know, and the network to them.

    `addresses` is what Metadata says; the network may know less (a broker down) or more (one that moved). `asked` are
    the questions about topics and partitions, in order; those about the metadata topic alone begin with "metadata".
    `hooks` are called once, before the answer to one.
    """

    def __init__(self, nursery: trio.Nursery | None = None) -> None:
        """Without a nursery brokers run as system tasks, for code that calls trio.run itself."""
        self.addresses: dict[int, tuple[str, int]] = {}
        self.topics: dict[str, FakeTopic] = {}
        self.brokers: dict[int, FakeBroker] = {}
        self.listening: dict[tuple[str, int], FakeBroker] = {}
        self.attempts: list[tuple[str, int]] = []
        self.asked: list[str] = []
        self.hooks: dict[str, Callable[[], object]] = {}
        self._nursery = nursery

    # --- brokers ---

    def add(self, node_id: int, host: str, port: int = 1) -> FakeBroker:
        """A broker at an address; again for the same node id: it moved."""
        broker = self.brokers.setdefault(node_id, FakeBroker())
        old = self.addresses.get(node_id)
        if old is not None:
            self.listening.pop(old, None)
        self.addresses[node_id] = (host, port)
        self.listening[(host, port)] = broker
        broker.on(METADATA, self.metadata)
        broker.on(LIST_OFFSETS, partial(self.list_offsets, node_id))
        broker.on(OFFSET_FOR_LEADER_EPOCH, partial(self.epoch_ends, node_id))
        broker.on(FETCH, partial(self.fetch, node_id))
        broker.on(PRODUCE, partial(self.produce, node_id))
        return broker

    def stop(self, node_id: int) -> None:
        """The broker is down; Metadata still names it."""
        self.listening.pop(self.addresses[node_id], None)
        self.brokers[node_id].disconnect_all()

    def leave(self, node_id: int) -> None:
        self.stop(node_id)
        del self.addresses[node_id]

    # --- topics ---

    def add_log(self, partition: TopicIdPartition, *, end_offset: int = 0, log_start_offset: int = 0) -> FakeLog:
        """A partition that broker 1 leads, with epoch 0 up to its end. With another topic id than before, the topic was
        deleted and created again."""
        topic = self.topics.get(partition.topic)
        if topic is None or topic.topic_id != partition.topic_id:
            topic = self.topics[partition.topic] = FakeTopic(partition.topic_id, [])
        topic.leaders += [1] * (partition.partition + 1 - len(topic.leaders))
        log = FakeLog(log_start_offset, end_offset=end_offset, epoch_ends={0: (0, end_offset)})
        topic.logs[partition.partition] = log
        return log

    def log(self, topic: str, partition: int = 0) -> FakeLog:
        return self.topics[topic].log(partition)

    # --- the network ---

    async def open_transport(self, host: str, port: int, **_tls: object) -> Transport:
        """In place of the trio client's."""
        await trio.lowlevel.checkpoint()
        self.attempts.append((host, port))
        broker = self.listening.get((host, port))
        if broker is None:
            raise UpstreamConnectionError(f"cannot connect to {host}:{port}: refused")
        ours, theirs = transport_pair()
        if self._nursery is None:
            trio.lowlevel.spawn_system_task(broker.serve, theirs)
        else:
            self._nursery.start_soon(broker.serve, theirs)
        return ours

    def create_connection(self, address: tuple[str, int], _timeout_s: float | None = None) -> "FakeSocket":
        """In place of socket.create_connection."""
        self.attempts.append(address)
        broker = self.listening.get(address)
        if broker is None:
            raise ConnectionRefusedError("refused")
        return FakeSocket(broker)

    @contextmanager
    def blocking(self) -> Iterator[None]:
        """Sockets that are opened meanwhile are of this network."""
        with mock.patch("socket.create_connection", self.create_connection):
            yield

    def client(self) -> BrokerClient:
        """A blocking client, connected to the only broker."""
        client = BrokerClient(
            ClientSettings(bootstrap_servers=tuple(self.addresses.values())), wait=lambda _delay_s: None
        )
        with self.blocking():
            client.topics()
        self.asked.clear()
        return client

    # --- answers ---

    def metadata(self, request: Any) -> Values:
        names = [*self.topics] if request.topics is None else [self._name_of(entry) for entry in request.topics]
        self._question("topics", names)
        return {
            "brokers": [
                {"node_id": node_id, "host": host, "port": port, "rack": f"rack-{node_id}"}
                for node_id, (host, port) in self.addresses.items()
            ],
            "cluster_id": "fake",
            "controller_id": min(self.addresses),
            "topics": [
                _described(name, self.topics.get(name)) if name else _unknown_id(asked.topic_id)
                for name, asked in zip(names, request.topics or [None] * len(names), strict=True)
            ],
            "error_code": ErrorCode.none,
        }

    def list_offsets(self, node_id: int, request: Any) -> Values:
        stamps = {asked.timestamp for topic in request.topics for asked in topic.partitions}
        kinds = sorted({{-1: "latest", -2: "earliest"}.get(stamp, "time") for stamp in stamps})
        self._question("+".join(kinds), [topic.name for topic in request.topics])

        def offset(topic: str, asked: Any) -> Values:
            code, log = self._led(node_id, self.topics.get(topic), asked.partition_index, request.replica_id)
            found = -1 if code else log.offset_at(asked.timestamp, committed=bool(request.isolation_level))
            return {
                "partition_index": asked.partition_index,
                "error_code": code,
                "timestamp": asked.timestamp if asked.timestamp in log.times else -1,
                "offset": found,
                "leader_epoch": log.leader_epoch,
            }

        topics = []
        for topic in request.topics:
            numbers = [asked.partition_index for asked in topic.partitions]
            assert len(set(numbers)) == len(numbers), "a partition that is named twice is an INVALID_REQUEST"
            topics.append({"name": topic.name, "partitions": [offset(topic.name, asked) for asked in topic.partitions]})
        return {"topics": topics}

    def epoch_ends(self, node_id: int, request: Any) -> Values:
        """Topics come back in another order."""
        self._question("epochs", [topic.topic for topic in request.topics])

        def epoch_end(topic: str, asked: Any) -> Values:
            code, log = self._led(node_id, self.topics.get(topic), asked.partition)
            if not code and asked.current_leader_epoch not in (-1, log.leader_epoch):
                code = ErrorCode.fenced_leader_epoch
            epoch, end_offset = (-1, -1) if code else log.epoch_ends.get(asked.leader_epoch, (-1, -1))
            return {"error_code": code, "partition": asked.partition, "leader_epoch": epoch, "end_offset": end_offset}

        topics = [
            {"topic": topic.topic, "partitions": [epoch_end(topic.topic, asked) for asked in topic.partitions]}
            for topic in request.topics
        ]
        return {"topics": topics[::-1]}

    def fetch(self, node_id: int, request: Any) -> Values:
        self._question(
            "fetch", [name for name, known in self.topics.items() if known in map(self._topic, request.topics)]
        )
        responses = []
        for topic in request.topics:
            found, unknown = self._topic(topic), hasattr(topic, "topic_id") and ErrorCode.unknown_topic_id
            answers = []
            for asked in topic.partitions:
                code, log = self._led(node_id, found, asked.partition)
                code = unknown if found is None and unknown else code
                answers.append(_records(asked, code, log, committed=bool(request.isolation_level)))
            responses.append({**_named(topic, "topic"), "partitions": answers})
        return {"error_code": ErrorCode.none, "session_id": 0, "responses": responses}

    def produce(self, node_id: int, request: Any) -> Values:
        """Nothing is kept of it."""
        responses = []
        for topic in request.topic_data:
            answers = []
            for data in topic.partition_data:
                code, log = self._led(node_id, self._topic(topic), data.index)
                answer = {"index": data.index, "error_code": code, "base_offset": log.end_offset, "record_errors": ()}
                answers.append(answer)
            responses.append({**_named(topic, "name"), "partition_responses": answers})
        return {"responses": responses}

    def _led(
        self, node_id: int, topic: FakeTopic | None, partition: int, replica_id: int = -1
    ) -> tuple[ErrorCode, FakeLog]:
        """A partition's log, and the error with which this broker answers questions about it."""
        if topic is None or partition >= len(topic.leaders):
            return ErrorCode.unknown_topic_or_partition, FakeLog()
        log = topic.log(partition)
        if replica_id == -1 and topic.leaders[partition] != node_id:
            return ErrorCode.not_leader_or_follower, log
        return log.error_code, log

    def _topic(self, asked: Any) -> FakeTopic | None:
        """By id where the request has ids, else by the name, which is `topic` in a Fetch and `name` in a Produce."""
        if hasattr(asked, "topic_id"):
            return next((topic for topic in self.topics.values() if kio_uuid(topic.topic_id) == asked.topic_id), None)
        return self.topics.get(asked.topic if hasattr(asked, "topic") else asked.name)

    def _name_of(self, asked: Any) -> str:
        """Return the name of a topic that is asked for by name or by id; empty: no topic has the id."""
        by_id = {kio_uuid(topic.topic_id): name for name, topic in self.topics.items()}
        return asked.name if asked.name is not None else by_id.get(asked.topic_id, "")

    def _question(self, kind: str, topics: Sequence[str]) -> None:
        name = f"metadata {kind}" if [*topics] == [METADATA_TOPIC] else kind
        self.asked.append(name)
        if name in self.hooks:
            self.hooks.pop(name)()


class FakeSocket:
    """The client's end of a blocking connection: an answer is there as soon as its request was sent."""

    def __init__(self, broker: FakeBroker) -> None:
        self._broker = broker
        self._sent = b""
        self._answers: bytes | None = b""
        self._is_closed = False
        self._timeout_s = float("inf")
        broker.connections.append(self)
        broker.connections_taken += 1

    def setsockopt(self, *_option: int) -> None:
        """There is nothing to set."""

    def settimeout(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s

    def sendall(self, data: bytes) -> None:
        if self._is_closed:
            raise BrokenPipeError("the connection is closed")
        self._sent += data
        size = 4 + int.from_bytes(self._sent[:4], "big")
        assert len(self._sent) == size, "a client sends whole frames"
        frame, self._sent = self._sent[4:], b""
        given, encode = self._broker.take(frame)
        assert not isawaitable(given)
        self._answers = None if given is SILENCE else encode(given)

    def recv_into(self, view: memoryview) -> int:
        """Return nothing of what is not there at once: it never comes."""
        if self._answers is None:
            assert self._timeout_s < float("inf"), "it would wait for ever"
            raise TimeoutError
        piece = self._answers[: min(len(view), PIECE_BYTES)]
        self._answers = self._answers[len(piece) :]
        view[: len(piece)] = piece
        return len(piece)

    def abort(self) -> None:
        """The broker's end."""
        self._is_closed = True

    def close(self) -> None:
        self._is_closed = True


def api_versions_values(versions: dict[int, tuple[int, int]]) -> Values:
    keys = [{"api_key": key, "min_version": low, "max_version": high} for key, (low, high) in versions.items()]
    return {"error_code": ErrorCode.none, "api_keys": keys, "throttle_time": NO_TIME}


def encode_response(key: int, version: int, correlation_id: int, values: Values) -> bytes:
    """A response frame without its length."""
    response_type = index.load_response_schema(key, version)
    header_type: Any = response_type.__header_schema__
    buffer = io.BytesIO()
    serial.entity_writer(header_type)(buffer, header_type(correlation_id=correlation_id))
    serial.entity_writer(response_type)(buffer, build(response_type, {"throttle_time": NO_TIME, **values}))
    return buffer.getvalue()


def _described(name: str, topic: FakeTopic | None) -> Values:
    if topic is None or topic.error_code is not ErrorCode.none:
        code = ErrorCode.unknown_topic_or_partition if topic is None else topic.error_code
        return {"error_code": code, "name": name, "topic_id": None, "partitions": ()}
    partitions = [
        {
            "error_code": ErrorCode.none,
            "partition_index": number,
            "leader_id": leader,
            "leader_epoch": topic.log(number).leader_epoch,
            "replica_nodes": (leader, *topic.followers),
        }
        for number, leader in enumerate(topic.leaders)
    ]
    return {"error_code": ErrorCode.none, "name": name, "topic_id": kio_uuid(topic.topic_id), "partitions": partitions}


def _unknown_id(topic_id: Any) -> Values:
    return {"error_code": ErrorCode.unknown_topic_id, "name": None, "topic_id": topic_id, "partitions": ()}


def _records(asked: Any, code: ErrorCode, log: FakeLog, *, committed: bool) -> Values:
    if not code and not log.log_start_offset <= asked.fetch_offset <= log.end_offset:
        code = ErrorCode.offset_out_of_range
    found = [batch for last_offset, batch in log.batches if last_offset >= asked.fetch_offset][: log.fetch_batches]
    return {
        "partition_index": asked.partition,
        "error_code": code,
        "high_watermark": log.end_offset,
        "last_stable_offset": log.stable_offset,
        "log_start_offset": log.log_start_offset,
        "aborted_transactions": [
            {"producer_id": producer_id, "first_offset": first}
            for producer_id, first, marker in log.aborted
            if committed and marker >= asked.fetch_offset
        ],
        "preferred_read_replica": -1,
        "records": b"" if code else b"".join(found) + log.cut_bytes,
    }


def _named(topic: Any, name_field: str) -> Values:
    return {name_field: getattr(topic, name_field, None), "topic_id": getattr(topic, "topic_id", None)}


async def _exactly(transport: Transport, size: int) -> bytes:
    buffer = bytearray(size)
    received = 0
    while received < size:
        count = await transport.receive_into(memoryview(buffer)[received:])
        if count == 0:
            raise TransportError("end")
        received += count
    return bytes(buffer)
