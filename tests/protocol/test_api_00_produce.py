"""Produce: acks is found as early as it can be, and the endpoints of a response behind any partitions."""

import struct
from itertools import product

import pytest

from protocol.wire.addresses import find_nodes, rewrite
from protocol.wire.errors import PeerProtocolError
from protocol.wire.identifiers import ApiKey
from protocol.wire.primitives import write_string
from protocol.wire.produce import ACKS_WITHIN_BYTES, locate, peek_acks
from protocol.wire.request_headers import encode_request_header
from tests.support import kio_frames
from tests.support.cases import case
from tests.support.for_each import for_each

VERSIONS = range(14)
KIOS_VERSIONS = kio_frames.versions_of(ApiKey.PRODUCE)
WITH_ENDPOINTS = [10, 11, 12, 13]


def request_until_acks(
    api_version: int, acks: int, client_id: str | None, transactional_id: str | None, tags: bytes = b"\x00"
) -> bytes:
    """Built by hand, because kio begins at v3."""
    raw = encode_request_header(ApiKey.PRODUCE, api_version, 3, client_id)
    if api_version >= 9:
        raw = raw[:-1] + tags
    if api_version >= 3:
        raw += write_string(transactional_id, flexible=api_version >= 9)
    return raw + struct.pack(">h", acks)


@for_each("api_version, unknown_tag, acks", product(KIOS_VERSIONS, (False, True), (-1, 0, 1)))
def test_acks_of_a_whole_request(api_version: int, unknown_tag: bool, acks: int) -> None:
    schema = kio_frames.schema(ApiKey.PRODUCE, api_version, kind="request", unknown_tag=unknown_tag)
    message = kio_frames.fill(schema, {"acks": acks, "transactional_id": "transaction"})
    frame = kio_frames.request_frame(message, unknown_tag=unknown_tag)

    assert peek_acks(memoryview(frame), api_version, 0) == acks
    assert peek_acks(memoryview(b"before" + frame + b"\xff" * 9), api_version, 6) == acks


@for_each(
    "api_version, client_id, transactional_id",
    product(VERSIONS, (None, "", "producer"), (None, "", "transaction" * 20)),
)
def test_acks_is_known_when_its_last_byte_has_come(
    api_version: int, client_id: str | None, transactional_id: str | None
) -> None:
    raw = request_until_acks(api_version, 0, client_id, transactional_id, kio_frames.TAGGED_HEADER)
    frame = kio_frames.with_length(raw + bytes(1000))

    for size in range(4, 4 + len(raw)):
        assert peek_acks(memoryview(frame)[:size], api_version, 0) is None
    assert peek_acks(memoryview(frame)[: 4 + len(raw)], api_version, 0) == 0


@for_each("api_version", VERSIONS)
def test_a_frame_that_ends_before_its_acks_is_the_peers_error(api_version: int) -> None:
    raw = request_until_acks(api_version, 1, "producer", None)

    for size in range(8, len(raw)):
        frame = kio_frames.with_length(raw[:size])
        for behind in (b"", b"the next frame, which is not looked into"):
            with case(size, behind), pytest.raises(PeerProtocolError):
                peek_acks(memoryview(frame + behind), api_version, 0)


@for_each("api_version", VERSIONS)
def test_a_client_id_of_a_bad_length_is_the_peers_error_once_all_has_come(api_version: int) -> None:
    frame = kio_frames.with_length(struct.pack(">hhih", 0, api_version, 1, -2) + bytes(100))

    assert peek_acks(memoryview(frame)[:50], api_version, 0) is None
    with pytest.raises(PeerProtocolError):
        peek_acks(memoryview(frame), api_version, 0)


def test_acks_behind_endless_tags_are_not_waited_for() -> None:
    endless = b"\x01\x63\xff\xff\xff\x7f" + bytes(2 * ACKS_WITHIN_BYTES)
    raw = request_until_acks(9, 1, "producer", None, endless)
    frame = memoryview(struct.pack(">i", 1 << 30) + raw)

    assert peek_acks(frame[: ACKS_WITHIN_BYTES - 1], 9, 0) is None
    with pytest.raises(PeerProtocolError):
        peek_acks(frame[:ACKS_WITHIN_BYTES], 9, 0)


@for_each("api_version", KIOS_VERSIONS)
def test_responses_without_the_tag_have_no_addresses_and_stay_as_they_are(api_version: int) -> None:
    message = kio_frames.fill(kio_frames.schema(ApiKey.PRODUCE, api_version), {"node_endpoints": []})
    frame = memoryview(kio_frames.response_frame(message))

    assert locate(frame, api_version).sites == ()
    if api_version in WITH_ENDPOINTS:
        assert rewrite(ApiKey.PRODUCE, api_version, frame, {}) == frame


def response_with_tags(tags: bytes) -> memoryview:
    """A v12 response without topics that ends in a tagged section."""
    return memoryview(kio_frames.with_length(bytes(4) + b"\x00" + b"\x01" + bytes(4) + tags))


def test_a_tag_twice_or_shorter_than_its_endpoints_is_the_peers_error() -> None:
    once = b"\x00\x01\x01"
    assert find_nodes(ApiKey.PRODUCE, 12, response_with_tags(b"\x01" + once)) == []
    for tags in (b"\x02" + once + once, b"\x01\x00\x02\x02\x00" + bytes(30)):
        with pytest.raises(PeerProtocolError):
            find_nodes(ApiKey.PRODUCE, 12, response_with_tags(tags))
