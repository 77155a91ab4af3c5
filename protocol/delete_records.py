"""DeleteRecords (api 21): what is asked, and where its answers stand in a response.

Contract:
- Versions 0 to 2 (flexible from 2). Topics have names only.
- A request is only read: it goes upstream as it came. A response is patched in place, as a low watermark and an error
  code have a fixed length, so that all else in it stays as the broker wrote it.
- An offset of −1 asks for the high watermark.
"""

import struct
from dataclasses import dataclass

from protocol.fetch.messages import PARTITIONS_MAX
from protocol.topic_walk import read_topics, require_end
from protocol.wire.errors import LocalProtocolError
from protocol.wire.primitives import Cursor
from protocol.wire.request_headers import RequestHeader

DELETE_RECORDS_VERSION_MAX = 2
FLEXIBLE_VERSION_MIN = 2
HIGH_WATERMARK = -1

_ANSWER = struct.Struct(">qh")  # low watermark, error code


@dataclass(slots=True)
class DeleteRecordsPartition:
    """One partition's new log start."""

    topic: str
    partition: int
    offset: int


@dataclass(slots=True)
class DeleteRecordsRequest:
    """A DeleteRecords request. `timeout_ms`: how long the broker waits for its followers."""

    partitions: list[DeleteRecordsPartition]
    timeout_ms: int


@dataclass(slots=True)
class DeleteRecordsAnswer:
    """One partition's answer, and where it stands in its frame."""

    topic: str
    partition: int
    low_watermark: int
    error_code: int
    position: int


def decode_request(frame: memoryview, header: RequestHeader) -> DeleteRecordsRequest:
    """Decode a whole frame (length field included) whose header was read already.

    Raises:
        PeerProtocolError: the frame is truncated, too long, too large, or holds an impossible length or count.
        LocalProtocolError: the version is above v2.
    """
    flexible = _is_flexible(header.api_version)
    cursor = Cursor(frame, header.body_position)
    request = DeleteRecordsRequest([], 0)

    def read(topic: str) -> None:
        request.partitions.append(DeleteRecordsPartition(topic, cursor.int32(), cursor.int64()))

    read_topics(cursor, read, PARTITIONS_MAX, flexible=flexible, is_request=True)
    request.timeout_ms = cursor.int32()
    require_end(cursor, "DeleteRecords request", flexible=flexible)
    return request


def decode_response(
    frame: memoryview, api_version: int, partitions_max: int | None = None
) -> list[DeleteRecordsAnswer]:
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
    cursor.skip(4)  # throttle time
    answers: list[DeleteRecordsAnswer] = []

    def read(topic: str) -> None:
        partition, position = cursor.int32(), cursor.position
        answers.append(DeleteRecordsAnswer(topic, partition, cursor.int64(), cursor.int16(), position))

    read_topics(cursor, read, partitions_max, flexible=flexible)
    require_end(cursor, "DeleteRecords response", flexible=flexible)
    return answers


def patch(frame: bytearray, answer: DeleteRecordsAnswer) -> None:
    """Write the answer's low watermark and error code in its place."""
    _ANSWER.pack_into(frame, answer.position, answer.low_watermark, answer.error_code)


def _is_flexible(api_version: int) -> bool:
    if not 0 <= api_version <= DELETE_RECORDS_VERSION_MAX:
        raise LocalProtocolError(f"DeleteRecords v{api_version} is not one that is decoded")
    return api_version >= FLEXIBLE_VERSION_MIN
