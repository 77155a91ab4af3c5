"""Time indexes in memory: one fetch each, a byte budget, an empty one in place of one that is missing or wrong."""

import pytest
import trio
from trio.testing import MockClock

from metrics.cache_probes import CacheProbe
from metrics.get_probe import GetProbe
from metrics.registry import Registry
from storage.cache.time_index_cache import TimeIndexCache
from storage.errors import RetriableRemoteStorageError
from storage.indexes.time_index import encode_time_index
from storage.model import IndexType, RemoteLogSegmentMetadata
from tests.support.segments import FIRST_TIMESTAMP_MS, filled_segment
from tests.support.tier import Tier, open_tier
from tests.support.waiting import HANG_S_MAX

SEGMENT = filled_segment(0, batch_count=60)
REBUILDS = ("tidegate_index_rebuilds_total", {"index": "time"})


@pytest.fixture
def tier(nursery: trio.Nursery) -> Tier:
    return open_tier(nursery, [SEGMENT, filled_segment(600, batch_count=60)])


@pytest.fixture
def metadata(tier: Tier) -> RemoteLogSegmentMetadata:
    return tier.logs[0][0]


async def test_many_who_ask_cost_one_fetch(tier: Tier, metadata: RemoteLogSegmentMetadata) -> None:
    indexes = tier.storage.time_indexes
    assert indexes.resident(metadata) is None
    async with trio.open_nursery() as askers:
        for _ in range(4):
            askers.start_soon(indexes.get, metadata)
    index = await indexes.get(metadata)
    assert index is indexes.resident(metadata)
    assert index.lookup(FIRST_TIMESTAMP_MS + 599) == (FIRST_TIMESTAMP_MS + 599, 599)
    assert tier.store.index_fetches(IndexType.TIMESTAMP) == tier.store.index_fetches() == 1
    assert indexes.size_bytes == len(SEGMENT.time_index)


@pytest.mark.parametrize("content", [b"x", b"\xff" * 12, SEGMENT.time_index * 2, encode_time_index(0, [(5, 600)])])
async def test_an_empty_index_stands_in_for_a_wrong_one(
    tier: Tier, metadata: RemoteLogSegmentMetadata, content: bytes
) -> None:
    tier.store.replace(content, index_type=IndexType.TIMESTAMP)
    index = await tier.storage.time_indexes.get(metadata)
    assert (len(index), index.lookup(2**62)) == (0, (-1, 0))
    assert tier.sample(*REBUILDS) == 1
    assert await tier.storage.time_indexes.get(metadata) is index
    assert tier.sample(*REBUILDS) == 1
    assert tier.store.log_fetches() == []


async def test_trouble_that_may_pass_is_an_error(
    tier: Tier, metadata: RemoteLogSegmentMetadata, autojump_clock: MockClock
) -> None:
    tier.store.fail(RetriableRemoteStorageError("503"), index_type=IndexType.TIMESTAMP, times=100)
    with pytest.raises(RetriableRemoteStorageError):
        await tier.storage.time_indexes.get(metadata)
    assert tier.sample(*REBUILDS) == 0
    assert tier.storage.time_indexes.resident(metadata) is None


async def test_a_deleted_segments_index_leaves(tier: Tier, metadata: RemoteLogSegmentMetadata) -> None:
    await tier.storage.time_indexes.get(metadata)
    tier.delete(0)
    assert tier.storage.time_indexes.resident(metadata) is None
    assert tier.storage.time_indexes.size_bytes == 0


async def test_indexes_have_a_budget(tier: Tier, nursery: trio.Nursery) -> None:
    indexes = TimeIndexCache(
        tier.segments,
        nursery=nursery,
        limiter=tier.limiter,
        gets=GetProbe(Registry()),
        probe=CacheProbe(Registry()),
        bytes_max=len(SEGMENT.time_index),
    )
    first, second = (metadata for metadata, _ in tier.logs)
    await indexes.get(first)
    await indexes.get(second)
    assert indexes.resident(first) is None
    assert indexes.resident(second) is not None


async def test_the_fetch_goes_on_when_its_asker_leaves(tier: Tier, metadata: RemoteLogSegmentMetadata) -> None:
    with tier.store.held(index_type=IndexType.TIMESTAMP) as gate:
        async with trio.open_nursery() as asker:
            asker.start_soon(tier.storage.time_indexes.get, metadata)
            await trio.to_thread.run_sync(gate.wait_for_callers, 1)
            asker.cancel_scope.cancel()
    with trio.fail_after(HANG_S_MAX):
        await tier.storage.time_indexes.get(metadata)
    assert tier.store.index_fetches(IndexType.TIMESTAMP) == 1
