"""Offset indexes in memory: one fetch each, a byte budget, rebuilt when missing or wrong."""

import pytest
import trio

from metrics.probes import CacheProbe
from metrics.registry import Registry
from storage.cache.index_cache import OffsetIndexCache
from storage.errors import RemoteResourceNotFoundError, RetriableRemoteStorageError
from storage.indexes.offset_index import OffsetIndex
from storage.model import IndexType, RemoteLogSegmentMetadata
from tests.support.segments import SyntheticSegment, filled_segment
from tests.support.tier import Tier, open_tier

SEGMENT = filled_segment(0, batch_count=60)
REBUILDS = ("tidegate_index_rebuilds_total", {"index": "offset"})


@pytest.fixture
def tier(nursery: trio.Nursery) -> Tier:
    return open_tier(nursery, [SEGMENT])


@pytest.fixture
def metadata(tier: Tier) -> RemoteLogSegmentMetadata:
    return tier.logs[0][0]


def answers(index: OffsetIndex, segment: SyntheticSegment = SEGMENT) -> list[tuple[int, int]]:
    return [index.lookup(offset) for offset in range(segment.base_offset, segment.end_offset + 1)]


RIGHT = answers(OffsetIndex(SEGMENT.offset_index, 0))


async def test_many_who_ask_cost_one_fetch(tier: Tier, metadata: RemoteLogSegmentMetadata) -> None:
    async def ask() -> None:
        assert answers(await tier.indexes.get(metadata)) == RIGHT

    assert tier.indexes.resident(metadata) is None
    async with trio.open_nursery() as askers:
        for _ in range(4):
            askers.start_soon(ask)
    assert tier.indexes.resident(metadata) is await tier.indexes.get(metadata)
    assert (tier.store.index_fetches(), tier.store.log_fetches()) == (1, [])


@pytest.mark.parametrize("content", [b"x", b"\xff" * 8, SEGMENT.offset_index * 2])
async def test_a_corrupt_index_is_rebuilt(tier: Tier, metadata: RemoteLogSegmentMetadata, content: bytes) -> None:
    tier.store.replace(content, index_type=IndexType.OFFSET)
    assert answers(await tier.indexes.get(metadata)) == RIGHT
    assert tier.sample(*REBUILDS) == 1


async def test_an_index_that_leads_out_of_its_segment_is_rebuilt(nursery: trio.Nursery) -> None:
    small = filled_segment(0, batch_count=20)
    tier = open_tier(nursery, [small])
    tier.store.replace(SEGMENT.offset_index, index_type=IndexType.OFFSET)
    index = await tier.indexes.get(tier.logs[0][0])
    assert answers(index, small) == answers(OffsetIndex(small.offset_index, 0), small)
    assert tier.sample(*REBUILDS) == 1


async def test_a_missing_index_is_rebuilt(tier: Tier, metadata: RemoteLogSegmentMetadata) -> None:
    tier.store.fail(RemoteResourceNotFoundError("gone"), index_type=IndexType.OFFSET)
    assert answers(await tier.indexes.get(metadata)) == RIGHT
    assert tier.sample(*REBUILDS) == 1


async def test_an_empty_index_is_an_index(nursery: trio.Nursery) -> None:
    tiny = filled_segment(0, batch_count=1)
    assert tiny.offset_index == b""
    tier = open_tier(nursery, [tiny])
    metadata = tier.logs[0][0]
    await tier.indexes.get(metadata)
    await tier.indexes.get(metadata)
    assert (tier.store.index_fetches(), tier.sample(*REBUILDS)) == (1, 0)


async def test_trouble_is_not_a_missing_index_and_not_remembered(
    tier: Tier, metadata: RemoteLogSegmentMetadata
) -> None:
    tier.store.fail(RetriableRemoteStorageError("503"), index_type=IndexType.OFFSET)
    with pytest.raises(RetriableRemoteStorageError):
        await tier.indexes.get(metadata)
    assert answers(await tier.indexes.get(metadata)) == RIGHT
    assert tier.sample(*REBUILDS) == 0


async def test_without_index_and_log_nothing_can_be_rebuilt(tier: Tier, metadata: RemoteLogSegmentMetadata) -> None:
    tier.store.inner.delete_log_segment_data(metadata)
    with pytest.raises(RemoteResourceNotFoundError):
        await tier.indexes.get(metadata)
    assert tier.sample(*REBUILDS) == 0


async def test_a_rebuild_that_is_asked_for_replaces_what_is_there(
    tier: Tier, metadata: RemoteLogSegmentMetadata
) -> None:
    tier.store.replace(b"", index_type=IndexType.OFFSET)
    assert len(await tier.indexes.get(metadata)) == 0
    assert answers(await tier.indexes.rebuild(metadata)) == RIGHT
    assert answers(await tier.indexes.get(metadata)) == RIGHT
    assert tier.indexes.size_bytes == len(SEGMENT.offset_index)
    assert tier.sample(*REBUILDS) == 1


async def test_the_least_recently_used_index_goes_when_the_budget_is_full(nursery: trio.Nursery) -> None:
    segments = [filled_segment(base, batch_count=60) for base in (0, 600, 1200)]
    tier = open_tier(nursery, segments)
    size = len(segments[0].offset_index)
    probe, limiter = CacheProbe(Registry()), trio.CapacityLimiter(2)
    indexes = OffsetIndexCache(tier.store, nursery=nursery, limiter=limiter, probe=probe, bytes_max=2 * size)
    first, second, third = (metadata for metadata, _ in tier.logs)
    for metadata in (first, second, first, third):
        await indexes.get(metadata)
    assert [indexes.resident(metadata) is not None for metadata in (first, second, third)] == [True, False, True]
    assert indexes.size_bytes == 2 * size


async def test_one_index_above_the_budget_is_kept_until_the_next(nursery: trio.Nursery) -> None:
    tier = open_tier(nursery, [SEGMENT, filled_segment(600, batch_count=60)])
    probe, limiter = CacheProbe(Registry()), trio.CapacityLimiter(2)
    indexes = OffsetIndexCache(tier.store, nursery=nursery, limiter=limiter, probe=probe, bytes_max=1)
    (first, _), (second, _) = tier.logs
    await indexes.get(first)
    assert indexes.resident(first) is not None
    await indexes.get(second)
    assert indexes.resident(first) is None


async def test_a_deleted_segments_index_is_forgotten(tier: Tier, metadata: RemoteLogSegmentMetadata) -> None:
    await tier.indexes.get(metadata)
    tier.indexes.drop_segment(metadata.segment_id.id)
    tier.indexes.drop_segment(metadata.segment_id.id)
    assert (tier.indexes.resident(metadata), tier.indexes.size_bytes) == (None, 0)
