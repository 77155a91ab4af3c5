"""One blocking connection: our name, loss, limits, hostile answers, signing in."""

import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import pytest
from kio.schema.errors import ErrorCode

from protocol.client.cluster_view import metadata_question
from protocol.client.errors import (
    UpstreamConnectionError,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamTimeoutError,
    UpstreamTlsError,
)
from protocol.client.messages import API_VERSIONS, METADATA, SASL_AUTHENTICATE, SASL_HANDSHAKE, Values, encode_request
from protocol.client.sasl import SaslCredentials
from protocol.client.settings import ClientSettings
from table.brokers.connection import BrokerConnection
from tests.support.fake_kafka import SILENCE, FakeBroker, FakeKafka
from tests.support.for_each import for_each
from tests.support.waiting import wait_until

HOST = "127.0.0.1"
ASK_METADATA = metadata_question(())
SETTINGS = ClientSettings(bootstrap_servers=((HOST, 1),), client_host="me", frame_bytes_max=100_000)
ALICE = SaslCredentials("PLAIN", "alice", "open sesame")


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    kafka = FakeKafka()
    with kafka.blocking():
        yield kafka.add(1, HOST)


def connect(settings: ClientSettings = SETTINGS) -> BrokerConnection:
    return BrokerConnection(HOST, 1, settings)


def signing_in(broker: FakeBroker, *, lifetime_ms: int) -> ClientSettings:
    broker.answer(SASL_HANDSHAKE, {"error_code": ErrorCode.none, "mechanisms": ("PLAIN",)})
    lifetime = timedelta(milliseconds=lifetime_ms)
    values = {"error_code": ErrorCode.none, "error_message": None, "auth_bytes": b"", "session_lifetime": lifetime}
    broker.answer(SASL_AUTHENTICATE, values)
    return replace(SETTINGS, sasl=ALICE)


def test_the_first_request_is_api_versions_with_our_name_and_client_id(broker: FakeBroker) -> None:
    with connect() as connection:
        assert connection.usable
        assert connection.request(ASK_METADATA).cluster_id == "fake"
    assert broker.requests[0].client_software_name == "tidegate"
    assert broker.client_ids == ["tidegate-spark-me"] * 2
    assert not connection.usable


def test_a_broker_that_nobody_listens_for_is_named() -> None:
    with socket.create_server((HOST, 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(UpstreamConnectionError, match=rf"cannot connect to 127\.0\.0\.1:{port}: ") as caught:
        BrokerConnection(HOST, port, SETTINGS)
    assert caught.value.retriable


@for_each(
    "answer, error, says",
    [
        (None, UpstreamConnectionError, "the broker closed the connection"),
        (SILENCE, UpstreamTimeoutError, r"no answer to metadata within 0\.02 s"),
        (bytes(100_001), UpstreamProtocolError, "a frame of 100001 bytes"),
        (struct.pack(">i", 2) + b"\xff" * 30, UpstreamProtocolError, "bad metadata response"),
    ],
)
def test_no_answer_and_one_that_cannot_be_believed_end_the_connection(
    broker: FakeBroker, answer: bytes | None, error: type[UpstreamError], says: str
) -> None:
    broker.on(METADATA, lambda _request: answer)
    with connect() as connection:
        with pytest.raises(error, match=says):
            connection.request(ASK_METADATA, timeout_s=0.02 if answer is SILENCE else 30)
        assert not connection.usable
        with pytest.raises(UpstreamConnectionError, match="the connection is closed"):
            connection.request(ASK_METADATA)


def test_a_session_whose_lifetime_is_nearly_over_is_not_used(broker: FakeBroker) -> None:
    with connect(signing_in(broker, lifetime_ms=3_600_000)) as connection:
        assert connection.usable
    with connect(signing_in(broker, lifetime_ms=1)) as connection:
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
        with pytest.raises(UpstreamTlsError, match="TLS handshake with 127") as caught:
            BrokerConnection(HOST, listener.getsockname()[1], settings)
        thread.join()
    assert not caught.value.retriable


def test_a_handshake_that_is_cut_may_succeed_later() -> None:
    with socket.create_server((HOST, 0)) as listener:
        thread = threading.Thread(target=lambda: listener.accept()[0].close())
        thread.start()
        with pytest.raises(UpstreamError) as caught:
            BrokerConnection(HOST, listener.getsockname()[1], replace(SETTINGS, tls=ssl.create_default_context()))
        thread.join()
    assert caught.value.retriable


_NAMED: Values = {"client_software_name": "x", "client_software_version": "1"}
