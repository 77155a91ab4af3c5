"""ListOffsets in every version, against kio's codec, and against peers that send nonsense."""

import datetime
import struct
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode as KioErrorCode

from protocol import list_offsets
from protocol.list_offsets import (
    NO_TAGS,
    ListOffsetsAnswer,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from protocol.wire.errors import PeerProtocolError
from protocol.wire.request_headers import decode_request_header
from tests.protocol.fetch_frames import UNKNOWN_SECTION, int32s, int64s
from tests.support import kio_frames
from tests.support.for_each import for_each
from tests.support.hostile_bytes import assert_all_of_it_is_read

LIST_OFFSETS = 2
VERSIONS = range(list_offsets.LIST_OFFSETS_VERSION_MIN, list_offsets.LIST_OFFSETS_VERSION_MAX + 1)
every_version = for_each("version", VERSIONS)

names = st.sampled_from(["a", "topic-ø", "b" * 200])
questions = st.lists(st.builds(ListOffsetsPartition, names, int32s, int32s, int64s), max_size=6)
answers = st.lists(
    st.builds(ListOffsetsAnswer, names, int32s, st.sampled_from([0, 3, 78]), int64s, int64s, int32s), max_size=6
)


def grouped(items: Sequence[ListOffsetsPartition | ListOffsetsAnswer]) -> list[dict[str, Any]]:
    """The items by runs of topics, under the names that kio's classes have for the fields."""
    runs = groupby(items, key=lambda each: each.topic)
    return [{"name": topic, "partitions": [values_of(each) for each in run]} for topic, run in runs]


def values_of(each: ListOffsetsPartition | ListOffsetsAnswer) -> dict[str, object]:
    values: dict[str, object] = {"partition_index": each.partition, "timestamp": each.timestamp}
    if isinstance(each, ListOffsetsPartition):
        return values | {"current_leader_epoch": each.current_leader_epoch}
    code = KioErrorCode(each.error_code)
    return values | {"error_code": code, "offset": each.offset, "leader_epoch": each.leader_epoch}


def request_frame(version: int, items: list[ListOffsetsPartition]) -> bytes:
    values: dict[str, object] = {
        "replica_id": -1,
        "isolation_level": 1,
        "topics": grouped(items),
        "timeout": datetime.timedelta(milliseconds=4321),
    }
    return kio_frames.request_frame(
        kio_frames.fill(kio_frames.schema(LIST_OFFSETS, version, kind="request"), values), client_id="client"
    )


def response_frame(version: int, items: list[ListOffsetsAnswer]) -> bytes:
    values = {"throttle_time": datetime.timedelta(milliseconds=12), "topics": grouped(items)}
    return kio_frames.response_frame(kio_frames.fill(kio_frames.schema(LIST_OFFSETS, version), values))


def decode(frame: bytes | memoryview) -> ListOffsetsRequest:
    view = memoryview(frame)
    return decode_request(view, decode_request_header(view))


@given(version=st.sampled_from(VERSIONS), items=questions)
def test_requests_are_read_and_written_as_kio_does(version: int, items: list[ListOffsetsPartition]) -> None:
    frame = request_frame(version, items)

    request = decode(frame)

    assert [(each.topic, each.partition, each.timestamp) for each in request.partitions] == [
        (each.topic, each.partition, each.timestamp) for each in items
    ]
    assert [each.current_leader_epoch for each in request.partitions] == [
        each.current_leader_epoch if version >= 4 else -1 for each in items
    ]
    assert (request.client_id, request.correlation_id, request.replica_id) == ("client", 5, -1)
    assert request.isolation_level == (1 if version >= 2 else 0)
    assert request.timeout_ms == (4321 if version >= 10 else 0)
    assert encode_request(request, correlation_id=5) == frame


@given(version=st.sampled_from(VERSIONS), items=answers)
def test_responses_are_read_and_written_as_kio_does(version: int, items: list[ListOffsetsAnswer]) -> None:
    frame = response_frame(version, items)

    response = decode_response(memoryview(frame), version)

    if version < 4:
        for each in items:
            each.leader_epoch = -1
    assert response.partitions == items
    assert (response.correlation_id, response.throttle_time_ms) == (5, 12 if version >= 2 else 0)
    assert encode_response(response, version, 5) == frame


def tagged_request(version: int) -> bytes:
    items = [ListOffsetsPartition("a", 0, 3, -2, UNKNOWN_SECTION, UNKNOWN_SECTION)] * 2
    return encode_request(ListOffsetsRequest(version, 5, None, -1, 0, items, 7, UNKNOWN_SECTION), correlation_id=5)


def tagged_response(version: int) -> bytes:
    items = [ListOffsetsAnswer("a", 0, 0, 5, 6, 7, UNKNOWN_SECTION, UNKNOWN_SECTION)] * 2
    return encode_response(ListOffsetsResponse(5, 12, items, UNKNOWN_SECTION), version, 5)


@every_version
def test_unknown_tags_survive(version: int) -> None:
    request, response = (
        decode(tagged_request(version)),
        decode_response(memoryview(tagged_response(version)), version),
    )

    expected = UNKNOWN_SECTION if version >= 6 else NO_TAGS
    assert {request.tags, response.tags} == {expected}
    for tags in (
        [(each.tags, each.topic_tags) for each in request.partitions],
        [(each.tags, each.topic_tags) for each in response.partitions],
    ):
        assert tags == [(expected, expected)] * 2
    assert encode_request(request, correlation_id=5) == tagged_request(version)
    assert encode_response(response, version, 5) == tagged_response(version)


@every_version
def test_bytes_that_are_cut_longer_or_changed(version: int) -> None:
    assert_all_of_it_is_read(decode, tagged_request(version), body_position=12)
    assert_all_of_it_is_read(lambda view: decode_response(view, version), tagged_response(version), body_position=8)


@for_each("count", [-1, -2, 1000, 2**31 - 1])
def test_hostile_counts_are_refused(count: int) -> None:
    empty_request, empty_response = request_frame(5, []), response_frame(5, [])
    with pytest.raises(PeerProtocolError):
        decode(empty_request[:-4] + struct.pack(">i", count))
    with pytest.raises(PeerProtocolError):
        decode_response(memoryview(empty_response[:-4] + struct.pack(">i", count)), 5)
