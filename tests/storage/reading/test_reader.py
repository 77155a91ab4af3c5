"""The reader against an oracle over raw log bytes, and what it does when the tier misbehaves."""

from dataclasses import replace

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from protocol.record_batches import iterate_batches
from storage.errors import CorruptObjectError, RemoteResourceNotFoundError, RetriableRemoteStorageError
from storage.indexes.offset_index import encode_offset_index
from storage.metadata.epoch_history import LeaderEpochLineage
from storage.model import IndexType
from storage.reading.reader import VERIFY_IN_THREAD_BYTES, OffsetNotInTierError
from storage.steps import finish
from tests.support.cases import case
from tests.support.segments import SyntheticSegment, build_segment, data_batch, filled_segment
from tests.support.tier import PARTITION, Tier, expected_bytes, open_tier

CHECKED_BYTE = 40
"""In every batch: a byte of its header that its CRC covers, and that says nothing about offsets or sizes."""


# --- the oracle ---


@st.composite
def segment_runs(draw: st.DrawFn) -> list[SyntheticSegment]:
    """Up to three neighbouring segments with holes between batches, behind them, and changes of leader epoch."""
    segments: list[SyntheticSegment] = []
    offset, epoch = draw(st.integers(0, 5)), 0
    for _ in range(draw(st.integers(1, 3))):
        batches = []
        for _ in range(draw(st.integers(1, 6))):
            epoch += draw(st.sampled_from([0, 0, 0, 1]))
            count = draw(st.integers(1, 4))
            reach = count - 1 + draw(st.sampled_from([0, 0, 3]))
            size = draw(st.sampled_from([1, 30, 200, 900]))
            batches.append(
                data_batch(offset, record_count=count, value_bytes=size, leader_epoch=epoch, last_offset_delta=reach)
            )
            offset += reach + 1 + draw(st.sampled_from([0, 0, 4]))
        segments.append(build_segment(batches, end_offset=offset - 1, interval_bytes=draw(st.sampled_from([0, 500]))))
    return segments


@given(st.data())
def test_every_answer_is_the_oracles(data: st.DataObject) -> None:
    segments = data.draw(segment_runs())
    block_bytes = data.draw(st.sampled_from([29, 61, 100, 1000, 100_000]))
    memory_bytes_max = data.draw(st.sampled_from([0, block_bytes, 3 * block_bytes, 10_000_000]))
    wanted = st.tuples(st.integers(0, segments[-1].end_offset + 3), st.integers(0, 5000), st.booleans())
    reads = data.draw(st.lists(wanted, min_size=1, max_size=6))

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            tier = open_tier(nursery, segments, block_bytes=block_bytes, memory_bytes_max=memory_bytes_max)
            for offset, max_bytes, minimum_one_batch in reads:
                expected = expected_bytes(tier.logs, offset, max_bytes=max_bytes, minimum_one_batch=minimum_one_batch)
                if expected is None:
                    with pytest.raises(OffsetNotInTierError):
                        await tier.read(offset, max_bytes=max_bytes, minimum_one_batch=minimum_one_batch)
                    continue
                records = await tier.read(offset, max_bytes=max_bytes, minimum_one_batch=minimum_one_batch)
                assert b"".join(records.buffers) == expected
                assert records.size_bytes == len(expected)
                assert records.first_batch_too_large == (not expected)
                if expected:
                    assert records.offsets() == offsets_of(expected)
                assert tier.resident_bytes <= memory_bytes_max
                records.release()
            await tier.settled()  # a read may have looked further ahead than its answer reaches
            assert tier.inflight_bytes == 0

    trio.run(main)


def offsets_of(answer: bytes) -> tuple[int, int]:
    """The base offset of its first batch, and one more than the last offset of its last whole one."""
    headers = [header for _, header in iterate_batches([answer])]
    return headers[0].base_offset, headers[-1].last_offset + 1


SMALL = filled_segment(100, batch_count=4, records_per_batch=2, value_bytes=10, interval_bytes=0)


@pytest.fixture
def tier(nursery: trio.Nursery) -> Tier:
    return open_tier(nursery, [SMALL])


# --- the broker's rules, spelled out ---


async def test_the_first_batch_may_begin_below_the_offset_and_be_too_large(tier: Tier) -> None:
    assert await tier.read_bytes(101) == SMALL.log
    assert await tier.read_bytes(102, max_bytes=1) == SMALL.batches[1], "whole and alone"
    records = await tier.read(102, max_bytes=1, minimum_one_batch=False)
    assert (records.buffers, records.size_bytes, records.first_batch_too_large) == ([], 0, True)


async def test_a_hole_is_answered_from_the_next_segment_if_there_is_one(nursery: trio.Nursery) -> None:
    first = build_segment([data_batch(0, record_count=2)], end_offset=9)
    second = build_segment([data_batch(10, leader_epoch=1)])
    assert await open_tier(nursery, [first, second]).read_bytes(5) == second.log
    with pytest.raises(OffsetNotInTierError, match="no segment holds offset 10"):
        await open_tier(nursery, [first]).read(5)


async def test_other_offsets_partitions_and_dead_branches_are_not_in_the_tier(tier: Tier) -> None:
    for offset in (0, 99, 108, 2**40):
        with case(offset), pytest.raises(OffsetNotInTierError):
            await tier.read(offset)
    other = replace(PARTITION, partition=9)
    with pytest.raises(OffsetNotInTierError):
        await finish(tier.reader.read(other, 100, max_bytes=1, minimum_one_batch=True, lineage=tier.lineage))
    assert tier.store.calls == []
    tier.lineage = LeaderEpochLineage(5, {0: (0, 104)})  # epoch 0 ended inside the segment
    with pytest.raises(OffsetNotInTierError):
        await tier.read(100)


# --- few GETs ---


async def test_large_answers_are_verified_in_a_thread(nursery: trio.Nursery) -> None:
    segment = filled_segment(0, batch_count=VERIFY_IN_THREAD_BYTES // 10_000 + 2, value_bytes=1000)
    tier = open_tier(nursery, [segment], block_bytes=64 * 1024)
    assert len(segment.log) > VERIFY_IN_THREAD_BYTES
    assert await tier.read_bytes(0) == segment.log
    tier.cache.drop_segment(tier.logs[0][0].segment_id.id)
    tier.store.flip_bit(tier.logs[0][0], segment.batch_positions[-1] + CHECKED_BYTE)
    with pytest.raises(CorruptObjectError, match="CRC"):
        await tier.read(0)


# --- trouble ---


def damaged(nursery: trio.Nursery, position: int, *, times: int | None = None) -> Tier:
    tier = open_tier(nursery, [SMALL], block_bytes=100)
    tier.store.flip_bit(tier.logs[0][0], position, times=times)
    return tier


async def test_a_bad_batch_that_stays_is_fetched_once_more_and_then_an_error(nursery: trio.Nursery) -> None:
    bad = SMALL.batch_positions[2] + CHECKED_BYTE
    tier = damaged(nursery, bad)
    with pytest.raises(CorruptObjectError) as caught:
        await tier.read(100)
    assert f"segment {tier.logs[0][0].segment_id}: batch at {SMALL.batch_positions[2]}: its CRC is wrong" in str(
        caught.value
    )
    assert len([start for start, end in tier.store.log_fetches() if start <= bad <= (end or 0)]) == 2
    assert tier.sample("tidegate_cache_quarantined_blocks_total") >= 2


async def test_only_blocks_of_bad_batches_are_fetched_again(nursery: trio.Nursery) -> None:
    """Failed before: the second one was found after the one retry."""
    segment = filled_segment(0, batch_count=30)
    for numbers in ((20,), (3, 20)):
        tier = open_tier(nursery, [segment], block_bytes=500)
        for number in numbers:
            tier.store.flip_bit(tier.logs[0][0], segment.batch_positions[number] + CHECKED_BYTE, times=1)
        assert await tier.read_bytes(0, max_bytes=len(segment.log)) == segment.log
        spans = [segment.batch_positions[number : number + 2] for number in numbers]
        again = [(start // 500 * 500, -(-end // 500) * 500 - 1) for start, end in spans]
        assert tier.store.log_fetches() == [(0, len(segment.log) - 1), *again]


async def test_a_bad_batch_is_not_skipped_by_a_read_behind_it(nursery: trio.Nursery) -> None:
    """Without a check of what is walked over, a wrong last offset delta would lose records without a word."""
    segment = filled_segment(0, batch_count=4, interval_bytes=1_000_000)
    tier = open_tier(nursery, [segment])
    tier.store.flip_bit(tier.logs[0][0], segment.batch_positions[1] + 26, bit=3)  # delta 9 becomes 1
    with pytest.raises(CorruptObjectError, match=f"batch at {segment.batch_positions[1]}"):
        await tier.read(15)


async def test_a_block_fetched_anew_is_verified_anew(nursery: trio.Nursery) -> None:
    """A batch over two blocks passed once; the second block was evicted and came back damaged."""
    tier = open_tier(nursery, [SMALL], block_bytes=150)
    metadata = tier.logs[0][0]
    await tier.read(100)
    (second,), _ = await tier.cache.blocks(tier.source(), 1, 1)
    tier.cache.quarantine(tier.source(), 1, second)
    assert SMALL.batch_positions[1] < 150 < SMALL.batch_positions[2], "the second batch straddles"
    tier.store.flip_bit(metadata, 150)
    with pytest.raises(CorruptObjectError, match=f"batch at {SMALL.batch_positions[1]}"):
        await tier.read(102)


async def test_a_truncated_log_is_an_error_that_names_the_segment(nursery: trio.Nursery) -> None:
    for size_bytes in (0, 1, 60, len(SMALL.log) - 1):
        tier = open_tier(nursery, [SMALL])
        tier.store.cut_log(tier.logs[0][0], size_bytes)
        with pytest.raises(CorruptObjectError, match=f"truncated: bytes 0 to .* wanted, {size_bytes} there") as caught:
            await tier.read(100)
        assert str(tier.logs[0][0].segment_id) in str(caught.value)


async def test_trouble_that_passes_is_not_seen(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    tier = open_tier(nursery, [SMALL], chunk_bytes=50)
    for error in (RetriableRemoteStorageError("503", retry_after_s=2.0), RetriableRemoteStorageError("reset")):
        tier.store.fail(error)
        tier.store.fail(error, manifest=True)
        tier.store.fail(error, index_type=IndexType.OFFSET)
    assert await tier.read_bytes(100) == SMALL.log
    assert tier.sample("tidegate_index_rebuilds_total", {"index": "offset"}) == 0


# --- objects that are not there ---


async def test_a_missing_or_garbage_index_is_rebuilt_and_never_skips_a_record(nursery: trio.Nursery) -> None:
    for name, content in GARBAGE.items():
        tier = open_tier(nursery, [SMALL])
        if content is None:
            tier.store.fail(RemoteResourceNotFoundError("no index"), index_type=IndexType.OFFSET, times=None)
        else:
            tier.store.replace(content, index_type=IndexType.OFFSET)
        for offset in (106, 100, 102):
            assert await tier.read_bytes(offset) == expected_bytes(tier.logs, offset, max_bytes=10**6), name
        rebuilds = 0 if name == "too far back" else 1
        assert tier.sample("tidegate_index_rebuilds_total", {"index": "offset"}) == rebuilds, name


GARBAGE = {
    "missing": None,
    "not whole": b"garbage",
    "negative": b"\xff" * 16,
    "position beyond the segment": encode_offset_index(100, [(103, 10**6)]),
    "offset beyond the segment": encode_offset_index(100, [(10**6, SMALL.batch_positions[1])]),
    "position inside a batch": encode_offset_index(100, [(101, 5), (105, SMALL.batch_positions[2] + 3)]),
    "position of a later batch": encode_offset_index(100, [(100, SMALL.batch_positions[2])]),
    "too far back": encode_offset_index(100, [(105, SMALL.batch_positions[1])]),  # good enough
}


async def test_a_broken_log_behind_an_index_entry_is_not_blamed_on_the_index(nursery: trio.Nursery) -> None:
    tier = damaged(nursery, SMALL.batch_positions[3] + 8)  # its length
    with pytest.raises(CorruptObjectError, match=f"batch at {SMALL.batch_positions[3]}"):
        await tier.read(106)
    assert tier.sample("tidegate_index_rebuilds_total", {"index": "offset"}) == 0
