"""ShareAcknowledge (key 79, KIP-932), responses v1–v2: the leaders' addresses.

- NodeEndpoints is an ordinary array after the topics, present in every version; all versions are flexible.
- v2 (KIP-1222) added the acquisition lock timeout before the topics.
"""

from protocol.wire.endpoints import AddressLayout, read_endpoints
from protocol.wire.identifiers import ApiKey
from protocol.wire.primitives import Cursor
from protocol.wire.request_headers import response_body_position

_LEADER_BYTES = 4 + 4
"""Leader id and leader epoch; its tags follow."""


def locate(frame: memoryview, api_version: int) -> AddressLayout:
    """Return where the addresses of a whole response frame (length field included) stand.

    Raises:
        PeerProtocolError: truncated or malformed.
    """
    cursor = Cursor(frame, response_body_position(frame, ApiKey.SHARE_ACKNOWLEDGE, api_version))
    cursor.skip(4 + 2)  # throttle time, error code
    cursor.skip_string(flexible=True)  # error message
    if api_version >= 2:
        cursor.skip(4)  # acquisition lock timeout
    for _ in range(cursor.array_length(flexible=True)):
        cursor.skip(16)  # topic id
        for _ in range(cursor.array_length(flexible=True)):
            cursor.skip(4 + 2)  # index, error code
            cursor.skip_string(flexible=True)  # error message
            cursor.skip(_LEADER_BYTES)
            cursor.skip_tags()
            cursor.skip_tags()  # the partition's
        cursor.skip_tags()
    return read_endpoints(cursor)
