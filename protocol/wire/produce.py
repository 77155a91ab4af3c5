"""Produce (key 0): whether a request gets a response, and the leaders' addresses in responses.

- acks stands after the client id, the header's tags (v9+) and the transactional id (v3+; compact from v9).
  acks=0 means that no response follows (docs/protocol.md#headers): its turn in the order is skipped.
- NodeEndpoints is tag 0 of responses v10+ (KIP-951): the brokers that lead, beside NOT_LEADER_OR_FOLLOWER.
- v13 names topics by id. Records are never looked into.
"""

from dataclasses import replace

from protocol.wire.endpoints import AddressLayout, SizedSection, read_endpoints
from protocol.wire.errors import PeerProtocolError
from protocol.wire.framing import LENGTH_BYTES
from protocol.wire.identifiers import ApiKey
from protocol.wire.primitives import Cursor
from protocol.wire.request_headers import REQUEST_HEADER_PREFIX_BYTES, is_flexible, response_body_position

ENDPOINTS_FROM = 10
"""First version whose responses may name brokers."""
ACKS_WITHIN_BYTES = 128 * 1024
"""Acks must be found so early in a request: client id and transactional id have at most 32,767 bytes each."""

_NODE_ENDPOINTS_TAG = 0
_PARTITION_FIXED_BYTES = 4 + 2 + 8 + 8 + 8
"""Index, error code, base offset, log append time, log start offset."""
_PLAIN_PARTITION_END = b"\x01\x00\x00"
"""No record errors, a null message, no tags: what follows in a partition that was written without trouble."""


def peek_acks(view: memoryview, api_version: int, position: int) -> int | None:
    """The acks of the Produce request whose length field is at `position`; None while too little has arrived.

    Args:
        view: what has arrived so far; may end within the frame or reach into the next one.
        api_version: from the header prefix.
        position: of the frame's length field, which must have arrived.

    Raises:
        PeerProtocolError: the frame ends before its acks, or they are not within ACKS_WITHIN_BYTES.
    """
    length_cursor = Cursor(view, position)
    frame_end = position + LENGTH_BYTES + length_cursor.int32()
    readable_end = min(len(view), frame_end, position + ACKS_WITHIN_BYTES)
    is_final = readable_end == frame_end or readable_end == position + ACKS_WITHIN_BYTES
    cursor = Cursor(view, position + LENGTH_BYTES + REQUEST_HEADER_PREFIX_BYTES, readable_end)
    try:
        return _read_acks(cursor, api_version)
    except PeerProtocolError:
        if is_final:
            raise
        return None  # cut off, or malformed: which of both shows when the rest has come


def _read_acks(cursor: Cursor, api_version: int) -> int:
    flexible = is_flexible(ApiKey.PRODUCE, api_version)
    cursor.skip_string(flexible=False)  # client id: int16 form in every version
    if flexible:
        cursor.skip_tags()
    if api_version >= 3:
        cursor.skip_string(flexible=flexible)  # transactional id
    return cursor.int16()


def locate(frame: memoryview, api_version: int) -> AddressLayout:
    """Return where the addresses of a whole response frame (length field included) stand.

    Raises:
        PeerProtocolError: truncated or malformed.
    """
    if api_version < ENDPOINTS_FROM:
        return AddressLayout((), is_flexible(ApiKey.PRODUCE, api_version))
    cursor = Cursor(frame, response_body_position(frame, ApiKey.PRODUCE, api_version))
    for _ in range(cursor.array_length(flexible=True)):
        if api_version >= 13:
            cursor.skip(16)  # topic id
        else:
            cursor.skip_string(flexible=True)  # name
        for _ in range(cursor.array_length(flexible=True)):
            _skip_partition(cursor)
        cursor.skip_tags()
    cursor.skip(4)  # throttle time
    return _locate_tag(cursor)


def _skip_partition(cursor: Cursor) -> None:
    cursor.skip(_PARTITION_FIXED_BYTES)
    after_plain = cursor.position + len(_PLAIN_PARTITION_END)
    if after_plain <= cursor.end and cursor.view[cursor.position : after_plain] == _PLAIN_PARTITION_END:
        cursor.position = after_plain
        return
    for _ in range(cursor.array_length(flexible=True)):
        cursor.skip(4)  # batch index
        cursor.skip_string(flexible=True)  # message
        cursor.skip_tags()
    cursor.skip_string(flexible=True)  # error message
    cursor.skip_tags()


def _locate_tag(cursor: Cursor) -> AddressLayout:
    """The NodeEndpoints tag in the tagged section at the cursor."""
    layout = AddressLayout((), flexible=True)
    for _ in range(cursor.uvarint()):
        tag = cursor.uvarint()
        size_start = cursor.position
        size = cursor.uvarint()
        start = cursor.skip(size)
        if tag != _NODE_ENDPOINTS_TAG:
            continue
        if layout.section is not None:
            raise PeerProtocolError("the NodeEndpoints tag stands twice in a Produce response")
        endpoints = read_endpoints(Cursor(cursor.view, start, cursor.position))
        layout = replace(endpoints, section=SizedSection(size_start, start, cursor.position))
    return layout
