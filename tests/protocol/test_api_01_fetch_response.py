"""Fetch responses in every version, against kio's codec, and against peers that send nonsense."""

import datetime
import struct
import uuid
from dataclasses import replace
from itertools import groupby, product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.static.primitive import Records

from protocol.fetch.messages import NO_TAGS, TOPIC_ID_VERSION_MIN, FetchResponse, PartitionAnswer
from protocol.fetch.response import SESSION_HEAD_BYTES, decode_response, encode_response, patch_session_id, peek_session
from protocol.wire.errors import ErrorCode, LocalProtocolError, PeerProtocolError
from tests.protocol.fetch_frames import (
    FETCH,
    UNKNOWN_FIELD,
    UNKNOWN_SECTION,
    VERSIONS,
    answer,
    encode,
    every_version,
    id_of,
    int32s,
    int64s,
    name_of,
)
from tests.support import kio_frames
from tests.support.for_each import for_each
from tests.support.hostile_bytes import assert_all_of_it_is_read

PLAIN_FIELDS = ("high_watermark", "last_stable_offset", "log_start_offset", "preferred_read_replica")
CURRENT_LEADER_FIELD = b"\x01\x09" + struct.pack(">iib", 2, 9, 0)

topic_numbers = st.integers(1, 4)


@st.composite
def answer_lists(draw: st.DrawFn, version: int) -> list[PartitionAnswer]:
    """Answers of any content."""
    answers = []
    for number, partition in draw(st.lists(st.tuples(topic_numbers, int32s), max_size=6)):
        records = tuple(draw(st.lists(st.binary(min_size=1, max_size=200), max_size=3)))
        answers.append(
            answer(
                version,
                number,
                partition,
                error_code=draw(st.sampled_from([0, 1, 3, 6, 74])),
                high_watermark=draw(int64s),
                last_stable_offset=draw(int64s),
                log_start_offset=draw(int64s),
                preferred_read_replica=draw(int32s),
                aborted_transactions=draw(st.none() | st.lists(st.tuples(int64s, int64s), max_size=3)),
                records=records,
                records_are_null=not records and draw(st.booleans()),
            )
        )
    return answers


versions_and_answers = st.sampled_from(VERSIONS).flatmap(
    lambda version: st.tuples(st.just(version), answer_lists(version))
)


def message(version: int, answers: list[PartitionAnswer], **more: object) -> Any:
    """The response in kio's form, topics grouped by runs."""
    topics: list[dict[str, Any]] = []
    for key, run in groupby(answers, key=lambda each: (each.topic, each.topic_id)):
        topic_id = uuid.UUID(bytes=key[1]) if key[1] else None
        topics.append({"topic": key[0], "topic_id": topic_id, "partitions": [partition_values(each) for each in run]})
    values: dict[str, object] = {
        "throttle_time": datetime.timedelta(milliseconds=12),
        "error_code": KioErrorCode(0),
        "session_id": 99,
        "responses": topics,
        "node_endpoints": (),
    }
    return kio_frames.fill(kio_frames.schema(FETCH, version), values | more)


def partition_values(each: PartitionAnswer) -> dict[str, object]:
    aborted = each.aborted_transactions
    return {
        "partition_index": each.partition,
        "error_code": KioErrorCode(each.error_code),
        "diverging_epoch": {"epoch": -1, "end_offset": -1},
        "current_leader": {"leader_id": -1, "leader_epoch": -1},
        "snapshot_id": {"epoch": -1, "end_offset": -1},
        "aborted_transactions": None
        if aborted is None
        else [{"producer_id": id_, "first_offset": at} for id_, at in aborted],
        "records": None if each.records_are_null else Records(b"".join(each.records)),
    } | {name: getattr(each, name) for name in PLAIN_FIELDS}


def decode(frame: bytes | memoryview, version: int) -> FetchResponse:
    """The response with each answer's records joined."""
    response = decode_response(memoryview(frame), version)
    for each in response.partitions:
        each.records = joined(each)
    return response


def joined(each: PartitionAnswer) -> tuple[bytes, ...]:
    return (b"".join(each.records),) if each.records else ()


@given(versions_and_answers)
def test_responses_are_read_and_written_as_kio_does(given_answers: tuple[int, list[PartitionAnswer]]) -> None:
    version, answers = given_answers
    frame = kio_frames.response_frame(message(version, answers))
    assert encode(version, answers) == frame
    response = decode(frame, version)
    for each in answers:
        each.records = joined(each)
    assert response.partitions == answers
    assert (response.correlation_id, response.throttle_time_ms) == (5, 12)
    assert (response.error_code, response.session_id) == ((0, 99) if version >= 7 else (0, 0))
    assert response.tags == NO_TAGS


@every_version
def test_records_pass_through_uncopied(version: int) -> None:
    source = bytearray(b"a" * 1000 + b"b" * 3_000_000)
    blocks = (memoryview(source)[:1000], memoryview(source)[1000:])
    answers = [answer(version, 1, 0, records=blocks), answer(version, 1, 1), answer(version, 2, 0, records=blocks[:1])]

    buffers = encode_response(version, 5, throttle_time_ms=12, error_code=0, session_id=99, answers=answers)
    response = decode_response(memoryview(b"".join(buffers)), version)

    assert [each for each in buffers if isinstance(each, memoryview)] == [*blocks, blocks[0]]
    assert len(buffers) == 6  # head, two blocks, head, a block, end
    assert [each.records_bytes for each in response.partitions] == [3_001_000, 0, 1000]
    assert response.partitions[0].records[0] == bytes(source)
    source[0] = ord("z")
    assert buffers[1][0] == ord("z")


@every_version
def test_unknown_tags_survive(version: int) -> None:
    tags = UNKNOWN_SECTION
    partition_tags = b"\x02" + CURRENT_LEADER_FIELD + UNKNOWN_FIELD
    answers = [
        answer(version, 1, 0, tags=partition_tags),
        answer(version, 1, 1, records=(b"r" * 300,), tags=partition_tags),
        answer(version, 2, 0, topic_tags=tags),
    ]

    response = decode(encode(version, answers, tags=tags), version)

    if version >= 12:
        assert (response.partitions, response.tags) == (answers, tags)
    else:
        assert {each.tags for each in response.partitions} == {NO_TAGS}


@for_each("version", [each for each in VERSIONS if each >= 12])
def test_kios_tagged_fields_are_kept_raw(version: int) -> None:
    sent = message(version, [answer(version, 1, 0)])
    leader = replace(sent.responses[0].partitions[0].current_leader, leader_id=2, leader_epoch=9)
    topic = replace(sent.responses[0], partitions=(replace(sent.responses[0].partitions[0], current_leader=leader),))
    frame = kio_frames.response_frame(replace(sent, responses=(topic,)))

    response = decode(frame, version)

    assert response.partitions[0].tags == b"\x01" + CURRENT_LEADER_FIELD
    assert encode(version, response.partitions) == frame
    tagged = kio_frames.response_frame(sent, unknown_tag=True)
    assert decode(tagged, version).partitions == [answer(version, 1, 0)], "a tagged header"


@every_version
def test_bytes_that_are_cut_longer_or_changed(version: int) -> None:
    answers = [
        answer(version, 1, 0, records=(b"r" * 150,), aborted_transactions=[(1, 2), (3, 4)]),
        answer(version, 1, 1),
        answer(version, 2, 0, tags=UNKNOWN_SECTION, topic_tags=UNKNOWN_SECTION),
    ]
    frame = encode(version, answers, tags=UNKNOWN_SECTION)
    assert_all_of_it_is_read(lambda view: decode(view, version), frame, body_position=8)


@for_each(
    "version, answers, from_end, count",
    [
        *((version, 0, 4, count) for version in (4, 11) for count in (-1, -2, 1, 1000, 2**31 - 1)),
        # The size of records, which may be null, and the number of aborted transactions, which may be too.
        *((11, 1, from_end, count) for from_end in (4, 12) for count in (-2, -(2**31), 1, 2**31 - 1)),
    ],
)
def test_hostile_counts_and_sizes_are_refused(version: int, answers: int, from_end: int, count: int) -> None:
    frame = bytearray(encode(version, [answer(version, 1, 0)] * answers))
    struct.pack_into(">i", frame, len(frame) - from_end, count)
    with pytest.raises(PeerProtocolError):
        decode(bytes(frame), version)


@every_version
def test_an_error_is_written_as_the_broker_does(version: int) -> None:
    failed = PartitionAnswer.error(name_of(1), id_of(1).bytes, 3, ErrorCode.OFFSET_OUT_OF_RANGE)

    (decoded,) = decode(encode(version, [failed]), version).partitions

    by_id = version >= TOPIC_ID_VERSION_MIN
    assert (decoded.topic, decoded.topic_id) == ((None, id_of(1).bytes) if by_id else (name_of(1), None))
    assert (decoded.partition, decoded.error_code, decoded.tags) == (3, 1, NO_TAGS)
    assert (decoded.high_watermark, decoded.last_stable_offset, decoded.log_start_offset) == (-1, -1, -1)
    assert (decoded.aborted_transactions, decoded.preferred_read_replica) == (None, -1)
    assert (decoded.records, decoded.records_are_null) == ((), False)


def test_a_frame_over_two_gibibytes_is_a_local_error() -> None:
    block = memoryview(bytes(1 << 20))
    with pytest.raises(LocalProtocolError, match="does not fit"):
        encode_response(
            17, 5, throttle_time_ms=0, error_code=0, session_id=0, answers=[answer(17, 1, 0, records=[block] * 2048)]
        )


@for_each("version, header_tags", product(range(7, 19), (b"\x00", b"\x01\x09\x02ab")))
def test_a_session_is_read_and_written_in_the_first_bytes(version: int, header_tags: bytes) -> None:
    buffers = encode_response(version, 5, throttle_time_ms=3, error_code=71, session_id=77, answers=[])
    frame = b"".join(buffers)
    if version >= 12:
        frame = frame[:8] + header_tags + frame[9:]
    head = memoryview(bytearray(frame[:SESSION_HEAD_BYTES]))
    error_code, session_id, position = peek_session(head, version)
    assert (error_code, session_id) == (71, 77)
    patch_session_id(head, position, 2**31 - 1)
    assert peek_session(head, version)[:2] == (71, 2**31 - 1)
    for size in range(position + 4):
        with pytest.raises(PeerProtocolError):
            peek_session(head[:size], version)
