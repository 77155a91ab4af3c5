"""Signing in to a broker: SaslHandshake v1, then SaslAuthenticate (KIP-43, KIP-152), for our own identity, sans-IO.

- PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 and OAUTHBEARER with a token from the configuration.
- `sign_in` is a generator of steps. A shell sends each `Question` and gives back its response, runs each `Compute`
  where it may take its time and gives back the result, until the generator returns the session's lifetime.
- The lifetime (KIP-368) is the shell's to keep: it replaces a connection before the session ends; we never
  re-authenticate on a connection in use.
- Errors name principal and mechanism, never a password or token.
"""

import functools
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeAlias

from protocol.client.errors import UpstreamAuthenticationError
from protocol.client.messages import SASL_AUTHENTICATE, SASL_HANDSHAKE, Question
from protocol.client.scram import HASHES, ScramClient
from protocol.wire.errors import ErrorCode, PeerProtocolError

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

    What it raises is the end of the exchange and goes on to whoever signs in.
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
