"""Which Fetches Tidegate answers and which are relayed, and what is learned before a decision."""

import itertools

import pytest
import trio
from structlog.testing import capture_logs

from protocol.client.cluster_view import PartitionLeader
from protocol.client.errors import UpstreamConnectionError
from protocol.fetch.messages import FetchPartition, PartitionAnswer
from protocol.wire.errors import ErrorCode
from proxy.connection.request_handlers import RELAY, Relay
from proxy.connection.slices import ITEMS_AT_ONCE
from proxy.fetch.service import FetchSettings
from storage.model import TopicIdPartition
from tests.support.fake_wire import tier_batch
from tests.support.for_each import for_each
from tests.support.segments import topic_partition
from tests.support.stretches import Stretches
from tests.support.tier_world import (
    LEADER_EPOCH,
    NODE_ID,
    FakeFetcher,
    TierWorld,
    ask,
    client_frame,
    fetch_of,
    records_of,
)
from tests.support.virtual_time import for_each_run

pytestmark = pytest.mark.autojump

READ_COMMITTED = 1
DIVERGING = b"\x01\x00\x0d" + (4).to_bytes(4) + (10).to_bytes(8) + b"\x00"


async def served_by(world: TierWorld, client: FakeFetcher, partition: TopicIdPartition, offset: int) -> str:
    """Who has the first record of a Fetch: tier, broker or relay."""
    if await client.is_relayed([ask(partition, offset)]):
        return "relay"
    (records,) = records_of(await client.fetch([ask(partition, offset, max_bytes=100)]))
    return records.split()[0].decode()


# --- whose it is ---


async def test_offsets_below_the_local_log_start_are_the_tiers(world: TierWorld, partition: TopicIdPartition) -> None:
    client = world.client()
    assert await served_by(world, client, partition, 999) == "tier"
    assert await served_by(world, client, partition, 1000) == "relay"


async def test_what_the_broker_alone_understands_is_relayed(world: TierWorld, partition: TopicIdPartition) -> None:
    """Offsets and limits below 0, followers and debugging consumers, and what comes to no broker in particular."""
    client = world.client()
    for offset in (-1, -2, -(2**63)):
        assert await client.is_relayed([ask(partition, offset)]), offset
    for replica_id, version in itertools.product((0, 1, -2), (12, 17)):
        assert await client.is_relayed([ask(partition, 17)], replica_id=replica_id, api_version=version), replica_id
    assert await client.is_relayed([ask(partition, 17)], max_bytes=-1)
    assert await world.client(node_id=None).is_relayed([ask(partition, 17)])


async def test_what_brokers_own_is_relayed_without_an_object_of_its_own(
    world: TierWorld, partition: TopicIdPartition
) -> None:
    """Nine of ten users have such a tier, and most of their requests ask for what is at the log's end."""
    for node_id, offset in ((NODE_ID, 1200), (None, 17)):
        frame = client_frame(fetch_of([ask(partition, offset)], session_epoch=-1))
        fetcher = world.client(node_id=node_id)
        assert await fetcher.service.handle(memoryview(bytearray(frame)), fetcher.wire) is RELAY, node_id


async def test_below_v11_only_the_leader_is_asked(world: TierWorld, partition: TopicIdPartition) -> None:
    client = world.client()
    assert not await client.is_relayed([ask(partition, 17)], api_version=10)
    world.cluster.leaders[partition.topic_id, 0] = PartitionLeader(2, LEADER_EPOCH)
    assert await client.is_relayed([ask(partition, 17)], api_version=10)
    assert not await client.is_relayed([ask(partition, 17)], api_version=11)


async def test_what_the_catalog_does_not_know_or_is_still_reading_is_relayed(world: TierWorld) -> None:
    without_segments = world.add_partition("orders", 0, segments=[])
    not_ready = world.add_partition("orders", 1)
    world.tail.not_ready = {not_ready}
    assert await world.client().is_relayed([ask(without_segments, 17), ask(not_ready, 17)])
    assert not world.client_of_ours.offsets_asked


async def test_of_a_partition_named_twice_the_last_wish_is_answered_once(world: TierWorld) -> None:
    partition, other = world.add_partition(), world.add_partition("orders", 1)
    wishes = [ask(partition, 17), ask(other, 3, max_bytes=100), ask(partition, 600, max_bytes=100)]
    response = await world.client().fetch(wishes)
    assert records_of(response) == [tier_batch(0, 600), tier_batch(1, 3)]


async def test_both_places_are_read_from_the_tier_if_that_is_preferred(world: TierWorld) -> None:
    partition = world.add_partition(local_log_start_offset=500, high_watermark=1500)
    world.settings = FetchSettings(authority_age_s_max=0, fetch_wait_s_max=0.5, linger_s=0.02, read_prefer_tier=True)
    client = world.client()
    found = [await served_by(world, client, partition, offset) for offset in (499, 500, 999, 1000)]
    assert found == ["tier", "tier", "tier", "relay"]
    assert await client.is_relayed([ask(partition, 999)], isolation_level=READ_COMMITTED)


async def test_settings_that_change_count_for_connections_that_are_open(world: TierWorld, client: FakeFetcher) -> None:
    partition = world.add_partition(local_log_start_offset=500, high_watermark=1500)
    assert await served_by(world, client, partition, 999) == "relay"
    world.settings.read_prefer_tier, world.settings.authority_age_s_max = True, 60
    assert await served_by(world, client, partition, 998) == "tier"
    probes = len(world.broker.fetches)
    assert await served_by(world, client, partition, 997) == "tier"
    assert len(world.broker.fetches) == probes
    world.settings.authority_age_s_max = 0
    assert await served_by(world, client, partition, 996) == "tier"
    assert len(world.broker.fetches) > probes


# --- what is learned first ---


async def test_a_frontier_that_is_not_known_is_learned_first(world: TierWorld, partition: TopicIdPartition) -> None:
    world.client_of_ours.latency_s = 0.1
    assert await served_by(world, world.client(), partition, 17) == "tier"
    assert world.client_of_ours.partitions_asked == [[("orders", 0)]]


async def test_a_stale_frontier_is_learned_first_for_an_offset_below_it(world: TierWorld, client: FakeFetcher) -> None:
    partition = world.add_partition(high_watermark=1500)
    await client.fetch([ask(partition, 17)])
    await trio.sleep(1.1)
    # A leader that came back with more of its log: what was the tier's is the broker's again.
    world.log(partition).local_log_start_offset = 500
    assert await client.is_relayed([ask(partition, 700)])


async def test_a_stale_frontier_is_learned_in_the_background_for_an_offset_above_it(world: TierWorld) -> None:
    partition = world.add_partition(high_watermark=1500)
    client = world.client()
    await client.fetch([ask(partition, 17)])
    await trio.sleep(1.1)
    world.log(partition).local_log_start_offset = 1300
    world.client_of_ours.latency_s = 0.1
    started_s = trio.current_time()
    assert await client.is_relayed([ask(partition, 1200)])
    assert trio.current_time() == started_s
    await trio.sleep(0.2)
    frontier = world.frontiers.get(1, partition)
    assert frontier is not None
    assert frontier.local_log_start_offset == 1300


async def test_a_broker_that_cannot_be_asked_leaves_the_fetch_to_the_relay(world: TierWorld) -> None:
    partition = world.add_partition()
    world.client_of_ours.failure = UpstreamConnectionError("down")
    assert await world.client().is_relayed([ask(partition, 17)])


async def test_a_question_that_takes_long_holds_a_fetch_a_second(world: TierWorld, partition: TopicIdPartition) -> None:
    world.client_of_ours.latency_s = 25.0
    client = world.client()
    assert await client.is_relayed([ask(partition, 17)])
    assert trio.current_time() == pytest.approx(1.0)
    await trio.sleep(25.0)
    world.client_of_ours.latency_s = 0.0
    assert await served_by(world, client, partition, 17) == "tier"


async def test_what_another_client_has_forgotten_meanwhile_is_still_planned_by(world: TierWorld) -> None:
    """Failed before: the partition went to the broker, which granted an oversize batch beside the tier's."""
    known, unknown = world.add_partition("orders", 0), world.add_partition("orders", 1)
    client = world.client()
    await client.fetch([ask(known, 17, max_bytes=100)])
    world.client_of_ours.latency_s = 0.1
    records: list[bytes] = []

    async def fetch() -> None:
        asked = [ask(known, 17, max_bytes=100), ask(unknown, 17, max_bytes=100)]
        records.extend(records_of(await client.fetch(asked)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(fetch)
        await trio.sleep(0.05)
        world.frontiers.forget(1, known)
    assert records[0] == tier_batch(0, 17)


# --- divergence ---


@for_each_run("epoch", [0, 4, 9])
async def test_a_last_fetched_epoch_off_the_lineage_is_left_to_the_broker(world: TierWorld, epoch: int) -> None:
    """Failed before: the whole request was relayed, and the broker read the other partition from its tier."""
    diverged, other = world.add_partition("orders", 0), world.add_partition("orders", 1)
    world.add_segment(diverged, 0, 99, epochs={4: 0})  # a dead branch: upstream does not know the epoch
    world.log(diverged).tags = DIVERGING
    client = world.client()
    asked = [ask(diverged, 17, last_fetched_epoch=epoch, max_bytes=100), ask(other, 17, max_bytes=100)]
    response = await client.fetch(asked)
    assert [answer.tags for answer in response.partitions] == [DIVERGING, b"\x00"]
    assert records_of(response)[1] == tier_batch(1, 17)
    assert await client.is_relayed(asked[:1])


async def test_a_last_fetched_epoch_that_ended_before_the_offset_is_relayed(world: TierWorld) -> None:
    partition = world.add_partition(segments=[(500, 999)])
    world.add_segment(partition, 0, 499, epochs={4: 0})
    world.log(partition).epoch_ends[4] = (4, 500)
    client = world.client()
    assert not await client.is_relayed([ask(partition, 500, last_fetched_epoch=4)])
    assert await client.is_relayed([ask(partition, 501, last_fetched_epoch=4)])


async def test_a_lineage_that_cannot_be_learned_leaves_the_fetch_to_the_relay(world: TierWorld) -> None:
    partition = world.add_partition()
    world.client_of_ours.epoch_error_codes = [ErrorCode.FENCED_LEADER_EPOCH]
    assert await world.client().is_relayed([ask(partition, 17, last_fetched_epoch=LEADER_EPOCH)])


async def test_lineages_of_many_partitions_are_asked_for_together(world: TierWorld) -> None:
    """Failed before: they were asked for one after another, a request for each."""
    partitions = [world.add_partition("orders", number) for number in range(30)]
    world.client_of_ours.latency_s = 0.1
    asked = [ask(partition, 17, last_fetched_epoch=LEADER_EPOCH, max_bytes=100) for partition in partitions]
    records = records_of(await world.client().fetch(asked))
    assert all(record.startswith(b"tier") for record in records)
    assert [len(request) for request in world.client_of_ours.epoch_requests] == [30]


async def test_a_leader_that_does_not_answer_holds_a_fetch_for_a_second_only(world: TierWorld) -> None:
    """The broker answers for those whose lineages are not learned yet; the question goes on for later Fetches."""
    partitions = [world.add_partition("orders", number) for number in range(30)]
    known = await world.lineages.get(partitions[7], LEADER_EPOCH)
    asked = [ask(partition, 17, last_fetched_epoch=LEADER_EPOCH, max_bytes=100) for partition in partitions]
    client = world.client()
    world.frontiers.age_s_max = 1000.0
    await world.frontiers.refresh(NODE_ID, partitions)
    world.client_of_ours.latency_s = 2.0
    from_tier = []
    for _ in range(2):
        started_s = trio.current_time()
        records = records_of(await client.fetch(asked))
        assert trio.current_time() - started_s <= 1.2
        from_tier.append([number for number, record in enumerate(records) if record.startswith(b"tier")])
    assert from_tier[0] == [7]
    await trio.sleep(1.0)
    assert all(record.startswith(b"tier") for record in records_of(await client.fetch(asked)))
    assert len(world.client_of_ours.epoch_requests) == 3
    assert world.lineages.known(partitions[7], LEADER_EPOCH) is known


# --- large ones ---


@for_each("version", [4, 12, 17])
@for_each_run("is_tier", [False, True])
async def test_a_large_fetch_keeps_the_loop_for_a_slice_at_a_time(
    world: TierWorld, monkeypatch: pytest.MonkeyPatch, version: int, is_tier: bool
) -> None:
    """Failed before: all partitions were decoded, looked up and encoded in one stretch each."""
    count = 3000
    partition = world.add_partition()
    for number in range(1, count):
        world.broker.add(topic_partition("orders", number), local_log_start_offset=0, high_watermark=9)
    asked = [ask(topic_partition("orders", number), 17, max_bytes=100) for number in range(count)]
    asked[0] = ask(partition, 17 if is_tier else 1000, max_bytes=100)
    stretches = Stretches()
    monkeypatch.setattr("protocol.fetch.response.PartitionAnswer", stretches(PartitionAnswer))
    if not is_tier:  # else the broker's decoding would count too
        monkeypatch.setattr("protocol.fetch.requests.FetchPartition", stretches(FetchPartition))
    monkeypatch.setattr(world.tier, "partition", stretches(world.tier.partition))
    frame = memoryview(bytearray(client_frame(fetch_of(asked, api_version=version))))
    client = world.client()
    trio.lowlevel.add_instrument(stretches)
    outcome = await client.service.handle(frame, client.wire)
    trio.lowlevel.remove_instrument(stretches)
    assert isinstance(outcome, Relay) != is_tier
    assert stretches.calls >= 2 * count
    # Decoding and encoding are in a thread. The end of one work on the loop and the beginning of the next may meet.
    assert stretches.longest <= 2 * ITEMS_AT_ONCE


@for_each_run("version", [4, 7, 17])
async def test_what_names_too_much_is_the_brokers_unread(
    world: TierWorld, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    """Failed before: all of it was decoded, and its names asked for."""
    monkeypatch.setattr("protocol.fetch.requests.PARTITIONS_MAX", 2)
    partition = world.add_partition()
    looked_up = Stretches()
    monkeypatch.setattr(world.tier, "partition", looked_up(world.tier.partition))
    client = world.client()
    asked = [ask(topic_partition("orders", number), 17) for number in range(3)]
    with capture_logs() as logs:
        for _ in range(2):
            assert await client.is_relayed(asked, api_version=version)
    assert looked_up.calls == 0
    assert [entry["event"] for entry in logs] == ["fetch_left_unread"]
    assert world.sample("tidegate_requests_unread_total", api_key="1") == 2
    assert not await client.is_relayed([ask(partition, 17)], api_version=version) or version < 11
