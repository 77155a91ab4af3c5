"""Frontiers: what is remembered, how questions are gathered, and that nobody waits for an answer that never comes."""

import pytest
import structlog.testing
import trio
from trio.testing import wait_all_tasks_blocked

from protocol.client.errors import UpstreamConnectionError
from protocol.client.messages import LIST_OFFSETS
from protocol.client.settings import ClientSettings
from protocol.fetch.messages import PartitionAnswer
from proxy.fetch.frontiers import QUESTIONS_MAX, UNKNOWN_OFFSET, UNSUPPORTED_AGE_S_MAX, Frontier, Frontiers
from proxy.upstream.cluster import Cluster
from proxy.upstream.partition_questions import FrontierClient
from storage.model import TopicIdPartition
from tests.support.fake_kafka import FakeBroker, FakeKafka
from tests.support.segments import topic_partition
from tests.support.tier_world import LEADER_EPOCH, NODE_ID, TierWorld
from tests.support.virtual_time import for_each_run
from tests.support.waiting import HANG_S_MAX

pytestmark = pytest.mark.autojump


async def learned(world: TierWorld, partition: TopicIdPartition) -> Frontier:
    await world.frontiers.refresh(NODE_ID, [partition])
    frontier = world.frontiers.get(NODE_ID, partition)
    assert frontier is not None
    return frontier


def saw(world: TierWorld, partition: TopicIdPartition, high_watermark: int, leader_epoch: int = LEADER_EPOCH) -> None:
    planned_by = Frontier(UNKNOWN_OFFSET, UNKNOWN_OFFSET, leader_epoch, learned_at_s=0.0)
    answer = PartitionAnswer("orders", None, 0, 0, high_watermark, high_watermark, log_start_offset=3)
    world.frontiers.saw(NODE_ID, partition, planned_by, answer)


async def test_a_frontier_is_what_one_broker_said(world: TierWorld) -> None:
    partition = world.add_partition(local_log_start_offset=500, high_watermark=1500)
    assert world.frontiers.get(NODE_ID, partition) is None
    frontier = await learned(world, partition)
    assert (frontier.local_log_start_offset, frontier.log_end_offset, frontier.leader_epoch) == (500, 1500, 5)
    assert (frontier.high_watermark, frontier.last_stable_offset) == (UNKNOWN_OFFSET,) * 2
    assert world.frontiers.get(NODE_ID + 1, partition) is None


async def test_what_was_decided_by_a_frontier_does_not_change_under_the_decider(world: TierWorld) -> None:
    """Failed before: a refresh beside a probe moved the local log start that its answer was judged by."""
    partition = world.add_partition()
    before = await learned(world, partition)
    world.log(partition).local_log_start_offset = 1200
    saw(world, partition, 1500)
    after = await learned(world, partition)
    assert (before.local_log_start_offset, before.high_watermark) == (1000, UNKNOWN_OFFSET)
    assert (after.local_log_start_offset, after.high_watermark) == (1200, 1500)


async def test_a_new_leader_epoch_drops_the_old_high_watermark(world: TierWorld, partition: TopicIdPartition) -> None:
    await learned(world, partition)
    saw(world, partition, 1500)
    world.log(partition).leader_epoch = 6
    frontier = await learned(world, partition)
    assert (frontier.leader_epoch, frontier.high_watermark, frontier.log_start_offset) == (6, -1, 0)


async def test_a_leader_epoch_never_goes_backwards(world: TierWorld, partition: TopicIdPartition) -> None:
    await learned(world, partition)
    saw(world, partition, 1500, leader_epoch=7)
    frontier = await learned(world, partition)
    assert (frontier.leader_epoch, frontier.high_watermark) == (7, 1500)
    saw(world, partition, 1500, leader_epoch=6)
    assert (await learned(world, partition)).leader_epoch == 7


async def test_a_probe_answer_brings_back_nothing_forgotten(world: TierWorld, partition: TopicIdPartition) -> None:
    await learned(world, partition)
    world.frontiers.forget(NODE_ID, partition)
    saw(world, partition, 1500)
    assert world.frontiers.get(NODE_ID, partition) is None


async def test_a_refused_partition_is_forgotten_and_others_of_the_question_are_not(world: TierWorld) -> None:
    refused, other = world.add_partition("orders", 0), world.add_partition("orders", 1)
    await world.frontiers.refresh(NODE_ID, [refused, other])
    world.log(refused).offsets_error_code = 6
    await world.frontiers.refresh(NODE_ID, [refused, other])
    assert world.frontiers.get(NODE_ID, refused) is None
    assert world.frontiers.get(NODE_ID, other) is not None


# --- questions ---


async def test_questions_are_gathered_while_one_is_under_way(world: TierWorld, nursery: trio.Nursery) -> None:
    partitions = [world.add_partition("orders", number) for number in range(4)]
    world.client_of_ours.latency_s = 1.0
    nursery.start_soon(world.frontiers.refresh, NODE_ID, partitions[:1])
    await wait_all_tasks_blocked()
    async with trio.open_nursery() as asking:
        for partition in partitions:
            asking.start_soon(world.frontiers.refresh, NODE_ID, [partition])
    assert trio.current_time() == 2.0
    first, second = world.client_of_ours.partitions_asked
    assert first == [("orders", 0)]
    assert sorted(second) == [("orders", number) for number in range(4)]


@for_each_run("failure", [UpstreamConnectionError("down"), KeyError("a fault of ours")])
async def test_a_failure_wakes_all_who_wait_and_leaves_what_was_known(world: TierWorld, failure: Exception) -> None:
    """Failed before for the second: it went through the application's nursery."""
    partition, unknown = world.add_partition("orders", 0), world.add_partition("orders", 1)
    before = await learned(world, partition)
    world.client_of_ours.failure, world.client_of_ours.latency_s = failure, 0.1
    with trio.fail_after(HANG_S_MAX):
        async with trio.open_nursery() as asking:
            for wanted in ([partition], [unknown], [partition, unknown]):
                asking.start_soon(world.frontiers.refresh, NODE_ID, wanted)
    assert world.frontiers.get(NODE_ID, partition) is before
    assert world.frontiers.get(NODE_ID, unknown) is None
    world.client_of_ours.failure = None
    await learned(world, unknown)


@pytest.fixture
def few_frontiers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.fetch.frontiers.FRONTIERS_MAX", 2)


@pytest.mark.usefixtures("few_frontiers")
async def test_the_least_recently_used_frontier_goes_first(world: TierWorld) -> None:
    first, second, third = (world.add_partition("orders", number) for number in range(3))
    await learned(world, first)
    await learned(world, second)
    world.frontiers.get(NODE_ID, first)
    await learned(world, third)
    assert world.frontiers.get(NODE_ID, second) is None
    assert world.frontiers.get(NODE_ID, first) is not None


async def test_many_partitions_are_asked_for_in_requests_of_so_many(world: TierWorld) -> None:
    partitions = [world.add_partition("orders", number, segments=[]) for number in range(2 * QUESTIONS_MAX + 9)]
    await world.frontiers.refresh(NODE_ID, [*partitions, *partitions[:10]])
    assert [len(asked) for asked in world.client_of_ours.partitions_asked] == [QUESTIONS_MAX, QUESTIONS_MAX, 9]
    assert all(world.frontiers.get(NODE_ID, partition) for partition in partitions)


# --- brokers before Kafka 3.6 ---


@pytest.fixture
def old_broker(kafka: FakeKafka) -> FakeBroker:
    """A broker whose ListOffsets ends at version 7, which does not know -4."""
    broker = kafka.add(NODE_ID, "a", 1)
    kafka.add_log(topic_partition())
    broker.versions[LIST_OFFSETS.key] = (0, 7)
    return broker


@pytest.fixture
def frontiers(old_broker: FakeBroker, nursery: trio.Nursery) -> Frontiers:
    """Return what it is asked by."""
    cluster = Cluster(ClientSettings(bootstrap_servers=(("a", 1),)), nursery)
    return Frontiers(FrontierClient(cluster), nursery, age_s_max=1.0)


async def test_of_an_old_broker_nothing_is_known_and_nobody_waits_for_it(
    old_broker: FakeBroker, frontiers: Frontiers
) -> None:
    partition = topic_partition()
    with structlog.testing.capture_logs() as logs:
        for _ in range(5):
            asked_at_s = trio.current_time()
            await frontiers.refresh(NODE_ID, [partition])
            assert trio.current_time() == asked_at_s
            assert frontiers.get(NODE_ID, partition) is None
            await trio.sleep(UNSUPPORTED_AGE_S_MAX / 2)
    (warning,) = (entry for entry in logs if entry["log_level"] == "warning")
    assert warning["event"] == "frontier_unsupported"
    assert "list_offsets version 8" in warning["reason"]
    assert not old_broker.asked(LIST_OFFSETS)


async def test_an_old_broker_that_was_upgraded_is_asked_again(old_broker: FakeBroker, frontiers: Frontiers) -> None:
    partition = topic_partition()
    await frontiers.refresh(NODE_ID, [partition])
    old_broker.versions[LIST_OFFSETS.key] = (0, 8)
    old_broker.disconnect_all()
    await frontiers.refresh(NODE_ID, [partition])
    assert frontiers.get(NODE_ID, partition) is None
    await trio.sleep(UNSUPPORTED_AGE_S_MAX)
    await frontiers.refresh(NODE_ID, [partition])
    assert frontiers.get(NODE_ID, partition) is not None


async def test_the_log_start_is_learned_with_the_rest(world: TierWorld) -> None:
    partition = world.add_partition(log_start_offset=7)
    assert (await learned(world, partition)).log_start_offset == 7
    saw(world, partition, 1500)
    frontier = world.frontiers.get(NODE_ID, partition)
    assert frontier is not None
    assert frontier.log_start_offset == 3
    world.log(partition).log_start_offset = 9
    assert (await learned(world, partition)).log_start_offset == 9
    assert world.client_of_ours.partitions_asked == [[("orders", 0)]] * 2
