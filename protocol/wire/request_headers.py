"""Peeking request headers, and which responses have which header (docs/protocol.md#headers).

Request header: int16 api key, int16 version, int32 correlation id, int16-string client id (that string stays
in the old form in flexible versions too), then a tagged section in flexible versions. Response header:
int32 correlation id, then a tagged section in flexible versions, save ApiVersions, whose header never has one
(KIP-511: a client that does not know our versions yet must be able to read it).
"""

import struct
from dataclasses import dataclass

from protocol.wire.errors import PeerProtocolError
from protocol.wire.identifiers import ApiKey
from protocol.wire.primitives import STRING_BYTES_MAX, Cursor

REQUEST_HEADER_PREFIX_BYTES = 8
"""Api key, version, correlation id: what every request begins with."""

_PREFIX = struct.Struct(">hhi")

FLEXIBLE_FROM: dict[int, int] = {
    ApiKey.PRODUCE: 9,
    ApiKey.FETCH: 12,
    ApiKey.LIST_OFFSETS: 6,
    ApiKey.METADATA: 9,
    ApiKey.FIND_COORDINATOR: 3,
    ApiKey.SASL_HANDSHAKE: 32767,
    ApiKey.API_VERSIONS: 3,
    ApiKey.DELETE_TOPICS: 4,
    ApiKey.DELETE_RECORDS: 2,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: 4,
    ApiKey.SASL_AUTHENTICATE: 2,
    ApiKey.DESCRIBE_QUORUM: 0,
    ApiKey.DESCRIBE_CLUSTER: 0,
    ApiKey.SHARE_FETCH: 0,
    ApiKey.SHARE_ACKNOWLEDGE: 0,
}
"""First flexible version of each API that is ever decoded here; the others are never looked into."""


@dataclass(frozen=True, slots=True)
class RequestPrefix:
    """The part of the header that is read of every request."""

    api_key: int
    api_version: int
    correlation_id: int


@dataclass(frozen=True, slots=True)
class RequestHeader:
    """A whole request header. `body_position` is where the body begins, counted from the frame's length field."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_position: int


def is_flexible(api_key: int, api_version: int) -> bool:
    """Return whether that version uses compact forms and tagged sections. Only for APIs in FLEXIBLE_FROM."""
    return api_version >= FLEXIBLE_FROM[api_key]


def peek_request_prefix(view: memoryview, position: int) -> RequestPrefix:
    """Read api key, version and correlation id at `position` (just after the length field)."""
    api_key, api_version, correlation_id = _PREFIX.unpack_from(view, position)
    return RequestPrefix(api_key, api_version, correlation_id)


def decode_request_header(frame: memoryview) -> RequestHeader:
    """The header of a whole frame (length field included), for an API in FLEXIBLE_FROM.

    Raises:
        PeerProtocolError: truncated, or a client id of a length that cannot be.
    """
    cursor = Cursor(frame, 4)
    cursor.skip(_PREFIX.size)
    api_key, api_version, correlation_id = _PREFIX.unpack_from(frame, 4)
    client_id = cursor.string(flexible=False)
    if api_key not in FLEXIBLE_FROM:
        raise PeerProtocolError(f"api key {api_key} is not one that is decoded")
    if is_flexible(api_key, api_version):
        cursor.skip_tags()
    return RequestHeader(api_key, api_version, correlation_id, client_id, cursor.position)


def encode_request_header(api_key: int, api_version: int, correlation_id: int, client_id: str | None) -> bytes:
    """A header of our own, without the length field; an empty tagged section where the version has one."""
    # What was replaced in it makes it longer.
    raw = b"" if client_id is None else client_id.encode("utf-8")[:STRING_BYTES_MAX]
    length = -1 if client_id is None else len(raw)
    tags = b"\x00" if is_flexible(api_key, api_version) else b""
    return struct.pack(">hhih", api_key, api_version, correlation_id, length) + raw + tags


def response_body_position(frame: memoryview, api_key: int, api_version: int) -> int:
    """Return where the body of a whole response frame (length field included) begins."""
    cursor = Cursor(frame, 8)
    if api_key != ApiKey.API_VERSIONS and is_flexible(api_key, api_version):
        cursor.skip_tags()
    return cursor.position
