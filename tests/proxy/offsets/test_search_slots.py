"""Who gets a slot, and who waits."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from proxy.offsets.search_slots import SearchSlots


class Searches:
    """Searches that go on until a test ends them."""

    def __init__(self, slots: SearchSlots, nursery: trio.Nursery) -> None:
        self.running: list[str] = []
        self._slots = slots
        self._nursery = nursery
        self._scopes: dict[str, list[trio.CancelScope]] = {}

    async def start(self, owner: str, count: int) -> None:
        for _ in range(count):
            self._nursery.start_soon(self._run, owner)
        await wait_all_tasks_blocked()

    async def end(self, owner: str, count: int = 1) -> None:
        """Running or waiting, the first ones first."""
        for _ in range(count):
            self._scopes[owner].pop(0).cancel()
        await wait_all_tasks_blocked()

    def count(self) -> dict[str, int]:
        return {owner: self.running.count(owner) for owner in sorted(set(self.running))}

    async def _run(self, owner: str) -> None:
        with trio.CancelScope() as scope:
            self._scopes.setdefault(owner, []).append(scope)
            async with self._slots.slot(owner):
                self.running.append(owner)
                try:
                    await trio.sleep_forever()
                finally:
                    self.running.remove(owner)


@pytest.fixture
def searches(nursery: trio.Nursery) -> Searches:
    return Searches(SearchSlots(16, 4), nursery)


async def test_one_connection_alone_leaves_a_share_free(searches: Searches) -> None:
    """Failed before: it had all sixteen, and everyone else waited for its slowest."""
    await searches.start("greedy", 40)
    assert searches.count() == {"greedy": 12}
    await searches.start("modest", 4)
    assert searches.count() == {"greedy": 12, "modest": 4}


async def test_what_is_given_back_goes_to_those_below_their_share(searches: Searches) -> None:
    await searches.start("greedy", 40)
    await searches.start("modest", 4)
    await searches.start("third", 3)
    await searches.end("greedy", 2)
    assert searches.count() == {"greedy": 10, "modest": 4, "third": 2}
    await searches.end("greedy", 3)
    assert searches.count() == {"greedy": 7, "modest": 4, "third": 3}
    await searches.end("modest", 4)
    await searches.end("third", 3)
    assert searches.count() == {"greedy": 12}


async def test_those_who_wait_have_their_turn_in_order(searches: Searches) -> None:
    for owner in "abcd":
        await searches.start(owner, 4)
    await searches.start("late", 1)
    await searches.start("later", 1)
    await searches.end("a")
    assert searches.count() == {"a": 3, "b": 4, "c": 4, "d": 4, "late": 1}
    await searches.end("b")
    assert searches.count()["later"] == 1


async def test_who_leaves_while_waiting_holds_nothing(searches: Searches) -> None:
    for owner in "abcd":
        await searches.start(owner, 4)
    await searches.start("gone", 1)
    await searches.end("gone")
    await searches.end("a", 4)
    await searches.start("next", 4)
    assert searches.count() == {"b": 4, "c": 4, "d": 4, "next": 4}
