"""DeleteRecords in every version, against kio's codec, and against peers that send nonsense."""

import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode as KioErrorCode

from protocol.delete_records import (
    DELETE_RECORDS_VERSION_MAX,
    DeleteRecordsRequest,
    decode_request,
    decode_response,
    patch,
)
from protocol.fetch.messages import PARTITIONS_MAX, REQUEST_BYTES_MAX
from protocol.wire.errors import LocalProtocolError, PeerProtocolError
from protocol.wire.framing import RequestHeader, decode_request_header
from tests.support import kio_frames
from tests.support.drawn import drawn
from tests.support.for_each import for_each
from tests.support.hostile_bytes import assert_all_of_it_is_read

DELETE_RECORDS = 21
VERSIONS = range(DELETE_RECORDS_VERSION_MAX + 1)

int32s = st.integers(-(2**31), 2**31 - 1)
int64s = st.integers(-(2**63), 2**63 - 1)
names = st.sampled_from(["a", "topic-ø", "b" * 200])
codes = st.sampled_from([0, 1, 7, 29])
asked = st.lists(st.tuples(names, st.lists(st.tuples(int32s, int64s), max_size=4)), max_size=4)
answered = st.lists(st.tuples(names, st.lists(st.tuples(int32s, int64s, codes), max_size=4)), max_size=4)


def request_frame(version: int, topics: Any, *, unknown_tag: bool = False) -> bytes:
    values = {
        "topics": [
            {"name": name, "partitions": [{"partition_index": number, "offset": offset} for number, offset in some]}
            for name, some in topics
        ],
        "timeout": datetime.timedelta(milliseconds=4321),
    }
    schema = kio_frames.schema(DELETE_RECORDS, version, kind="request", unknown_tag=unknown_tag)
    return kio_frames.request_frame(kio_frames.fill(schema, values), unknown_tag=unknown_tag and schema.__flexible__)


def response_values(topics: Any) -> dict[str, object]:
    return {
        "throttle_time": datetime.timedelta(milliseconds=12),
        "topics": [
            {
                "name": name,
                "partitions": [
                    {"partition_index": number, "low_watermark": offset, "error_code": KioErrorCode(code)}
                    for number, offset, code in some
                ],
            }
            for name, some in topics
        ],
    }


def response_frame(version: int, topics: Any, *, unknown_tag: bool = False) -> bytes:
    schema = kio_frames.schema(DELETE_RECORDS, version, unknown_tag=unknown_tag)
    message = kio_frames.fill(schema, response_values(topics))
    return kio_frames.response_frame(message, unknown_tag=unknown_tag and schema.__flexible__)


def decode(frame: bytes | memoryview) -> DeleteRecordsRequest:
    view = memoryview(frame)
    return decode_request(view, decode_request_header(view))


@drawn(150)
@given(version=st.sampled_from(VERSIONS), unknown_tag=st.booleans(), topics=asked)
def test_a_request_of_kio_is_read(version: int, unknown_tag: bool, topics: Any) -> None:
    request = decode(request_frame(version, topics, unknown_tag=unknown_tag))
    assert request.timeout_ms == 4321
    flat = [(name, *each) for name, some in topics for each in some]
    assert [(each.topic, each.partition, each.offset) for each in request.partitions] == flat


@drawn(150)
@given(version=st.sampled_from(VERSIONS), unknown_tag=st.booleans(), topics=answered, low_watermark=int64s, code=codes)
def test_an_answer_is_changed_in_its_place(
    version: int, unknown_tag: bool, topics: Any, low_watermark: int, code: int
) -> None:
    frame = bytearray(response_frame(version, topics, unknown_tag=unknown_tag))
    answers = decode_response(memoryview(frame), version)
    flat = [(name, *each) for name, some in topics for each in some]
    assert [(each.topic, each.partition, each.low_watermark, each.error_code) for each in answers] == flat
    for answer in answers[1:]:
        answer.low_watermark, answer.error_code = low_watermark, code
        patch(frame, answer)
    untouched = iter([flat[0][1:]] if flat else [])
    changed = [
        (name, [next(untouched, (number, low_watermark, code)) for number, _, _ in some]) for name, some in topics
    ]
    assert bytes(frame) == response_frame(version, changed, unknown_tag=unknown_tag)


@for_each("version", VERSIONS)
def test_frames_that_are_cut_or_changed(version: int) -> None:
    topics = [("orders", [(0, 5), (1, 6)]), ("other", [(2, 7)])]
    frame = request_frame(version, topics)
    header = decode_request_header(memoryview(frame))
    at = header.body_position
    assert_all_of_it_is_read(lambda view: decode_request(view, header), frame, body_position=at, shortest=at)
    answer = response_frame(version, [("orders", [(0, 5, 0), (1, 6, 29)])])
    assert_all_of_it_is_read(lambda view: decode_response(view, version), answer, body_position=8)


def test_more_than_is_read_is_refused() -> None:
    whole = [("a", [(number, 0) for number in range(PARTITIONS_MAX)])]
    assert len(decode(request_frame(2, whole)).partitions) == PARTITIONS_MAX
    with pytest.raises(PeerProtocolError, match="ask for fewer"):
        decode(request_frame(2, [*whole, ("b", [(0, 0)])]))
    frame = request_frame(2, [("a", [])])
    with pytest.raises(PeerProtocolError, match="ask for less"):
        decode(frame + bytes(REQUEST_BYTES_MAX))


@for_each("version", [-1, 3])
def test_other_versions_are_our_own_mistake(version: int) -> None:
    with pytest.raises(LocalProtocolError):
        decode_request(memoryview(bytes(30)), RequestHeader(DELETE_RECORDS, version, 1, None, 14))
    with pytest.raises(LocalProtocolError):
        decode_response(memoryview(bytes(30)), version)
