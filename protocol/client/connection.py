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
import struct
from collections import deque
from collections.abc import Generator, Mapping
from typing import Any

from protocol.client.errors import (
    UpstreamAuthenticationError,
    UpstreamConnectionError,
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
from protocol.client.sasl import SESSION_LIFETIME_SHARE, Step, sign_in
from protocol.client.settings import ClientSettings
from protocol.fetch.response import decode_response as decode_fetch_response
from protocol.wire.errors import PeerProtocolError

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
