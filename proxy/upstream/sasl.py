"""Signing in to a broker: SaslHandshake v1, then SaslAuthenticate (KIP-43, KIP-152), for Tidegate's own identity.

- PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 and OAUTHBEARER with a token from the configuration.
- The session's lifetime (KIP-368) is given back: the pool replaces a connection before it ends; we never
  re-authenticate on a connection in use.
- Errors name principal and mechanism, never a password or token.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import trio

from proxy.upstream.errors import UpstreamAuthenticationError, UpstreamProtocolError
from proxy.upstream.messages import SASL_AUTHENTICATE, SASL_HANDSHAKE, Api, Values
from proxy.upstream.scram import HASHES, ScramClient

MECHANISMS = ("PLAIN", *HASHES, "OAUTHBEARER")

Ask = Callable[[Api, Values], Awaitable[Any]]
"""Send one request on the connection that is signing in, give its response."""

_NONE = 0


@dataclass(frozen=True, slots=True)
class SaslCredentials:
    """Tidegate's own identity. For OAUTHBEARER `password` is the token and `username` a name for messages.

    Raises:
        ValueError: the mechanism is none of MECHANISMS.
    """

    mechanism: str
    username: str
    password: str = field(repr=False)

    def __post_init__(self) -> None:
        if self.mechanism not in MECHANISMS:
            raise ValueError(f"SASL mechanism {self.mechanism!r} is not one of {', '.join(MECHANISMS)}")


async def sign_in(ask: Ask, credentials: SaslCredentials) -> float:
    """Authenticate the connection behind `ask`.

    Returns:
        The session's lifetime in seconds; 0 is without end.

    Raises:
        UpstreamAuthenticationError: the broker refused the mechanism or the credentials, or failed to prove itself.
    """
    response = await ask(SASL_HANDSHAKE, {"mechanism": credentials.mechanism})
    if response.error_code != _NONE:
        offered = ", ".join(response.mechanisms) or "none"
        raise UpstreamAuthenticationError(
            f"the broker does not accept SASL mechanism {credentials.mechanism} for"
            f" {credentials.username!r}; it offers {offered}"
        )
    if credentials.mechanism in HASHES:
        return await _scram(ask, credentials)
    if credentials.mechanism == "OAUTHBEARER":
        return await _oauthbearer(ask, credentials)
    # an authorization id before the first NUL would ask to act as somebody else
    initial = f"\0{credentials.username}\0{credentials.password}".encode()
    return _lifetime_s(await _authenticate(ask, credentials, initial))


async def _scram(ask: Ask, credentials: SaslCredentials) -> float:
    client = ScramClient(credentials.mechanism, credentials.username, credentials.password)
    first = await _authenticate(ask, credentials, client.first_message())
    final = await trio.to_thread.run_sync(client.final_message, first.auth_bytes)  # PBKDF2 would stall the loop
    last = await _authenticate(ask, credentials, final)
    client.verify(last.auth_bytes)
    return _lifetime_s(last)


async def _oauthbearer(ask: Ask, credentials: SaslCredentials) -> float:
    initial = f"n,,\x01auth=Bearer {credentials.password}\x01\x01".encode()
    response = await _authenticate(ask, credentials, initial)
    if response.auth_bytes:
        # RFC 7628: a refusal comes as JSON first and as an error after our lone 0x01
        await _authenticate(ask, credentials, b"\x01")
        raise UpstreamAuthenticationError(f"OAUTHBEARER for {credentials.username!r} failed: the token was refused")
    return _lifetime_s(response)


async def _authenticate(ask: Ask, credentials: SaslCredentials, auth_bytes: bytes) -> Any:
    response = await ask(SASL_AUTHENTICATE, {"auth_bytes": auth_bytes})
    if response.error_code != _NONE:
        reason = response.error_message or f"error code {int(response.error_code)}"
        raise UpstreamAuthenticationError(f"{credentials.mechanism} for {credentials.username!r} failed: {reason}")
    return response


def _lifetime_s(response: Any) -> float:
    lifetime = response.session_lifetime
    if not isinstance(lifetime, timedelta):
        raise UpstreamProtocolError(f"SaslAuthenticate's session lifetime is {lifetime!r}")
    return max(0.0, lifetime.total_seconds())
