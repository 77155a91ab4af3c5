"""The block cache: hits, shared fills, quarantine, budget, both levels; the store is scripted."""

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from storage.cache import block_cache, pace
from storage.cache.blocks import SegmentBlocks
from storage.cache.gets import Transfer
from storage.log.block import Block
from tests.support.disk_tier import disk_tier
from tests.support.scripted_gets import until
from tests.support.segments import filled_segment
from tests.support.tier import Tier, open_tier

SEGMENT = filled_segment(0)
BLOCK = 1000
LAST = (len(SEGMENT.log) - 1) // BLOCK
MEMORY, DISK = {"level": "memory"}, {"level": "disk"}
CUT = [SEGMENT.log[start : start + BLOCK] for start in range(0, len(SEGMENT.log), BLOCK)]


@pytest.fixture
def tier(nursery: trio.Nursery) -> Tier:
    return open_tier(nursery, [SEGMENT], block_bytes=BLOCK)


@pytest.fixture
def ahead(nursery: trio.Nursery) -> Tier:
    """With room for what is read ahead."""
    return open_tier(nursery, [SEGMENT], block_bytes=BLOCK, readahead_bytes_max=20 * BLOCK)


@pytest.fixture
def source(tier: Tier) -> SegmentBlocks:
    return tier.source()


async def fetch(tier: Tier, first: int, last: int, reader: str | None = None) -> bytes:
    blocks, _ = await tier.cache.blocks(tier.source(), first, last, reader)
    return b"".join(block.data for block in blocks)


async def block_of(tier: Tier, number: int) -> Block:
    (block,), _ = await tier.cache.blocks(tier.source(), number, number)
    return block


def ranges(*numbers: int) -> list[tuple[int, int | None]]:
    """Return what GETs of single blocks ask for."""
    return [(number * BLOCK, min((number + 1) * BLOCK, len(SEGMENT.log)) - 1) for number in numbers]


# --- memory and the store ---


async def test_blocks_are_the_log_cut_at_the_grid(tier: Tier, source: SegmentBlocks) -> None:
    blocks, waited = await tier.cache.blocks(source, 0, LAST)
    assert [bytes(block.data) for block in blocks] == CUT
    assert waited
    with trio.CancelScope() as scope:
        scope.cancel()  # a hit gives no other task a turn
        again, waited = await tier.cache.blocks(source, 0, LAST)
    assert not scope.cancelled_caught
    assert [a is b for a, b in zip(blocks, again, strict=True)] == [True] * len(CUT)
    assert not waited


async def test_missing_blocks_are_fetched_by_one_get_that_reads_over_a_small_gap(tier: Tier) -> None:
    """It was a GET for each run of missing blocks: a range that is half here took more of them than a cold one."""
    await fetch(tier, 2, 3)
    assert await fetch(tier, 0, 6) == b"".join(CUT[:7])
    assert sorted(tier.store.log_fetches()) == [(0, 6999), (2000, 3999)]
    assert tier.sample("tidegate_cache_hits_total", MEMORY) == 2
    assert tier.misses == 7
    assert tier.resident_bytes == 7 * BLOCK


async def test_a_get_ends_before_a_large_gap_and_what_is_under_way(tier: Tier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "GET_BYTES_MIN", 12 * BLOCK)
    await fetch(tier, 2, 5)
    await fetch(tier, 0, 6)
    assert sorted(tier.store.log_fetches()) == [(0, 1999), (2000, 5999), (6000, 6999)]
    tier.cache.drop_segment(tier.logs[0][0].segment_id.id)
    with tier.store.held(positions=range(3000, 3001)) as gate:
        async with trio.open_nursery() as readers:
            readers.start_soon(fetch, tier, 3, 3)
            await trio.to_thread.run_sync(gate.wait_for_callers, 1)
            readers.start_soon(fetch, tier, 1, 4)
            await until(lambda: len(tier.store.log_fetches()) == 6)
            gate.release()
    assert sorted(tier.store.log_fetches()[3:]) == [(1000, 2999), (3000, 3999), (4000, 4999)]


async def test_gets_are_as_large_as_wanted_with_a_small_budget_too(nursery: trio.Nursery) -> None:
    """Failed before: what bounds a GET of 16 MiB made each of 4 MiB a quarter as large as it."""
    tier = open_tier(nursery, [SEGMENT], block_bytes=BLOCK, inflight_bytes_max=2 * 8 * 5 * BLOCK)
    await fetch(tier, 0, 9)
    assert sorted(tier.store.log_fetches()) == [(0, 4999), (5000, 9999)]


async def test_what_two_readers_share_outlives_a_scan(nursery: trio.Nursery) -> None:
    """Also when they are in step, so that neither finds the block there: one load is then two uses."""
    tier = open_tier(nursery, [SEGMENT, filled_segment(200)], block_bytes=BLOCK, memory_bytes_max=4 * BLOCK)
    with tier.store.held() as gate:
        async with trio.open_nursery() as readers:
            readers.start_soon(fetch, tier, 0, 0, "one")
            readers.start_soon(fetch, tier, 0, 0, "two")
            await trio.to_thread.run_sync(gate.wait_for_callers, 1)
            gate.release()
    other = tier.source(1)
    for number in range(other.grid.count):
        await tier.cache.blocks(other, number, number, "a backfill")
    fetches = len(tier.store.log_fetches())
    await fetch(tier, 0, 0, "one")
    assert len(tier.store.log_fetches()) == fetches


async def test_blocks_of_few_segments_are_remembered(nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_cache, "PLACES_MAX", 2)
    tier = open_tier(nursery, [filled_segment(200 * number) for number in range(4)], block_bytes=BLOCK)
    for number in (0, 1, 0, 2, 3):
        await tier.cache.blocks(tier.source(number), number, number)
    assert list(tier.cache.places) == [tier.logs[number][0].segment_id.id for number in (2, 3)]


# --- ahead ---


def fetch_ahead(tier: Tier, first: int, stop: int, *, target: int = 100, room: int = 100) -> tuple[int, int] | None:
    """Sizes and positions in blocks."""
    bounds = first * BLOCK, min(stop * BLOCK, len(SEGMENT.log))
    return tier.cache.fetch_ahead(tier.source(), *bounds, target * BLOCK, room * BLOCK)


async def test_only_what_is_not_near_is_fetched_ahead(ahead: Tier) -> None:
    await fetch(ahead, 1, 1)
    with ahead.store.held(positions=range(3000, 3001)) as gate:
        assert fetch_ahead(ahead, 3, 4) == (4 * BLOCK, BLOCK)
        await trio.to_thread.run_sync(gate.wait_for_callers, 1)
        assert fetch_ahead(ahead, 0, 5) == (3 * BLOCK, 3 * BLOCK), "over what is here, up to what is under way"
        assert fetch_ahead(ahead, 3, 5) == (5 * BLOCK, BLOCK)
        assert fetch_ahead(ahead, 0, 5) == (5 * BLOCK, 0), "all of it is here or under way"
    await ahead.settled()
    assert sorted(ahead.store.log_fetches()) == [(0, 2999), *ranges(1, 3, 4)]
    assert ahead.sample("tidegate_readahead_unread_bytes") == 4 * BLOCK


async def test_what_read_ahead_comes_to_is_not_what_is_evicted_next(nursery: trio.Nursery) -> None:
    """Blocks 0 to 15 are here and a reader is on its way to the oldest: what makes room is another one."""
    tier = open_tier(nursery, [SEGMENT], block_bytes=BLOCK, memory_bytes_max=16 * BLOCK, readahead_bytes_max=20 * BLOCK)
    await fetch(tier, 0, 15, "one")
    assert fetch_ahead(tier, 0, 2) == (2 * BLOCK, 0)
    await fetch(tier, 20, 21, "one")
    assert await fetch(tier, 0, 1, "two") == b"".join(CUT[:2])
    assert tier.store.log_fetches() == [(0, 16 * BLOCK - 1), (20 * BLOCK, 22 * BLOCK - 1)]


async def test_blocks_that_come_during_the_look_are_not_missing(ahead: Tier, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread hands two blocks over between the look at the first and the look at the second."""
    take, looks = Transfer.take, itertools.count()

    def take_late(transfer: Transfer) -> list[tuple[int, Block]]:
        return take(transfer) if next(looks) else []

    with ahead.store.stall_body(after_bytes=2 * BLOCK) as gate:
        fetch_ahead(ahead, 0, 3)
        await trio.to_thread.run_sync(gate.wait_for_callers, 1)
        monkeypatch.setattr(Transfer, "take", take_late)
        assert await fetch(ahead, 0, 1, "one") == b"".join(CUT[:2])
    await ahead.settled()
    assert ahead.store.log_fetches() == [(0, 3 * BLOCK - 1)]


# --- what a GET that somebody waits for brings along ---


async def test_a_get_brings_what_its_reader_is_likely_to_ask_for_next(ahead: Tier) -> None:
    asked = ahead.cache.ask(ahead.source(), 2, 3, "one", likely_bytes=5 * BLOCK)
    assert not asked.take()
    await asked.wait()
    asked.close()
    await ahead.settled()
    assert ahead.store.log_fetches() == [(2000, 6999)]
    assert ahead.sample("tidegate_readahead_unread_bytes") == 3 * BLOCK
    assert await fetch(ahead, 4, 6) == b"".join(CUT[4:7])
    assert len(ahead.store.log_fetches()) == 1


async def test_a_reader_ahead_of_its_read_ahead_makes_large_gets(ahead: Tier, monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as its stream's next GET would go, and not one for each of its reads."""
    monkeypatch.setattr(ahead.cache, "_reach_bytes", lambda reader, *_: 8 * BLOCK if reader == "one" else 0)
    for number in range(16):
        await fetch(ahead, number, number, "one")
    assert ahead.store.log_fetches() == [(0, 7999), (8000, 15999)]
    for number in range(16, 20):
        await fetch(ahead, number, number, "two")
    assert ahead.store.log_fetches()[2:] == ranges(16, 17, 18, 19)


# --- quarantine, deletion ---


async def test_quarantine_means_one_fresh_get(tier: Tier, source: SegmentBlocks) -> None:
    bad = await block_of(tier, 0)
    tier.cache.quarantine(source, 0, bad)
    assert tier.resident_bytes == 0
    fresh = await block_of(tier, 0)
    assert fresh is not bad
    tier.cache.quarantine(source, 0, bad)  # another reader who found the same
    assert await block_of(tier, 0) is fresh
    assert tier.sample("tidegate_cache_quarantined_blocks_total") == 1
    tier.cache.drop_segment(tier.logs[0][0].segment_id.id)
    assert (tier.resident_bytes, len(tier.cache.places)) == (0, 0), "a deleted segment's blocks are forgotten"
    tier.cache.quarantine(source, 0, fresh)
    assert tier.sample("tidegate_cache_quarantined_blocks_total") == 2, "also one that memory has dropped"


# --- the disk ---


@asynccontextmanager
async def tier_on(path: Path, *, memory_bytes_max: int = 10**6, readahead_bytes_max: int = 0) -> AsyncIterator[Tier]:
    sizes: dict[str, Any] = {"memory_bytes_max": memory_bytes_max, "readahead_bytes_max": readahead_bytes_max}
    async with disk_tier(path, [SEGMENT], block_bytes=BLOCK, **sizes) as opened:
        yield opened.tier


def held_on_disk(tier: Tier, *numbers: int) -> list[bool]:
    source, disk = tier.source(), tier.storage.disk
    assert disk is not None
    return [disk.holds(block_cache._disk_key(source, number)) for number in numbers]


async def on_disk(tier: Tier, *numbers: int) -> None:
    await until(lambda: all(held_on_disk(tier, *numbers)))


async def test_blocks_of_the_disk_are_in_memory_afterwards_also_when_they_are_read_ahead(tmp_path: Path) -> None:
    async with tier_on(tmp_path) as tier:
        await fetch(tier, 0, 4)
        await on_disk(tier, 0, 1, 2, 3, 4)
    async with tier_on(tmp_path) as tier:
        blocks, waited = await tier.cache.blocks(tier.source(), 0, 4)
        again, waited_again = await tier.cache.blocks(tier.source(), 0, 4)
        assert (waited, waited_again) == (True, False)
        assert all(a is b for a, b in zip(blocks, again, strict=True))
        assert tier.resident_bytes == 5 * BLOCK
    async with tier_on(tmp_path, readahead_bytes_max=20 * BLOCK) as tier:
        assert fetch_ahead(tier, 0, 5) is not None
        await until(lambda: tier.resident_bytes == 5 * BLOCK)
        assert await fetch(tier, 0, 4) == b"".join(CUT[:5])
        assert tier.misses == 0
        assert tier.sample("tidegate_readahead_used_bytes_total") == 5 * BLOCK
        assert not tier.store.log_fetches()


async def test_batches_of_the_disks_blocks_are_checked_by_the_thread_that_reads_them(tmp_path: Path) -> None:
    """Readers had them checked, in a visit to a thread for each answer."""
    async with tier_on(tmp_path) as tier:
        await fetch(tier, 0, 4)
        await on_disk(tier, 0, 1, 2, 3, 4)
    async with tier_on(tmp_path) as tier:
        blocks, _ = await tier.cache.blocks(tier.source(), 0, 4)
        passed = [run for block in blocks for run in (block.verified, block.straddler) if run.end]
        assert passed[0].start == 0
        assert passed[-1].end == max(at for at in SEGMENT.batch_positions if at <= 5 * BLOCK)


async def test_blocks_of_disk_and_store_are_in_order(tmp_path: Path) -> None:
    async with tier_on(tmp_path) as tier:
        await fetch(tier, 1, 1)
        await fetch(tier, 3, 3)
        await on_disk(tier, 1, 3)
    async with tier_on(tmp_path) as tier:
        assert await fetch(tier, 0, 5) == b"".join(CUT[:6])
        assert tier.store.log_fetches() == [(0, 5999)], "what is on disk in between comes along: it costs no request"


async def test_what_is_on_disk_is_not_fetched_ahead(tmp_path: Path) -> None:
    async with tier_on(tmp_path, memory_bytes_max=0) as tier:
        await fetch(tier, 0, 4)
        await on_disk(tier, 0, 1, 2, 3, 4)
        assert fetch_ahead(tier, 0, 7) == (5000, 0), "a run of the disk's"
        assert fetch_ahead(tier, 5, 7) is not None
        await tier.settled()
        assert tier.store.log_fetches() == [(0, 4999), (5000, 6999)]
