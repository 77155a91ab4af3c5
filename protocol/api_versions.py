"""ApiVersions (key 18), v0–v4: cut upstream's answer to what Tidegate knows.

- Error code, then the array of (key, oldest, newest), then throttle time (v1+) and tags (v3+: features). Only the
  array is changed; features and unknown tagged fields are kept byte for byte (KIP-584).
- The response header never has tags, in any version (KIP-511), see protocol.wire.framing.
- To a version that it does not know, a broker answers error 35 in the shape of v0, whatever was asked; the client
  then asks again with a version from that array.
"""

import struct
from dataclasses import dataclass

from protocol.wire import versions
from protocol.wire.errors import ErrorCode, PeerProtocolError
from protocol.wire.framing import LENGTH_BYTES
from protocol.wire.identifiers import ApiKey
from protocol.wire.primitives import Cursor, write_array_length
from protocol.wire.request_headers import is_flexible

_ENTRY = struct.Struct(">hhh")
_FRAME_HEADER = struct.Struct(">ii")
"""Length, correlation id."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """One element of the array; `view[start:end]` holds it, tags included."""

    api_key: int
    oldest: int
    newest: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class _Walk:
    """A body taken apart; the array, with its length, is `body[array_start:array_end]`."""

    flexible: bool
    entries: tuple[_Entry, ...]
    array_start: int
    array_end: int


def rewrite_response(api_version: int, body: memoryview) -> bytes:
    """The body with each range cut by `versions.cut`; an API of which nothing is left is left out.

    Args:
        api_version: of the request.
        body: upstream's answer after the correlation id.

    Raises:
        PeerProtocolError: truncated or malformed.
    """
    walk = _walk(api_version, body)
    kept: list[bytes | memoryview] = []
    count = 0
    for entry in walk.entries:
        announced = versions.cut(entry.api_key, entry.oldest, entry.newest)
        if announced is None:
            continue
        count += 1
        kept.append(_ENTRY.pack(entry.api_key, *announced))
        kept.append(body[entry.start + _ENTRY.size : entry.end])
    length = write_array_length(count, flexible=walk.flexible)
    return b"".join((body[: walk.array_start], length, *kept, body[walk.array_end :]))


def rewrite_frame(api_version: int, frame: memoryview) -> bytes:
    """`rewrite_response` for a whole response frame, length field and correlation id included.

    Raises:
        PeerProtocolError: truncated or malformed.
    """
    if len(frame) < _FRAME_HEADER.size:
        raise PeerProtocolError(f"response of {len(frame)} bytes")
    body = rewrite_response(api_version, frame[_FRAME_HEADER.size :])
    correlation_id = int(_FRAME_HEADER.unpack_from(frame)[1])
    return _FRAME_HEADER.pack(_FRAME_HEADER.size - LENGTH_BYTES + len(body), correlation_id) + body


def encode_unsupported_version(correlation_id: int) -> bytes:
    """A whole response frame for a request newer than we know: error 35, v0 shape, the versions that we do know."""
    newest = versions.NEWEST[ApiKey.API_VERSIONS]
    body = struct.pack(">hi", ErrorCode.UNSUPPORTED_VERSION, 1) + _ENTRY.pack(ApiKey.API_VERSIONS, 0, newest)
    return _FRAME_HEADER.pack(_FRAME_HEADER.size - LENGTH_BYTES + len(body), correlation_id) + body


def _walk(api_version: int, body: memoryview) -> _Walk:
    cursor = Cursor(body)
    if cursor.int16() == ErrorCode.UNSUPPORTED_VERSION:
        api_version = 0
    flexible = is_flexible(ApiKey.API_VERSIONS, api_version)
    array_start = cursor.position
    entries = []
    for _ in range(cursor.array_length(flexible=flexible)):
        start = cursor.position
        api_key, oldest, newest = cursor.int16(), cursor.int16(), cursor.int16()
        if flexible:
            cursor.skip_tags()
        entries.append(_Entry(api_key, oldest, newest, start, cursor.position))
    array_end = cursor.position
    if api_version >= 1:
        cursor.skip(4)  # throttle time
    if flexible:
        cursor.skip_tags()
    return _Walk(flexible, tuple(entries), array_start, array_end)
