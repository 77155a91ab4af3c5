"""What holds for manifests and indexes alike: one load however many ask, within limits, patient with the fresh, gone
with the deleted; and the table that holds them. What is a kind's own is tested beside: `test_offset_indexes`,
`test_transaction_indexes`, `test_open_transactions`."""

import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from metrics.cache_meters import CacheMeter
from metrics.get_meter import GetMeter
from metrics.registry import Registry
from storage.cache.object_gets import ObjectGets
from storage.cache.segment_entries import ENTRIES_MAX, SegmentEntries
from storage.cache.segment_parts import SegmentParts
from storage.cache.throttle import Throttle
from storage.errors import CorruptObjectError, RemoteResourceNotFoundError, RetriableRemoteStorageError
from storage.indexes.producer_snapshot import ProducerState
from storage.indexes.transaction_index import AbortedTransaction
from storage.model import IndexType, Uuid
from storage.model import RemoteLogSegmentMetadata as Metadata
from storage.object_store.retries import ATTEMPTS_MAX, BACKOFF_S_MIN, CORRUPT_ATTEMPTS_MAX
from tests.support.cases import case
from tests.support.opened_bytes import MEMORY_BYTES
from tests.support.scripted_store import ScriptedStore
from tests.support.segments import FIRST_TIMESTAMP_MS, build_segment, filled_segment
from tests.support.tier import GETS_MAX, Tier, open_tier
from tests.support.waiting import HANG_S_MAX

SEGMENTS = [
    build_segment(
        [*filled_segment(base, batch_count=60).batches],
        aborted=[AbortedTransaction(7, base, base + 1, base + 2)],
        producers=[ProducerState(8, 0, 0, base + 5, 0, FIRST_TIMESTAMP_MS, 0, base + 5)],
    )
    for base in (0, 600, 1200)
]
NOT_YET = RemoteResourceNotFoundError("not yet")


@dataclass(frozen=True)
class Kind:
    """`share`: one part in so many of the bytes is this kind's."""

    part: Callable[[SegmentParts], Any]
    asked: dict[str, Any]
    share: int
    size_bytes: int

    def loads(self, store: ScriptedStore) -> int:
        index_type = self.asked.get("index_type")
        return store.opens() if index_type is None else store.index_fetches(index_type)

    @property
    def counted(self) -> tuple[str, dict[str, str]]:
        return "tidegate_gets_total", {"object": "manifest" if "manifest" in self.asked else "index"}


KINDS = {
    "manifest": Kind(lambda parts: parts.opened, {"manifest": True}, 4, MEMORY_BYTES),
    "offset": Kind(
        lambda parts: parts.offset_indexes, {"index_type": IndexType.OFFSET}, 2, len(SEGMENTS[0].offset_index)
    ),
    "time": Kind(lambda parts: parts.time_indexes, {"index_type": IndexType.TIMESTAMP}, 8, len(SEGMENTS[0].time_index)),
    "transaction": Kind(lambda parts: parts.transaction_indexes, {"index_type": IndexType.TRANSACTION}, 16, 34),
    "producer": Kind(
        lambda parts: parts.open_transactions,
        {"index_type": IndexType.PRODUCER_SNAPSHOT},
        16,
        len(SEGMENTS[0].producer_snapshot),
    ),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


@pytest.fixture
def tier(nursery: trio.Nursery) -> Tier:
    return open_tier(nursery, SEGMENTS, chunk_bytes=1000)


@pytest.fixture
def metadata(tier: Tier) -> Metadata:
    return tier.logs[0][0]


@pytest.fixture
def fresh(nursery: trio.Nursery) -> Tier:
    """A tier whose segments were FINISHED a moment ago."""
    return open_tier(nursery, SEGMENTS, chunk_bytes=1000, now_ms=lambda: FIRST_TIMESTAMP_MS + 1000)


@pytest.fixture
def part(tier: Tier, kind: Kind) -> Any:
    return kind.part(tier.storage.parts)


async def test_many_who_ask_cost_one_load_which_stays_until_its_segment_is_deleted(
    part: Any, tier: Tier, metadata: Metadata, kind: Kind
) -> None:
    assert part.resident(metadata) is None
    async with trio.open_nursery() as askers:
        for _ in range(4):
            askers.start_soon(part.get, metadata)
    with trio.CancelScope() as scope:
        scope.cancel()  # what is in memory is there without an await
        assert part.resident(metadata) is await part.get(metadata)
    assert not scope.cancelled_caught
    assert (kind.loads(tier.store), tier.sample(*kind.counted)) == (1, 1)
    assert part.size_bytes == kind.size_bytes
    assert tier.sample("tidegate_opened_segments") == tier.store.opens() == 1
    for _ in range(2):
        tier.storage.parts.drop_segment(metadata.segment_id.id)
        assert (part.resident(metadata), part.size_bytes) == (None, 0)
        assert tier.sample("tidegate_opened_segments") == 0


async def test_trouble_that_stays_is_an_error_and_not_remembered(
    part: Any, autojump_clock: MockClock, tier: Tier, metadata: Metadata, kind: Kind
) -> None:
    tier.store.fail(RetriableRemoteStorageError("503"), **kind.asked, times=ATTEMPTS_MAX)
    with pytest.raises(RetriableRemoteStorageError):
        await part.get(metadata)
    assert part.resident(metadata) is None
    assert tier.sample("tidegate_gets_total", {"outcome": "retriable"}) == ATTEMPTS_MAX
    await part.get(metadata)
    assert kind.loads(tier.store) == tier.sample(*kind.counted) == ATTEMPTS_MAX + 1
    assert tier.sample("tidegate_index_rebuilds_total") == 0


async def test_an_object_of_a_fresh_segment_is_waited_for(autojump_clock: MockClock, fresh: Tier, kind: Kind) -> None:
    fresh.store.fail(NOT_YET, **kind.asked, times=ATTEMPTS_MAX - 1)
    started_at = trio.current_time()
    part = kind.part(fresh.storage.parts)
    await part.get(fresh.logs[0][0])
    assert trio.current_time() - started_at >= BACKOFF_S_MIN
    assert part.size_bytes == kind.size_bytes
    assert (kind.loads(fresh.store), fresh.sample("tidegate_get_retries_total")) == (ATTEMPTS_MAX, ATTEMPTS_MAX - 1)
    assert fresh.sample("tidegate_index_rebuilds_total") == 0


async def test_what_was_hurt_on_its_way_is_fetched_once_more(tier: Tier, metadata: Metadata, kind: Kind) -> None:
    tier.store.fail(CorruptObjectError("hurt"), **kind.asked, times=CORRUPT_ATTEMPTS_MAX - 1)
    await kind.part(tier.storage.parts).get(metadata)
    assert kind.part(tier.storage.parts).size_bytes == kind.size_bytes
    assert tier.sample("tidegate_index_rebuilds_total") == 0


async def test_a_load_outlives_who_asked(part: Any, tier: Tier, metadata: Metadata, kind: Kind) -> None:
    with tier.store.held(**kind.asked) as gate:
        async with trio.open_nursery() as askers:
            askers.start_soon(part.get, metadata)
            await trio.to_thread.run_sync(gate.wait_for_callers, 1)
            askers.cancel_scope.cancel()
    with trio.fail_after(HANG_S_MAX):
        await part.get(metadata)
    assert kind.loads(tier.store) == 1


async def test_a_load_under_way_does_not_land_after_its_segment_was_deleted(
    part: Any, nursery: trio.Nursery, tier: Tier, metadata: Metadata, kind: Kind
) -> None:
    with tier.store.held(**kind.asked) as gate:
        nursery.start_soon(part.get, metadata)
        await trio.to_thread.run_sync(gate.wait_for_callers, 1)
        tier.storage.parts.drop_segment(metadata.segment_id.id)
    await trio.testing.wait_all_tasks_blocked()
    assert part.resident(metadata) is None


async def test_the_least_recently_used_leaves(nursery: trio.Nursery, tier: Tier) -> None:
    first, second, third = (metadata for metadata, _ in tier.logs)
    for kind in KINDS.values():
        meter = GetMeter(Registry())
        parts = SegmentParts(
            tier.store,
            nursery=nursery,
            gets=ObjectGets(trio.CapacityLimiter(2), meter, Throttle(GETS_MAX, meter)),
            meter=CacheMeter(Registry()),
            bytes_max=kind.share * 2 * kind.size_bytes,
        )
        part = kind.part(parts)
        for metadata in (first, second, first, third):
            await part.get(metadata)
        here = [part.resident(metadata) is not None for metadata in (first, second, third)]
        assert here == [True, False, True], kind
        assert part.size_bytes == 2 * kind.size_bytes


# Manifests


async def test_a_manifest_that_stays_wrong_or_away_is_an_error_for_all_kinds(nursery: trio.Nursery) -> None:
    for kind, (error, cause, attempts) in itertools.product(
        KINDS.values(),
        (
            (CorruptObjectError("not JSON"), "corrupt", CORRUPT_ATTEMPTS_MAX),
            (RemoteResourceNotFoundError("long gone"), "not_found", 1),
        ),
    ):
        tier = open_tier(nursery, SEGMENTS, chunk_bytes=1000)
        metadata, part = tier.logs[0][0], kind.part(tier.storage.parts)
        tier.store.fail(error, manifest=True, times=attempts)
        with case(kind, error), pytest.raises(type(error)):
            await part.get(metadata)
        assert tier.sample("tidegate_gets_total", {"outcome": cause}) == attempts
        assert part.resident(metadata) is None
        assert (tier.store.index_fetches(), tier.store.log_fetches()) == (0, [])
        await part.get(metadata)


A, B = Uuid(b"a" * 16), Uuid(b"b" * 16)
Load = Callable[[], Awaitable[tuple[str, int]]]


def after(event: trio.Event, value: str = "value") -> Load:
    async def load() -> tuple[str, int]:
        await event.wait()
        return value, 1

    return load


def at_once(value: str) -> Load:
    async def load() -> tuple[str, int]:
        await trio.lowlevel.checkpoint()
        return value, 1

    return load


async def test_however_small_they_are_no_more_than_so_many_stay(nursery: trio.Nursery) -> None:
    entries: SegmentEntries[str] = SegmentEntries(nursery, bytes_max=2**20)
    for number in range(ENTRIES_MAX + 2):
        await entries.start(Uuid(number.to_bytes(16)), at_once("small")).wait()
    here = [entries.resident(Uuid(number.to_bytes(16))) is not None for number in range(ENTRIES_MAX + 2)]
    assert here == [False] * 2 + [True] * ENTRIES_MAX


async def test_nobody_waits_for_ever_when_the_application_ends() -> None:
    async with trio.open_nursery() as waiters, trio.open_nursery() as application:
        entries: SegmentEntries[str] = SegmentEntries(application, bytes_max=10)
        flight = entries.start(A, after(trio.Event()))

        async def wait() -> None:
            with pytest.raises(trio.ClosedResourceError):
                await flight.wait()

        waiters.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        application.cancel_scope.cancel()
    with pytest.raises(RuntimeError):
        entries.start(B, at_once("late"))
