"""Metadata (key 3), responses v0–v13: the brokers' addresses, and which id each topic has.

- The broker array stands before the topics, after the throttle time (v3+): topics are never walked to rewrite. A
  broker that is withheld is left out of it, and stays a partition's leader or the controller by id.
- v1 added the rack; flexible from v9; topic ids from v10 (KIP-516); a topic's name may be null from v12.
"""

from protocol.wire.endpoints import AddressLayout, read_nodes
from protocol.wire.framing import is_flexible, response_body_position
from protocol.wire.identifiers import ApiKey
from protocol.wire.primitives import Cursor

TOPIC_ID_FROM = 10
"""First version that tells topic ids."""

_PARTITION_FIXED_BYTES = 2 + 4 + 4 + 4
"""Error code, index, leader id, leader epoch."""
_NODE_ARRAYS = 3
"""Replicas, in-sync replicas, offline replicas."""


def locate(frame: memoryview, api_version: int) -> AddressLayout:
    """Where the addresses of a whole response frame (length field included) stand.

    Raises:
        PeerProtocolError: truncated or malformed up to the end of the broker array.
    """
    layout, _ = _read_brokers(frame, api_version)
    return layout


def topics(frame: memoryview, api_version: int) -> list[tuple[str, bytes]]:
    """Name and id of each topic that has a name; the id is zero where the broker knows none (an error, mostly).

    Versions below 10 carry no ids and give an empty list.

    Raises:
        PeerProtocolError: truncated or malformed up to the end of the topic array.
    """
    if api_version < TOPIC_ID_FROM:
        return []
    _, cursor = _read_brokers(frame, api_version)
    cursor.skip_string(flexible=True)  # cluster id
    cursor.skip(4)  # controller id
    learned = []
    for _ in range(cursor.array_length(flexible=True)):
        cursor.skip(2)  # error code
        name = cursor.string(flexible=True)
        topic_id = cursor.uuid()
        cursor.skip(1)  # is internal
        _skip_partitions(cursor)
        cursor.skip(4)  # authorized operations
        cursor.skip_tags()
        if name is not None:
            learned.append((name, topic_id))
    return learned


def _read_brokers(frame: memoryview, api_version: int) -> tuple[AddressLayout, Cursor]:
    """The brokers, and a cursor that stands after their array."""
    flexible = is_flexible(ApiKey.METADATA, api_version)
    cursor = Cursor(frame, response_body_position(frame, ApiKey.METADATA, api_version))
    if api_version >= 3:
        cursor.skip(4)  # throttle time

    def skip_rest(cursor: Cursor) -> None:
        if api_version >= 1:
            cursor.skip_string(flexible=flexible)  # rack
        if flexible:
            cursor.skip_tags()

    return read_nodes(cursor, flexible=flexible, skip_rest=skip_rest), cursor


def _skip_partitions(cursor: Cursor) -> None:
    for _ in range(cursor.array_length(flexible=True)):
        if _skip_plain_partition(cursor):
            continue
        cursor.skip(_PARTITION_FIXED_BYTES)
        for _ in range(_NODE_ARRAYS):
            cursor.skip(4 * max(cursor.array_length(flexible=True), 0))
        cursor.skip_tags()


def _skip_plain_partition(cursor: Cursor) -> bool:
    """Pass a partition whose lengths are one byte each and which has no tags: nearly every one.

    Written out over positions, as an answer may hold a hundred thousand of them. False leaves the cursor alone.
    """
    view, end = cursor.view, cursor.end
    position = cursor.position + _PARTITION_FIXED_BYTES
    for _ in range(_NODE_ARRAYS):
        if position >= end:
            return False
        length = view[position]
        if length > 0x7F:
            return False
        position += 1 + 4 * (length - 1) if length else 1
    if position >= end or view[position] != 0:
        return False
    cursor.position = position + 1
    return True
