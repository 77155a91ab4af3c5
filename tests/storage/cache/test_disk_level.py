"""The disk behind the readers' backs: nobody waits for a write, no trouble reaches a reader, nothing bad comes back;
blocks on their way from it, one by one and in runs, and whatever happens meanwhile everybody who waits hears of it."""

import threading
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from storage.cache import disk_level
from storage.cache.blocks import SegmentBlocks
from storage.cache.disk import DiskBlockKey
from storage.cache.disk_folder import DiskFolder
from storage.cache.disk_level import EXPIRE_INTERVAL_S, READS_MAX, DiskRun
from storage.cache.segment_entries import Flight
from storage.errors import RetriableRemoteStorageError
from storage.log.block import Block
from tests.support.disk_cache import SIZE_BYTES, cost, data_of, disk_cache, files_below, key_of
from tests.support.disk_world import FROM_STORE, SourceOf, World, world_at
from tests.support.scripted_gets import Gate, until

KEYS = [key_of(number) for number in range(12)]
KEY, OTHER = KEYS[:2]


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """A folder in which an earlier process left KEYS."""
    with disk_cache(tmp_path, bytes_max=cost(100)) as cache:
        cache.write(*KEYS)
    return tmp_path


@pytest.fixture
async def world(filled: Path) -> AsyncIterator[World]:
    async with world_at(filled) as world:
        yield world


async def test_trouble_of_the_store_behind_the_disk_is_the_readers(world: World) -> None:
    world.disk.drop(KEY)
    world.store_error = RetriableRemoteStorageError("503")
    with pytest.raises(RetriableRemoteStorageError):
        await world.read(KEY)
    world.store_error = None
    assert await world.read(KEY) == FROM_STORE  # nothing is remembered of it


# --- reads ---


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


# --- writes ---


async def test_a_block_is_written_once(tmp_path: Path) -> None:
    async with world_at(tmp_path) as world:
        gate = world.gate("write", KEY)
        world.write_soon(KEY, OTHER, OTHER)
        await gate.reached()
        gate.release()
        await world.written(KEY, OTHER)
        world.write_soon(KEY, OTHER)
        assert not world.level.queue


async def test_what_the_disk_cannot_keep_up_with_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        assert world.level.queue_bytes == 3 * SIZE_BYTES
        world.level.drop(OTHER)
        world.level.drop_segment(key_of(3, segment="deleted").segment_id)
        assert world.level.queue_bytes == SIZE_BYTES
        gate.release()
        await world.written(KEY, key_of(2))
        assert world.level.queue_bytes == 0


# --- what is dropped ---


async def test_a_block_that_is_dropped_while_it_is_written_does_not_stay(tmp_path: Path) -> None:
    for drop in ("block", "segment"):
        async with world_at(tmp_path / drop) as world:
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
            assert (world.level.holds(KEY), world.level.holds(OTHER)) == (False, drop == "block")


async def test_no_file_goes_in_the_loops_thread(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Failed before: `drop` waited for the disk, and every client with it."""
    deleted: list[tuple[Path, int]] = []
    delete = DiskFolder.delete

    def noting(folder: DiskFolder, path: Path) -> None:
        deleted.append((path, threading.get_ident()))
        delete(folder, path)

    monkeypatch.setattr(DiskFolder, "delete", noting)
    async with world_at(filled) as world:
        early = world.gate("write", key_of(20))
        world.write_soon(key_of(20))
        await early.reached()
        world.level.drop(key_of(20))  # the thread has yet to look at the index
        early.release()
        world.level.drop(KEY)
        assert not world.level.holds(KEY)
        paths = [world.disk.folder.path_of(key) for key in (KEY, key_of(20))]
        await until(lambda: {path for path, _ in deleted}.issuperset(paths))
        assert not any(path.exists() for path in paths)
    assert threading.get_ident() not in [thread for _, thread in deleted]


async def test_a_block_that_is_dropped_and_written_again_stays(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its former file goes before the new one comes, however long the disk takes for that."""
    gate, delete = Gate(), DiskFolder.delete

    def slow(folder: DiskFolder, path: Path) -> None:
        gate.hold()
        delete(folder, path)

    async with world_at(filled) as world:
        monkeypatch.setattr(DiskFolder, "delete", slow)
        for _ in range(2):
            world.level.drop(KEY)
            world.write_soon(KEY)
        await gate.reached()
        world.level.drop(KEY)
        world.write_soon(KEY, OTHER, key_of(20))
        gate.release()
        await world.written(KEY, key_of(20))
        assert await world.read(KEY) == data_of(KEY)
        assert world.sample("cache_disk_skipped_blocks_total") == 0
    with disk_cache(filled, bytes_max=cost(100)) as cache:
        assert bytes(cache.disk.read(KEY) or b"") == data_of(KEY)


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


async def test_a_block_found_bad_while_it_is_read_again_is_not_handed_out(world: World) -> None:
    """It failed before: the read that was under way landed the bad block once more, after it was dropped."""
    gate = world.disk.after_read[KEY] = Gate()
    flight = world.start_read(KEY)
    await gate.reached()
    world.level.drop(KEY)
    late = world.start_read(KEY)
    gate.release()
    assert bytes((await flight.wait()).data) == FROM_STORE
    assert bytes((await late.wait()).data) == FROM_STORE
    assert world.landed == []


async def test_a_block_of_a_segment_deleted_while_it_is_read_is_answered_and_not_kept(world: World) -> None:
    """It failed before: the read that was under way put the block into memory."""
    gate = world.disk.after_read[KEY] = Gate()
    flight = world.start_read(KEY)
    await gate.reached()
    world.level.drop_segment(KEY.segment_id)
    gate.release()
    assert bytes((await flight.wait()).data) == data_of(KEY)
    assert (world.landed, world.fetched) == ([], 0)
    await until(lambda: not world.level.holds(OTHER))


async def test_idle_blocks_are_looked_for_every_minute(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with world_at(tmp_path) as world:
        for times in (1, 2, 3):
            while world.disk.expirations < times:  # the clock jumps on while the thread looks
                assert trio.current_time() < 10_000 * EXPIRE_INTERVAL_S
                await trio.sleep(1)
            assert trio.current_time() >= times * EXPIRE_INTERVAL_S


def read_run(world: World) -> None:
    """All of KEYS, for nobody."""
    world.reads.read(cast(SegmentBlocks, SourceOf(KEYS[0])), KEYS, "a reader")


async def test_a_run_lands_in_order_and_is_shared_by_all_who_want_it(world: World) -> None:
    in_all = sum(key.size_bytes for key in KEYS)
    gate = world.gate("read", KEYS[3])
    read_run(world)
    assert world.reads.undemanded_bytes == in_all
    flights = [world.start_read(KEYS[3]) for _ in range(3)]
    assert len({id(flight) for flight in flights}) == 1
    assert world.reads.undemanded_bytes == in_all - KEYS[3].size_bytes
    gate.release()
    assert bytes((await flights[0].wait()).data) == data_of(KEYS[3])
    await world.done()
    assert [bytes(block.data) for block in world.landed] == [data_of(key) for key in KEYS]
    assert (world.fetched, world.reads.undemanded_bytes) == (0, 0)


async def test_what_is_not_there_comes_from_the_store_for_those_who_wait(world: World) -> None:
    gate = world.gate("read", KEYS[0])
    world.disk.drop(KEYS[1])
    world.disk.drop(KEYS[2])
    read_run(world)
    flight = world.start_read(KEYS[2])
    gate.release()
    assert bytes((await flight.wait()).data) == FROM_STORE
    await world.done()
    assert world.fetched == 1
    assert len(world.landed) == len(KEYS) - 2


@dataclass
class Receiver:
    """What came of a run, in the order in which it came; `posts`: how many came together."""

    came: list[bytes | None] = field(default_factory=list)
    failures: list[tuple[DiskBlockKey, Exception]] = field(default_factory=list)
    posts: list[int] = field(default_factory=list)
    kept: list[bool] = field(default_factory=list)
    on_delivery: Callable[[int], object] = lambda at: None
    run: DiskRun | None = None

    def read(self, world: World, keys: list[DiskBlockKey]) -> "Receiver":
        self.run = run = world.level.read_run(
            keys,
            "a reader",
            deliver=self.deliver,
            fail=lambda *failure: self.failures.append(failure),
            check=lambda number, block: None,
        )
        hand_over = run.hand_over

        def counted(group: Sequence[Block | None]) -> None:
            self.posts.append(len(group))
            hand_over(group)

        run.hand_over = counted  # type: ignore[method-assign]  # one call a post
        return self

    def deliver(self, key: DiskBlockKey, block: Block | None) -> None:
        assert self.run is not None
        at = len(self.came)
        assert key == self.run.keys[at]
        self.came.append(None if block is None else bytes(block.data))
        self.kept.append(not self.run.is_forgotten)
        self.on_delivery(at)

    async def came_to(self, blocks: int) -> None:
        await until(lambda: len(self.came) == blocks or bool(self.failures))
        await wait_all_tasks_blocked()


def whole(keys: list[DiskBlockKey]) -> list[bytes | None]:
    return [data_of(key) for key in keys]


async def test_a_run_comes_in_order_in_few_posts_the_first_alone(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_level, "POST_BYTES", 4 * SIZE_BYTES)
    async with world_at(filled) as world:
        assert [*map(world.level.holds, (KEYS[0], key_of(77), KEYS[1]))] == [True, False, True]
        receiver = Receiver().read(world, KEYS)
        await receiver.came_to(12)
        assert receiver.came == whole(KEYS)
        assert receiver.posts == [1, 4, 4, 3]
        assert receiver.failures == []
        assert world.sample("cache_hits_total", level="disk") == 12
        assert world.sample("cache_hit_bytes_total", level="disk") == 12 * SIZE_BYTES


async def test_blocks_that_are_bad_or_gone_leave_a_gap_and_no_more(world: World, filled: Path) -> None:
    (torn,) = [path for path in files_below(filled) if path.name.startswith("3-")]
    torn.write_bytes(b"torn")
    world.disk.drop(KEYS[5])
    receiver = Receiver().read(world, KEYS)
    await receiver.came_to(12)
    assert receiver.came == [None if at in (3, 5) else data for at, data in enumerate(whole(KEYS))]
    assert world.sample("cache_misses_total", level="disk") == 2
    assert not world.level.holds(KEYS[3])


async def test_a_block_found_bad_meanwhile_is_not_delivered(filled: Path) -> None:
    for is_read in (True, False):
        with disk_cache(filled, bytes_max=cost(100)) as cache:
            cache.write(*KEYS)
        async with world_at(filled) as world:
            gate = world.disk.after_read.setdefault(KEYS[1], Gate()) if is_read else world.gate("read", KEYS[1])
            never_read = world.gate("read", KEYS[2])
            receiver = Receiver().read(world, KEYS[:4])
            await gate.reached()
            for key in (KEYS[1], KEYS[2], key_of(99)):
                world.level.drop(key)
            gate.release()
            await receiver.came_to(4)
            assert receiver.came == [data_of(KEYS[0]), None, None, data_of(KEYS[3])], is_read
            assert not never_read.is_reached


async def test_a_segment_that_is_deleted_twice_loses_what_came_between_too(tmp_path: Path) -> None:
    async with world_at(tmp_path) as world:
        world.write_soon(KEY)
        await world.written(KEY)
        gate = world.disk.after_drop = Gate()
        world.level.drop_segment(KEY.segment_id)
        await gate.reached()
        later = key_of(0, segment="later")
        world.write_soon(KEY, later)
        await world.written(KEY, later)
        world.level.drop_segment(KEY.segment_id)
        gate.release()
        await until(lambda: not world.level.holds(KEY))


async def test_a_run_of_a_segment_deleted_meanwhile_is_answered_and_not_to_be_kept(world: World) -> None:
    gate = world.disk.after_read[KEYS[1]] = Gate()
    receiver = Receiver().read(world, KEYS[:2])
    await gate.reached()
    await receiver.came_to(1)
    world.level.drop_segment(key_of(0, segment="another").segment_id)
    assert receiver.run is not None
    assert not receiver.run.is_forgotten
    world.level.drop_segment(KEYS[0].segment_id)
    gate.release()
    await receiver.came_to(2)
    assert (receiver.came, receiver.kept) == (whole(KEYS[:2]), [True, False])


def refuse(at: int) -> None:
    if at == 1:
        raise ValueError("no")


async def test_an_error_of_the_receivers_ends_its_run_alone(world: World) -> None:
    receiver = Receiver(on_delivery=refuse).read(world, KEYS)
    await until(lambda: bool(receiver.failures))
    other = Receiver().read(world, KEYS)
    await other.came_to(12)
    assert receiver.came == whole(KEYS[:2])
    assert [(key, str(error)) for key, error in receiver.failures] == [(key, "no") for key in KEYS[2:]]


async def test_of_a_run_that_has_failed_the_rest_is_neither_read_nor_delivered(
    filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_level, "POST_BYTES", SIZE_BYTES)
    async with world_at(filled) as world:
        gate, later = world.disk.after_read.setdefault(KEYS[2], Gate()), world.gate("read", KEYS[3])
        receiver = Receiver(on_delivery=refuse).read(world, KEYS)
        await gate.reached()
        await until(lambda: bool(receiver.failures))
        gate.release()
        await until(lambda: not world.level.runs)
        assert receiver.came == whole(KEYS[:2])
        assert not later.is_reached


def closed(receiver: Receiver) -> list[DiskBlockKey]:
    """The blocks that did not come since the application ended."""
    assert all(isinstance(error, trio.ClosedResourceError) for _, error in receiver.failures)
    return [key for key, _ in receiver.failures]


async def test_at_shutdown_nobody_is_left_waiting(filled: Path) -> None:
    told = []

    async def wait(flight: Flight[Block]) -> None:
        with pytest.raises(trio.ClosedResourceError):
            await flight.wait()
        told.append(flight)

    async with trio.open_nursery() as outside, world_at(filled) as world:
        for number in range(READS_MAX):  # so that it never gets a thread
            world.level.read_limiter.acquire_on_behalf_of_nowait(number)
        outside.start_soon(wait, world.start_read(KEY))
        receiver = Receiver().read(world, KEYS[1:])
        await wait_all_tasks_blocked()
    assert len(told) == 1
    assert receiver.came == []
    assert closed(receiver) == KEYS[1:]


async def test_at_shutdown_a_run_ends_with_the_block_that_it_is_at(filled: Path) -> None:
    gate = Gate()

    async def open_soon() -> None:
        await wait_all_tasks_blocked()
        gate.release()

    async with trio.open_nursery() as outside, world_at(filled) as world:
        world.disk.gates["read", KEYS[1]] = gate
        receiver = Receiver().read(world, KEYS)
        await receiver.came_to(1)
        outside.start_soon(open_soon)
    assert receiver.came == whole(KEYS[:1])
    assert closed(receiver) == KEYS[1:]
