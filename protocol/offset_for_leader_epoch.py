"""OffsetForLeaderEpoch (api 23): what is asked, and where its answers stand in a response.

Contract:
- Versions 0 to 4 (flexible from 4). Topics have names only. A partition may be asked about several epochs; its answers
  come in their order.
- A request is only read: it goes upstream as it came. A response is patched in place, as an epoch and an offset have a
  fixed length, so that all else in it stays as the broker wrote it.

Version notes: 1 the answer names the epoch that it is of · 2 current leader epoch, throttle time (KIP-320) · 3 replica
id · 4 flexible.
"""

import struct
from dataclasses import dataclass

from protocol.fetch.messages import PARTITIONS_MAX
from protocol.topic_walk import read_topics, require_end
from protocol.wire.errors import LocalProtocolError
from protocol.wire.primitives import Cursor
from protocol.wire.request_headers import RequestHeader

OFFSET_FOR_LEADER_EPOCH_VERSION_MAX = 4
FLEXIBLE_VERSION_MIN = 4

_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")


@dataclass(slots=True)
class LeaderEpochPartition:
    """One question."""

    topic: str
    partition: int
    leader_epoch: int


@dataclass(slots=True)
class LeaderEpochAnswer:
    """One answer, and where its epoch (its offset in v0) stands in its frame. `leader_epoch` is None in v0."""

    topic: str
    partition: int
    error_code: int
    leader_epoch: int | None
    end_offset: int
    position: int


def decode_request(frame: memoryview, header: RequestHeader) -> list[LeaderEpochPartition]:
    """Decode a whole frame (length field included) whose header was read already.

    Raises:
        PeerProtocolError: the frame is truncated, too long, too large, or holds an impossible length or count.
        LocalProtocolError: the version is above v4.
    """
    version = header.api_version
    flexible = _is_flexible(version)
    cursor = Cursor(frame, header.body_position)
    if version >= 3:
        cursor.skip(4)  # replica id
    asked: list[LeaderEpochPartition] = []

    def read(topic: str) -> None:
        partition = cursor.int32()
        if version >= 2:
            cursor.skip(4)  # current leader epoch
        asked.append(LeaderEpochPartition(topic, partition, cursor.int32()))

    read_topics(cursor, read, PARTITIONS_MAX, flexible=flexible, is_request=True)
    require_end(cursor, "OffsetForLeaderEpoch request", flexible=flexible)
    return asked


def decode_response(frame: memoryview, api_version: int, partitions_max: int | None = None) -> list[LeaderEpochAnswer]:
    """Return the answers in a whole frame (length field included).

    Args:
        partitions_max: how many were asked for; more are refused. None: any number.

    Raises:
        PeerProtocolError, LocalProtocolError: as `decode_request`.
    """
    flexible = _is_flexible(api_version)
    cursor = Cursor(frame, 8)
    if flexible:
        cursor.skip_tags()
    if api_version >= 2:
        cursor.skip(4)  # throttle time
    answers: list[LeaderEpochAnswer] = []

    def read(topic: str) -> None:
        error_code, partition, position = cursor.int16(), cursor.int32(), cursor.position
        leader_epoch = cursor.int32() if api_version >= 1 else None
        answers.append(LeaderEpochAnswer(topic, partition, error_code, leader_epoch, cursor.int64(), position))

    read_topics(cursor, read, partitions_max, flexible=flexible)
    require_end(cursor, "OffsetForLeaderEpoch response", flexible=flexible)
    return answers


def patch(frame: bytearray, answer: LeaderEpochAnswer) -> None:
    """Write the answer's epoch and end offset in its place."""
    position = answer.position
    if answer.leader_epoch is not None:
        _INT32.pack_into(frame, position, answer.leader_epoch)
        position += _INT32.size
    _INT64.pack_into(frame, position, answer.end_offset)


def _is_flexible(api_version: int) -> bool:
    if not 0 <= api_version <= OFFSET_FOR_LEADER_EPOCH_VERSION_MAX:
        raise LocalProtocolError(f"OffsetForLeaderEpoch v{api_version} is not one that is decoded")
    return api_version >= FLEXIBLE_VERSION_MIN
