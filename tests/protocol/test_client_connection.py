"""A connection without its socket: who is let in and what is said if not, the order of answers, frames, versions."""

import math
import struct
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from protocol.client import errors
from protocol.client.connection import ConnectionState
from protocol.client.conversation import drive
from protocol.client.messages import (
    API_VERSIONS,
    APIS,
    FETCH,
    LIST_OFFSETS,
    METADATA,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    Question,
    Values,
)
from protocol.client.sasl import SaslCredentials, Step
from protocol.client.settings import ClientSettings
from tests.support.fake_kafka import NO_TIME, api_versions_values, encode_response
from tests.support.for_each import for_each

ALICE = SaslCredentials("PLAIN", "alice", "open sesame")
SETTINGS = ClientSettings(bootstrap_servers=(), client_host="host", frame_bytes_max=100_000)
SIGNING_IN = ClientSettings(bootstrap_servers=(), sasl=ALICE)
_NAMED: Question[Any] = Question(API_VERSIONS, {"client_software_name": "x", "client_software_version": "1"})
OFFERED = {api.key: (api.version_min, api.version_max) for api in APIS}


def framed(answer: bytes) -> bytearray:
    return bytearray(struct.pack(">i", len(answer)) + answer)


def state_of(settings: ClientSettings = SETTINGS) -> ConnectionState:
    return ConnectionState("b:1", settings, "role")


def signed_in(*, lifetime_ms: int = 0, refusal: str | None = None) -> dict[int, Values | errors.UpstreamError]:
    """By API key what a broker that offers PLAIN answers."""
    code = ErrorCode.none if refusal is None else ErrorCode.sasl_authentication_failed
    lifetime = timedelta(milliseconds=lifetime_ms)
    answer: Values = {"error_code": code, "error_message": refusal, "auth_bytes": b"", "session_lifetime": lifetime}
    handshake: Values = {"error_code": ErrorCode.none, "mechanisms": ("PLAIN",)}
    return {SASL_HANDSHAKE.key: handshake, SASL_AUTHENTICATE.key: answer}


def opened(
    state: ConnectionState, answers: Mapping[int, Values | errors.UpstreamError | bytes], asked: list[Any] | None = None
) -> float:
    """Return what `opening` returns when a broker answers like this."""
    answers = {API_VERSIONS.key: api_versions_values(OFFERED), **answers}

    def answer(step: Step) -> Any:
        assert isinstance(step, Question), "PLAIN computes nothing"
        if asked is not None:
            asked.append(step.values)
        given = answers[step.api.key]
        if isinstance(given, errors.UpstreamError):
            raise given
        version = state.version_of(step)
        correlation_id, _ = state.request(step, version)
        body = given if isinstance(given, bytes) else encode_response(step.api.key, version, correlation_id, given)
        frame = framed(body)
        assert state.answered(frame) == correlation_id
        return state.decode(step.api, version, frame)

    return drive(state.opening(), answer)


def test_opening_says_who_we_are_and_learns_the_versions() -> None:
    state, asked = state_of(), list[Any]()
    assert opened(state, {}, asked) == math.inf
    assert asked[0]["client_software_name"] == "tidegate"
    assert state.client_id == "tidegate-role-host"
    assert state.versions[FETCH.key] == (4, 18)


@for_each("lifetime_ms, use_s", [(0, math.inf), (10_000, 8.0)])
def test_plain_signs_in_and_is_used_for_most_of_the_session(lifetime_ms: int, use_s: float) -> None:
    asked: list[Any] = []
    assert opened(state_of(SIGNING_IN), signed_in(lifetime_ms=lifetime_ms), asked) == use_s
    assert asked[2]["auth_bytes"] == b"\0alice\0open sesame"


def test_a_refusal_names_broker_principal_and_mechanism_but_no_password() -> None:
    with pytest.raises(errors.UpstreamAuthenticationError) as caught:
        opened(state_of(SIGNING_IN), signed_in(refusal="Authentication failed"))
    assert str(caught.value) == "b:1: PLAIN for 'alice' failed: Authentication failed"
    assert "open sesame" not in repr(SIGNING_IN)


@for_each("kind", [errors.UpstreamConnectionError, errors.UpstreamTimeoutError])
def test_a_broker_that_hangs_up_during_the_sign_in_says_who_signed_in(kind: type[errors.UpstreamError]) -> None:
    answers = signed_in() | {SASL_AUTHENTICATE.key: kind("b:1: gone")}
    with pytest.raises(kind, match="b:1: gone while signing in as 'alice'"):
        opened(state_of(SIGNING_IN), answers)


@for_each(
    "answer, kind, says",
    [
        (struct.pack(">ihi", 1, 35, 0), errors.UpstreamUnsupportedError, r"b:1 is older than Kafka 2\.8"),
        (
            {"error_code": ErrorCode.invalid_request, "api_keys": (), "throttle_time": NO_TIME},
            errors.UpstreamRefusedError,
            "b:1: ApiVersions was refused with error code 42",
        ),
    ],
)
def test_api_versions_that_do_not_let_us_in_are_said(
    answer: Values | bytes, kind: type[errors.UpstreamError], says: str
) -> None:
    with pytest.raises(kind, match=says):
        opened(state_of(), {API_VERSIONS.key: answer})


def test_a_version_that_the_broker_lacks_is_refused_before_a_request_is_made() -> None:
    state = state_of()
    opened(state, {API_VERSIONS.key: api_versions_values({LIST_OFFSETS.key: (0, 7)})})
    with pytest.raises(errors.UpstreamUnsupportedError, match="b:1: list_offsets version 8 or later is needed"):
        state.version_of(Question(LIST_OFFSETS, {}, version_needed=8))
    assert state.version_of(Question(LIST_OFFSETS, {})) == 7


@for_each("size", [-1, 0, 3, 100_001])
def test_a_frame_of_an_impossible_size_gets_no_memory(size: int) -> None:
    with pytest.raises(errors.UpstreamProtocolError, match=f"b:1: a frame of {size} bytes, 100000 are accepted"):
        state_of().frame_buffer(struct.pack(">i", size))
    assert len(state_of().frame_buffer(struct.pack(">i", 100_000))) == 100_004


def test_answers_come_in_the_order_of_the_requests_and_none_that_nobody_asked_for() -> None:
    state = state_of()
    first, second = (state.request(_NAMED, 3)[0] for _ in range(2))
    assert state.answered(framed(struct.pack(">i", first))) == first != second
    for asked in (state, state_of()):
        with pytest.raises(errors.UpstreamProtocolError, match="request 77, which is not next"):
            asked.answered(framed(struct.pack(">i", 77)))


@for_each("api, says", [(METADATA, "b:1: bad metadata response"), (FETCH, "b:1: ")])
def test_garbage_is_a_protocol_error_that_names_the_broker(api: Any, says: str) -> None:
    with pytest.raises(errors.UpstreamProtocolError, match=says):
        state_of().decode(api, api.version_max, framed(struct.pack(">i", 1) + b"\xff" * 30))


def test_the_command_that_grants_a_right_names_us_and_can_be_pasted() -> None:
    signed_in = ClientSettings(bootstrap_servers=(("::1", 1),), sasl=ALICE, kafka_principal="User:team a")
    assert signed_in.grant(["Read", "Describe"], "topic", ["orders", "*"]) == (
        "kafka-acls.sh --bootstrap-server '[::1]:1' --command-config admin.properties --add "
        "--allow-principal 'User:team a' --operation Read --operation Describe --topic orders --topic '*'"
    )
    anonymous = ClientSettings(bootstrap_servers=(("a", 1),)).grant(["Read"], "group", ["g"])
    assert anonymous == (
        "kafka-acls.sh --bootstrap-server a:1 --add --allow-principal User:ANONYMOUS --operation Read --group g"
    )


@for_each(
    "host, port", [("127..0.01", 1), ("a" * 64, 1), (".a", 1), ("nul\0", 1), ("", 1), ("a", 0), ("a", 65536), ("a", -1)]
)
def test_what_no_socket_can_be_opened_to_is_out_of_reach(host: str, port: int) -> None:
    """How it failed: sockets raise UnicodeError, ValueError and OverflowError for these, which nobody expected."""
    with pytest.raises(errors.UpstreamConnectionError, match="cannot connect to"):
        errors.require_address(host, port)


@for_each("host", ["127.0.0.1", "::1", "fe80::1%eth0", "kafka-1.example.", "bücher.example", "under_score"])
def test_names_and_addresses_are_let_through(host: str) -> None:
    errors.require_address(host, 9092)
