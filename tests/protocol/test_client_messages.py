"""Versions that are negotiated, requests that are built, responses that are not to be believed."""

import struct
import uuid
from datetime import timedelta

import pytest
from kio import index
from kio.schema.index import schema_name_map

from protocol.client.errors import UpstreamProtocolError, UpstreamUnsupportedError
from protocol.client.messages import (
    API_VERSIONS,
    APIS,
    FETCH,
    LIST_OFFSETS,
    Api,
    decode_response,
    encode_request,
    kio_uuid,
    negotiate,
    uuid_bytes,
)
from protocol.wire.request_headers import decode_request_header
from tests.support import kio_frames
from tests.support.fake_kafka import api_versions_values, encode_response
from tests.support.for_each import for_each

_PARTITION = {"partition": 3, "fetch_offset": 9, "partition_max_bytes": 500}
FETCH_VALUES = {
    "replica_id": -1,
    "max_wait": timedelta(milliseconds=500),
    "min_bytes": 1,
    "max_bytes": 1000,
    "topics": [{"topic": "t", "topic_id": uuid.UUID(int=7), "partitions": [_PARTITION]}],
    "forgotten_topics_data": (),
}


@for_each("api", APIS)
def test_kio_has_every_version_that_the_table_names_and_no_newer_one(api: Api) -> None:
    versions = sorted(schema_name_map[api.name])
    assert set(range(api.version_min, api.version_max + 1)) <= set(versions)
    assert api is API_VERSIONS or versions[-1] == api.version_max
    request_type = index.load_request_schema(api.key, api.version_max)
    assert (request_type.__api_key__, request_type.__version__) == (api.key, api.version_max)


@for_each(
    "offered, needed, expected",
    [
        ({2: (0, 11)}, 0, 11),
        ({2: (0, 99)}, 0, 11),
        ({2: (1, 7)}, 0, 7),
        ({2: (8, 8)}, 8, 8),
        ({2: (0, 7)}, 8, "b: list_offsets version 8 or later is needed, the broker has versions 0 to 7"),
        ({2: (0, 0)}, 0, "version 1 or later is needed"),
        ({2: (12, 20)}, 0, "has versions 12 to 20"),
        ({}, 0, "does not have it"),
    ],
)
def test_the_newest_common_version_is_taken_or_it_is_said_that_there_is_none(
    offered: dict[int, tuple[int, int]], needed: int, expected: int | str
) -> None:
    if isinstance(expected, int):
        assert negotiate(LIST_OFFSETS, offered, "b", needed) == expected
        return
    with pytest.raises(UpstreamUnsupportedError, match=expected):
        negotiate(LIST_OFFSETS, offered, "b", needed)


@for_each("version", range(FETCH.version_min, FETCH.version_max + 1))
def test_one_set_of_values_makes_a_request_of_every_version(version: int) -> None:
    frame = encode_request(FETCH, version, FETCH_VALUES, 5, "me")
    header = decode_request_header(memoryview(frame))
    assert (len(frame) - 4, header.api_key, header.api_version) == (struct.unpack_from(">i", frame)[0], 1, version)
    assert (header.correlation_id, header.client_id) == (5, "me")
    request = kio_frames.decode(index.load_request_schema(FETCH.key, version), frame[header.body_position :])
    [topic] = request.topics
    assert topic.partitions[0].fetch_offset == 9
    assert (topic.topic if version <= 12 else topic.topic_id) == ("t" if version <= 12 else uuid.UUID(int=7))


def test_a_response_is_read_whole_and_refused_when_cut_or_too_long() -> None:
    frame = encode_response(API_VERSIONS.key, 3, 1, api_versions_values({1: (4, 18), 3: (0, 13)}))
    response = decode_response(API_VERSIONS, 3, frame, "b")
    assert [(key.api_key, key.max_version) for key in response.api_keys] == [(1, 18), (3, 13)]
    for size in range(4, len(frame)):
        with pytest.raises(UpstreamProtocolError, match="b: bad api_versions response"):
            decode_response(API_VERSIONS, 3, frame[:size], "b")
    with pytest.raises(UpstreamProtocolError, match="2 bytes left over"):
        decode_response(API_VERSIONS, 3, frame + b"\0\0", "b")


def test_the_zero_topic_id_is_none_for_kio_and_back() -> None:
    assert kio_uuid(bytes(16)) is None
    assert uuid_bytes(None) == bytes(16)
    assert uuid_bytes(kio_uuid(b"0123456789abcdef")) == b"0123456789abcdef"
