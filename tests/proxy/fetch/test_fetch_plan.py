"""The split of a Fetch and the shares of its byte budget."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import trio
from hypothesis import given as given_each
from hypothesis import strategies as st

from protocol.fetch.messages import FetchPartition, PartitionAnswer, PartitionKey, key_of
from protocol.wire.errors import ErrorCode
from proxy.connection.request_handlers import PendingAnswer
from proxy.fetch.frontiers import Frontier
from proxy.fetch.plan import FetchPlan, Instead, TierPart, local_bytes_max, plan_fetch, share_out
from tests.support.fake_wire import BATCH_BYTES
from tests.support.for_each import for_each
from tests.support.segments import topic_partition
from tests.support.tier_world import FakeFetcher, TierWorld, ask, fetch_of, records_of
from tests.support.virtual_time import for_each_run

pytestmark = pytest.mark.autojump

FRONTIER = Frontier(local_log_start_offset=1000, log_end_offset=1500, leader_epoch=5, learned_at_s=0.0)


def plan_of(asked: Sequence[FetchPartition], max_bytes: int = 50_000_000) -> FetchPlan:
    """Offsets below the local log start of FRONTIER are the tier's."""
    request = fetch_of(asked, max_bytes=max_bytes)
    parts = [
        TierPart(entry, topic_partition(entry.topic or "", entry.partition), FRONTIER, place)
        for place, entry in enumerate(asked)
        if entry.fetch_offset < FRONTIER.local_log_start_offset
    ]
    return plan_fetch(request, parts, {})


def tier_asks(*limits: int) -> list[FetchPartition]:
    return [ask(topic_partition("orders", number), 17, max_bytes=limit) for number, limit in enumerate(limits)]


def test_both_sides_keep_the_requests_order() -> None:
    asked = [ask(topic_partition("orders", number), offset) for number, offset in enumerate([17, 1000, 999, 1400, 0])]
    plan = plan_of(asked)
    assert [part.asked for part in plan.tier] == [asked[0], asked[2], asked[4]]
    assert plan.local == [asked[1], asked[3]]


def given(asked: FetchPartition, size: int) -> dict[PartitionKey, PartitionAnswer]:
    return {key_of(asked): PartitionAnswer(*key_of(asked), 0, 10, 10, 0, records=[bytes(size)])}


def test_a_refused_part_takes_nothing() -> None:
    asked = tier_asks(600, 600, 600)
    request, plan = fetch_of(asked, max_bytes=1000), plan_of(asked, max_bytes=1000)
    first, second, third = plan.tier
    assert share_out(request, plan, plan.tier, {}) == {first: (600, True), second: (400, False), third: (0, False)}
    assert share_out(request, plan, plan.tier[1:], {}) == {second: (600, True), third: (400, False)}
    elsewhere = replace(plan, instead={first: Instead()})
    assert share_out(request, elsewhere, plan.tier, {})[second] == (600, True)


def test_the_tier_has_what_local_partitions_leave_and_the_first_may_exceed() -> None:
    """A local one that exceeds its limit behind a tier partition will have to go, and takes nothing."""
    front, behind = tier_asks(300, 300)
    local = ask(topic_partition("local", 0), 1100, max_bytes=200)
    request, plan = fetch_of([front, local, behind], max_bytes=500), plan_of([front, local, behind], max_bytes=500)
    for size, shares in (
        (0, [(300, True), (200, False)]),
        (150, [(300, True), (50, False)]),
        (201, [(300, True), (200, False)]),
    ):
        assert [*share_out(request, plan, plan.tier, given(local, size)).values()] == shares, size
    assert [*share_out(request, plan, plan.tier[1:], given(local, 201)).values()] == [(299, False)]


@given_each(st.lists(st.tuples(st.booleans(), st.integers(-10, 1000)), min_size=1, max_size=30), st.integers(-10, 5000))
def test_no_answer_is_planned_beyond_the_limit_and_none_below_it(asks: list[tuple[bool, int]], max_bytes: int) -> None:
    asked = [
        ask(topic_partition("orders", number), 17 if is_tier else 1100, max_bytes=limit)
        for number, (is_tier, limit) in enumerate(asks)
    ]
    request, plan = fetch_of(asked, max_bytes=max_bytes), plan_of(asked, max_bytes)
    limit = max(0, max_bytes)
    local_bytes = 0
    local: dict[PartitionKey, PartitionAnswer] = {}
    for entry in plan.local:
        size = max(0, min(entry.partition_max_bytes, local_bytes_max(request, plan) - local_bytes))
        local |= given(entry, size)
        local_bytes += size
    shares = share_out(request, plan, plan.tier, local)
    wanted = sum(max(0, size) for _, size in asks)
    assert local_bytes + sum(share.bytes_max for share in shares.values()) <= limit
    if wanted <= limit:
        assert local_bytes + sum(share.bytes_max for share in shares.values()) == wanted
    assert local_bytes_max(request, plan) >= limit * len(plan.local) // len(asked)


# --- whole Fetches ---

TIERED, LOCAL, IDLE, REFUSED, FENCED = "tiered", "local", "idle", "refused", "fenced"


async def sizes_of(
    world: TierWorld, kinds: list[str], max_bytes: int, *, limit: int = 1000, fetches: int = 1
) -> list[int]:
    """Return the size of each answer in the last of these Fetches of partitions of these kinds, in the request's
    order."""
    partitions = [world.add_partition(kind, number, high_watermark=1500) for number, kind in enumerate(kinds)]
    offsets = {TIERED: 17, LOCAL: 1100, IDLE: 1500, REFUSED: 17, FENCED: 1100}
    errors = {REFUSED: ErrorCode.TOPIC_AUTHORIZATION_FAILED, FENCED: ErrorCode.FENCED_LEADER_EPOCH}
    for partition, kind in zip(partitions, kinds, strict=True):
        world.log(partition).error_code = errors.get(kind, ErrorCode.NONE)
    asked = [ask(each, offsets[kind], max_bytes=limit) for each, kind in zip(partitions, kinds, strict=True)]
    client = world.client()
    responses = [await client.fetch(asked, max_bytes=max_bytes) for _ in range(fetches)]
    sizes = {answer.partition: answer.records_bytes for answer in responses[-1].partitions}
    return [sizes[each.partition] for each in asked]


@for_each("fetches", [1, 2])
@for_each_run(
    "kinds, max_bytes, sizes",
    [
        # Failed before: one batch of the first local one, nothing of the others, and 2 MiB of the tier.
        ([LOCAL] * 3 + [TIERED] * 4, 2800, [1000, 200, 0, 1000, 600, 0, 0]),
        ([TIERED] * 4 + [LOCAL] * 3, 2800, [1000, 600, 0, 0, 1000, 200, 0]),
        ([LOCAL, TIERED, LOCAL, TIERED], 2600, [1000, 1000, 300, 300]),
        ([TIERED, LOCAL, TIERED, LOCAL], 2600, [1000, 1000, 300, 300]),
        ([TIERED, LOCAL], 2000, [1000, 1000]),
        ([IDLE] * 60 + [TIERED] * 2, 1500, [0] * 60 + [1000, 500]),
        ([IDLE, TIERED, IDLE, LOCAL], 1600, [0, 600, 0, 1000]),
        ([REFUSED, TIERED, LOCAL], 1500, [0, 1000, 500]),
        ([REFUSED, LOCAL, TIERED], 1500, [0, 500, 1000]),
        # Failed before: one that is believed to have records gets an error, and took its limit all the same.
        ([FENCED, TIERED], 1000, [0, 1000]),
        ([FENCED, TIERED, TIERED], 1500, [0, 1000, 500]),
    ],
)
async def test_local_partitions_have_their_part_and_the_tier_the_rest_in_request_order(
    world: TierWorld, kinds: list[str], max_bytes: int, sizes: list[int], fetches: int
) -> None:
    assert await sizes_of(world, kinds, max_bytes, fetches=fetches) == sizes


async def bytes_of(world: TierWorld, client: FakeFetcher, *asked: FetchPartition, max_bytes: int) -> list[int]:
    return [len(records) for records in records_of(await client.fetch(asked, max_bytes=max_bytes))]


async def test_a_tier_partition_beside_99_idle_ones_has_as_much_as_alone(world: TierWorld) -> None:
    cold = world.add_partition("cold")
    idle = [world.add_partition("idle", number, high_watermark=1500) for number in range(99)]
    client, asked = world.client(), ask(cold, 17, max_bytes=50_000)
    (alone,) = await bytes_of(world, client, asked, max_bytes=50_000)
    for place in (0, 50, 99):
        others = [ask(each, 1500, max_bytes=50_000) for each in idle]
        sizes = await bytes_of(world, client, *others[:place], asked, *others[place:], max_bytes=50_000)
        assert sum(sizes) == sizes[place] >= 0.95 * alone, place


@for_each("max_bytes", [300, 1000, 1500, 50_000])
@for_each_run("is_tier_first", [False, True])
async def test_neither_side_starves_the_other(world: TierWorld, is_tier_first: bool, max_bytes: int) -> None:
    """Failed before where the tier's is first: the local one had nothing, for as long as the tier's took all."""
    cold = world.add_partition("cold", segments=[(0, 100_000)], local_log_start_offset=100_001, high_watermark=100_001)
    hot = world.add_partition("hot", high_watermark=200_000)
    client, offsets = world.client(), {cold: 17, hot: 1000}
    for _ in range(50):
        order = [cold, hot] if is_tier_first else [hot, cold]
        asked = [ask(each, offsets[each], max_bytes=max_bytes) for each in order]
        sizes = await bytes_of(world, client, *asked, max_bytes=max_bytes)
        assert all(size >= BATCH_BYTES for size in sizes)
        assert sum(sizes) <= max_bytes
        for each, size in zip(order, sizes, strict=True):
            offsets[each] += size // BATCH_BYTES


@for_each("is_idle_first", [False, True])
@for_each_run("max_wait_ms", [0, 500, 5000])
async def test_a_hot_partition_beside_a_store_that_hangs_is_answered_soon(
    world: TierWorld, max_wait_ms: int, is_idle_first: bool
) -> None:
    cold, hot = world.add_partition("cold"), world.add_partition("hot", high_watermark=1101)
    world.reader.delay_s = 1000.0
    client, offset = world.client(), 1101 if is_idle_first else 1100

    async def append() -> None:
        await trio.sleep(0.3)
        world.broker.append(world.log(hot))

    world.nursery.start_soon(append)
    asked = [ask(cold, 17), ask(hot, offset)]
    began_s = trio.current_time()
    sizes = [len(records) for records in records_of(await client.fetch(asked, max_wait_ms=max_wait_ms))]
    if is_idle_first and max_wait_ms < 5000:
        # At the deadline of 500 ms it was asked once, and comes with the next Fetch.
        sizes = [len(records) for records in records_of(await client.fetch(asked, max_wait_ms=max_wait_ms))]
    assert sizes == [0, BATCH_BYTES]
    assert trio.current_time() - began_s <= (0.55 if is_idle_first else 0.05)


async def test_a_batch_beyond_its_limit_has_its_turn_in_a_session(world: TierWorld) -> None:
    """The one in the tier is in front at first; each that has given records goes to the end (KIP-227)."""
    cold, hot = world.add_partition("cold"), world.add_partition("hot", high_watermark=1500)
    asked: dict[bytes, FetchPartition] = {
        partition.topic_id: ask(partition, offset, max_bytes=BATCH_BYTES - 1)
        for partition, offset in ((cold, 17), (hot, 1100))
    }
    client, turns, session_id = world.client(), list[str](), 0
    named = [*asked.values()]
    for epoch in range(6):
        response = await client.fetch(named, session_id=session_id, session_epoch=epoch)
        session_id = response.session_id
        (given,) = [answer for answer in response.partitions if answer.records_bytes]
        named = [asked[given.topic_id or b""]]
        named[0].fetch_offset += 1
        turns.append("cold" if given.topic_id == cold.topic_id else "hot")
    assert turns == ["cold", "cold", "hot", "cold", "hot", "cold"]  # the full answer that opens a session moves nobody


async def test_the_probe_and_the_local_partitions_cost_one_round_trip(
    world: TierWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Failed before: the second was sent when the first was answered."""
    cold, hot = world.add_partition("cold"), world.add_partition("hot", high_watermark=1500)
    client, sent_at_s = world.client(), list[float]()
    ask_on = client.wire.ask

    async def noted(*question: Any) -> PendingAnswer:
        sent_at_s.append(trio.current_time())
        return await ask_on(*question)

    monkeypatch.setattr(client.wire, "ask", noted)
    world.broker.latency_s = 0.1
    await client.fetch([ask(cold, 17), ask(hot, 1100)])
    assert world.broker.asked == [[("cold", 0, 1000)], [("hot", 0, 1100)]]
    assert sent_at_s == [0.0, 0.0]


@for_each_run(
    "kinds, sizes",
    [
        ([TIERED, LOCAL, TIERED], [BATCH_BYTES, 0, 0]),
        ([LOCAL, TIERED, LOCAL], [BATCH_BYTES, 0, 0]),
        ([TIERED, LOCAL, LOCAL], [BATCH_BYTES, 0, 0]),
        ([IDLE, TIERED, LOCAL], [0, BATCH_BYTES, 0]),
        ([IDLE, LOCAL, TIERED], [0, BATCH_BYTES, 0]),
        ([REFUSED, LOCAL, TIERED], [0, BATCH_BYTES, 0]),
        ([FENCED, TIERED, LOCAL], [0, BATCH_BYTES, 0]),
        ([FENCED, LOCAL, TIERED], [0, BATCH_BYTES, 0]),
    ],
)
async def test_the_first_that_has_records_may_exceed_its_limit_by_one_batch_and_no_other(
    world: TierWorld, kinds: list[str], sizes: list[int]
) -> None:
    assert await sizes_of(world, kinds, 5000, limit=BATCH_BYTES - 1) == sizes


async def test_what_is_given_back_without_a_share_is_not_waited_for(world: TierWorld) -> None:
    served, unanswered = world.add_partition("orders", 0), world.add_partition("orders", 1)
    world.broker.left_out.add(unanswered)
    asked = [ask(served, 17, max_bytes=1000), ask(unanswered, 700, max_bytes=1000)]
    response = await world.client().fetch(asked, max_bytes=1000, max_wait_ms=5000)
    assert [len(each) for each in records_of(response)] == [1000, 0]
    assert [entry.partition for entry in world.broker.fetches[-1].partitions] == [1]
    assert (world.broker.fetches[-1].max_bytes, world.broker.fetches[-1].max_wait_ms) == (0, 0)


async def test_a_sessions_rotation_gives_each_partition_its_turn(world: TierWorld) -> None:
    """KIP-227: a partition that gave records goes to the end. Failed before: the local ones got a batch at a time."""
    names = ["a", "b", "c", "u", "v", "w", "x"]
    partitions = [world.add_partition(name, high_watermark=1500) for name in names]
    name_of: dict[bytes, str] = {partition.topic_id: name for name, partition in zip(names, partitions, strict=True)}
    asked: dict[bytes, FetchPartition] = {
        partition.topic_id: ask(partition, 1100 if number < 3 else 17, max_bytes=1000)
        for number, partition in enumerate(partitions)
    }
    client = world.client()
    response = await client.fetch([*asked.values()], max_bytes=2000)
    turns = []
    for epoch in range(1, 6):
        given = [answer for answer in response.partitions if answer.records_bytes]
        assert sum(answer.records_bytes for answer in given) == 2000
        turns.append("".join(name_of[answer.topic_id or b""] for answer in given))
        for answer in given:
            asked[answer.topic_id or b""].fetch_offset += answer.records_bytes // BATCH_BYTES
        response = await client.fetch(
            [asked[answer.topic_id or b""] for answer in given],
            max_bytes=2000,
            session_id=response.session_id,
            session_epoch=epoch,
        )
    # The full answer that opens a session moves nobody.
    assert turns == ["auv", "auv", "bwx", "cuv", "awx"]


async def test_a_local_partition_that_gives_nothing_does_not_starve_those_behind_it(world: TierWorld) -> None:
    """The broker says that it has records and gives none: it is asked as a follower that lags, or reads remotely."""
    cold, stuck = world.add_partition("orders", 0), world.add_partition("orders", 1, high_watermark=1500)
    world.log(stuck).last_stable_offset = 1100
    client = world.client()
    asked = [ask(stuck, 1100, max_bytes=1000), ask(cold, 17, max_bytes=1000)]
    sizes = [
        [len(each) for each in records_of(await client.fetch(asked, max_bytes=1000, isolation_level=1))]
        for _ in range(2)
    ]
    assert sizes == [[0, 1000], [0, 1000]]


async def test_a_batch_that_is_not_due_takes_nothing_from_those_behind_it(world: TierWorld) -> None:
    """It took all that local partitions may bring, and has to go: the broker would not have read it. Failed before."""
    cold, large, small = (world.add_partition("orders", number, high_watermark=1500) for number in range(3))
    world.log(large).batches[1100] = bytes(10 * BATCH_BYTES)
    asked = [ask(each, offset, max_bytes=BATCH_BYTES) for each, offset in ((cold, 17), (large, 1100), (small, 1100))]
    response = await world.client().fetch(asked, max_bytes=6 * BATCH_BYTES)
    assert [len(each) for each in records_of(response)] == [BATCH_BYTES, 0, BATCH_BYTES]
    response = await world.client().fetch(asked, max_bytes=BATCH_BYTES // 2)
    assert [len(each) for each in records_of(response)] == [BATCH_BYTES, 0, 0], "nothing is left for them"
    assert [answer.error_code for answer in response.partitions] == [0, 0, 0]
