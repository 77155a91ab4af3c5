"""Look-ups by time: which questions are planned, how many searches run at once, names and vanished segments.

What a whole request makes of it is in test_list_offsets_service.py.
"""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from protocol.list_offsets import ListOffsetsPartition
from proxy.connection.slices import ITEMS_AT_ONCE
from proxy.offsets.timestamp_lookup import SEARCHES_MAX, TierQuestion
from storage.errors import RemoteResourceNotFoundError
from storage.reading.timestamp_search import FoundTimestamp
from tests.support.metadata_records import forget
from tests.support.offsets_world import OffsetsWorld
from tests.support.stretches import Stretches
from tests.support.tier_world import NODE_ID

FOUND = FoundTimestamp(4000, 17, 3)


@pytest.fixture
def world(nursery: trio.Nursery) -> OffsetsWorld:
    return OffsetsWorld(nursery)


def ask(number: int, timestamp_ms: int, topic: str = "orders") -> ListOffsetsPartition:
    return ListOffsetsPartition(topic, number, -1, timestamp_ms)


async def planned(world: OffsetsWorld, *asked: ListOffsetsPartition) -> dict[tuple[str, int], TierQuestion]:
    return await world.lookup.plan(asked, NODE_ID)


async def test_questions_are_planned_by_what_the_broker_says_now(world: OffsetsWorld) -> None:
    first, second = world.add("orders", 0), world.add("orders", 1, log_start_offset=600)
    world.add("orders", 2, segments=())
    questions = await planned(world, ask(0, 4000), ask(1, 4000), ask(2, 4000), ask(3, 4000), ask(0, -1, "other"))
    assert {
        key: (each.partition, each.segment.start_offset, each.log_start_offset) for key, each in questions.items()
    } == {("orders", 0): (first, 0, 0), ("orders", 1): (second, 500, 600)}
    assert world.client_of_ours.partitions_asked == [[("orders", 0), ("orders", 1)]]


async def test_many_questions_keep_the_loop_for_a_slice(world: OffsetsWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Failed before: one stretch of all of them."""
    partition = world.add()
    count, stretches = 3 * ITEMS_AT_ONCE, Stretches()
    tier = world.tier
    monkeypatch.setattr(tier, "partition", stretches(tier.partition))
    trio.lowlevel.add_instrument(stretches)
    questions = await planned(world, *(ask(number, 4000) for number in range(count)))
    trio.lowlevel.remove_instrument(stretches)
    assert [each.partition for each in questions.values()] == [partition]
    assert stretches.calls == count
    assert stretches.longest <= ITEMS_AT_ONCE


@pytest.mark.autojump
async def test_so_many_searches_run_at_once_and_no_more(world: OffsetsWorld, nursery: trio.Nursery) -> None:
    partition = world.add()
    world.search.delays_s[partition] = 1.0
    (question,) = (await planned(world, ask(0, 4000))).values()
    for asker in range(SEARCHES_MAX + 5):
        nursery.start_soon(world.lookup.answer, question, asker)
    await wait_all_tasks_blocked()
    assert len(world.search.searched) == SEARCHES_MAX
    await trio.sleep(1.5)
    assert len(world.search.searched) == SEARCHES_MAX + 5


@pytest.mark.autojump
async def test_one_connection_leaves_room_for_others(world: OffsetsWorld, nursery: trio.Nursery) -> None:
    """Failed before: sixteen slow look-ups of one connection kept all others waiting."""
    partition = world.add()
    world.search.delays_s[partition] = 30.0
    (question,) = (await planned(world, ask(0, 4000))).values()
    for _ in range(40):
        nursery.start_soon(world.lookup.answer, question, "greedy")
    await wait_all_tasks_blocked()
    world.search.delays_s[partition] = 1.0
    world.search.results[partition] = FOUND
    started_s = trio.current_time()
    assert await world.lookup.answer(question, "modest") == FOUND
    assert trio.current_time() - started_s == 1.0


async def test_an_object_that_is_missing_while_its_segment_is_there_is_an_error(world: OffsetsWorld) -> None:
    partition = world.add()
    world.search.results[partition] = RemoteResourceNotFoundError("no log")
    (question,) = (await planned(world, ask(0, 4000))).values()
    with pytest.raises(RemoteResourceNotFoundError):
        await world.lookup.answer(question)
    forget(world.catalog, partition.topic_id, partition.partition)
    assert await world.lookup.answer(question) is None
    world.search.results[partition] = FOUND
    assert await world.lookup.answer(question) == FOUND
