"""What holds for manifests and indexes alike: one load however many ask, within limits, patient with the fresh, gone
with the deleted. What is a kind's own is tested beside: `test_offset_indexes`, `test_time_indexes`,
`test_transaction_indexes`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import trio
import trio.testing

from metrics.cache_meters import CacheMeter, GetMeter
from metrics.registry import Registry
from storage.cache.pace import Throttle
from storage.cache.segment_parts import ObjectGets, SegmentParts
from storage.errors import (
    CorruptObjectError,
    IllegalMetadataError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RetriableRemoteStorageError,
)
from storage.indexes.transaction_index import AbortedTransaction
from storage.model import IndexType, RemoteLogSegmentMetadata
from storage.object_store.retries import ATTEMPTS_MAX, BACKOFF_S_MIN, CORRUPT_ATTEMPTS_MAX
from tests.support.opened_bytes import MEMORY_BYTES
from tests.support.scripted_store import ScriptedStore
from tests.support.segments import FIRST_TIMESTAMP_MS, build_segment, filled_segment
from tests.support.tier import GETS_MAX, Tier, open_tier
from tests.support.waiting import HANG_S_MAX

SEGMENTS = [
    build_segment(
        [*filled_segment(base, batch_count=60).batches], aborted=[AbortedTransaction(7, base, base + 1, base + 2)]
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
    "transaction": Kind(lambda parts: parts.transaction_indexes, {"index_type": IndexType.TRANSACTION}, 8, 34),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


@pytest.fixture
def tier(nursery: trio.Nursery) -> Tier:
    return open_tier(nursery, SEGMENTS, chunk_bytes=1000)


@pytest.fixture
def metadata(tier: Tier) -> RemoteLogSegmentMetadata:
    return tier.logs[0][0]


@pytest.fixture
def fresh(nursery: trio.Nursery) -> Tier:
    """A tier whose segments were FINISHED a moment ago."""
    return open_tier(nursery, SEGMENTS, chunk_bytes=1000, now_ms=lambda: FIRST_TIMESTAMP_MS + 1000)


async def test_many_who_ask_cost_one_load(tier: Tier, metadata: RemoteLogSegmentMetadata, kind: Kind) -> None:
    part = kind.part(tier.storage.parts)
    assert part.resident(metadata) is None
    async with trio.open_nursery() as askers:
        for _ in range(4):
            askers.start_soon(part.get, metadata)
    assert part.resident(metadata) is await part.get(metadata)
    assert (kind.loads(tier.store), tier.sample(*kind.counted)) == (1, 1)
    assert (len(part), part.size_bytes) == (1, kind.size_bytes)
    assert tier.sample("tidegate_opened_segments") == tier.store.opens() == 1


async def test_what_is_in_memory_is_there_without_an_await(
    tier: Tier, metadata: RemoteLogSegmentMetadata, kind: Kind
) -> None:
    part = kind.part(tier.storage.parts)
    await part.get(metadata)
    with trio.CancelScope() as scope:
        scope.cancel()
        await part.get(metadata)
    assert not scope.cancelled_caught


async def test_trouble_that_stays_is_an_error_and_not_remembered(
    autojump_clock: trio.testing.MockClock, tier: Tier, metadata: RemoteLogSegmentMetadata, kind: Kind
) -> None:
    part = kind.part(tier.storage.parts)
    tier.store.fail(RetriableRemoteStorageError("503"), **kind.asked, times=ATTEMPTS_MAX)
    with pytest.raises(RetriableRemoteStorageError):
        await part.get(metadata)
    assert part.resident(metadata) is None
    assert tier.sample("tidegate_gets_total", {"outcome": "retriable"}) == ATTEMPTS_MAX
    await part.get(metadata)
    assert kind.loads(tier.store) == tier.sample(*kind.counted) == ATTEMPTS_MAX + 1
    assert tier.sample("tidegate_index_rebuilds_total") == 0


async def test_an_object_of_a_fresh_segment_is_waited_for(
    autojump_clock: trio.testing.MockClock, fresh: Tier, kind: Kind
) -> None:
    fresh.store.fail(NOT_YET, **kind.asked, times=ATTEMPTS_MAX - 1)
    started_at = trio.current_time()
    part = kind.part(fresh.storage.parts)
    await part.get(fresh.logs[0][0])
    assert trio.current_time() - started_at >= BACKOFF_S_MIN
    assert part.size_bytes == kind.size_bytes
    assert (kind.loads(fresh.store), fresh.sample("tidegate_get_retries_total")) == (ATTEMPTS_MAX, ATTEMPTS_MAX - 1)
    assert fresh.sample("tidegate_index_rebuilds_total") == 0


async def test_what_was_hurt_on_its_way_is_fetched_once_more(
    tier: Tier, metadata: RemoteLogSegmentMetadata, kind: Kind
) -> None:
    tier.store.fail(CorruptObjectError("hurt"), **kind.asked, times=CORRUPT_ATTEMPTS_MAX - 1)
    await kind.part(tier.storage.parts).get(metadata)
    assert kind.part(tier.storage.parts).size_bytes == kind.size_bytes
    assert tier.sample("tidegate_index_rebuilds_total") == 0


async def test_a_load_outlives_who_asked(tier: Tier, metadata: RemoteLogSegmentMetadata, kind: Kind) -> None:
    part = kind.part(tier.storage.parts)
    with tier.store.held(**kind.asked) as gate:
        async with trio.open_nursery() as askers:
            askers.start_soon(part.get, metadata)
            await trio.to_thread.run_sync(gate.wait_for_callers, 1)
            askers.cancel_scope.cancel()
    with trio.fail_after(HANG_S_MAX):
        await part.get(metadata)
    assert kind.loads(tier.store) == 1


async def test_a_deleted_segments_part_leaves_at_once(
    tier: Tier, metadata: RemoteLogSegmentMetadata, kind: Kind
) -> None:
    part = kind.part(tier.storage.parts)
    await part.get(metadata)
    for _ in range(2):
        tier.storage.parts.drop_segment(metadata.segment_id.id)
        assert (part.resident(metadata), part.size_bytes) == (None, 0)
        assert tier.sample("tidegate_opened_segments") == 0


async def test_a_load_under_way_does_not_land_after_its_segment_was_deleted(
    nursery: trio.Nursery, tier: Tier, metadata: RemoteLogSegmentMetadata, kind: Kind
) -> None:
    part = kind.part(tier.storage.parts)
    with tier.store.held(**kind.asked) as gate:
        nursery.start_soon(part.get, metadata)
        await trio.to_thread.run_sync(gate.wait_for_callers, 1)
        tier.storage.parts.drop_segment(metadata.segment_id.id)
    await trio.testing.wait_all_tasks_blocked()
    assert part.resident(metadata) is None


@pytest.mark.parametrize("is_few", [True, False], ids=["entries", "bytes"])
async def test_the_least_recently_used_leaves(nursery: trio.Nursery, tier: Tier, kind: Kind, is_few: bool) -> None:
    meter, bytes_max = GetMeter(Registry()), 2**20 if is_few else kind.share * 2 * kind.size_bytes
    parts = SegmentParts(
        tier.store,
        nursery=nursery,
        gets=ObjectGets(trio.CapacityLimiter(2), meter, Throttle(GETS_MAX, meter)),
        meter=CacheMeter(Registry()),
        bytes_max=bytes_max,
        entries_max=2 if is_few else 10,
    )
    part = kind.part(parts)
    first, second, third = (metadata for metadata, _ in tier.logs)
    for metadata in (first, second, first, third):
        await part.get(metadata)
    assert [part.resident(metadata) is not None for metadata in (first, second, third)] == [True, False, True]
    assert part.size_bytes == 2 * kind.size_bytes


# Manifests


@pytest.mark.parametrize(
    ("error", "cause", "attempts"),
    [
        (CorruptObjectError("not JSON"), "corrupt", CORRUPT_ATTEMPTS_MAX),
        (RemoteResourceNotFoundError("long gone"), "not_found", 1),
    ],
)
async def test_a_manifest_that_stays_wrong_or_away_is_an_error_for_all_kinds(
    tier: Tier, metadata: RemoteLogSegmentMetadata, kind: Kind, error: RemoteStorageError, cause: str, attempts: int
) -> None:
    tier.store.fail(error, manifest=True, times=attempts)
    with pytest.raises(type(error)):
        await kind.part(tier.storage.parts).get(metadata)
    assert tier.sample("tidegate_gets_total", {"outcome": cause}) == attempts
    assert kind.part(tier.storage.parts).resident(metadata) is None
    assert (tier.store.index_fetches(), tier.store.log_fetches()) == (0, [])
    await kind.part(tier.storage.parts).get(metadata)


async def test_a_fresh_segments_manifest_that_stays_away_is_absent_as_the_store_says_it(
    autojump_clock: trio.testing.MockClock, fresh: Tier
) -> None:
    fresh.store.fail(NOT_YET, manifest=True, times=ATTEMPTS_MAX)
    with pytest.raises(RemoteResourceNotFoundError, match="not yet"):
        await fresh.storage.parts.opened.get(fresh.logs[0][0])
    assert fresh.sample("tidegate_gets_total", {"outcome": "not_found"}) == ATTEMPTS_MAX


async def test_a_format_without_a_manifest_costs_no_get(nursery: trio.Nursery) -> None:
    tier = open_tier(nursery, SEGMENTS)
    await tier.storage.parts.opened.get(tier.logs[0][0])
    assert (tier.store.opens(), tier.sample("tidegate_gets_total", {"object": "manifest"})) == (1, 0)


async def test_metadata_that_names_no_object_is_no_failed_get(tier: Tier, metadata: RemoteLogSegmentMetadata) -> None:
    tier.store.fail(IllegalMetadataError("no name"), manifest=True)
    with pytest.raises(IllegalMetadataError):
        await tier.storage.parts.opened.get(metadata)
    assert tier.sample("tidegate_gets_total") == 0
