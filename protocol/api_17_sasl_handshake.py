"""SaslHandshake (key 17), and the raw tokens that follow its version 0, as kafka-python 2.0 and older sarama use it.

- Both versions have one shape, and none is flexible. The mechanism is upstream's affair.
- After v1 the tokens are in SaslAuthenticate (KIP-152), and are relayed like any request.
- After v0 both sides send them bare: an int32 length, which may be 0, and the token; no api key, no correlation id.
  No header says when requests begin again, but the mechanism does: `RawSignIn` counts the turns. A mechanism whose
  turns are not known, like GSSAPI, is refused at version 0 and passes at version 1.
- The broker has no answer to a raw token that it refuses: it closes the connection, so the client's library knows
  (Kafka's SaslServerAuthenticator.handleSaslToken).
"""

import enum
import struct
from dataclasses import dataclass
from typing import Final

from protocol.errors import ErrorCode, LocalProtocolError, PeerProtocolError
from protocol.framing import LENGTH_BYTES
from protocol.headers import RequestHeader, decode_request_header
from protocol.primitives import Cursor

RAW_TOKEN_BYTES_MAX: Final = 512 * 1024
"""What a broker takes before a client has signed in (the default of its sasl.server.max.receive.size)."""

RESPONSE_HEAD_BYTES: Final = 10
"""Of a response frame, as far as its error code: length, correlation id, error code."""

_ANSWERS: Final = {"PLAIN": 1, "SCRAM-SHA-256": 2, "SCRAM-SHA-512": 2, "OAUTHBEARER": None}
"""So many tokens the broker answers. None: an empty answer is the last; any other says what is wrong with the token,
and it is the client's turn again (RFC 7628 §3.2.3, Kafka's OAuthBearerSaslServer)."""

_REFUSAL = struct.Struct(">iihi")
"""Length, correlation id, error code, count of mechanisms."""
_NEWEST = 1


@dataclass(frozen=True, slots=True)
class SaslHandshakeRequest:
    """A client's choice of mechanism, for example "PLAIN"."""

    header: RequestHeader
    mechanism: str

    @property
    def is_raw(self) -> bool:
        """Version 0: raw tokens follow, if the broker knows the mechanism."""
        return self.header.api_version == 0

    @property
    def is_refused(self) -> bool:
        """Raw tokens would follow, and nobody knows how many."""
        return self.is_raw and self.mechanism not in _ANSWERS


class _Turn(enum.Enum):
    HANDSHAKE_ANSWER = enum.auto()
    TOKEN = enum.auto()
    ANSWER = enum.auto()
    NOBODY = enum.auto()


class RawSignIn:
    """Whose turn it is after a handshake of version 0 was sent.

    Rule 1. Client and broker take turns: whatever a client pipelines behind a token is a token or a request only once
            that token is answered, so it is not looked at before. A broker reads in that order too.
    Rule 2. What a token says is not looked at; of an answer, only the length.

    Raises:
        LocalProtocolError: a mechanism whose turns are not known.
    """

    def __init__(self, mechanism: str) -> None:
        if mechanism not in _ANSWERS:
            raise LocalProtocolError(f"no raw sign-in by {mechanism!r}")
        self._answers_left = _ANSWERS[mechanism]
        self._turn = _Turn.HANDSHAKE_ANSWER

    @property
    def is_over(self) -> bool:
        """Requests and responses follow. Whether the client has signed in is not ours to know."""
        return self._turn is _Turn.NOBODY

    @property
    def awaits_broker(self) -> bool:
        """Nothing more of the client may be read."""
        return self._turn in (_Turn.HANDSHAKE_ANSWER, _Turn.ANSWER)

    def on_handshake_answer(self, head: memoryview) -> None:
        """The broker has answered the handshake; `head` is the response's first RESPONSE_HEAD_BYTES.

        Raises:
            PeerProtocolError: the response ends before.
        """
        self._take_turn(_Turn.HANDSHAKE_ANSWER)
        if len(head) < RESPONSE_HEAD_BYTES:
            raise PeerProtocolError(f"a SaslHandshake response of {len(head)} bytes")
        accepted = int.from_bytes(head[8:RESPONSE_HEAD_BYTES], "big") == ErrorCode.NONE
        self._turn = _Turn.TOKEN if accepted else _Turn.NOBODY

    def on_token(self) -> None:
        """The client sends a token."""
        self._take_turn(_Turn.TOKEN)
        self._turn = _Turn.ANSWER

    def on_answer(self, head: memoryview) -> None:
        """The broker has answered the token; `head` is that answer's length field."""
        self._take_turn(_Turn.ANSWER)
        if self._answers_left is None:
            is_last = not any(head[:LENGTH_BYTES])
        else:
            self._answers_left -= 1
            is_last = self._answers_left == 0
        self._turn = _Turn.NOBODY if is_last else _Turn.TOKEN

    def _take_turn(self, turn: _Turn) -> None:
        if self._turn is not turn:
            raise LocalProtocolError(f"{turn.name} when it is {self._turn.name}")


def decode_request(frame: memoryview) -> SaslHandshakeRequest:
    """Decode a whole request frame, length field included.

    Raises:
        PeerProtocolError: truncated, malformed, or a version that does not exist.
    """
    header = decode_request_header(frame)
    if not 0 <= header.api_version <= _NEWEST:
        raise PeerProtocolError(f"SaslHandshake version {header.api_version}")
    mechanism = Cursor(frame, header.body_position).string(flexible=False)
    if mechanism is None:
        raise PeerProtocolError("SaslHandshake names no mechanism")
    return SaslHandshakeRequest(header, mechanism)


def encode_refusal(correlation_id: int, api_version: int) -> bytes:
    """A whole response frame: UNSUPPORTED_VERSION and no mechanisms.

    Raises:
        LocalProtocolError: a version whose shape is not known.
    """
    if not 0 <= api_version <= _NEWEST:
        raise LocalProtocolError(f"no shape for SaslHandshake version {api_version}")
    return _REFUSAL.pack(_REFUSAL.size - 4, correlation_id, ErrorCode.UNSUPPORTED_VERSION, 0)
