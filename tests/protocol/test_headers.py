"""Request and response headers of every version of every API that is decoded, against kio's schemas."""

import pytest

from protocol.wire.errors import PeerProtocolError
from protocol.wire.identifiers import ApiKey
from protocol.wire.request_headers import (
    FLEXIBLE_FROM,
    RequestHeader,
    decode_request_header,
    encode_request_header,
    response_body_position,
)
from tests.support import kio_frames
from tests.support.for_each import for_each
from tests.support.hostile_bytes import assert_refused_when_cut

DECODED = [(api_key, version) for api_key in FLEXIBLE_FROM for version in kio_frames.versions_of(api_key)]


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


@for_each("api_key, api_version", DECODED)
def test_a_header_cut_at_any_byte_is_the_peers_error(api_key: int, api_version: int) -> None:
    frame = bytes(4) + encode_request_header(api_key, api_version, 1, "client")

    assert_refused_when_cut(decode_request_header, frame)


BAD_HEADERS = {
    "client id of length -2": b"\x00\x01\x00\x04\x00\x00\x00\x01\xff\xfe",
    "tag cut off": b"\x00\x01\x00\x0c\x00\x00\x00\x01\xff\xff\x01",
    "unknown api key": b"\x7f\xff\x00\x00\x00\x00\x00\x01\xff\xff",
    "HTTP": b"GET / HTTP/1.1\r\n\r\n",
}


@for_each("raw", BAD_HEADERS.values())
def test_a_bad_header_is_the_peers_error(raw: bytes) -> None:
    with pytest.raises(PeerProtocolError):
        decode_request_header(memoryview(kio_frames.with_length(raw)))


def test_a_client_id_that_is_not_utf_8_is_read_as_brokers_read_it() -> None:
    """How it failed: the connection was closed, which no broker does."""
    raw = b"\x00\x01\x00\x04\x00\x00\x00\x01\x7f\xff" + b"\xff" * 0x7FFF
    header = decode_request_header(memoryview(kio_frames.with_length(raw)))
    assert header.client_id == "\ufffd" * 0x7FFF
    assert len(encode_request_header(1, 4, 1, header.client_id)) == len(raw)


def test_a_response_without_its_tagged_section_is_the_peers_error() -> None:
    with pytest.raises(PeerProtocolError):
        response_body_position(memoryview(kio_frames.with_length(bytes(4))), ApiKey.METADATA, 9)
