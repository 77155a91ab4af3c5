"""Indexes on disk: a restart, or too little memory for them, costs no GET; what is wrong there is fetched again."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import trio
from trio.testing import wait_all_tasks_blocked

from storage.cache.block_cipher import BlockCipher
from storage.cache.disk import DiskBlocks
from storage.cache.kept_indexes import FIRST_NUMBER, IndexPart
from storage.indexes.transaction_index import AbortedTransaction
from storage.model import IndexType
from tests.support.disk_cache import files_below
from tests.support.disk_tier import disk_tier
from tests.support.scripted_gets import until
from tests.support.segments import SyntheticSegment, build_segment, filled_segment
from tests.support.tier import Tier

PLAIN = filled_segment(0, batch_count=100)
SEGMENT = build_segment([*PLAIN.batches], aborted=[AbortedTransaction(7, 3, 5, 6)])
GOOD = (len(SEGMENT.offset_index), len(SEGMENT.time_index), 34)


@asynccontextmanager
async def life(
    path: Path,
    segments: Sequence[SyntheticSegment] = (SEGMENT,),
    *,
    cipher: BlockCipher | None = None,
    indexes_bytes_max: int = 2**20,
) -> AsyncIterator[tuple[Tier, DiskBlocks]]:
    """One life of a process that has its disk cache there."""
    async with disk_tier(path, segments, cipher=cipher, indexes_bytes_max=indexes_bytes_max) as opened:
        yield opened.tier, opened.disk


async def sizes(tier: Tier) -> tuple[int, int, int]:
    """Return the sizes of the three indexes, asked for and checked."""
    metadata = replace(tier.logs[0][0], txn_index_empty=False)
    index = await tier.indexes.get(metadata)
    times = await tier.storage.parts.time_indexes.get(metadata)
    transactions = await tier.storage.parts.transaction_indexes.get(metadata)
    assert index.lookup(990)[0] > 900
    return 8 * len(index), 12 * len(times), 34 * len(transactions)


async def kept(disk: DiskBlocks, count: int) -> None:
    """Until so many indexes are on disk."""
    await until(lambda: len(disk.index.entries) == count)


def files_of(path: Path, part: IndexPart) -> list[Path]:
    return [file for file in files_below(path) if file.name.startswith(f"{FIRST_NUMBER + part}-")]


async def test_after_a_restart_indexes_come_from_disk(tmp_path: Path) -> None:
    for name, cipher in (("plain", None), ("encrypted", BlockCipher(bytes(32)))):
        for gets in (3, 0):
            async with life(tmp_path / name, cipher=cipher) as (tier, disk):
                assert await sizes(tier) == GOOD
                assert tier.store.index_fetches() == gets, name
                await kept(disk, 3)


async def test_more_indexes_than_memory_holds_cost_a_get_once(tmp_path: Path) -> None:
    """From 17 partitions on every Fetch cost an index GET: 32 MiB of memory for indexes of 2 MiB each, and no disk."""
    segments = [filled_segment(1000 * number, batch_count=100) for number in range(20)]
    one_bytes = len(segments[0].offset_index)
    async with life(tmp_path, segments, indexes_bytes_max=2 * 5 * one_bytes) as (tier, disk):
        for _ in range(3):
            for number, (metadata, _) in enumerate(tier.logs):
                index = await tier.indexes.get(metadata)
                assert index.lookup(1000 * number + 990)[0] > 1000 * number + 900
                assert tier.indexes.size_bytes <= 5 * one_bytes
                await kept(disk, max(number + 1, len(disk.index.entries)))
        assert tier.store.index_fetches(IndexType.OFFSET) == 20


async def test_what_is_wrong_on_disk_is_fetched_once_more(tmp_path: Path) -> None:
    async with life(tmp_path) as (tier, disk):
        await sizes(tier)
        await kept(disk, 3)
    for is_cut in (False, True):
        for part in (IndexPart.OFFSET, IndexPart.TIMESTAMP, IndexPart.TRANSACTION):
            (file,) = files_of(tmp_path, part)
            content = bytearray(file.read_bytes())
            content[-5] ^= 1
            file.write_bytes(content[:-8] if is_cut else content)
        for gets in (3, 0):
            async with life(tmp_path) as (tier, disk):
                assert await sizes(tier) == GOOD
                assert tier.store.index_fetches() == gets, is_cut
                await kept(disk, 3)


async def test_a_rebuilt_index_outlives_the_process_and_comes_first(tmp_path: Path) -> None:
    async with life(tmp_path) as (tier, disk):
        tier.store.replace(b"", index_type=IndexType.OFFSET)
        metadata = tier.logs[0][0]
        index = await tier.indexes.get(metadata)
        rebuilt = await tier.indexes.rebuild(metadata, "a test", instead_of=index)
        await tier.indexes.rebuild(metadata, "a test", instead_of=rebuilt)
        await kept(disk, 1)
    async with life(tmp_path) as (tier, _):
        index = await tier.indexes.get(tier.logs[0][0])
        assert (8 * len(index), index.is_rebuilt) == (len(SEGMENT.offset_index), True)
        assert tier.store.index_fetches() == len(tier.store.log_fetches()) == 0


async def test_a_deleted_segment_leaves_the_disk_also_while_its_index_is_on_its_way(tmp_path: Path) -> None:
    async with life(tmp_path, [SEGMENT, filled_segment(1000)]) as (tier, disk):
        await sizes(tier)
        await kept(disk, 3)
        other = tier.logs[1][0]
        with tier.store.held(index_type=IndexType.OFFSET) as gate:
            async with trio.open_nursery() as askers:
                askers.start_soon(tier.indexes.get, other)
                await trio.to_thread.run_sync(gate.wait_for_callers, 1)
                tier.storage.drop_segment(other.segment_id.id)
                tier.storage.drop_segment(tier.logs[0][0].segment_id.id)
                gate.release()
        await kept(disk, 0)
        await wait_all_tasks_blocked()
        await until(lambda: not files_below(tmp_path), "the thread that removes them")
