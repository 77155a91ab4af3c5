"""The block cache: hits, single fills, quarantine, budget; the store is scripted."""

import pytest
import trio
import trio.testing

from storage.errors import CorruptObjectError, RetriableRemoteStorageError
from storage.model import RemoteLogSegmentMetadata
from tests.support.segments import filled_segment
from tests.support.tier import GETS_MAX, Tier, open_tier

SEGMENT = filled_segment(0)
BLOCK = 1000
LAST = (len(SEGMENT.log) - 1) // BLOCK
MEMORY = {"level": "memory"}


@pytest.fixture
def tier(nursery: trio.Nursery) -> Tier:
    return open_tier(nursery, [SEGMENT], block_bytes=BLOCK)


@pytest.fixture
def metadata(tier: Tier) -> RemoteLogSegmentMetadata:
    return tier.logs[0][0]


async def fetch(tier: Tier, first: int, last: int) -> bytes:
    return b"".join(block.data for block in await tier.cache.blocks(tier.logs[0][0], first, last))


async def test_blocks_are_the_log_cut_at_the_grid(tier: Tier, metadata: RemoteLogSegmentMetadata) -> None:
    blocks = await tier.cache.blocks(metadata, 0, LAST)
    assert [bytes(block.data) for block in blocks] == [
        SEGMENT.log[start : start + BLOCK] for start in range(0, len(SEGMENT.log), BLOCK)
    ]


async def test_only_missing_blocks_are_fetched(tier: Tier) -> None:
    await fetch(tier, 1, 2)
    assert await fetch(tier, 0, 3) == SEGMENT.log[: 4 * BLOCK]
    assert sorted(tier.store.log_fetches()) == [(start, start + BLOCK - 1) for start in range(0, 4 * BLOCK, BLOCK)]
    assert tier.sample("tidegate_cache_hits_total", MEMORY) == 2
    assert tier.sample("tidegate_cache_misses_total", MEMORY) == 4
    assert tier.sample("tidegate_cache_resident_bytes", MEMORY) == tier.cache.resident_bytes == 4 * BLOCK


async def test_missing_blocks_are_fetched_side_by_side_within_the_limit(tier: Tier) -> None:
    with tier.store.held() as gate:
        async with trio.open_nursery() as readers:
            readers.start_soon(fetch, tier, 0, LAST)
            await trio.to_thread.run_sync(gate.wait_for_callers, GETS_MAX)
            await trio.testing.wait_all_tasks_blocked()
            assert tier.cache.fills_in_flight == LAST + 1
            assert len(tier.store.log_fetches()) == GETS_MAX
            gate.release()
    assert tier.cache.fills_in_flight == 0


async def test_a_hit_gives_no_other_task_a_turn(tier: Tier, metadata: RemoteLogSegmentMetadata) -> None:
    await fetch(tier, 0, 0)
    with trio.CancelScope() as scope:
        scope.cancel()
        assert await fetch(tier, 0, 0) == SEGMENT.log[:BLOCK]
    assert not scope.cancelled_caught
    assert tier.cache.resident(metadata, 0) is not None
    assert tier.cache.resident(metadata, 1) is None


async def test_a_failed_fill_is_counted_and_not_remembered(tier: Tier) -> None:
    tier.store.fail(RetriableRemoteStorageError("reset"))
    with pytest.raises(RetriableRemoteStorageError):
        await fetch(tier, 0, 0)
    assert tier.sample("tidegate_cache_fill_failures_total") == 1
    assert await fetch(tier, 0, 0) == SEGMENT.log[:BLOCK]


async def test_one_failed_block_does_not_lose_the_others(tier: Tier) -> None:
    tier.store.fail(RetriableRemoteStorageError("reset"), positions=range(BLOCK, BLOCK + 1))
    with pytest.raises(RetriableRemoteStorageError):
        await fetch(tier, 0, 3)
    assert await fetch(tier, 0, 3) == SEGMENT.log[: 4 * BLOCK]
    assert len(tier.store.log_fetches()) == 5


async def test_a_short_answer_is_a_truncated_object(tier: Tier, metadata: RemoteLogSegmentMetadata) -> None:
    tier.store.truncate(999, segment=metadata, times=1)
    with pytest.raises(CorruptObjectError, match=f"truncated: bytes 2000 to 2999 of {len(SEGMENT.log)} wanted, 999"):
        await fetch(tier, 2, 2)
    assert await fetch(tier, 2, 2) == SEGMENT.log[2000:3000]


async def test_quarantine_means_one_fresh_get(tier: Tier, metadata: RemoteLogSegmentMetadata) -> None:
    (bad,) = await tier.cache.blocks(metadata, 0, 0)
    tier.cache.quarantine(metadata, 0, bad)
    assert tier.cache.resident_bytes == tier.sample("tidegate_cache_resident_bytes", MEMORY) == 0
    (fresh,) = await tier.cache.blocks(metadata, 0, 0)
    assert fresh is not bad
    tier.cache.quarantine(metadata, 0, bad)  # another reader who found the same
    assert tier.cache.resident(metadata, 0) is fresh
    assert tier.sample("tidegate_cache_quarantined_blocks_total") == 1


async def test_evictions_keep_the_budget_and_are_counted(nursery: trio.Nursery) -> None:
    tier = open_tier(nursery, [SEGMENT], block_bytes=BLOCK, memory_bytes_max=3 * BLOCK)
    assert await fetch(tier, 0, LAST) == SEGMENT.log
    assert tier.cache.resident_bytes <= 3 * BLOCK
    assert tier.sample("tidegate_cache_evictions_total", MEMORY) >= LAST - 3


async def test_a_deleted_segments_blocks_are_forgotten(tier: Tier, metadata: RemoteLogSegmentMetadata) -> None:
    await fetch(tier, 0, LAST)
    tier.cache.drop_segment(metadata.segment_id.id)
    assert tier.cache.resident_bytes == tier.sample("tidegate_cache_resident_bytes", MEMORY) == 0
    assert tier.cache.resident(metadata, 0) is None
