"""The client's own Fetch beside tier reads: when it is asked, again, and not any more."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import pytest
import trio

from protocol.fetch.messages import FetchPartition, key_of
from protocol.wire.errors import ErrorCode
from proxy.connection.client_reads import ClientReads
from proxy.fetch.answer import BrokersWord
from proxy.fetch.own_fetch import ASK_AGAIN_S, OwnFetch
from proxy.fetch.plan import FetchPlan, TierPart, plan_fetch, share_out
from proxy.fetch.reads import TierReads
from proxy.fetch.sent_fetch import close_upstream_session
from storage.model import TopicIdPartition
from tests.support.fake_wire import BATCH_BYTES, FakePartitionLog, FakeWire, broker_batch
from tests.support.tier_world import NODE_ID, TierWorld, ask, fetch_of

pytestmark = pytest.mark.autojump

LINGER_S = 0.02
LEFT_BYTES = 700


@dataclass
class Waited:
    """An own Fetch that is done waiting, and what it waited for."""

    own_fetch: OwnFetch
    said: BrokersWord
    reads: TierReads
    plan: FetchPlan


async def until_ready(
    world: TierWorld,
    tier: Sequence[TopicIdPartition],
    *hot: TopicIdPartition,
    linger_s: float = LINGER_S,
    wait_s: float = 2.0,
) -> Waited:
    """Wait with tier partitions and local ones."""
    await world.frontiers.refresh(NODE_ID, tier)
    asked = [ask(partition, 17, max_bytes=1000) for partition in tier]
    request = fetch_of([*asked, *(ask(partition, 1000) for partition in hot)])
    parts = []
    for place, (entry, partition) in enumerate(zip(asked, tier, strict=True)):
        frontier = world.frontiers.get(NODE_ID, partition)
        assert frontier is not None
        parts.append(TierPart(entry, partition, frontier, place))
    plan = plan_fetch(request, parts, {})
    meter, now_s = world.meters.tier, trio.current_time()
    reads = TierReads(world.tier, meter, ClientReads(), now_s, wait_s, committed=False)
    reads.go_on_in(world.nursery)
    said = BrokersWord()
    own_fetch = OwnFetch(FakeWire(world.broker, world.nursery), said)
    await own_fetch.begin(request, plan)
    await own_fetch.first_answer()
    shares = share_out(request, plan, parts, own_fetch.by_key)
    reads.start(parts, shares)
    reads.settle({part: part.frontier for part in parts}, shares)
    if said.whole is None:
        await own_fetch.until_ready(request, plan, reads, linger_s, LEFT_BYTES)
    reads.stop()
    return Waited(own_fetch, said, reads, plan)


def cold_and_other(world: TierWorld, delay_s: float = 0.0, high_watermark: int = 1000) -> list[TopicIdPartition]:
    """One in the tier, whose reads take so long, and one that the broker has."""
    world.reader.delay_s = delay_s
    return [world.add_partition("orders", number, high_watermark=high_watermark) for number in range(2)]


def by_id(partition: TopicIdPartition, offset: int, *, max_bytes: int = 1000) -> FetchPartition:
    """Return what a client from v13 on asks for."""
    return replace(ask(partition, offset, max_bytes=max_bytes), topic=None)


NEWS = ("error", "preferred replica", "diverging epoch")


def let_come_back(log: FakePartitionLog, news: str) -> None:
    """Make the broker answer that at once, each time."""
    if news == "error":
        log.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    elif news == "preferred replica":
        log.preferred_read_replica = 3
    else:
        log.tags = b"\x01\x00\x0d" + bytes(13)


async def test_local_partitions_are_asked_for_sessionless_and_at_once(world: TierWorld) -> None:
    cold, hot = cold_and_other(world, high_watermark=1500)
    waited = await until_ready(world, [cold], hot)
    (asked,) = world.broker.fetches
    assert (asked.api_version, asked.session_id, asked.session_epoch, asked.client_id) == (17, 0, -1, "a-client")
    assert (asked.max_wait_ms, asked.min_bytes, asked.max_bytes) == (0, 0, 50 * 1024 * 1024 - 1000)
    assert [(entry.partition, entry.fetch_offset) for entry in asked.partitions] == [(1, 1000)]
    (answer,) = waited.own_fetch.by_key.values()
    assert bytes(answer.records[0])[:100] == broker_batch(1, 1000)
    assert waited.own_fetch.bytes_got == 1000


async def test_hot_records_are_held_up_by_a_slow_tier_for_the_linger_only(world: TierWorld) -> None:
    cold, hot = cold_and_other(world, 10.0, high_watermark=1500)
    await until_ready(world, [cold], hot)
    assert trio.current_time() == pytest.approx(LINGER_S)


async def test_an_idle_broker_is_asked_again_for_what_the_tier_leaves(world: TierWorld) -> None:
    cold, idle = cold_and_other(world, 0.8)
    await until_ready(world, [cold], idle)
    assert trio.current_time() == pytest.approx(0.8)
    assert world.broker.asked_at_s == pytest.approx([0, 0.25, 0.5, 0.75])
    assert {(fetch.max_wait_ms, fetch.min_bytes) for fetch in world.broker.fetches} == {(0, 0)}
    assert {fetch.max_bytes for fetch in world.broker.fetches[1:]} == {LEFT_BYTES}


async def test_a_record_that_comes_while_the_store_hangs_is_answered_soon(nursery: trio.Nursery) -> None:
    for after_s in (0.01, 0.2, 0.3, 1.6):
        world, began_s = TierWorld(nursery), trio.current_time()
        cold, idle = cold_and_other(world, 1000.0)

        async def append(world: TierWorld = world, idle: TopicIdPartition = idle, after_s: float = after_s) -> None:
            await trio.sleep(after_s)
            world.broker.append(world.log(idle))

        nursery.start_soon(append)
        waited = await until_ready(world, [cold], idle)
        assert waited.own_fetch.bytes_got == BATCH_BYTES, f"{after_s=}"
        assert trio.current_time() - began_s <= after_s + ASK_AGAIN_S + LINGER_S + 1e-9, f"{after_s=}"


async def test_a_slow_tier_read_costs_few_questions(nursery: trio.Nursery) -> None:
    """Failed before: 75 questions within 1.5 s, one every `expert.tier.linger.ms`."""
    for wait_s, linger_s in product((0.5, 1.5, 5.0), (0.0, LINGER_S, 5.0)):
        world, began_s, case = TierWorld(nursery), trio.current_time(), f"{wait_s=}, {linger_s=}"
        cold, idle = cold_and_other(world, 10.0)
        await until_ready(world, [cold], idle, linger_s=linger_s, wait_s=wait_s)
        assert trio.current_time() - began_s == pytest.approx(wait_s), case
        assert len(world.broker.fetches) <= wait_s / ASK_AGAIN_S, case


async def test_idle_partitions_hold_up_no_tier_read_that_ends(nursery: trio.Nursery) -> None:
    for delay_s in (0.001, 0.03, 0.07, 0.15, 0.31, 0.5, 0.7, 1.0, 1.3, 2.0, 2.6, 3.0, 4.0, 4.9):
        world, began_s = TierWorld(nursery), trio.current_time()
        cold, idle = cold_and_other(world, delay_s)
        waited = await until_ready(world, [cold], idle, wait_s=5.0)
        assert waited.reads.any_records, f"{delay_s=}"
        assert trio.current_time() - began_s == pytest.approx(delay_s), f"{delay_s=}"


async def test_what_comes_back_at_once_each_time_is_not_asked_for_again(nursery: trio.Nursery) -> None:
    """Failed before: the broker was asked as fast as it answered, for as long as the tier took."""
    for news in NEWS:
        world, began_s = TierWorld(nursery), trio.current_time()
        cold, other = cold_and_other(world, 1.0)
        let_come_back(world.log(other), news)
        waited = await until_ready(world, [cold], other)
        assert len(world.broker.fetches) == 1, news
        assert trio.current_time() - began_s == pytest.approx(1.0), news
        assert waited.reads.any_records, news


async def test_an_answer_beyond_what_was_asked_for_is_named(world: TierWorld) -> None:
    partitions = [world.add_partition("orders", number, high_watermark=1500) for number in range(2)]
    asked = [by_id(partition, 1000, max_bytes=BATCH_BYTES - 1) for partition in partitions]
    own_fetch = OwnFetch(FakeWire(world.broker, world.nursery), BrokersWord())
    await own_fetch.ask(fetch_of(asked), asked, 1000)
    assert [answer.records_bytes for answer in own_fetch.by_key.values()] == [BATCH_BYTES, 0]
    assert own_fetch.exceeding == {key_of(asked[0])}


async def test_a_session_upstream_is_closed_by_a_fetch_of_nothing_that_nobody_waits_for(world: TierWorld) -> None:
    world.broker.latency_s = 5.0
    wire = FakeWire(world.broker, world.nursery)
    await close_upstream_session(wire, fetch_of([ask(world.add_partition(), 17)]), 99)
    await close_upstream_session(wire, fetch_of([]), 0)
    assert trio.current_time() == 0
    await trio.sleep(10)
    (asked,) = world.broker.fetches
    assert (asked.session_id, asked.session_epoch, asked.partitions, asked.max_wait_ms) == (99, -1, [], 0)


async def test_a_throttled_answer_is_whole_and_ends_the_wait(world: TierWorld) -> None:
    cold, hot = cold_and_other(world, 1.0)
    world.broker.throttle_time_ms = 300
    waited = await until_ready(world, [cold], hot)
    assert waited.said.whole is not None
    assert waited.said.whole.throttle_time_ms == waited.said.throttle_time_ms == 300
    assert trio.current_time() == 0.0
