"""The name that a client signs in by, as far as its tokens say it in clear.

| mechanism | the name |
|---|---|
| PLAIN | the second of three fields, the authentication id (RFC 4616 §2) |
| SCRAM-SHA-256, SCRAM-SHA-512 | `n=` of the client's first message (RFC 5802 §5.1) |
| OAUTHBEARER | the claim `sub` of the token (RFC 7628 §3.1), if it is a signed or unsecured JWT (RFC 7519 §4.1.2) |

Any other mechanism tells none. The name is what the token claims: whether that is true is for the broker to say
(`protocol.sign_in`). It is not Kafka's principal either: a delegation token signs in by its id, and a broker's
principal builder may make another name of this one.

- A broker may take another token after one that it has refused (Kafka's OAuthBearerSaslServer does), so each token that
  could begin a sign-in sets the name again. SCRAM's second message, which begins with `c=`, could not.
- A token is a secret. Only its name is kept.
- What a broker could read in another way than we do has no name here: a second `auth`, a claim given twice.
- Nothing is raised for whatever bytes a peer sends.
"""

import json
import re
from base64 import urlsafe_b64decode
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from protocol.wire.errors import PeerProtocolError
from protocol.wire.identifiers import ApiKey
from protocol.wire.primitives import Cursor
from protocol.wire.request_headers import decode_request_header, is_flexible

NAME_BYTES_MAX: Final = 256
"""In UTF-8; a longer name is left out, and one with characters that are not printable."""

TOKEN_FRAME_BYTES_MAX: Final = 64 * 1024
"""For a frame whose token is looked at: a larger one gives no name. Tokens with many claims have some 10 KiB."""

_SCRAM_FIRST = re.compile(rb"n,(?:a=[^,]*)?,(?:m=[^,]*,)?n=([^,]+),r=")
_BEARER = re.compile(rb"auth=[Bb][Ee][Aa][Rr][Ee][Rr] +([-\w.]+)", re.ASCII)


TLS_MECHANISM: Final = "TLS"
"""Stands for a certificate that the client has shown us, where it does not sign in by SASL."""


class SignInName(NamedTuple):
    """By what a client signs in, or has signed in. `name` None: it is not known."""

    mechanism: str
    name: str | None


def name_in_token(mechanism: str, token: memoryview | None, before: str | None = None) -> str | None:
    """The name that a client's token tells; None: it tells none.

    Args:
        token: None if it is not at hand.
        before: what the token before it in the same sign-in told.
    """
    read = _NAMES.get(mechanism)
    if read is None or token is None:
        return None
    if read is _scram_name and bytes(token[:2]) == b"c=":
        return before
    try:
        return shown_name(read(bytes(token)))
    except (ValueError, RecursionError):  # malformed; the broker will say so
        return None


def shown_name(name: str | None) -> str | None:
    """The name, if it may be kept: it is neither empty nor longer than NAME_BYTES_MAX, and printable."""
    return name if name and name.isprintable() and len(name.encode()) <= NAME_BYTES_MAX else None


def tells_name(mechanism: str) -> bool:
    """Return whether its tokens say the name in clear."""
    return mechanism in _NAMES


def token_in_frame(frame: memoryview, api_version: int) -> memoryview | None:
    """The token of a SaslAuthenticate frame, length field included; None: it is malformed, or not all here."""
    try:
        cursor = Cursor(frame, decode_request_header(frame).body_position)
        flexible = is_flexible(ApiKey.SASL_AUTHENTICATE, api_version)
        size = cursor.compact_length() if flexible else cursor.int32()
        cursor.skip(size)
    except PeerProtocolError:
        return None
    return frame[cursor.position - size : cursor.position]


def _plain_name(token: bytes) -> str | None:
    fields = token.split(b"\0", 3)
    return fields[1].decode() if len(fields) == 3 else None


def _scram_name(token: bytes) -> str | None:
    found = _SCRAM_FIRST.match(token)
    return None if found is None else found[1].decode().replace("=2C", ",").replace("=3D", "=")


def _bearer_name(token: bytes) -> str | None:
    bearers = [field for field in token.split(b"\1")[1:] if field.startswith(b"auth=")]
    found = _BEARER.fullmatch(bearers[0]) if len(bearers) == 1 else None
    parts = [] if found is None else found[1].split(b".")
    if len(parts) != 3:
        return None
    claims = json.loads(urlsafe_b64decode(parts[1] + b"=" * (-len(parts[1]) % 4)), object_pairs_hook=_claims_once)
    subject = claims.get("sub") if isinstance(claims, dict) else None
    return subject if isinstance(subject, str) else None


def _claims_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    claims = dict(pairs)
    if len(claims) != len(pairs):
        raise ValueError("a claim is given twice")
    return claims


_NAMES: Final[Mapping[str, Callable[[bytes], str | None]]] = {
    "PLAIN": _plain_name,
    "SCRAM-SHA-256": _scram_name,
    "SCRAM-SHA-512": _scram_name,
    "OAUTHBEARER": _bearer_name,
}
