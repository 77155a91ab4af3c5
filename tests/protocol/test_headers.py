"""Request and response headers of every version of every API that is decoded, against kio's schemas."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.wire.errors import PeerProtocolError
from protocol.wire.framing import (
    FLEXIBLE_FROM,
    REQUEST_HEADER_PREFIX_BYTES,
    RequestHeader,
    RequestPrefix,
    decode_request_header,
    encode_request_header,
    peek_request_prefix,
    response_body_position,
)
from protocol.wire.identifiers import ApiKey
from tests.support import kio_frames
from tests.support.for_each import for_each
from tests.support.hostile_bytes import assert_refused_when_cut

DECODED = [(api_key, version) for api_key in FLEXIBLE_FROM for version in kio_frames.versions_of(api_key)]
client_ids = st.text(st.characters(codec="utf-8"), max_size=60) | st.none()


def test_every_named_api_has_its_first_flexible_version() -> None:
    assert set(FLEXIBLE_FROM) == set(ApiKey)


@for_each("api_key, api_version", DECODED)
def test_a_header_ends_where_the_body_begins(api_key: int, api_version: int) -> None:
    request = kio_frames.fill(kio_frames.schema(api_key, api_version, kind="request"), {})
    response = kio_frames.fill(kio_frames.schema(api_key, api_version), {})
    for unknown_tag in (False, True):
        for client_id in ("client", "", None, "ü" * 1000):
            frame = kio_frames.request_frame(request, client_id=client_id, unknown_tag=unknown_tag)
            header = decode_request_header(memoryview(frame))
            assert header == RequestHeader(api_key, api_version, 5, client_id, header.body_position)
            assert frame[header.body_position :] == kio_frames.encode(request)
        frame = kio_frames.response_frame(response, unknown_tag=unknown_tag)
        position = response_body_position(memoryview(frame), api_key, api_version)
        assert frame[position:] == kio_frames.encode(response)


@given(st.sampled_from(DECODED), st.integers(-(2**31), 2**31 - 1), client_ids, st.binary(max_size=5))
def test_our_own_header_reads_back(
    case: tuple[int, int], correlation_id: int, client_id: str | None, body: bytes
) -> None:
    raw = encode_request_header(*case, correlation_id, client_id)
    frame = memoryview(kio_frames.with_length(raw + body))

    assert decode_request_header(frame) == RequestHeader(*case, correlation_id, client_id, 4 + len(raw))
    assert peek_request_prefix(frame, 4) == RequestPrefix(*case, correlation_id)


@for_each("api_key, api_version", DECODED)
def test_a_header_cut_at_any_byte_is_the_peers_error(api_key: int, api_version: int) -> None:
    frame = bytes(4) + encode_request_header(api_key, api_version, 1, "client")

    assert_refused_when_cut(decode_request_header, frame)


BAD_HEADERS = {
    "client id of length -2": b"\x00\x01\x00\x04\x00\x00\x00\x01\xff\xfe",
    "client id not UTF-8": b"\x00\x01\x00\x04\x00\x00\x00\x01\x00\x02\xff\xff",
    "tag cut off": b"\x00\x01\x00\x0c\x00\x00\x00\x01\xff\xff\x01",
    "unknown api key": b"\x7f\xff\x00\x00\x00\x00\x00\x01\xff\xff",
    "HTTP": b"GET / HTTP/1.1\r\n\r\n",
}


@for_each("raw", BAD_HEADERS.values())
def test_a_bad_header_is_the_peers_error(raw: bytes) -> None:
    with pytest.raises(PeerProtocolError):
        decode_request_header(memoryview(kio_frames.with_length(raw)))


def test_a_response_without_its_tagged_section_is_the_peers_error() -> None:
    with pytest.raises(PeerProtocolError):
        response_body_position(memoryview(kio_frames.with_length(bytes(4))), ApiKey.METADATA, 9)


@given(st.binary(max_size=60))
def test_any_request_is_read_or_is_the_peers_error(raw: bytes) -> None:
    frame = memoryview(kio_frames.with_length(raw))
    try:
        header = decode_request_header(frame)
    except PeerProtocolError:
        return
    assert 4 + REQUEST_HEADER_PREFIX_BYTES < header.body_position <= len(frame)


def test_the_prefix_needs_no_more_than_its_eight_bytes() -> None:
    view = memoryview(b"....\x00\x03\x00\x0d\x00\x00\x00\x09")

    assert peek_request_prefix(view, 4) == RequestPrefix(3, 13, 9)
    assert len(view) - 4 == REQUEST_HEADER_PREFIX_BYTES
