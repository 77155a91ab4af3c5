"""The tier as exchanges use it: what it holds, what a read counts, which names are asked for."""

import pytest
import trio

from protocol.client.errors import UpstreamConnectionError, UpstreamError
from protocol.fetch.messages import PartitionAnswer
from proxy.fetch.frontiers import Frontier
from proxy.fetch.plan import Share, TierPart
from proxy.fetch.tier import UNKNOWN_NAME_AGE_S_MAX
from storage.errors import CorruptObjectError
from storage.model import TopicIdPartition
from storage.reading.aborted_transactions import TierAborts
from storage.reading.reader import OffsetNotInTierError, TierRecords
from storage.reading.segment_finder import ReachesLocalLogError
from storage.steps import finish
from tests.support.fake_wire import BATCH_BYTES
from tests.support.segments import topic_partition
from tests.support.tier_world import LEADER_EPOCH, TierWorld, ask

pytestmark = pytest.mark.autojump

END = 2000
SHARE = Share(2 * BATCH_BYTES, may_exceed=True)
COUNTER = "kafka_server_brokertopicmetrics_remotefetch{}_total"


async def read(
    world: TierWorld, partition: TopicIdPartition, offset: int, *, ends_below: int | None = None
) -> TierRecords:
    part = part_of(partition, offset, local_start=ends_below or END)
    return await finish(world.tier.read(part, SHARE, part.frontier, committed=ends_below is not None))


def part_of(partition: TopicIdPartition, offset: int, *, local_start: int = END, epoch: int = -1) -> TierPart:
    """One offset, of a client that has read up to there in the epoch."""
    asked = ask(partition, offset, last_fetched_epoch=epoch)
    frontier = Frontier(local_start, END, LEADER_EPOCH, learned_at_s=0.0)
    return TierPart(asked, partition, frontier)


def counted(world: TierWorld, topic: str = "orders") -> tuple[float, float, float]:
    """Requests, bytes and errors, as KIP-405 counts them."""
    requests, size, errors = (
        world.sample(COUNTER.format(what), topic=topic) for what in ("requests", "bytes", "errors")
    )
    return requests, size, errors


async def test_a_partition_is_the_tiers_once_a_finished_segment_of_it_is_read(world: TierWorld) -> None:
    partition = world.add_partition(segments=[])
    assert world.tier.partition(partition.topic_id, 0) is None
    world.add_segment(partition, 0, 99)
    found = world.tier.partition(partition.topic_id, 0)
    assert found == partition
    assert found.topic == "orders"
    world.tail.not_ready = {partition}
    assert world.tier.partition(partition.topic_id, 0) is None
    assert world.tier.partition(partition.topic_id, 1) is None
    assert world.tier.partition(b"", 0) is None


async def test_what_was_copied_counts_from_the_first_offset_on(world: TierWorld) -> None:
    """Failed before for a segment whose last offset is 0."""
    partition = world.add_partition(segments=[(0, 0)])
    assert [world.tier.has_copied(partition, offset) for offset in (0, 1)] == [True, False]
    assert not world.tier.has_copied(topic_partition("other"), 0)


# --- reads ---


async def test_reads_are_counted_with_bytes_and_errors(world: TierWorld, partition: TopicIdPartition) -> None:
    assert (await read(world, partition, 17)).size_bytes == 2 * BATCH_BYTES
    assert counted(world) == (1, 2 * BATCH_BYTES, 0)
    with pytest.raises(OffsetNotInTierError):  # a miss is no error
        await read(world, partition, 5000)
    assert counted(world) == (2, 2 * BATCH_BYTES, 0)
    world.reader.delay_s = 10.0
    with trio.move_on_after(1.0) as scope:  # nor is a read that is given up
        await read(world, partition, 17)
    assert scope.cancelled_caught
    assert counted(world) == (3, 2 * BATCH_BYTES, 0)
    world.reader.failures[partition] = CorruptObjectError("crc")
    with pytest.raises(CorruptObjectError):
        await read(world, partition, 17)
    assert counted(world) == (4, 2 * BATCH_BYTES, 1)
    assert world.sample("kafka_log_remote_remotelogmanager_remotelogreaderfetchrateandtimems_count") == 4


async def test_a_lineage_that_cannot_be_learned_fails_the_read(world: TierWorld, partition: TopicIdPartition) -> None:
    world.client_of_ours.failure = UpstreamConnectionError("down")
    with pytest.raises(UpstreamError):
        await read(world, partition, 17)
    assert counted(world) == (1, 0, 1)


async def test_a_segment_that_reaches_too_far_is_not_read(world: TierWorld, partition: TopicIdPartition) -> None:
    for ends_below in (None, 1000):
        await read(world, partition, 700, ends_below=ends_below)
    with pytest.raises(ReachesLocalLogError, match="offsets 500 to 999"):
        await read(world, partition, 700, ends_below=999)
    await read(world, partition, 499, ends_below=999)
    assert len(world.reader.reads) == 3


async def test_a_committed_read_needs_aborts_up_to_the_local_log(world: TierWorld, partition: TopicIdPartition) -> None:
    for aborts in (
        TierAborts([], 500, is_complete=False, searched_below=1000),
        TierAborts([], 500, is_complete=True, searched_below=500),
    ):
        world.reader.aborts[partition] = aborts
        assert (await read(world, partition, 17, ends_below=1000)).aborts == aborts
        assert (await read(world, partition, 17)).aborts is None
    world.reader.aborts[partition] = TierAborts([], 500, is_complete=False, searched_below=999)
    with pytest.raises(OffsetNotInTierError, match="aborts up to offset 1000"):
        await read(world, partition, 17, ends_below=1000)
    assert counted(world)[2] == 0


async def test_catching_up_has_the_lineage_built_anew(world: TierWorld, partition: TopicIdPartition) -> None:
    await read(world, partition, 17)
    await world.tier.catch_up(partition)
    await read(world, partition, 17)
    assert world.tail.caught_up == [partition]
    assert len(world.client_of_ours.epochs_asked) == 2


async def test_forgetting_a_partition_forgets_frontier_lineage_and_aborted_tail(world: TierWorld) -> None:
    partition = world.add_partition()
    await world.frontiers.refresh(1, [partition])
    await read(world, partition, 17)
    answer = PartitionAnswer("orders", None, 0, 0, 1000, 1000, 0)
    assert world.tier.aborted_tails.learn(1, partition, 1000, LEADER_EPOCH, answer) == ()
    world.tier.forget(1, partition)
    assert world.frontiers.get(1, partition) is None
    assert len(world.tier.aborted_tails) == 0
    await read(world, partition, 17)
    assert len(world.client_of_ours.epochs_asked) == 2


async def test_a_read_on_a_dead_branch_is_a_miss(world: TierWorld) -> None:
    partition = world.add_partition(segments=[])
    world.add_segment(partition, 0, 499, epochs={4: 0})
    world.add_segment(partition, 0, 399, epochs={5: 0})
    records = await read(world, partition, 17)
    assert records.size_bytes == 2 * BATCH_BYTES
    with pytest.raises(OffsetNotInTierError):
        await read(world, partition, 450)


async def test_being_on_the_lineage_is_having_read_no_further_than_the_epoch_went(world: TierWorld) -> None:
    partition = world.add_partition(segments=[(500, 999)])
    world.add_segment(partition, 0, 499, epochs={4: 0})
    world.log(partition).epoch_ends[4] = (4, 500)
    found = [
        await finish(world.tier.owner.judge(part_of(partition, offset, epoch=epoch), world.lineages))
        for epoch, offset in ((4, 500), (4, 501), (5, 501), (3, 0), (9, 0))
    ]
    assert found == [True, False, True, False, False]


# --- names ---


def in_tier(world: TierWorld, *names: str) -> None:
    """Topics that the catalog has and upstream has not told of."""
    for name in names:
        partition = world.add_partition(name)
        world.cluster.forget_topic(partition.topic_id)


async def test_names_are_asked_for_once_each(world: TierWorld, partition: TopicIdPartition) -> None:
    in_tier(world, "other", "gone")
    world.cluster.unlearned = {"other": topic_partition("other").topic_id}
    await world.tier.learn_topic_ids(["orders", "other", "other", "gone"])
    assert world.cluster.learned == [["other", "gone"]]
    assert world.tier.topic_id("other") == topic_partition("other").topic_id
    await world.tier.learn_topic_ids(["orders", "other", "gone"])
    assert len(world.cluster.learned) == 1
    world.tier.forget_topic(partition)
    assert world.tier.topic_id("orders") is None


async def test_a_name_that_upstream_does_not_tell_is_asked_for_again_after_a_while(world: TierWorld) -> None:
    in_tier(world, "gone")
    world.cluster.failure = UpstreamConnectionError("down")
    await world.tier.learn_topic_ids(["gone"])
    await trio.sleep(UNKNOWN_NAME_AGE_S_MAX - 0.1)
    await world.tier.learn_topic_ids(["gone"])
    await trio.sleep(0.1)
    await world.tier.learn_topic_ids(["gone"])
    assert world.cluster.learned == [["gone"], ["gone"]]


async def test_clients_cannot_fill_the_memory_with_names(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.fetch.tier.UNKNOWN_NAMES_MAX", 3)
    world = TierWorld(nursery)
    in_tier(world, "a", "b", "c", "d")
    for names in ("ab", "cd", "ac"):
        await world.tier.learn_topic_ids(names)
    assert world.cluster.learned == [["a", "b"], ["c", "d"], ["a"]]


async def test_names_beyond_those_that_may_wait_are_asked_for_another_time(world: TierWorld) -> None:
    in_tier(world, "a", "b", "c", "d")
    for world.cluster.room, names in ((2, "abc"), (2, "abc"), (0, "d")):
        await world.tier.learn_topic_ids(names)
    assert world.cluster.learned == [["a", "b"], ["c"]]


async def test_names_that_the_tier_cannot_have_are_never_asked_for(world: TierWorld) -> None:
    """Failed before: one Fetch of unknown names had 10,000 of them asked for, at each repetition."""
    in_tier(world, "orders")
    await world.tier.learn_topic_ids(f"made-up-{number}" for number in range(20_000))
    assert world.cluster.learned == []
    await world.tier.learn_topic_ids(["made-up-1", "orders"])
    assert world.cluster.learned == [["orders"]]


async def test_one_request_has_so_many_names_asked_for(world: TierWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.fetch.tier.NAMES_ASKED_MAX", 2)
    in_tier(world, "a", "b", "c")
    for _ in range(2):
        await world.tier.learn_topic_ids("abc")
    assert world.cluster.learned == [["a", "b"], ["c"]]
