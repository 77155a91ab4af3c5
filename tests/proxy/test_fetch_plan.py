"""The split of a Fetch and the shares of its byte budget."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.api_01_fetch import FetchPartition
from proxy.fetch_plan import FETCH_BYTES_MAX, FetchPlan, key_of, leave_to_broker, plan_fetch, share_out_again
from proxy.frontier import Frontier
from tests.support.segments import topic_partition
from tests.support.tier_world import ask, fetch_of

FRONTIER = Frontier(local_log_start_offset=1000, log_end_offset=1500, leader_epoch=5, learned_at_s=0.0)


def plan_of(asked: Sequence[FetchPartition], max_bytes: int = 50_000_000) -> FetchPlan:
    """Offsets below the local log start of FRONTIER are the tier's."""
    return plan_fetch(
        fetch_of(asked, max_bytes=max_bytes),
        [topic_partition(entry.topic or "", entry.partition) for entry in asked],
        lambda _: FRONTIER,
        lambda entry, _, frontier: entry.fetch_offset < frontier.local_log_start_offset,
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
    )
    assert [part.asked for part in plan.tier] == asked[2:]
    assert plan.local == asked[:2]


def test_each_part_is_charged_its_whole_limit_in_advance() -> None:
    """spec/kafka-remote.md §3.2: 3 times 1 MiB of 1.5 MiB."""
    plan = plan_of(tier_asks(1_048_576, 1_048_576, 1_048_576), max_bytes=1_572_864)
    assert budgets_of(plan) == [(1_048_576, True), (524_288, False), (0, False)]
    assert plan.local_bytes_max == 0


def test_what_the_tier_is_not_charged_for_remains_for_the_broker() -> None:
    assert plan_of(tier_asks(300, 300), max_bytes=1000).local_bytes_max == 400


@pytest.mark.parametrize("max_bytes", [0, -1, -(2**31)])
def test_a_request_without_a_limit_left_is_no_read(max_bytes: int) -> None:
    assert budgets_of(plan_of(tier_asks(100, 100), max_bytes=max_bytes)) == [(0, False), (0, False)]


def test_the_first_part_that_has_a_limit_may_exceed_it() -> None:
    assert budgets_of(plan_of(tier_asks(0, -5, 10, 10))) == [(0, False), (0, False), (10, True), (10, False)]


def test_a_request_is_never_given_more_than_a_broker_gives() -> None:
    plan = plan_of(tier_asks(2**31 - 1, 2**31 - 1), max_bytes=2**31 - 1)
    assert budgets_of(plan) == [(FETCH_BYTES_MAX, True), (0, False)]


def test_shares_that_fall_to_others_are_named() -> None:
    plan = plan_of(tier_asks(600, 600, 600), max_bytes=1000)
    first, second, third = plan.tier
    assert share_out_again([second, third], 1000) == [second, third]
    assert budgets_of(plan)[1:] == [(600, True), (400, False)]
    assert share_out_again([second, third], 1000) == []
    assert first.budget_bytes == 600


def test_parts_are_told_apart_by_identity() -> None:
    one, other = plan_of(tier_asks(100) * 2).tier
    assert one != other
    assert len({one, other}) == 2


def test_parts_left_to_the_broker_keep_their_place_and_give_up_their_share() -> None:
    asked = tier_asks(100, 100, 100)
    plan = plan_of(asked, 150)
    left = leave_to_broker(fetch_of(asked, max_bytes=150), plan, {plan.tier[0]})
    assert left.local == [asked[0]]
    assert [(part.asked, part.budget_bytes, part.minimum_one_batch) for part in left.tier] == [
        (asked[1], 100, True),
        (asked[2], 50, False),
    ]
    assert left.local_bytes_max == 0


@given(
    st.lists(st.tuples(st.integers(-10, 2000), st.integers(-10, 1000)), max_size=30),
    st.integers(-10, 5000),
)
def test_each_partition_is_planned_once_within_the_limits(asks: list[tuple[int, int]], max_bytes: int) -> None:
    asked = [
        ask(topic_partition("orders", number), offset, max_bytes=limit) for number, (offset, limit) in enumerate(asks)
    ]
    plan = plan_of(asked, max_bytes)
    planned = [key_of(part.asked) for part in plan.tier] + [key_of(entry) for entry in plan.local]
    assert sorted(planned) == sorted(key_of(entry) for entry in asked)
    budgets = [part.budget_bytes for part in plan.tier]
    assert all(0 <= part.budget_bytes <= max(0, part.asked.partition_max_bytes) for part in plan.tier)
    assert sum(budgets) + plan.local_bytes_max == max(0, max_bytes)
    exceeding = [part for part in plan.tier if part.minimum_one_batch]
    assert exceeding == [part for part in plan.tier if part.budget_bytes > 0][:1]
    # Nothing is kept back from a part while a later one gets something.
    for part, later in zip(plan.tier, plan.tier[1:], strict=False):
        if later.budget_bytes > 0:
            assert part.budget_bytes == max(0, part.asked.partition_max_bytes)
