"""Connecting to one of several addresses: who is waited for, who wins, and that nothing is left open."""

from collections.abc import Awaitable, Callable, Sequence

import pytest
import trio

from protocol.client.errors import UpstreamConnectionError, UpstreamError
from proxy.upstream.first_address import ATTEMPTS_AT_ONCE_MAX, NEXT_ATTEMPT_S, race

pytestmark = pytest.mark.autojump


class Race:
    """Attempts that take so many seconds and then succeed, or fail where the number is negative."""

    def __init__(self, *seconds: float) -> None:
        self.began_at_s: dict[int, float] = {}
        self.ended_at_s: dict[int, float] = {}
        self.discarded: list[str] = []
        self.failures: dict[int, UpstreamError] = {}
        self.attempts: Sequence[Callable[[], Awaitable[str]]] = [
            self._attempt(number, each) for number, each in enumerate(seconds)
        ]

    async def run(self) -> tuple[int, str] | None:
        return await race(self.attempts, self.failures, discard=self.discarded.append)

    def _attempt(self, number: int, seconds: float) -> Callable[[], Awaitable[str]]:
        async def attempt() -> str:
            self.began_at_s[number] = trio.current_time()
            try:
                await trio.sleep(abs(seconds))
            finally:
                self.ended_at_s[number] = trio.current_time()
            if seconds < 0:
                raise UpstreamConnectionError(f"{number} refused")
            return f"connection {number}"

        return attempt


async def test_after_a_failure_the_next_begins_at_once() -> None:
    world = Race(-0.1, 0.1)
    assert await world.run() == (1, "connection 1")
    assert trio.current_time() == pytest.approx(0.2)
    assert list(world.failures) == [0]


async def test_one_that_does_not_even_refuse_is_overtaken() -> None:
    world = Race(1000, 1000, 0.1)
    assert await world.run() == (2, "connection 2")
    assert trio.current_time() == pytest.approx(2 * NEXT_ATTEMPT_S + 0.1)
    assert set(world.ended_at_s.values()) == {trio.current_time()}
    assert world.failures == {}


async def test_when_all_fail_each_is_told() -> None:
    world = Race(-1, -0.1, -5)
    assert await world.run() is None
    assert [str(world.failures[number]) for number in range(3)] == [f"{number} refused" for number in range(3)]
    assert await Race().run() is None


async def test_so_many_at_once_and_no_more() -> None:
    world = Race(*[-100] * (2 * ATTEMPTS_AT_ONCE_MAX), 0)
    assert await world.run() == (2 * ATTEMPTS_AT_ONCE_MAX, "connection 16")
    began = sorted(world.began_at_s.values())
    assert began[ATTEMPTS_AT_ONCE_MAX - 1] < 100 <= began[ATTEMPTS_AT_ONCE_MAX]


async def test_what_comes_second_in_the_same_moment_is_closed() -> None:
    ready = trio.Event()
    discarded: list[str] = []

    def attempt(name: str) -> Callable[[], Awaitable[str]]:
        async def connect() -> str:
            with trio.CancelScope(shield=True):
                await ready.wait()
            return name

        return connect

    async with trio.open_nursery() as nursery:

        async def run() -> None:
            won = await race([attempt("a"), attempt("b")], {}, discard=discarded.append)
            assert won is not None
            assert {won[1], *discarded} == {"a", "b"}

        nursery.start_soon(run)
        await trio.sleep(1)
        ready.set()
    assert len(discarded) == 1


async def test_a_caller_that_goes_leaves_nothing_open() -> None:
    discarded: list[str] = []

    async def connect() -> str:
        with trio.CancelScope(shield=True):
            await trio.sleep(1)
        return "connection"

    with trio.move_on_after(0.1):
        await race([connect], {}, discard=discarded.append)
    assert discarded == ["connection"]
