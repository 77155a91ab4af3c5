"""Fetch responses: decoding upstream's, encoding the client's.

Contract: see `messages`. A partition without records, aborted transactions and tags (nearly all of them in a
large fetch) is one unpack or one pack. Records pass through as views, in both directions. Nothing but
PeerProtocolError comes out of a bad frame; a count that the bytes left cannot hold is refused before anything is
built.
"""

import struct
from collections.abc import Sequence
from itertools import groupby

from protocol.fetch.messages import (
    FLEXIBLE_VERSION_MIN,
    NO_TAGS,
    FetchResponse,
    PartitionAnswer,
    less_asked,
    require_version,
    topic_key,
)
from protocol.fetch.requests import decode_topic_name, decode_topic_tags, start_topic
from protocol.record_batches import Buffer
from protocol.wire.errors import LocalProtocolError, PeerProtocolError
from protocol.wire.primitives import Cursor, write_array_length, write_uvarint

_FRAME_LENGTH_MAX = 2**31 - 1

SESSION_HEAD_BYTES = 64
"""A response frame's session lies within these bytes; a head with more unknown tags than that is not understood."""

_INT32 = struct.Struct(">i")
_FRAME_HEAD = struct.Struct(">ii")  # length, correlation id
_SESSION = struct.Struct(">hi")  # error code, session id
_ABORTED = struct.Struct(">qq")  # producer id, first offset
_ABORTED_V12 = struct.Struct(">qqB")  # the same and its tagged section's first byte

# A partition up to its count of aborted transactions: partition, error code, high watermark, last stable offset,
# and from v5 on log start offset.
_HEAD_V4 = struct.Struct(">ihqqi")
_HEAD_V5 = struct.Struct(">ihqqqi")
_HEAD_V12 = struct.Struct(">ihqqq")
# What follows the aborted transactions: from v11 on preferred read replica, then the size of the records.
_TAIL_V4 = struct.Struct(">i")
_TAIL_V11 = struct.Struct(">ii")
# The same of v12+ without an aborted transaction: with their count, and the preferred read replica.
_HEAD_NONE_ABORTED_V12 = struct.Struct(">ihqqqBi")
# A whole partition of v12+ whose aborted count, records size and tag count take a byte each.
_QUIET_V12 = struct.Struct(">ihqqqBiBB")


def decode_response(frame: memoryview, api_version: int, partitions_max: int | None = None) -> FetchResponse:
    """Decode a whole frame (length field included). The answers' records are views into it.

    Args:
        partitions_max: how many were asked for; more are refused. None: any number.

    Raises:
        PeerProtocolError: the frame is truncated, too long, or holds an impossible length or count.
        LocalProtocolError: the version is outside v4–v18.
    """
    require_version(api_version)
    try:
        return _decode_response(frame, api_version, partitions_max)
    except struct.error as error:
        raise PeerProtocolError(f"truncated Fetch v{api_version} response") from error


def peek_session(head: memoryview, api_version: int) -> tuple[int, int, int]:
    """Error code, session id, and where the id stands, from the first bytes of a frame (v7 and later).

    Raises:
        PeerProtocolError: it does not stand in them.
    """
    cursor = Cursor(head, _FRAME_HEAD.size)
    if api_version >= FLEXIBLE_VERSION_MIN:
        cursor.skip_tags()
    cursor.skip(_INT32.size)  # throttle time
    error_code, position = cursor.int16(), cursor.position
    return error_code, cursor.int32(), position


def patch_session_id(head: memoryview, position: int, session_id: int) -> None:
    """Write another session id where `peek_session` found one."""
    _INT32.pack_into(head, position, session_id)


def encode_response(
    api_version: int,
    correlation_id: int,
    *,
    throttle_time_ms: int,
    error_code: int,
    session_id: int,
    answers: Sequence[PartitionAnswer],
    tags: bytes = NO_TAGS,
) -> list[Buffer]:
    """A whole frame as buffers in order, its length field included; records are the answers' own buffers, uncopied.

    There are two buffers per answer with records, plus its record buffers: more than IOV_MAX (1024) are possible,
    which the sender has to mind. Fields which the version lacks are left out.

    Raises:
        LocalProtocolError: a version outside v4–v18, a missing topic name or id, or more than 2 GiB.
    """
    require_version(api_version)
    flexible = api_version >= FLEXIBLE_VERSION_MIN
    parts: list[bytes] = []
    buffers: list[Buffer] = []
    count = 0
    for key, grouped in groupby(answers, key=lambda item: topic_key(item, api_version)):
        group, count = list(grouped), count + 1
        start_topic(parts, key, len(group), api_version)
        if flexible:
            parts = _encode_partitions_v12(buffers, parts, group)
            parts.append(group[0].topic_tags)
        else:
            parts = _encode_partitions_v4_to_v11(buffers, parts, group, api_version)
    if flexible:
        parts.append(tags)
    buffers.append(b"".join(parts))
    head = [NO_TAGS] if flexible else []
    head.append(_INT32.pack(throttle_time_ms))
    if api_version >= 7:
        head.append(_SESSION.pack(error_code, session_id))
    head.append(write_array_length(count, flexible=flexible))
    length = sum(map(len, head)) + sum(map(len, buffers)) + 4
    if length > _FRAME_LENGTH_MAX:
        raise LocalProtocolError(f"a response of {length} bytes does not fit in a frame")
    buffers[0] = b"".join((_FRAME_HEAD.pack(length, correlation_id), *head, buffers[0]))
    return buffers


def _decode_response(frame: memoryview, version: int, partitions_max: int | None) -> FetchResponse:
    flexible = version >= FLEXIBLE_VERSION_MIN
    cursor = Cursor(frame, 4)
    correlation_id = cursor.int32()
    if flexible:
        cursor.skip_tags()
    throttle_time_ms = cursor.int32()
    error_code = session_id = 0
    if version >= 7:
        error_code, session_id = cursor.int16(), cursor.int32()
    answers: list[PartitionAnswer] = []
    room = partitions_max
    for _ in range(cursor.present_array_length(flexible=flexible)):
        topic, topic_id = decode_topic_name(cursor, version)
        count, first = cursor.present_array_length(flexible=flexible), len(answers)
        room = less_asked(room, count)
        _require_room(cursor, count, version)
        _decode_partitions(cursor, version, topic, topic_id, count, answers)
        if flexible:
            decode_topic_tags(cursor, answers, first)
    tags = cursor.raw_tags() if flexible else NO_TAGS
    if cursor.position != cursor.end:
        raise PeerProtocolError(f"{cursor.end - cursor.position} bytes after the end of a Fetch v{version} response")
    return FetchResponse(correlation_id, throttle_time_ms, error_code, session_id, answers, tags)


def _require_room(cursor: Cursor, count: int, version: int) -> None:
    if version >= FLEXIBLE_VERSION_MIN:
        size = _QUIET_V12.size
    else:
        size = (_HEAD_V5 if version >= 5 else _HEAD_V4).size + (_TAIL_V11 if version >= 11 else _TAIL_V4).size
    if count * size > cursor.end - cursor.position:
        raise PeerProtocolError(f"{count} partitions in {cursor.end - cursor.position} bytes")


def _decode_partitions(
    cursor: Cursor, version: int, topic: str | None, topic_id: bytes | None, count: int, answers: list[PartitionAnswer]
) -> None:
    if version >= FLEXIBLE_VERSION_MIN:
        _decode_partitions_v12(cursor, topic, topic_id, count, answers)
    else:
        _decode_partitions_v4_to_v11(cursor, version, topic, count, answers)


def _decode_partitions_v12(
    cursor: Cursor, topic: str | None, topic_id: bytes | None, count: int, answers: list[PartitionAnswer]
) -> None:
    view, position, size = cursor.view, cursor.position, _QUIET_V12.size
    unpack, append = _QUIET_V12.unpack_from, answers.append
    for _ in range(count):
        partition, error_code, high, stable, start, aborted, preferred, records, tag_byte = unpack(view, position)
        answer = PartitionAnswer(topic, topic_id, partition, error_code, high, stable, start, None, preferred)
        append(answer)
        if aborted > 1 or records > 1 or tag_byte != 0:
            cursor.position = position + _HEAD_V12.size
            _decode_rest_v12(cursor, answer)
            position = cursor.position
            continue
        position += size
        if aborted == 1:
            answer.aborted_transactions = []
        if records == 0:
            answer.records_are_null = True
    cursor.position = position


def _decode_rest_v12(cursor: Cursor, answer: PartitionAnswer) -> None:
    """Decode what follows the fixed fields of a partition that is not quiet; overwrites what the quiet form made of
    it."""
    aborted_count = cursor.compact_length()
    answer.aborted_transactions = None if aborted_count == -1 else _aborted_v12(cursor, aborted_count)
    answer.preferred_read_replica = cursor.int32()
    _take_records(cursor, answer, cursor.compact_length())
    answer.tags = cursor.raw_tags()


def _decode_partitions_v4_to_v11(
    cursor: Cursor, version: int, topic: str | None, count: int, answers: list[PartitionAnswer]
) -> None:
    view = cursor.view
    head, tail = (_HEAD_V5 if version >= 5 else _HEAD_V4), (_TAIL_V11 if version >= 11 else _TAIL_V4)
    start = preferred = -1
    for _ in range(count):
        if version >= 5:
            partition, error_code, high, stable, start, aborted_count = head.unpack_from(view, cursor.position)
        else:
            partition, error_code, high, stable, aborted_count = head.unpack_from(view, cursor.position)
        cursor.skip(head.size)
        aborted = None if aborted_count == -1 else _aborted(cursor, aborted_count)
        if version >= 11:
            preferred, size = tail.unpack_from(view, cursor.position)
        else:
            (size,) = tail.unpack_from(view, cursor.position)
        cursor.skip(tail.size)
        answer = PartitionAnswer(topic, None, partition, error_code, high, stable, start, aborted, preferred)
        if size:
            _take_records(cursor, answer, size)
        answers.append(answer)


def _aborted(cursor: Cursor, count: int) -> list[tuple[int, int]]:
    start = cursor.skip(count * _ABORTED.size)
    return list(_ABORTED.iter_unpack(cursor.view[start : cursor.position]))


def _aborted_v12(cursor: Cursor, count: int) -> list[tuple[int, int]]:
    """As the above, each with a tagged section, which has been empty in every version so far and is not kept."""
    if count * _ABORTED_V12.size > cursor.end - cursor.position:
        raise PeerProtocolError(f"{count} aborted transactions in {cursor.end - cursor.position} bytes")
    aborted = []
    for _ in range(count):
        producer_id, first_offset, tag_byte = _ABORTED_V12.unpack_from(cursor.view, cursor.position)
        aborted.append((producer_id, first_offset))
        cursor.skip(_ABORTED_V12.size)
        if tag_byte:
            cursor.position -= 1
            cursor.skip_tags()
    return aborted


def _take_records(cursor: Cursor, answer: PartitionAnswer, size: int) -> None:
    if size == -1:
        answer.records_are_null = True
        return
    start = cursor.skip(size)
    if size:
        answer.records = (cursor.view[start : cursor.position],)


def _encode_partitions_v12(buffers: list[Buffer], parts: list[bytes], group: Sequence[PartitionAnswer]) -> list[bytes]:
    """Write partitions to `parts`, moving them to `buffers` before each record set; returns the parts still open."""
    quiet = _QUIET_V12.pack
    for answer in group:
        aborted = answer.aborted_transactions
        if not answer.records and not aborted and answer.tags == NO_TAGS:
            parts.append(
                quiet(
                    answer.partition,
                    answer.error_code,
                    answer.high_watermark,
                    answer.last_stable_offset,
                    answer.log_start_offset,
                    0 if aborted is None else 1,
                    answer.preferred_read_replica,
                    0 if answer.records_are_null else 1,
                    0,
                )
            )
            continue
        offsets = answer.high_watermark, answer.last_stable_offset, answer.log_start_offset
        if aborted:
            parts.append(_HEAD_V12.pack(answer.partition, answer.error_code, *offsets))
            parts.append(write_uvarint(len(aborted) + 1))
            parts += [_ABORTED_V12.pack(*pair, 0) for pair in aborted]
            parts.append(_INT32.pack(answer.preferred_read_replica))
        else:
            none_aborted = 0 if aborted is None else 1
            parts.append(
                _HEAD_NONE_ABORTED_V12.pack(
                    answer.partition, answer.error_code, *offsets, none_aborted, answer.preferred_read_replica
                )
            )
        parts.append(write_uvarint(0 if answer.records_are_null else answer.records_bytes + 1))
        parts = _put_records(buffers, parts, answer.records)
        parts.append(answer.tags)
    return parts


def _encode_partitions_v4_to_v11(
    buffers: list[Buffer], parts: list[bytes], group: Sequence[PartitionAnswer], version: int
) -> list[bytes]:
    """As the above, for the versions without tags."""
    for answer in group:
        aborted = answer.aborted_transactions
        count = -1 if aborted is None else len(aborted)
        offsets = answer.high_watermark, answer.last_stable_offset
        if version >= 5:
            parts.append(_HEAD_V5.pack(answer.partition, answer.error_code, *offsets, answer.log_start_offset, count))
        else:
            parts.append(_HEAD_V4.pack(answer.partition, answer.error_code, *offsets, count))
        parts += [_ABORTED.pack(*pair) for pair in aborted or ()]
        size = -1 if answer.records_are_null else answer.records_bytes
        if version >= 11:
            parts.append(_TAIL_V11.pack(answer.preferred_read_replica, size))
        else:
            parts.append(_TAIL_V4.pack(size))
        parts = _put_records(buffers, parts, answer.records)
    return parts


def _put_records(buffers: list[Buffer], parts: list[bytes], records: Sequence[Buffer]) -> list[bytes]:
    if not records:
        return parts
    buffers.append(b"".join(parts))
    buffers.extend(records)
    return []
