"""One blocking connection over loopback: our name, loss, limits, hostile answers, signing in."""

import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import pytest
from kio.schema.errors import ErrorCode

from pipeline.brokers.connection import BrokerConnection
from pipeline.brokers.errors import (
    BrokerAuthenticationError,
    BrokerConnectionError,
    BrokerError,
    BrokerProtocolError,
    BrokerRefusedError,
    BrokerTimeoutError,
    BrokerTlsError,
    BrokerUnsupportedError,
)
from pipeline.brokers.settings import ClientSettings
from protocol.client.messages import (
    API_VERSIONS,
    LIST_OFFSETS,
    METADATA,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    Values,
    encode_request,
)
from protocol.client.sasl import SaslCredentials
from tests.support.blocking_broker import HOST, BlockingBroker
from tests.support.waiting import wait_until

ASK_METADATA: Values = {
    "topics": (),
    "allow_auto_topic_creation": False,
    "include_topic_authorized_operations": False,
    "include_cluster_authorized_operations": False,
}
SETTINGS = ClientSettings(bootstrap_servers=((HOST, 1),), client_id="me", frame_bytes_max=100_000)
ALICE = SaslCredentials("PLAIN", "alice", "open sesame")


@pytest.fixture
def broker() -> Iterator[BlockingBroker]:
    with BlockingBroker() as running:
        running.serve_metadata({1: (HOST, 1)}, {})
        yield running


def connect(broker: BlockingBroker, settings: ClientSettings = SETTINGS) -> BrokerConnection:
    return BrokerConnection(HOST, broker.port, settings)


def signing_in(broker: BlockingBroker, *, lifetime_ms: int = 0, refusal: str | None = None) -> ClientSettings:
    broker.answer(SASL_HANDSHAKE, {"error_code": ErrorCode.none, "mechanisms": ("PLAIN",)})
    broker.answer(
        SASL_AUTHENTICATE,
        {
            "error_code": ErrorCode.none if refusal is None else ErrorCode.sasl_authentication_failed,
            "error_message": refusal,
            "auth_bytes": b"",
            "session_lifetime": timedelta(milliseconds=lifetime_ms),
        },
    )
    return replace(SETTINGS, sasl=ALICE)


def test_the_first_request_is_api_versions_with_our_name_and_client_id(broker: BlockingBroker) -> None:
    with connect(broker) as connection:
        assert connection.usable
        assert connection.request(METADATA, ASK_METADATA).cluster_id == "fake"
    assert broker.requests[0].client_software_name == "tidegate"
    assert broker.client_ids == ["me", "me"]
    assert not connection.usable


def test_a_broker_that_nobody_listens_for_is_named() -> None:
    with socket.create_server((HOST, 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(BrokerConnectionError, match=rf"cannot connect to 127\.0\.0\.1:{port}: ") as caught:
        BrokerConnection(HOST, port, SETTINGS)
    assert caught.value.retriable


def test_a_connection_that_ends_in_the_middle_of_a_frame_is_lost(broker: BlockingBroker) -> None:
    broker.on(METADATA, lambda _request: None)
    with connect(broker) as connection:
        with pytest.raises(BrokerConnectionError, match="the broker closed the connection"):
            connection.request(METADATA, ASK_METADATA)
        assert not connection.usable
        with pytest.raises(BrokerConnectionError, match="the connection is closed"):
            connection.request(METADATA, ASK_METADATA)


def test_a_broker_that_is_silent_for_too_long_is_left(broker: BlockingBroker) -> None:
    answers = threading.Event()

    def silent(_request: object) -> None:
        answers.wait()

    broker.on(METADATA, silent)
    with connect(broker) as connection:
        with pytest.raises(BrokerTimeoutError, match=r"no answer to metadata within 0\.02 s"):
            connection.request(METADATA, ASK_METADATA, timeout_s=0.02)
        assert not connection.usable
    answers.set()


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        (struct.pack(">i", 77), "an answer to request 77, 2 was asked"),
        (struct.pack(">i", 2) + bytes(100_000), "a frame of 100004 bytes, 100000 are accepted"),
        (struct.pack(">i", 2) + b"\xff" * 30, "bad metadata response"),
    ],
    ids=["other-request", "too-long", "garbage"],
)
def test_an_answer_that_cannot_be_believed_ends_the_connection(broker: BlockingBroker, frame: bytes, says: str) -> None:
    broker.on(METADATA, lambda _request: frame)
    with connect(broker) as connection:
        with pytest.raises(BrokerProtocolError, match=says):
            connection.request(METADATA, ASK_METADATA)
        assert not connection.usable


def test_a_version_that_the_broker_lacks_costs_nothing_but_the_question(broker: BlockingBroker) -> None:
    broker.versions[LIST_OFFSETS.key] = (0, 7)
    with connect(broker) as connection:
        with pytest.raises(BrokerUnsupportedError, match="list_offsets version 8 or later is needed"):
            connection.request(LIST_OFFSETS, {}, version_needed=8)
        assert connection.usable


def test_a_broker_that_is_too_old_for_us_is_named_as_such(broker: BlockingBroker) -> None:
    broker.on(API_VERSIONS, lambda _request: struct.pack(">ihi", 1, 35, 0))
    with pytest.raises(BrokerUnsupportedError, match=r"older than Kafka 2\.8"):
        connect(broker)


def test_refused_api_versions_end_the_connection(broker: BlockingBroker) -> None:
    broker.answer(API_VERSIONS, {"error_code": ErrorCode.invalid_request, "api_keys": ()})
    with pytest.raises(BrokerRefusedError, match="ApiVersions was refused with error code 42"):
        connect(broker)


def test_plain_signs_in_with_name_and_password(broker: BlockingBroker) -> None:
    with connect(broker, signing_in(broker)) as connection:
        assert connection.usable
    assert broker.asked(SASL_AUTHENTICATE)[0].auth_bytes == b"\0alice\0open sesame"


def test_a_refused_sign_in_names_broker_principal_and_mechanism_but_no_password(broker: BlockingBroker) -> None:
    settings = signing_in(broker, refusal="Authentication failed")
    with pytest.raises(BrokerAuthenticationError) as caught:
        connect(broker, settings)
    assert str(caught.value) == f"127.0.0.1:{broker.port}: PLAIN for 'alice' failed: Authentication failed"
    assert "open sesame" not in repr(settings)


def test_a_broker_that_hangs_up_during_the_sign_in_says_who_signed_in(broker: BlockingBroker) -> None:
    settings = signing_in(broker)
    broker.on(SASL_AUTHENTICATE, lambda _request: None)
    with pytest.raises(BrokerConnectionError, match="closed the connection while signing in as 'alice'"):
        connect(broker, settings)


def test_a_session_whose_lifetime_is_nearly_over_is_not_used(broker: BlockingBroker) -> None:
    with connect(broker, signing_in(broker, lifetime_ms=3_600_000)) as connection:
        assert connection.usable
    with connect(broker, signing_in(broker, lifetime_ms=1)) as connection:
        wait_until(lambda: not connection.usable, "the end of the session")


def test_a_port_that_does_not_speak_tls_is_no_passing_trouble() -> None:
    with socket.create_server((HOST, 0)) as listener:

        def answer_in_clear() -> None:
            with listener.accept()[0] as connection:
                connection.recv(1)
                connection.sendall(encode_request(API_VERSIONS, 3, _NAMED, 1, "x"))

        thread = threading.Thread(target=answer_in_clear)
        thread.start()
        settings = replace(SETTINGS, tls=ssl.create_default_context())
        with pytest.raises(BrokerTlsError, match="TLS handshake with 127") as caught:
            BrokerConnection(HOST, listener.getsockname()[1], settings)
        thread.join()
    assert not caught.value.retriable


def test_a_handshake_that_is_cut_may_succeed_later() -> None:
    with socket.create_server((HOST, 0)) as listener:
        thread = threading.Thread(target=lambda: listener.accept()[0].close())
        thread.start()
        with pytest.raises(BrokerError) as caught:
            BrokerConnection(HOST, listener.getsockname()[1], replace(SETTINGS, tls=ssl.create_default_context()))
        thread.join()
    assert caught.value.retriable


_NAMED: Values = {"client_software_name": "x", "client_software_version": "1"}
