"""What arrives is verified as it arrives, and nothing else is."""

import itertools
import weakref
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.cache.blocks import NOTHING_VERIFIED, Block, VerifiedRun
from storage.log.batch_walk import ArrivalWalk, SegmentWindow, unverified_bytes, verify_batches
from storage.log.log_walk import CorruptLogError
from tests.support.segments import Record, data_batch, filled_segment, metadata_of
from tests.support.tier import PARTITION
from tests.support.walked_logs import BLOCK_SIZES, Log, count_crcs, logs, model_walk

SEGMENT = filled_segment(100, batch_count=5, records_per_batch=2, value_bytes=10)
POSITIONS = SEGMENT.batch_positions
SIZE = len(SEGMENT.log)
LOG = Log(SEGMENT.log, metadata_of(PARTITION, SEGMENT), POSITIONS, ())


def arrive(log: Log, block_bytes: int, numbers: range, start_position: int | None) -> list[Block]:
    """The blocks of one GET, walked."""
    walk = ArrivalWalk(log.segment, block_bytes, start_position)
    blocks = log.blocks(block_bytes)[numbers.start : numbers.stop]
    for number, block in zip(numbers, blocks, strict=True):
        walk.feed(number, block)
    return blocks


def window_of(log: Log, block_bytes: int, blocks: list[Block], first: int = 0) -> SegmentWindow:
    window = SegmentWindow(log.segment, block_bytes)
    window.add(first, blocks)
    return window


def is_untouched(blocks: list[Block]) -> bool:
    return all(block.verified == block.straddler == NOTHING_VERIFIED for block in blocks)


# --- one GET ---


@pytest.mark.parametrize("block_bytes", [1, 7, 61, 100, 109, 1000])
def test_a_reader_has_nothing_left_to_check(block_bytes: int) -> None:
    numbers = range(-(-SIZE // block_bytes))
    window = window_of(LOG, block_bytes, arrive(LOG, block_bytes, numbers, 0))
    assert unverified_bytes(window, 0, SIZE) == (0, SIZE)


def test_runs_and_straddlers_are_remembered_in_the_blocks_where_they_begin() -> None:
    size = POSITIONS[1]
    block_bytes = 2 * size + 10
    first, second, third = arrive(LOG, block_bytes, range(3), 0)
    assert first.verified == VerifiedRun(0, 2 * size, 103, (first.serial,))
    assert first.straddler == VerifiedRun(2 * size, 3 * size, 105, (first.serial, second.serial))
    assert second.verified == VerifiedRun(3 * size, 4 * size, 107, (second.serial,))
    assert second.straddler == VerifiedRun(4 * size, 5 * size, 109, (second.serial, third.serial))
    assert (third.verified, third.straddler) == (NOTHING_VERIFIED, NOTHING_VERIFIED)


def test_blocks_in_front_of_the_start_are_not_looked_at() -> None:
    blocks = arrive(LOG, 100, range(6), POSITIONS[2])
    assert is_untouched(blocks[: POSITIONS[2] // 100])
    window = window_of(LOG, 100, blocks)
    assert unverified_bytes(window, POSITIONS[2], SIZE) == (0, SIZE)
    assert unverified_bytes(window, 0, SIZE)[0] > 0


@pytest.mark.parametrize("left_out", [1, 2])
def test_the_walk_ends_at_a_block_that_is_left_out(left_out: int) -> None:
    walk, blocks = ArrivalWalk(LOG.segment, 100, 0), LOG.blocks(100)
    for number, block in enumerate(blocks):
        if number != left_out:
            walk.feed(number, block)
    assert is_untouched(blocks[left_out:])


def test_the_walk_ends_at_a_bad_batch_without_an_error() -> None:
    at = POSITIONS[2] + 70
    bad = Log(SEGMENT.log[:at] + b"?" + SEGMENT.log[at + 1 :], LOG.segment, POSITIONS, ())
    (block,) = arrive(bad, 1000, range(1), 0)
    assert block.verified == VerifiedRun(0, POSITIONS[2], 103, (block.serial,))
    walk, blocks = ArrivalWalk(bad.segment, 100, 0), bad.blocks(100)
    for number, block in enumerate(blocks):
        walk.feed(number, block)
    assert is_untouched(blocks[at // 100 :])


def test_behind_a_bad_batch_nothing_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    bad = Log(SEGMENT.log[:70] + b"?" + SEGMENT.log[71:], LOG.segment, POSITIONS, ())
    checked = count_crcs(monkeypatch)
    arrive(bad, 100, range(6), 0)
    assert len(checked) == 1


@pytest.mark.parametrize("log", [LOG, Log(SEGMENT.log[:70] + b"?" + SEGMENT.log[71:], LOG.segment, POSITIONS, ())])
def test_blocks_are_let_go_of_as_soon_as_their_last_batch_is_whole_or_bad(log: Log) -> None:
    walk, blocks = ArrivalWalk(log.segment, 60, 0), log.blocks(60)
    came: list[weakref.ref[memoryview]] = []
    held = []
    while blocks:
        walk.feed(len(came), blocks[0])
        came.append(weakref.ref(blocks.pop(0).data))
        held.append(sum(each() is not None for each in came))
    assert held == ([1, 1, 2, 1, 2, 1, 2, 1, 2, 1] if log is LOG else [1] + 9 * [0])


@pytest.mark.parametrize("bad_at", [None, 65, -1])
def test_batches_in_a_value_do_not_vouch_for_the_batch_around_them(bad_at: int | None) -> None:
    """A start may lead into a value that holds batches, and these are whole; no reader's chain comes by them."""
    inner = data_batch(100, value_bytes=10) + data_batch(101, value_bytes=10)
    outer = bytearray(data_batch(100, records=[Record(value=inner)]))
    inner_start = outer.index(inner)
    if bad_at is not None:
        outer[bad_at] ^= 1
    data = bytes(outer) + data_batch(102)
    log = Log(data, replace(LOG.segment, segment_size_bytes=len(data)), (), ())
    (block,) = arrive(log, 10_000, range(1), inner_start)
    assert block.verified == VerifiedRun(inner_start, inner_start + len(inner), 101, (block.serial,))
    window = window_of(log, 10_000, [block])
    assert unverified_bytes(window, 0, len(log.data))[0] > 0
    if bad_at is None:
        assert verify_batches(window, 0, len(log.data)) == len(log.data)
    else:
        with pytest.raises(CorruptLogError, match="batch at 0: its CRC is wrong"):
            verify_batches(window, 0, len(log.data))


# --- any log, any GETs, any start, any damage ---


Arrivals = tuple[Log, int, list[tuple[range, int | None]]]


@st.composite
def arrivals(draw: st.DrawFn) -> Arrivals:
    """A log, a size of blocks, and the GETs that bring them all: their blocks and their starts, some of them wrong."""
    log, block_bytes = draw(logs()), draw(st.sampled_from(BLOCK_SIZES))
    count = -(-len(log.data) // block_bytes)
    borders = sorted({0, count, *draw(st.lists(st.integers(0, count), max_size=3))})
    gets: list[tuple[range, int | None]] = []
    for first, last in itertools.pairwise(borders):
        at = first * block_bytes
        begins = [position for position in log.positions if position >= at]
        kind = draw(st.sampled_from(["batch", "batch", "batch", "inner", "any", None]))
        start = draw(st.sampled_from(begins[:3])) if kind == "batch" and begins else None
        if kind == "inner":
            start = min((position for position in log.inner if position >= at), default=None)
        elif kind == "any":
            start = draw(st.integers(0, len(log.data)))
        gets.append((range(first, last), start))
    return log, block_bytes, gets


def check_what_is_marked(log: Log, block_bytes: int, blocks: list[Block]) -> None:
    """Each run is a chain of whole batches by the slow model, and lies where it says."""
    for number, block in enumerate(blocks):
        for run in (block.verified, block.straddler):
            if run == NOTHING_VERIFIED:
                continue
            passed, fault = model_walk(log, run.start, run.end)
            assert fault is None
            assert (passed[-1].end, passed[-1].last_offset) == (run.end, run.last_offset)
            first, last = run.start // block_bytes, (run.end - 1) // block_bytes
            assert first == number
            assert run.serials == tuple(block.serial for block in blocks[first : last + 1])
            assert (last > first, len(passed) == 1) == (True, True) if run is block.straddler else last == first


@given(arrivals())
def test_what_is_marked_on_arrival_is_all_that_the_model_finds(arrivals: Arrivals) -> None:
    log, block_bytes, gets = arrivals
    blocks: list[Block] = []
    for numbers, start in gets:
        came = arrive(log, block_bytes, numbers, start)
        blocks += came
        get_start, get_end = numbers.start * block_bytes, min(numbers.stop * block_bytes, len(log.data))
        if start is None or not get_start <= start < get_end:
            assert is_untouched(came)
            continue
        passed, _ = model_walk(log, start, get_end)
        assert bool(passed) != is_untouched(came)
        passed_end = passed[-1].end if passed else start
        assert unverified_bytes(window_of(log, block_bytes, came, numbers.start), start, passed_end) == (0, passed_end)
    check_what_is_marked(log, block_bytes, blocks)


@given(arrivals(), st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 300)), max_size=4))
def test_readers_find_every_fault_whatever_was_marked(arrivals: Arrivals, reads: list[tuple[int, int, int]]) -> None:
    log, block_bytes, gets = arrivals
    blocks = [block for numbers, start in gets for block in arrive(log, block_bytes, numbers, start)]
    window = window_of(log, block_bytes, blocks)
    whole, _ = model_walk(log, 0, len(log.data))
    starts = [*(batch.position for batch in whole), whole[-1].end if whole else 0]
    for first, last, more in [*reads, (0, 0, len(log.data))]:
        start = starts[min(first, len(starts) - 1)]
        end = min(max(start, starts[min(last, len(starts) - 1)]) + more, len(log.data))
        check_read(log, window, start, end)
        check_what_is_marked(log, block_bytes, blocks)


def check_read(log: Log, window: SegmentWindow, start: int, end: int) -> None:
    """What a read says is what the model says; only, what was verified before counts beyond `end` as well, and where
    offsets do not ascend all of the run in front is in doubt."""
    passed, fault = model_walk(log, start, end)
    reached, error = read(window, start, end)
    if error is not None:
        fault = fault or model_walk(log, start, len(log.data))[1]
        assert fault is not None
        assert (str(error).endswith(fault.reason), error.end) == (True, fault.end)
        assert error.follows_verified == (error.position > start)
        is_order = "follows offset" in fault.reason
        assert error.position == fault.position or (is_order and start <= error.position < fault.position)
        return
    assert fault is None
    assert reached >= (passed[-1].end if passed else start)
    beyond, fault = model_walk(log, start, reached)
    assert fault is None
    assert (beyond[-1].end if beyond else start) == reached
    assert unverified_bytes(window, start, end)[0] == 0


def read(window: SegmentWindow, start: int, end: int) -> tuple[int, CorruptLogError | None]:
    try:
        return verify_batches(window, start, end), None
    except CorruptLogError as error:
        return -1, error
