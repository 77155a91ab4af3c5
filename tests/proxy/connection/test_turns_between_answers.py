"""Answers that are made and sent without waiting for anything, over real sockets: others go between them."""

from collections.abc import Sequence

import trio

from protocol.wire.identifiers import ApiKey
from proxy.connection.request_handlers import UpstreamWire
from proxy.upstream.transport import Bytes
from tests.support.memory_transport import ScriptedHandlers, request, response
from tests.support.socket_pairs import connected, connection_between, received

REQUESTS = 9


async def test_requests_that_came_together_are_answered_with_a_turn_between() -> None:
    turns, answered_at = 0, list[int]()

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    async def at_once(_frame: memoryview, _wire: UpstreamWire) -> Sequence[Bytes]:
        answered_at.append(turns)
        return [response(len(answered_at))]

    (client, from_client), (broker, to_broker) = await connected(), await connected()
    connection = connection_between(from_client, to_broker, ScriptedHandlers(at_once))
    async with client, broker, trio.open_nursery() as nursery:
        nursery.start_soon(connection.run)
        nursery.start_soon(others)
        await client.send_all(b"".join(request(ApiKey.FETCH, 12, number, b"") for number in range(REQUESTS)))
        answers = b"".join(response(number + 1) for number in range(REQUESTS))
        assert await received(client, len(answers)) == answers
        nursery.cancel_scope.cancel()
    assert answered_at[-1] - answered_at[0] >= REQUESTS - 2  # the tasks of one turn run in any order
