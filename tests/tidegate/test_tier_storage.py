"""The parts in their places: which budget is whose, what runs beside the reads, what a deletion reaches."""

from pathlib import Path
from typing import Any

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from storage.cache.disk_level import SEGMENTS_DELETED_AT_ONCE
from storage.errors import ThrottledError
from storage.model import IndexType, RemoteLogSegmentId
from tests.support.disk_cache import cost, disk_cache, files_below, key_of
from tests.support.scripted_gets import until
from tests.support.segments import filled_segment
from tests.support.tier import GETS_MAX, PARTITION, open_tier
from tests.support.waiting import HANG_S_MAX
from tidegate.tier_storage import EXPIRE_INTERVAL_S, store_kind

SEGMENT = filled_segment(0)
BLOCK = 1000


async def test_answers_not_sent_do_not_stop_fills(nursery: trio.Nursery) -> None:
    tier = open_tier(nursery, [SEGMENT], block_bytes=BLOCK, inflight_bytes_max=2 * 3 * BLOCK)
    # An answer larger than its half of the budget is let in alone; half of the budget is for GETs all the same.
    answer = await tier.read(0, max_bytes=5000)
    await tier.settled()  # it looked further ahead than its answer reaches
    assert tier.inflight_bytes == 5 * BLOCK
    tier.cache.drop_segment(tier.logs[0][0].segment_id.id)
    with trio.fail_after(HANG_S_MAX):
        await tier.cache.blocks(tier.source(), 0, 10)
    answer.release()
    await tier.settled()
    assert tier.inflight_bytes == 0


async def test_fills_do_not_stop_answers_that_have_all_they_need(nursery: trio.Nursery) -> None:
    segments = [filled_segment(200 * number) for number in range(3)]
    tier = open_tier(nursery, segments, block_bytes=BLOCK, inflight_bytes_max=2 * len(SEGMENT.log) + 2)
    expected = await tier.read_bytes(0)
    with tier.store.held() as gate:
        async with trio.open_nursery() as readers:
            for number in (1, 2):
                last = tier.source(number).grid.count - 1
                readers.start_soon(tier.cache.blocks, tier.source(number), 0, last)
            await trio.to_thread.run_sync(gate.wait_for_callers, 1)
            await wait_all_tasks_blocked()
            assert tier.inflight_bytes >= 12 * BLOCK, "GETs hold what they can"
            with trio.fail_after(HANG_S_MAX):
                assert await tier.read_bytes(0) == expected
            gate.release()


async def test_what_throttles_an_index_keeps_logs_back_too(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    tier = open_tier(nursery, [SEGMENT, filled_segment(200)], block_bytes=BLOCK)
    tier.store.fail(ThrottledError("503", retry_after_s=4.0), index_type=IndexType.OFFSET)
    nursery.start_soon(tier.read, 10)  # not the segment's first offset, which is read without an index
    await until(lambda: tier.sample("tidegate_gets_limit") == 1)
    assert tier.store.log_fetches() == []
    await tier.cache.blocks(tier.source(1), 0, 0)
    assert trio.current_time() >= 4


async def test_streams_share_the_room_for_what_is_read_ahead(nursery: trio.Nursery) -> None:
    segments = [filled_segment(200 * number, value_bytes=1000) for number in range(4)]
    tier = open_tier(nursery, segments, block_bytes=BLOCK, readahead_bytes_max=80_000)
    for number in range(4):
        for batch in range(3):
            size_bytes = len(segments[number].batches[batch])
            await tier.read_bytes(200 * number + 10 * batch, max_bytes=size_bytes, reader=f"reader {number}")
            await tier.settled()
    assert 0 < tier.sample("tidegate_readahead_unread_bytes") <= 80_000
    assert tier.sample("tidegate_readahead_wasted_bytes_total") == 0


async def test_what_is_read_ahead_and_what_was_read_have_budgets_of_their_own(nursery: trio.Nursery) -> None:
    tier = open_tier(nursery, [SEGMENT], block_bytes=BLOCK, memory_bytes_max=2 * BLOCK, readahead_bytes_max=4 * BLOCK)
    for first in (10, 15):
        assert tier.cache.fetch_ahead(tier.source(), first * BLOCK, (first + 5) * BLOCK, 5 * BLOCK, 5 * BLOCK)
    await tier.settled()
    assert tier.resident_bytes == tier.sample("tidegate_readahead_unread_bytes") == 4 * BLOCK
    await tier.cache.blocks(tier.source(), 0, 4)
    assert (tier.resident_bytes, tier.sample("tidegate_readahead_unread_bytes")) == (6 * BLOCK, 4 * BLOCK)


async def test_openings_are_bounded(nursery: trio.Nursery) -> None:
    segments = [filled_segment(200 * number) for number in range(GETS_MAX + 3)]
    tier = open_tier(nursery, segments, chunk_bytes=500)
    with tier.store.held(manifest=True) as gate:
        async with trio.open_nursery() as readers:
            for number in range(len(segments)):
                readers.start_soon(tier.read, 200 * number)
            await trio.to_thread.run_sync(gate.wait_for_callers, GETS_MAX)
            await wait_all_tasks_blocked()
            assert tier.store.opens() == GETS_MAX
            gate.release()
    assert tier.store.opens() == len(segments)


async def test_the_disk_is_listed_and_written_to_while_it_runs(nursery: trio.Nursery, tmp_path: Path) -> None:
    with disk_cache(tmp_path, bytes_max=10**6) as cache:
        tier = open_tier(nursery, [SEGMENT], block_bytes=BLOCK, disk_blocks=cache.disk)
        await tier.read_bytes(0)
        assert len(cache.disk.index.entries) == 0
        nursery.start_soon(tier.storage.run)
        await until(lambda: len(cache.disk.index.entries) == -(-len(SEGMENT.log) // BLOCK))
        nursery.cancel_scope.cancel()


async def test_a_deleted_segment_leaves_every_part(nursery: trio.Nursery, tmp_path: Path) -> None:
    with disk_cache(tmp_path, bytes_max=10**6) as cache:
        sizes: dict[str, Any] = {"block_bytes": BLOCK, "chunk_bytes": 500, "readahead_bytes_max": BLOCK}
        tier = open_tier(nursery, [SEGMENT], disk_blocks=cache.disk, **sizes)
        nursery.start_soon(tier.storage.run)
        metadata = tier.logs[0][0]
        await tier.read_bytes(0, max_bytes=2000)
        await tier.read_bytes(10, max_bytes=2000)
        await tier.settled()
        await until(lambda: len(cache.disk.index.entries) > 0)
        tier.storage.drop_segment(metadata.segment_id.id)
        assert tier.segments.resident(metadata) is None
        assert tier.indexes.resident(metadata) is None
        assert tier.resident_bytes == 0
        assert tier.sample("tidegate_readahead_streams") == 0
        await until(lambda: len(cache.disk.index.entries) == 0)
        tier.storage.drop_segment(metadata.segment_id.id)
        nursery.cancel_scope.cancel()


class Counted(trio.abc.Instrument):
    """Tasks that were spawned."""

    def __init__(self) -> None:
        self.tasks = 0

    def task_spawned(self, task: trio.lowlevel.Task) -> None:
        self.tasks += 1


async def test_many_deletions_are_dropped_in_few_visits_to_a_thread(nursery: trio.Nursery, tmp_path: Path) -> None:
    keys = [key_of(0, segment=f"segment {number}") for number in range(3 * SEGMENTS_DELETED_AT_ONCE)]
    with disk_cache(tmp_path, bytes_max=cost(1000)) as cache:
        cache.write(*keys)
        tier = open_tier(nursery, [SEGMENT], block_bytes=BLOCK, disk_blocks=cache.disk)
        counted = Counted()
        trio.lowlevel.add_instrument(counted)

        def remove_all() -> None:
            for key in keys:
                tier.storage.segment_removed(RemoteLogSegmentId(PARTITION, key.segment_id))

        # From another thread, as a manager may that is not the application's own.
        await trio.to_thread.run_sync(remove_all)
        await until(lambda: len(cache.disk.index.entries) == 0)
        trio.lowlevel.remove_instrument(counted)
        assert counted.tasks <= 2 * SEGMENTS_DELETED_AT_ONCE
        await until(lambda: not files_below(tmp_path), "the threads that remove them")


async def test_idle_blocks_leave_by_the_applications_clock(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    tier = open_tier(nursery, [SEGMENT], block_bytes=BLOCK, retention_s=EXPIRE_INTERVAL_S / 2)
    await tier.read_bytes(0)
    nursery.start_soon(tier.storage.run)
    await trio.sleep(EXPIRE_INTERVAL_S - 1)
    assert tier.resident_bytes == len(SEGMENT.log)
    await trio.sleep(2)
    assert tier.resident_bytes == 0


def test_gets_are_counted_under_the_stores_kind() -> None:
    for identity, kind in (
        ("aiven-v1 s3:https://s3.eu-west-1.amazonaws.com/bucket prefix/", "s3"),
        ("plain-objects filesystem:/mnt/tier prefix/", "filesystem"),
        ("local-tiered-storage /mnt/kafka-tiered-storage", "local"),
        ("local-tiered-storage /mnt/a:b", "local"),
        ("something", "local"),
    ):
        assert store_kind(identity) == kind
