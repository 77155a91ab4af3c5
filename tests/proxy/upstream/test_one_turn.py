"""Both orders of one turn of the loop, simulated: an answer, and the end of the question that it answers.

A transport hands bytes over some turns after it has taken them, in which it cannot be cancelled, as trio's TLS stream
does. In each of these turns the question ends by its own limit, by its caller, or with its connection.
"""

import struct
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing

from protocol.client.errors import TransportError, UpstreamError
from protocol.client.messages import API_VERSIONS, Question
from protocol.client.settings import ClientSettings
from proxy.upstream.connection import BrokerConnection
from tests.support.fake_kafka import api_versions_values, encode_response
from tests.support.memory_transport import MemoryTransport
from tests.support.outcomes import outcomes

pytestmark = pytest.mark.autojump

LIMIT_S = 5.0
TURNS = range(6)
ASK: Question[Any] = Question(API_VERSIONS, {"client_software_name": "x", "client_software_version": "1"})


class LateTransport(MemoryTransport):
    """What `give` gives is received `turns_late` later, whatever is cancelled meanwhile."""

    def __init__(self, turns_late: int) -> None:
        super().__init__(trio.testing.memory_stream_pair()[0])
        self._turns_late = turns_late
        self._given = b""
        self._came = trio.Event()

    def give(self, data: bytes) -> None:
        self._given += data
        self._came.set()

    async def receive_into(self, view: memoryview) -> int:
        if not self._given:
            self._came = trio.Event()
            await self._came.wait()
        if not self._given:
            raise TransportError("it was aborted")
        data, self._given = self._given[: len(view)], self._given[len(view) :]
        for _ in range(self._turns_late):
            await trio.lowlevel.cancel_shielded_checkpoint()
        view[: len(data)] = data
        return len(data)

    async def send_all(self, data: object) -> None:
        await trio.lowlevel.checkpoint()

    def abort(self) -> None:
        super().abort()
        self._came.set()


def frame(correlation_id: int) -> bytes:
    body = encode_response(API_VERSIONS.key, 3, correlation_id, api_versions_values({}))
    return struct.pack(">i", len(body)) + body


def made(turns_late: int) -> tuple[LateTransport, BrokerConnection]:
    transport = LateTransport(turns_late)
    settings = ClientSettings(bootstrap_servers=(), request_timeout_s=LIMIT_S)
    return transport, BrokerConnection(transport, "b:1", settings, "role")


@pytest.mark.parametrize("answer_first", [True, False])
@pytest.mark.parametrize("turns_late", TURNS)
async def test_an_answer_meets_its_limit(turns_late: int, answer_first: bool) -> None:
    """How it failed: KeyError in the reader, where the limit came first."""
    transport, connection = made(turns_late)

    async def give_at_the_limit() -> None:
        await trio.sleep_until(trio.current_time() + LIMIT_S)
        transport.give(frame(1) + frame(2))

    async with outcomes() as got:
        got.nursery.start_soon(connection.read)
        if answer_first:
            got.nursery.start_soon(give_at_the_limit)
            await trio.testing.wait_all_tasks_blocked()
        got.start(connection.request, ASK, times=2)
        await trio.testing.wait_all_tasks_blocked()
        if not answer_first:
            got.nursery.start_soon(give_at_the_limit)
        await trio.sleep(2 * LIMIT_S)
        connection.abort()
    assert all(isinstance(error, UpstreamError) for error in got.raised)
    assert len(got.raised) + len(got.returned) == 2


Ending = Callable[[BrokerConnection, trio.CancelScope], object]


@pytest.mark.parametrize("answer_first", [True, False])
@pytest.mark.parametrize("turns_late", TURNS)
@pytest.mark.parametrize("turns_between", TURNS)
@pytest.mark.parametrize(
    "end",
    [
        pytest.param(lambda _connection, asking: asking.cancel(), id="asker leaves"),
        pytest.param(lambda connection, _asking: connection.abort(), id="connection is given up"),
        pytest.param(lambda connection, _asking: connection.retire(), id="connection is retired"),
    ],
)
async def test_an_answer_meets_the_end_of_who_waits(
    end: Ending, turns_between: int, turns_late: int, answer_first: bool
) -> None:
    transport, connection = made(turns_late)
    async with outcomes() as got:
        got.nursery.start_soon(connection.read)
        asking = trio.CancelScope()

        async def ask() -> None:
            with asking:
                await connection.request(ASK)

        got.start(ask)
        await trio.testing.wait_all_tasks_blocked()
        steps: list[Callable[[], object]] = [partial(transport.give, frame(1)), partial(end, connection, asking)]
        first, second = steps if answer_first else steps[::-1]
        first()
        for _ in range(turns_between):
            await trio.lowlevel.cancel_shielded_checkpoint()
        second()
        await trio.testing.wait_all_tasks_blocked()
        connection.abort()
    assert all(isinstance(error, UpstreamError) for error in got.raised)


async def test_what_a_reader_does_not_expect_ends_its_connection_alone() -> None:
    """How it failed: any exception but UpstreamError went on to the application's nursery."""
    transport, connection = made(0)

    async def break_in_it(view: memoryview) -> int:
        await trio.lowlevel.checkpoint()
        raise ZeroDivisionError("a fault of ours")

    transport.receive_into = break_in_it  # type: ignore[method-assign]  # one method of a stand-in
    async with outcomes() as got:
        got.nursery.start_soon(connection.read)
        got.start(connection.request, ASK)
    assert [isinstance(error, UpstreamError) for error in got.raised] == [True]
    assert not connection.usable
