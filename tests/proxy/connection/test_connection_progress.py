"""What a client connection shows of itself to those who watch slots: requests, parts of answers, answers due."""

from collections.abc import Sequence

import trio
import trio.testing

from proxy.connection.request_handlers import UpstreamWire
from proxy.upstream.transport import Bytes
from tests.proxy.connection.test_connection import fetch
from tests.support.memory_transport import HEARTBEAT, conversation, request, response


async def test_it_shows_what_was_asked_and_answered_and_whether_an_answer_is_due() -> None:
    async with conversation() as talk:
        shown = talk.connection
        assert (shown.asked, shown.answered, shown.has_unanswered) == (0, 0, False)
        await talk.client.send(request(HEARTBEAT, 4, 1), request(HEARTBEAT, 4, 2)[:-1])
        await talk.upstream.expect(request(HEARTBEAT, 4, 1))
        await trio.testing.wait_all_tasks_blocked()
        assert (shown.asked, shown.answered, shown.has_unanswered) == (2, 0, True)
        long_answer = response(1, b"x" * 5000)
        await talk.upstream.send(long_answer[:3000])
        await talk.client.receive_exactly(3000)
        part = shown.answered
        assert (part > 0, shown.has_unanswered) == (True, True)
        await talk.upstream.send(long_answer[3000:], response(2)[:-1])
        await talk.client.receive_exactly(2000 + len(long_answer) - 5000)
        await trio.testing.wait_all_tasks_blocked()
        assert (shown.answered > part, shown.has_unanswered) == (True, True)


async def test_an_exchange_is_an_answer_that_is_due() -> None:
    asking = trio.Event()

    async def ask(frame: memoryview, connection: UpstreamWire) -> Sequence[Bytes]:
        asking.set()
        return [await (await connection.ask(1, 12, 7, response(7))).frame(), bytes(100_000)]

    async with conversation(handle_fetch=ask, lockstep=True) as talk, trio.open_nursery() as nursery:
        shown = talk.connection
        nursery.start_soon(talk.client.send, fetch(1))
        await asking.wait()
        assert (shown.asked, shown.answered, shown.has_unanswered, shown.is_answering) == (1, 0, True, False)
        await talk.upstream.expect(response(7))
        assert shown.has_unanswered
        await talk.upstream.send(response(7))
        await talk.client.receive_exactly(10)
        assert (shown.answered, shown.has_unanswered, shown.is_answering) == (1, True, True)
        await talk.client.receive_exactly(len(response(7)) + 100_000 - 10)
        await trio.testing.wait_all_tasks_blocked()
        assert (shown.answered, shown.has_unanswered, shown.is_answering) == (2, False, False)
