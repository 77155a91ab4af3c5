"""Produce: acks is found as early as it can be, and the endpoints of a response behind any partitions."""

import struct
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.wire.addresses import NodeAddress, find_nodes, rewrite
from protocol.wire.errors import PeerProtocolError
from protocol.wire.framing import encode_request_header
from protocol.wire.identifiers import ApiKey
from protocol.wire.primitives import write_string
from protocol.wire.produce import ACKS_WITHIN_BYTES, locate, peek_acks
from tests.support import kio_frames

VERSIONS = range(14)
every_version = pytest.mark.parametrize("api_version", VERSIONS)
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


def endpoint(node: NodeAddress) -> dict[str, object]:
    return {"node_id": node.node_id, "host": node.host, "port": node.port}


@pytest.mark.parametrize("api_version", kio_frames.versions_of(ApiKey.PRODUCE))
@pytest.mark.parametrize("unknown_tag", [False, True])
@pytest.mark.parametrize("acks", [-1, 0, 1])
def test_acks_of_a_whole_request(api_version: int, unknown_tag: bool, acks: int) -> None:
    schema = kio_frames.schema(ApiKey.PRODUCE, api_version, kind="request", unknown_tag=unknown_tag)
    message = kio_frames.fill(schema, {"acks": acks, "transactional_id": "transaction"})
    frame = kio_frames.request_frame(message, unknown_tag=unknown_tag)

    assert peek_acks(memoryview(frame), api_version, 0) == acks
    assert peek_acks(memoryview(b"before" + frame + b"\xff" * 9), api_version, 6) == acks


@pytest.mark.parametrize("transactional_id", [None, "", "transaction" * 20])
@pytest.mark.parametrize("client_id", [None, "", "producer"])
@every_version
def test_acks_is_known_when_its_last_byte_has_come(
    api_version: int, client_id: str | None, transactional_id: str | None
) -> None:
    raw = request_until_acks(api_version, 0, client_id, transactional_id, kio_frames.TAGGED_HEADER)
    frame = kio_frames.with_length(raw + bytes(1000))

    for size in range(4, 4 + len(raw)):
        assert peek_acks(memoryview(frame)[:size], api_version, 0) is None
    assert peek_acks(memoryview(frame)[: 4 + len(raw)], api_version, 0) == 0


@every_version
def test_a_frame_that_ends_before_its_acks_is_the_peers_error(api_version: int) -> None:
    raw = request_until_acks(api_version, 1, "producer", None)

    for size in range(8, len(raw)):
        frame = kio_frames.with_length(raw[:size])
        with pytest.raises(PeerProtocolError):
            peek_acks(memoryview(frame), api_version, 0)
        with pytest.raises(PeerProtocolError):
            peek_acks(memoryview(frame + b"the next frame, which is not looked into"), api_version, 0)


@every_version
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


@given(st.sampled_from(VERSIONS), st.binary(max_size=80), st.integers(0, 80))
def test_garbage_is_read_waited_for_or_is_the_peers_error(api_version: int, raw: bytes, size: int) -> None:
    frame = memoryview(kio_frames.with_length(raw))
    with suppress(PeerProtocolError):
        peek_acks(frame[: max(4, size)], api_version, 0)


@pytest.mark.parametrize("api_version", kio_frames.versions_of(ApiKey.PRODUCE))
def test_responses_without_the_tag_have_no_addresses_and_stay_as_they_are(api_version: int) -> None:
    message = kio_frames.fill(kio_frames.schema(ApiKey.PRODUCE, api_version), {"node_endpoints": []})
    frame = memoryview(kio_frames.response_frame(message))

    assert locate(frame, api_version).sites == ()
    if api_version in WITH_ENDPOINTS:
        assert rewrite(ApiKey.PRODUCE, api_version, frame, {}) == frame


@pytest.mark.parametrize("api_version", WITH_ENDPOINTS)
def test_partitions_written_without_trouble_and_others_are_passed_over(api_version: int) -> None:
    plain: dict[str, Any] = {"record_errors": [], "error_message": None, "current_leader": {}, "index": 256}
    plain["current_leader"] = {"leader_id": -1, "leader_epoch": -1}
    troubled = {"index": 2, "error_message": "x" * 300, "record_errors": [{"batch_index": 1}, {"batch_index": 2}]}
    topics = [
        {"partition_responses": [plain, troubled, plain], "name": "a"},
        {"partition_responses": [], "name": "b"},
        {"partition_responses": [plain] * 200, "name": "c"},
    ]
    node = NodeAddress(1, "kafka-1", 9092)
    values = {"responses": topics, "node_endpoints": [endpoint(node)]}
    message = kio_frames.fill(kio_frames.schema(ApiKey.PRODUCE, api_version), values)
    frame = memoryview(kio_frames.response_frame(message))

    assert find_nodes(ApiKey.PRODUCE, api_version, frame) == [node]


@pytest.mark.parametrize("hosts", [1, 3, 20])
def test_the_size_of_the_tag_follows_its_content(hosts: int) -> None:
    """Its varint goes from one byte to two and back."""
    nodes = [NodeAddress(node_id, "h", 1) for node_id in range(hosts)]
    short = {node.node_id: (node.host, node.port) for node in nodes}
    long = {node.node_id: ("h" * 100, 1) for node in nodes}
    values = {"node_endpoints": [endpoint(node) for node in nodes]}
    frame = kio_frames.response_frame(kio_frames.fill(kio_frames.schema(ApiKey.PRODUCE, 10), values))

    longer = rewrite(ApiKey.PRODUCE, 10, memoryview(frame), long)

    assert len(longer) > len(frame)
    assert rewrite(ApiKey.PRODUCE, 10, memoryview(longer), short) == frame


def response_with_tags(tags: bytes) -> memoryview:
    """A v12 response without topics that ends in a tagged section."""
    return memoryview(kio_frames.with_length(bytes(4) + b"\x00" + b"\x01" + bytes(4) + tags))


def test_a_tag_that_stands_twice_is_the_peers_error() -> None:
    once = b"\x00\x01\x01"

    assert find_nodes(ApiKey.PRODUCE, 12, response_with_tags(b"\x01" + once)) == []
    with pytest.raises(PeerProtocolError):
        find_nodes(ApiKey.PRODUCE, 12, response_with_tags(b"\x02" + once + once))


def test_endpoints_that_reach_beyond_their_tag_are_the_peers_error() -> None:
    with pytest.raises(PeerProtocolError):
        find_nodes(ApiKey.PRODUCE, 12, response_with_tags(b"\x01\x00\x02\x02\x00" + bytes(30)))
