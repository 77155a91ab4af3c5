"""The answer to a question of our own: it waits for the frame, and any number may wait for it."""

import trio
import trio.testing

from proxy.connection.request_handlers import PendingAnswer
from tests.support.outcomes import outcomes


async def test_the_frame_is_there_for_all_who_wait_and_for_those_who_come_later() -> None:
    pending = PendingAnswer()
    async with outcomes() as got:
        got.start(pending.frame, times=2)
        await trio.testing.wait_all_tasks_blocked()
        assert got.returned == []
        pending.deliver(memoryview(b"frame"))
    assert [*map(bytes, got.returned), bytes(await pending.frame())] == [b"frame"] * 3


async def test_a_waiter_that_gives_up_leaves_the_answer_to_others() -> None:
    pending = PendingAnswer()
    with trio.CancelScope() as scope:
        scope.cancel()
        await pending.frame()
    pending.deliver(memoryview(b"frame"))

    assert bytes(await pending.frame()) == b"frame"
