"""A client that does nothing but Fetch: one request in flight, the answer received into one buffer and not decoded.

What it asks is learned beforehand, so that both sides are asked the same and the timed loop does no work of its own:
`learn_requests` reads the partitions once and notes where each answer ended.
"""

import math
import socket
import ssl
import struct
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any, Self

from benchmarks.support.stage import Address
from protocol.fetch.messages import NO_SESSION_ID, SESSIONLESS_EPOCH, FetchPartition, FetchRequest
from protocol.fetch.requests import encode_request
from protocol.fetch.response import decode_response
from protocol.record_batches import iterate_batches
from protocol.wire.identifiers import ApiKey
from protocol.wire.primitives import write_string
from tests.support.raw_client import decode_frame

FETCH_VERSION = 17
METADATA_VERSION = 12
PARTITION_BYTES_MAX = 1024 * 1024
_FETCH_BYTES_MAX = 50 * 1024 * 1024
_BUFFER_BYTES = 16 * 1024 * 1024
_TIMEOUT_S = 30.0
_CORRELATION_ID = 7
_WHOLE = 0.99
"""The part of the expected bytes with which an answer counts as whole."""
_WARM_UP_ASKS_MAX = 30
_LENGTH = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class FetchStep:
    """One request frame, and the size of the answer that it is owed."""

    frame: bytes
    answer_bytes: int


@dataclass(frozen=True, slots=True)
class Transfer:
    """Bytes read by a client in some time."""

    read_bytes: int
    seconds: float

    @property
    def megabytes_per_s(self) -> float:
        return self.read_bytes / self.seconds / 1e6


class BareClient:
    """One connection."""

    def __init__(self, address: Address, tls: ssl.SSLContext | None = None) -> None:
        self._socket = socket.create_connection(address, _TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A socket with a timeout asks poll() before each receive, which a client that means it would not.
        self._socket.settimeout(None)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", int(_TIMEOUT_S), 0))
        if tls is not None:
            self._socket = tls.wrap_socket(self._socket, server_hostname=address[0])
        self._view = memoryview(bytearray(_BUFFER_BYTES))
        self.answered_s = 0.0
        """When the last answer began, by time.perf_counter."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._socket.close()

    def ask(self, frame: bytes) -> memoryview:
        """Send a request; its whole answer, which the next call overwrites.

        Raises:
            EOFError: the connection was closed.
        """
        self._socket.sendall(frame)
        view, receive = self._view, self._socket.recv_into
        filled, wanted = 0, _LENGTH.size
        while filled < wanted:
            got = receive(view[filled:])
            if not got:
                raise EOFError(f"closed after {filled} bytes of an answer")
            if filled < _LENGTH.size <= filled + got:
                wanted = _LENGTH.unpack_from(view)[0] + _LENGTH.size
                self.answered_s = time.perf_counter()
            filled += got
        return view[:filled]

    def topic_id(self, topic: str) -> bytes:
        """The id that Metadata tells."""
        (found,) = self._metadata(topic).topics
        topic_id: bytes = found.topic_id.bytes
        return topic_id

    def leader(self, topic: str, partition: int) -> Address:
        """Return where Metadata says that the partition is read."""
        told = self._metadata(topic)
        leaders = {each.partition_index: each.leader_id for each in told.topics[0].partitions}
        return {each.node_id: (str(each.host), int(each.port)) for each in told.brokers}[leaders[partition]]

    @property
    def port(self) -> int:
        """Our own."""
        port: int = self._socket.getsockname()[1]
        return port

    def _metadata(self, topic: str) -> Any:
        return decode_frame(ApiKey.METADATA, METADATA_VERSION, bytes(self.ask(metadata_request(topic))))


def warm_up(address: Address, steps: Sequence[FetchStep]) -> None:
    """Ask each step until its answer is whole: what comes from the tier for the first time may come in parts.

    Raises:
        ValueError: it never is.
    """
    with BareClient(address) as client:
        for step in steps:
            if not any(len(client.ask(step.frame)) >= _WHOLE * step.answer_bytes for _ in range(_WARM_UP_ASKS_MAX)):
                raise ValueError(f"no answer of {step.answer_bytes} bytes in {_WARM_UP_ASKS_MAX}")


def read_for(
    address: Address, steps: Sequence[FetchStep], seconds: float, tls: ssl.SSLContext | None = None
) -> Transfer:
    """Ask the steps over and over for so long.

    Raises:
        ValueError: as `read_steps`.
    """
    with BareClient(address, tls) as client:
        client.ask(steps[0].frame)
        return _read(client, cycle(steps), seconds)


def read_steps(address: Address, steps: Iterable[FetchStep], tls: ssl.SSLContext | None = None) -> Transfer:
    """Ask each of the steps once.

    Raises:
        ValueError: an answer is much smaller than the one that was learned: an error, or a read that was not there
            in time, must not pass for speed.
    """
    with BareClient(address, tls) as client:
        return _read(client, steps, math.inf)


def _read(client: BareClient, steps: Iterable[FetchStep], seconds: float) -> Transfer:
    read_bytes, elapsed_s = 0, 0.0
    started_s = time.perf_counter()
    for step in steps:
        answer_bytes = len(client.ask(step.frame))
        if answer_bytes < _WHOLE * step.answer_bytes:
            raise ValueError(f"an answer of {answer_bytes} bytes in place of {step.answer_bytes}")
        read_bytes += answer_bytes
        elapsed_s = time.perf_counter() - started_s
        if elapsed_s >= seconds:
            break
    return Transfer(read_bytes, elapsed_s)


def learn_requests(address: Address, topic: str, ends: Mapping[int, int]) -> list[FetchStep]:
    """Fetches that read each partition from its beginning to `ends`, 1 MiB of each partition at a time.

    The last step is the last one in which every partition still has a full answer.
    """
    steps: list[FetchStep] = []
    offsets = dict.fromkeys(ends, 0)
    with BareClient(address) as client:
        topic_id = client.topic_id(topic)
        while True:
            frame = fetch_request(topic_id, offsets, max_wait_ms=10_000)
            answer = client.ask(frame)
            for partition in decode_response(answer, FETCH_VERSION).partitions:
                if partition.error_code:
                    raise ValueError(f"partition {partition.partition}: error code {partition.error_code}")
                for _, header in iterate_batches(partition.records):
                    offsets[partition.partition] = header.last_offset + 1
            if any(offsets[partition] >= end for partition, end in ends.items()):
                return steps
            steps.append(FetchStep(frame, len(answer)))


def fetch_request(
    topic_id: bytes, offsets: Mapping[int, int], *, max_wait_ms: int, partition_bytes_max: int = PARTITION_BYTES_MAX
) -> bytes:
    """A sessionless Fetch of these partitions, as a whole frame."""
    partitions = [
        FetchPartition(None, topic_id, partition, -1, offset, -1, -1, partition_bytes_max)
        for partition, offset in offsets.items()
    ]
    return fetch_frame(partitions, max_wait_ms=max_wait_ms)


def fetch_frame(
    partitions: Sequence[FetchPartition],
    *,
    max_wait_ms: int,
    session_id: int = NO_SESSION_ID,
    session_epoch: int = SESSIONLESS_EPOCH,
) -> bytes:
    """A Fetch as a whole frame."""
    request = FetchRequest(
        api_version=FETCH_VERSION,
        correlation_id=_CORRELATION_ID,
        client_id="benchmark",
        replica_id=-1,
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=_FETCH_BYTES_MAX,
        isolation_level=0,
        session_id=session_id,
        session_epoch=session_epoch,
        session_epoch_position=None,
        partitions=[*partitions],
        rack_id="",
    )
    return encode_request(
        request,
        partitions,
        correlation_id=_CORRELATION_ID,
        max_wait_ms=max_wait_ms,
        min_bytes=1 if max_wait_ms else 0,
        max_bytes=_FETCH_BYTES_MAX,
        session_id=session_id,
        session_epoch=session_epoch,
    )


def metadata_request(topic: str) -> bytes:
    """Metadata v12 of one topic by name, as a whole frame."""
    header = struct.pack(">hhih", ApiKey.METADATA, METADATA_VERSION, _CORRELATION_ID, -1) + b"\0"
    one_topic = b"\x02" + bytes(16) + write_string(topic, flexible=True) + b"\0"
    body = header + one_topic + b"\0\0\0"  # no auto creation, no authorized operations, no tags
    return _LENGTH.pack(len(body)) + body
