"""Fetch requests: decoding a client's, encoding our own.

Contract: see `messages`. Decoding reads each partition with one unpack and is bounded by the frame: a count that
the bytes left cannot hold is refused before anything is built, and nothing but PeerProtocolError comes out of a bad
frame. Bytes left over after the last field are an error too: no client sends any, and they would mean that we and
the client disagree on the layout.
"""

import struct
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from protocol.fetch.messages import (
    FLEXIBLE_VERSION_MIN,
    NO_SESSION_ID,
    NO_TAGS,
    PARTITIONS_MAX,
    REQUEST_BYTES_MAX,
    SESSIONLESS_EPOCH,
    TOPIC_ID_BYTES,
    TOPIC_ID_VERSION_MIN,
    FetchPartition,
    FetchRequest,
    PartitionAnswer,
    PartitionKey,
    require_version,
    topic_key,
)
from protocol.wire.errors import LocalProtocolError, PeerProtocolError
from protocol.wire.identifiers import ApiKey
from protocol.wire.primitives import Cursor, write_array_length, write_string, write_uvarint
from protocol.wire.request_headers import RequestHeader, encode_request_header

_INT32 = struct.Struct(">i")
_LIMITS = struct.Struct(">iiib")  # max wait, min bytes, max bytes, isolation level
_SESSION = struct.Struct(">ii")  # session id, session epoch
_SESSION_EPOCH_OFFSET = 4
_SESSION_ID_OFFSET = -4  # seen from the epoch

_PARTITION_V4 = struct.Struct(">iqi")  # partition, fetch offset, max bytes
_PARTITION_V5 = struct.Struct(">iqqi")  # partition, fetch offset, log start offset, max bytes
_PARTITION_V9 = struct.Struct(">iiqqi")  # partition, leader epoch, fetch offset, log start offset, max bytes
_PARTITION_V12 = struct.Struct(">iiqiqi")  # … fetch offset, last fetched epoch, log start offset, max bytes
_PARTITION_V12_NO_TAGS = struct.Struct(">iiqiqiB")  # the same and its tagged section's first byte

_REPLICA_STATE_TAG = 1
_REPLICA_STATE_VERSION_MIN = 15


def decode_request(frame: memoryview, header: RequestHeader) -> FetchRequest:
    """Decode a whole frame (length field included) whose header was read already.

    If it names too much, only the head is read (`FetchRequest.is_unread`).

    Raises:
        PeerProtocolError: the frame is truncated, too long, or holds an impossible length or count.
        LocalProtocolError: the version is outside v4–v18.
    """
    require_version(header.api_version)
    try:
        return _decode_request(frame, header)
    except struct.error as error:
        raise PeerProtocolError(f"truncated Fetch v{header.api_version} request") from error


def encode_request(
    request: FetchRequest,
    partitions: Sequence[FetchPartition],
    *,
    correlation_id: int,
    max_wait_ms: int,
    min_bytes: int,
    max_bytes: int,
    session_id: int = NO_SESSION_ID,
    session_epoch: int = SESSIONLESS_EPOCH,
    forgotten: Sequence[PartitionKey] = (),
    api_version: int | None = None,
) -> bytes:
    """A whole frame (length field included) that asks for `partitions` on behalf of `request`.

    Client id, isolation level, rack, replica id and body tags are the request's. The version is the request's unless
    given; partitions must then have the kind of topic name which it wants, and what it has no field for is left out.

    Raises:
        LocalProtocolError: a version outside v4–v18, a missing topic name or id, or a follower's request raised
            over the version at which its replica id became a tag.
    """
    version = request.api_version if api_version is None else api_version
    require_version(version)
    flexible = version >= FLEXIBLE_VERSION_MIN
    parts = [encode_request_header(ApiKey.FETCH, version, correlation_id, request.client_id)]
    if version < _REPLICA_STATE_VERSION_MIN:
        parts.append(_INT32.pack(request.replica_id))
    elif request.replica_id != -1 and request.api_version < _REPLICA_STATE_VERSION_MIN:
        raise LocalProtocolError("a follower's Fetch is relayed, not raised to a newer version")
    parts.append(_LIMITS.pack(max_wait_ms, min_bytes, max_bytes, request.isolation_level))
    if version >= 7:
        parts.append(_SESSION.pack(session_id, session_epoch))
    _encode_topics(parts, partitions, version, flexible=flexible)
    if version >= 7:
        _encode_forgotten(parts, forgotten, version, flexible=flexible)
    if version >= 11:
        parts.append(write_string(request.rack_id, flexible=flexible))
    if flexible:
        parts.append(request.tags)
    body = b"".join(parts)
    return _INT32.pack(len(body)) + body


def patch_session(frame: memoryview, request: FetchRequest, *, session_id: int, session_epoch: int) -> None:
    """Write another session id and epoch into a request's frame, in place. Nothing below v7, which has none."""
    at = request.session_epoch_position
    if at is not None:
        _SESSION.pack_into(frame, at + _SESSION_ID_OFFSET, session_id, session_epoch)


def _decode_request(frame: memoryview, header: RequestHeader) -> FetchRequest:
    version = header.api_version
    flexible = version >= FLEXIBLE_VERSION_MIN
    cursor = Cursor(frame, header.body_position)
    request = _decode_head(cursor, header)
    room = PARTITIONS_MAX if len(frame) <= REQUEST_BYTES_MAX else -1
    if room >= 0:
        room = _decode_topics(cursor, request, room)
    if room >= 0 and version >= 7:
        room = _decode_forgotten(cursor, request, room)
    if room < 0:
        return replace(request, partitions=[], forgotten=(), is_unread=True)
    if version >= 11:
        request.rack_id = _string(cursor, flexible=flexible)
    if flexible:
        request.tags = cursor.raw_tags()
        if version >= _REPLICA_STATE_VERSION_MIN and request.tags != NO_TAGS:
            request.replica_id = _replica_id(request.tags)
    if cursor.position != cursor.end:
        raise PeerProtocolError(f"{cursor.end - cursor.position} bytes after the end of a Fetch v{version} request")
    return request


def _decode_head(cursor: Cursor, header: RequestHeader) -> FetchRequest:
    """The fields before the topics."""
    version = header.api_version
    replica_id = cursor.int32() if version < _REPLICA_STATE_VERSION_MIN else -1
    max_wait_ms, min_bytes, max_bytes, isolation_level = _LIMITS.unpack_from(cursor.view, cursor.position)
    cursor.skip(_LIMITS.size)
    session_id, session_epoch, session_epoch_position = NO_SESSION_ID, SESSIONLESS_EPOCH, None
    if version >= 7:
        session_id, session_epoch = _SESSION.unpack_from(cursor.view, cursor.position)
        session_epoch_position = cursor.position + _SESSION_EPOCH_OFFSET
        cursor.skip(_SESSION.size)
    return FetchRequest(
        version,
        header.correlation_id,
        header.client_id,
        replica_id,
        max_wait_ms,
        min_bytes,
        max_bytes,
        isolation_level,
        session_id,
        session_epoch,
        session_epoch_position,
        partitions=[],
        rack_id="",
        forgotten=[],
    )


def _decode_topics(cursor: Cursor, request: FetchRequest, room: int) -> int:
    """Return how many more may be named afterwards; negative if these are too many."""
    version, partitions = request.api_version, request.partitions
    flexible = version >= FLEXIBLE_VERSION_MIN
    for _ in range(cursor.present_array_length(flexible=flexible)):
        topic, topic_id = decode_topic_name(cursor, version)
        count, first = cursor.present_array_length(flexible=flexible), len(partitions)
        room -= max(1, count)
        if room < 0:
            break
        _require_room(cursor, count, _layout(version).size)
        _decode_partitions(cursor, version, topic, topic_id, count, partitions)
        if flexible:
            decode_topic_tags(cursor, partitions, first)
    return room


def decode_topic_name(cursor: Cursor, version: int) -> tuple[str | None, bytes | None]:
    """A topic's name or id, of a request as of a response; None for the one that the version lacks."""
    if version >= TOPIC_ID_VERSION_MIN:
        return None, cursor.raw(TOPIC_ID_BYTES)
    return _string(cursor, flexible=version >= FLEXIBLE_VERSION_MIN), None


def decode_topic_tags(
    cursor: Cursor, partitions: Sequence[FetchPartition] | Sequence[PartitionAnswer], first: int
) -> None:
    """A topic's tagged section: each of its partitions, from number `first` on, keeps it."""
    if cursor.position < cursor.end and cursor.view[cursor.position] == 0:
        cursor.position += 1
        return
    topic_tags = cursor.raw_tags()
    for partition in partitions[first:]:
        partition.topic_tags = topic_tags


def _layout(version: int) -> struct.Struct:
    """Return the layout of the smallest partition."""
    if version >= FLEXIBLE_VERSION_MIN:
        return _PARTITION_V12_NO_TAGS
    return _PARTITION_V9 if version >= 9 else _PARTITION_V5 if version >= 5 else _PARTITION_V4


def _require_room(cursor: Cursor, count: int, size: int) -> None:
    if count * size > cursor.end - cursor.position:
        raise PeerProtocolError(f"{count} partitions in {cursor.end - cursor.position} bytes")


def _decode_partitions(
    cursor: Cursor,
    version: int,
    topic: str | None,
    topic_id: bytes | None,
    count: int,
    partitions: list[FetchPartition],
) -> None:
    layout = _layout(version)
    if version >= FLEXIBLE_VERSION_MIN:
        _decode_partitions_v12(cursor, topic, topic_id, count, partitions)
        return
    start = cursor.skip(count * layout.size)
    rows = layout.iter_unpack(cursor.view[start : cursor.position])
    if version >= 9:
        partitions += [
            FetchPartition(topic, None, partition, epoch, offset, -1, log_start, size)
            for partition, epoch, offset, log_start, size in rows
        ]
    elif version >= 5:
        partitions += [
            FetchPartition(topic, None, partition, -1, offset, -1, log_start, size)
            for partition, offset, log_start, size in rows
        ]
    else:
        partitions += [
            FetchPartition(topic, None, partition, -1, offset, -1, -1, size) for partition, offset, size in rows
        ]


def _decode_partitions_v12(
    cursor: Cursor, topic: str | None, topic_id: bytes | None, count: int, partitions: list[FetchPartition]
) -> None:
    view, position, size = cursor.view, cursor.position, _PARTITION_V12_NO_TAGS.size
    unpack, append = _PARTITION_V12_NO_TAGS.unpack_from, partitions.append
    for _ in range(count):
        partition, epoch, offset, last_epoch, log_start, max_bytes, tag_byte = unpack(view, position)
        if tag_byte == 0:
            position += size
            append(FetchPartition(topic, topic_id, partition, epoch, offset, last_epoch, log_start, max_bytes))
            continue
        cursor.position = position + size - 1
        tags = cursor.raw_tags()
        position = cursor.position
        append(FetchPartition(topic, topic_id, partition, epoch, offset, last_epoch, log_start, max_bytes, tags))
    cursor.position = position


def _decode_forgotten(cursor: Cursor, request: FetchRequest, room: int) -> int:
    """As `_decode_topics`, what the session shall forget."""
    version = request.api_version
    flexible = version >= FLEXIBLE_VERSION_MIN
    forgotten: list[PartitionKey] = []
    for _ in range(cursor.present_array_length(flexible=flexible)):
        topic, topic_id = decode_topic_name(cursor, version)
        count = cursor.present_array_length(flexible=flexible)
        room -= max(1, count)
        if room < 0:
            break
        start = cursor.skip(count * _INT32.size)
        numbers = _INT32.iter_unpack(cursor.view[start : cursor.position])
        forgotten += [(topic, topic_id, number) for (number,) in numbers]
        if flexible:
            cursor.skip_tags()
    request.forgotten = forgotten
    return room


def _replica_id(tags: bytes) -> int:
    """The replica id in ReplicaState (tag 1), −1 without one."""
    cursor = Cursor(memoryview(tags))
    for _ in range(cursor.uvarint()):
        tag, size = cursor.uvarint(), cursor.uvarint()
        if tag == _REPLICA_STATE_TAG:
            return Cursor(cursor.view, cursor.position, cursor.position + size).int32()
        cursor.skip(size)
    return -1


def _string(cursor: Cursor, *, flexible: bool) -> str:
    value = cursor.string(flexible=flexible)
    if value is None:
        raise PeerProtocolError(f"null string at {cursor.position}")
    return value


def _encode_topics(parts: list[bytes], partitions: Sequence[FetchPartition], version: int, *, flexible: bool) -> None:
    at, count = len(parts), 0
    parts.append(NO_TAGS)  # the place of the count
    for key, grouped in groupby(partitions, key=lambda item: topic_key(item, version)):
        group, count = list(grouped), count + 1
        start_topic(parts, key, len(group), version)
        parts += [_encode_partition(partition, version) for partition in group]
        if flexible:
            parts.append(group[0].topic_tags)
    parts[at] = write_array_length(count, flexible=flexible)


def start_topic(parts: list[bytes], key: bytes, count: int, version: int) -> None:
    """Encode what stands before a topic's partitions, of a request as of a response. `key`: of `topic_key`."""
    flexible = version >= FLEXIBLE_VERSION_MIN
    if version < TOPIC_ID_VERSION_MIN:
        parts.append(write_uvarint(len(key) + 1) if flexible else struct.pack(">h", len(key)))
    parts.append(key)
    parts.append(write_array_length(count, flexible=flexible))


def _encode_forgotten(parts: list[bytes], forgotten: Sequence[PartitionKey], version: int, *, flexible: bool) -> None:
    groups = [(topic, [key[2] for key in keys]) for topic, keys in groupby(forgotten, key=lambda key: key[:2])]
    parts.append(write_array_length(len(groups), flexible=flexible))
    for (topic, topic_id), numbers in groups:
        by_id = version >= TOPIC_ID_VERSION_MIN
        parts.append((topic_id or bytes(TOPIC_ID_BYTES)) if by_id else write_string(topic or "", flexible=flexible))
        parts.append(write_array_length(len(numbers), flexible=flexible))
        parts += map(_INT32.pack, numbers)
        if flexible:
            parts.append(NO_TAGS)


def _encode_partition(item: FetchPartition, version: int) -> bytes:
    if version >= FLEXIBLE_VERSION_MIN:
        return (
            _PARTITION_V12.pack(
                item.partition,
                item.current_leader_epoch,
                item.fetch_offset,
                item.last_fetched_epoch,
                item.log_start_offset,
                item.partition_max_bytes,
            )
            + item.tags
        )
    if version >= 9:
        return _PARTITION_V9.pack(
            item.partition,
            item.current_leader_epoch,
            item.fetch_offset,
            item.log_start_offset,
            item.partition_max_bytes,
        )
    if version >= 5:
        return _PARTITION_V5.pack(item.partition, item.fetch_offset, item.log_start_offset, item.partition_max_bytes)
    return _PARTITION_V4.pack(item.partition, item.fetch_offset, item.partition_max_bytes)
