"""Signing in over a fake broker: what is sent, what is said when it fails, when a session ends."""

from datetime import timedelta

import pytest
import trio
import trio.testing
from kio.schema.errors import ErrorCode

from protocol.client.messages import SASL_AUTHENTICATE, SASL_HANDSHAKE, Values
from protocol.client.sasl import SaslCredentials
from proxy.upstream.connection import BrokerConnection, start_broker_connection
from proxy.upstream.errors import UpstreamAuthenticationError
from proxy.upstream.settings import UpstreamSettings
from tests.support.fake_broker import FakeBroker, transport_pair

PLAIN = SaslCredentials("PLAIN", "alice", "open sesame")


async def connect(broker: FakeBroker, nursery: trio.Nursery, settings: UpstreamSettings) -> BrokerConnection:
    ours, theirs = transport_pair()
    nursery.start_soon(broker.serve, theirs)
    return await start_broker_connection(ours, "b:1", settings, "role", nursery)


def signing_in(credentials: SaslCredentials) -> UpstreamSettings:
    return UpstreamSettings(bootstrap_servers=(), sasl=credentials)


def sasl_broker(lifetime_ms: int = 0, refusal: str | None = None) -> FakeBroker:
    broker = FakeBroker()
    broker.answer(SASL_HANDSHAKE, {"error_code": ErrorCode.none, "mechanisms": ("PLAIN",)})
    code = ErrorCode.none if refusal is None else ErrorCode.sasl_authentication_failed
    broker.answer(
        SASL_AUTHENTICATE,
        {
            "error_code": code,
            "error_message": refusal,
            "auth_bytes": b"",
            "session_lifetime": timedelta(milliseconds=lifetime_ms),
        },
    )
    return broker


async def test_plain_sends_name_and_password_and_acts_as_nobody_else(nursery: trio.Nursery) -> None:
    broker = sasl_broker()
    connection = await connect(broker, nursery, signing_in(PLAIN))
    assert broker.asked(SASL_HANDSHAKE)[0].mechanism == "PLAIN"
    assert broker.asked(SASL_AUTHENTICATE)[0].auth_bytes == b"\0alice\0open sesame"
    assert connection.usable


async def test_a_refusal_names_principal_and_mechanism_but_no_password(nursery: trio.Nursery) -> None:
    broker = sasl_broker(refusal="Authentication failed: Invalid username or password")
    with pytest.raises(UpstreamAuthenticationError) as caught:
        await connect(broker, nursery, signing_in(PLAIN))
    assert str(caught.value) == "b:1: PLAIN for 'alice' failed: Authentication failed: Invalid username or password"
    assert "open sesame" not in repr(PLAIN)


async def test_a_mechanism_that_is_not_offered_lists_those_that_are(nursery: trio.Nursery) -> None:
    broker = FakeBroker()
    broker.answer(
        SASL_HANDSHAKE, {"error_code": ErrorCode.unsupported_sasl_mechanism, "mechanisms": ("GSSAPI", "PLAIN")}
    )
    with pytest.raises(UpstreamAuthenticationError, match="SCRAM-SHA-256 for 'alice'; it offers GSSAPI, PLAIN"):
        await connect(broker, nursery, signing_in(SaslCredentials("SCRAM-SHA-256", "alice", "x")))


async def test_a_session_is_given_up_before_its_lifetime_ends(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    connection = await connect(sasl_broker(lifetime_ms=10_000), nursery, signing_in(PLAIN))
    await trio.sleep(7.9)
    assert connection.usable
    await trio.sleep(0.2)
    assert not connection.usable


async def test_oauthbearer_sends_the_token_and_ends_a_refused_exchange_as_the_rfc_says(nursery: trio.Nursery) -> None:
    broker = sasl_broker()
    answers: list[Values] = [
        {
            "error_code": ErrorCode.none,
            "error_message": None,
            "auth_bytes": b'{"status":"invalid_token"}',
            "session_lifetime": timedelta(0),
        },
        {
            "error_code": ErrorCode.sasl_authentication_failed,
            "error_message": "invalid_token",
            "auth_bytes": b"",
            "session_lifetime": timedelta(0),
        },
    ]

    async def handler(_request: object) -> Values:
        await trio.lowlevel.checkpoint()
        return answers.pop(0)

    broker.on(SASL_AUTHENTICATE, handler)
    with pytest.raises(UpstreamAuthenticationError, match="OAUTHBEARER for 'svc' failed: invalid_token"):
        await connect(broker, nursery, signing_in(SaslCredentials("OAUTHBEARER", "svc", "abc.def.ghi")))
    sent = [request.auth_bytes for request in broker.asked(SASL_AUTHENTICATE)]
    assert sent == [b"n,,\x01auth=Bearer abc.def.ghi\x01\x01", b"\x01"]
