"""Who may hold how much, and who comes next."""

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from storage.cache.byte_budget import ByteBudget


class Line:
    """Tasks that want room; `admitted`: who has got it, in that order."""

    def __init__(self, budget: ByteBudget, nursery: trio.Nursery) -> None:
        self.budget = budget
        self.nursery = nursery
        self.admitted = list[str]()
        self.scopes = dict[str, trio.CancelScope]()

    async def ask(self, *names: str, size_bytes: int = 100) -> None:
        """One after the other. A name is its owner's and a number."""
        for name in names:
            self.nursery.start_soon(self._wait, name, size_bytes)
            await wait_all_tasks_blocked()

    async def release(self, size_bytes: int = 100) -> None:
        self.budget.release(size_bytes)
        await wait_all_tasks_blocked()

    async def release_all(self) -> None:
        """One after the other."""
        while self.budget.held:
            await self.release()

    async def _wait(self, name: str, size_bytes: int) -> None:
        with trio.CancelScope() as self.scopes[name]:
            await self.budget.acquire(size_bytes, name.rstrip("0123456789"))
            self.admitted.append(name)


@pytest.fixture
def budget() -> ByteBudget:
    return ByteBudget(100)


@pytest.fixture
def line(budget: ByteBudget, nursery: trio.Nursery) -> Line:
    return Line(budget, nursery)


async def test_what_fits_is_held_at_once_and_every_change_is_told() -> None:
    told = list[int]()
    budget = ByteBudget(100, told.append)
    await budget.acquire(60)
    assert budget.try_acquire(40)
    assert (budget.held, budget.room) == (100, 0)
    assert not budget.try_acquire(1)
    assert budget.try_acquire(0)
    budget.release(30)
    assert (budget.held, budget.room) == (70, 30)
    assert [*dict.fromkeys(told)] == [60, 100, 70]


async def test_who_came_first_is_let_in_first(budget: ByteBudget, line: Line) -> None:
    assert budget.try_acquire(90)
    for size_bytes in (50, 1, 60):
        await line.ask(f"who asks for {size_bytes}", size_bytes=size_bytes)
    assert not budget.try_acquire(5), "nobody overtakes the line"
    assert budget.room == 0
    await line.release(30)
    assert (line.admitted, budget.held) == ([], 60)
    await line.release(20)
    assert (len(line.admitted), budget.held) == (2, 91)
    await line.release(91)
    assert (len(line.admitted), budget.held) == (3, 60)


async def test_owners_take_turns(budget: ByteBudget, line: Line) -> None:
    """Failed before: an owner that asked a thousand times at once kept everybody waiting for all of it."""
    assert budget.try_acquire(100)
    await line.ask("many0", "many1", "many2", "many3", "few0", "few1")
    await line.release_all()
    assert line.admitted == ["many0", "few0", "many1", "few1", "many2", "many3"]


async def test_who_asks_for_little_does_not_wait_for_all_who_ask_for_much(budget: ByteBudget, line: Line) -> None:
    """Failed before: a consumer of 1 MiB waited behind two hundred that wanted 5, and a large one may not starve."""
    assert budget.try_acquire(100)
    for owner in "wxyz":
        await line.ask(f"much {owner}")
    await line.release(budget.held)
    for owner in "abcdefgh":
        await line.ask(f"little {owner}", size_bytes=40)
        await line.release(budget.held)
    # The clock is at 25 first, and goes on by 10 with each of the little ones: the fifth is behind those of 100.
    little = [f"little {owner}" for owner in "abcd"]
    assert line.admitted[:8] == ["much w", *little, "much x", "much y", "much z"]
    while budget.is_short:
        await line.release(budget.held)
    assert len(line.admitted) == 12


async def test_who_takes_at_once_waits_for_one_of_the_others_at_most(budget: ByteBudget, line: Line) -> None:
    """Failed before: a consumer that reads waited behind two hundred that did not."""
    assert budget.try_acquire(100)
    budget.prefer("c", is_preferred=True)
    budget.prefer("c", is_preferred=False)
    await line.ask("w", "x", "y", "z", "c")
    for owner in ("a", "b"):
        budget.prefer(owner, is_preferred=True)
        await line.ask(owner)
    await line.release_all()
    assert line.admitted == ["a", "w", "b", "x", "y", "z", "c"]
    assert not budget.is_short


async def test_more_than_the_whole_budget_goes_alone_or_beside_a_little(nursery: trio.Nursery) -> None:
    """Where something small is held all the time it never would otherwise."""
    for little_bytes in (0, 10):
        budget = ByteBudget(100, little_bytes=little_bytes)
        budget.overdraw(little_bytes + 1)
        nursery.start_soon(budget.acquire, 500)
        await wait_all_tasks_blocked()
        assert (budget.held, budget.is_short) == (little_bytes + 1, True)
        budget.release(1)
        assert (budget.held, budget.is_short) == (500 + little_bytes, False)
        assert not budget.try_acquire(1)


async def test_room_that_nobody_waits_for_is_announced(budget: ByteBudget, nursery: trio.Nursery) -> None:
    announced = list[int]()
    budget.when_room(lambda: announced.append(budget.held))
    assert budget.try_acquire(100)
    nursery.start_soon(budget.acquire, 50)
    await wait_all_tasks_blocked()
    budget.release(10)
    assert announced == []
    budget.release(50)
    assert announced == [90]


STEPS = st.tuples(st.sampled_from(["ask", "ask", "give back", "give up"]), st.integers(0, 130), st.sampled_from("abc"))


@given(st.lists(STEPS, max_size=30))
async def test_no_more_is_held_than_the_budget_or_one(steps: list[tuple[str, int, str]]) -> None:
    held = list[int]()
    scopes = dict[int, trio.CancelScope]()
    budget = ByteBudget(100, lambda _: None)

    async def ask(number: int, size_bytes: int, owner: str) -> None:
        with trio.CancelScope() as scopes[number]:
            await budget.acquire(size_bytes, owner)
            held.append(size_bytes)
        del scopes[number]

    async with trio.open_nursery() as askers:
        for number, (what, size_bytes, owner) in enumerate(steps):
            if what == "give back" and held:
                budget.release(held.pop())
            elif what == "give up" and scopes:
                [*scopes.values()][size_bytes % len(scopes)].cancel()
            elif what == "ask":
                askers.start_soon(ask, number, size_bytes, owner)
            await wait_all_tasks_blocked()
            assert budget.held == sum(held)
            assert budget.held <= 100 or sorted(held)[:-1] == [0] * (len(held) - 1)
        while held:
            budget.release(held.pop())
            await wait_all_tasks_blocked()
        assert budget.held == 0
        assert not scopes


async def test_who_is_admitted_while_it_is_cancelled_holds_nothing(budget: ByteBudget, nursery: trio.Nursery) -> None:
    assert budget.try_acquire(100)
    with trio.CancelScope() as scope:

        async def cancel_and_make_room() -> None:
            scope.cancel()  # reaches the waiter at its next turn; until then it still stands in line
            budget.release(100)

        nursery.start_soon(cancel_and_make_room)
        await budget.acquire(60)
    assert scope.cancelled_caught
    assert (budget.held, budget.room) == (0, 100)
