"""Blocks on their way from disk: shared, in runs, and from the store where the disk does not give them."""

from pathlib import Path
from typing import cast

import pytest

from storage.cache.blocks import SegmentBlocks
from tests.support.disk_cache import cost, data_of, disk_cache, key_of
from tests.support.disk_world import FROM_STORE, SourceOf, World, world_at

KEYS = [key_of(number) for number in range(6)]


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    with disk_cache(tmp_path, bytes_max=cost(100)) as cache:
        cache.write(*KEYS)
    return tmp_path


def read_run(world: World) -> None:
    """All of KEYS, for nobody."""
    world.reads.read(cast(SegmentBlocks, SourceOf(KEYS[0])), [key.number for key in KEYS], KEYS, "a reader")


async def test_a_run_lands_in_order_and_nobody_has_to_wait_for_it(filled: Path) -> None:
    async with world_at(filled) as world:
        read_run(world)
        assert world.reads.undemanded_bytes == sum(key.size_bytes for key in KEYS)
        await world.done()
        assert [bytes(block.data) for block in world.landed] == [data_of(key) for key in KEYS]
        assert world.reads.undemanded_bytes == 0


async def test_a_block_on_its_way_is_shared_by_all_who_want_it(filled: Path) -> None:
    async with world_at(filled) as world:
        gate = world.gate("read", KEYS[3])
        read_run(world)
        flights = [world.start_read(KEYS[3]) for _ in range(3)]
        assert len({id(flight) for flight in flights}) == 1
        assert world.reads.undemanded_bytes == sum(key.size_bytes for key in KEYS) - KEYS[3].size_bytes
        gate.release()
        assert bytes((await flights[0].wait()).data) == data_of(KEYS[3])
        await world.done()
        assert world.fetched == 0
        assert world.reads.undemanded_bytes == 0


async def test_what_is_not_there_comes_from_the_store_for_those_who_wait(filled: Path) -> None:
    async with world_at(filled) as world:
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
