"""Leader epochs of a tier of our own (standalone mode): which segments are the leader's, and where a client's log
has parted from the leader's."""

import pytest
import trio

from protocol.client.errors import UpstreamConnectionError
from protocol.fetch.messages import diverging_epoch_tags
from protocol.wire.errors import ErrorCode
from proxy.fetch.fallback import COME_AGAIN
from storage.model import TopicIdPartition
from tests.support.fake_wire import tier_batch
from tests.support.tier_world import LEADER_EPOCH, NODE_ID, TierWorld, ask, records_of

pytestmark = pytest.mark.autojump

LOCAL_START = 1000
END = 1500
OUT_OF_RANGE = ErrorCode.OFFSET_OUT_OF_RANGE


class World(TierWorld):
    """`orders` has its tier from 100 to 1199, and the broker what is from 1000 to 1500."""

    def __init__(self, nursery: trio.Nursery) -> None:
        super().__init__(nursery, owns_tier=True)

    def add(self, *segments: tuple[int, int]) -> TopicIdPartition:
        return self.add_partition(segments=segments, log_start_offset=LOCAL_START, high_watermark=END)

    def drop(self, partition: TopicIdPartition, local_start: int) -> None:
        """The broker deletes what is below."""
        log = self.log(partition)
        log.log_start_offset = log.local_log_start_offset = local_start

    def asked_below(self) -> list[int]:
        """What the broker was asked for below its log start."""
        offsets = (asked.fetch_offset for request in self.broker.fetches for asked in request.partitions)
        return [offset for offset in offsets if offset < LOCAL_START]


@pytest.fixture
def world(nursery: trio.Nursery) -> World:
    return World(nursery)


async def test_epochs_that_the_broker_forgot_end_where_the_next_begins(world: World) -> None:
    partition = world.add()
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


@pytest.fixture
def led(world: World) -> TopicIdPartition:
    """Epoch 1 has 100 to 499 and epoch 3 all after it; the broker has forgotten epoch 1, and leads in epoch 5, of which
    there is no record yet."""
    partition = world.add()
    world.add_segment(partition, 100, 499, epochs={1: 100})
    world.add_segment(partition, 500, 1199, epochs={3: 500})
    world.log(partition).epoch_ends = {1: (1, LOCAL_START), 3: (3, END), LEADER_EPOCH: (LEADER_EPOCH, END)}
    return partition


async def parted_at(
    world: World, partition: TopicIdPartition, epoch: int, offset: int
) -> tuple[int, int] | ErrorCode | None:
    """Where a client that has read up to the offset in the epoch is sent back to; an error; None: it has records."""
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


@pytest.mark.parametrize(
    ("epoch", "offset", "where"),
    [
        pytest.param(1, 500, None, id="forgotten by the broker"),
        pytest.param(1, 501, (1, 500), id="beyond its end"),
        pytest.param(3, 700, None, id="known to both"),
        pytest.param(2, 400, (1, 500), id="unknown, between two that the tier has"),
        pytest.param(4, 700, (3, END), id="unknown, between two that the broker has"),
        pytest.param(5, 700, None, id="the current one, without records"),
        pytest.param(6, 700, OUT_OF_RANGE, id="yet to come"),
        pytest.param(0, 100, None, id="below the first, at its beginning"),
        pytest.param(0, 300, (0, 100), id="below the first"),
    ],
)
async def test_a_client_is_told_where_its_log_has_parted_as_by_a_broker_that_kept_all(
    world: World, led: TopicIdPartition, epoch: int, offset: int, where: tuple[int, int] | ErrorCode | None
) -> None:
    """By LeaderEpochFileCache.endOffsetFor and Partition.readRecords."""
    assert await parted_at(world, led, epoch, offset) == where
    assert not world.asked_below()


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
    partition = world.add((100, 499), (500, 1199))
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
