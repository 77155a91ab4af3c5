"""Walking and verifying batches over blocks of any size; and as they arrive, when nothing else is looked at."""

import itertools
import struct
import weakref
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.record_batches import HEADER_BYTES
from storage.errors import CorruptObjectError
from storage.log.arriving_batches import ArrivalWalk
from storage.log.batch_walk import (
    FoundBatch,
    IndexMismatchError,
    SegmentWindow,
    batch_begun_at,
    check_index_entry,
    find_batch_by_time,
    find_first_batch,
    unverified_bytes,
    verify_batches,
)
from storage.log.block import NOTHING_VERIFIED, Block, VerifiedRun
from storage.log.log_walk import CorruptLogError
from tests.support.cases import case
from tests.support.segments import (
    FIRST_TIMESTAMP_MS,
    Record,
    SyntheticSegment,
    build_segment,
    data_batch,
    filled_segment,
    metadata_of,
)
from tests.support.tier import PARTITION
from tests.support.timed_batches import timed_messages
from tests.support.walked_logs import BLOCK_SIZES, FIRST_OFFSET, Log, count_crcs, logs, model_find, model_walk

SEGMENT = filled_segment(100, batch_count=5, records_per_batch=2, value_bytes=10)
POSITIONS = SEGMENT.batch_positions
SIZE = len(SEGMENT.log)
LOG = Log(SEGMENT.log, metadata_of(PARTITION, SEGMENT), POSITIONS, ())
BAD_LOG = Log(SEGMENT.log[:70] + b"?" + SEGMENT.log[71:], LOG.segment, POSITIONS, ())
HOLED = build_segment([data_batch(0, record_count=2), data_batch(10)], end_offset=20)


def blocks_of(log: bytes, block_bytes: int) -> list[Block]:
    return [Block(memoryview(log)[start : start + block_bytes]) for start in range(0, len(log), block_bytes)]


def window_of(segment: SyntheticSegment = SEGMENT, block_bytes: int = 100, log: bytes | None = None) -> SegmentWindow:
    """A window with all of the segment in it; `log` are other bytes than the segment's own."""
    window = SegmentWindow(metadata_of(PARTITION, segment), block_bytes)
    window.add(0, blocks_of(segment.log if log is None else log, block_bytes))
    return window


def flipped(position: int, bit: int = 0, log: bytes = SEGMENT.log) -> bytes:
    return log[:position] + bytes([log[position] ^ 1 << bit]) + log[position + 1 :]


# --- the window ---


def test_a_window_asks_for_what_is_missing_and_grows_at_its_end() -> None:
    window = SegmentWindow(metadata_of(PARTITION, SEGMENT), 100)
    blocks = blocks_of(SEGMENT.log, 100)
    assert (window.end, window.missing(150, 350)) == (0, (1, 3))
    window.add(1, blocks[1:4])
    assert (window.first_block, window.last_block, window.end) == (1, 3, 400)
    assert window.missing(150, 400) == (4, 3)
    assert window.missing(150, 10**9) == (4, (SIZE - 1) // 100)
    window.add(4, blocks[4:])
    assert window.end == SIZE
    assert window.block_at(250) is blocks[2]


def test_a_batch_that_begins_at_the_offset_is_the_first_from_there() -> None:
    # Where it was passed nothing failed, though a broker's log mostly begins with a batch's first offset.
    window = window_of(HOLED)
    for offset, base_offset in ((0, 0), (1, 10), (2, 10), (10, 10)):
        with case(offset):
            found = batch_begun_at(window, 0, offset)
            assert found is not None
            assert found[1] == base_offset
    assert batch_begun_at(window, 0, 11) is None


# --- the search ---


def test_a_search_says_which_bytes_it_lacks() -> None:
    window = SegmentWindow(metadata_of(PARTITION, SEGMENT), 150)
    assert find_first_batch(window, 0, 104) == FoundBatch(0, needs_end=61)
    blocks = blocks_of(SEGMENT.log, 150)
    window.add(0, blocks[:1])
    lacking = find_first_batch(window, 0, 104)
    assert lacking == FoundBatch(POSITIONS[1], needs_end=POSITIONS[1] + 61)
    window.add(1, blocks[1:2])
    assert find_first_batch(window, lacking.position, 104).position == POSITIONS[2]


def test_a_search_tells_what_it_went_over() -> None:
    for block_bytes in BLOCK_SIZES:
        with case(block_bytes):
            sizes = [100, 5000, 300, 200]
            segment = build_segment([data_batch(offset, value_bytes=size) for offset, size in enumerate(sizes)])
            batch_bytes = [len(batch) for batch in segment.batches]
            for number, largest in enumerate([0, batch_bytes[0], batch_bytes[1], batch_bytes[1]]):
                found = find_first_batch(window_of(segment, block_bytes), 0, number)
                assert (found.largest_passed_bytes, found.last_passed_offset) == (largest, number - 1)


@given(
    logs(),
    st.sampled_from(BLOCK_SIZES),
    st.integers(0, 9),
    st.integers(-1, FIRST_OFFSET + 45),
    st.sampled_from([-1, 10, 12, FIRST_TIMESTAMP_MS + 4]),
)
def test_a_search_agrees_with_a_model(log: Log, block_bytes: int, first: int, offset: int, timestamp_ms: int) -> None:
    """In any log, perhaps damaged, from the start of any of its batches on."""
    position = min(log.positions[min(first, len(log.positions) - 1)], len(log.data))
    window = SegmentWindow(log.segment, block_bytes)
    window.add(0, log.blocks(block_bytes))
    found = model_find(log, position, timestamp_ms, offset)
    if isinstance(found, int):
        assert find_batch_by_time(window, position, timestamp_ms, offset).position == found
        return
    with pytest.raises(CorruptLogError) as caught:
        find_batch_by_time(window, position, timestamp_ms, offset)
    assert (caught.value.position, caught.value.end) == (found.position, found.end)
    assert str(caught.value).endswith(found.reason)


# --- headers that cannot be ---


def packed(fmt: str, position: int, value: int) -> bytes:
    log = bytearray(SEGMENT.log)
    struct.pack_into(fmt, log, position, value)
    return bytes(log)


def test_a_header_that_cannot_be_is_named() -> None:
    for log, reason in [
        (packed(">i", POSITIONS[1] + 8, 5), "length 5"),
        (packed(">b", POSITIONS[1] + 16, 3), "magic 3"),
        (packed(">i", POSITIONS[1] + 8, SIZE), "reach beyond the segment"),
        (packed(">q", POSITIONS[1], 99), "offsets 99 to 100 in a segment of 100 to 109"),
        (packed(">q", POSITIONS[1], 109), "offsets 109 to 110 in a segment of 100 to 109"),
    ]:
        with case(log, reason):
            window = window_of(log=log)
            with pytest.raises(CorruptLogError, match=reason) as caught:
                find_first_batch(window, 0, 109)
            assert isinstance(caught.value, CorruptObjectError)
            assert f"segment {metadata_of(PARTITION, SEGMENT).segment_id}: batch at {POSITIONS[1]}" in str(caught.value)
            assert (caught.value.position, caught.value.follows_verified) == (POSITIONS[1], False)


# --- index entries ---


def test_an_index_entry_may_have_a_higher_offset_than_its_batch_and_no_lower_one() -> None:
    for offset in (103, 104, 10**9):
        check_index_entry(window_of(), offset, POSITIONS[1])
    with pytest.raises(IndexMismatchError, match="it ends at offset 103, the offset index has 102"):
        check_index_entry(window_of(), 102, POSITIONS[1])
    with pytest.raises(IndexMismatchError, match=f"batch at {POSITIONS[1] + 3}"):
        check_index_entry(window_of(), 103, POSITIONS[1] + 3)


# --- checksums ---


def test_whole_batches_are_verified_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for block_bytes, end in itertools.product(BLOCK_SIZES, [SIZE, SIZE - 1, POSITIONS[2], POSITIONS[2] + 70]):
        checked = count_crcs(monkeypatch)
        window = window_of(block_bytes=block_bytes)
        whole = sum(start + len(batch) <= end for start, batch in zip(POSITIONS, SEGMENT.batches, strict=True))
        assert unverified_bytes(window, 0, end)[0] == end
        verify_batches(window, 0, end)
        assert len(checked) == whole
        assert unverified_bytes(window, 0, end)[0] == 0
        verify_batches(window, 0, end)
        verify_batches(window, POSITIONS[1], POSITIONS[2])
        assert len(checked) == whole
        verify_batches(window, 0, SIZE)
        assert len(checked) == len(POSITIONS)


def test_offsets_must_ascend_also_next_to_what_was_verified_before() -> None:
    """No CRC covers a base offset: 102 became 103, and 104 follows. Either batch may be the bad one.

    Failed before in one block: the runs of two reads became one run, and nobody looked from one to the other any more.
    """
    front, behind = (0, POSITIONS[2]), (POSITIONS[2], SIZE)
    for block_bytes, reads in (
        *((100, reads) for reads in ([], [(POSITIONS[1], POSITIONS[2])], [behind])),
        *((1000, reads) for reads in ([front, behind], [behind, front])),
    ):
        window = window_of(log=flipped(POSITIONS[1] + 7), block_bytes=block_bytes)
        for start, end in reads:
            verify_batches(window, start, end)
        for _ in range(2):
            with case(reads), pytest.raises(CorruptLogError, match="offset 104 follows offset 104") as caught:
                verify_batches(window, 0, SIZE)
            assert (caught.value.position, caught.value.end) == (POSITIONS[1], POSITIONS[2] + 61) or block_bytes == 1000


# --- messages of v0 and v1, and batches by their time ---


def window_over(log: bytes, block_bytes: int, end_offset: int) -> SegmentWindow:
    metadata = replace(metadata_of(PARTITION, filled_segment(0)), end_offset=end_offset, segment_size_bytes=len(log))
    window = SegmentWindow(metadata, block_bytes)
    window.add(0, blocks_of(log, block_bytes))
    return window


def test_old_messages_are_walked_and_verified() -> None:
    for block_bytes, magic in itertools.product(BLOCK_SIZES, [0, 1]):
        with case(block_bytes, magic):
            plain, wrapper = timed_messages(magic, [(0, 5), (1, 9)]), timed_messages(magic, [(2, 7), (4, 8)], codec=1)
            log = plain + wrapper + data_batch(5)
            window = window_over(log, block_bytes, end_offset=5)
            positions = (0, len(plain) // 2, len(plain), len(plain), len(plain), len(plain) + len(wrapper))
            assert tuple(find_first_batch(window, 0, offset).position for offset in range(6)) == positions
            verify_batches(window, 0, len(log))
            assert unverified_bytes(window, 0, len(log))[0] == 0


def test_an_old_message_at_the_end_of_an_answer_is_verified() -> None:
    """Failed before: a message shorter than a batch's header, with less than one behind it, was not looked at; and as
    many bytes as a batch's header has were looked for, in a block that was not there."""
    for magic in (0, 1):
        log = timed_messages(magic, [(0, 5), (1, 9)])
        size = len(log) // 2
        assert size < HEADER_BYTES
        verify_batches(window_over(log, 1000, end_offset=1), 0, size + 10)
        for at in (17, 30):
            bad = window_over(flipped(at, log=log), 1000, end_offset=1)
            assert unverified_bytes(bad, 0, size + 10)[0] > 0
            with case(magic, at), pytest.raises(CorruptLogError, match="CRC"):
                verify_batches(bad, 0, size + 10)
        whole = window_over(log, size, end_offset=1)
        window = SegmentWindow(whole.segment, size)
        window.add(0, [whole.block_at(0)])
        assert verify_batches(window, 0, size) == size, "with nothing behind it here"


def arrive(log: Log, block_bytes: int, numbers: range, start_position: int | None) -> list[Block]:
    """The blocks of one GET, walked."""
    walk = ArrivalWalk(log.segment, block_bytes, start_position)
    blocks = log.blocks(block_bytes)[numbers.start : numbers.stop]
    for number, block in zip(numbers, blocks, strict=True):
        walk.feed(number, block)
    return blocks


def window_with(log: Log, block_bytes: int, blocks: list[Block], first: int = 0) -> SegmentWindow:
    window = SegmentWindow(log.segment, block_bytes)
    window.add(first, blocks)
    return window


def is_untouched(blocks: list[Block]) -> bool:
    return all(block.verified == block.straddler == NOTHING_VERIFIED for block in blocks)


# --- what arrives by one GET ---


def test_the_walk_ends_at_a_block_that_is_left_out() -> None:
    for left_out in [1, 2]:
        walk, blocks = ArrivalWalk(LOG.segment, 100, 0), LOG.blocks(100)
        for number, block in enumerate(blocks):
            if number != left_out:
                walk.feed(number, block)
        assert is_untouched(blocks[left_out:])


def test_blocks_are_let_go_of_as_soon_as_their_last_batch_is_whole_or_bad() -> None:
    for log in [LOG, BAD_LOG]:
        walk, blocks = ArrivalWalk(log.segment, 60, 0), log.blocks(60)
        came: list[weakref.ref[memoryview]] = []
        held = []
        while blocks:
            walk.feed(len(came), blocks[0])
            came.append(weakref.ref(blocks.pop(0).data))
            held.append(sum(each() is not None for each in came))
        assert held == ([1, 1, 2, 1, 2, 1, 2, 1, 2, 1] if log is LOG else [1] + 9 * [0])


def test_batches_in_a_value_do_not_vouch_for_the_batch_around_them() -> None:
    """A start may lead into a value that holds batches, and these are whole; no reader's chain comes by them."""
    for bad_at in [None, 65, -1]:
        inner = data_batch(100, value_bytes=10) + data_batch(101, value_bytes=10)
        outer = bytearray(data_batch(100, records=[Record(value=inner)]))
        inner_start = outer.index(inner)
        if bad_at is not None:
            outer[bad_at] ^= 1
        data = bytes(outer) + data_batch(102)
        log = Log(data, replace(LOG.segment, segment_size_bytes=len(data)), (), ())
        (block,) = arrive(log, 10_000, range(1), inner_start)
        assert block.verified == VerifiedRun(inner_start, inner_start + len(inner), 101, (block.serial,))
        window = window_with(log, 10_000, [block])
        assert unverified_bytes(window, 0, len(log.data))[0] > 0
        if bad_at is None:
            assert verify_batches(window, 0, len(log.data)) == len(log.data)
        else:
            with case(bad_at), pytest.raises(CorruptLogError, match="batch at 0: its CRC is wrong"):
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
        assert unverified_bytes(window_with(log, block_bytes, came, numbers.start), start, passed_end) == (
            0,
            passed_end,
        )
    check_what_is_marked(log, block_bytes, blocks)


@given(arrivals(), st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 300)), max_size=4))
def test_readers_find_every_fault_whatever_was_marked(arrivals: Arrivals, reads: list[tuple[int, int, int]]) -> None:
    log, block_bytes, gets = arrivals
    blocks = [block for numbers, start in gets for block in arrive(log, block_bytes, numbers, start)]
    window = window_with(log, block_bytes, blocks)
    whole, _ = model_walk(log, 0, len(log.data))
    starts = [*(batch.position for batch in whole), whole[-1].end if whole else 0]
    for first, last, more in [*reads, (0, 0, len(log.data))]:
        start = starts[min(first, len(starts) - 1)]
        end = min(max(start, starts[min(last, len(starts) - 1)]) + more, len(log.data))
        check_read(log, window, start, end)
        check_what_is_marked(log, block_bytes, blocks)


def check_read(log: Log, window: SegmentWindow, start: int, end: int) -> None:
    """Check that a read says what the model says; only, what was verified before counts beyond `end` as well, and where
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
