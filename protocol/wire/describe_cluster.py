"""DescribeCluster (key 60), responses v0–v2: the brokers' addresses.

- v1 (KIP-919) added the endpoint type: 1 brokers, 2 controllers. Controllers are answered as upstream does:
  Tidegate has no listener for them.
- v2 added whether a broker is fenced. Flexible in every version.
"""

from protocol.wire.endpoints import AddressLayout, read_nodes
from protocol.wire.identifiers import ApiKey
from protocol.wire.primitives import Cursor
from protocol.wire.request_headers import response_body_position

ENDPOINT_TYPE_CONTROLLERS = 2


def locate(frame: memoryview, api_version: int) -> AddressLayout:
    """Return where the addresses of a whole response frame (length field included) stand; none for controllers.

    Raises:
        PeerProtocolError: truncated or malformed.
    """
    cursor = Cursor(frame, response_body_position(frame, ApiKey.DESCRIBE_CLUSTER, api_version))
    cursor.skip(4 + 2)  # throttle time, error code
    cursor.skip_string(flexible=True)  # error message
    if api_version >= 1 and cursor.int8() == ENDPOINT_TYPE_CONTROLLERS:
        return AddressLayout((), flexible=True)
    cursor.skip_string(flexible=True)  # cluster id
    cursor.skip(4)  # controller id

    def skip_rest(cursor: Cursor) -> None:
        cursor.skip_string(flexible=True)  # rack
        if api_version >= 2:
            cursor.skip(1)  # is fenced
        cursor.skip_tags()

    return read_nodes(cursor, flexible=True, skip_rest=skip_rest)
