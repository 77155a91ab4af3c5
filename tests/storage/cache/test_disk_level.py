"""The disk behind the readers' backs: nobody waits for a write, no trouble reaches a reader, nothing bad comes back."""

import errno
import threading
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from storage.cache import disk_level
from storage.cache.blocks import Block
from storage.cache.disk_level import EXPIRE_INTERVAL_S, READS_MAX
from storage.cache.segment_entries import Flight
from storage.errors import RetriableRemoteStorageError
from storage.model import Uuid
from tests.support.disk_cache import SIZE_BYTES, break_writes, cost, data_of, disk_cache, key_of
from tests.support.disk_world import FROM_STORE, world_at
from tests.support.scripted_gets import Gate, until

KEY, OTHER = key_of(0), key_of(1)


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """A folder in which an earlier process left KEY and OTHER."""
    with disk_cache(tmp_path) as cache:
        cache.write(KEY, OTHER)
    return tmp_path


# --- reads ---


async def test_a_block_that_an_earlier_process_left_is_read_and_lands(filled: Path) -> None:
    async with world_at(filled) as world:
        assert world.level.holds(KEY)
        assert await world.read(KEY) == data_of(KEY)
        assert [bytes(block.data) for block in world.landed] == [data_of(KEY)]
        assert world.fetched == 0
        assert world.sample("cache_hits_total", level="disk") == 1
        assert world.sample("cache_hit_bytes_total", level="disk") == SIZE_BYTES


async def test_nothing_is_held_before_the_folder_is_listed(filled: Path) -> None:
    async with world_at(filled, is_run=False) as world:
        assert not world.level.holds(KEY)
        world.write_soon(key_of(7))
        assert world.sample("cache_disk_skipped_blocks_total") == 1


async def test_a_block_that_is_gone_comes_from_the_store(filled: Path) -> None:
    async with world_at(filled) as world:
        gate = world.gate("read", KEY)
        flight = world.start_read(KEY)
        await gate.reached()
        world.disk.drop(KEY)
        gate.release()
        assert bytes((await flight.wait()).data) == FROM_STORE
        assert (world.fetched, world.landed) == (1, [])
        assert world.sample("cache_misses_total", level="disk") == 1


async def test_trouble_of_the_store_behind_the_disk_is_the_readers(filled: Path) -> None:
    async with world_at(filled) as world:
        world.disk.drop(KEY)
        world.store_error = RetriableRemoteStorageError("503")
        with pytest.raises(RetriableRemoteStorageError):
            await world.read(KEY)
        world.store_error = None
        assert await world.read(KEY) == FROM_STORE  # nothing is remembered of it


async def test_reads_at_once_are_bounded(tmp_path: Path) -> None:
    keys = [key_of(number) for number in range(READS_MAX + 3)]
    with disk_cache(tmp_path, bytes_max=cost(100)) as cache:
        cache.write(*keys)
    async with world_at(tmp_path) as world:
        gates = [world.gate("read", key) for key in keys]
        flights = [world.start_read(key) for key in keys]
        await until(lambda: sum(gate.is_reached for gate in gates) == READS_MAX)
        await wait_all_tasks_blocked()
        assert sum(gate.is_reached for gate in gates) == READS_MAX
        for gate in gates:
            gate.release()
        for flight in flights:
            await flight.wait()


async def test_a_reader_that_leaves_does_not_end_the_read(filled: Path) -> None:
    async with world_at(filled) as world:
        gate = world.gate("read", KEY)
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as readers:
                readers.start_soon(world.read, KEY)
                await gate.reached()
                scope.cancel()
        gate.release()
        await until(lambda: bool(world.landed))


async def test_at_shutdown_nobody_is_left_waiting(filled: Path) -> None:
    told = []

    async def wait(flight: Flight[Block]) -> None:
        with pytest.raises(trio.ClosedResourceError):
            await flight.wait()
        told.append(flight)

    async with trio.open_nursery() as outside, world_at(filled) as world:
        for number in range(READS_MAX):  # so that it never gets a thread
            world.level._read_limiter.acquire_on_behalf_of_nowait(number)
        outside.start_soon(wait, world.start_read(KEY))
        await wait_all_tasks_blocked()
    assert len(told) == 1


# --- writes ---


async def test_a_block_is_written_once(tmp_path: Path) -> None:
    async with world_at(tmp_path) as world:
        gate = world.gate("write", KEY)
        world.write_soon(KEY, OTHER, OTHER)
        await gate.reached()
        gate.release()
        await world.written(KEY, OTHER)
        world.write_soon(KEY, OTHER)
        assert not world.level._queue


async def test_what_the_disk_does_not_keep_up_with_is_left_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_level, "WRITE_QUEUE_BYTES_MAX", 2 * SIZE_BYTES)
    async with world_at(tmp_path) as world:
        gate = world.gate("write", KEY)
        world.write_soon(KEY)
        await gate.reached()
        world.write_soon(*[key_of(number) for number in range(1, 5)])
        assert world.sample("cache_disk_skipped_blocks_total") == 2
        gate.release()
        await world.written(KEY, key_of(1), key_of(2))
        world.write_soon(key_of(3))
        await world.written(key_of(3))
        assert not world.level.holds(key_of(4))


async def test_memory_that_waits_to_be_written_is_given_back(tmp_path: Path) -> None:
    async with world_at(tmp_path) as world:
        gate = world.gate("write", KEY)
        world.write_soon(KEY)
        await gate.reached()
        world.write_soon(OTHER, key_of(2), key_of(3, segment="deleted"))
        assert world.level._queue_bytes == 3 * SIZE_BYTES
        world.level.drop(OTHER)
        world.level.drop_segment(key_of(3, segment="deleted").segment_id)
        assert world.level._queue_bytes == SIZE_BYTES
        gate.release()
        await world.written(KEY, key_of(2))
        assert world.level._queue_bytes == 0


async def test_a_full_disk_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world_at(tmp_path) as world:
        with monkeypatch.context() as patch:
            break_writes(patch, errno.ENOSPC)
            world.write_soon(KEY)
            await until(lambda: world.sample("cache_disk_errors_total", cause="full") == 1)
        world.write_soon(OTHER)
        assert world.sample("cache_disk_skipped_blocks_total") >= 1
        assert world.sample("cache_disk_available") == 0


# --- what is dropped ---


@pytest.mark.parametrize("drop", ["block", "segment"])
async def test_a_block_that_is_dropped_while_it_is_written_does_not_stay(tmp_path: Path, drop: str) -> None:
    async with world_at(tmp_path) as world:
        gate = world.gate("write", KEY)
        world.write_soon(KEY, OTHER)
        await gate.reached()
        if drop == "block":
            world.level.drop(KEY)
        else:
            world.level.drop_segment(KEY.segment_id)
        gate.release()
        later = key_of(0, segment="later")
        world.write_soon(later)
        await world.written(later)
        assert not world.level.holds(KEY)
        assert world.level.holds(OTHER) == (drop == "block")


async def test_a_fresh_block_replaces_the_one_that_was_dropped_while_it_was_written(tmp_path: Path) -> None:
    async with world_at(tmp_path) as world:
        gate = world.gate("write", KEY)
        bad = Block(memoryview(bytes(SIZE_BYTES)))
        world.level.write_soon(KEY, bad, None)
        await gate.reached()
        world.level.drop(KEY)
        world.write_soon(KEY, OTHER)
        gate.release()
        await world.written(KEY, OTHER)
        assert await world.read(KEY) == data_of(KEY)


async def test_a_block_found_bad_while_it_is_read_again_is_not_handed_out(filled: Path) -> None:
    """It failed before: the read that was under way landed the bad block once more, after it was dropped."""
    async with world_at(filled) as world:
        gate = world.disk.after_read[KEY] = Gate()
        flight = world.start_read(KEY)
        await gate.reached()
        world.level.drop(KEY)
        late = world.start_read(KEY)
        gate.release()
        assert bytes((await flight.wait()).data) == FROM_STORE
        assert bytes((await late.wait()).data) == FROM_STORE
        assert world.landed == []


async def test_a_block_of_a_segment_deleted_while_it_is_read_is_answered_and_not_kept(filled: Path) -> None:
    """It failed before: the read that was under way put the block into memory."""
    async with world_at(filled) as world:
        gate = world.disk.after_read[KEY] = Gate()
        flight = world.start_read(KEY)
        await gate.reached()
        world.level.drop_segment(KEY.segment_id)
        gate.release()
        assert bytes((await flight.wait()).data) == data_of(KEY)
        assert (world.landed, world.fetched) == ([], 0)
        await until(lambda: not world.level.holds(OTHER))


async def test_segments_that_the_catalog_does_not_know_are_dropped(tmp_path: Path) -> None:
    unknown = key_of(0, segment="unknown")
    with disk_cache(tmp_path) as cache:
        cache.write(KEY, unknown)

    def known_among(segments: frozenset[Uuid]) -> frozenset[Uuid]:
        assert threading.current_thread() is not threading.main_thread()
        return segments & {KEY.segment_id}

    async with world_at(tmp_path) as world:
        await world.level.drop_unknown(known_among)
        assert (world.level.holds(KEY), world.level.holds(unknown)) == (True, False)


async def test_idle_blocks_are_looked_for_every_minute(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with world_at(tmp_path) as world:
        for times in (1, 2, 3):
            while world.disk.expirations < times:  # the clock jumps on while the thread looks
                assert trio.current_time() < 10_000 * EXPIRE_INTERVAL_S
                await trio.sleep(1)
            assert trio.current_time() >= times * EXPIRE_INTERVAL_S
