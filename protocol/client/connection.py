"""One connection to a broker without its socket: versions, correlation ids, frames, the order of answers, signing in.

Rules:
- A broker answers in the order of the requests: an answer whose correlation id is not the oldest one's is a protocol
  error.
- A frame is read into memory of its own size, at most the settings' `frame_bytes_max`.
- Whatever goes wrong ends the connection; the shell closes it. Nothing is sent twice here.
- Fetch responses are decoded by our own codec, whose records are views into the frame; all others by kio.
"""

import itertools
import math
import shlex
import socket
import ssl
import struct
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from protocol.client.errors import (
    UpstreamAuthenticationError,
    UpstreamConnectionError,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamRefusedError,
)
from protocol.client.messages import (
    API_VERSIONS,
    FETCH,
    SOFTWARE_NAME,
    Api,
    Question,
    decode_response,
    encode_request,
    negotiate,
    software_version,
)
from protocol.client.sasl import SESSION_LIFETIME_SHARE, SaslCredentials, Step, sign_in
from protocol.fetch.response import decode_response as decode_fetch_response
from protocol.wire.errors import PeerProtocolError

# How to reach the brokers as ourselves: one plain value, mapped from the configuration by storage.config.
#
# An ssl.SSLContext cannot be pickled and a password must not be: what is shipped to executors is the configuration.


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """Addresses, identity and limits of our own connections. `bootstrap_servers` are (host, port).

    `frame_bytes_max` bounds one response: Metadata of 500,000 partitions has about 40 MiB. One batch, which a copier is
    given however little it asks for, may have 100. `deadline_s` is how long one call of the blocking client keeps
    trying. `kafka_principal` is who brokers take us for, where they map no names.
    """

    bootstrap_servers: tuple[tuple[str, int], ...]
    tls: ssl.SSLContext | None = None
    sasl: SaslCredentials | None = None
    client_host: str = field(default_factory=socket.gethostname)
    connect_timeout_s: float = 10.0
    request_timeout_s: float = 30.0
    reconnect_backoff_s: float = 0.05
    reconnect_backoff_max_s: float = 1.0
    deadline_s: float = 60.0
    frame_bytes_max: int = 128 * 1024 * 1024
    requests_in_flight_max: int = 64
    topics_max: int = 100_000
    kafka_principal: str = "User:ANONYMOUS"

    @property
    def principal(self) -> str:
        """Who we are, for messages."""
        return "an anonymous client" if self.sasl is None else repr(self.sasl.username)

    def grant(self, rights: Sequence[str], kind: str, names: Sequence[str]) -> str:
        """Return what an administrator types to give us these rights on topics or groups; `admin.properties` stands for
        how that one signs in."""
        host, port = self.bootstrap_servers[0]
        words = ["kafka-acls.sh", "--bootstrap-server", f"[{host}]:{port}" if ":" in host else f"{host}:{port}"]
        if self.tls is not None or self.sasl is not None:
            words += ["--command-config", "admin.properties"]
        words += ["--add", "--allow-principal", self.kafka_principal]
        words += [word for right in rights for word in ("--operation", right)]
        return shlex.join([*words, *(word for name in names for word in (f"--{kind}", name))])

    def client_id(self, role: str) -> str:
        """`tidegate-<role>-<host>`."""
        return f"{SOFTWARE_NAME}-{role}-{self.client_host}"


LENGTH_BYTES = 4

_INT32 = struct.Struct(">i")
_CORRELATION_ID_BYTES = 4


_OTHER_PROTOCOLS = {
    b"HTTP": "it answers in HTTP, not in Kafka's protocol: check the port",
    b"\x15\x03": "it answers in TLS: check upstream.security.protocol, which has none, and the port",
    b"SSH-": "it answers as an SSH server: check the port",
}
"""What other servers' first bytes look like where a frame's length should be."""


class ConnectionState:
    """What a shell asks, in this order: `opening` once; then `version_of` and `request` for each request, and
    `frame_buffer`, `answered` and `decode` for each answer."""

    def __init__(self, broker_name: str, settings: ClientSettings, role: str) -> None:
        self.broker_name = broker_name
        self.client_id = settings.client_id(role)
        self.versions: Mapping[int, tuple[int, int]] = {API_VERSIONS.key: (0, API_VERSIONS.version_max)}
        """What the broker offers: api key to (lowest, highest) version."""
        self._settings = settings
        self._correlation_ids = itertools.count(1)
        self._unanswered: deque[int] = deque()
        self._answers = 0

    def opening(self) -> Generator[Step, Any, float]:
        """Exchange ApiVersions and sign in.

        Returns:
            For how many seconds the connection may be used (KIP-368); it is replaced then.

        Raises:
            UpstreamRefusedError, UpstreamAuthenticationError, UpstreamProtocolError: we are not let in.
        """
        values = {"client_software_name": SOFTWARE_NAME, "client_software_version": software_version()}
        response = yield Question(API_VERSIONS, values)
        code = int(response.error_code)
        if code:
            raise UpstreamRefusedError(f"{self.broker_name}: ApiVersions was refused with error code {code}", code)
        self.versions = {int(entry.api_key): (entry.min_version, entry.max_version) for entry in response.api_keys}
        credentials = self._settings.sasl
        if credentials is None:
            return math.inf
        try:
            lifetime_s = yield from sign_in(credentials)
        except UpstreamAuthenticationError as error:
            raise UpstreamAuthenticationError(f"{self.broker_name}: {error}") from error
        except PeerProtocolError as error:
            raise UpstreamProtocolError(f"{self.broker_name}: {error}") from error
        except UpstreamConnectionError as error:
            raise type(error)(f"{error} while signing in as {credentials.username!r}") from error
        return lifetime_s * SESSION_LIFETIME_SHARE if lifetime_s > 0 else math.inf

    def version_of(self, question: Question[Any]) -> int:
        """The newest common version.

        Raises:
            UpstreamUnsupportedError: there is none that can answer.
        """
        return negotiate(question.api, self.versions, self.broker_name, question.version_needed)

    def request(self, question: Question[Any], version: int) -> tuple[int, bytes]:
        """The correlation id and the frame of a request that is sent next."""
        correlation_id = next(self._correlation_ids) & 0x7FFFFFFF
        frame = encode_request(question.api, version, question.values, correlation_id, self.client_id)
        self._unanswered.append(correlation_id)
        return correlation_id, frame

    def frame_buffer(self, length_field: bytes | bytearray) -> bytearray:
        """Memory for a whole frame, its length field filled in.

        Raises:
            UpstreamProtocolError: the frame is too long, or too short for an answer.
        """
        size, limit = _INT32.unpack(length_field)[0], self._settings.frame_bytes_max
        if not _CORRELATION_ID_BYTES <= size <= limit:
            words = _OTHER_PROTOCOLS.get(bytes(length_field)) or _OTHER_PROTOCOLS.get(bytes(length_field[:2]))
            if words is not None:
                raise UpstreamProtocolError(f"{self.broker_name}: {words}")
            raise UpstreamProtocolError(
                f"{self.broker_name}: a frame of {size} bytes, {limit} are accepted: is this Kafka's port?"
            )
        buffer = bytearray(LENGTH_BYTES + size)
        buffer[:LENGTH_BYTES] = length_field
        return buffer

    @property
    def ended_words(self) -> str:
        """Return what it may mean that the broker closed the connection now."""
        if not self._answers:
            return (
                "the broker closed the connection at our first request: the listener may want TLS; check"
                " upstream.security.protocol and the port"
            )
        if self._answers == 1 and self._settings.sasl is None:
            return (
                "the broker closed the connection at our first question: the listener may want a sign-in (SASL);"
                " check upstream.security.protocol"
            )
        return "the broker closed the connection"

    def answered(self, frame: bytearray) -> int:
        """The correlation id of the request that this whole frame answers.

        Raises:
            UpstreamProtocolError: it answers another than the oldest unanswered one.
        """
        correlation_id: int = _INT32.unpack_from(frame, LENGTH_BYTES)[0]
        if not self._unanswered or self._unanswered.popleft() != correlation_id:
            raise UpstreamProtocolError(f"{self.broker_name}: an answer to request {correlation_id}, which is not next")
        self._answers += 1
        return correlation_id

    def decode(self, api: Api, version: int, frame: bytearray) -> Any:
        """The body in a whole frame: kio's dataclass of that version, or protocol.fetch's FetchResponse.

        Raises:
            UpstreamProtocolError, UpstreamUnsupportedError: as `protocol.client.messages.decode_response`.
        """
        if api.key != FETCH.key:
            return decode_response(api, version, memoryview(frame)[LENGTH_BYTES:], self.broker_name)
        try:
            return decode_fetch_response(memoryview(frame), version)
        except PeerProtocolError as error:
            raise UpstreamProtocolError(f"{self.broker_name}: {error}") from error


# Steps of a conversation with brokers, and the two loops that take them: one that blocks, one for async shells.
#
# A conversation is a generator. It yields what is to be asked or done, gets the answer back, has the client's errors
# thrown in where it waits for an answer, and returns its result. It knows no socket, no thread and no clock.


S = TypeVar("S")
T = TypeVar("T")


def drive(steps: Generator[S, Any, T], answer: Callable[[S], Any]) -> T:
    """Return what the conversation returns, with each step answered by `answer`."""
    advance: Callable[[], S] = partial(next, steps)
    while True:
        try:
            step = advance()
        except StopIteration as done:
            result: T = done.value
            return result
        try:
            advance = partial(steps.send, answer(step))
        except UpstreamError as error:
            advance = partial(steps.throw, error)


async def drive_async(steps: Generator[S, Any, T], answer: Callable[[S], Awaitable[Any]]) -> T:
    """`drive` for an `answer` that is awaited."""
    advance: Callable[[], S] = partial(next, steps)
    while True:
        try:
            step = advance()
        except StopIteration as done:
            result: T = done.value
            return result
        try:
            advance = partial(steps.send, await answer(step))
        except UpstreamError as error:
            advance = partial(steps.throw, error)
