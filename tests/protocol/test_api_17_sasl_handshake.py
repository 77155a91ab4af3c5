"""SaslHandshake: its requests, and a refusal of ours in its own shape."""

import struct
from itertools import product

import pytest

from protocol.sasl_handshake import decode_request, encode_refusal
from protocol.wire.errors import LocalProtocolError, PeerProtocolError
from protocol.wire.identifiers import ApiKey
from protocol.wire.request_headers import encode_request_header
from tests.support import kio_frames
from tests.support.for_each import for_each
from tests.support.hostile_bytes import assert_refused_when_cut

VERSIONS = kio_frames.versions_of(ApiKey.SASL_HANDSHAKE)


def request_of(body: bytes, api_version: int = 1) -> memoryview:
    header = encode_request_header(ApiKey.SASL_HANDSHAKE, api_version, 1, None)
    return memoryview(kio_frames.with_length(header + body))


@for_each("mechanism, api_version", product(("PLAIN", "SCRAM-SHA-256", "AWS_MSK_IAM", ""), VERSIONS))
def test_the_mechanism_is_read_whatever_it_is(mechanism: str, api_version: int) -> None:
    schema = kio_frames.schema(ApiKey.SASL_HANDSHAKE, api_version, kind="request")
    frame = kio_frames.request_frame(kio_frames.fill(schema, {"mechanism": mechanism}))

    request = decode_request(memoryview(frame))

    assert request.mechanism == mechanism
    assert request.header.correlation_id == 5
    assert request.is_raw == (api_version == 0)
    assert decode_request(memoryview(frame + b"trailing")) == request
    assert_refused_when_cut(decode_request, frame)


@for_each("api_version", VERSIONS)
def test_the_refusal_is_a_response_of_that_version(api_version: int) -> None:
    frame = encode_refusal(1234, api_version)

    message = kio_frames.decode(kio_frames.schema(ApiKey.SASL_HANDSHAKE, api_version), frame[8:])
    assert struct.unpack_from(">ii", frame) == (len(frame) - 4, 1234)
    assert (message.error_code.value, message.mechanisms) == (35, ())


@for_each("api_version", [-1, 2])
def test_a_version_that_does_not_exist(api_version: int) -> None:
    with pytest.raises(PeerProtocolError):
        decode_request(request_of(b"\x00\x05PLAIN", api_version))
    with pytest.raises(LocalProtocolError):
        encode_refusal(1, api_version)


def test_a_null_mechanism_is_the_peers_error() -> None:
    with pytest.raises(PeerProtocolError):
        decode_request(request_of(b"\xff\xff"))
