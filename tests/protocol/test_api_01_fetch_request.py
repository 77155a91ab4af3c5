"""Fetch requests in every version, against kio's codec, and against peers that send nonsense."""

import datetime
import struct
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.fetch.messages import (
    FETCH_VERSION_MAX,
    FETCH_VERSION_MIN,
    NO_TAGS,
    TOPIC_ID_VERSION_MIN,
    FetchPartition,
    FetchRequest,
    decode_request,
    encode_request,
    patch_session,
)
from protocol.wire.errors import LocalProtocolError, PeerProtocolError
from protocol.wire.framing import decode_request_header
from tests.support import kio_frames
from tests.support.hostile_bytes import assert_read_or_refused_when_changed, assert_refused_when_cut

FETCH = 1
VERSIONS = range(FETCH_VERSION_MIN, FETCH_VERSION_MAX + 1)
every_version = pytest.mark.parametrize("version", VERSIONS)

int32s = st.integers(-(2**31), 2**31 - 1)
int64s = st.integers(-(2**63), 2**63 - 1)
rows = st.tuples(int32s, int32s, int64s, int32s, int64s, int32s)
topics = st.lists(st.tuples(st.integers(1, 6), st.lists(rows, min_size=1, max_size=4)), max_size=5)
UNKNOWN_FIELD = b"\x63\x03abc"
HIGH_WATERMARK_FIELD = b"\x01\x08" + bytes(8)
SAMPLE_TOPICS = [(1, [(0, 4, 100, 3, 0, 1 << 20), (7, -1, 2**62, -1, -1, 5)]), (2, [(1, 0, 0, 0, 0, 0)])]

Topics = list[tuple[int, list[tuple[int, int, int, int, int, int]]]]


def name_of(number: int) -> str:
    return f"topic-{number}-ø" * number


def id_of(number: int) -> uuid.UUID:
    return uuid.UUID(int=number << 64 | 5)


def message(version: int, given_topics: Topics, **more: object) -> Any:
    """A consumer's request in kio's form."""
    keys = (
        "partition",
        "current_leader_epoch",
        "fetch_offset",
        "last_fetched_epoch",
        "log_start_offset",
        "partition_max_bytes",
    )
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
                "partitions": [dict(zip(keys, row, strict=True)) | plain_tags for row in partitions],
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
def test_what_kio_writes_is_decoded(version: int, given_topics: Topics, client_id: str | None) -> None:
    frame = kio_frames.request_frame(message(version, given_topics), client_id=client_id)

    request = decode(frame)

    assert request.partitions == expected_partitions(version, given_topics)
    assert (request.api_version, request.correlation_id, request.client_id) == (version, 5, client_id)
    assert (request.replica_id, request.isolation_level, request.forgotten) == (-1, 1, [])
    assert (request.max_wait_ms, request.min_bytes, request.max_bytes) == (500, 1, 50 << 20)
    assert (request.session_id, request.session_epoch) == ((77, 3) if version >= 7 else (0, -1))
    assert request.rack_id == ("rack-1" if version >= 11 else "")


@given(version=st.sampled_from(VERSIONS), given_topics=topics)
def test_what_we_write_is_what_kio_writes(version: int, given_topics: Topics) -> None:
    neighbours = [
        (topic, partitions)
        for (topic, partitions), (before, _) in zip(given_topics, [(0, []), *given_topics], strict=False)
        if topic != before
    ]
    frame = kio_frames.request_frame(message(version, neighbours))

    assert encode_again(decode(frame)) == frame


def with_unknown_tags(version: int) -> bytes:
    """A request whose body, topics and partitions each carry a tagged field that no Kafka knows."""
    request = decode(kio_frames.request_frame(message(version, SAMPLE_TOPICS)))
    request.tags = b"\x02" + request.tags[1:] + UNKNOWN_FIELD
    for number, partition in enumerate(request.partitions):
        partition.tags = b"\x02" + HIGH_WATERMARK_FIELD + UNKNOWN_FIELD
        partition.topic_tags = b"\x01" + UNKNOWN_FIELD if number == 2 else NO_TAGS
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
        assert [partition.topic_tags for partition in request.partitions] == [NO_TAGS, NO_TAGS, b"\x01" + UNKNOWN_FIELD]


@pytest.mark.parametrize("version", [17, 18])
def test_the_followers_partition_tags_survive(version: int) -> None:
    tagged = {"partition": 1, "replica_directory_id": id_of(4), "high_watermark": 5}
    topics_data = [{"topic_id": id_of(1), "partitions": [tagged, {"partition": 2} | tagged]}]
    frame = kio_frames.request_frame(message(version, [], topics=topics_data))

    request = decode(frame)

    assert encode_again(request) == frame
    assert NO_TAGS not in {partition.tags for partition in request.partitions}


@every_version
def test_a_tagged_header_is_passed(version: int) -> None:
    sent = message(version, SAMPLE_TOPICS)
    tagged = kio_frames.request_frame(sent, unknown_tag=True)

    assert decode(tagged).partitions == decode(kio_frames.request_frame(sent)).partitions


@every_version
def test_a_truncated_request_is_the_peers_error(version: int) -> None:
    data = [{"topic": "a", "topic_id": id_of(9), "partitions": (1, 2)}]
    forgetting = kio_frames.request_frame(message(version, SAMPLE_TOPICS, forgotten_topics_data=data))
    for frame in (forgetting, with_unknown_tags(version)):
        assert_refused_when_cut(decode, frame)


@every_version
def test_trailing_bytes_are_the_peers_error(version: int) -> None:
    frame = kio_frames.request_frame(message(version, SAMPLE_TOPICS))
    with pytest.raises(PeerProtocolError, match="after the end"):
        decode(frame + b"\x00")


@every_version
def test_any_bytes_decode_or_are_the_peers_error(version: int) -> None:
    frame = kio_frames.request_frame(message(version, SAMPLE_TOPICS))
    assert_read_or_refused_when_changed(decode, frame, range(8 + 4, len(frame)))


@every_version
@pytest.mark.parametrize("forgotten", [False, True])
def test_forgotten_topics_are_seen(version: int, forgotten: bool) -> None:
    given_forgotten = [{"topic": "a", "topic_id": id_of(9), "partitions": (1, 2, 3)}] * forgotten
    frame = kio_frames.request_frame(message(version, SAMPLE_TOPICS, forgotten_topics_data=given_forgotten))

    name, topic_id = ("a", None) if version < 13 else (None, id_of(9).bytes)
    expected = [(name, topic_id, number) for number in (1, 2, 3)] if forgotten and version >= 7 else []
    request = decode(frame)
    assert request.forgotten == expected
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


def test_a_replica_state_too_short_is_the_peers_error() -> None:
    request = decode(kio_frames.request_frame(message(17, [])))
    request.tags = b"\x01\x01\x02\x00\x00"  # one field, number 1, two bytes
    with pytest.raises(PeerProtocolError):
        decode(encode_again(request))


def test_a_probe_may_use_another_version_with_ids() -> None:
    request = decode(kio_frames.request_frame(message(11, SAMPLE_TOPICS)))
    for partition in request.partitions:
        partition.topic_id = bytes(16)

    probe = decode(encode_again(request, 17))

    assert [(each.topic, each.topic_id, each.fetch_offset) for each in probe.partitions] == [
        (None, bytes(16), each.fetch_offset) for each in request.partitions
    ]
    assert (probe.api_version, probe.client_id, probe.rack_id) == (17, "client", "rack-1")


def test_encoding_defaults_to_no_session_and_keeps_the_order_of_partitions() -> None:
    request = decode(kio_frames.request_frame(message(12, SAMPLE_TOPICS)))
    first, second, third = request.partitions

    again = decode(
        encode_request(request, [first, third, second], correlation_id=9, max_wait_ms=0, min_bytes=0, max_bytes=1)
    )

    assert again.partitions == [first, third, second]
    assert (again.correlation_id, again.session_id, again.session_epoch) == (9, 0, -1)
    assert (again.max_wait_ms, again.min_bytes, again.max_bytes) == (0, 0, 1)


def test_our_own_mistakes_are_local_errors() -> None:
    request = decode(kio_frames.request_frame(message(11, SAMPLE_TOPICS)))
    with pytest.raises(LocalProtocolError, match="topic id"):
        encode_again(request, 13)
    with pytest.raises(LocalProtocolError, match="not one that is decoded"):
        encode_again(request, 19)
    with pytest.raises(LocalProtocolError, match="topic name"):
        encode_again(decode(kio_frames.request_frame(message(13, SAMPLE_TOPICS))), 12)
    request.partitions, request.replica_id = [], 3
    with pytest.raises(LocalProtocolError, match="follower"):
        encode_again(request, 15)


@pytest.mark.parametrize("count", [-1, -2, 2, 1000, 2**31 - 1])
def test_hostile_counts_of_topics_are_refused(count: int) -> None:
    frame = bytearray(kio_frames.request_frame(message(4, [])))
    struct.pack_into(">i", frame, len(frame) - 4, count)
    with pytest.raises(PeerProtocolError):
        decode(bytes(frame))


@pytest.mark.parametrize("count", [b"\x00", b"\x03", b"\xff\x7f", b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\xff\x01"])
def test_hostile_counts_of_partitions_are_refused(count: bytes) -> None:
    frame = kio_frames.request_frame(message(17, [(1, [SAMPLE_TOPICS[0][1][0]])], cluster_id=None))
    position = frame.index(id_of(1).bytes) + 16
    with pytest.raises(PeerProtocolError):
        decode(frame[:position] + count + frame[position + 1 :])


def test_a_null_topic_name_is_the_peers_error() -> None:
    frame = kio_frames.request_frame(message(4, [(1, [SAMPLE_TOPICS[0][1][0]])]))
    raw = name_of(1).encode()
    with pytest.raises(PeerProtocolError, match="null string"):
        decode(frame.replace(struct.pack(">h", len(raw)) + raw, b"\xff\xff"))
