"""Runs of blocks from disk: in order, in few posts, and whatever happens meanwhile everybody who waits is told."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from storage.cache import disk_level
from storage.cache.disk import DiskBlockKey
from storage.cache.disk_level import READS_MAX, DiskRun
from tests.support.disk_cache import SIZE_BYTES, cost, data_of, disk_cache, files_below, key_of
from tests.support.disk_world import World, world_at
from tests.support.scripted_gets import Gate, until

KEYS = [key_of(number) for number in range(12)]


@dataclass
class Receiver:
    """What came of a run, in the order in which it came; `posts`: how many came together."""

    came: list[bytes | None] = field(default_factory=list)
    failures: list[Exception] = field(default_factory=list)
    posts: list[int] = field(default_factory=list)
    kept: list[bool] = field(default_factory=list)
    on_delivery: Callable[[int], object] = lambda at: None
    run: DiskRun | None = None

    def read(self, world: World, keys: list[DiskBlockKey]) -> "Receiver":
        self.run = run = world.level.read_run(keys, "a reader", deliver=self.deliver, fail=self.failures.append)
        hand_over = run.hand_over

        def counted(group: Sequence[bytes | bytearray | None]) -> None:
            self.posts.append(len(group))
            hand_over(group)

        run.hand_over = counted  # type: ignore[method-assign]  # one call a post
        return self

    def deliver(self, at: int, data: memoryview | None) -> None:
        assert at == len(self.came)
        assert self.run is not None
        self.came.append(None if data is None else bytes(data))
        self.kept.append(not self.run.is_forgotten)
        self.on_delivery(at)

    async def came_to(self, blocks: int) -> None:
        await until(lambda: len(self.came) == blocks or bool(self.failures))
        await wait_all_tasks_blocked()


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    with disk_cache(tmp_path, bytes_max=cost(100)) as cache:
        cache.write(*KEYS)
    return tmp_path


def whole(keys: list[DiskBlockKey]) -> list[bytes | None]:
    return [data_of(key) for key in keys]


async def test_a_run_comes_in_order_in_few_posts_the_first_block_by_itself(
    filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_level, "POST_BYTES", 4 * SIZE_BYTES)
    async with world_at(filled) as world:
        assert world.level.holds_run([KEYS[0], key_of(77), KEYS[1]]) == [True, False, True]
        receiver = Receiver().read(world, KEYS)
        await receiver.came_to(12)
        assert receiver.came == whole(KEYS)
        assert receiver.posts == [1, 4, 4, 3]
        assert receiver.failures == []
        assert world.sample("cache_hits_total", level="disk") == 12
        assert world.sample("cache_hit_bytes_total", level="disk") == 12 * SIZE_BYTES


async def test_a_run_of_one_costs_no_post_of_its_own(filled: Path) -> None:
    async with world_at(filled) as world:
        receiver = Receiver().read(world, KEYS[:1])
        await receiver.came_to(1)
        assert (receiver.came, receiver.posts) == (whole(KEYS[:1]), [1])


async def test_what_was_read_is_delivered_while_the_rest_is_read(filled: Path) -> None:
    async with world_at(filled) as world:
        gate = world.gate("read", KEYS[1])
        receiver = Receiver().read(world, KEYS[:3])
        await receiver.came_to(1)
        assert receiver.came == whole(KEYS[:1])
        gate.release()
        await receiver.came_to(3)


async def test_blocks_that_are_bad_or_gone_leave_a_gap_and_no_more(filled: Path) -> None:
    async with world_at(filled) as world:
        (torn,) = [path for path in files_below(filled) if path.name.startswith("3-")]
        torn.write_bytes(b"torn")
        world.disk.drop(KEYS[5])
        receiver = Receiver().read(world, KEYS)
        await receiver.came_to(12)
        assert receiver.came == [None if at in (3, 5) else data for at, data in enumerate(whole(KEYS))]
        assert world.sample("cache_misses_total", level="disk") == 2
        assert not world.level.holds(KEYS[3])


@pytest.mark.parametrize("is_read", [True, False])
async def test_a_block_found_bad_meanwhile_is_not_delivered(filled: Path, is_read: bool) -> None:
    async with world_at(filled) as world:
        gates = world.disk.after_read if is_read else {}
        gate = gates.setdefault(KEYS[1], Gate()) if is_read else world.gate("read", KEYS[1])
        never_read = world.gate("read", KEYS[2])
        receiver = Receiver().read(world, KEYS[:4])
        await gate.reached()
        world.level.drop(KEYS[1])
        world.level.drop(KEYS[2])
        world.level.drop(key_of(99))
        gate.release()
        await receiver.came_to(4)
        assert receiver.came == [data_of(KEYS[0]), None, None, data_of(KEYS[3])]
        assert not never_read.is_reached


async def test_a_run_of_a_segment_deleted_meanwhile_is_answered_and_not_to_be_kept(filled: Path) -> None:
    async with world_at(filled) as world:
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


async def test_of_a_run_that_nobody_wants_the_rest_is_neither_read_nor_delivered(filled: Path) -> None:
    async with world_at(filled) as world:
        gate, later = world.disk.after_read.setdefault(KEYS[1], Gate()), world.gate("read", KEYS[2])
        receiver = Receiver().read(world, KEYS)
        await gate.reached()
        await receiver.came_to(1)
        assert receiver.run is not None
        receiver.run.cancel()
        gate.release()
        await until(lambda: not world.level._runs)
        assert (receiver.came, receiver.failures) == (whole(KEYS[:1]), [])
        assert not later.is_reached


async def test_an_error_of_the_receivers_ends_its_run_alone(filled: Path) -> None:
    def refuse(at: int) -> None:
        if at == 1:
            raise ValueError("no")

    async with world_at(filled) as world:
        receiver = Receiver(on_delivery=refuse).read(world, KEYS)
        await until(lambda: bool(receiver.failures))
        other = Receiver().read(world, KEYS)
        await other.came_to(12)
        assert receiver.came == whole(KEYS[:2])
        assert [str(failure) for failure in receiver.failures] == ["no"]


async def test_trouble_that_nobody_expects_is_the_receivers(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world_at(filled) as world:
        gate = world.gate("read", KEYS[1])
        receiver = Receiver().read(world, KEYS)
        await receiver.came_to(1)
        with monkeypatch.context() as patch:
            patch.setattr(gate, "hold", lambda: 1 / 0)
            receiver = Receiver().read(world, KEYS)
            await receiver.came_to(2)
        gate.release()
        assert receiver.came == whole(KEYS[:1])
        assert [type(failure) for failure in receiver.failures] == [ZeroDivisionError]


async def test_at_shutdown_a_run_that_has_no_thread_yet_is_told(filled: Path) -> None:
    async with world_at(filled) as world:
        for number in range(READS_MAX):
            world.level._read_limiter.acquire_on_behalf_of_nowait(number)
        receiver = Receiver().read(world, KEYS)
        await wait_all_tasks_blocked()
    assert receiver.came == []
    assert [type(failure) for failure in receiver.failures] == [trio.ClosedResourceError]


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
    assert [type(failure) for failure in receiver.failures] == [trio.ClosedResourceError]


async def test_a_run_of_two_segments_is_a_bug(filled: Path) -> None:
    async with world_at(filled) as world:
        for keys in ([KEYS[0], key_of(0, segment="another")], []):
            with pytest.raises(AssertionError, match="of one segment"):
                Receiver().read(world, keys)
