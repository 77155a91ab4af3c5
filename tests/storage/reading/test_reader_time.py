"""Large answers piece by piece: what is there when the time is up, or when there is no room for more, is the answer."""

from collections.abc import Hashable

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from storage.indexes.transaction_index import AbortedTransaction
from storage.model import IndexType
from storage.reading import reader as module
from storage.reading.reader import ReadTime, TierRecords
from storage.steps import finish
from tests.support.cases import case
from tests.support.scripted_gets import until
from tests.support.segments import (
    ProducerFields,
    build_segment,
    control_batch,
    data_batch,
    filled_segment,
    read_batch_header,
)
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
    return await finish(
        tier.reader.read(
            PARTITION,
            offset,
            max_bytes=max_bytes,
            minimum_one_batch=True,
            lineage=tier.lineage,
            reader=reader,
            committed=committed,
            time=time,
        )
    )


def whole_batches(blocks: int) -> bytes:
    """Return the whole batches of the first `blocks` blocks."""
    ends = [at + len(batch) for at, batch in zip(SEGMENT.batch_positions, SEGMENT.batches, strict=True)]
    return SEGMENT.log[: max(end for end in ends if end <= blocks * BLOCK)]


def joined(records: TierRecords) -> bytes:
    data = b"".join(records.buffers)
    assert len(data) == records.size_bytes
    return data


class Reading:
    """A read under way, in a task of its own."""

    def __init__(
        self,
        tier: Tier,
        nursery: trio.Nursery,
        *,
        deadline_s: float = 1000.0,
        committed: bool = False,
        max_bytes: int = WHOLE,
    ) -> None:
        self.records: TierRecords | None = None
        self.is_over = False
        self.time = ReadTime(trio.current_time() + deadline_s)
        self._committed = committed
        self._max_bytes = max_bytes
        nursery.start_soon(self._run, tier)

    async def _run(self, tier: Tier) -> None:
        with self.time.scope():
            self.records = await read(tier, 0, self.time, committed=self._committed, max_bytes=self._max_bytes)
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


async def test_what_is_contiguous_in_time_is_the_answer(nursery: trio.Nursery, mock_clock: MockClock) -> None:
    """Answers were all or nothing: seven blocks of ten here were no answer, and had to be waited for again."""
    for how in ["deadline", "end"]:
        with case(how):
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


async def test_what_came_in_time_may_be_finished_after_it(nursery: trio.Nursery, mock_clock: MockClock) -> None:
    """Failed before for an answer that needed no second piece: all of it was there, and it was thrown away."""
    first = data_batch(0, value_bytes=3000, producer=ProducerFields(7, 0, 0, transactional=True))
    segment = build_segment([first, *SEGMENT.batches[1:]], aborted=[AbortedTransaction(7, 0, 5, 6)])
    tier = open_tier(nursery, [segment], block_bytes=BLOCK)
    with tier.store.held(index_type=IndexType.TRANSACTION) as gate:
        reading = Reading(tier, nursery, deadline_s=0.5, committed=True, max_bytes=1)
        await trio.to_thread.run_sync(gate.wait_for_callers, 1)
        await blocks_landed(tier, 1)
        mock_clock.jump(0.5)
        await wait_all_tasks_blocked()
        assert not reading.is_over
        gate.release()
        assert joined(await reading.answer()) == first


async def test_without_a_whole_batch_a_read_is_cancelled_at_once(nursery: trio.Nursery, mock_clock: MockClock) -> None:
    large = build_segment([data_batch(0, value_bytes=3 * BLOCK), data_batch(1)])
    tier = open_tier(nursery, [large], block_bytes=BLOCK)
    with tier.store.stall_body(2 * BLOCK):
        reading = Reading(tier, nursery)
        await blocks_landed(tier, 2)
        reading.time.end()
        await until(lambda: reading.is_over)
        assert reading.records is None
    await tier.settled()
    assert tier.inflight_bytes == 0


async def test_a_time_that_is_up_leaves_a_moment_to_finish(nursery: trio.Nursery, mock_clock: MockClock) -> None:
    segment = build_segment([*SEGMENT.batches], aborted=[AbortedTransaction(7, 0, 5, 6)])
    tier = open_tier(nursery, [segment], block_bytes=BLOCK)
    with tier.store.held(index_type=IndexType.TRANSACTION), tier.store.stall_body(7 * BLOCK):
        reading = Reading(tier, nursery, committed=True)
        await blocks_landed(tier, 7)
        reading.time.end()
        await wait_all_tasks_blocked()
        assert not reading.is_over
        reading.time.give_up()
        await until(lambda: reading.is_over)
        assert reading.records is None
    await tier.settled()
    assert tier.inflight_bytes == 0


async def test_aborted_transactions_are_those_of_what_is_answered(nursery: trio.Nursery, mock_clock: MockClock) -> None:
    producer = ProducerFields(7, 0, 0, transactional=True)
    batches = [*SEGMENT.batches]
    for at in (0, 30):
        batches[at] = data_batch(at, value_bytes=3000, producer=producer)
        batches[at + 1] = control_batch(at + 1, producer_id=7)
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


async def test_who_waits_for_memory_is_not_late(nursery: trio.Nursery) -> None:
    """How it failed: the tier counted as failing, and the broker was asked for what nobody had room for."""
    tier = open_tier(nursery, [SEGMENT], block_bytes=BLOCK, inflight_bytes_max=4 * BLOCK)
    with tier.store.held() as gate:
        both = [Reading(tier, nursery, max_bytes=1) for _ in range(2)]
        await trio.to_thread.run_sync(gate.wait_for_callers, 1)
        await wait_all_tasks_blocked()
        waiting, reading = sorted(both, key=lambda each: each.time.is_late)
        assert (waiting.time.is_late, reading.time.is_late) == (False, True)
        gate.release()
    for each in (reading, waiting):
        (await each.answer()).release()


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
