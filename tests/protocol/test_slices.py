"""Work in slices, and that the large messages are: how many partitions are handled between two yields."""

import struct
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from itertools import pairwise, product
from types import ModuleType
from typing import Any

import pytest

from protocol import list_offsets
from protocol.fetch import messages as fetch_request
from protocol.fetch.messages import (
    PARTITIONS_MAX,
    REQUEST_BYTES_MAX,
    FetchPartition,
    PartitionAnswer,
    decode_request,
    decode_request_in_slices,
)
from protocol.fetch.response import decode_response_in_slices, encode_response, encode_response_in_slices
from protocol.list_offsets import ListOffsetsPartition, ListOffsetsRequest
from protocol.wire.errors import PeerProtocolError
from protocol.wire.framing import decode_request_header
from protocol.wire.primitives import SLICE_BYTES, SLICE_ITEMS, TAGS_MAX
from tests.support.for_each import for_each
from tests.support.tier_world import client_frame, fetch_of

MANY = 4 * SLICE_ITEMS
versions_and_topics = for_each("version, topics", product((4, 7, 11, 12, 17), (False, True)))
TOPIC_ID = bytes(range(16))


def stretches(work: Generator[None, None, Any], handled: Callable[[], int]) -> list[int]:
    """Return how many items were handled up to each yield, and from the last one to the end."""
    counts = [handled()]
    for _ in work:
        counts.append(handled())
    counts.append(handled())
    return [after - before for before, after in pairwise(counts)]


def slice_count(work: Generator[None, None, Any]) -> int:
    return sum(1 for _ in work) + 1


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


# --- slices themselves ---


# --- requests ---


@versions_and_topics
def test_a_large_fetch_is_decoded_in_slices(version: int, topics: bool, counted: Counted) -> None:
    """Failed before: one stretch of all of them."""
    asked = asked_of(MANY, version, topics=topics)
    frame = frame_of(asked, version)
    counted.count = 0
    handled = stretches(decode_request_in_slices(frame, decode_request_header(frame)), lambda: counted.count)
    assert sum(handled) == MANY
    assert max(handled) <= SLICE_BYTES // 16 + 1
    assert decode_request(frame, decode_request_header(frame)).partitions == asked
    small = frame_of(asked[:100], version)
    assert slice_count(decode_request_in_slices(small, decode_request_header(small))) == 1


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
    work = decode_request_in_slices(frame, decode_request_header(frame))
    assert slice_count(work) == 1
    assert counted.count == 0
    assert decode_request(frame, decode_request_header(frame)).is_unread


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
def test_a_large_response_is_made_and_read_in_slices(version: int, topics: bool) -> None:
    asked = asked_of(MANY, version, topics=topics)
    answers = [PartitionAnswer(each.topic, each.topic_id, each.partition, 0, 9, 9, -1) for each in asked]
    fields: dict[str, Any] = {"throttle_time_ms": 3, "error_code": 0, "session_id": 0}
    for count in (MANY, SLICE_ITEMS):
        some = answers[:count]
        assert slice_count(encode_response_in_slices(version, 1, answers=some, **fields)) == count // SLICE_ITEMS
        frame = memoryview(b"".join(encode_response(version, 1, answers=some, **fields)))
        assert slice_count(decode_response_in_slices(frame, version)) == count // SLICE_ITEMS


# --- ListOffsets ---


def test_of_list_offsets_of_too_many_no_question_is_read() -> None:
    asked = [ListOffsetsPartition("orders", number, -1, 4000) for number in range(PARTITIONS_MAX + 1)]
    frame = memoryview(list_offsets.encode_request(ListOffsetsRequest(1, 1, "c", -1, 0, asked), correlation_id=1))
    with counting(list_offsets, "ListOffsetsPartition") as counted:
        request = list_offsets.decode_request(frame, decode_request_header(frame))
    assert (request.is_unread, request.partitions, counted.count) == (True, [], 0)
