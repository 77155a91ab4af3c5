"""Segments whose offset index lacks entries: it is rebuilt in one pass, once for all readers, and remembered."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from storage.indexes.offset_index import encode_offset_index
from storage.log import batch_walk
from storage.log import rebuilt_offset_index as rebuild
from storage.model import IndexType
from storage.reading.timestamp_search import FoundTimestamp
from tests.support.cases import case
from tests.support.segments import (
    FIRST_TIMESTAMP_MS,
    SyntheticSegment,
    build_segment,
    data_batch,
    filled_segment,
    read_batch_header,
)
from tests.support.tier import Tier, expected_bytes, open_tier

KIB = 1024
BLOCK = 16 * KIB
SPARSE_WALK = 64 * KIB
SEGMENT = filled_segment(0, batch_count=1000, records_per_batch=1, value_bytes=1000)
"""A sixty-fourth of 64 MiB, as everything here."""

SIZE = len(SEGMENT.log)
REBUILDS = ("tidegate_index_rebuilds_total", {"index": "offset"})


def first_entries(count: int) -> bytes:
    return SEGMENT.offset_index[: 8 * count]


def without_middle() -> bytes:
    return SEGMENT.offset_index[: 8 * 20] + SEGMENT.offset_index[-8 * 20 :]


@pytest.fixture(autouse=True)
def scaled_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_walk, "SPARSE_WALK_BYTES", SPARSE_WALK)
    monkeypatch.setattr("storage.reading.reader.SPARSE_WALK_BYTES", SPARSE_WALK)
    monkeypatch.setattr("storage.reading.reader.LOOK_AHEAD_BYTES", KIB)
    monkeypatch.setattr(rebuild, "SCAN_RANGE_BYTES", 128 * KIB)
    monkeypatch.setattr(rebuild, "SCAN_PIECE_BYTES", BLOCK)


def tier_with(nursery: trio.Nursery, offset_index: bytes, *, memory_bytes_max: int = 256 * KIB) -> Tier:
    tier = open_tier(nursery, [SEGMENT], block_bytes=BLOCK, memory_bytes_max=memory_bytes_max)
    tier.store.replace(offset_index, index_type=IndexType.OFFSET)
    return tier


def fetched_bytes(tier: Tier) -> int:
    return sum((last or 0) + 1 - (first or 0) for first, last in tier.store.log_fetches())


async def test_an_index_without_entries_is_rebuilt_in_one_pass(nursery: trio.Nursery) -> None:
    """The log was walked block by block, by one GET each, all of it held, by every Fetch from the start again."""
    for offset_index in [b"", first_entries(20), without_middle()]:
        with case(offset_index):
            tier = tier_with(nursery, offset_index)
            for offset in (600, 610, 590):
                assert await tier.read_bytes(offset, max_bytes=4000) == expected_bytes(
                    tier.logs, offset, max_bytes=4000
                )
            assert tier.sample(*REBUILDS) == 1
            assert tier.store.index_fetches(IndexType.OFFSET) == 1
            assert fetched_bytes(tier) <= 1.1 * SIZE + SPARSE_WALK + BLOCK
            assert len(tier.store.log_fetches()) <= SIZE // (128 * KIB) + 10
            await tier.settled()
            assert tier.inflight_bytes == 0


async def test_many_readers_wait_for_one_pass_and_hold_nothing_meanwhile(nursery: trio.Nursery) -> None:
    tier = tier_with(nursery, b"", memory_bytes_max=0)
    beyond_walk = range(2 * SPARSE_WALK, SIZE)
    answers: dict[int, bytes] = {}

    async def ask(offset: int) -> None:
        answers[offset] = await tier.read_bytes(offset, max_bytes=1)

    with tier.store.held(positions=beyond_walk) as gate:
        async with trio.open_nursery() as readers:
            readers.start_soon(ask, 999)
            await trio.to_thread.run_sync(gate.wait_for_callers, 1)
            await wait_all_tasks_blocked()
            assert tier.inflight_bytes == 0
            fetches = len(tier.store.log_fetches())
            for offset in range(500, 530):
                readers.start_soon(ask, offset)
            await wait_all_tasks_blocked()
            assert len(tier.store.log_fetches()) == fetches
            # What the index does reach is read meanwhile.
            assert await tier.read_bytes(3, max_bytes=1) == SEGMENT.batches[3]
            gate.release()
    assert answers == {offset: SEGMENT.batches[offset] for offset in (999, *range(500, 530))}
    assert tier.sample(*REBUILDS) == 1


def large_batches(count: int) -> SyntheticSegment:
    """Small and very large ones in turn: between two entries is one of each."""
    sizes = [2 * SPARSE_WALK if number % 2 else 500 for number in range(count)]
    return build_segment([data_batch(number, value_bytes=size) for number, size in enumerate(sizes)])


async def test_large_batches_or_a_wide_interval_do_not_make_an_index_sparse(nursery: trio.Nursery) -> None:
    segment = large_batches(8)
    tier = open_tier(nursery, [segment], block_bytes=BLOCK)
    for offset in range(8):
        assert await tier.read_bytes(offset, max_bytes=1) == segment.batches[offset]
    wide = tier_with(nursery, encode_offset_index(0, [(n, SEGMENT.batch_positions[n]) for n in range(50, 1000, 50)]))
    assert SEGMENT.batch_positions[50] <= SPARSE_WALK
    for offset in range(0, 1000, 7):
        assert await wide.read_bytes(offset, max_bytes=1) == SEGMENT.batches[offset]
    assert (tier.sample(*REBUILDS), wide.sample(*REBUILDS)) == (0, 0)


async def test_a_search_by_time_has_a_sparse_index_rebuilt_too(nursery: trio.Nursery) -> None:
    tier = tier_with(nursery, b"")
    header = read_batch_header(SEGMENT.batches[900])
    for _ in range(2):
        found = await tier.storage.timestamps.search(tier.logs[0][0], header.max_timestamp_ms, log_start_offset=0)
        assert isinstance(found, FoundTimestamp)
        assert found.offset == 900
    assert header.max_timestamp_ms > FIRST_TIMESTAMP_MS
    assert tier.sample(*REBUILDS) == 1
    assert fetched_bytes(tier) <= 1.1 * SIZE + 3 * SPARSE_WALK
