"""Metadata (key 3), responses v0–v13: the brokers' addresses.

- The broker array stands before the topics, after the throttle time (v3+): topics are never walked to rewrite. A
  broker that is withheld is left out of it, and stays a partition's leader or the controller by id.
- v1 added the rack; flexible from v9.
"""

from protocol.wire.endpoints import AddressLayout, read_nodes
from protocol.wire.identifiers import ApiKey
from protocol.wire.primitives import Cursor
from protocol.wire.request_headers import is_flexible, response_body_position


def locate(frame: memoryview, api_version: int) -> AddressLayout:
    """Return where the addresses of a whole response frame (length field included) stand.

    Raises:
        PeerProtocolError: truncated or malformed up to the end of the broker array.
    """
    flexible = is_flexible(ApiKey.METADATA, api_version)
    cursor = Cursor(frame, response_body_position(frame, ApiKey.METADATA, api_version))
    if api_version >= 3:
        cursor.skip(4)  # throttle time

    def skip_rest(cursor: Cursor) -> None:
        if api_version >= 1:
            cursor.skip_string(flexible=flexible)  # rack
        if flexible:
            cursor.skip_tags()

    return read_nodes(cursor, flexible=flexible, skip_rest=skip_rest)
