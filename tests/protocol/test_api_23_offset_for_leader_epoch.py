"""OffsetForLeaderEpoch in every version, against kio's codec where it has one, and against peers that send nonsense."""

import datetime
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode as KioErrorCode

from protocol.offset_for_leader_epoch import (
    OFFSET_FOR_LEADER_EPOCH_VERSION_MAX,
    LeaderEpochPartition,
    decode_request,
    decode_response,
    patch,
)
from protocol.wire.errors import LocalProtocolError
from protocol.wire.framing import RequestHeader, decode_request_header
from tests.support import kio_frames
from tests.support.drawn import drawn
from tests.support.for_each import for_each
from tests.support.hostile_bytes import assert_all_of_it_is_read

OFFSET_FOR_LEADER_EPOCH = 23
VERSIONS = range(OFFSET_FOR_LEADER_EPOCH_VERSION_MAX + 1)

int32s = st.integers(-(2**31), 2**31 - 1)
int64s = st.integers(-(2**63), 2**63 - 1)
names = st.sampled_from(["a", "topic-ø", "b" * 200])
codes = st.sampled_from([0, 29, 74, 75])
asked = st.lists(st.tuples(names, st.lists(st.tuples(int32s, int32s), max_size=4)), max_size=4)
answered = st.lists(st.tuples(names, st.lists(st.tuples(codes, int32s, int32s, int64s), max_size=4)), max_size=4)


def request_frame(version: int, topics: Any) -> bytes:
    if version < 2:
        # kio has no such version: neither a current leader epoch nor a replica id.
        body = struct.pack(">i", len(topics))
        for name, some in topics:
            raw = name.encode()
            body += struct.pack(">h", len(raw)) + raw + struct.pack(">i", len(some))
            body += b"".join(struct.pack(">ii", *each) for each in some)
        head = struct.pack(">hhih", OFFSET_FOR_LEADER_EPOCH, version, 5, -1)
        return kio_frames.with_length(head + body)
    values = {
        "topics": [
            {"topic": name, "partitions": [{"partition": number, "leader_epoch": epoch} for number, epoch in some]}
            for name, some in topics
        ]
    }
    schema = kio_frames.schema(OFFSET_FOR_LEADER_EPOCH, version, kind="request", unknown_tag=True)
    return kio_frames.request_frame(kio_frames.fill(schema, values), unknown_tag=schema.__flexible__)


def response_frame(version: int, topics: Any) -> bytes:
    if version < 2:
        body = struct.pack(">i", len(topics))
        for name, some in topics:
            raw = name.encode()
            body += struct.pack(">h", len(raw)) + raw + struct.pack(">i", len(some))
            for code, number, epoch, end in some:
                body += struct.pack(">hi", code, number) + (struct.pack(">i", epoch) if version else b"")
                body += struct.pack(">q", end)
        return kio_frames.with_length(struct.pack(">i", 5) + body)
    partitions = [
        [
            {"error_code": KioErrorCode(code), "partition": number, "leader_epoch": epoch, "end_offset": end}
            for code, number, epoch, end in some
        ]
        for _, some in topics
    ]
    values = {
        "throttle_time": datetime.timedelta(milliseconds=12),
        "topics": [{"topic": name, "partitions": some} for (name, _), some in zip(topics, partitions, strict=True)],
    }
    schema = kio_frames.schema(OFFSET_FOR_LEADER_EPOCH, version, unknown_tag=True)
    return kio_frames.response_frame(kio_frames.fill(schema, values), unknown_tag=schema.__flexible__)


def decode(frame: bytes) -> list[LeaderEpochPartition]:
    view = memoryview(frame)
    return decode_request(view, decode_request_header(view))


@drawn(150)
@given(version=st.sampled_from(VERSIONS), topics=asked)
def test_a_request_is_read(version: int, topics: Any) -> None:
    flat = [(name, *each) for name, some in topics for each in some]
    found = decode(request_frame(version, topics))
    assert [(each.topic, each.partition, each.leader_epoch) for each in found] == flat


@drawn(150)
@given(version=st.sampled_from(VERSIONS), topics=answered, epoch=int32s, end=int64s)
def test_an_answer_is_changed_in_its_place(version: int, topics: Any, epoch: int, end: int) -> None:
    frame = bytearray(response_frame(version, topics))
    answers = decode_response(memoryview(frame), version)
    flat = [(name, *each) for name, some in topics for each in some]
    found = [(each.topic, each.error_code, each.partition, each.leader_epoch, each.end_offset) for each in answers]
    assert found == [(name, code, at, told if version else None, ends) for name, code, at, told, ends in flat]
    for answer in answers[1:]:
        answer.leader_epoch, answer.end_offset = epoch if version else None, end
        patch(frame, answer)
    untouched = iter([flat[0][1:]] if flat else [])
    changed = [
        (name, [next(untouched, (code, number, epoch, end)) for code, number, _, _ in some]) for name, some in topics
    ]
    assert bytes(frame) == response_frame(version, changed)


@for_each("version", VERSIONS)
def test_frames_that_are_cut_or_changed(version: int) -> None:
    frame = request_frame(version, [("orders", [(0, 5), (1, 6)]), ("other", [(2, 7)])])
    header = decode_request_header(memoryview(frame))
    at = header.body_position
    assert_all_of_it_is_read(lambda view: decode_request(view, header), frame, body_position=at, shortest=at)
    answer = response_frame(version, [("orders", [(0, 0, 5, 9), (74, 1, 6, 9)])])
    assert_all_of_it_is_read(lambda view: decode_response(view, version), answer, body_position=8)


@for_each("version", [-1, 5])
def test_other_versions_are_our_own_mistake(version: int) -> None:
    with pytest.raises(LocalProtocolError):
        decode_request(memoryview(bytes(30)), RequestHeader(OFFSET_FOR_LEADER_EPOCH, version, 1, None, 14))
    with pytest.raises(LocalProtocolError):
        decode_response(memoryview(bytes(30)), version)
