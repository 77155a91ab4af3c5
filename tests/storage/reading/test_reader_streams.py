"""Consumers that read on and on: what they cost the store, what is there before they ask, what a deletion leaves."""

from collections.abc import Sequence
from functools import cache

import pytest
import trio
from trio.testing import MockClock

from storage.errors import RemoteAccessDeniedError, RemoteResourceNotFoundError
from storage.model import IndexType
from storage.reading.reader import OffsetNotInTierError
from tests.support.cases import case
from tests.support.scripted_gets import until
from tests.support.segments import SyntheticSegment, filled_segment, read_batch_header
from tests.support.tier import Tier, open_tier

KIB, MIB = 1024, 1024 * 1024
BLOCK = 16 * KIB
WINDOW = 512 * KIB
READ_BATCHES = 8
"""8 KiB each: as much as a read looks ahead by itself."""


@cache
def segment_of(base_offset: int = 0, *, batches: int = 256, batch_kib: int = 8) -> SyntheticSegment:
    """One record a batch, a little more than so many KiB."""
    return filled_segment(
        base_offset, batch_count=batches, records_per_batch=1, value_bytes=batch_kib * KIB, interval_bytes=0
    )


class Consumer:
    """Reads whole batches one after the other. Its answers are checked."""

    def __init__(
        self,
        tier: Tier,
        segments: Sequence[SyntheticSegment],
        *,
        name: str = "a consumer",
        first: int = 0,
        stop: int | None = None,
        read_batches: int = READ_BATCHES,
    ) -> None:
        self.position = 0
        """Bytes, in all."""
        self._tier = tier
        self._name = name
        batches = [(number, batch) for number, segment in enumerate(segments) for batch in segment.batches]
        self._batches = batches[first:stop]
        self._read_batches = read_batches

    @property
    def is_done(self) -> bool:
        return not self._batches

    async def read(self) -> None:
        """The next answer; it ends with its segment."""
        number = self._batches[0][0]
        wanted = [batch for of, batch in self._batches[: self._read_batches] if of == number]
        del self._batches[: len(wanted)]
        expected = b"".join(wanted)
        offset = read_batch_header(wanted[0]).base_offset
        assert await self._tier.read_bytes(offset, max_bytes=len(expected), reader=self._name) == expected
        self.position += len(expected)

    async def read_all(self) -> None:
        while not self.is_done:
            await self.read()


def fetched_bytes(tier: Tier) -> int:
    """Return how far into the log GETs have reached."""
    return max((last or 0) + 1 for _, last in tier.store.log_fetches())


def assert_fetched_once(tier: Tier, number: int = 0, *, whole: bool = True) -> None:
    """No two GETs of the segment overlap, and if `whole` they cover it."""
    metadata = tier.logs[number][0]
    end = -1
    for start, last in sorted(tier.store.log_fetches(metadata)):
        assert last is not None
        assert start > end, f"byte {start} was fetched twice"
        assert start == end + 1 or not whole, f"byte {end + 1} was not fetched"
        end = last
    assert end == metadata.segment_size_bytes - 1 or not whole


# --- read-ahead ---


async def test_without_read_ahead_each_read_of_new_blocks_is_a_get(nursery: trio.Nursery) -> None:
    tier = open_tier(nursery, [segment_of()], block_bytes=BLOCK)
    await Consumer(tier, [segment_of()]).read_all()
    assert len(tier.store.log_fetches()) >= 256 // READ_BATCHES
    assert_fetched_once(tier)
    # Nothing is read ahead for a reader that has gone.
    tier = open_tier(nursery, [segment_of()], block_bytes=BLOCK, readahead_bytes_max=WINDOW)
    consumer = Consumer(tier, [segment_of()])
    await consumer.read()
    await consumer.read()
    tier.reader.forget_reader("a consumer")
    assert tier.sample("tidegate_readahead_streams") == 0
    tier.reader.forget_reader("somebody never heard of")


async def test_a_consumer_slower_than_its_read_ahead_never_waits_and_costs_few_gets(nursery: trio.Nursery) -> None:
    tier = open_tier(nursery, [segment_of()], block_bytes=BLOCK, readahead_bytes_max=WINDOW)
    consumer = Consumer(tier, [segment_of()])
    for _ in range(2):
        await consumer.read()
        await tier.settled()
    misses = tier.misses
    while not consumer.is_done:
        await consumer.read()
        await tier.settled()
        assert tier.sample("tidegate_readahead_unread_bytes") <= WINDOW
    assert tier.misses == misses
    assert tier.sample("tidegate_readahead_wasted_bytes_total") == 0
    assert tier.sample("tidegate_readahead_used_bytes_total") == tier.sample("tidegate_readahead_bytes_total")
    # Half a window each, and what the first two reads took.
    assert len(tier.store.log_fetches()) <= len(segment_of().log) // (WINDOW // 2) + 4
    assert_fetched_once(tier)


async def test_two_consumers_of_one_partition_cost_one_get_a_range(nursery: trio.Nursery) -> None:
    for window_bytes in [0, WINDOW]:
        with case(window_bytes):
            tier = open_tier(
                nursery, [segment_of()], block_bytes=BLOCK, readahead_bytes_max=window_bytes, chunk_bytes=4 * KIB
            )
            async with trio.open_nursery() as consumers:
                for name, read_batches in (("one", 8), ("two", 12)):
                    consumer = Consumer(tier, [segment_of()], name=name, read_batches=read_batches)
                    consumers.start_soon(consumer.read_all)
            await tier.settled()
            assert_fetched_once(tier)
            assert (tier.store.opens(), tier.store.index_fetches()) == (1, 1)


async def test_read_ahead_crosses_into_the_next_segment_with_its_manifest_and_index(nursery: trio.Nursery) -> None:
    segments = [segment_of(), segment_of(256)]
    tier = open_tier(nursery, segments, block_bytes=BLOCK, readahead_bytes_max=WINDOW, chunk_bytes=4 * KIB)
    consumer = Consumer(tier, segments)
    while consumer.position < len(segments[0].log):
        await consumer.read()
        await tier.settled()
    misses, calls = tier.misses, len(tier.store.calls)
    with trio.CancelScope() as scope:
        scope.cancel()  # so that a wait, for whatever it is, would be the end of it
        await consumer.read()
    assert not scope.cancelled_caught
    assert (tier.misses, len(tier.store.calls)) == (misses, calls)
    next_segment = tier.logs[1][0]
    assert tier.store.opens(next_segment) == 1
    assert tier.store.index_fetches(IndexType.OFFSET) == 2
    await consumer.read_all()
    await tier.settled()
    assert_fetched_once(tier, 0)
    assert_fetched_once(tier, 1)


# --- where a read begins ---

LARGE = 300 * KIB
"""Enough to make a guess worth it."""


def large_reads_of(nursery: trio.Nursery, segments: Sequence[SyntheticSegment], window_bytes: int = MIB) -> Tier:
    return open_tier(nursery, segments, block_bytes=BLOCK, readahead_bytes_max=window_bytes)


async def test_a_cold_seek_fetches_data_beside_its_index(nursery: trio.Nursery) -> None:
    """They followed each other: two first bytes to wait for instead of one."""
    segment = segment_of()
    tier = large_reads_of(nursery, [segment])
    answers: list[bytes] = []

    async def seek() -> None:
        answers.append(await tier.read_bytes(128, max_bytes=LARGE, reader="one"))

    with tier.store.held(index_type=IndexType.OFFSET) as gate:
        async with trio.open_nursery() as reading:
            reading.start_soon(seek)
            await trio.to_thread.run_sync(gate.wait_for_callers, 1)
            await until(lambda: len(tier.store.log_fetches()) == 1)
            gate.release()
    start = segment.batch_positions[128]
    assert answers == [segment.log[start : start + LARGE]]
    await tier.settled()
    first, last = tier.store.log_fetches()[0]
    assert first <= start < (last or 0)
    assert first >= start - 2 * BLOCK
    assert_fetched_once(tier, whole=False)


async def test_a_read_from_a_segments_start_needs_no_index_and_the_next_finds_it_there(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    tier = large_reads_of(nursery, [segment_of()])
    consumer = Consumer(tier, [segment_of()])
    with tier.store.held(index_type=IndexType.OFFSET) as gate:
        await consumer.read()
        gate.release()
    await consumer.read()
    assert tier.store.index_fetches() == 1
    failing = large_reads_of(nursery, [segment_of()], 0)
    failing.store.fail(RemoteAccessDeniedError("403"), index_type=IndexType.OFFSET, times=2)
    consumer = Consumer(failing, [segment_of()])
    await consumer.read()
    await failing.settled()
    with pytest.raises(RemoteAccessDeniedError):
        await failing.read(8)
    await consumer.read_all()


async def test_an_index_that_is_lost_is_rebuilt_only_when_somebody_needs_it(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    """Failed before: the fetch beside a read from the segment's start went on to read the whole log in one GET."""
    for is_missing in [True, False]:
        with case(is_missing):
            tier = large_reads_of(nursery, [segment_of()], 0)
            if is_missing:
                tier.store.fail(RemoteResourceNotFoundError("lost"), index_type=IndexType.OFFSET, times=None)
            else:
                tier.store.replace(b"no index", index_type=IndexType.OFFSET, times=None)
            consumer = Consumer(tier, [segment_of()])
            await consumer.read()
            await tier.settled()
            rebuilds = ("tidegate_index_rebuilds_total", {"index": "offset"})
            assert tier.sample(*rebuilds) == 0
            assert [last for _, last in tier.store.log_fetches() if last == len(segment_of().log) - 1] == []
            await consumer.read_all()
            assert tier.sample(*rebuilds) == 1


# --- deletion, expiry ---


def assert_nothing_is_kept(tier: Tier, number: int) -> None:
    metadata = tier.logs[number][0]
    assert tier.segments.resident(metadata) is None
    assert tier.indexes.resident(metadata) is None
    assert not [key for key in tier.cache.memory.read if key.segment_id == metadata.segment_id.id]
    assert not [key for key in tier.cache.memory.unread if key.segment_id == metadata.segment_id.id]


async def test_a_deleted_segment_leaves_all_caches_at_once(nursery: trio.Nursery) -> None:
    segments = [segment_of(), segment_of(256)]
    tier = open_tier(nursery, segments, block_bytes=BLOCK, readahead_bytes_max=WINDOW, chunk_bytes=4 * KIB)
    consumer = Consumer(tier, segments)
    for _ in range(3):
        await consumer.read()
        await tier.settled()
    assert tier.sample("tidegate_readahead_unread_bytes") > 0
    tier.delete(0)
    assert_nothing_is_kept(tier, 0)
    assert tier.resident_bytes == 0
    assert tier.sample("tidegate_opened_segments") == 1, "the next one, opened ahead"
    assert tier.sample("tidegate_readahead_streams") == 0
    with pytest.raises(OffsetNotInTierError):
        await tier.read(0)
    await tier.read_bytes(256)
