"""The split of a Fetch and the shares of its byte budget."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.fetch.messages import FetchPartition
from protocol.wire.errors import ErrorCode
from proxy.fetch.assembly import FetchPlan, key_of, leave_out, leave_to_broker, plan_fetch
from proxy.fetch.known import Frontier
from tests.support.fake_wire import BATCH_BYTES
from tests.support.for_each import for_each
from tests.support.segments import topic_partition
from tests.support.tier_world import TierWorld, ask, fetch_of, records_of
from tests.support.virtual_time import for_each_run

pytestmark = pytest.mark.autojump

FRONTIER = Frontier(local_log_start_offset=1000, log_end_offset=1500, leader_epoch=5, learned_at_s=0.0)


def plan_of(asked: Sequence[FetchPartition], max_bytes: int = 50_000_000) -> FetchPlan:
    """Offsets below the local log start of FRONTIER are the tier's."""
    return plan_fetch(
        fetch_of(asked, max_bytes=max_bytes),
        [topic_partition(entry.topic or "", entry.partition) for entry in asked],
        lambda _: FRONTIER,
        lambda entry, _, frontier: entry.fetch_offset < frontier.local_log_start_offset,
        lambda entry, _: entry.fetch_offset < FRONTIER.log_end_offset,
    )


def tier_asks(*limits: int) -> list[FetchPartition]:
    return [ask(topic_partition("orders", number), 17, max_bytes=limit) for number, limit in enumerate(limits)]


def budgets_of(plan: FetchPlan) -> list[tuple[int, bool]]:
    return [(part.budget_bytes, part.minimum_one_batch) for part in plan.tier]


def test_both_sides_keep_the_requests_order() -> None:
    asked = [ask(topic_partition("orders", number), offset) for number, offset in enumerate([17, 1000, 999, 1400, 0])]
    plan = plan_of(asked)
    assert [part.asked for part in plan.tier] == [asked[0], asked[2], asked[4]]
    assert plan.local == [asked[1], asked[3]]


def test_a_partition_of_which_nothing_is_known_is_the_brokers() -> None:
    asked = tier_asks(100, 100, 100)
    plan = plan_fetch(
        fetch_of(asked),
        [None, topic_partition("orders", 1), topic_partition("orders", 2)],
        lambda candidate: FRONTIER if candidate.partition == 2 else None,
        lambda *_: True,
        lambda *_: False,
    )
    assert [part.asked for part in plan.tier] == asked[2:]
    assert plan.local == asked[:2]


def test_shares_that_fall_to_others_are_named() -> None:
    asked = tier_asks(600, 600, 600)
    request, plan = fetch_of(asked, max_bytes=1000), plan_of(asked, max_bytes=1000)
    first, second, third = plan.tier
    left, changed = leave_out(request, plan, {first})
    assert (left.tier, changed) == ([second, third], [second, third])
    assert budgets_of(left) == [(600, True), (400, False)]
    assert leave_out(request, left, {first}) == (left, [])
    assert leave_out(request, left, ()) == (left, ())
    assert first.budget_bytes == 600


def test_parts_left_to_the_broker_keep_their_place_and_their_share() -> None:
    asked = tier_asks(100, 100, 100)
    plan = plan_of(asked, 150)
    left = leave_to_broker(fetch_of(asked, max_bytes=150), plan, {plan.tier[0]})
    assert left.local == [asked[0]]
    assert [part.asked for part in left.tier] == asked[1:]
    assert budgets_of(left) == [(50, True), (0, False)]
    assert left.local_bytes_max == 100


# --- the broker's order ---

PLENTY, NOTHING = 1200, 1500
"""Offsets above the local log start of FRONTIER: far from the log's end, and at it."""


def charges_of_broker(asked: Sequence[FetchPartition], max_bytes: int) -> list[int]:
    """Return what a broker takes for each partition where a local one gives its whole limit or nothing."""
    charges, left = [], max(0, max_bytes)
    for entry in asked:
        wanted = 0 if entry.fetch_offset == NOTHING else max(0, entry.partition_max_bytes)
        charges.append(min(wanted, left))
        left -= charges[-1]
    return charges


@given(
    st.lists(st.tuples(st.sampled_from([17, PLENTY, NOTHING]), st.integers(-10, 1000)), max_size=30),
    st.integers(-10, 5000),
)
def test_each_place_gets_what_it_gets_at_the_broker(asks: list[tuple[int, int]], max_bytes: int) -> None:
    asked = [
        ask(topic_partition("orders", number), offset, max_bytes=limit) for number, (offset, limit) in enumerate(asks)
    ]
    plan, charges = plan_of(asked, max_bytes), charges_of_broker(asked, max_bytes)
    expected = {key_of(entry): charge for entry, charge in zip(asked, charges, strict=True)}
    assert [part.budget_bytes for part in plan.tier] == [expected[key_of(part.asked)] for part in plan.tier]
    # The local ones get theirs from the broker, in one Fetch of their own.
    assert charges_of_broker(plan.local, plan.local_bytes_max) == [expected[key_of(entry)] for entry in plan.local]


def test_an_answered_partition_leaves_its_share_to_tier_and_local_ones_behind_it() -> None:
    asked = [*tier_asks(600, 600), ask(topic_partition("local", 0), PLENTY, max_bytes=600)]
    request, plan = fetch_of(asked, max_bytes=1000), plan_of(asked, 1000)
    assert (plan.local_bytes_max, plan.local[0].partition_max_bytes) == (0, 0)
    left, _ = leave_out(request, plan, set(plan.tier))
    assert (left.tier, left.local_bytes_max, left.local) == ([], 1000, asked[2:])


# --- whole Fetches ---

TIERED, LOCAL, IDLE, REFUSED, FENCED = "tiered", "local", "idle", "refused", "fenced"


async def sizes_of(
    world: TierWorld, kinds: list[str], max_bytes: int, *, limit: int = 1000, fetches: int = 1
) -> list[int]:
    """The size of each answer in the last of these Fetches of partitions of these kinds, in this order."""
    partitions = [world.add_partition(kind, number, high_watermark=1500) for number, kind in enumerate(kinds)]
    offsets = {TIERED: 17, LOCAL: 1100, IDLE: 1500, REFUSED: 17, FENCED: 1100}
    errors = {REFUSED: ErrorCode.TOPIC_AUTHORIZATION_FAILED, FENCED: ErrorCode.FENCED_LEADER_EPOCH}
    for partition, kind in zip(partitions, kinds, strict=True):
        world.log(partition).error_code = errors.get(kind, ErrorCode.NONE)
    asked = [ask(each, offsets[kind], max_bytes=limit) for each, kind in zip(partitions, kinds, strict=True)]
    client = world.client()
    responses = [await client.fetch(asked, max_bytes=max_bytes) for _ in range(fetches)]
    return [len(records) for records in records_of(responses[-1])]


@for_each("fetches", [1, 2])
@for_each_run(
    "kinds, max_bytes, sizes",
    [
        # Failed before: one batch of the first local one, nothing of the others, and 2 MiB of the tier.
        ([LOCAL] * 3 + [TIERED] * 4, 2000, [1000, 1000, 0, 0, 0, 0, 0]),
        ([TIERED] * 4 + [LOCAL] * 3, 2000, [1000, 1000, 0, 0, 0, 0, 0]),
        ([LOCAL, TIERED, LOCAL, TIERED], 2500, [1000, 1000, 500, 0]),
        ([TIERED, LOCAL, TIERED, LOCAL], 2500, [1000, 1000, 500, 0]),
        ([IDLE] * 60 + [TIERED] * 2, 1500, [0] * 60 + [1000, 500]),
        ([IDLE, TIERED, IDLE, LOCAL], 1500, [0, 1000, 0, 500]),
        ([REFUSED, TIERED, LOCAL], 1500, [0, 1000, 500]),
        ([REFUSED, LOCAL, TIERED], 1500, [0, 1000, 500]),
        # Failed before: one that is believed to have records gets an error, and took its limit all the same.
        ([FENCED, TIERED], 1000, [0, 1000]),
        ([FENCED, TIERED, TIERED], 1500, [0, 1000, 500]),
    ],
)
async def test_partitions_take_from_the_limit_in_request_order(
    world: TierWorld, kinds: list[str], max_bytes: int, sizes: list[int], fetches: int
) -> None:
    assert await sizes_of(world, kinds, max_bytes, fetches=fetches) == sizes


async def test_what_a_local_partition_behind_has_taken_is_not_given_twice(world: TierWorld) -> None:
    """From the second Fetch on the tier's has it, as at the broker: that the first is fenced is known then."""
    assert await sizes_of(world, [FENCED, TIERED, LOCAL], 1000) == [0, 0, 1000]


@for_each_run(
    "kinds, sizes",
    [
        ([TIERED, LOCAL, TIERED], [BATCH_BYTES, 0, 0]),
        ([LOCAL, TIERED, LOCAL], [BATCH_BYTES, 0, 0]),
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
        assert [answer.records_bytes for answer in given] == [1000] * len(given)
        turns.append("".join(name_of[answer.topic_id or b""] for answer in given))
        for answer in given:
            asked[answer.topic_id or b""].fetch_offset += 10
        response = await client.fetch(
            [asked[answer.topic_id or b""] for answer in given],
            max_bytes=2000,
            session_id=response.session_id,
            session_epoch=epoch,
        )
    assert turns == ["ab", "ab", "cu", "vw", "xa"]  # the full answer that opens a session moves nobody


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
