"""DeleteRecords where the tier is our own: what upstream accepted is true of the tier when the client hears of it."""

import pytest
import trio

from protocol.client.errors import UpstreamConnectionError
from protocol.wire.errors import ErrorCode
from standalone.serving.delete_records import COMMIT_S_MAX
from tests.support.offsets_world import OffsetsWorld
from tests.support.segments import topic_partition, uuid_of
from tests.support.tier_world import NODE_ID

pytestmark = pytest.mark.autojump

ORDERS = topic_partition("orders", 0)
TIMED_OUT = (ErrorCode.REQUEST_TIMED_OUT, -1)


@pytest.fixture
def world(nursery: trio.Nursery) -> OffsetsWorld:
    world = OffsetsWorld(nursery, owns_tier=True)
    world.add_own()
    return world


async def delete(world: OffsetsWorld, *offsets: int, version: int = 2, timeout_ms: int = 0) -> list[tuple[int, int]]:
    """Return for each partition of orders: error code and low watermark."""
    deletions = [("orders", number, offset) for number, offset in enumerate(offsets)]
    answers = await world.delete(deletions, version=version, timeout_ms=timeout_ms)
    assert answers is not None
    return [(each.error_code, each.low_watermark) for each in answers]


async def test_below_the_local_log_it_is_the_tiers(world: OffsetsWorld) -> None:
    for version in (0, 1, 2):
        start = 300 + version
        assert await delete(world, start, version=version) == [(0, start)], f"version {version}"
        assert world.log_starts.raised == {ORDERS: start}, f"version {version}"
        assert await delete(world, 200, version=version) == [(0, start)], "a log start never goes back"
    assert world.log(ORDERS).local_log_start_offset == 1000


async def test_above_it_both_begin_there(world: OffsetsWorld) -> None:
    for offset, low_watermark in ((1000, 1000), (1200, 1200), (-1, 1500)):
        assert await delete(world, offset) == [(0, low_watermark)]
        assert world.log_starts.get(ORDERS) == world.log(ORDERS).local_log_start_offset == low_watermark


async def test_what_upstream_refuses_moves_nothing(world: OffsetsWorld) -> None:
    world.add_own("orders", 1)
    for code in (1, 3, 6, 29):
        world.log(ORDERS).error_code = code
        assert await delete(world, 300, 400) == [(code, -1), (0, 400)]
        assert world.log_starts.raised == {topic_partition("orders", 1): 400}, f"code {code}"


async def test_what_cannot_be_committed_is_to_be_tried_again(world: OffsetsWorld) -> None:
    world.log_starts.raises = UpstreamConnectionError("the coordinator is down")
    assert await delete(world, 300) == [TIMED_OUT]
    assert world.log_starts.get(ORDERS) == 0
    world.log_starts.raises = None
    assert await delete(world, 300) == [(0, 300)]


async def test_good_probes_are_void_when_it_is_sent_and_when_it_is_answered(
    world: OffsetsWorld, nursery: trio.Nursery
) -> None:
    world.log_starts.delay_s = 1.0
    for asked in range(2):
        nursery.start_soon(delete, world, 300 + asked)
        await trio.sleep(0.5)
        assert world.generation.value == 2 * asked + 1
        await trio.sleep(1.0)
        assert world.generation.value == 2 * asked + 2


async def test_a_commit_is_not_waited_for_for_ever(world: OffsetsWorld) -> None:
    world.log_starts.delay_s = 1000.0
    for timeout_ms, waited_s in ((0, COMMIT_S_MAX), (2000, 2.0), (10**6, COMMIT_S_MAX)):
        started_s = trio.current_time()
        assert await delete(world, 300, timeout_ms=timeout_ms) == [TIMED_OUT]
        assert trio.current_time() - started_s == pytest.approx(waited_s), f"timeout {timeout_ms} ms"


async def test_where_it_cannot_be_told_whose_it_is_it_is_to_be_tried_again(world: OffsetsWorld) -> None:
    world.client_of_ours.ids_failure = UpstreamConnectionError("down")
    assert await delete(world, 300) == [TIMED_OUT]
    world.client_of_ours.ids_failure = None
    world.tail.not_ready.add(ORDERS)
    assert await delete(world, 300) == [TIMED_OUT]
    assert not world.log_starts.raised


async def test_a_topic_that_was_made_anew_is_the_brokers_alone(world: OffsetsWorld) -> None:
    world.client_of_ours.ids["orders"] = uuid_of("another topic")
    assert await delete(world, 300) == [(0, 1000)]
    assert not world.log_starts.raised


async def test_topics_that_were_never_in_the_tier_are_relayed(world: OffsetsWorld) -> None:
    world.add_own("local", segments=())
    assert await world.delete([("local", 0, 300)]) is None
    world.is_catalog_loaded = False
    assert await world.delete([("local", 0, 300)]) is not None
    assert not world.log_starts.raised


async def test_the_next_fetch_asks_where_the_log_starts(world: OffsetsWorld) -> None:
    frontiers = world.frontiers
    await frontiers.refresh(NODE_ID, [ORDERS])
    assert frontiers.get(NODE_ID, ORDERS) is not None
    await delete(world, 300)
    assert frontiers.get(NODE_ID, ORDERS) is None
