"""Reading with blocks on disk: a restart costs no GET of them, and nothing that is wrong there is ever served."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from metrics.registry import Registry
from storage.cache.disk import DiskBlocks
from storage.cache.kept_indexes import FIRST_NUMBER
from storage.errors import CorruptObjectError, RemoteAccessDeniedError
from tests.support.disk_cache import log_blocks_below
from tests.support.disk_tier import disk_tier
from tests.support.scripted_gets import until
from tests.support.segments import SyntheticSegment, filled_segment
from tests.support.tier import Tier

SEGMENT = filled_segment(0)
OTHER = filled_segment(200)
BLOCK = 1000
DISK = {"level": "disk"}

Opened = tuple[Tier, DiskBlocks, Registry]


@asynccontextmanager
async def tier_on(
    path: Path, *segments: SyntheticSegment, memory_bytes_max: int = 10**6, readahead_bytes_max: int = 0
) -> AsyncIterator[Opened]:
    """One life of a process that has its disk cache there; the registry has the disk's own metrics."""
    sizes: dict[str, Any] = {"memory_bytes_max": memory_bytes_max, "readahead_bytes_max": readahead_bytes_max}
    async with disk_tier(path, segments or [SEGMENT], block_bytes=BLOCK, **sizes) as opened:
        yield opened.tier, opened.disk, opened.registry


def blocks_on(disk: DiskBlocks) -> int:
    """Blocks of logs on disk: indexes are kept there too."""
    return sum(key.number < FIRST_NUMBER for key in tuple(disk.index.entries))


async def written(disk: DiskBlocks, blocks: int) -> None:
    await until(lambda: blocks_on(disk) == blocks)


async def fill(path: Path) -> int:
    """A first life that reads all of the segment; how many blocks it left."""
    blocks = -(-len(SEGMENT.log) // BLOCK)
    async with tier_on(path) as (tier, disk, _):
        assert await tier.read_bytes(0, max_bytes=len(SEGMENT.log)) == SEGMENT.log
        await written(disk, blocks)
    return blocks


def file_of(path: Path, number: int) -> Path:
    (file,) = [file for file in log_blocks_below(path) if file.name.startswith(f"{number}-")]
    return file


def corrupt(path: Path, number: int, how: str) -> None:
    file = file_of(path, number)
    content = bytearray(file.read_bytes())
    if how == "cut":
        file.write_bytes(content[: len(content) // 2])
    elif how == "zeros at the end":  # the rename reached the disk before all of the data
        file.write_bytes(content[: len(content) // 2].ljust(len(content), b"\0"))
    else:
        content[-len(content) // 3] ^= 4
        file.write_bytes(content)


async def test_after_a_restart_blocks_come_from_disk(tmp_path: Path) -> None:
    blocks = await fill(tmp_path)
    async with tier_on(tmp_path) as (tier, _, _registry):
        for offset in (0, 57, 199):
            position = SEGMENT.batch_positions[offset // 10]
            assert await tier.read_bytes(offset) == SEGMENT.log[position:]
        assert tier.store.log_fetches() == []
        assert tier.sample("tidegate_cache_hits_total", DISK) == blocks


async def test_a_bad_block_on_disk_is_never_served(tmp_path: Path) -> None:
    for how in ("cut", "zeros at the end", "a flipped bit"):
        path = tmp_path / how
        blocks = await fill(path)
        for number in (0, 7, blocks - 1):
            corrupt(path, number, how)
        async with tier_on(path) as (tier, _, registry):
            assert await tier.read_bytes(0, max_bytes=len(SEGMENT.log)) == SEGMENT.log
            last = len(SEGMENT.log) - 1
            # A file of the wrong size is not listed, so all three are known to be missing, and one GET reads over the
            # rest; the others are found out as they are read.
            one_by_one = [(0, 999), (7000, 7999), ((blocks - 1) * BLOCK, last)]
            assert sorted(tier.store.log_fetches()) == ([(0, last)] if how == "cut" else one_by_one), how
            assert registry.sample_value("tidegate_cache_disk_errors_total", {"cause": "corrupt"}) == 3


async def test_wrong_bytes_from_the_store_do_not_stay_on_disk(tmp_path: Path) -> None:
    """The disk's checksum is right: it kept what it was given."""
    blocks = -(-len(SEGMENT.log) // BLOCK)
    for is_written_first in (False, True):
        path = tmp_path / str(is_written_first)
        async with tier_on(path) as (tier, disk, _):
            tier.store.flip_bit(tier.logs[0][0], SEGMENT.batch_positions[10] + 40, times=1)
            if is_written_first:
                await tier.cache.blocks(tier.source(), 0, blocks - 1)
                await written(disk, blocks)
            assert await tier.read_bytes(0, max_bytes=len(SEGMENT.log)) == SEGMENT.log
            await written(disk, blocks)
            assert len(tier.store.log_fetches()) == 2, is_written_first
            assert tier.sample("tidegate_cache_quarantined_blocks_total") > 0
        async with tier_on(path) as (tier, _, _registry):
            tier.store.fail(RemoteAccessDeniedError("nothing comes from here"), times=None)
            assert await tier.read_bytes(0, max_bytes=len(SEGMENT.log)) == SEGMENT.log


async def test_bytes_that_stay_wrong_are_an_error_and_leave_nothing_on_disk(tmp_path: Path) -> None:
    bad = SEGMENT.batch_positions[10] + 40
    async with tier_on(tmp_path) as (tier, _, _registry):
        tier.store.flip_bit(tier.logs[0][0], bad)
        with pytest.raises(CorruptObjectError, match="CRC"):
            await tier.read(0, max_bytes=len(SEGMENT.log))
        assert len([start for start, end in tier.store.log_fetches() if start <= bad <= (end or 0)]) == 2
    async with tier_on(tmp_path) as (tier, _, _registry):
        assert await tier.read_bytes(0, max_bytes=len(SEGMENT.log)) == SEGMENT.log


async def test_a_deleted_segment_leaves_the_disk_and_the_others_stay(tmp_path: Path) -> None:
    blocks = -(-len(SEGMENT.log) // BLOCK)
    async with tier_on(tmp_path, SEGMENT, OTHER) as (tier, disk, _):
        await tier.read_bytes(0)
        await tier.read_bytes(200)
        await written(disk, 2 * blocks)
        tier.delete(0)
        await written(disk, blocks)
    assert len(log_blocks_below(tmp_path)) == blocks
    async with tier_on(tmp_path, SEGMENT, OTHER) as (tier, _, _registry):
        assert await tier.read_bytes(200) == OTHER.log
        assert tier.store.log_fetches() == []
