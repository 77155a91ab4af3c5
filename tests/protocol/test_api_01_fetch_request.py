"""Fetch requests in every version, against kio's codec, and against peers that send nonsense."""

import datetime
import struct
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.fetch.messages import NO_TAGS, TOPIC_ID_VERSION_MIN, FetchPartition, FetchRequest
from protocol.fetch.requests import decode_request, encode_request, patch_session
from protocol.wire.errors import PeerProtocolError
from protocol.wire.request_headers import decode_request_header
from tests.protocol.fetch_frames import (
    FETCH,
    UNKNOWN_FIELD,
    UNKNOWN_SECTION,
    VERSIONS,
    every_version,
    id_of,
    int32s,
    int64s,
    name_of,
)
from tests.support import kio_frames
from tests.support.cases import case
from tests.support.hostile_bytes import assert_all_of_it_is_read

rows = st.tuples(int32s, int32s, int64s, int32s, int64s, int32s)
topics = st.lists(st.tuples(st.integers(1, 6), st.lists(rows, min_size=1, max_size=4)), max_size=5)
HIGH_WATERMARK_FIELD = b"\x01\x08" + bytes(8)
SAMPLE_TOPICS = [(1, [(0, 4, 100, 3, 0, 1 << 20), (7, -1, 2**62, -1, -1, 5)]), (2, [(1, 0, 0, 0, 0, 0)])]

Topics = list[tuple[int, list[tuple[int, int, int, int, int, int]]]]


def message(version: int, given_topics: Topics, **more: object) -> Any:
    """A consumer's request in kio's form."""
    keys = ("partition", "current_leader_epoch", "fetch_offset", "last_fetched_epoch", "log_start_offset")
    plain_tags: dict[str, object] = {"replica_directory_id": None, "high_watermark": 2**63 - 1}
    values: dict[str, object] = {
        "replica_id": -1,
        "replica_state": {"replica_id": -1, "replica_epoch": -1},
        "cluster_id": "the cluster",
        "max_wait": datetime.timedelta(milliseconds=500),
        "min_bytes": 1,
        "max_bytes": 50 << 20,
        "isolation_level": 1,
        "session_id": 77,
        "session_epoch": 3,
        "topics": [
            {
                "topic": name_of(number),
                "topic_id": id_of(number),
                "partitions": [
                    dict(zip(keys, row, strict=False)) | {"partition_max_bytes": row[-1]} | plain_tags
                    for row in partitions
                ],
            }
            for number, partitions in given_topics
        ],
        "forgotten_topics_data": [],
        "rack_id": "rack-1",
    }
    return kio_frames.fill(kio_frames.schema(FETCH, version, kind="request"), values | more)


def decode(frame: bytes | memoryview) -> FetchRequest:
    view = memoryview(frame)
    return decode_request(view, decode_request_header(view))


def encode_again(request: FetchRequest, version: int | None = None, **more: Any) -> bytes:
    return encode_request(
        request,
        request.partitions,
        correlation_id=request.correlation_id,
        max_wait_ms=request.max_wait_ms,
        min_bytes=request.min_bytes,
        max_bytes=request.max_bytes,
        session_id=request.session_id,
        session_epoch=request.session_epoch,
        api_version=version,
        **more,
    )


def expected_partitions(version: int, given_topics: Topics) -> list[FetchPartition]:
    return [
        FetchPartition(
            name_of(number) if version < TOPIC_ID_VERSION_MIN else None,
            id_of(number).bytes if version >= TOPIC_ID_VERSION_MIN else None,
            partition,
            epoch if version >= 9 else -1,
            offset,
            last_epoch if version >= 12 else -1,
            log_start if version >= 5 else -1,
            max_bytes,
        )
        for number, partitions in given_topics
        for partition, epoch, offset, last_epoch, log_start, max_bytes in partitions
    ]


@given(version=st.sampled_from(VERSIONS), given_topics=topics, client_id=st.none() | st.text(max_size=20))
def test_requests_are_read_and_written_as_kio_does(version: int, given_topics: Topics, client_id: str | None) -> None:
    frame = kio_frames.request_frame(message(version, given_topics), client_id=client_id)

    request = decode(frame)

    assert request.partitions == expected_partitions(version, given_topics)
    assert (request.api_version, request.correlation_id, request.client_id) == (version, 5, client_id)
    assert (request.replica_id, request.isolation_level, request.forgotten) == (-1, 1, [])
    assert (request.max_wait_ms, request.min_bytes, request.max_bytes) == (500, 1, 50 << 20)
    assert (request.session_id, request.session_epoch) == ((77, 3) if version >= 7 else (0, -1))
    assert request.rack_id == ("rack-1" if version >= 11 else "")
    if all(
        topic != after for (topic, _), (after, _) in pairwise(given_topics)
    ):  # else we write runs of one topic as one
        assert encode_again(request) == frame


def with_unknown_tags(version: int) -> bytes:
    """A request whose body, topics and partitions each carry a tagged field that no Kafka knows."""
    request = decode(kio_frames.request_frame(message(version, SAMPLE_TOPICS)))
    request.tags = b"\x02" + request.tags[1:] + UNKNOWN_FIELD
    for number, partition in enumerate(request.partitions):
        partition.tags = b"\x02" + HIGH_WATERMARK_FIELD + UNKNOWN_FIELD
        partition.topic_tags = UNKNOWN_SECTION if number == 2 else NO_TAGS
    return encode_again(request)


@every_version
def test_unknown_tags_survive(version: int) -> None:
    frame = with_unknown_tags(version)

    request = decode(frame)

    assert encode_again(request) == frame
    if version < 12:
        assert frame == kio_frames.request_frame(message(version, SAMPLE_TOPICS))
    else:
        assert request.tags == b"\x02\x00\x0c\x0cthe cluster" + UNKNOWN_FIELD
        assert {partition.tags for partition in request.partitions} == {b"\x02" + HIGH_WATERMARK_FIELD + UNKNOWN_FIELD}
        assert [partition.topic_tags for partition in request.partitions] == [NO_TAGS, NO_TAGS, UNKNOWN_SECTION]


@every_version
def test_bytes_that_are_cut_longer_or_changed(version: int) -> None:
    data = [{"topic": "a", "topic_id": id_of(9), "partitions": (1, 2)}]
    for frame in (
        kio_frames.request_frame(message(version, SAMPLE_TOPICS, forgotten_topics_data=data)),
        with_unknown_tags(version),
    ):
        assert_all_of_it_is_read(decode, frame, body_position=decode_request_header(memoryview(frame)).body_position)


@every_version
def test_forgotten_topics_are_seen(version: int) -> None:
    data = [{"topic": "a", "topic_id": id_of(9), "partitions": (1, 2, 3)}]
    frame = kio_frames.request_frame(message(version, SAMPLE_TOPICS, forgotten_topics_data=data))
    name, topic_id = ("a", None) if version < 13 else (None, id_of(9).bytes)
    request = decode(frame)
    assert request.forgotten == [(name, topic_id, number) for number in (1, 2, 3) if version >= 7]
    assert encode_again(request, forgotten=request.forgotten) == frame


@every_version
def test_the_session_is_patched_in_place(version: int) -> None:
    frame = bytearray(kio_frames.request_frame(message(version, SAMPLE_TOPICS)))

    patch_session(memoryview(frame), decode(bytes(frame)), session_id=2**31 - 1, session_epoch=-1)

    changes = {"session_id": 2**31 - 1, "session_epoch": -1}
    assert bytes(frame) == kio_frames.request_frame(message(version, SAMPLE_TOPICS, **changes))
    assert (decode(bytes(frame)).session_epoch_position is None) == (version < 7)


@every_version
def test_a_followers_replica_id_is_seen_wherever_it_stands(version: int) -> None:
    state = {"replica_id": 3, "replica_epoch": 8}
    request = decode(kio_frames.request_frame(message(version, SAMPLE_TOPICS, replica_id=3, replica_state=state)))

    assert request.replica_id == 3


def test_a_probe_may_use_another_version_with_ids() -> None:
    request = decode(kio_frames.request_frame(message(11, SAMPLE_TOPICS)))
    for partition in request.partitions:
        partition.topic_id = bytes(16)

    probe = decode(encode_again(request, 17))

    assert [(each.topic, each.topic_id, each.fetch_offset) for each in probe.partitions] == [
        (None, bytes(16), each.fetch_offset) for each in request.partitions
    ]
    assert (probe.api_version, probe.client_id, probe.rack_id) == (17, "client", "rack-1")


def test_hostile_counts_are_refused() -> None:
    no_topics = kio_frames.request_frame(message(4, []))
    one = kio_frames.request_frame(message(17, [(1, [SAMPLE_TOPICS[0][1][0]])], cluster_id=None))
    partitions_at = one.index(id_of(1).bytes) + 16
    for count in (-1, -2, 2, 1000, 2**31 - 1):
        with case(count), pytest.raises(PeerProtocolError):
            decode(no_topics[:-4] + struct.pack(">i", count))
    for varint in (b"\x00", b"\x03", b"\xff\x7f", b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\xff\x01"):
        with case(varint), pytest.raises(PeerProtocolError):
            decode(one[:partitions_at] + varint + one[partitions_at + 1 :])
