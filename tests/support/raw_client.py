"""A blocking client over one socket that sends exactly what a test says and gives back exactly what came.

    with RawClient("127.0.0.1", port) as client:
        client.sasl_plain("alice", "secret")
        result = client.fetch(13, [("orders", topic_id, 0, 4711, 1 << 20)])
        assert result.partitions[0].records == expected

Frames are whole: their length field is part of them. Messages are kio's dataclasses; only Fetch responses are
decoded by our own codec, because kio does not leave records as they are. Timeouts raise TimeoutError, a closed
connection raises EOFError; both close the client, for what comes next would be out of step.
"""

import datetime
import itertools
import socket
import ssl
import struct
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from kio.serial import entity_reader

from protocol.fetch.response import decode_response
from tests.support.kio_frames import decode, fill, schema
from tests.support.kio_frames import request_frame as request_frame
from tests.support.waiting import wait_until

PRODUCE, FETCH, LIST_OFFSETS, METADATA = 0, 1, 2, 3
SASL_HANDSHAKE, API_VERSIONS, SASL_AUTHENTICATE = 17, 18, 36

TIMEOUT_S = 15.0
RESPONSE_BYTES_MAX = 256 * 1024 * 1024

FetchTarget = tuple[str, bytes | None, int, int, int]
"""Topic, topic id (needed from v13 on), partition, offset, partition max bytes."""


@dataclass(frozen=True, slots=True)
class FetchedPartition:
    """One partition's answer; `records` is b"" for an empty set and for null. `aborted` is None for null."""

    topic: str
    partition: int
    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: list[tuple[int, int]] | None
    preferred_read_replica: int
    records: bytes


@dataclass(frozen=True, slots=True)
class FetchResult:
    """A Fetch response. `frame` is what came, whole."""

    error_code: int
    session_id: int
    throttle_time_ms: int
    partitions: list[FetchedPartition]
    frame: bytes


@dataclass(frozen=True, slots=True)
class ListedOffset:
    """One partition's answer to ListOffsets."""

    topic: str
    partition: int
    error_code: int
    timestamp_ms: int
    offset: int
    leader_epoch: int


class RawClient:
    """One connection. Not thread-safe."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        client_id: str | None = "raw-client",
        timeout_s: float = TIMEOUT_S,
        ssl_context: ssl.SSLContext | None = None,
        server_hostname: str | None = None,
        receive_buffer_bytes: int | None = None,
    ) -> None:
        """`server_hostname` is the name for SNI and the certificate check; default is `host`. A small receive buffer
        is soon full where a test does not read.

        `sent_bytes` and `received_bytes` count what went over the socket, without TLS.
        """
        self.client_id = client_id
        self.timeout_s = timeout_s
        self.sent_bytes = 0
        self.received_bytes = 0
        self._correlation_ids = itertools.count(1)
        self.socket = _connected(host, port, timeout_s, receive_buffer_bytes)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if ssl_context is not None:
            self.socket = ssl_context.wrap_socket(self.socket, server_hostname=server_hostname or host)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    # --- bytes ---

    def send_bytes(self, data: bytes) -> None:
        """Send just these bytes."""
        self.socket.settimeout(self.timeout_s)
        self.socket.sendall(data)
        self.sent_bytes += len(data)

    def read_frame(self, timeout_s: float | None = None) -> bytes:
        """The next frame, its length field included.

        Raises:
            TimeoutError: it did not come in time.
            EOFError: the peer closed before it was whole.
        """
        self.socket.settimeout(self.timeout_s if timeout_s is None else timeout_s)
        try:
            head = self.read_exactly(4)
            (length,) = struct.unpack(">i", head)
            if not 0 <= length <= RESPONSE_BYTES_MAX:  # a bare SASL token may be empty
                raise ValueError(f"a response frame of {length} bytes")
            return head + self.read_exactly(length)
        except BaseException:
            self.close()
            raise

    def is_closed_by_peer(self, timeout_s: float | None = None) -> bool:
        """Return whether the peer closes the connection in time; bytes that still come are dropped."""
        self.socket.settimeout(self.timeout_s if timeout_s is None else timeout_s)
        try:
            while self.socket.recv(65536):
                pass
        except TimeoutError:
            return False
        except ConnectionError:
            return True
        return True

    # --- messages ---

    def frame(self, message: Any, correlation_id: int) -> bytes:
        """A request as a whole frame."""
        return request_frame(message, correlation_id, self.client_id)

    def send(self, message: Any) -> int:
        """Send a request without waiting; its correlation id. For pipelining."""
        correlation_id = next(self._correlation_ids)
        self.send_bytes(self.frame(message, correlation_id))
        return correlation_id

    def request(self, message: Any, timeout_s: float | None = None) -> Any:
        """Send one of kio's requests, give kio's response."""
        correlation_id = self.send(message)
        frame = self.read_frame(timeout_s)
        _check_correlation_id(frame, correlation_id)
        return decode_frame(message.__api_key__, message.__version__, frame)

    def call(self, api_key: int, api_version: int, values: Mapping[str, object]) -> Any:
        """Build a request from field values, superset of all versions, and send it."""
        return self.request(fill(schema(api_key, api_version, kind="request"), values))

    def sasl_plain(self, username: str, password: str) -> int:
        """Sign in; the error code of the last step, 0 when signed in."""
        handshake = self.call(SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})
        if handshake.error_code:
            return int(handshake.error_code)
        token = b"\0".join((b"", username.encode(), password.encode()))
        return int(self.call(SASL_AUTHENTICATE, 2, {"auth_bytes": token}).error_code)

    def api_versions(self) -> dict[int, tuple[int, int]]:
        """Lowest and highest version by api key."""
        values = {"client_software_name": "raw-client", "client_software_version": "1"}
        response = self.call(API_VERSIONS, 3, values)
        return {int(api.api_key): (api.min_version, api.max_version) for api in response.api_keys}

    def metadata(self, topics: Sequence[str] | None = None, version: int = 12) -> Any:
        """kio's Metadata response; None asks for all topics."""
        wanted = None if topics is None else [{"name": topic, "topic_id": None} for topic in topics]
        refused = ("allow_auto_topic_creation", "include_topic_authorized_operations")
        values: dict[str, object] = dict.fromkeys([*refused, "include_cluster_authorized_operations"], False)
        return self.call(METADATA, version, values | {"topics": wanted})

    def topic_id(self, topic: str) -> bytes:
        """The topic's id, 16 bytes."""
        (found,) = self.metadata([topic]).topics
        return bytes(16) if found.topic_id is None else bytes(found.topic_id.bytes)

    def fetch(
        self, version: int, targets: Sequence[FetchTarget], *, timeout_s: float | None = None, **fields: Any
    ) -> FetchResult:
        """One Fetch, `fields` as in `fetch_request`; the answer's records as they came."""
        correlation_id = self.send(fetch_request(version, targets, **fields))
        frame = self.read_frame(timeout_s)
        _check_correlation_id(frame, correlation_id)
        return fetch_result(frame, version, {topic_id: topic for topic, topic_id, *_ in targets if topic_id})

    def patient_fetch(self, version: int, targets: Sequence[FetchTarget], **fields: Any) -> FetchResult:
        """The same, until each partition has records or an error: what the tier gives late comes empty, and a client
        asks again."""

        def look() -> FetchResult | None:
            result = self.fetch(version, targets, **fields)
            return result if all(each.records or each.error_code for each in result.partitions) else None

        found = wait_until(look, f"an answer for {targets}")
        assert found is not None
        return found

    def list_offsets(
        self,
        version: int,
        targets: Sequence[tuple[str, int, int]],
        *,
        isolation: int = 0,
        current_leader_epoch: int = -1,
        timeout_ms: int = 30_000,
    ) -> list[ListedOffset]:
        """Offsets for (topic, partition, timestamp); the request has a timeout from v10 on."""
        topics = [
            {
                "name": topic,
                "partitions": [
                    {"partition_index": partition, "timestamp": timestamp, "current_leader_epoch": current_leader_epoch}
                    for _, partition, timestamp in group
                ],
            }
            for topic, group in itertools.groupby(targets, key=lambda target: target[0])
        ]
        values = {"replica_id": -1, "isolation_level": isolation, "topics": topics, "timeout": _ms(timeout_ms)}
        response = self.call(LIST_OFFSETS, version, values)
        return [
            ListedOffset(
                topic.name,
                partition.partition_index,
                int(partition.error_code),
                partition.timestamp,
                partition.offset,
                getattr(partition, "leader_epoch", -1),
            )
            for topic in response.topics
            for partition in topic.partitions
        ]

    def produce(
        self, topic: str, partition: int, batch: bytes, *, acks: int = -1, version: int = 9
    ) -> tuple[int, int] | None:
        """Produce batches as they are, by name (v3 to v12); error code and base offset, or None for acks 0."""
        data = [{"name": topic, "partition_data": [{"index": partition, "records": batch}]}]
        values = {"transactional_id": None, "acks": acks, "timeout": _ms(30_000), "topic_data": data}
        message = fill(schema(PRODUCE, version, kind="request"), values)
        if acks == 0:
            self.send(message)
            return None
        (answer,) = (part for each in self.request(message).responses for part in each.partition_responses)
        return int(answer.error_code), int(answer.base_offset)

    def read_exactly(self, size: int) -> bytes:
        data = bytearray(size)
        view, filled = memoryview(data), 0
        while filled < size:
            received = self.socket.recv_into(view[filled:])
            if not received:
                raise EOFError(f"closed by the peer after {filled} of {size} bytes")
            filled += received
            self.received_bytes += received
        return bytes(data)


def address_of(server: str) -> tuple[str, int]:
    """Return host and port of `host:port`."""
    host, _, port = server.rpartition(":")
    return host, int(port)


def fetch_request(
    version: int,
    targets: Sequence[FetchTarget],
    *,
    isolation: int = 0,
    max_bytes: int = 50 * 1024 * 1024,
    max_wait_ms: int = 500,
    min_bytes: int = 1,
    session: tuple[int, int] = (0, -1),
    current_leader_epoch: int = -1,
    forgotten: Sequence[tuple[str, bytes | None, int]] = (),
) -> Any:
    """kio's Fetch request of that version, for partitions grouped by runs of one topic."""
    same = {
        "current_leader_epoch": current_leader_epoch,
        "last_fetched_epoch": -1,
        "log_start_offset": -1,
        "high_watermark": 2**63 - 1,
        "replica_directory_id": None,
    }
    topics = [
        {
            "topic": topic,
            "topic_id": _kio_uuid(topic_id),
            "partitions": [
                {"partition": partition, "fetch_offset": offset, "partition_max_bytes": partition_max_bytes, **same}
                for _, _, partition, offset, partition_max_bytes in group
            ],
        }
        for (topic, topic_id), group in itertools.groupby(targets, key=lambda target: target[:2])
    ]
    values: dict[str, object] = {
        "cluster_id": None,
        "replica_id": -1,
        "replica_state": {"replica_id": -1, "replica_epoch": -1},
        "max_wait": _ms(max_wait_ms),
        "min_bytes": min_bytes,
        "max_bytes": max_bytes,
        "isolation_level": isolation,
        "session_id": session[0],
        "session_epoch": session[1],
        "topics": topics,
        "forgotten_topics_data": [
            {"topic": topic, "topic_id": _kio_uuid(topic_id), "partitions": [partition]}
            for topic, topic_id, partition in forgotten
        ],
        "rack_id": "",
    }
    return fill(schema(FETCH, version, kind="request"), values)


def fetch_result(frame: bytes, version: int, topic_names: Mapping[bytes, str]) -> FetchResult:
    """A whole Fetch response frame taken apart; `topic_names` by id, for v13 and later."""
    response = decode_response(memoryview(frame), version)
    return FetchResult(
        response.error_code,
        response.session_id,
        response.throttle_time_ms,
        [
            FetchedPartition(
                answer.topic if answer.topic is not None else topic_names[bytes(answer.topic_id or b"")],
                answer.partition,
                answer.error_code,
                answer.high_watermark,
                answer.last_stable_offset,
                answer.log_start_offset,
                answer.aborted_transactions,
                answer.preferred_read_replica,
                b"".join(answer.records),
            )
            for answer in response.partitions
        ],
        frame,
    )


def decode_frame(api_key: int, api_version: int, frame: bytes) -> Any:
    """kio's response in a whole frame; all of it must be used."""
    response_type = schema(api_key, api_version)
    _, header_bytes = entity_reader(response_type.__header_schema__)(frame, 4)
    return decode(response_type, frame[4 + header_bytes :])


def _connected(host: str, port: int, timeout_s: float, receive_buffer_bytes: int | None) -> socket.socket:
    if receive_buffer_bytes is None:
        return socket.create_connection((host, port), timeout_s)
    connected = socket.socket()
    try:
        # Linux bounds the window by what the buffer is when the connection is made.
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        connected.settimeout(timeout_s)
        connected.connect((host, port))
    except BaseException:
        connected.close()
        raise
    return connected


def _check_correlation_id(frame: bytes, expected: int) -> None:
    (correlation_id,) = struct.unpack_from(">i", frame, 4)
    if correlation_id != expected:
        raise ValueError(f"an answer to request {correlation_id}, not to {expected}")


def _ms(milliseconds: int) -> datetime.timedelta:
    return datetime.timedelta(milliseconds=milliseconds)


def _kio_uuid(topic_id: bytes | None) -> uuid.UUID | None:
    return uuid.UUID(bytes=topic_id) if topic_id and any(topic_id) else None
