"""Gathered questions: what shares a request, who is woken, whose a failure is."""

from collections.abc import Mapping, Sequence

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from proxy.upstream.gathered import Gathered
from tests.support.outcomes import outcomes

pytestmark = pytest.mark.autojump


class Peer:
    """Answers each word with its length, after `latency_s`; `asked` are its requests."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.asked: list[list[str]] = []
        self.latency_s = 1.0
        self.failure: Exception | None = None
        self.questions: Gathered[str, int] = Gathered(nursery, self.ask, name="lengths")

    async def ask(self, words: Sequence[str]) -> Mapping[str, int]:
        self.asked.append(sorted(words))
        await trio.sleep(self.latency_s)
        if self.failure is not None:
            raise self.failure
        return {word: len(word) for word in words}


@pytest.fixture
def peer(nursery: trio.Nursery) -> Peer:
    return Peer(nursery)


async def test_questions_of_one_moment_and_those_meanwhile_are_a_request_each(peer: Peer) -> None:
    async with outcomes() as got:
        for word in ("a", "bb", "a"):
            got.start(peer.questions.get, word)
        await trio.sleep(0.5)
        for word in ("ccc", "a"):  # "a" again: the answer under way may be older than this question
            got.start(peer.questions.get, word)
        await wait_all_tasks_blocked()
        assert len(peer.questions) == 2
    assert peer.asked == [["a", "bb"], ["a", "ccc"]]
    assert sorted(got.returned) == [1, 1, 1, 2, 3]
    assert trio.current_time() == 2.0
    assert await peer.questions.get("dddd") == 4
    assert trio.current_time() == 3.0


async def test_a_request_goes_on_when_those_who_asked_have_left(peer: Peer) -> None:
    with trio.move_on_after(0.1):
        await peer.questions.get("a")
    asked = peer.questions.add(["bb"])
    await asked.done.wait()
    assert trio.current_time() == 2.0
    assert (asked.answers, asked.error) == ({"bb": 2}, None)


async def test_a_failure_is_of_those_who_asked_in_that_request(peer: Peer) -> None:
    peer.failure = OSError("down")
    async with outcomes() as got:
        for word in ("a", "bb"):
            got.start(peer.questions.get, word)
    assert [(type(error), str(error)) for error in got.raised] == [(OSError, "down")] * 2
    peer.failure = None
    assert await peer.questions.get("a") == 1


async def test_the_end_of_the_application_leaves_nobody_waiting() -> None:
    async with outcomes() as got, trio.open_nursery() as application:
        peer = Peer(application)
        for word in ("under way", "next"):
            got.start(peer.questions.get, word)
            await wait_all_tasks_blocked()
        application.cancel_scope.cancel()
    assert [type(error) for error in got.raised] == [trio.ClosedResourceError] * 2
    assert trio.current_time() == 0.0
    with pytest.raises(RuntimeError):
        peer.questions.add(["too late"])
