"""What is watched between requests: every failure is a condition, said once a spell, and nothing ends the watching."""

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
import trio
import trio.testing
from trio.testing import MockClock

from metrics.meters import Meters
from metrics.registry import Registry
from metrics.troubles import TroubleId
from protocol.client.cluster_view import BrokerNode
from protocol.client.errors import UpstreamConnectionError
from protocol.wire.addresses import NodeAddress
from proxy.readiness import ConditionName, ConditionState, Readiness
from proxy.tier_owner import BROKERS_OWN_IT
from storage import errors
from tests.support.waiting import HANG_S_MAX, settled, until
from tidegate import upkeep


def state(readiness: Readiness, name: ConditionName) -> tuple[ConditionState, str]:
    condition = readiness.conditions[name]
    return condition.state, condition.reason


@asynccontextmanager
async def running(task: Callable[..., Any], *arguments: object) -> AsyncIterator[Callable[[], list[str]]]:
    """Gives a function for the events that were logged up to now."""
    with structlog.testing.capture_logs() as logs:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(task, *arguments)
            await trio.testing.wait_all_tasks_blocked()
            yield lambda: [str(entry["event"]) for entry in logs if not entry["event"].startswith("trouble_")]
            nursery.cancel_scope.cancel()


async def step(clock: MockClock, seconds: float) -> None:
    clock.jump(seconds)
    await settled()


class Upstream:
    """A cluster of two brokers that may be out of reach, its address book and the file of known brokers in one."""

    def __init__(self) -> None:
        self.readiness = Readiness()
        self.brokers = {node_id: BrokerNode(node_id, f"kafka-{node_id}", 9092, None) for node_id in (1, 2)}
        self.error: Exception | None = None
        self.is_silent = False
        self.followed: list[list[NodeAddress]] = []
        self.retries = self.looks = 0
        self.withheld: dict[int, str] = {}
        self.silent: dict[int, str] = {}
        self.free_ports = {1: 40001}
        self.noted: list[tuple[list[NodeAddress], dict[int, int]]] = []

    def following(self) -> AbstractAsyncContextManager[Callable[[], list[str]]]:
        return running(upkeep.follow_brokers, self, self, self, self.readiness, str)

    def state(self) -> tuple[ConditionState, str]:
        return state(self.readiness, ConditionName.UPSTREAM)

    async def refresh(self) -> None:
        self.looks += 1
        await trio.lowlevel.checkpoint()
        if self.is_silent:
            await trio.sleep_forever()
        if self.error is not None:
            raise self.error

    async def ask_each(self, _limit_s: float) -> dict[int, float | str]:
        await trio.lowlevel.checkpoint()
        return {node_id: self.silent.get(node_id, 0.001) for node_id in self.brokers}

    async def follow(self, nodes: list[NodeAddress]) -> None:
        await trio.lowlevel.checkpoint()
        self.followed.append(nodes)

    async def retry_withheld(self) -> None:
        await trio.lowlevel.checkpoint()
        self.retries += 1

    def note(self, brokers: list[NodeAddress], ports: dict[int, int]) -> None:
        self.noted.append((brokers, ports))


ONE, TWO = NodeAddress(1, "kafka-1", 9092), NodeAddress(2, "kafka-2", 9092)


async def test_upstream_is_followed_through_its_absence(mock_clock: MockClock) -> None:
    upstream = Upstream()
    async with upstream.following() as events:
        assert upstream.state() == (ConditionState.MET, "2 brokers")
        # Failed before: listeners were bound only when a client's answer named a broker.
        assert upstream.followed == [[ONE, TWO]]
        assert upstream.noted == [([ONE, TWO], {1: 40001})]

        upstream.error = UpstreamConnectionError("no broker answers")
        await step(mock_clock, upkeep.UPSTREAM_INTERVAL_S)
        await step(mock_clock, upkeep.UPSTREAM_RETRY_S)
        assert upstream.state() == (ConditionState.PENDING, "no broker answers")
        assert events() == ["upstream_unavailable"]
        assert len(upstream.followed) == 1  # nobody's listener is closed because nobody could be asked
        assert upstream.retries == 2

        upstream.error, upstream.brokers = None, {2: upstream.brokers[2]}
        await step(mock_clock, upkeep.UPSTREAM_RETRY_S)
        assert upstream.state() == (ConditionState.MET, "1 brokers")
        assert upstream.followed[1:] == [[TWO]]
        assert events() == ["upstream_unavailable", "upstream_back"]


async def test_a_broker_that_is_back_is_listened_for_at_once(mock_clock: MockClock) -> None:
    """How it failed: its clients were refused for up to five seconds after it had come back."""
    upstream = Upstream()
    async with upstream.following():
        both = upstream.brokers
        upstream.brokers = {1: both[1]}
        await step(mock_clock, upkeep.UPSTREAM_INTERVAL_S)
        assert upstream.followed == [[ONE, TWO], [ONE]]
        await step(mock_clock, upkeep.UPSTREAM_AWAITED_S)
        upstream.brokers = both
        await step(mock_clock, upkeep.UPSTREAM_AWAITED_S)
        assert upstream.followed == [[ONE, TWO], [ONE], [ONE, TWO]]


async def test_a_broker_that_stays_away_is_not_looked_for_for_ever(mock_clock: MockClock) -> None:
    upstream = Upstream()
    async with upstream.following():
        upstream.brokers = {1: upstream.brokers[1]}
        for _ in range(3):
            await step(mock_clock, upkeep.BROKER_AWAITED_S_MAX)
        looks = upstream.looks
        await step(mock_clock, upkeep.UPSTREAM_AWAITED_S)
        assert upstream.looks == looks


def be_ready_but_for_upstream(readiness: Readiness) -> None:
    readiness.catalog_live(1)
    readiness.tier_answered()


async def test_after_the_first_readiness_brokers_that_do_not_answer_are_a_complaint(mock_clock: MockClock) -> None:
    """Failed before: a broker that was away was told nowhere, and /readyz was 503 when all were."""
    upstream = Upstream()
    be_ready_but_for_upstream(upstream.readiness)
    async with upstream.following() as events:
        upstream.silent = {2: "cannot connect to kafka-2:9092"}
        await step(mock_clock, upkeep.UPSTREAM_INTERVAL_S)
        said = "1 of 2 brokers do not answer our own questions: broker 2: cannot connect to kafka-2:9092"
        assert upstream.state() == (ConditionState.DEGRADED, said)
        assert upstream.readiness.complaints == [f"upstream: {said}"]
        upstream.error = UpstreamConnectionError("no broker answers")
        await step(mock_clock, upkeep.UPSTREAM_INTERVAL_S)
        assert upstream.state() == (ConditionState.DEGRADED, "no broker answers")
        assert (upstream.readiness.ready, upstream.readiness.degraded) == (True, True)
        upstream.error, upstream.silent = None, {}
        await step(mock_clock, upkeep.UPSTREAM_RETRY_S)
        assert upstream.state() == (ConditionState.MET, "2 brokers")
        assert events() == ["broker_silent", "upstream_unavailable", "upstream_back", "broker_answers"]


async def test_a_process_that_listens_for_fewer_than_half_of_the_brokers_is_not_ready(mock_clock: MockClock) -> None:
    """Failed before: ready with one port of three."""
    upstream = Upstream()
    be_ready_but_for_upstream(upstream.readiness)
    upstream.brokers[3] = BrokerNode(3, "kafka-3", 9092, None)
    upstream.withheld = {1: "port 1 is taken", 3: "port 3 is taken"}
    async with upstream.following():
        said = "this process listens for 1 of 3 brokers only: broker 1: port 1 is taken; broker 3: port 3 is taken"
        assert upstream.readiness.reasons == [f"upstream: {said}"]
        del upstream.withheld[1]
        await step(mock_clock, upkeep.UPSTREAM_INTERVAL_S)
        assert upstream.readiness.ready
        assert upstream.state() == (ConditionState.MET, "2 of 3 brokers")
        upstream.withheld[1] = "port 1 is taken"
        await step(mock_clock, upkeep.UPSTREAM_INTERVAL_S)
        assert not upstream.readiness.ready, "also after the first readiness: others can listen for them"


async def test_an_upstream_that_does_not_even_refuse_is_unavailable_in_time(mock_clock: MockClock) -> None:
    upstream = Upstream()
    async with upstream.following() as events:
        upstream.is_silent = True
        await step(mock_clock, upkeep.UPSTREAM_INTERVAL_S)
        assert upstream.state()[0] is ConditionState.MET
        await step(mock_clock, upkeep.UPSTREAM_ANSWER_S_MAX)
        assert upstream.state() == (ConditionState.PENDING, "no broker answers within 10.0 s")
        upstream.is_silent = False
        await step(mock_clock, upkeep.UPSTREAM_RETRY_S)
        assert upstream.state()[0] is ConditionState.MET
        assert events() == ["upstream_unavailable", "upstream_back"]


class ScriptedCatalog:
    """Event log, manager and catalog in one."""

    def __init__(self) -> None:
        self.count: int | None = None
        self.trouble: str | None = None
        self.caught_up: set[int] = set()
        self.partition_troubles: dict[int, str] = {}
        self.undecodable_records = self.refused_partitions = 0
        self.segment_count, self.segments_max = 12, 10
        self.failure = lambda: self.trouble
        self.problems = lambda: self.partition_troubles
        self.is_caught_up = lambda number: number in self.caught_up

    def partition_count(self) -> int:
        if self.count is None:
            raise errors.MetadataNotReadyError("not described")
        return self.count


async def test_the_catalog_is_told_of_from_the_first_moment_on(mock_clock: MockClock) -> None:
    """From before the topic is described, which failed before: /readyz could not say why nothing came."""
    catalog, readiness = ScriptedCatalog(), Readiness()
    meters = Meters()
    async with running(upkeep.follow_catalog, catalog, catalog, catalog, readiness, meters, BROKERS_OWN_IT):

        async def seen() -> tuple[ConditionState, str]:
            await step(mock_clock, max(upkeep.GAUGES_INTERVAL_S, upkeep.CATALOG_INTERVAL_S))
            return state(readiness, ConditionName.CATALOG)

        assert await seen() == (ConditionState.PENDING, "the metadata topic has not been described yet")
        catalog.trouble = "the metadata topic does not exist"
        assert await seen() == (ConditionState.PENDING, "the metadata topic does not exist")
        catalog.trouble, catalog.count = None, 3
        assert await seen() == (ConditionState.PENDING, "3 metadata partitions are being read")
        catalog.partition_troubles = {2: "ACL Read on Topic __remote_log_metadata is missing"}
        # Failed before: they "are being read", for ever.
        assert await seen() == (
            ConditionState.PENDING,
            "3 metadata partitions are not read; of 1 partition 2 says: ACL Read on Topic __remote_log_metadata is "
            "missing",
        )
        catalog.partition_troubles = {}
        catalog.caught_up = {0, 2}
        assert await seen() == (ConditionState.PENDING, "1 metadata partitions are being read")
        catalog.caught_up = {0, 1, 2}
        assert await seen() == (ConditionState.MET, "12 segments")
        catalog.refused_partitions = 4
        at, reason = await seen()
        assert at is ConditionState.DEGRADED
        assert "catalog.segments.max" in reason


class ScriptedStore:
    """A store whose answers fail or hang; `asked` names what it was asked for, a segment or itself."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.absent: set[str] = set()
        self.segments = ["orders-0", "orders-1"]
        self.listed: list[str | None] = []
        self.open = threading.Event()
        self.open.set()
        self.asked: list[str] = []
        self.limiter = trio.CapacityLimiter(1)
        self.readiness = Readiness()

    def state(self) -> tuple[ConditionState, str]:
        """Return what is said of the tier."""
        return state(self.readiness, ConditionName.TIER)

    def warm_up(self) -> None:
        """Nothing to load."""

    def some_segments(self, count_max: int) -> list[str]:
        return self.segments[:count_max]

    def ask(self) -> None:
        self._answer("itself")

    def list_objects(self) -> Iterator[SimpleNamespace]:
        self._answer("list")
        yield from (SimpleNamespace(segment_id=segment_id) for segment_id in self.listed)

    def fetch_index(self, segment: str, _index_type: object) -> bytes:
        self._answer(segment)
        if segment in self.absent:
            raise errors.RemoteResourceNotFoundError(f"{segment} is not there")
        return b""

    def _answer(self, question: str) -> None:
        if not self.open.wait(HANG_S_MAX):
            raise TimeoutError
        self.asked.append(question)
        if self.error is not None:
            raise self.error

    async def wait_asked(self, *questions: str) -> None:
        """Return once these were asked, and nothing else, since the last time."""
        await until(lambda: len(self.asked) >= len(questions))
        await settled(self.limiter)
        assert self.asked == list(questions)
        self.asked.clear()


@pytest.fixture
def store() -> ScriptedStore:
    return ScriptedStore()


@asynccontextmanager
async def watched(store: ScriptedStore, *, is_live: bool = True) -> AsyncIterator[Callable[[], list[str]]]:
    if is_live:
        store.readiness.catalog_live(2)
    async with running(upkeep.watch_tier, store, store.some_segments, store.limiter, store.readiness, str) as events:
        yield events


async def test_an_empty_tier_is_asked_too(store: ScriptedStore, mock_clock: MockClock) -> None:
    # Failed before: it counted as answering, so a rollout with a wrong secret passed.
    store.segments, store.error = [], errors.RemoteAccessDeniedError("SignatureDoesNotMatch (HTTP 403)")
    async with watched(store) as events:
        await store.wait_asked("itself", "itself")
        assert store.state() == (ConditionState.PENDING, "SignatureDoesNotMatch (HTTP 403)")
        store.error = None
        await step(mock_clock, upkeep.TIER_RETRY_S)
        await store.wait_asked("itself")
        assert store.state()[0] is ConditionState.MET
        assert events() == ["tier_unavailable", "tier_answers"]


async def test_a_tier_answers_when_the_catalog_says_what_is_in_it(store: ScriptedStore, mock_clock: MockClock) -> None:
    # With a wrong key prefix the store answers and is empty, for as long as no segment is known.
    store.absent = set(store.segments)
    async with watched(store, is_live=False):
        await store.wait_asked("itself")
        await step(mock_clock, upkeep.TIER_INTERVAL_S)
        await store.wait_asked("itself")
        assert store.state()[0] is ConditionState.PENDING
        store.readiness.catalog_live(2)
        await store.wait_asked("orders-0", "orders-1", "list")
        assert store.state() == (ConditionState.PENDING, "orders-1 is not there")
        store.listed = [None, "orders-2"]
        await step(mock_clock, upkeep.TIER_RETRY_S)
        await store.wait_asked("orders-0", "orders-1", "list")
        assert store.state()[0] is ConditionState.MET


async def test_a_tier_that_fails_degrades_once_it_has_answered(store: ScriptedStore, mock_clock: MockClock) -> None:
    async with watched(store) as events:
        await store.wait_asked("itself", "orders-0")
        assert store.state()[0] is ConditionState.MET
        store.error = errors.RetriableRemoteStorageError("503 slow down")
        await step(mock_clock, upkeep.TIER_INTERVAL_S)
        await store.wait_asked("orders-0")
        assert store.state() == (ConditionState.DEGRADED, "503 slow down")
        await step(mock_clock, upkeep.TIER_RETRY_S)
        await store.wait_asked("orders-0")
        assert events() == ["tier_degraded"]
        store.error = None
        await step(mock_clock, upkeep.TIER_RETRY_S)
        await store.wait_asked("orders-0")
        assert store.state()[0] is ConditionState.MET
        assert events() == ["tier_degraded", "tier_answers"]


@pytest.mark.usefixtures("mock_clock")
async def test_a_segment_that_was_deleted_is_not_a_bucket_that_is_gone(store: ScriptedStore) -> None:
    # Failed before: one object that was gone degraded the whole tier.
    store.absent = {"orders-0"}
    async with watched(store) as events:
        await store.wait_asked("itself", "orders-0", "orders-1")
        assert store.state()[0] is ConditionState.MET
        assert events() == []
    bucketless = ScriptedStore()
    bucketless.error = errors.RemoteStoreNotFoundError("NoSuchBucket (HTTP 404)")
    async with watched(bucketless):
        await bucketless.wait_asked("itself", "orders-0")
        assert bucketless.state() == (ConditionState.PENDING, "NoSuchBucket (HTTP 404)")


async def test_a_tier_that_hangs_is_told_of_while_it_hangs(store: ScriptedStore, mock_clock: MockClock) -> None:
    # Failed before: a thread cannot be cancelled, so the time limit was seen only after the store had answered.
    async with watched(store) as events:
        await store.wait_asked("itself", "orders-0")
        store.open.clear()
        await step(mock_clock, upkeep.TIER_INTERVAL_S)
        await step(mock_clock, upkeep.TIER_ANSWER_S_MAX)
        at, reason = store.state()
        assert at is ConditionState.DEGRADED
        assert f"{upkeep.TIER_ANSWER_S_MAX} s" in reason
        assert events() == ["tier_degraded"]
        store.open.set()
        await store.wait_asked("orders-0")
        assert store.state()[0] is ConditionState.MET


async def test_partitions_in_trouble_and_bad_records_are_told(mock_clock: MockClock) -> None:
    catalog, readiness = ScriptedCatalog(), Readiness()
    catalog.count = 1
    registry = Registry()
    async with running(upkeep.follow_catalog, catalog, catalog, catalog, readiness, Meters(registry), BROKERS_OWN_IT):
        catalog.partition_troubles = {0: "no leader"}
        catalog.undecodable_records = 2
        await step(mock_clock, upkeep.GAUGES_INTERVAL_S)
        assert readiness.by_number(TroubleId.METADATA_PARTITION_NOT_READ) == {0: "no leader"}
        assert registry.sample_value("tidegate_catalog_undecodable_records_total") == 2
        assert registry.sample_value("tidegate_catalog_segments") == 12
        catalog.partition_troubles = {}
        await step(mock_clock, upkeep.GAUGES_INTERVAL_S)
        assert readiness.by_number(TroubleId.METADATA_PARTITION_NOT_READ) == {}
        assert registry.sample_value("tidegate_catalog_undecodable_records_total") == 2
