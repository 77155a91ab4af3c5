"""SaslHandshake (key 17): a client names the mechanism by which it is going to sign in (`protocol.sign_in`).

Both versions have one shape, and none is flexible. Whether the mechanism is enabled is upstream's affair.
"""

import struct
from dataclasses import dataclass

from protocol.wire.errors import ErrorCode, LocalProtocolError, PeerProtocolError
from protocol.wire.primitives import Cursor
from protocol.wire.request_headers import RequestHeader, decode_request_header

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
