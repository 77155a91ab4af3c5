"""ListOffsets (api 2): the messages.

Contract:
- Versions 1 to 11 (flexible from 6); v0 has another shape and is never announced.
- Partitions are flat lists in wire order; encoding groups runs of consecutive equal topics. Topics have names only.
- Raw sections of unknown tagged fields are kept and written back.
- What we answer ourselves still rides on the same request sent upstream with those timestamps replaced by LATEST
  (docs/protocol.md#l1).

Version notes: 2 isolation level, throttle time · 4 leader epochs (KIP-320) · 6 flexible · 7 max timestamp, -3
(KIP-734) · 8 earliest local, -4 (KIP-405) · 9 latest tiered, -5 (KIP-1005) · 10 timeout (KIP-1075) · 11 earliest
pending upload, -6 (KIP-1023).
"""

import enum
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TypeVar

from protocol.fetch.messages import PARTITIONS_MAX, REQUEST_BYTES_MAX, less_asked
from protocol.wire.errors import LocalProtocolError, PeerProtocolError
from protocol.wire.identifiers import ApiKey
from protocol.wire.primitives import Cursor, write_array_length, write_string
from protocol.wire.request_headers import RequestHeader, encode_request_header

LIST_OFFSETS_VERSION_MIN = 1
LIST_OFFSETS_VERSION_MAX = 11
FLEXIBLE_VERSION_MIN = 6
NO_TAGS = b"\x00"
NO_TIMEOUT_MS = 0

_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_FRAME_HEAD = struct.Struct(">ii")  # length, correlation id
_ANSWER = struct.Struct(">ihqq")  # partition, error code, timestamp, offset


class OffsetTimestamp(enum.IntEnum):
    """Timestamps that are not times (docs/protocol.md#list-offsets)."""

    LATEST = -1
    EARLIEST = -2
    MAX_TIMESTAMP = -3
    EARLIEST_LOCAL = -4
    LATEST_TIERED = -5
    EARLIEST_PENDING_UPLOAD = -6


@dataclass(slots=True)
class ListOffsetsPartition:
    """One question."""

    topic: str
    partition: int
    current_leader_epoch: int
    timestamp: int
    tags: bytes = NO_TAGS
    topic_tags: bytes = NO_TAGS


@dataclass(slots=True)
class ListOffsetsRequest:
    """A ListOffsets request. `timeout_ms` is 0 below v10, which lets the broker's own limit apply.

    `is_unread`: it names more than PARTITIONS_MAX, or is larger than REQUEST_BYTES_MAX; no question of it is here.
    """

    api_version: int
    correlation_id: int
    client_id: str | None
    replica_id: int
    isolation_level: int
    partitions: list[ListOffsetsPartition]
    timeout_ms: int = NO_TIMEOUT_MS
    tags: bytes = NO_TAGS
    is_unread: bool = False


@dataclass(slots=True)
class ListOffsetsAnswer:
    """One answer. Not found is error 0 with −1 in all three; `leader_epoch` is −1 below v4."""

    topic: str
    partition: int
    error_code: int
    timestamp: int = -1
    offset: int = -1
    leader_epoch: int = -1
    tags: bytes = NO_TAGS
    topic_tags: bytes = NO_TAGS


@dataclass(slots=True)
class ListOffsetsResponse:
    """A ListOffsets response; `throttle_time_ms` is 0 in v1, which lacks it."""

    correlation_id: int
    throttle_time_ms: int
    partitions: list[ListOffsetsAnswer]
    tags: bytes = NO_TAGS


_Item = TypeVar("_Item", ListOffsetsPartition, ListOffsetsAnswer)


def decode_request(frame: memoryview, header: RequestHeader) -> ListOffsetsRequest:
    """Decode a whole frame (length field included) whose header was read already.

    If it names too much, only the head is read (`ListOffsetsRequest.is_unread`).

    Raises:
        PeerProtocolError: the frame is truncated, too long, or holds an impossible length or count.
        LocalProtocolError: the version is outside v1–v11.
    """
    version = header.api_version
    _require_version(version)
    cursor = Cursor(frame, header.body_position)
    request = ListOffsetsRequest(version, header.correlation_id, header.client_id, cursor.int32(), 0, [])
    if version >= 2:
        request.isolation_level = cursor.int8()
    room = PARTITIONS_MAX if len(frame) <= REQUEST_BYTES_MAX else -1
    for topic, count in _topics(cursor, version) if room >= 0 else ():
        room -= max(1, count)
        if room < 0:
            break
        first = len(request.partitions)
        for _ in range(count):
            request.partitions.append(_decode_question(cursor, version, topic))
        topic_tags = _raw_tags(cursor, version)
        for question in request.partitions[first:]:
            question.topic_tags = topic_tags
    if room < 0:
        return replace(request, partitions=[], is_unread=True)
    if version >= 10:
        request.timeout_ms = cursor.int32()
    request.tags = _raw_tags(cursor, version)
    _require_end(cursor, version)
    return request


def encode_request(request: ListOffsetsRequest, *, correlation_id: int) -> bytes:
    """A whole frame (length field included) at `request.api_version`.

    Raises:
        LocalProtocolError: the version is outside v1–v11.
    """
    version = request.api_version
    _require_version(version)
    parts = [encode_request_header(ApiKey.LIST_OFFSETS, version, correlation_id, request.client_id)]
    parts.append(_INT32.pack(request.replica_id))
    if version >= 2:
        parts.append(struct.pack(">b", request.isolation_level))
    groups = _start_topics(parts, request.partitions, version)
    for topic, group in groups:
        _start_topic(parts, topic, len(group), version)
        for question in group:
            parts.append(_INT32.pack(question.partition))
            if version >= 4:
                parts.append(_INT32.pack(question.current_leader_epoch))
            parts.append(_INT64.pack(question.timestamp))
            _put_tags(parts, question.tags, version)
        _put_tags(parts, group[0].topic_tags, version)
    if version >= 10:
        parts.append(_INT32.pack(request.timeout_ms))
    _put_tags(parts, request.tags, version)
    body = b"".join(parts)
    return _INT32.pack(len(body)) + body


def decode_response(frame: memoryview, api_version: int, partitions_max: int | None = None) -> ListOffsetsResponse:
    """Decode a whole frame (length field included).

    Raises:
        PeerProtocolError: the frame is truncated, too long, or holds an impossible length or count.
        LocalProtocolError: the version is outside v1–v11.
    """
    _require_version(api_version)
    cursor = Cursor(frame, 4)
    response = ListOffsetsResponse(cursor.int32(), 0, [])
    if api_version >= FLEXIBLE_VERSION_MIN:
        cursor.skip_tags()
    if api_version >= 2:
        response.throttle_time_ms = cursor.int32()
    room = partitions_max
    for topic, count in _topics(cursor, api_version):
        room = less_asked(room, count)
        first = len(response.partitions)
        for _ in range(count):
            response.partitions.append(_decode_answer(cursor, api_version, topic))
        topic_tags = _raw_tags(cursor, api_version)
        for answer in response.partitions[first:]:
            answer.topic_tags = topic_tags
    response.tags = _raw_tags(cursor, api_version)
    _require_end(cursor, api_version)
    return response


def encode_response(response: ListOffsetsResponse, api_version: int, correlation_id: int) -> bytes:
    """A whole frame (length field included), with another correlation id than the response's own.

    Raises:
        LocalProtocolError: the version is outside v1–v11.
    """
    _require_version(api_version)
    parts: list[bytes] = []
    _put_tags(parts, NO_TAGS, api_version)  # of the header
    if api_version >= 2:
        parts.append(_INT32.pack(response.throttle_time_ms))
    groups = _start_topics(parts, response.partitions, api_version)
    for topic, group in groups:
        _start_topic(parts, topic, len(group), api_version)
        for answer in group:
            parts.append(_ANSWER.pack(answer.partition, answer.error_code, answer.timestamp, answer.offset))
            if api_version >= 4:
                parts.append(_INT32.pack(answer.leader_epoch))
            _put_tags(parts, answer.tags, api_version)
        _put_tags(parts, group[0].topic_tags, api_version)
    _put_tags(parts, response.tags, api_version)
    body = b"".join(parts)
    return _FRAME_HEAD.pack(len(body) + 4, correlation_id) + body


def _decode_question(cursor: Cursor, version: int, topic: str) -> ListOffsetsPartition:
    partition = cursor.int32()
    current_leader_epoch = cursor.int32() if version >= 4 else -1
    timestamp = cursor.int64()
    tags = _raw_tags(cursor, version)
    return ListOffsetsPartition(topic, partition, current_leader_epoch, timestamp, tags)


def _decode_answer(cursor: Cursor, version: int, topic: str) -> ListOffsetsAnswer:
    partition, error_code = cursor.int32(), cursor.int16()
    timestamp, offset = cursor.int64(), cursor.int64()
    leader_epoch = cursor.int32() if version >= 4 else -1
    tags = _raw_tags(cursor, version)
    return ListOffsetsAnswer(topic, partition, error_code, timestamp, offset, leader_epoch, tags)


def _topics(cursor: Cursor, version: int) -> Iterator[tuple[str, int]]:
    """Each topic and its count of partitions, which the caller reads, tags included, before it takes the next."""
    flexible = version >= FLEXIBLE_VERSION_MIN
    for _ in range(cursor.present_array_length(flexible=flexible)):
        topic = cursor.string(flexible=flexible)
        if topic is None:
            raise PeerProtocolError(f"null topic name at {cursor.position}")
        yield topic, cursor.present_array_length(flexible=flexible)


def _raw_tags(cursor: Cursor, version: int) -> bytes:
    return cursor.raw_tags() if version >= FLEXIBLE_VERSION_MIN else NO_TAGS


def _require_end(cursor: Cursor, version: int) -> None:
    if cursor.position != cursor.end:
        raise PeerProtocolError(f"{cursor.end - cursor.position} bytes after the end of ListOffsets v{version}")


def _start_topics(parts: list[bytes], items: Sequence[_Item], version: int) -> list[tuple[str, list[_Item]]]:
    groups = [(topic, list(group)) for topic, group in groupby(items, key=lambda item: item.topic)]
    parts.append(write_array_length(len(groups), flexible=version >= FLEXIBLE_VERSION_MIN))
    return groups


def _start_topic(parts: list[bytes], topic: str, count: int, version: int) -> None:
    flexible = version >= FLEXIBLE_VERSION_MIN
    parts.append(write_string(topic, flexible=flexible))
    parts.append(write_array_length(count, flexible=flexible))


def _put_tags(parts: list[bytes], tags: bytes, version: int) -> None:
    if version >= FLEXIBLE_VERSION_MIN:
        parts.append(tags)


def _require_version(api_version: int) -> None:
    if not LIST_OFFSETS_VERSION_MIN <= api_version <= LIST_OFFSETS_VERSION_MAX:
        raise LocalProtocolError(f"ListOffsets v{api_version} is not one that is decoded")
