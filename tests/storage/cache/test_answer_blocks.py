"""What answers hold until they are sent: each block once, given back once, and nobody waits while holding."""

from collections import Counter

import pytest
import trio
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule
from trio.testing import wait_all_tasks_blocked

from storage.cache.byte_budget import LARGE_BYTES, ByteBudget
from storage.cache.held_blocks import AnswerBlocks, Room
from storage.log.block import Block

BUDGET_BYTES = 1000


def block(size_bytes: int = 100) -> Block:
    return Block(memoryview(bytes(size_bytes)))


@pytest.fixture
def budget() -> ByteBudget:
    return ByteBudget(BUDGET_BYTES)


@pytest.fixture
def answers(budget: ByteBudget) -> AnswerBlocks:
    return AnswerBlocks(budget)


async def holding(answers: AnswerBlocks, *blocks: Block, reserved_bytes: int = 500) -> Room:
    room = answers.room()
    await room.reserve(reserved_bytes)
    room.keep(blocks)
    return room


async def test_more_is_reserved_on_top_and_all_of_it_given_back_once(answers: AnswerBlocks, budget: ByteBudget) -> None:
    room = answers.room()
    room.release()
    with trio.CancelScope() as scope:
        scope.cancel()  # room that is there is reserved without a wait
        for size_bytes, held_bytes in ((300, 300), (200, 300), (300, 300), (450, 450)):
            await room.reserve(size_bytes)
            assert budget.held == held_bytes
    assert not scope.cancelled_caught
    room.release()
    room.release()
    assert budget.held == 0
    room = answers.room()
    await room.reserve(5 * BUDGET_BYTES)
    assert budget.held == 5 * BUDGET_BYTES, "a read larger than the budget goes alone"
    room.release()
    assert budget.held == 0


async def test_who_waits_for_room_holds_none(answers: AnswerBlocks, budget: ByteBudget, nursery: trio.Nursery) -> None:
    sent = await holding(answers, block(400))
    waiting = answers.room()
    await waiting.reserve(300)
    nursery.start_soon(waiting.reserve, 700)
    await wait_all_tasks_blocked()
    assert budget.held == 400
    sent.release()
    await wait_all_tasks_blocked()
    assert budget.held == 700


async def test_one_large_batch_is_collected_at_a_time(nursery: trio.Nursery) -> None:
    large_bytes, beside_bytes = LARGE_BYTES + 1, 100
    budget = ByteBudget(10 * large_bytes)
    answers = AnswerBlocks(budget)
    first, second = answers.room(), answers.room()
    await first.reserve(large_bytes)
    nursery.start_soon(second.reserve, large_bytes)
    await wait_all_tasks_blocked()
    assert [first.is_waiting, second.is_waiting] == [False, True]
    beside = answers.room()
    nursery.start_soon(beside.reserve, beside_bytes)
    first.keep([block()])
    await wait_all_tasks_blocked()
    assert [first.is_waiting, second.is_waiting] == [False, False]
    assert budget.held == 100 + budget.charged(large_bytes) + beside_bytes
    for room in (first, second, beside):
        room.release()
    assert budget.held == 0


async def test_giving_up_leaves_nothing_held(answers: AnswerBlocks, budget: ByteBudget, nursery: trio.Nursery) -> None:
    sent = await holding(answers, block(900), reserved_bytes=900)
    room = answers.room()
    with trio.CancelScope() as scope:
        nursery.start_soon(cancel_when_idle, scope)
        await room.reserve(200)
    room.release()
    assert budget.held == 900
    sent.release()
    assert budget.held == 0


async def cancel_when_idle(scope: trio.CancelScope) -> None:
    await wait_all_tasks_blocked()
    scope.cancel()


class AnswerBlocksMachine(RuleBasedStateMachine):
    """Any answers over shared blocks: the account is the sum of the blocks that one of them holds."""

    rooms = Bundle("rooms")

    @initialize(sizes=st.lists(st.integers(0, 50), min_size=1, max_size=6))
    def begin(self, sizes: list[int]) -> None:
        self.budget = ByteBudget(10**9)
        self.answers = AnswerBlocks(self.budget)
        self.blocks = [block(size_bytes) for size_bytes in sizes]
        self.held: Counter[int] = Counter()
        self.kept: dict[Room, list[int]] = {}

    @rule(target=rooms, chosen=st.sets(st.integers(0, 5)), more_bytes=st.integers(0, 100))
    def answer(self, chosen: set[int], more_bytes: int) -> Room:
        numbers = [number for number in sorted(chosen) if number < len(self.blocks)]
        room = self.answers.room()
        reserved_bytes = sum(len(self.blocks[number].data) for number in numbers) + more_bytes
        with pytest.raises(StopIteration):  # there is room, so it does not wait
            room.reserve(reserved_bytes).send(None)
        room.keep([self.blocks[number] for number in numbers])
        self.kept[room] = numbers
        self.held.update(numbers)
        return room

    @rule(room=consumes(rooms), times=st.integers(1, 2))
    def send(self, room: Room, times: int) -> None:
        for _ in range(times):
            room.release()
        self.held.subtract(self.kept.pop(room))

    @invariant()
    def the_account_is_right(self) -> None:
        assert self.budget.held == sum(len(self.blocks[number].data) for number in self.held if self.held[number])


TestAnswerBlocks = AnswerBlocksMachine.TestCase
