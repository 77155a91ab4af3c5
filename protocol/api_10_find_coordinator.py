"""FindCoordinator (key 10), responses v0–v6: the coordinator's address.

- v0–v3: one coordinator at the top level; v1 added throttle time and an error message before it.
- v4+ (KIP-699): an array of coordinators, one for each key asked.
- Flexible from v3. On an error the node is "no node", which is left alone (protocol.endpoints, rule 3).
"""

from protocol.endpoints import AddressLayout, read_site
from protocol.headers import is_flexible, response_body_position
from protocol.identifiers import ApiKey
from protocol.primitives import Cursor

BATCHED_FROM = 4
"""First version with an array of coordinators."""


def locate(frame: memoryview, api_version: int) -> AddressLayout:
    """Where the addresses of a whole response frame (length field included) stand.

    Raises:
        PeerProtocolError: truncated or malformed.
    """
    flexible = is_flexible(ApiKey.FIND_COORDINATOR, api_version)
    cursor = Cursor(frame, response_body_position(frame, ApiKey.FIND_COORDINATOR, api_version))
    if api_version >= BATCHED_FROM:
        return _locate_batched(cursor)
    if api_version >= 1:
        cursor.skip(4)  # throttle time
    cursor.skip(2)  # error code
    if api_version >= 1:
        cursor.skip_string(flexible=flexible)  # error message
    return AddressLayout((read_site(cursor, flexible=flexible),), flexible)


def _locate_batched(cursor: Cursor) -> AddressLayout:
    cursor.skip(4)  # throttle time
    sites = []
    for _ in range(cursor.array_length(flexible=True)):
        cursor.skip_string(flexible=True)  # key
        sites.append(read_site(cursor, flexible=True))
        cursor.skip(2)  # error code
        cursor.skip_string(flexible=True)  # error message
        cursor.skip_tags()
    return AddressLayout(tuple(sites), flexible=True)
