"""What answers hold until they are sent: the very bytes that the store gave, within their budget, come what may."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from storage.reading.reader import TierRecords
from tests.support import opened_bytes
from tests.support.segments import build_segment, data_batch, filled_segment
from tests.support.tier import Tier, expected_bytes, open_tier
from tests.support.waiting import HANG_S_MAX

SEGMENT = filled_segment(0)
OTHER = filled_segment(200)
BLOCK = 1000


def joined(records: TierRecords) -> bytes:
    return b"".join(records.buffers)


def blocks_of(records: TierRecords, first_position: int) -> int:
    """Return how many bytes the blocks have that a small answer is cut from."""
    first, last = first_position // BLOCK, (first_position + records.size_bytes - 1) // BLOCK
    return min((last + 1) * BLOCK, len(SEGMENT.log)) - first * BLOCK


# --- eviction ---


async def test_an_answer_outlives_the_eviction_and_the_quarantine_of_its_blocks(nursery: trio.Nursery) -> None:
    tier = open_tier(nursery, [SEGMENT, OTHER], block_bytes=BLOCK, memory_bytes_max=3 * BLOCK)
    evicted = await tier.read(0, max_bytes=2500)
    await tier.settled()  # it may have looked further ahead than its answer reaches
    held_bytes = tier.inflight_bytes
    assert held_bytes == blocks_of(evicted, 0) == 3 * BLOCK
    await tier.read_bytes(200)  # through all of memory
    assert tier.sample("tidegate_cache_evictions_total", {"level": "memory"}) > 0
    quarantined = await tier.read(0, max_bytes=500)
    (block,), _ = await tier.cache.blocks(tier.source(), 0, 0)
    tier.cache.quarantine(tier.source(), 0, block)
    tier.cache.drop_segment(tier.logs[0][0].segment_id.id)
    assert joined(evicted) == SEGMENT.log[:2500]
    assert joined(quarantined) == SEGMENT.log[: quarantined.size_bytes]
    await tier.settled()
    # Fetched again, block 0 is another one: both are held.
    assert tier.inflight_bytes == held_bytes + blocks_of(quarantined, 0)
    evicted.release()
    evicted.release()
    assert tier.inflight_bytes == blocks_of(quarantined, 0)
    quarantined.release()
    assert tier.inflight_bytes == 0


async def test_answers_from_the_same_blocks_hold_them_once(nursery: trio.Nursery) -> None:
    tier = open_tier(nursery, [SEGMENT], block_bytes=BLOCK)
    answers = [await tier.read(0, max_bytes=2500) for _ in range(5)]
    await tier.settled()
    assert tier.inflight_bytes == 3 * BLOCK
    for answer in answers[:-1]:
        answer.release()
    assert tier.inflight_bytes == 3 * BLOCK
    answers[-1].release()
    assert tier.inflight_bytes == 0
    records = await tier.read(0, max_bytes=1, minimum_one_batch=False)
    assert records.first_batch_too_large
    await tier.settled()
    assert tier.inflight_bytes == 0, "an answer without records holds nothing"
    records.release()


# --- room ---

LARGE = [build_segment([data_batch(number, value_bytes=200_000)]) for number in range(3)]
"""Segments of one batch each, much larger than a read looks ahead."""


def cramped(nursery: trio.Nursery, budget_bytes: int) -> Tier:
    """Half of `inflight_bytes_max` is for answers."""
    return open_tier(nursery, LARGE, block_bytes=BLOCK, inflight_bytes_max=2 * budget_bytes)


async def test_readers_that_find_out_later_that_they_need_more_all_finish(nursery: trio.Nursery) -> None:
    """Also where each answer is larger than the budget, and so comes alone."""
    for budget_bytes in (220_000, 10_000):
        tier, done = cramped(nursery, budget_bytes), list[int]()

        async def read(offset: int, tier: Tier = tier, done: list[int] = done) -> None:
            assert await tier.read_bytes(offset, max_bytes=1) == LARGE[offset].log
            done.append(offset)

        with trio.fail_after(HANG_S_MAX):
            async with trio.open_nursery() as readers:
                for offset in (0, 1, 2, 0, 1, 2):
                    readers.start_soon(read, offset)
        assert sorted(done) == [0, 0, 1, 1, 2, 2]
        await tier.settled()
        assert tier.inflight_bytes == 0


async def test_a_reader_that_gives_up_holds_nothing(nursery: trio.Nursery) -> None:
    tier = cramped(nursery, 220_000)
    for held_at in ("store", "room"):
        first = await tier.read(0) if held_at == "room" else None
        with tier.store.held() as gate, trio.CancelScope() as scope:
            async with trio.open_nursery() as readers:
                readers.start_soon(tier.read, 1)
                if first is None:
                    await trio.to_thread.run_sync(gate.wait_for_callers, 1)
                await wait_all_tasks_blocked()
                scope.cancel()
        if first is not None:
            first.release()
        await tier.settled()
        assert tier.inflight_bytes == 0, held_at


# --- no copies ---


async def test_buffers_of_answers_are_views_of_what_the_stores_stream_gave(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[bytes] = []
    read = opened_bytes.StreamOfBytes.read

    def noted_read(stream: opened_bytes.StreamOfBytes, size_bytes: int) -> bytes:
        given.append(read(stream, size_bytes))
        return given[-1]

    monkeypatch.setattr(opened_bytes.StreamOfBytes, "read", noted_read)
    for chunk_bytes in (1, 700):
        tier = open_tier(nursery, [SEGMENT], block_bytes=BLOCK, chunk_bytes=chunk_bytes, readahead_bytes_max=20 * BLOCK)
        for offset in (0, 100, 0, 55):  # cold, in part ahead, and warm
            records = await tier.read(offset, max_bytes=5000)
            assert len(records.buffers) >= 4
            for buffer in records.buffers:
                assert isinstance(buffer, memoryview)
                assert any(buffer.obj is piece for piece in given), f"chunks of {chunk_bytes}"
            assert joined(records) == expected_bytes(tier.logs, offset, max_bytes=5000)
            records.release()
        await tier.settled()
