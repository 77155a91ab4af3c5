"""A client's sign-in as it passes by: when the client counts as signed in, and whose turn it is while tokens are raw.

- Whether credentials are right is for the broker to say. Only its answers decide, read only as far as success shows:

  | mechanism | the answer that means success |
  |---|---|
  | PLAIN | the first one without an error |
  | SCRAM-SHA-256, SCRAM-SHA-512 | the one that begins with `v=` (RFC 5802 §7, server-final-message) |
  | OAUTHBEARER | an empty one; any other says what is wrong with the token (RFC 7628 §3.2.3) |
  | any other | the first one to a request that is neither ApiVersions nor of SASL |

  The last row holds because a broker answers no other request before sign-in (Kafka's SaslServerAuthenticator).
- After SaslHandshake v1 tokens are in SaslAuthenticate (KIP-152), whose answers carry an error code.
- After SaslHandshake v0, which kafka-python 2.0 and older sarama use, both sides send them raw: an int32 length, which
  may be 0, and the token; no api key, no correlation id, no error code: a broker that refuses one closes the
  connection (SaslServerAuthenticator.handleSaslToken). No header says when requests begin again, but the answer that
  means success does. A mechanism whose success shows only in later requests, like GSSAPI, is refused at version 0 and
  passes at version 1.
- A client that has signed in stays so when it signs in again on the same connection (KIP-368), whatever comes of it:
  the broker closes a connection whose second sign-in fails.
"""

import enum
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from protocol.sasl_handshake import SaslHandshakeRequest
from protocol.sign_in_name import SignInName, name_in_token, tells_name
from protocol.wire.errors import ErrorCode, LocalProtocolError, PeerProtocolError
from protocol.wire.framing import LENGTH_BYTES
from protocol.wire.identifiers import ApiKey
from protocol.wire.primitives import STRING_BYTES_MAX, Cursor
from protocol.wire.request_headers import is_flexible, response_body_position

RAW_ANSWER_BYTES_MAX: Final = 512 * 1024
"""For a broker's raw token: what a broker takes (the default of its sasl.server.max.receive.size)."""

_BEGIN_BYTES: Final = 2

HANDSHAKE_HEAD_BYTES: Final = 10
"""Head of a SaslHandshake response frame, as far as its error code: length, correlation id, error code."""
RAW_HEAD_BYTES: Final = LENGTH_BYTES + _BEGIN_BYTES
"""The part of a broker's raw token that is looked at."""
AUTHENTICATE_HEAD_BYTES: Final = STRING_BYTES_MAX + 1024
"""Head of a SaslAuthenticate response frame, as far as its token's first bytes, behind the longest error message."""

_MEANS_SUCCESS: Final[Mapping[str, Callable[[bytes], bool]]] = {
    "PLAIN": lambda begin: True,
    "SCRAM-SHA-256": lambda begin: begin == b"v=",
    "SCRAM-SHA-512": lambda begin: begin == b"v=",
    "OAUTHBEARER": lambda begin: not begin,
}
"""By mechanism, whether an answer that begins so, without an error, is the last one."""

_BEFORE_SIGN_IN: Final = frozenset({ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})
"""What a broker answers before sign-in."""


class _Turn(enum.Enum):
    HANDSHAKE_ANSWER = enum.auto()
    TOKEN = enum.auto()
    ANSWER = enum.auto()
    NOBODY = enum.auto()


class SignIn:
    """One connection's sign-ins, from what passes on it.

    Rule 1. Success is what the table of this file says, and only for a mechanism that the broker has accepted since
            the last error. Answers come in the order of requests, so each is judged by what was answered before it.
    Rule 2. While tokens are raw, client and broker take turns: whatever a client pipelines behind a token is a token or
            a request only once that token is answered, so it is not looked at before. A broker reads in that order too.
    Rule 3. What a token of the client's says decides nothing. It is looked at for the client's name only, only if
            somebody wants that. The name counts once the broker has answered that token, or the last one of its
            sign-in, with success, and until another sign-in has succeeded on the same connection.

    Args:
        is_demanded: False where upstream wants no SASL: the client is signed in from the start.
        learns_name: whether `signed_in_as` is wanted.
        certified_as: whom the client's certificate names, until it has signed in.
    """

    def __init__(self, *, is_demanded: bool, learns_name: bool = False, certified_as: SignInName | None = None) -> None:
        self.signed_in_as = certified_as
        """Who was let in, as far as that is known."""
        self.is_signed_in = not is_demanded
        """The broker has let this client in, or lets everybody in."""
        self._learns_name = learns_name
        self._mechanism: str | None = None
        self._turn = _Turn.NOBODY
        self._refusal: str | None = None
        self._offered: SignInName | None = None
        """As whom the client means to sign in, since its last SaslHandshake."""

    def take_refusal(self) -> str | None:
        """Why the broker has refused the client since this was asked last; None: it has not."""
        refusal, self._refusal = self._refusal, None
        return refusal

    @property
    def is_raw(self) -> bool:
        """Return whether a raw token comes next, or may come, in place of a request or response."""
        return self._turn is not _Turn.NOBODY

    @property
    def last_offered(self) -> SignInName | None:
        """As whom the client meant to sign in last, whether it was let in or not."""
        return self._offered

    @property
    def awaits_broker(self) -> bool:
        """Nothing more of the client may be read."""
        return self._turn in (_Turn.HANDSHAKE_ANSWER, _Turn.ANSWER)

    @property
    def wants_token(self) -> bool:
        """Return whether the client's next token may tell its name, and somebody wants to know it."""
        return self._offered is not None and tells_name(self._offered.mechanism)

    @staticmethod
    def refuses(request: SaslHandshakeRequest) -> bool:
        """Raw tokens would follow, and nothing would show which one is the last."""
        return request.is_raw and request.mechanism not in _MEANS_SUCCESS

    def on_handshake(self, request: SaslHandshakeRequest) -> None:
        """The client sends this request, which is not one to refuse.

        Raises:
            LocalProtocolError: it is, or raw tokens are still being exchanged.
        """
        if self.refuses(request):
            raise LocalProtocolError(f"no raw sign-in by {request.mechanism!r}")
        if self._learns_name:
            self._offered = SignInName(request.mechanism, None)
        if request.is_raw:
            self._take_turn(_Turn.NOBODY)
            self._turn = _Turn.HANDSHAKE_ANSWER

    def on_handshake_answer(self, request: SaslHandshakeRequest, head: memoryview) -> None:
        """The broker has answered this request; `head` is the response's first HANDSHAKE_HEAD_BYTES.

        Raises:
            PeerProtocolError: the response ends before.
        """
        if len(head) < HANDSHAKE_HEAD_BYTES:
            raise PeerProtocolError(f"a SaslHandshake response of {len(head)} bytes")
        is_accepted = int.from_bytes(head[8:HANDSHAKE_HEAD_BYTES], "big") == ErrorCode.NONE
        self._mechanism = request.mechanism if is_accepted else None
        if not is_accepted:
            self._refusal = f"the broker does not take the mechanism {request.mechanism}"
        if request.is_raw:
            self._take_turn(_Turn.HANDSHAKE_ANSWER)
            self._turn = _Turn.TOKEN if is_accepted else _Turn.NOBODY

    def offered(self, token: memoryview | None) -> SignInName | None:
        """As whom the client means to sign in by the token that it sends: to be handed back with its answer.

        Args:
            token: None if it is not at hand; it need not be unless `wants_token`.
        """
        if self._offered is not None:
            mechanism, before = self._offered
            self._offered = SignInName(mechanism, name_in_token(mechanism, token, before))
        return self._offered

    def on_raw_token(self) -> None:
        """The client sends a raw token."""
        self._take_turn(_Turn.TOKEN)
        self._turn = _Turn.ANSWER

    def on_raw_answer(self, head: memoryview, *, offered: SignInName | None = None) -> None:
        """The broker has answered it; `head` is the answer's first RAW_HEAD_BYTES, or all of it."""
        self._take_turn(_Turn.ANSWER)
        is_last = self._note_answer(bytes(head[LENGTH_BYTES:RAW_HEAD_BYTES]), offered)
        self._turn = _Turn.NOBODY if is_last else _Turn.TOKEN

    def on_authenticate_answer(self, api_version: int, head: memoryview, *, offered: SignInName | None = None) -> None:
        """The broker has answered a SaslAuthenticate; `head` is the first AUTHENTICATE_HEAD_BYTES, or all of it.

        Raises:
            PeerProtocolError: the response is malformed.
        """
        if self.is_signed_in and offered is None:
            return
        cursor = Cursor(head, response_body_position(head, ApiKey.SASL_AUTHENTICATE, api_version))
        code, flexible = cursor.int16(), is_flexible(ApiKey.SASL_AUTHENTICATE, api_version)
        if code != ErrorCode.NONE:
            self._mechanism = None
            self._refusal = f"error code {code}"
            with suppress(PeerProtocolError):  # the client is shown the answer as it is
                self._refusal = cursor.string(flexible=flexible) or self._refusal
            return
        cursor.skip_string(flexible=flexible)
        token_bytes = cursor.compact_length() if flexible else cursor.int32()
        self._note_answer(cursor.raw(min(token_bytes, _BEGIN_BYTES)), offered)

    def on_answer(self, api_key: int) -> None:
        """The broker has answered a request of this api key."""
        shows_later = self._mechanism is not None and self._mechanism not in _MEANS_SUCCESS
        if shows_later and api_key not in _BEFORE_SIGN_IN:
            self.is_signed_in = True
            if self._learns_name and self._mechanism is not None:
                self.signed_in_as = SignInName(self._mechanism, None)

    def _note_answer(self, begin: bytes, offered: SignInName | None) -> bool:
        """Return whether a token that begins so, without an error, means success."""
        means_success = _MEANS_SUCCESS.get(self._mechanism or "")
        is_success = means_success is not None and means_success(begin)
        self.is_signed_in = self.is_signed_in or is_success
        if is_success and offered is not None:
            self.signed_in_as = offered
        return is_success

    def _take_turn(self, turn: _Turn) -> None:
        if self._turn is not turn:
            raise LocalProtocolError(f"{turn.name} when it is {self._turn.name}")
