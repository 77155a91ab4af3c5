"""A connection over memory streams: pipelining, loss, time limits, hostile answers, signing in."""

import math
import struct
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing
from kio.schema.errors import ErrorCode

from protocol.client.cluster_view import metadata_question
from protocol.client.errors import UpstreamConnectionError, UpstreamProtocolError, UpstreamTimeoutError
from protocol.client.messages import API_VERSIONS, METADATA, SASL_AUTHENTICATE, SASL_HANDSHAKE, Question, Values
from protocol.client.sasl import SaslCredentials
from protocol.client.settings import ClientSettings
from proxy.upstream.connection import BrokerConnection, open_broker_connection, start_broker_connection
from tests.support.fake_kafka import FakeBroker, FakeKafka
from tests.support.memory_transport import transport_pair
from tests.support.outcomes import outcomes

pytestmark = pytest.mark.autojump

SETTINGS = ClientSettings(
    bootstrap_servers=(("b", 1),), client_host="host", request_timeout_s=5, frame_bytes_max=100_000
)
ASK_METADATA = metadata_question(())
ASK_VERSIONS: Question[Any] = Question(API_VERSIONS, {"client_software_name": "x", "client_software_version": "1"})


def metadata(cluster_id: str = "c") -> Values:
    return {"brokers": (), "cluster_id": cluster_id, "controller_id": 1, "topics": (), "error_code": ErrorCode.none}


async def connect(broker: FakeBroker, nursery: trio.Nursery, settings: ClientSettings = SETTINGS) -> BrokerConnection:
    ours, theirs = transport_pair()
    nursery.start_soon(broker.serve, theirs)
    return await start_broker_connection(ours, "b:1", settings, "role", nursery)


@pytest.fixture
def broker() -> FakeBroker:
    return FakeBroker()


@pytest.fixture
async def connection(broker: FakeBroker, nursery: trio.Nursery) -> BrokerConnection:
    return await connect(broker, nursery)


async def test_pipelined_requests_get_their_own_answers(broker: FakeBroker, nursery: trio.Nursery) -> None:
    """More of them than may be in flight: each answer makes room for the next."""
    connection = await connect(broker, nursery, replace(SETTINGS, requests_in_flight_max=2))
    go = trio.Event()

    async def handler(request: Any) -> Values:
        await go.wait()
        return metadata(request.topics[0].name)

    async def ask(name: str) -> tuple[str, str]:
        return name, (await connection.request(metadata_question([name]))).cluster_id

    broker.on(METADATA, handler)
    async with outcomes() as got:
        for name in "abcdef":
            got.start(ask, name)
        await trio.testing.wait_all_tasks_blocked()
        go.set()
    assert sorted(got.returned) == [(name, name) for name in "abcdef"]


async def test_no_more_requests_are_in_flight_than_allowed() -> None:
    received = bytearray()
    ours, theirs = transport_pair()
    settings = ClientSettings(bootstrap_servers=(), requests_in_flight_max=2)
    connection = BrokerConnection(ours, "b:1", settings, "role")

    async def swallow() -> None:
        buffer = bytearray(1000)
        while count := await theirs.receive_into(memoryview(buffer)):
            received.extend(buffer[:count])

    async with outcomes() as got:
        got.start(connection.read)
        got.start(swallow)
        got.start(connection.request, ASK_VERSIONS, times=5)
        await trio.testing.wait_all_tasks_blocked()
        frame_bytes = 4 + struct.unpack_from(">i", received)[0]
        assert len(received) == 2 * frame_bytes
        connection.abort()
    assert [type(error) for error in got.raised] == [UpstreamConnectionError] * 5


async def never(_request: object) -> None:
    await trio.sleep_forever()


async def test_losing_the_connection_fails_each_that_waits(broker: FakeBroker, connection: BrokerConnection) -> None:
    broker.on(METADATA, never)
    async with outcomes() as got:
        got.start(partial(connection.request, ASK_METADATA, timeout_s=math.inf), times=3)
        await trio.testing.wait_all_tasks_blocked()
        broker.disconnect_all()
    assert [type(error) for error in got.raised] == [UpstreamConnectionError] * 3
    assert all(str(error).startswith("b:1: the broker closed the connection") for error in got.raised)
    assert len({id(failure) for failure in got.raised}) == 3
    assert not connection.usable
    with pytest.raises(UpstreamConnectionError):
        await connection.request(ASK_METADATA)


async def test_a_request_that_takes_too_long_closes_it(broker: FakeBroker, connection: BrokerConnection) -> None:
    broker.on(METADATA, never)
    started = trio.current_time()
    with pytest.raises(UpstreamTimeoutError, match="no answer to metadata within 5 s"):
        await connection.request(ASK_METADATA)
    assert trio.current_time() - started == 5
    assert not connection.usable


async def test_a_hostile_answer_closes_the_connection(broker: FakeBroker, nursery: trio.Nursery) -> None:
    for frame, reason in (
        (bytes(100_001), "a frame of 100001 bytes, 100000 are accepted"),
        (struct.pack(">i", 2) + b"\xff\xff", "bad metadata response"),
    ):
        connection = await connect(broker, nursery)

        async def handler(_request: object, frame: bytes = frame) -> bytes:
            await trio.lowlevel.checkpoint()
            return frame

        broker.on(METADATA, handler)
        with pytest.raises(UpstreamProtocolError, match=reason):
            await connection.request(ASK_METADATA)
        assert not connection.usable


async def test_an_answer_that_nobody_asked_for_closes_it(broker: FakeBroker, connection: BrokerConnection) -> None:
    await broker.connections[0].send_all(struct.pack(">ii", 4, 7))
    await trio.testing.wait_all_tasks_blocked()
    assert not connection.usable


async def test_a_retired_one_closes_with_its_last_answer(broker: FakeBroker, connection: BrokerConnection) -> None:
    go = trio.Event()

    async def handler(_request: object) -> Values:
        await go.wait()
        return metadata()

    broker.on(METADATA, handler)
    async with trio.open_nursery() as asking:
        asking.start_soon(connection.request, ASK_METADATA)
        await trio.testing.wait_all_tasks_blocked()
        connection.retire()
        assert not connection.usable
        go.set()
    await trio.testing.wait_all_tasks_blocked()
    with pytest.raises(UpstreamConnectionError):
        await connection.request(ASK_METADATA)


async def test_a_session_is_given_up_before_its_lifetime_ends(broker: FakeBroker, nursery: trio.Nursery) -> None:
    broker.answer(SASL_HANDSHAKE, {"error_code": ErrorCode.none, "mechanisms": ("PLAIN",)})
    lifetime = timedelta(seconds=10)
    values = {"error_code": ErrorCode.none, "error_message": None, "auth_bytes": b"", "session_lifetime": lifetime}
    broker.answer(SASL_AUTHENTICATE, values)
    sasl = SaslCredentials("PLAIN", "alice", "open sesame")
    connection = await connect(broker, nursery, ClientSettings(bootstrap_servers=(), sasl=sasl))
    await trio.sleep(7.9)
    assert connection.usable
    await trio.sleep(0.2)
    assert not connection.usable


async def test_a_silent_broker_is_given_up(kafka: FakeKafka, broker: FakeBroker, nursery: trio.Nursery) -> None:
    kafka.listening[("b", 1)] = broker
    broker.on(API_VERSIONS, never)
    settings = ClientSettings(bootstrap_servers=(), connect_timeout_s=3)
    with pytest.raises(UpstreamConnectionError, match="no connection with b:1 within 3 s"):
        await open_broker_connection("b", 1, settings, "role", nursery)
