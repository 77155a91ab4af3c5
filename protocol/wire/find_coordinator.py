"""FindCoordinator (key 10), responses v0–v6: the coordinator's address.

- v0–v3: one coordinator at the top level; v1 added throttle time and an error message before it.
- v4+ (KIP-699): an array of coordinators, one for each key asked.
- Flexible from v3. On an error the node is "no node", which is left alone (protocol.wire.endpoints, rule 3).
- A coordinator that is withheld is answered as one that cannot be found now: COORDINATOR_NOT_AVAILABLE and no node,
  which clients ask for again. (Without this a client would take its id and find no address for it.)
"""

import struct

from protocol.wire.endpoints import NO_NODE, AddressLayout, AddressSite, Edit, NodeAddress, address_bytes, read_address
from protocol.wire.errors import ErrorCode
from protocol.wire.identifiers import ApiKey
from protocol.wire.primitives import Cursor, write_string
from protocol.wire.request_headers import is_flexible, response_body_position

BATCHED_FROM = 4
"""First version with an array of coordinators."""

_MESSAGE_FROM = 1
"""First version with throttle time and error message."""
_ERROR = struct.Struct(">h")
_NODE_ID = struct.Struct(">i")
_NOT_AVAILABLE_MESSAGE = "The coordinator is not available."
"""Kafka's own words for the code."""


def locate(frame: memoryview, api_version: int) -> AddressLayout:
    """Return where the addresses of a whole response frame (length field included) stand.

    Raises:
        PeerProtocolError: truncated or malformed.
    """
    flexible = is_flexible(ApiKey.FIND_COORDINATOR, api_version)
    cursor = Cursor(frame, response_body_position(frame, ApiKey.FIND_COORDINATOR, api_version))
    if api_version >= BATCHED_FROM:
        return _locate_batched(cursor)
    if api_version >= _MESSAGE_FROM:
        cursor.skip(4)  # throttle time
    error = _error_edits(cursor, flexible=flexible, has_message=api_version >= _MESSAGE_FROM)
    address, start, node = _coordinator(cursor, flexible=flexible)
    return AddressLayout((AddressSite(address, start, cursor.position, (*error, node)),), flexible)


def _locate_batched(cursor: Cursor) -> AddressLayout:
    cursor.skip(4)  # throttle time
    sites = []
    for _ in range(cursor.array_length(flexible=True)):
        cursor.skip_string(flexible=True)  # key
        address, start, node = _coordinator(cursor, flexible=True)
        end = cursor.position
        error = _error_edits(cursor, flexible=True, has_message=True)
        cursor.skip_tags()
        sites.append(AddressSite(address, start, end, (node, *error)))
    return AddressLayout(tuple(sites), flexible=True)


def _coordinator(cursor: Cursor, *, flexible: bool) -> tuple[NodeAddress, int, Edit]:
    """The node, where its host begins, and what makes it "no node"."""
    node_start = cursor.position
    address, start = read_address(cursor, flexible=flexible)
    no_node = _NODE_ID.pack(NO_NODE.node_id) + address_bytes((NO_NODE.host, NO_NODE.port), flexible=flexible)
    return address, start, (node_start, cursor.position, no_node)


def _error_edits(cursor: Cursor, *, flexible: bool, has_message: bool) -> tuple[Edit, ...]:
    """Pass error code and message; what makes them say that there is no coordinator now."""
    code_start = cursor.skip(2)
    code = code_start, cursor.position, _ERROR.pack(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    if not has_message:
        return (code,)
    message_start = cursor.position
    cursor.skip_string(flexible=flexible)
    return code, (message_start, cursor.position, write_string(_NOT_AVAILABLE_MESSAGE, flexible=flexible))
