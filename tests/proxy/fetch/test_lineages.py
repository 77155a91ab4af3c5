"""Lineages: when one is built again, and how its questions find the leader."""

import pytest
import trio

from protocol.client.cluster_view import PartitionLeader
from protocol.client.errors import UpstreamConnectionError, UpstreamError, UpstreamRefusedError
from protocol.wire.errors import ErrorCode
from storage.model import TopicIdPartition
from tests.support.segments import uuid_of
from tests.support.tier_world import LEADER_EPOCH, TierWorld
from tests.support.virtual_time import for_each_run

pytestmark = pytest.mark.autojump


async def test_a_lineage_is_asked_for_once(world: TierWorld, partition: TopicIdPartition) -> None:
    lineages = [await world.lineages.get(partition, LEADER_EPOCH) for _ in range(3)]
    assert lineages[0] is lineages[1] is lineages[2]
    assert lineages[0].end_offset(LEADER_EPOCH) == 2**62
    assert world.client_of_ours.epochs_asked == [(1, "orders", 0, [LEADER_EPOCH])]


async def test_a_newer_leader_epoch_has_it_built_anew_and_an_older_one_has_not(world: TierWorld) -> None:
    partition = world.add_partition()
    first = await world.lineages.get(partition, LEADER_EPOCH)
    assert await world.lineages.get(partition, LEADER_EPOCH - 1) is first
    second = await world.lineages.get(partition, LEADER_EPOCH + 1)
    assert second is not first
    assert second.leader_epoch == LEADER_EPOCH + 1
    assert await world.lineages.get(partition, LEADER_EPOCH) is second


async def test_an_epoch_new_to_the_catalog_has_it_built_anew(world: TierWorld, partition: TopicIdPartition) -> None:
    await world.lineages.get(partition, LEADER_EPOCH)
    world.add_segment(partition, 1000, 1099, epochs={LEADER_EPOCH: 1000, 6: 1050})
    lineage = await world.lineages.get(partition, LEADER_EPOCH)
    assert world.client_of_ours.epochs_asked[-1][3] == [LEADER_EPOCH, 6]
    assert lineage.end_offset(6) is None


@pytest.fixture
def few_lineages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.fetch.lineages.LINEAGES_MAX", 2)


@pytest.mark.usefixtures("few_lineages")
async def test_the_least_recently_used_one_goes_first(world: TierWorld) -> None:
    partitions = [world.add_partition("orders", number) for number in range(3)]
    for number in (0, 1, 0, 2, 0):
        await world.lineages.get(partitions[number], LEADER_EPOCH)
    assert [asked[2] for asked in world.client_of_ours.epochs_asked] == [0, 1, 2]


async def test_a_leader_that_moved_is_learned_and_asked_again(world: TierWorld, partition: TopicIdPartition) -> None:
    world.brokers[2] = world.broker
    world.client_of_ours.epoch_error_codes = [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    world.cluster.on_learn = lambda: world.set_leader(partition, 2)
    assert (await world.lineages.get(partition, 6)).end_offset(LEADER_EPOCH) == 2**62
    assert [asked[0] for asked in world.client_of_ours.epochs_asked] == [1, 2]
    assert world.cluster.learned == [["orders"]]


@for_each_run("code, asked", [(ErrorCode.NOT_LEADER_OR_FOLLOWER, 2), (ErrorCode.TOPIC_AUTHORIZATION_FAILED, 1)])
async def test_a_second_refusal_is_raised_and_another_code_at_once(
    world: TierWorld, partition: TopicIdPartition, code: ErrorCode, asked: int
) -> None:
    world.client_of_ours.epoch_error_codes = [code] * asked
    with pytest.raises(UpstreamRefusedError, match=f"leader epoch 5 is not told, error code {int(code)}"):
        await world.lineages.get(partition, LEADER_EPOCH)
    assert len(world.client_of_ours.epochs_asked) == asked


async def test_a_leader_that_is_gone_is_looked_for_again(world: TierWorld, partition: TopicIdPartition) -> None:
    """Failed before: until the topics' half-minute turn came, every read of the partition was refused."""
    world.client_of_ours.failure = UpstreamConnectionError("broker 1 is down")

    def another_leads() -> None:
        world.client_of_ours.failure = None

    world.cluster.on_learn = another_leads
    await world.lineages.get(partition, LEADER_EPOCH)
    assert world.cluster.learned == [["orders"]]


@for_each_run("leader", [None, PartitionLeader(-1, LEADER_EPOCH)])
async def test_without_a_leader_metadata_is_asked_and_then_it_is_an_error(
    world: TierWorld, partition: TopicIdPartition, leader: PartitionLeader | None
) -> None:
    del world.cluster.leaders[partition.topic_id, 0]
    if leader is not None:
        world.cluster.leaders[partition.topic_id, 0] = leader
    with pytest.raises(UpstreamError, match="names no leader"):
        await world.lineages.get(partition, LEADER_EPOCH)
    assert world.cluster.learned == [["orders"]]
    world.cluster.on_learn = lambda: world.set_leader(partition, 1)
    await world.lineages.get(partition, LEADER_EPOCH)


async def test_one_refused_partition_leaves_the_others_their_lineages(world: TierWorld) -> None:
    refused, other = world.add_partition("gone", 0), world.add_partition("orders", 0)
    del world.broker.logs[refused.topic_id, 0]
    refusals = []

    async def read_refused() -> None:
        with pytest.raises(UpstreamRefusedError) as caught:
            await world.lineages.get(refused, LEADER_EPOCH)
        refusals.append(caught.value.error_code)

    async with trio.open_nursery() as reads:
        reads.start_soon(read_refused)
        reads.start_soon(world.lineages.get, other, LEADER_EPOCH)
    assert refusals == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert world.lineages.known(other, LEADER_EPOCH) is not None
    assert len(world.client_of_ours.epoch_requests) == 1


async def test_the_answer_is_kept_when_its_asker_has_left(world: TierWorld) -> None:
    kept, forgotten = world.add_partition("orders", 0), world.add_partition("orders", 1)
    world.client_of_ours.latency_s = 1.0
    with trio.move_on_after(0.5):
        async with trio.open_nursery() as reads:
            for partition in (kept, forgotten):
                reads.start_soon(world.lineages.get, partition, LEADER_EPOCH)
    world.lineages.forget(forgotten)
    await trio.sleep(1.0)
    assert world.lineages.known(kept, LEADER_EPOCH) is not None
    assert world.lineages.known(kept, LEADER_EPOCH + 1) is None
    assert world.lineages.known(forgotten, LEADER_EPOCH) is None


async def test_two_topics_that_had_one_name_are_asked_about_at_a_time(world: TierWorld) -> None:
    new = world.add_partition("orders", 0)
    old = TopicIdPartition(uuid_of("deleted"), 0, "orders")
    world.set_leader(old, 1)
    world.add_segment(old, 0, 99, epochs={3: 0})
    async with trio.open_nursery() as reads:
        for partition in (new, old):
            reads.start_soon(world.lineages.get, partition, LEADER_EPOCH)
    (asked,) = world.client_of_ours.epochs_asked
    assert sorted(asked[3]) == [3, LEADER_EPOCH]
    known_new, known_old = (world.lineages.known(partition, LEADER_EPOCH) for partition in (new, old))
    assert known_new is not None
    assert known_old is not None
    assert list(known_new.epochs) == [LEADER_EPOCH]
    assert (known_old.knows([3]), known_old.knows([LEADER_EPOCH])) == (True, False)


async def test_a_forgotten_one_is_built_anew(world: TierWorld, partition: TopicIdPartition) -> None:
    first = await world.lineages.get(partition, LEADER_EPOCH)
    world.lineages.forget(partition)
    assert await world.lineages.get(partition, LEADER_EPOCH) is not first


async def test_a_request_names_a_limited_count_of_partitions(world: TierWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.fetch.lineages.QUESTIONS_MAX", 8)
    partitions = [world.add_partition("orders", number) for number in range(20)]
    async with trio.open_nursery() as reads:
        for partition in partitions:
            reads.start_soon(world.lineages.get, partition, LEADER_EPOCH)
    assert [len(request) for request in world.client_of_ours.epoch_requests] == [8, 8, 4]
