"""Readiness: what is needed, what merely degrades, and what each says of itself."""

import json
from collections.abc import Awaitable, Callable

import pytest
import structlog
import trio

from metrics.meters import Meters
from metrics.registry import Registry
from metrics.troubles import DEGRADING, TROUBLES, Severity, TroubleId
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
    readiness.tell(TroubleId.METADATA_PARTITION_NOT_READ, {12: "not readable", 3: "connection refused"})
    assert readiness.ready
    assert readiness.degraded
    assert readiness.complaints == ["metadata partition 3: connection refused", "metadata partition 12: not readable"]
    readiness.tell(TroubleId.METADATA_PARTITION_NOT_READ)
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


def test_a_trouble_is_told_by_its_id_in_every_place_while_it_lasts() -> None:
    """Failed before: each had words of its own in each place, and most were in one or two of them only."""
    registry = Registry()
    readiness = Readiness(Meters(registry).health)

    def gauge(trouble: TroubleId) -> float | None:
        return registry.sample_value("tidegate_trouble", {"id": trouble.value})

    assert {each["id"] for each in readiness.troubles} == {"starting"}
    assert gauge(TroubleId.STARTING) == 1
    for meet in MEET.values():
        meet(readiness)
    assert (readiness.troubles, gauge(TroubleId.STARTING)) == ([], 0)
    for trouble in TroubleId:
        with structlog.testing.capture_logs() as logs:
            readiness.tell(trouble, ["orders fails", "payments fails"])
            first, _second = readiness.troubles
            assert {name: value for name, value in first.items() if name != "what"} == {
                "id": trouble.value,
                "severity": TROUBLES[trouble].severity.value,
                "about": TROUBLES[trouble].about,
                "runbook": TROUBLES[trouble].runbook,
            }
            assert first["what"] == TROUBLES[trouble].sentence("orders fails")
            assert gauge(trouble) == 1
            assert readiness.complaints == (["orders fails", "payments fails"] if trouble in DEGRADING else [])
            assert readiness.ready
            readiness.tell(trouble, ["payments fails"])
            readiness.tell(trouble)
        assert (readiness.troubles, gauge(trouble)) == ([], 0)
        assert [(line["event"], line["id"]) for line in logs] == (
            []
            if trouble in (TroubleId.STARTING, TroubleId.DRAINING)
            else [("trouble_begun", trouble.value), ("trouble_ended", trouble.value)]
        )


def test_what_keeps_it_from_being_ready_comes_first_and_then_what_is_critical(readiness: Readiness) -> None:
    readiness.tell(TroubleId.CLIENT_STUCK, ["a client takes nothing"])
    readiness.tell(TroubleId.NOT_DESCRIBED, ["ACL Describe is missing"])
    readiness.tasks_fail(["copying has failed"])
    told = [(each["id"], each["about"], each["severity"]) for each in readiness.troubles]
    assert told == [
        ("task_fails", "not ready", Severity.CRITICAL),
        ("not_described", "tier", Severity.CRITICAL),
        ("client_stuck", "client", Severity.WARNING),
    ]


def test_what_several_processes_tell_is_one(readiness: Readiness) -> None:
    """Failed before: transactions that hang and unsure log starts of a worker never reached the supervisor."""
    workers = [Readiness(logs=False) for _ in range(2)]
    for worker in workers:
        worker.tell(TroubleId.TRANSACTION_HANGS, ["orders-0: a transaction is open"])
    workers[0].tell(TroubleId.METADATA_PARTITION_NOT_READ, {3: "no leader"})
    workers[1].tell(TroubleId.LOG_STARTS_UNSURE, ["they are as they were heard last"])
    readiness.take_told([json.loads(json.dumps(worker.told)) for worker in workers])
    assert readiness.complaints == [
        "metadata partition 3: no leader",
        "orders-0: a transaction is open",
        "they are as they were heard last",
    ]
    assert readiness.by_number(TroubleId.METADATA_PARTITION_NOT_READ) == {3: "no leader"}
    readiness.take_told([Readiness(logs=False).told])
    assert readiness.troubles == []


def test_what_completes_a_reason_does_so_in_every_place() -> None:
    """Failed before: of the metadata topic, no place but `check` had the line that grants a right."""
    readiness = Readiness(complete=lambda sentence: f"{sentence}: grant it")
    readiness.catalog_unavailable("Read is missing")
    readiness.tell(TroubleId.NOT_DESCRIBED, ["Describe is missing"])
    readiness.tell(TroubleId.BROKER_WITHHELD, {1: "taken"})
    assert readiness.reasons[0] == "catalog: Read is missing: grant it"
    assert readiness.by_number(TroubleId.BROKER_WITHHELD) == {1: "taken: grant it"}
    assert [each["what"].count("grant it") for each in readiness.troubles if each["id"] != "starting"] == [1, 1, 1]
