"""Large answers piece by piece: what is there when the time is up, or when there is no room for more, is the answer."""

from collections.abc import Hashable

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from storage import reader as module
from storage.cache import fills as fills_module
from storage.cache.get_task import Get, GetRunner
from storage.cache.memory import Block
from storage.indexes.transaction_index import AbortedTransaction
from storage.model import IndexType
from storage.reader import FINISH_S, ReadTime, TierRecords
from tests.support.scripted_gets import until
from tests.support.segments import ProducerFields, build_segment, data_batch, filled_segment, read_batch_header
from tests.support.tier import PARTITION, Tier, expected_bytes, open_tier

KIB = 1024
BLOCK = 4 * KIB
SEGMENT = filled_segment(0, batch_count=40, records_per_batch=1, value_bytes=3000, interval_bytes=0)
"""A batch is shorter than a block, and none begins where a block does but the first."""

WHOLE = len(SEGMENT.log)


async def read(
    tier: Tier,
    offset: int,
    time: ReadTime | None,
    *,
    max_bytes: int = WHOLE,
    reader: Hashable = "a consumer",
    committed: bool = False,
) -> TierRecords:
    return await tier.reader.read(
        PARTITION,
        offset,
        max_bytes=max_bytes,
        minimum_one_batch=True,
        lineage=tier.lineage,
        reader=reader,
        committed=committed,
        time=time,
    )


def whole_batches(blocks: int, *, first: int = 0) -> bytes:
    """Of the first so many blocks, from a batch on."""
    ends = [at + len(batch) for at, batch in zip(SEGMENT.batch_positions, SEGMENT.batches, strict=True)]
    return SEGMENT.log[SEGMENT.batch_positions[first] : max(end for end in ends if end <= blocks * BLOCK)]


def joined(records: TierRecords) -> bytes:
    data = b"".join(records.buffers)
    assert len(data) == records.size_bytes
    return data


class Reading:
    """A read under way, in a task of its own."""

    def __init__(
        self, tier: Tier, nursery: trio.Nursery, *, deadline_s: float = 1000.0, committed: bool = False
    ) -> None:
        self.records: TierRecords | None = None
        self.is_over = False
        self.time = ReadTime(trio.current_time() + deadline_s)
        self._committed = committed
        nursery.start_soon(self._run, tier)

    async def _run(self, tier: Tier) -> None:
        with self.time:
            self.records = await read(tier, 0, self.time, committed=self._committed)
        self.is_over = True

    async def answer(self) -> TierRecords:
        """Without that virtual time passes."""
        await until(lambda: self.is_over)
        assert self.records is not None
        return self.records


async def blocks_landed(tier: Tier, count: int) -> None:
    await until(lambda: tier.resident_bytes >= count * BLOCK)
    await wait_all_tasks_blocked()


# --- the end of the time ---


@pytest.mark.parametrize("how", ["deadline", "end"])
async def test_what_is_contiguous_when_the_time_is_up_is_the_answer(
    nursery: trio.Nursery, mock_clock: MockClock, how: str
) -> None:
    """Answers were all or nothing: seven blocks of ten here were no answer, and had to be waited for again."""
    tier = open_tier(nursery, [SEGMENT], block_bytes=BLOCK)
    with tier.store.stall_body(7 * BLOCK) as gate:
        reading = Reading(tier, nursery, deadline_s=0.5)
        await blocks_landed(tier, 7)
        assert not reading.is_over
        if how == "deadline":
            mock_clock.jump(0.5)
        else:
            reading.time.end()
        records = await reading.answer()
        assert joined(records) == whole_batches(7)
        assert tier.inflight_bytes == 7 * BLOCK + (WHOLE - 7 * BLOCK)  # of the answer, and of the GET under way
        gate.release()
    await tier.settled()
    assert tier.inflight_bytes == 7 * BLOCK
    records.release()
    assert tier.inflight_bytes == 0
    offset = read_batch_header(SEGMENT.batches[len(SEGMENT.batches) // 2]).base_offset
    assert await tier.read_bytes(offset) == expected_bytes(tier.logs, offset, max_bytes=WHOLE)
    assert len(tier.store.log_fetches()) == 1


async def test_the_next_read_goes_on_behind_what_was_answered(nursery: trio.Nursery, mock_clock: MockClock) -> None:
    tier = open_tier(nursery, [SEGMENT], block_bytes=BLOCK)
    with tier.store.stall_body(3 * BLOCK):
        reading = Reading(tier, nursery)
        await blocks_landed(tier, 3)
        reading.time.end()
        answered = joined(await reading.answer())
    number = SEGMENT.batch_positions.index(len(answered))
    assert answered + await tier.read_bytes(read_batch_header(SEGMENT.batches[number]).base_offset) == SEGMENT.log


async def test_without_a_whole_batch_the_read_is_cancelled_at_once(
    nursery: trio.Nursery, mock_clock: MockClock
) -> None:
    large = build_segment([data_batch(0, value_bytes=3 * BLOCK), data_batch(1)])
    tier = open_tier(nursery, [large], block_bytes=BLOCK)
    with tier.store.stall_body(2 * BLOCK):
        reading = Reading(tier, nursery)
        await blocks_landed(tier, 2)
        reading.time.end()
        await until(lambda: reading.is_over)
        assert (reading.records, reading.time.ran_out) == (None, True)
    await tier.settled()
    assert tier.inflight_bytes == 0


async def test_a_time_that_is_up_leaves_a_moment_to_finish_and_no_more(
    nursery: trio.Nursery, mock_clock: MockClock
) -> None:
    segment = build_segment([*SEGMENT.batches], aborted=[AbortedTransaction(7, 0, 5, 6)])
    tier = open_tier(nursery, [segment], block_bytes=BLOCK)
    with tier.store.held(index_type=IndexType.TRANSACTION), tier.store.stall_body(7 * BLOCK):
        reading = Reading(tier, nursery, committed=True)
        await blocks_landed(tier, 7)
        reading.time.end()
        await wait_all_tasks_blocked()
        assert not reading.is_over
        mock_clock.jump(FINISH_S)
        await until(lambda: reading.is_over)
        assert (reading.records, reading.time.ran_out) == (None, True)
    await tier.settled()
    assert tier.inflight_bytes == 0


async def test_aborted_transactions_are_those_of_what_is_answered(nursery: trio.Nursery, mock_clock: MockClock) -> None:
    producer = ProducerFields(7, 0, 0, transactional=True)
    batches = [data_batch(number, value_bytes=3000, producer=producer) for number in range(40)]
    aborted = [AbortedTransaction(7, at, at + 1, at + 2) for at in (0, 30)]
    segment = build_segment(batches, aborted=aborted, interval_bytes=0)
    tier = open_tier(nursery, [segment], block_bytes=BLOCK)
    with tier.store.stall_body(7 * BLOCK):
        reading = Reading(tier, nursery, committed=True)
        await blocks_landed(tier, 7)
        reading.time.end()
        aborts = (await reading.answer()).aborts
    assert aborts is not None
    assert (aborts.transactions, aborts.is_complete) == ([(7, 0)], True)
    assert aborts.upper_bound_offset < 30


# --- pieces ---


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE_BYTES", 4 * BLOCK)
    monkeypatch.setattr(module, "PIECE_BYTES_MAX", 16 * BLOCK)
    monkeypatch.setattr(module, "LOOK_AHEAD_BYTES", BLOCK)


@pytest.mark.usefixtures("small_pieces")
async def test_a_read_asks_for_a_piece_at_a_time(nursery: trio.Nursery, mock_clock: MockClock) -> None:
    """All of `max_bytes` was asked for at once, by every reader, and mostly thrown away again."""
    tier = open_tier(nursery, [SEGMENT], block_bytes=BLOCK)
    with tier.store.held() as gate:
        reading = Reading(tier, nursery)
        await trio.to_thread.run_sync(gate.wait_for_callers, 1)
        await wait_all_tasks_blocked()
        assert tier.store.log_fetches() == [(0, 4 * BLOCK - 1)]
        gate.release()
    assert joined(await reading.answer()) == SEGMENT.log
    starts = sorted(start or 0 for start, _ in tier.store.log_fetches())
    assert starts == [0, 4 * BLOCK, 12 * BLOCK, 28 * BLOCK]


@pytest.mark.usefixtures("small_pieces")
async def test_an_answer_ends_where_there_is_no_room_for_more(nursery: trio.Nursery) -> None:
    budget_bytes = 10 * BLOCK
    tier = open_tier(nursery, [SEGMENT], block_bytes=BLOCK, inflight_bytes_max=2 * budget_bytes)
    first = await read(tier, 0, None)
    assert joined(first) == whole_batches(4)
    offset = len(SEGMENT.batches) // 2
    with trio.fail_after(10.0):
        second = await read(tier, offset, None, max_bytes=1)
        assert joined(second) == SEGMENT.batches[offset]
    first.release()
    assert len(joined(await read(tier, 0, None, reader="another"))) >= len(whole_batches(4))


# --- many large reads over a busy link ---

SCALE = 64
MIB = 1024 * KIB // SCALE
"""Everything is a sixty-fourth: 16 readers of 50 MiB at 200 MB/s, 256 MiB of blocks in memory, 512 MiB under way."""


class Link:
    """GETs in virtual time: connections take turns, block by block."""

    def __init__(self, bytes_per_s: float) -> None:
        self.bytes = 0
        self._bytes_per_s = bytes_per_s
        self._turn = trio.Lock()

    async def run(self, runner: GetRunner, get: Get) -> None:
        await trio.sleep(0.03)
        opened = get.source.opened
        while get.numbers:
            number = get.next_number
            async with self._turn:
                await trio.sleep(get.source.size_bytes(number) / self._bytes_per_s)
            data = opened.open_stream(*get.source.positions(range(number, number + 1))).read(
                get.source.size_bytes(number)
            )
            self.bytes += len(data)
            get.next_number += 1
            runner.owner.deliver(get, number, Block(memoryview(data)))


@pytest.mark.parametrize("readahead", [0, 128])
async def test_many_large_reads_fetch_hardly_more_than_they_deliver(
    nursery: trio.Nursery, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, readahead: int
) -> None:
    """They fetched 2.3 times as much, with read-ahead 7 times, and took as much longer: what had come when the time was
    up was evicted before the rest had."""
    link = Link(200e6 / SCALE)
    monkeypatch.setattr(GetRunner, "run", lambda runner, get: link.run(runner, get))
    monkeypatch.setattr(fills_module, "GET_BYTES", 12 * MIB)
    monkeypatch.setattr(module, "PIECE_BYTES", module.PIECE_BYTES // SCALE)
    monkeypatch.setattr(module, "PIECE_BYTES_MAX", module.PIECE_BYTES_MAX // SCALE)
    # A thread's work takes no virtual time, but the clock may jump meanwhile.
    monkeypatch.setattr(module, "VERIFY_IN_THREAD_BYTES", 2**40)
    readers, records = 16, 150
    segments = [
        filled_segment(records * number, batch_count=records, records_per_batch=1, value_bytes=MIB, interval_bytes=0)
        for number in range(readers)
    ]
    tier = open_tier(
        nursery,
        segments,
        block_bytes=MIB,
        memory_bytes_max=256 * MIB,
        inflight_bytes_max=512 * MIB,
        readahead_bytes_max=readahead * MIB,
        readahead_total_bytes_max=4 * readahead * MIB,
    )
    for metadata, _ in tier.logs:
        await tier.indexes.get(metadata)
    delivered = dict.fromkeys(range(readers), 0)

    async def consume(number: int) -> None:
        segment = segments[number]
        while delivered[number] < len(segment.log):
            time = ReadTime(trio.current_time() + 0.5)
            at = segment.batch_positions.index(delivered[number])
            with time:
                answer = await read(tier, segment.base_offset + at, time, max_bytes=50 * MIB, reader=number)
                end = delivered[number] + answer.size_bytes
                assert joined(answer) == segment.log[delivered[number] : end]
                delivered[number] = max(p for p in (*segment.batch_positions, len(segment.log)) if p <= end)
                answer.release()

    async with trio.open_nursery() as consumers:
        for number in range(readers):
            consumers.start_soon(consume, number)
    total_bytes = sum(delivered.values())
    assert link.bytes <= 1.2 * total_bytes
    assert trio.current_time() <= 1.2 * total_bytes / (200e6 / SCALE)
