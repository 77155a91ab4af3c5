"""The client's own Fetch beside tier reads: when it is asked, again, and not any more."""

from dataclasses import dataclass

import pytest
import trio
from trio.testing import MockClock

from protocol.errors import ErrorCode
from proxy.client_reads import ClientReads
from proxy.fetch_plan import FETCH_BYTES_MAX, FetchPlan, plan_fetch
from proxy.own_fetch import OwnFetch, close_upstream_session, fetch_whole
from proxy.tier_reads import TierReads
from storage.model import TopicIdPartition
from tests.support.fake_wire import FakeWire, broker_batch
from tests.support.tier_world import NODE_ID, TierWorld, ask, fetch_of

LINGER_S = 0.02


@pytest.fixture
def world(nursery: trio.Nursery) -> TierWorld:
    return TierWorld(nursery)


@dataclass
class Waited:
    """An own Fetch that is done waiting, and what it waited for."""

    own_fetch: OwnFetch
    reads: TierReads
    plan: FetchPlan


async def until_ready(
    world: TierWorld,
    nursery: trio.Nursery,
    cold: TopicIdPartition,
    *hot: TopicIdPartition,
    offset: int = 1000,
    linger_s: float = LINGER_S,
) -> Waited:
    """Wait with one tier partition and any number of local ones, for 2 seconds at most."""
    await world.frontiers.refresh(NODE_ID, [cold])
    request = fetch_of([ask(cold, 17, max_bytes=1000), *(ask(partition, offset) for partition in hot)])
    plan = plan_fetch(
        request,
        [cold, *(None for _ in hot)],
        lambda partition: world.frontiers.get(NODE_ID, partition),
        lambda *_: True,
    )
    reads = TierReads(
        world.tier,
        world.probes.tier,
        plan.tier,
        nursery,
        deadline_s=trio.current_time() + 2.0,
        committed=False,
        client=ClientReads(),
    )
    reads.start()
    own_fetch = OwnFetch(FakeWire(world.broker, nursery))
    await own_fetch.until_ready(request, plan, reads, linger_s)
    reads.stop()
    return Waited(own_fetch, reads, plan)


async def test_without_local_partitions_nothing_is_asked(
    world: TierWorld, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    world.reader.delay_s = 0.3
    waited = await until_ready(world, nursery, world.add_partition())
    assert (trio.current_time(), waited.reads.any_records) == (0.3, True)
    assert not world.broker.fetches


async def test_local_partitions_are_asked_for_as_the_client_did_but_sessionless_and_at_once(
    world: TierWorld, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    cold, hot = world.add_partition("orders", 0), world.add_partition("orders", 1, high_watermark=1500)
    waited = await until_ready(world, nursery, cold, hot)
    (asked,) = world.broker.fetches
    assert (asked.api_version, asked.session_id, asked.session_epoch, asked.client_id) == (17, 0, -1, "a-client")
    assert (asked.max_wait_ms, asked.min_bytes, asked.max_bytes) == (0, 0, waited.plan.local_bytes_max)
    assert [(entry.partition, entry.fetch_offset) for entry in asked.partitions] == [(1, 1000)]
    (answer,) = waited.own_fetch.answers
    assert bytes(answer.records[0])[:100] == broker_batch(1, 1000)
    assert waited.own_fetch.bytes_got == 1000


async def test_hot_records_are_held_up_by_a_slow_tier_for_the_linger_only(
    world: TierWorld, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    cold, hot = world.add_partition("orders", 0), world.add_partition("orders", 1, high_watermark=1500)
    world.reader.delay_s = 10.0
    await until_ready(world, nursery, cold, hot)
    assert trio.current_time() == pytest.approx(LINGER_S)


async def test_an_idle_broker_is_asked_again_in_waits_of_the_linger(
    world: TierWorld, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    cold, idle = world.add_partition("orders", 0), world.add_partition("orders", 1)
    world.reader.delay_s = 0.1
    await until_ready(world, nursery, cold, idle)
    assert trio.current_time() < 0.1 + 2 * LINGER_S + 0.001
    assert [fetch.max_wait_ms for fetch in world.broker.fetches] == [0, 20, 20, 20, 20, 20]
    assert {fetch.min_bytes for fetch in world.broker.fetches[1:]} == {1}


async def test_a_linger_of_zero_is_no_busy_loop(
    world: TierWorld, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    cold, idle = world.add_partition("orders", 0), world.add_partition("orders", 1)
    world.reader.delay_s = 1.0
    await until_ready(world, nursery, cold, idle, linger_s=0.0)
    assert len(world.broker.fetches) <= 201


async def test_nothing_anywhere_ends_at_the_deadline(
    world: TierWorld, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    cold, idle = world.add_partition("orders", 0), world.add_partition("orders", 1)
    world.reader.delay_s = 10.0
    await until_ready(world, nursery, cold, idle)
    assert trio.current_time() == pytest.approx(2.0)


@pytest.mark.parametrize("news", ["error", "preferred replica", "diverging epoch"])
async def test_what_comes_back_at_once_each_time_is_not_asked_for_again(
    world: TierWorld, nursery: trio.Nursery, autojump_clock: MockClock, news: str
) -> None:
    """Failed before: the broker was asked as fast as it answered, for as long as the tier took."""
    cold, other = world.add_partition("orders", 0), world.add_partition("orders", 1)
    log = world.log(other)
    if news == "error":
        log.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    elif news == "preferred replica":
        log.preferred_read_replica = 3
    else:
        log.tags = b"\x01\x00\x0d" + bytes(13)
    world.reader.delay_s = 1.0
    waited = await until_ready(world, nursery, cold, other)
    assert len(world.broker.fetches) == 1
    assert trio.current_time() == pytest.approx(1.0)
    assert waited.reads.any_records


async def test_a_broker_that_does_not_wait_is_not_hammered(
    world: TierWorld, nursery: trio.Nursery, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    cold, idle = world.add_partition("orders", 0), world.add_partition("orders", 1)
    monkeypatch.setattr("proxy.own_fetch.WAIT_S_MIN", LINGER_S)
    world.broker.waits = False
    world.reader.delay_s = 1.0
    await until_ready(world, nursery, cold, idle)
    assert len(world.broker.fetches) <= 52


async def test_a_throttled_answer_is_whole_and_ends_the_wait(
    world: TierWorld, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    cold, hot = world.add_partition("orders", 0), world.add_partition("orders", 1)
    world.broker.throttle_time_ms = 300
    world.reader.delay_s = 1.0
    waited = await until_ready(world, nursery, cold, hot)
    assert waited.own_fetch.whole is not None
    assert waited.own_fetch.whole.throttle_time_ms == waited.own_fetch.throttle_time_ms == 300
    assert trio.current_time() == 0.0


async def test_tier_reads_that_are_all_done_leave_nothing_to_wait_for(
    world: TierWorld, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    cold, idle = world.add_partition("orders", 0), world.add_partition("orders", 1)
    world.broker.latency_s = 0.1
    await until_ready(world, nursery, cold, idle)
    assert trio.current_time() == pytest.approx(0.1)
    assert len(world.broker.fetches) == 1


async def test_the_last_answer_of_a_partition_stands(world: TierWorld, nursery: trio.Nursery) -> None:
    partition = world.add_partition()
    own_fetch = OwnFetch(FakeWire(world.broker, nursery))
    request = fetch_of([ask(partition, 1000, max_bytes=100)])
    await own_fetch.ask(request, request.partitions, 1000)
    world.broker.append(world.log(partition))
    await own_fetch.ask(request, request.partitions, 1000)
    (answer,) = own_fetch.answers
    assert (answer.high_watermark, answer.records_bytes, own_fetch.bytes_got) == (1001, 100, 100)


async def test_a_whole_fetch_waits_as_the_client_would(
    world: TierWorld, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    partition = world.add_partition()
    request = fetch_of([ask(partition, 1000)], max_wait_ms=700, min_bytes=3, max_bytes=2**31 - 1)
    response = await fetch_whole(FakeWire(world.broker, nursery), request, 0, FETCH_BYTES_MAX)
    assert trio.current_time() == pytest.approx(0.7)
    assert [answer.high_watermark for answer in response.partitions] == [1000]
    (asked,) = world.broker.fetches
    assert (asked.max_wait_ms, asked.min_bytes, asked.max_bytes) == (700, 3, FETCH_BYTES_MAX)
    assert (asked.session_id, asked.session_epoch) == (0, 0)


async def test_a_session_upstream_is_closed_by_a_fetch_of_nothing_that_nobody_waits_for(
    world: TierWorld, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    world.broker.latency_s = 5.0
    wire = FakeWire(world.broker, nursery)
    await close_upstream_session(wire, fetch_of([ask(world.add_partition(), 17)]), 99)
    await close_upstream_session(wire, fetch_of([]), 0)
    assert trio.current_time() == 0
    await trio.sleep(10)
    (asked,) = world.broker.fetches
    assert (asked.session_id, asked.session_epoch, asked.partitions, asked.max_wait_ms) == (99, -1, [], 0)
