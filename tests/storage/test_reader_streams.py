"""Consumers that read on and on: what they cost the store, what is there before they ask, what a deletion leaves."""

from collections.abc import Sequence
from contextlib import ExitStack
from functools import cache, partial

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from storage.cache import read_ahead
from storage.cache.read_ahead import START_ANSWERS
from storage.errors import RemoteAccessDeniedError, RemoteResourceNotFoundError
from storage.model import IndexType
from storage.reader import OffsetNotInTierError
from tests.support.cases import case
from tests.support.scripted_gets import until
from tests.support.segments import SyntheticSegment, build_segment, data_batch, filled_segment, read_batch_header
from tests.support.tier import Tier, expected_bytes, open_tier

KIB, MIB = 1024, 1024 * 1024
BLOCK = 16 * KIB
WINDOW = 512 * KIB
READ_BATCHES = 8
"""Of 8 KiB each: as much as a read looks ahead by itself."""


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
    """How far into the log GETs have reached."""
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


async def test_a_consumer_faster_than_its_read_ahead_waits_and_gets_more(nursery: trio.Nursery) -> None:
    """The first answer opens a window of so many answers; each wait doubles it."""
    segment = segment_of(batches=320, batch_kib=64)
    tier = open_tier(nursery, [segment], block_bytes=64 * KIB, readahead_bytes_max=16 * MIB)
    consumer = Consumer(tier, [segment], read_batches=1)
    first_window_bytes = START_ANSWERS * 64 * KIB
    windows_bytes: list[int] = []
    gate = ExitStack()
    # Only what is read ahead reaches this far.
    gate.enter_context(tier.store.held(positions=range(MIB, len(segment.log))))
    await consumer.read()
    while len(windows_bytes) < 2:
        await until(lambda: fetched_bytes(tier) > MIB)
        await wait_all_tasks_blocked()
        misses = tier.misses
        async with trio.open_nursery() as reading:
            reading.start_soon(consumer.read)
            await until(lambda: tier.misses > misses or not reading.child_tasks)  # noqa: B023  # it ends here
            if tier.misses > misses:  # it waits: the store has not answered
                windows_bytes.append(fetched_bytes(tier) - consumer.position)
                held = gate.pop_all()
                gate.enter_context(tier.store.held(positions=range(fetched_bytes(tier), len(segment.log))))
                held.close()
    gate.close()
    # The reader has come so far by then that it waits; a GET may go on by half a window behind the window.
    assert windows_bytes[0] <= first_window_bytes
    assert first_window_bytes < windows_bytes[1] <= 2 * first_window_bytes + 128 * KIB
    await consumer.read_all()
    await tier.settled()
    assert_fetched_once(tier)


async def test_three_streams_on_one_partition_are_each_read_ahead(nursery: trio.Nursery) -> None:
    segment = segment_of(batches=768)
    tier = open_tier(
        nursery, [segment], block_bytes=BLOCK, readahead_bytes_max=WINDOW, readahead_total_bytes_max=4 * WINDOW
    )
    streams = [Consumer(tier, [segment], first=first, stop=first + 256) for first in (0, 256, 512)]
    for _ in range(2):
        for stream in streams:
            await stream.read()
        await tier.settled()
    assert tier.sample("tidegate_readahead_streams") == 3
    misses = tier.misses
    while not streams[0].is_done:
        for stream in streams:
            await stream.read()
        await tier.settled()
    assert tier.misses == misses
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


async def test_a_read_given_up_has_waited_then(nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients give up at their deadline and ask again: the answer is there then, and was late all the same."""
    tier = open_tier(nursery, [segment_of()], block_bytes=BLOCK, readahead_bytes_max=WINDOW)
    waits: list[bool] = []
    assert tier.reader.prefetcher is not None
    monkeypatch.setattr(tier.reader.prefetcher, "on_read", lambda read: waits.append(read.waited))
    with tier.store.held() as gate, trio.CancelScope() as scope:
        async with trio.open_nursery() as reading:
            reading.start_soon(Consumer(tier, [segment_of()]).read)
            await trio.to_thread.run_sync(gate.wait_for_callers, 1)
            scope.cancel()
    await tier.settled()
    for name in ("another", "a consumer", "a consumer"):
        await Consumer(tier, [segment_of()], name=name, read_batches=4).read()
    assert waits == [False, True, False]


async def test_a_consumer_that_overtakes_its_read_ahead_fetches_no_crumbs(nursery: trio.Nursery) -> None:
    """Failed before: its stream was not found for the block that it waited for, and each such block was a GET."""
    segment = segment_of(batches=512)
    tier = open_tier(nursery, [segment], block_bytes=BLOCK, readahead_bytes_max=WINDOW)
    consumer = Consumer(tier, [segment], read_batches=4)
    assert tier.reader.prefetcher is not None
    await consumer.read()
    await tier.settled()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(tier.storage.gets), "may_read_ahead", False)  # nothing is read ahead any more
        while not consumer.is_done:
            await consumer.read()
            await tier.settled()
    sizes = [(last or 0) + 1 - start for start, last in tier.store.log_fetches()]
    assert len(sizes) <= len(segment.log) // (WINDOW // 2) + 4
    assert_fetched_once(tier)


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


async def test_small_reads_reads_without_read_ahead_and_those_with_an_index_do_not_guess(nursery: trio.Nursery) -> None:
    for max_bytes, window_bytes, is_resident in [(200 * KIB, MIB, False), (LARGE, 0, False), (LARGE, MIB, True)]:
        with case(max_bytes, window_bytes, is_resident):
            tier = large_reads_of(nursery, [segment_of()], window_bytes)
            if is_resident:
                await tier.indexes.get(tier.logs[0][0])
            with tier.store.held(index_type=IndexType.OFFSET) as gate, trio.CancelScope() as scope:
                async with trio.open_nursery() as reading:
                    reading.start_soon(partial(tier.read_bytes, 128, max_bytes=max_bytes, reader="one"))
                    if not is_resident:
                        await trio.to_thread.run_sync(gate.wait_for_callers, 1)
                        await wait_all_tasks_blocked()
                        assert tier.store.log_fetches() == []
                        scope.cancel()
            await tier.settled()
            starts = [start for start, _ in tier.store.log_fetches()]
            assert all(start >= segment_of().batch_positions[128] - BLOCK for start in starts)


async def test_a_guess_that_is_wrong_costs_its_bytes_and_changes_no_answer(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches of the first half are 40 times as large as those of the second."""
    for offset in [1, 40, 128, 200, 255]:
        monkeypatch.setattr(read_ahead, "GUESS_BYTES", 64 * KIB)
        batches = [data_batch(at, value_bytes=(20_000 if at < 128 else 500)) for at in range(256)]
        segment = build_segment(batches, interval_bytes=0)
        tier = large_reads_of(nursery, [segment])
        expected = expected_bytes(tier.logs, offset, max_bytes=LARGE)
        assert await tier.read_bytes(offset, max_bytes=LARGE, reader="one") == expected
        await tier.settled()
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


async def test_what_is_under_way_when_its_segment_is_deleted_is_answered_and_not_kept(nursery: trio.Nursery) -> None:
    tier = open_tier(nursery, [segment_of()], block_bytes=BLOCK, readahead_bytes_max=WINDOW, chunk_bytes=4 * KIB)
    consumer = Consumer(tier, [segment_of()])
    await consumer.read()
    with tier.store.held() as gate:
        async with trio.open_nursery() as reading:
            reading.start_soon(consumer.read)
            await trio.to_thread.run_sync(gate.wait_for_callers, 1)
            tier.delete(0)
            gate.release()
    await tier.settled()
    assert_nothing_is_kept(tier, 0)
    assert (tier.resident_bytes, tier.inflight_bytes) == (0, 0)
