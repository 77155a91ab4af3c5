"""Readiness: what is needed, what merely degrades, and what each says of itself."""

from collections.abc import Awaitable, Callable

import pytest
import trio

from proxy.readiness import ConditionName, Readiness

pytestmark = pytest.mark.autojump

MEET: dict[ConditionName, Callable[[Readiness], None]] = {
    ConditionName.CATALOG: lambda readiness: readiness.catalog_live(7),
    ConditionName.UPSTREAM: lambda readiness: readiness.upstream_answered(3),
    ConditionName.TIER: lambda readiness: readiness.tier_answered(),
}


@pytest.fixture
def readiness() -> Readiness:
    """With every condition met."""
    readiness = Readiness()
    for meet in MEET.values():
        meet(readiness)
    return readiness


def test_is_ready_when_no_condition_is_missing() -> None:
    for missing in (*MEET, None):
        readiness = Readiness()
        for name, meet in MEET.items():
            if name is not missing:
                meet(readiness)
        assert readiness.ready == (missing is None)
        assert not readiness.degraded
        assert [reason.partition(":")[0] for reason in readiness.reasons] == (
            [] if missing is None else [missing.value]
        )
        assert readiness.complaints == []


def test_a_tier_that_fails_before_it_ever_answered_is_not_ready() -> None:
    # Failed before: it was degraded, which is ready.
    readiness = Readiness()
    readiness.catalog_live(7)
    readiness.upstream_answered(3)
    readiness.tier_failed("NoSuchBucket")
    assert not readiness.ready
    assert readiness.reasons == ["tier: NoSuchBucket"]
    readiness.tier_answered()
    assert readiness.ready


async def is_waited_for(wait: Callable[[], Awaitable[None]]) -> bool:
    with trio.move_on_after(10) as scope:
        await wait()
    return scope.cancelled_caught


def test_what_degrades_counts_as_ready_and_complains(readiness: Readiness) -> None:
    readiness.catalog_degraded("2000000 segments, 3 partitions kept out")
    assert readiness.ready
    assert readiness.complaints == ["catalog: 2000000 segments, 3 partitions kept out"]
    readiness.catalog_live(7)
    readiness.tier_failed("403 from bucket x")
    assert readiness.ready
    assert readiness.degraded
    assert readiness.complaints == ["tier: 403 from bucket x"]
    readiness.tier_answered()
    assert not readiness.degraded


def test_a_partition_problem_is_named_degrades_and_heals(readiness: Readiness) -> None:
    readiness.partition_problem(12, "no leader")
    readiness.partition_problem(3, "connection refused")
    readiness.partition_problem(12, "not readable")
    assert readiness.ready
    assert readiness.degraded
    assert readiness.complaints == ["metadata partition 3: connection refused", "metadata partition 12: not readable"]
    readiness.partition_recovered(3)
    readiness.partition_recovered(12)
    readiness.partition_recovered(12)
    assert not readiness.degraded


def test_readiness_can_be_lost(readiness: Readiness) -> None:
    readiness.upstream_answered(5, {4: "taken", 5: "taken", 6: "taken"})
    assert readiness.reasons == [
        "upstream: this process listens for 2 of 5 brokers only: broker 4: taken; broker 5: taken; broker 6: taken"
    ]
    readiness.upstream_answered(3)
    readiness.catalog_unavailable("partitions were added")
    assert readiness.reasons == ["catalog: partitions were added"]
    readiness.catalog_live(7)
    assert readiness.ready
    readiness.drain()
    assert readiness.reasons == ["draining"]
    assert not readiness.ready


def test_tasks_that_fail_again_and_again_are_not_ready(readiness: Readiness) -> None:
    readiness.tasks_fail(["copying has failed", "upstream has failed"])
    assert (readiness.ready, readiness.reasons) == (False, ["tasks: copying has failed; upstream has failed"])
    readiness.tasks_fail([])
    assert readiness.ready


async def test_wait_ready_returns_at_the_last_condition_and_remembers() -> None:
    readiness = Readiness()
    for meet in MEET.values():
        assert await is_waited_for(readiness.wait_ready)
        meet(readiness)
    assert not await is_waited_for(readiness.wait_ready)
    readiness.catalog_unavailable("gone")
    assert not await is_waited_for(readiness.wait_ready)
    assert not readiness.ready


def test_silent_brokers_make_it_unready_before_its_first_readiness_alone() -> None:
    """Failed before: a balancer dropped the clients that it held until a broker was back."""
    readiness = Readiness()
    readiness.upstream_answered(4)
    readiness.upstream_unavailable("no broker answers")
    readiness.catalog_live(7)
    readiness.tier_answered()
    assert readiness.reasons == ["upstream: no broker answers"]
    readiness.upstream_answered(4, silent=dict.fromkeys(range(1, 5), "refused"))
    assert readiness.ready
    assert readiness.complaints == [
        "upstream: 4 of 4 brokers do not answer our own questions: broker 1: refused; broker 2: refused; "
        "broker 3: refused; …"
    ]
    readiness.upstream_unavailable("no broker answers")
    assert (readiness.ready, readiness.complaints) == (True, ["upstream: no broker answers"])
