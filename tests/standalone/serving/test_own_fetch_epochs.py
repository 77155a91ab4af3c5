"""Leader epochs of a tier of our own (standalone mode): which segments are the leader's, and where a client's log
has parted from the leader's."""

import pytest
import trio

from protocol.client.errors import UpstreamConnectionError
from protocol.fetch.messages import diverging_epoch_tags
from protocol.wire.errors import ErrorCode
from proxy.fetch.fallback import COME_AGAIN
from storage.model import TopicIdPartition
from tests.standalone.serving.test_own_fetches import END, LOCAL_START, OUT_OF_RANGE, World
from tests.support.fake_wire import tier_batch
from tests.support.tier_world import LEADER_EPOCH, NODE_ID, ask, records_of


@pytest.fixture
def world(nursery: trio.Nursery) -> World:
    return World(nursery)


pytestmark = pytest.mark.autojump


async def test_epochs_that_the_broker_forgot_end_where_the_next_begins(world: World) -> None:
    partition = world.add(segments=[])
    world.add_segment(partition, 100, 499, epochs={2: 100, 3: 300})
    world.add_segment(partition, 300, 599, epochs={4: 300})  # epoch 3 was cut at once
    world.add_segment(partition, 600, 1199, epochs={4: 600, LEADER_EPOCH: 1050})
    log = world.log(partition)
    # Below its first epoch a broker answers with the one that was asked for, and its log start.
    log.epoch_ends = {epoch: (epoch, LOCAL_START) for epoch in (2, 3)} | {4: (4, 1050), 5: (5, END)}

    lineage = await world.lineages.get(partition, LEADER_EPOCH)

    assert [(epoch, lineage.end_offset(epoch)) for epoch in lineage.epochs] == [(2, 300), (4, 1050), (5, END)]
    assert await parted_at(world, partition, 2, 300) is None
    assert await parted_at(world, partition, 4, 700) is None


def led_in(world: World) -> TopicIdPartition:
    """Epoch 1 has 100 to 499 and epoch 3 all after it; the broker has forgotten epoch 1, and leads in epoch 5, of which
    there is no record yet."""
    partition = world.add(segments=[])
    world.add_segment(partition, 100, 499, epochs={1: 100})
    world.add_segment(partition, 500, 1199, epochs={3: 500})
    world.log(partition).epoch_ends = {1: (1, LOCAL_START), 3: (3, END), LEADER_EPOCH: (LEADER_EPOCH, END)}
    return partition


@pytest.fixture
def led(world: World) -> TopicIdPartition:
    return led_in(world)


async def parted_at(
    world: World, partition: TopicIdPartition, epoch: int, offset: int
) -> tuple[int, int] | ErrorCode | None:
    """Return where a client that has read up to the offset in the epoch is sent back to; an error; None: it has
    records."""
    response = await world.client().fetch([ask(partition, offset, max_bytes=100, last_fetched_epoch=epoch)])
    (answer,) = response.partitions
    if answer.error_code:
        return ErrorCode(answer.error_code)
    if not answer.has_diverging_epoch:
        assert records_of(response) == [tier_batch(0, offset)]
        return None
    assert not records_of(response)[0]
    (found,) = [told for told in ENDS if answer.tags == diverging_epoch_tags(*told)]
    return found


ENDS = [(epoch, end) for epoch in range(7) for end in (100, 500, 600, LOCAL_START, END)]
PARTED: dict[str, tuple[int, int, tuple[int, int] | ErrorCode | None]] = {
    "forgotten by the broker": (1, 500, None),
    "beyond its end": (1, 501, (1, 500)),
    "known to both": (3, 700, None),
    "unknown, between two that the tier has": (2, 400, (1, 500)),
    "unknown, between two that the broker has": (4, 700, (3, END)),
    "the current one, without records": (5, 700, None),
    "yet to come": (6, 700, OUT_OF_RANGE),
    "below the first, at its beginning": (0, 100, None),
    "below the first": (0, 300, (0, 100)),
}


async def test_a_client_is_told_where_its_log_has_parted_as_by_a_broker_that_kept_all(nursery: trio.Nursery) -> None:
    """By LeaderEpochFileCache.endOffsetFor and Partition.readRecords."""
    for what, (epoch, offset, where) in PARTED.items():
        world = World(nursery)
        assert await parted_at(world, led_in(world), epoch, offset) == where, what
        assert not world.asked_below(), what


async def test_below_the_log_start_no_epoch_is_known(world: World, led: TopicIdPartition) -> None:
    world.log_starts.raised[led] = 600

    assert await parted_at(world, led, 1, 600) is None
    assert await parted_at(world, led, 1, 700) == (1, 600)
    assert await parted_at(world, led, 2, 700) == (2, 600)


async def test_the_current_epoch_is_known_to_a_broker_that_has_deleted_all(world: World, led: TopicIdPartition) -> None:
    world.drop(led, END)
    assert await parted_at(world, led, LEADER_EPOCH, 700) is None


async def test_nobody_is_sent_back_by_where_the_log_ended_before(world: World) -> None:
    """The broker has written and deleted more since the lineage was built."""
    partition = world.add()
    log = world.log(partition)
    log.epoch_ends = {LEADER_EPOCH: (LEADER_EPOCH, END)}
    assert await parted_at(world, partition, LEADER_EPOCH, 700) is None

    log.epoch_ends = {LEADER_EPOCH: (LEADER_EPOCH, 2000)}
    log.high_watermark = 2000
    world.add_segment(partition, 1200, 1899)
    world.drop(partition, 1900)
    await world.frontiers.refresh(NODE_ID, [partition])

    assert await parted_at(world, partition, LEADER_EPOCH, 1800) is None


async def test_what_cannot_be_asked_comes_again(world: World, led: TopicIdPartition) -> None:
    assert await parted_at(world, led, 1, 300) is None
    world.client_of_ours.failure = UpstreamConnectionError("gone")

    assert await parted_at(world, led, 2, 300) == COME_AGAIN
    world.lineages.forget(led)
    assert await parted_at(world, led, 1, 300) == COME_AGAIN
    assert not world.asked_below()
