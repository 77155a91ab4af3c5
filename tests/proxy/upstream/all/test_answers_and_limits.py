"""An answer that meets the end of its question, over real sockets: it ends no more than its connection.

How it failed: length and body of an answer come in one TLS record, trio's stream yields between taking the bytes and
giving them, and in that turn the question was given up. The reader then looked for somebody who waited and raised
KeyError, which ended the application. Each case is tried ROUNDS times, since the order of a turn is drawn.
"""

import random
import ssl
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import trio
from kio.schema.errors import ErrorCode

from protocol.client.cluster_view import metadata_question
from protocol.client.errors import UpstreamConnectionError, UpstreamError, UpstreamProtocolError
from protocol.client.messages import METADATA, Values
from protocol.client.settings import ClientSettings
from proxy.upstream.connection import BrokerConnection, open_broker_connection
from tests.support.fake_kafka import FakeBroker
from tests.support.outcomes import Outcomes, outcomes
from tests.support.socket_broker import BothSides, SocketBroker, both_sides, socket_broker

ROUNDS = 50
LIMIT_S = 0.02
GIVE_UP_S = 1.0
"""A round whose question is late, on a busy machine, proves nothing and costs no more."""
TICKS_MAX = 60
"""More than connection, handshake and first question take."""
ASK = metadata_question(())


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> BothSides:
    return both_sides(tmp_path_factory.mktemp("tls"))


@pytest.fixture(params=["tls", "plain"])
def client_tls(request: pytest.FixtureRequest, tls: BothSides) -> ssl.SSLContext | None:
    return tls.client if request.param == "tls" else None


@pytest.fixture
def broker() -> FakeBroker:
    made = FakeBroker()
    made.on(METADATA, lambda _request: metadata())
    return made


@pytest.fixture
def listening(broker: FakeBroker, tls: BothSides, client_tls: ssl.SSLContext | None) -> Iterator[SocketBroker]:
    with socket_broker(broker, tls.server if client_tls else None) as started:
        yield started


def metadata() -> Values:
    return {"brokers": (), "cluster_id": "c", "controller_id": 1, "topics": (), "error_code": ErrorCode.none}


async def opened(listening: SocketBroker, tls: ssl.SSLContext | None, nursery: trio.Nursery) -> BrokerConnection:
    return await open_broker_connection(*listening.address, settings_of(tls), "role", nursery)


def _next_of(answers: Iterator[Any], _request: object) -> Any:
    return next(answers)


def settings_of(tls: ssl.SSLContext | None) -> ClientSettings:
    return ClientSettings(bootstrap_servers=(), tls=tls)


async def test_the_loop_stands_until_the_time_is_up_and_the_answer_there(
    listening: SocketBroker, broker: FakeBroker, client_tls: ssl.SSLContext | None
) -> None:
    asked, may_answer = threading.Event(), threading.Semaphore(0)

    def answer(_request: object) -> Values:
        asked.set()
        may_answer.acquire(timeout=GIVE_UP_S)
        return metadata()

    async def stand_still() -> None:
        until_s = trio.current_time() + 2 * LIMIT_S
        while not asked.is_set() and connection.usable:
            await trio.lowlevel.checkpoint()
        if not asked.is_set():
            return  # it was never sent
        may_answer.release()
        listening.sent.acquire(timeout=GIVE_UP_S)
        while trio.current_time() < until_s:
            pass  # nothing else may run meanwhile

    async def ask(connection: BrokerConnection) -> None:
        try:
            await connection.request(ASK, LIMIT_S)
        finally:
            connection.abort()  # else its reader goes on: the answer that was there in time has been taken

    broker.on(METADATA, answer)
    for _ in range(ROUNDS):
        asked.clear()
        async with outcomes() as got:
            connection = await opened(listening, client_tls, got.nursery)
            got.start(ask, connection)
            got.start(stand_still)
        # On a busy machine the time may be up before the question is sent, which closes the connection, too.
        assert all(isinstance(error, UpstreamConnectionError) for error in got.raised)


async def test_two_answers_in_one_record_the_first_of_which_is_none(
    listening: SocketBroker, broker: FakeBroker, client_tls: ssl.SSLContext | None
) -> None:
    listening.answers_at_once = 2
    for _ in range(ROUNDS):
        answers: Iterator[Any] = iter([b"\0\0\0\2" + b"\xff" * 9, metadata()])
        broker.on(METADATA, partial(_next_of, answers))
        async with outcomes() as got:
            connection = await opened(listening, client_tls, got.nursery)
            got.start(connection.request, ASK, times=2)
        assert any(isinstance(error, UpstreamProtocolError) for error in got.raised)
        assert all(isinstance(error, UpstreamError) for error in got.raised)
        assert not connection.usable


async def test_whoever_opens_or_asks_leaves_at_any_tick(
    listening: SocketBroker, client_tls: ssl.SSLContext | None
) -> None:
    """As `race` has it: a connection that came second is given up wherever it is."""
    source = random.Random(1)

    async def open_and_ask(got: Outcomes) -> None:
        connection = await opened(listening, client_tls, got.nursery)
        try:
            await connection.request(ASK)
        finally:
            connection.abort()

    for _ in range(4 * ROUNDS):
        async with outcomes() as got:
            with trio.CancelScope() as leaving:
                async with trio.open_nursery() as asking:
                    asking.start_soon(open_and_ask, got)
                    for _ in range(source.randrange(TICKS_MAX)):
                        await trio.lowlevel.checkpoint()
                    leaving.cancel()
        assert not got.raised
