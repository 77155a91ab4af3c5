"""Opened segments: one manifest however many ask, within limits, patient with the fresh, gone with the deleted."""

import pytest
import trio
import trio.testing

from metrics.cache_probes import CacheProbe
from metrics.get_probe import GetProbe
from metrics.registry import Registry
from storage.cache.opened_segments import OpenedSegments
from storage.errors import (
    CorruptObjectError,
    IllegalMetadataError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RetriableRemoteStorageError,
)
from storage.model import RemoteLogSegmentMetadata
from storage.object_store.retries import ATTEMPTS_MAX, BACKOFF_S_MIN, CORRUPT_ATTEMPTS_MAX
from tests.support.opened_bytes import MEMORY_BYTES
from tests.support.segments import FIRST_TIMESTAMP_MS, filled_segment
from tests.support.tier import Tier, open_tier

SEGMENTS = [filled_segment(base) for base in (0, 200, 400)]
MANIFESTS = ("tidegate_gets_total", {"object": "manifest"})
NOT_YET = RemoteResourceNotFoundError("no manifest")


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


def errors(tier: Tier, cause: str) -> float:
    return tier.sample("tidegate_gets_total", {"outcome": cause})


async def test_many_who_ask_cost_one_opening(tier: Tier, metadata: RemoteLogSegmentMetadata) -> None:
    async def ask() -> None:
        assert (await tier.segments.get(metadata)).chunk_bytes == 1000

    assert tier.segments.resident(metadata) is None
    async with trio.open_nursery() as askers:
        for _ in range(4):
            askers.start_soon(ask)
    assert tier.segments.resident(metadata) is await tier.segments.get(metadata)
    assert (tier.store.opens(), tier.sample(*MANIFESTS)) == (1, 1)
    assert tier.sample("tidegate_opened_segments") == 1
    assert tier.segments.size_bytes == MEMORY_BYTES


async def test_an_open_segment_is_there_without_an_await(tier: Tier, metadata: RemoteLogSegmentMetadata) -> None:
    await tier.segments.get(metadata)
    with trio.CancelScope() as scope:
        scope.cancel()
        await tier.segments.get(metadata)
    assert not scope.cancelled_caught


async def test_a_format_without_a_manifest_costs_no_get(nursery: trio.Nursery) -> None:
    tier = open_tier(nursery, SEGMENTS)
    await tier.segments.get(tier.logs[0][0])
    assert (tier.store.opens(), tier.sample(*MANIFESTS)) == (1, 0)


@pytest.mark.parametrize(
    ("error", "cause", "attempts"),
    [
        (RetriableRemoteStorageError("503"), "retriable", ATTEMPTS_MAX),
        (CorruptObjectError("not JSON"), "corrupt", CORRUPT_ATTEMPTS_MAX),
        (RemoteResourceNotFoundError("long gone"), "not_found", 1),
    ],
)
async def test_a_failure_that_stays_is_counted_and_not_remembered(
    autojump_clock: trio.testing.MockClock,
    tier: Tier,
    metadata: RemoteLogSegmentMetadata,
    error: RemoteStorageError,
    cause: str,
    attempts: int,
) -> None:
    tier.store.fail(error, manifest=True, times=attempts)
    with pytest.raises(type(error)):
        await tier.segments.get(metadata)
    assert tier.segments.resident(metadata) is None
    assert errors(tier, cause) == attempts
    await tier.segments.get(metadata)
    assert tier.store.opens() == tier.sample(*MANIFESTS) == attempts + 1


async def test_metadata_that_names_no_object_is_no_failed_get(tier: Tier, metadata: RemoteLogSegmentMetadata) -> None:
    tier.store.fail(IllegalMetadataError("no name"), manifest=True)
    with pytest.raises(IllegalMetadataError):
        await tier.segments.get(metadata)
    assert (tier.sample(*MANIFESTS), errors(tier, "other")) == (0, 0)


async def test_a_fresh_segments_manifest_is_waited_for(autojump_clock: trio.testing.MockClock, fresh: Tier) -> None:
    fresh.store.fail(NOT_YET, manifest=True, times=ATTEMPTS_MAX - 1)
    started_at = trio.current_time()
    await fresh.segments.get(fresh.logs[0][0])
    assert trio.current_time() - started_at >= BACKOFF_S_MIN
    assert (fresh.store.opens(), fresh.sample("tidegate_get_retries_total")) == (ATTEMPTS_MAX, ATTEMPTS_MAX - 1)


async def test_a_fresh_segments_manifest_that_stays_away_is_absent_and_that_is_not_remembered(
    autojump_clock: trio.testing.MockClock, fresh: Tier
) -> None:
    metadata = fresh.logs[0][0]
    fresh.store.fail(NOT_YET, manifest=True, times=ATTEMPTS_MAX)
    with pytest.raises(RemoteResourceNotFoundError, match="no manifest"):
        await fresh.segments.get(metadata)
    assert errors(fresh, "not_found") == ATTEMPTS_MAX
    await fresh.segments.get(metadata)


async def test_an_opening_outlives_who_asked(
    nursery: trio.Nursery, tier: Tier, metadata: RemoteLogSegmentMetadata
) -> None:
    with tier.store.held(manifest=True) as gate:
        async with trio.open_nursery() as askers:
            askers.start_soon(tier.segments.get, metadata)
            await trio.to_thread.run_sync(gate.wait_for_callers, 1)
            askers.cancel_scope.cancel()
    await tier.segments.get(metadata)
    assert tier.store.opens() == 1


async def test_a_deleted_segment_leaves_at_once(tier: Tier, metadata: RemoteLogSegmentMetadata) -> None:
    await tier.segments.get(metadata)
    tier.segments.drop_segment(metadata.segment_id.id)
    assert (tier.segments.resident(metadata), tier.segments.size_bytes) == (None, 0)
    assert tier.sample("tidegate_opened_segments") == 0


async def test_an_opening_under_way_does_not_land_after_its_segment_was_deleted(
    nursery: trio.Nursery, tier: Tier, metadata: RemoteLogSegmentMetadata
) -> None:
    with tier.store.held(manifest=True) as gate:
        nursery.start_soon(tier.segments.get, metadata)
        await trio.to_thread.run_sync(gate.wait_for_callers, 1)
        tier.segments.drop_segment(metadata.segment_id.id)
    await trio.testing.wait_all_tasks_blocked()
    assert tier.segments.resident(metadata) is None


@pytest.mark.parametrize("limit", [{"segments_max": 2}, {"bytes_max": 2 * MEMORY_BYTES + 1}])
async def test_the_least_recently_used_segment_leaves(nursery: trio.Nursery, tier: Tier, limit: dict[str, int]) -> None:
    segments = OpenedSegments(
        tier.store,
        nursery=nursery,
        limiter=trio.CapacityLimiter(2),
        gets=GetProbe(Registry()),
        cache=CacheProbe(Registry()),
        **limit,  # type: ignore[arg-type]  # one of the two integers
    )
    first, second, third = (metadata for metadata, _ in tier.logs)
    for metadata in (first, second, first, third):
        await segments.get(metadata)
    assert [segments.resident(metadata) is not None for metadata in (first, second, third)] == [True, False, True]
