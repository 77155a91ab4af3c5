"""The client's own Fetch beside tier reads: when it is asked, again, and not any more."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import pytest
import trio

from protocol.fetch.messages import FetchPartition, PartitionAnswer
from protocol.wire.errors import ErrorCode
from proxy.connection.request_handlers import ClientReads
from proxy.fetch.assembly import FetchPlan, key_of, plan_fetch
from proxy.fetch.known import Frontier
from proxy.fetch.probe import ASKS_MAX, POLL_S_MAX, LocalEnds, OwnFetch, close_upstream_session
from proxy.fetch.tier import TierReads
from storage.model import TopicIdPartition
from tests.support.fake_wire import BATCH_BYTES, FakePartitionLog, FakeWire, broker_batch
from tests.support.segments import topic_partition
from tests.support.tier_world import NODE_ID, TierWorld, ask, fetch_of

pytestmark = pytest.mark.autojump

LINGER_S = 0.02
ORDERS = topic_partition("orders", 0)


@dataclass
class Waited:
    """An own Fetch that is done waiting, and what it waited for."""

    own_fetch: OwnFetch
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
    plan = plan_fetch(
        request,
        [*tier, *(None for _ in hot)],
        lambda partition: world.frontiers.get(NODE_ID, partition),
        lambda *_: True,
        lambda *_: False,
    )
    meter, deadline_s = world.meters.tier, trio.current_time() + wait_s
    reads = TierReads(world.tier, meter, world.nursery, deadline_s=deadline_s, committed=False, client=ClientReads())
    reads.start(plan.tier)
    reads.settle(plan.tier, [])
    own_fetch = OwnFetch(FakeWire(world.broker, world.nursery), LocalEnds())
    await own_fetch.until_ready(request, plan, reads, linger_s)
    reads.stop()
    return Waited(own_fetch, reads, plan)


def cold_and_other(world: TierWorld, delay_s: float = 0.0, high_watermark: int = 1000) -> list[TopicIdPartition]:
    """One in the tier, whose reads take so long, and one that the broker has."""
    world.reader.delay_s = delay_s
    return [world.add_partition("orders", number, high_watermark=high_watermark) for number in range(2)]


def by_id(partition: TopicIdPartition, offset: int, *, max_bytes: int = 1000) -> FetchPartition:
    """Return what a client from v13 on asks for."""
    return replace(ask(partition, offset, max_bytes=max_bytes), topic=None)


async def asked_once(world: TierWorld, *asked: FetchPartition) -> tuple[OwnFetch, LocalEnds]:
    ends = LocalEnds()
    own_fetch = OwnFetch(FakeWire(world.broker, world.nursery), ends)
    await own_fetch.ask(fetch_of(asked), asked, 1000)
    return own_fetch, ends


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
    assert (asked.max_wait_ms, asked.min_bytes, asked.max_bytes) == (0, 0, waited.plan.local_bytes_max)
    assert [(entry.partition, entry.fetch_offset) for entry in asked.partitions] == [(1, 1000)]
    (answer,) = waited.own_fetch.answers
    assert bytes(answer.records[0])[:100] == broker_batch(1, 1000)
    assert waited.own_fetch.bytes_got == 1000


async def test_hot_records_are_held_up_by_a_slow_tier_for_the_linger_only(world: TierWorld) -> None:
    cold, hot = cold_and_other(world, 10.0, high_watermark=1500)
    await until_ready(world, [cold], hot)
    assert trio.current_time() == pytest.approx(LINGER_S)


async def test_an_idle_broker_is_asked_again_in_doubling_waits(world: TierWorld) -> None:
    cold, idle = cold_and_other(world, 0.2)
    await until_ready(world, [cold], idle)
    assert trio.current_time() == pytest.approx(0.02 + 0.04 + 0.08 + 0.16)
    assert [fetch.max_wait_ms for fetch in world.broker.fetches] == [0, 20, 40, 80, 160]
    assert {fetch.min_bytes for fetch in world.broker.fetches[1:]} == {1}


async def test_a_slow_tier_read_costs_few_and_short_questions(nursery: trio.Nursery) -> None:
    """Failed before: 75 questions within 1.5 s, one every `expert.tier.linger.ms`."""
    for wait_s, linger_s in product((0.5, 1.5, 5.0), (0.0, LINGER_S, 5.0)):
        world, began_s, case = TierWorld(nursery), trio.current_time(), f"{wait_s=}, {linger_s=}"
        cold, idle = cold_and_other(world, 10.0)
        await until_ready(world, [cold], idle, linger_s=linger_s, wait_s=wait_s)
        assert trio.current_time() - began_s == pytest.approx(wait_s), case
        waits_s = [fetch.max_wait_ms / 1000 for fetch in world.broker.fetches]
        assert len(waits_s) == ASKS_MAX, case
        assert max(waits_s) <= min(POLL_S_MAX, wait_s / 4), case
        assert world.broker.asked_at_s[-1] - began_s >= wait_s / 4, case


async def test_idle_partitions_hold_a_tier_read_that_ends_up_for_a_moment(nursery: trio.Nursery) -> None:
    for delay_s in (0.001, 0.03, 0.07, 0.15, 0.31, 0.5, 0.7, 1.0, 1.3, 2.0, 2.6, 3.0, 4.0, 4.9):
        world, began_s = TierWorld(nursery), trio.current_time()
        cold, idle = cold_and_other(world, delay_s)
        waited = await until_ready(world, [cold], idle, wait_s=5.0)
        assert waited.reads.any_records, f"{delay_s=}"
        most_s = delay_s + min(POLL_S_MAX, delay_s + LINGER_S) + 0.001
        assert delay_s <= round(trio.current_time() - began_s, 9) <= most_s, f"{delay_s=}"


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


async def test_a_broker_that_does_not_wait_is_not_hammered(world: TierWorld) -> None:
    cold, idle = cold_and_other(world, 1.0)
    world.broker.waits = False
    await until_ready(world, [cold], idle)
    assert trio.current_time() == pytest.approx(1.0)
    assert world.broker.asked_at_s == pytest.approx([0, 0, 0.02, 0.06, 0.14, 0.3, 0.62])


async def test_an_answer_beyond_what_was_asked_for_is_named(world: TierWorld) -> None:
    partitions = [world.add_partition("orders", number, high_watermark=1500) for number in range(2)]
    asked = [by_id(partition, 1000, max_bytes=BATCH_BYTES - 1) for partition in partitions]
    own_fetch, _ = await asked_once(world, *asked)
    assert [answer.records_bytes for answer in own_fetch.answers] == [BATCH_BYTES, 0]
    assert own_fetch.exceeding == {key_of(asked[0])}


# --- where the records of local partitions end ---

READ_COMMITTED = 1


def test_before_the_broker_has_answered_the_frontier_tells() -> None:
    frontier = Frontier(1000, 1500, 5, 0.0, log_start_offset=100)
    for offset, expected in ((99, False), (100, True), (1499, True), (1500, False), (-1, False)):
        assert LocalEnds().has_records(by_id(ORDERS, offset), frontier, 0) == expected, f"offset {offset}"
        assert not LocalEnds().has_records(by_id(ORDERS, offset), None, 0), f"offset {offset}"
    # The broker exceeds a limit of 0 by a batch, and answers -1 with an error.
    for limit, expected in ((1, True), (0, True), (-1, False)):
        assert LocalEnds().has_records(by_id(ORDERS, 1400, max_bytes=limit), frontier, 0) == expected, f"limit {limit}"


async def test_the_brokers_answer_tells_what_is_left_behind_it(world: TierWorld) -> None:
    partition = world.add_partition(high_watermark=1500, log_start_offset=100)
    world.log(partition).last_stable_offset = 1400
    _, ends = await asked_once(world, by_id(partition, 1000, max_bytes=100))
    stale = Frontier(1000, 9999, 5, 0.0, log_start_offset=0)
    for isolation_level, end in ((0, 1500), (READ_COMMITTED, 1400)):
        assert ends.has_records(by_id(partition, end - 1), stale, isolation_level)
        assert not ends.has_records(by_id(partition, end), stale, isolation_level)
        assert ends.has_records(by_id(partition, 100), stale, isolation_level)
        assert not any(ends.has_records(by_id(partition, offset), stale, isolation_level) for offset in (-1, 99))


async def test_nothing_is_believed_to_be_where_the_broker_gives_no_records(nursery: trio.Nursery) -> None:
    for news in NEWS:
        world = TierWorld(nursery)
        partition = world.add_partition(high_watermark=1500)
        let_come_back(world.log(partition), news)
        _, ends = await asked_once(world, by_id(partition, 1000))
        frontier = Frontier(1000, 1500, 5, 0.0, log_start_offset=0)
        assert not ends.has_records(by_id(partition, 1000), frontier, 0), news
        assert ends.has_records(by_id(partition, 1001), frontier, 0), news
        assert ends.has_records(replace(by_id(partition, 1000), current_leader_epoch=5), frontier, 0), news


def test_what_does_not_come_takes_nothing_at_that_offset_alone() -> None:
    """A partition that claims to have records and never gives any would starve those behind it."""
    ends = LocalEnds()
    answer = PartitionAnswer(None, ORDERS.topic_id, 0, 0, 1500, 1500, 0)
    ends.learn(key_of(by_id(ORDERS, 1000)), by_id(ORDERS, 1000), answer, is_barren=True)
    assert [ends.has_records(by_id(ORDERS, offset), None, 0) for offset in (1000, 1001)] == [False, True]
    ends.learn(key_of(by_id(ORDERS, 1000)), by_id(ORDERS, 1000), answer, is_barren=False)
    assert ends.has_records(by_id(ORDERS, 1000), None, 0)


async def test_a_session_upstream_is_closed_by_a_fetch_of_nothing_that_nobody_waits_for(world: TierWorld) -> None:
    world.broker.latency_s = 5.0
    wire = FakeWire(world.broker, world.nursery)
    await close_upstream_session(wire, fetch_of([ask(world.add_partition(), 17)]), 99)
    await close_upstream_session(wire, fetch_of([]), 0)
    assert trio.current_time() == 0
    await trio.sleep(10)
    (asked,) = world.broker.fetches
    assert (asked.session_id, asked.session_epoch, asked.partitions, asked.max_wait_ms) == (99, -1, [], 0)


def test_the_oldest_end_is_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.fetch.probe.LOCAL_ENDS_MAX", 2)
    ends = LocalEnds()
    asked = [by_id(topic_partition("orders", number), 1000) for number in range(3)]
    for each in asked:
        answer = PartitionAnswer(None, each.topic_id, each.partition, 0, 1500, 1500, 0)
        ends.learn(key_of(each), each, answer, is_barren=False)
    assert [ends.has_records(each, None, 0) for each in asked] == [False, True, True]


async def test_a_throttled_answer_is_whole_and_ends_the_wait(world: TierWorld) -> None:
    cold, hot = cold_and_other(world, 1.0)
    world.broker.throttle_time_ms = 300
    waited = await until_ready(world, [cold], hot)
    assert waited.own_fetch.whole is not None
    assert waited.own_fetch.whole.throttle_time_ms == waited.own_fetch.throttle_time_ms == 300
    assert trio.current_time() == 0.0
