"""SaslHandshake: whose turn it is after version 0, and which mechanisms are refused there, in its own shape."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.api_17_sasl_handshake import RawSignIn, decode_request, encode_refusal
from protocol.errors import LocalProtocolError, PeerProtocolError
from protocol.headers import encode_request_header
from protocol.identifiers import ApiKey
from tests.support import kio_frames

every_version = pytest.mark.parametrize("api_version", kio_frames.versions_of(ApiKey.SASL_HANDSHAKE))


@every_version
@pytest.mark.parametrize(
    ("mechanism", "is_counted"),
    [
        ("PLAIN", True),
        ("SCRAM-SHA-256", True),
        ("SCRAM-SHA-512", True),
        ("OAUTHBEARER", True),
        ("GSSAPI", False),
        ("AWS_MSK_IAM", False),
        ("plain", False),
        ("", False),
    ],
)
def test_version_0_is_refused_where_the_turns_are_not_known(mechanism: str, is_counted: bool, api_version: int) -> None:
    schema = kio_frames.schema(ApiKey.SASL_HANDSHAKE, api_version, kind="request")
    frame = kio_frames.request_frame(kio_frames.fill(schema, {"mechanism": mechanism}))

    request = decode_request(memoryview(frame))

    assert request.mechanism == mechanism
    assert request.header.correlation_id == 5
    assert request.is_raw == (api_version == 0)
    assert request.is_refused == (api_version == 0 and not is_counted)
    assert decode_request(memoryview(frame + b"trailing")) == request
    for size in range(len(frame)):
        with pytest.raises(PeerProtocolError):
            decode_request(memoryview(frame)[:size])


@every_version
def test_the_refusal_is_a_response_of_that_version(api_version: int) -> None:
    frame = encode_refusal(1234, api_version)

    message = kio_frames.decode(kio_frames.schema(ApiKey.SASL_HANDSHAKE, api_version), frame[8:])
    assert struct.unpack_from(">ii", frame) == (len(frame) - 4, 1234)
    assert (message.error_code.value, message.mechanisms) == (35, ())


@pytest.mark.parametrize("api_version", [-1, 2])
def test_a_version_that_does_not_exist(api_version: int) -> None:
    header = encode_request_header(ApiKey.SASL_HANDSHAKE, api_version, 1, None)

    with pytest.raises(PeerProtocolError):
        decode_request(memoryview(kio_frames.with_length(header + b"\x00\x05PLAIN")))
    with pytest.raises(LocalProtocolError):
        encode_refusal(1, api_version)


def test_a_null_mechanism_is_the_peers_error() -> None:
    header = encode_request_header(ApiKey.SASL_HANDSHAKE, 1, 1, None)

    with pytest.raises(PeerProtocolError):
        decode_request(memoryview(kio_frames.with_length(header + b"\xff\xff")))


@given(st.binary(max_size=60))
def test_garbage_is_read_or_is_the_peers_error(body: bytes) -> None:
    header = encode_request_header(ApiKey.SASL_HANDSHAKE, 1, 1, "c")
    try:
        decode_request(memoryview(kio_frames.with_length(header + body)))
    except PeerProtocolError:
        return


# Raw tokens.

ACCEPTED = b"\0\0\0\x0a" + b"\0\0\0\x05" + b"\0\0"
EMPTY, SOME = b"\0\0\0\0", b"\0\0\x01\0"


def answered(mechanism: str, *heads: bytes) -> RawSignIn:
    """Accepted, then a token for each of these answers."""
    sign_in = RawSignIn(mechanism)
    sign_in.on_handshake_answer(memoryview(ACCEPTED))
    for head in heads:
        assert state(sign_in) == "client"
        sign_in.on_token()
        assert state(sign_in) == "broker"
        sign_in.on_answer(memoryview(head))
    return sign_in


def state(sign_in: RawSignIn) -> str:
    """Whose turn it is."""
    assert not (sign_in.awaits_broker and sign_in.is_over)
    return "over" if sign_in.is_over else "broker" if sign_in.awaits_broker else "client"


@pytest.mark.parametrize(
    ("mechanism", "heads"),
    [
        ("PLAIN", [EMPTY]),
        ("PLAIN", [SOME]),
        ("SCRAM-SHA-256", [SOME, SOME]),
        ("SCRAM-SHA-512", [SOME, EMPTY]),
        ("OAUTHBEARER", [EMPTY]),
        ("OAUTHBEARER", [SOME, EMPTY]),
        ("OAUTHBEARER", [SOME, SOME, b"\0\0\0\x01", EMPTY]),
    ],
)
def test_the_last_answer_ends_it_and_none_before(mechanism: str, heads: list[bytes]) -> None:
    assert state(answered(mechanism, *heads)) == "over"
    assert state(answered(mechanism, *heads[:-1])) == "client"


@pytest.mark.parametrize("error_code", [33, 34, 35, -1])
def test_after_a_refused_handshake_no_token_follows(error_code: int) -> None:
    sign_in = RawSignIn("PLAIN")
    assert state(sign_in) == "broker"
    sign_in.on_handshake_answer(memoryview(ACCEPTED[:8] + struct.pack(">h", error_code)))
    assert state(sign_in) == "over"
    with pytest.raises(LocalProtocolError):
        sign_in.on_token()


@pytest.mark.parametrize("size", range(len(ACCEPTED)))
def test_an_answer_without_its_error_code_is_the_brokers_fault(size: int) -> None:
    with pytest.raises(PeerProtocolError):
        RawSignIn("PLAIN").on_handshake_answer(memoryview(ACCEPTED)[:size])


def test_nobody_speaks_out_of_turn() -> None:
    asked, accepted, over = RawSignIn("PLAIN"), answered("PLAIN"), answered("PLAIN", EMPTY)
    for sign_in in (asked, over):
        with pytest.raises(LocalProtocolError):
            sign_in.on_token()
    for sign_in in (asked, accepted, over):
        with pytest.raises(LocalProtocolError):
            sign_in.on_answer(memoryview(EMPTY))
    for sign_in in (accepted, over):
        with pytest.raises(LocalProtocolError):
            sign_in.on_handshake_answer(memoryview(ACCEPTED))
    with pytest.raises(LocalProtocolError):
        RawSignIn("GSSAPI")
