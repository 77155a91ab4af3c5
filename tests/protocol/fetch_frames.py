"""What tests of Fetch's codecs begin with: topics, answers and frames in every version."""

import uuid
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from protocol.fetch.messages import FETCH_VERSION_MAX, FETCH_VERSION_MIN, NO_TAGS, TOPIC_ID_VERSION_MIN, PartitionAnswer
from protocol.fetch.response import encode_response
from tests.support.for_each import for_each

FETCH = 1
VERSIONS = range(FETCH_VERSION_MIN, FETCH_VERSION_MAX + 1)
every_version = for_each("version", VERSIONS)

UNKNOWN_FIELD = b"\x63\x03abc"
UNKNOWN_SECTION = b"\x01" + UNKNOWN_FIELD

int32s = st.integers(-(2**31), 2**31 - 1)
int64s = st.integers(-(2**63), 2**63 - 1)


def name_of(number: int) -> str:
    return f"topic-{number}-ø" * number


def id_of(number: int) -> uuid.UUID:
    return uuid.UUID(int=number << 64 | 5)


def answer(version: int, number: int, partition: int, **more: Any) -> PartitionAnswer:
    """An answer with what the version can hold."""
    return answer_named(version, name_of(number), id_of(number).bytes, partition, **more)


def answer_named(version: int, topic: str, topic_id: bytes, partition: int, **more: Any) -> PartitionAnswer:
    by_id = version >= TOPIC_ID_VERSION_MIN
    fields = {"error_code": 0, "high_watermark": 70, "last_stable_offset": 60, "log_start_offset": 5} | more
    made = PartitionAnswer(None if by_id else topic, topic_id if by_id else None, partition, **fields)
    if version < 5:
        made.log_start_offset = -1
    if version < 11:
        made.preferred_read_replica = -1
    return made


def encode(version: int, answers: Sequence[PartitionAnswer], *, tags: bytes = NO_TAGS) -> bytes:
    buffers = encode_response(version, 5, throttle_time_ms=12, error_code=0, session_id=99, answers=answers, tags=tags)
    return b"".join(buffers)
