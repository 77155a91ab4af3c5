"""Signing in to a broker: SaslHandshake v1, then SaslAuthenticate (KIP-43, KIP-152), for our own identity, sans-IO.

- PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 and OAUTHBEARER with a token from the configuration.
- `sign_in` is a generator of steps. A shell sends each `Question` and gives back its response, runs each `Compute`
  where it may take its time and gives back the result, until the generator returns the session's lifetime.
- The lifetime (KIP-368) is the shell's to keep: it replaces a connection before the session ends; we never
  re-authenticate on a connection in use.
- Errors name principal and mechanism, never a password or token.
"""

import base64
import binascii
import functools
import hashlib
import hmac
import secrets
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeAlias

from protocol.client.errors import UpstreamAuthenticationError
from protocol.client.messages import SASL_AUTHENTICATE, SASL_HANDSHAKE, Question
from protocol.wire.errors import ErrorCode, PeerProtocolError

# SCRAM-SHA-256 and SCRAM-SHA-512 for a client (RFC 5802, RFC 7677), sans-IO.
#
# - Messages: client-first, server-first, client-final, server-final; channel binding is none (`n,,`).
# - The server's nonce must begin with ours and add to it; its signature is checked, so a broker that does
#   not know the password is found out.
# - The iteration count must lie in 4096..1,000,000: below is weak (Kafka's own minimum), above is a way to
#   hold our processor.
# - Names and passwords are UTF-8 as they are. RFC 5802 asks for SASLprep, Kafka's brokers and clients do not do it:
#   a password prepared here would not match the one that Kafka has stored.


HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}

ITERATIONS_MIN = 4096
ITERATIONS_MAX = 1_000_000
SERVER_MESSAGE_BYTES_MAX = 64 * 1024
"""A server-first message has a nonce, a salt and a number: some hundred bytes."""

_GS2_HEADER = "n,,"
_NONCE_BYTES = 24


class ScramClient:
    """One SCRAM conversation: `first_message`, `final_message`, `verify`, in that order.

    Every failure is an UpstreamAuthenticationError that names principal and mechanism.
    """

    def __init__(self, mechanism: str, username: str, password: str, nonce: str | None = None) -> None:
        self._mechanism = mechanism
        self._username = username
        self._password = password
        self._hash_name = HASHES[mechanism]
        self._nonce = nonce if nonce is not None else base64.b64encode(secrets.token_bytes(_NONCE_BYTES)).decode()
        self._server_signature = b""

    def first_message(self) -> bytes:
        return (_GS2_HEADER + self._first_message_bare()).encode()

    def final_message(self, server_first: bytes) -> bytes:
        """The proof for the server's salt and iterations. PBKDF2 runs here: tens to hundreds of milliseconds."""
        attributes = self._attributes(server_first)
        nonce = attributes.get("r", "")
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):
            raise self._failed("the server's nonce does not extend ours")
        salt = self._decoded(attributes.get("s", ""), "salt")
        iterations = self._iterations(attributes.get("i", ""))
        without_proof = f"c={base64.b64encode(_GS2_HEADER.encode()).decode()},r={nonce}"
        message = b",".join((self._first_message_bare().encode(), server_first, without_proof.encode()))
        salted = hashlib.pbkdf2_hmac(self._hash_name, self._password.encode(), salt, iterations)
        client_key = self._hmac(salted, b"Client Key")
        stored_key = hashlib.new(self._hash_name, client_key).digest()
        signature = self._hmac(stored_key, message)
        proof = bytes(left ^ right for left, right in zip(client_key, signature, strict=True))
        self._server_signature = self._hmac(self._hmac(salted, b"Server Key"), message)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def verify(self, server_final: bytes) -> None:
        """Check the server's signature."""
        attributes = self._attributes(server_final)
        if "e" in attributes:
            raise self._failed(f"the server said {attributes['e']!r}")
        signature = self._decoded(attributes.get("v", ""), "signature")
        if not self._server_signature or not hmac.compare_digest(signature, self._server_signature):
            raise self._failed("the server's signature is wrong: it does not know the password")

    def _first_message_bare(self) -> str:
        name = self._username.replace("=", "=3D").replace(",", "=2C")
        return f"n={name},r={self._nonce}"

    def _attributes(self, message: bytes) -> dict[str, str]:
        if len(message) > SERVER_MESSAGE_BYTES_MAX:
            raise self._failed(f"the server's message has {len(message)} bytes")
        try:
            parts = message.decode("utf-8").split(",")
        except UnicodeDecodeError as error:
            raise self._failed("the server's message is not UTF-8") from error
        if any(part[1:2] != "=" for part in parts):
            raise self._failed("the server's message is malformed")
        if parts[0].startswith("m="):
            raise self._failed("the server asks for an extension that is not known")
        return {part[0]: part[2:] for part in reversed(parts)}

    def _iterations(self, text: str) -> int:
        # isdecimal also takes other scripts' digits, hence isascii; the length keeps int() cheap
        if not (text.isascii() and text.isdecimal() and len(text) <= 7):
            raise self._failed("the server's iteration count is malformed")
        iterations = int(text)
        if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
            raise self._failed(f"{iterations} iterations, {ITERATIONS_MIN} to {ITERATIONS_MAX} are accepted")
        return iterations

    def _decoded(self, text: str, what: str) -> bytes:
        try:
            value = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError) as error:
            raise self._failed(f"the server's {what} is malformed") from error
        if not value:
            raise self._failed(f"the server's {what} is missing")
        return value

    def _hmac(self, key: bytes, message: bytes) -> bytes:
        return hmac.digest(key, message, self._hash_name)

    def _failed(self, reason: str) -> UpstreamAuthenticationError:
        return UpstreamAuthenticationError(f"{self._mechanism} for {self._username!r} failed: {reason}")


MECHANISMS = ("PLAIN", *HASHES, "OAUTHBEARER")

SESSION_LIFETIME_SHARE = 0.8
"""A connection is replaced after this share of its session; the rest is for requests under way."""


@dataclass(frozen=True, slots=True)
class SaslCredentials:
    """Our own identity. For OAUTHBEARER `password` is the token and `username` a name for messages.

    Raises:
        ValueError: the mechanism is none of MECHANISMS.
    """

    mechanism: str
    username: str
    password: str = field(repr=False)

    def __post_init__(self) -> None:
        if self.mechanism not in MECHANISMS:
            raise ValueError(f"SASL mechanism {self.mechanism!r} is not one of {', '.join(MECHANISMS)}")


@dataclass(frozen=True, slots=True)
class Compute:
    """Call `work`, which holds the processor for up to a second; the generator wants what it returns.

    Whatever it raises ends the exchange and reaches the caller.
    """

    work: Callable[[], bytes]


Step: TypeAlias = Question[Any] | Compute
SignIn: TypeAlias = Generator[Step, Any, float]


def sign_in(credentials: SaslCredentials) -> SignIn:
    """Authenticate the connection that the steps are asked on.

    Returns:
        The session's lifetime in seconds; 0 is without end.

    Raises:
        UpstreamAuthenticationError: the broker refused the mechanism or the credentials, or failed to prove itself.
        PeerProtocolError: an answer makes no sense.
    """
    response = yield Question(SASL_HANDSHAKE, {"mechanism": credentials.mechanism})
    if response.error_code != ErrorCode.NONE:
        offered = ", ".join(response.mechanisms) or "none"
        raise UpstreamAuthenticationError(
            f"the broker does not accept SASL mechanism {credentials.mechanism} for"
            f" {credentials.username!r}; it offers {offered}"
        )
    if credentials.mechanism in HASHES:
        return (yield from _scram(credentials))
    if credentials.mechanism == "OAUTHBEARER":
        return (yield from _oauthbearer(credentials))
    # an authorization id before the first NUL would ask to act as somebody else
    initial = f"\0{credentials.username}\0{credentials.password}".encode()
    return _lifetime_s((yield from _authenticate(credentials, initial)))


def _scram(credentials: SaslCredentials) -> SignIn:
    client = ScramClient(credentials.mechanism, credentials.username, credentials.password)
    first = yield from _authenticate(credentials, client.first_message())
    final = yield Compute(functools.partial(client.final_message, first.auth_bytes))
    last = yield from _authenticate(credentials, final)
    client.verify(last.auth_bytes)
    return _lifetime_s(last)


def _oauthbearer(credentials: SaslCredentials) -> SignIn:
    initial = f"n,,\x01auth=Bearer {credentials.password}\x01\x01".encode()
    response = yield from _authenticate(credentials, initial)
    if response.auth_bytes:
        # RFC 7628: a refusal comes as JSON first and as an error after our lone 0x01
        yield from _authenticate(credentials, b"\x01")
        raise UpstreamAuthenticationError(f"OAUTHBEARER for {credentials.username!r} failed: the token was refused")
    return _lifetime_s(response)


def _authenticate(credentials: SaslCredentials, auth_bytes: bytes) -> Generator[Step, Any, Any]:
    response = yield Question(SASL_AUTHENTICATE, {"auth_bytes": auth_bytes})
    if response.error_code != ErrorCode.NONE:
        reason = response.error_message or f"error code {int(response.error_code)}"
        raise UpstreamAuthenticationError(f"{credentials.mechanism} for {credentials.username!r} failed: {reason}")
    return response


def _lifetime_s(response: Any) -> float:
    lifetime = response.session_lifetime
    if not isinstance(lifetime, timedelta):
        raise PeerProtocolError(f"SaslAuthenticate's session lifetime is {lifetime!r}")
    return max(0.0, lifetime.total_seconds())
