"""What is too large to be read, and answers that hold more than was asked for."""

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from types import ModuleType
from typing import Any

import pytest

from protocol import list_offsets
from protocol.fetch import requests as fetch_request
from protocol.fetch.messages import PARTITIONS_MAX, REQUEST_BYTES_MAX, FetchPartition, PartitionAnswer
from protocol.fetch.requests import decode_request
from protocol.fetch.response import decode_response, encode_response
from protocol.list_offsets import ListOffsetsPartition, ListOffsetsRequest
from protocol.wire.errors import PeerProtocolError
from protocol.wire.primitives import TAGS_MAX
from protocol.wire.request_headers import decode_request_header
from tests.support.for_each import for_each
from tests.support.tier_world import client_frame, fetch_of

versions_and_topics = for_each("version, topics", product((4, 7, 11, 12, 17), (False, True)))
TOPIC_ID = bytes(range(16))


def asked_of(count: int, version: int, *, topics: bool = False) -> list[FetchPartition]:
    def topic(number: int) -> str | None:
        return None if version >= 13 else f"orders-{number if topics else 0:050}"

    def topic_id(number: int) -> bytes | None:
        return TOPIC_ID[:12] + struct.pack(">i", number if topics else 0) if version >= 13 else None

    return [FetchPartition(topic(n), topic_id(n), n, -1, 17, -1, -1, 1 << 20) for n in range(count)]


def frame_of(asked: list[FetchPartition], version: int, **fields: object) -> memoryview:
    return memoryview(client_frame(fetch_of(asked, api_version=version, **fields)))


class Counted:
    """Stands for a class or a function, and counts how often it is called."""

    def __init__(self, called: Callable[..., Any]) -> None:
        self.count = 0
        self._called = called

    def __call__(self, *fields: Any, **named: Any) -> Any:
        self.count += 1
        return self._called(*fields, **named)


@contextmanager
def counting(module: ModuleType, name: str) -> Iterator[Counted]:
    """Count the calls of what the module has under that name."""
    counted = Counted(getattr(module, name))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, name, counted)
        yield counted


@pytest.fixture
def counted() -> Iterator[Counted]:
    """Count the partitions of a Fetch that are made while it is decoded."""
    with counting(fetch_request, "FetchPartition") as counted:
        yield counted


# --- requests ---


def test_a_section_of_too_many_tags_is_no_request() -> None:
    """16 MiB of them would keep the loop for seconds."""
    asked = asked_of(1, 17)
    asked[0].tags = struct.pack(">BB", (TAGS_MAX + 1) & 0x7F | 0x80, (TAGS_MAX + 1) >> 7) + b"\x63\x00" * (TAGS_MAX + 1)
    frame = frame_of(asked, 17)
    with pytest.raises(PeerProtocolError, match="1001 tagged fields"):
        decode_request(frame, decode_request_header(frame))


@versions_and_topics
def test_of_a_fetch_of_too_many_only_the_head_is_read(version: int, topics: bool, counted: Counted) -> None:
    frame = frame_of(asked_of(PARTITIONS_MAX + 1, version, topics=topics), version, session_id=7, session_epoch=3)
    counted.count = 0
    request = decode_request(frame, decode_request_header(frame))
    assert request.is_unread
    assert (request.partitions, list(request.forgotten), request.max_wait_ms) == ([], [], 500)
    assert (request.session_id, request.session_epoch) == ((7, 3) if version >= 7 else (0, -1))
    assert counted.count == (PARTITIONS_MAX if topics else 0)


def test_a_million_partitions_are_not_looked_at(counted: Counted) -> None:
    """Failed before: 2.3 s and 197 MiB."""
    topic = struct.pack(">h6si", 6, b"orders", 1_000_000)
    empty = bytes(frame_of([], 4))
    body = empty[4:-4] + struct.pack(">i", 1) + topic + bytes(16 * 1_000_000)
    frame = memoryview(struct.pack(">i", len(body)) + body)
    assert decode_request(frame, decode_request_header(frame)).is_unread
    assert counted.count == 0


def test_forgotten_partitions_and_empty_topics_count_too() -> None:
    forgotten = [("orders", None, number) for number in range(PARTITIONS_MAX)]
    for named, is_unread in (([], False), (asked_of(1, 12), True)):
        frame = frame_of(named, 12, forgotten=forgotten)
        assert decode_request(frame, decode_request_header(frame)).is_unread == is_unread
    empty = bytes(frame_of([], 4))
    body = empty[4:-4] + struct.pack(">i", PARTITIONS_MAX + 1) + struct.pack(">hi", 0, 0) * (PARTITIONS_MAX + 1)
    frame = memoryview(struct.pack(">i", len(body)) + body)
    assert decode_request(frame, decode_request_header(frame)).is_unread


def test_a_request_of_too_many_bytes_is_not_read() -> None:
    asked = asked_of(1, 17)
    for size, is_unread in ((REQUEST_BYTES_MAX - 200, False), (REQUEST_BYTES_MAX, True)):
        asked[0].tags = b"\x01\x63" + struct.pack("BBB", size & 0x7F | 0x80, size >> 7 & 0x7F | 0x80, size >> 14)
        asked[0].tags += bytes(size)
        frame = frame_of(asked, 17)
        assert decode_request(frame, decode_request_header(frame)).is_unread == is_unread


# --- responses ---


@versions_and_topics
def test_a_response_with_more_than_was_asked_for_is_refused(version: int, topics: bool) -> None:
    """Failed before: a broker's answer was decoded however many partitions it had."""
    asked = asked_of(20, version, topics=topics)
    answers = [PartitionAnswer(each.topic, each.topic_id, each.partition, 0, 9, 9, -1) for each in asked]
    fields: dict[str, Any] = {"throttle_time_ms": 3, "error_code": 0, "session_id": 0}
    frame = memoryview(b"".join(encode_response(version, 1, answers=answers, **fields)))
    assert len(decode_response(frame, version, 20).partitions) == 20
    with pytest.raises(PeerProtocolError, match="more partitions than were asked for"):
        decode_response(frame, version, 19)


# --- ListOffsets ---


def test_of_list_offsets_of_too_many_no_question_is_read() -> None:
    asked = [ListOffsetsPartition("orders", number, -1, 4000) for number in range(PARTITIONS_MAX + 1)]
    frame = memoryview(list_offsets.encode_request(ListOffsetsRequest(1, 1, "c", -1, 0, asked), correlation_id=1))
    with counting(list_offsets, "ListOffsetsPartition") as counted:
        request = list_offsets.decode_request(frame, decode_request_header(frame))
    assert (request.is_unread, request.partitions, counted.count) == (True, [], 0)


def test_of_list_offsets_more_answers_than_questions_are_refused() -> None:
    answers = [list_offsets.ListOffsetsAnswer("orders", number, 0, -1, 7, 0) for number in range(3)]
    frame = list_offsets.encode_response(list_offsets.ListOffsetsResponse(1, 0, answers), 7, 1)
    assert len(list_offsets.decode_response(memoryview(frame), 7, 3).partitions) == 3
    with pytest.raises(PeerProtocolError, match="more partitions than were asked for"):
        list_offsets.decode_response(memoryview(frame), 7, 2)
