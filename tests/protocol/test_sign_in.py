"""When a client counts as signed in, by each mechanism and both ways of carrying tokens; whose turn it is when raw."""

import datetime
import struct
from collections.abc import Callable
from contextlib import nullcontext, suppress
from itertools import product

import pytest
from kio.schema.errors import ErrorCode

from protocol.sasl_handshake import SaslHandshakeRequest
from protocol.sign_in import AUTHENTICATE_HEAD_BYTES, HANDSHAKE_HEAD_BYTES, RAW_HEAD_BYTES, SignIn
from protocol.wire.errors import LocalProtocolError, PeerProtocolError
from protocol.wire.identifiers import ApiKey
from protocol.wire.request_headers import RequestHeader
from tests.support import kio_frames
from tests.support.for_each import for_each

SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
"""RFC 7677 §3."""
SERVER_ERROR = b"e=invalid-proof"
BEARER_ERROR = b'{"status":"invalid_token"}'
SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")
KNOWN = ("PLAIN", *SCRAM, "OAUTHBEARER")
OTHERS = ("GSSAPI", "AWS_MSK_IAM", "plain", "")

SUCCESSES: list[tuple[str, list[bytes]]] = [
    ("PLAIN", [b""]),
    ("PLAIN", [b"welcome"]),
    *((mechanism, [SERVER_FIRST, SERVER_FINAL]) for mechanism in SCRAM),
    ("SCRAM-SHA-256", [b"", SERVER_FIRST, b"v", b"V=", SERVER_FIRST + b",v=", SERVER_FINAL]),
    ("OAUTHBEARER", [b""]),
    ("OAUTHBEARER", [BEARER_ERROR, b"\x01", b""]),
]
"""By mechanism, tokens of the broker without an error, of which the last means success and no other does."""
NO_SUCCESSES: list[tuple[str, list[bytes]]] = [
    ("SCRAM-SHA-256", [SERVER_FIRST, SERVER_ERROR]),
    ("SCRAM-SHA-512", [SERVER_FIRST, b""]),
    ("OAUTHBEARER", [BEARER_ERROR]),
    *((mechanism, [b"", SERVER_FIRST, SERVER_FINAL]) for mechanism in OTHERS),
]

VERSIONS = kio_frames.versions_of(ApiKey.SASL_AUTHENTICATE)
REFUSALS = (33, 34, 35, 58, -1)
Said = Callable[[SignIn], object]


def handshake(mechanism: str, api_version: int) -> SaslHandshakeRequest:
    return SaslHandshakeRequest(RequestHeader(ApiKey.SASL_HANDSHAKE, api_version, 5, "c", 15), mechanism)


def handshake_head(error_code: int = 0) -> memoryview:
    return memoryview(struct.pack(">iih", 10, 5, error_code))


def accepted(mechanism: str, api_version: int, sign_in: SignIn | None = None) -> SignIn:
    """The broker has accepted that mechanism."""
    sign_in = sign_in or SignIn(is_demanded=True)
    request = handshake(mechanism, api_version)
    sign_in.on_handshake(request)
    sign_in.on_handshake_answer(request, handshake_head())
    return sign_in


def authenticate_frame(
    api_version: int, token: bytes, *, error_code: int = 0, message: str | None = None, unknown_tag: bool = False
) -> bytes:
    values = {
        "error_code": ErrorCode(error_code),
        "error_message": message,
        "auth_bytes": token,
        "session_lifetime": datetime.timedelta(0),
    }
    schema = kio_frames.schema(ApiKey.SASL_AUTHENTICATE, api_version, unknown_tag=unknown_tag)
    return kio_frames.response_frame(kio_frames.fill(schema, values), unknown_tag=unknown_tag and api_version >= 2)


def authenticate_answer(sign_in: SignIn, frame: bytes, api_version: int = 2) -> None:
    """As a connection does: the head first, then the key."""
    sign_in.on_authenticate_answer(api_version, memoryview(frame)[:AUTHENTICATE_HEAD_BYTES])
    sign_in.on_answer(ApiKey.SASL_AUTHENTICATE)


def raw_answer(sign_in: SignIn, token: bytes) -> None:
    sign_in.on_raw_answer(memoryview(kio_frames.with_length(token))[:RAW_HEAD_BYTES])
    sign_in.on_answer(ApiKey.SASL_AUTHENTICATE)


# In SaslAuthenticate.


@for_each("conversation, message, unknown_tag", product(SUCCESSES, (None, "", "m" * 32767), (False, True)))
def test_the_answer_that_means_success_signs_in_and_none_before(
    conversation: tuple[str, list[bytes]], message: str | None, unknown_tag: bool
) -> None:
    mechanism, tokens = conversation
    for api_version in VERSIONS:
        sign_in = accepted(mechanism, 1)
        for token in tokens:
            assert not sign_in.is_signed_in
            frame = authenticate_frame(api_version, token, message=message, unknown_tag=unknown_tag)
            authenticate_answer(sign_in, frame, api_version)
        assert sign_in.is_signed_in
        assert not sign_in.is_raw


@for_each("conversation, api_version", product(NO_SUCCESSES, VERSIONS))
def test_no_other_answer_signs_in(conversation: tuple[str, list[bytes]], api_version: int) -> None:
    mechanism, tokens = conversation
    sign_in = accepted(mechanism, 1)
    for token in tokens:
        authenticate_answer(sign_in, authenticate_frame(api_version, token), api_version)
    assert not sign_in.is_signed_in


@for_each("conversation, error_code, api_version", product([*SUCCESSES, ("GSSAPI", [b""])], REFUSALS, VERSIONS))
def test_an_error_is_no_success_and_neither_is_what_follows_without_a_new_handshake(
    conversation: tuple[str, list[bytes]], error_code: int, api_version: int
) -> None:
    mechanism, tokens = conversation
    sign_in = accepted(mechanism, 1)
    failure = authenticate_frame(api_version, tokens[-1], error_code=error_code, message="no")
    authenticate_answer(sign_in, failure, api_version)
    assert (sign_in.take_refusal(), sign_in.take_refusal()) == ("no", None)
    for token in tokens:
        authenticate_answer(sign_in, authenticate_frame(api_version, token), api_version)
    sign_in.on_answer(ApiKey.METADATA)
    assert not sign_in.is_signed_in
    accepted("PLAIN", 1, sign_in)
    authenticate_answer(sign_in, authenticate_frame(api_version, b""), api_version)
    assert sign_in.is_signed_in


@for_each("size, api_version", product(range(41), VERSIONS))
def test_an_answer_that_is_cut_short_is_the_brokers_fault_or_says_enough(size: int, api_version: int) -> None:
    frame = authenticate_frame(api_version, SERVER_FINAL)
    sign_in = accepted("SCRAM-SHA-256", 1)
    says_enough = size >= frame.index(b"v=") + 2
    with nullcontext() if says_enough else suppress(PeerProtocolError):
        sign_in.on_authenticate_answer(api_version, memoryview(frame)[:size])
    assert sign_in.is_signed_in == says_enough


def test_a_token_that_is_null_is_the_brokers_fault() -> None:
    frame = authenticate_frame(1, b"")
    with pytest.raises(PeerProtocolError):
        accepted("OAUTHBEARER", 1).on_authenticate_answer(1, memoryview(frame[:12] + struct.pack(">iq", -1, 0)))


# By what follows.


@for_each("mechanism", [*KNOWN, *OTHERS])
def test_only_an_unknown_mechanism_signs_in_with_an_answer_for_signed_in_clients(mechanism: str) -> None:
    sign_in = SignIn(is_demanded=True)
    sign_in.on_answer(ApiKey.API_VERSIONS)
    accepted(mechanism, 1, sign_in)
    if mechanism in OTHERS:
        authenticate_answer(sign_in, authenticate_frame(2, b"\x60token"))
    for api_key in (ApiKey.SASL_HANDSHAKE, ApiKey.API_VERSIONS, ApiKey.SASL_AUTHENTICATE):
        sign_in.on_answer(api_key)
        assert not sign_in.is_signed_in
    sign_in.on_answer(ApiKey.METADATA)
    assert sign_in.is_signed_in == (mechanism in OTHERS)


@for_each("mechanism, error_code", product([*KNOWN, *OTHERS], REFUSALS))
def test_a_mechanism_that_the_broker_has_refused_signs_nobody_in(mechanism: str, error_code: int) -> None:
    sign_in = SignIn(is_demanded=True)
    sign_in.on_answer(ApiKey.METADATA)
    accepted("PLAIN", 1, sign_in)
    request = handshake(mechanism, 1)
    sign_in.on_handshake(request)
    sign_in.on_handshake_answer(request, handshake_head(error_code))
    for token in (b"", SERVER_FINAL):
        authenticate_answer(sign_in, authenticate_frame(2, token))
    sign_in.on_answer(ApiKey.METADATA)
    assert not sign_in.is_signed_in


def test_each_answer_is_judged_by_the_mechanism_that_was_accepted_before_it() -> None:
    """A client that names two at once: what the broker says to the first is judged by the first."""
    sign_in, first, second = SignIn(is_demanded=True), handshake("SCRAM-SHA-256", 1), handshake("PLAIN", 1)
    sign_in.on_handshake(first)
    sign_in.on_handshake(second)
    sign_in.on_handshake_answer(first, handshake_head())
    authenticate_answer(sign_in, authenticate_frame(2, SERVER_FIRST))
    assert not sign_in.is_signed_in
    sign_in.on_handshake_answer(second, handshake_head())
    authenticate_answer(sign_in, authenticate_frame(2, b""))
    assert sign_in.is_signed_in


# Where nobody has to, and again.


def test_without_a_demand_everybody_is_signed_in_and_raw_tokens_still_take_turns() -> None:
    sign_in = SignIn(is_demanded=False)
    assert sign_in.is_signed_in
    accepted("PLAIN", 0, sign_in)
    assert turn(sign_in) == "client"


def test_a_second_sign_in_takes_nothing_away() -> None:
    sign_in = accepted("PLAIN", 1)
    authenticate_answer(sign_in, authenticate_frame(2, b""))
    accepted("SCRAM-SHA-256", 1, sign_in)
    assert sign_in.is_signed_in
    for answer in (authenticate_frame(2, SERVER_FIRST), authenticate_frame(2, b"", error_code=58)):
        authenticate_answer(sign_in, answer)
        assert sign_in.is_signed_in
    accepted("SCRAM-SHA-256", 0, sign_in)
    for token in (SERVER_FIRST, SERVER_FINAL):
        sign_in.on_raw_token()
        raw_answer(sign_in, token)
        assert sign_in.is_signed_in
    assert not sign_in.is_raw


# Raw tokens.


def turn(sign_in: SignIn) -> str:
    """Who sends the next token."""
    assert sign_in.is_raw or not sign_in.awaits_broker
    return "nobody" if not sign_in.is_raw else "broker" if sign_in.awaits_broker else "client"


def answered(mechanism: str, tokens: list[bytes]) -> SignIn:
    """Accepted at version 0, then a token of the client's for each of these."""
    sign_in = accepted(mechanism, 0)
    for token in tokens:
        assert turn(sign_in) == "client"
        sign_in.on_raw_token()
        assert turn(sign_in) == "broker"
        raw_answer(sign_in, token)
    return sign_in


@for_each("mechanism, tokens", SUCCESSES)
def test_the_last_raw_answer_signs_in_and_ends_the_turns(mechanism: str, tokens: list[bytes]) -> None:
    for count in range(len(tokens)):
        sign_in = answered(mechanism, tokens[:count])
        assert (turn(sign_in), sign_in.is_signed_in) == ("client", False)
    sign_in = answered(mechanism, tokens)
    assert (turn(sign_in), sign_in.is_signed_in) == ("nobody", True)


@for_each("mechanism", [*KNOWN, *OTHERS])
def test_version_0_is_refused_where_nothing_shows_the_last_token(mechanism: str) -> None:
    sign_in, request = SignIn(is_demanded=True), handshake(mechanism, 0)
    assert sign_in.refuses(request) == (mechanism in OTHERS)
    assert not sign_in.refuses(handshake(mechanism, 1))
    if mechanism in OTHERS:
        with pytest.raises(LocalProtocolError):
            sign_in.on_handshake(request)
        assert not sign_in.is_raw


@for_each("error_code", REFUSALS)
def test_after_a_refused_handshake_no_raw_token_follows(error_code: int) -> None:
    sign_in, request = SignIn(is_demanded=True), handshake("PLAIN", 0)
    sign_in.on_handshake(request)
    assert turn(sign_in) == "broker"
    sign_in.on_handshake_answer(request, handshake_head(error_code))
    assert (turn(sign_in), sign_in.is_signed_in) == ("nobody", False)
    with pytest.raises(LocalProtocolError):
        sign_in.on_raw_token()


def test_an_earlier_handshakes_answer_does_not_end_the_wait_for_version_0() -> None:
    sign_in, first, second = SignIn(is_demanded=True), handshake("PLAIN", 1), handshake("PLAIN", 0)
    sign_in.on_handshake(first)
    sign_in.on_handshake(second)
    sign_in.on_handshake_answer(first, handshake_head())
    assert turn(sign_in) == "broker"
    sign_in.on_handshake_answer(second, handshake_head())
    assert turn(sign_in) == "client"


@for_each("api_version, size", product((0, 1), range(HANDSHAKE_HEAD_BYTES)))
def test_a_handshake_answer_without_its_error_code_is_the_brokers_fault(api_version: int, size: int) -> None:
    sign_in, request = SignIn(is_demanded=True), handshake("PLAIN", api_version)
    sign_in.on_handshake(request)
    with pytest.raises(PeerProtocolError):
        sign_in.on_handshake_answer(request, handshake_head()[:size])


def test_nobody_speaks_out_of_turn() -> None:
    request = handshake("PLAIN", 0)
    asked, ready, over = SignIn(is_demanded=True), accepted("PLAIN", 0), answered("PLAIN", [b""])
    asked.on_handshake(request)
    turns: list[tuple[Said, list[SignIn]]] = [
        (SignIn.on_raw_token, [asked, over]),
        (lambda sign_in: sign_in.on_raw_answer(memoryview(bytes(4))), [asked, ready, over]),
        (lambda sign_in: sign_in.on_handshake_answer(request, handshake_head()), [ready, over]),
        (lambda sign_in: sign_in.on_handshake(request), [asked, ready]),
    ]
    for out_of_turn, speakers in turns:
        for sign_in in speakers:
            with pytest.raises(LocalProtocolError):
                out_of_turn(sign_in)


# Any order of answers.
