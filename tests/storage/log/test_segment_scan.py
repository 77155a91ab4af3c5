"""A scan: every batch once, checked, in windows; what is bad fails or is stepped over. Its LogWindow: contiguous bytes,
forwards, one piece ahead; bytes that cannot be had are holes."""

import itertools
import struct
import threading
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from itertools import pairwise
from typing import Any, Self, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import CorruptObjectError, RemoteStorageError, RetriableRemoteStorageError
from storage.indexes.offset_index import OffsetIndex
from storage.log.log_walk import CorruptLogError, Depth, LogWalk, PassedOver, UnreadableBytesError, WalkedBatch
from storage.log.segment_scan import HOLES_MAX, GetsAhead, LogWindow
from tests.support.cases import case
from tests.support.executors import AtOnce
from tests.support.one_segment import CountedStream, OneSegment
from tests.support.segments import build_segment, data_batch, filled_segment

T = TypeVar("T")
KIB = 1024
BIG = 1 << 62
Bad = list[PassedOver]


class Scan:
    """Whole batches of a range, read ahead; what is bad is passed over if `bad` takes it. It closes its window."""

    def __init__(
        self,
        world: OneSegment,
        start: int = 0,
        end: int | None = None,
        *,
        fetch_end: int | None = None,
        window_bytes: int = 4 * KIB,
        gets_ahead_max: int = 2,
        bad: Bad | None = None,
        **how: Any,
    ) -> None:
        end = len(world.log) if end is None else end
        self._bad = bad
        self.walk = LogWalk(world.metadata, start, end, Depth.BATCHES, recovers=bad is not None, **how)
        self._gets = GetsAhead(gets_ahead_max, BIG)
        self.window = LogWindow(
            world,
            world.metadata,
            end if fetch_end is None else fetch_end,
            piece_bytes=window_bytes,
            gets=self._gets,
            has_holes=bad is not None,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.window.close()
        self._gets.close()

    def __iter__(self) -> Iterator[list[WalkedBatch]]:
        for found in self.window.drive(self.walk.steps()):
            if isinstance(found, PassedOver):
                assert self._bad is not None
                self._bad.append(found)
            else:
                yield found


def all_of(scan: Scan) -> list[WalkedBatch]:
    with scan:
        return [batch for batches in scan for batch in batches]


def skipped(world: OneSegment, *, has_index: bool = True, **how: Any) -> tuple[list[int], Bad]:
    """Base offsets of what was read, and what was stepped over."""
    bad: Bad = []
    index = OffsetIndex(world.segment.offset_index, world.segment.base_offset) if has_index else None
    batches = all_of(Scan(world, bad=bad, index=index, **how))
    assert world.streams_open == 0
    return [batch.header.base_offset for batch in batches], bad


def offsets_without(world: OneSegment, *bad: int) -> list[int]:
    """Base offsets of all batches but those with these numbers."""
    batches = world.segment.batches
    return [struct.unpack_from(">q", batch)[0] for number, batch in enumerate(batches) if number not in bad]


@pytest.fixture
def world() -> OneSegment:
    return OneSegment(filled_segment())


# --- what is right ---


@given(
    sizes=st.lists(st.integers(1, 3000), min_size=1, max_size=12),
    chunk_bytes=st.sampled_from([1, 7, 100, 1000, 5000]),
    window_bytes=st.integers(40, 6000),
    gets_ahead_max=st.integers(1, 5),
)
def test_each_batch_is_handed_out_once(
    sizes: list[int], chunk_bytes: int, window_bytes: int, gets_ahead_max: int
) -> None:
    world = OneSegment(
        build_segment([data_batch(n, value_bytes=size) for n, size in enumerate(sizes)]), chunk_bytes=chunk_bytes
    )

    batches = all_of(Scan(world, window_bytes=window_bytes, gets_ahead_max=gets_ahead_max))

    assert [bytes(batch.data) for batch in batches] == list(world.segment.batches)
    assert [batch.position for batch in batches] == list(world.segment.batch_positions)
    assert world.streams_open == 0
    starts, ends = zip(*sorted(world.gets), strict=True)
    assert starts == (0, *ends[:-1]), "no byte is fetched twice"


def test_a_get_is_a_range_of_whole_chunks_up_to_the_batch_of_fetch_end() -> None:
    world = OneSegment(filled_segment(), chunk_bytes=1000)
    start, end = world.segment.batch_positions[3], world.segment.batch_positions[7]

    batches = all_of(Scan(world, start, end - 5, fetch_end=end, window_bytes=3500))

    assert len(batches) == 4
    assert sorted(world.gets) == [(start, 6000), (6000, 9000)]


def test_closing_ends_the_get_under_way() -> None:
    world = OneSegment(filled_segment(batch_count=100))
    threads_before = threading.active_count()
    scan = Scan(world)
    lists = iter(scan)
    next(lists)

    scan.close()
    scan.close()

    assert world.streams_open == 0
    assert threading.active_count() == threads_before


def test_trouble_that_may_pass_is_tried_again_from_there(world: OneSegment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage.object_store.retries.BACKOFF_S_MIN", 0.0)
    monkeypatch.setattr("storage.object_store.retries.BACKOFF_S_MAX", 0.0)
    world.failures = [RetriableRemoteStorageError("503"), RetriableRemoteStorageError("503")]
    monkeypatch.setattr("storage.log.segment_scan.ThreadPoolExecutor", AtOnce)
    read = CountedStream.read
    cuts = [RetriableRemoteStorageError("reset")]

    def cut_once(stream: CountedStream, size_bytes: int) -> bytes:
        if stream.position == 4 * KIB and cuts:
            raise cuts.pop()
        return read(stream, size_bytes)

    monkeypatch.setattr(CountedStream, "read", cut_once)

    batches = all_of(Scan(world))

    assert [batch.position for batch in batches] == list(world.segment.batch_positions)
    assert sorted(world.gets)[:5] == [(0, 4 * KIB)] * 3 + [(4 * KIB, 8 * KIB)] * 2


def test_a_batch_that_is_larger_than_the_window_is_put_together_up_to_the_limit() -> None:
    big = data_batch(1, value_bytes=50_000)
    world = OneSegment(build_segment([data_batch(0), big, data_batch(2)]))

    assert bytes(all_of(Scan(world))[1].data) == big
    limit = len(big) - 1
    position = world.segment.batch_positions[1]
    with pytest.raises(RemoteStorageError, match=rf"orders-0 .*batch at {position} has {len(big)} .* {limit} can"):
        all_of(Scan(world, batch_bytes_max=limit))


def test_messages_of_the_old_formats_are_batches_too() -> None:
    messages = [legacy_message(offset, magic) for offset, magic in enumerate([0, 1, 0])]
    world = OneSegment(filled_segment(batch_count=1, records_per_batch=3, value_bytes=1))
    world.log[:] = b"".join(messages)
    size = len(world.log)
    object.__setattr__(world.metadata, "segment_size_bytes", size)

    assert [batch.header.magic for batch in all_of(Scan(world, window_bytes=10))] == [0, 1, 0]
    world.log[-1] ^= 1
    with pytest.raises(CorruptLogError, match="CRC"):
        all_of(Scan(world))


def legacy_message(offset: int, magic: int) -> bytes:
    body = struct.pack(">bb", magic, 0) + (struct.pack(">q", 5) if magic else b"") + struct.pack(">ii", -1, -1)
    return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body


# --- what is bad ---


def flip_value(world: OneSegment, number: int) -> None:
    world.log[world.segment.batch_positions[number] + 100] ^= 1


def flip_magic(world: OneSegment, number: int) -> None:
    world.log[world.segment.batch_positions[number] + 16] = 9


def flip_length(world: OneSegment, number: int) -> None:
    world.log[world.segment.batch_positions[number] + 10] ^= 1


def lower_offset(world: OneSegment, number: int) -> None:
    struct.pack_into(">q", world.log, world.segment.batch_positions[number], world.segment.base_offset)


def raise_offset(world: OneSegment, number: int) -> None:
    position = world.segment.batch_positions[number]
    struct.pack_into(">q", world.log, position, struct.unpack_from(">q", world.log, position)[0] + 35)


def wild_offset(world: OneSegment, number: int) -> None:
    struct.pack_into(">q", world.log, world.segment.batch_positions[number], 1 << 40)


DAMAGES = [flip_value, flip_magic, flip_length, lower_offset, raise_offset, wild_offset]


def test_a_bad_batch_fails_the_scan_by_object_and_position() -> None:
    for damage in DAMAGES:
        world = OneSegment(filled_segment(5000))
        damage(world, 9)
        # Where offsets do not ascend either of the two may be at fault, and the latter is named.
        at = world.segment.batch_positions[10 if damage is raise_offset else 9]
        with case(damage), pytest.raises(CorruptLogError, match=rf"segment orders-0 \(.*batch at {at}: ") as failure:
            all_of(Scan(world))
        assert failure.value.position == at
        assert world.streams_open == 0


def test_with_a_dense_index_just_the_bad_batch_is_lost() -> None:
    for damage, number in itertools.product(DAMAGES, [1, 9, 10, 11, 19]):
        world = OneSegment(filled_segment(5000, interval_bytes=0))
        damage(world, number)

        offsets, bad = skipped(world, window_bytes=len(world.log))

        assert offsets == offsets_without(world, number)
        assert [entry.position for entry in bad] == [world.segment.batch_positions[number]]
        assert not bad[0].is_rest or number == 19


def test_behind_a_header_without_sense_the_next_index_entry_is_where_it_goes_on() -> None:
    """Without any the rest of the range is reported."""
    for has_index in (True, False):
        world = OneSegment(filled_segment())  # an entry every third batch or so
        positions = world.segment.batch_positions
        flip_magic(world, 4)
        resumes_at = OffsetIndex(world.segment.offset_index, 0).position_above(positions[4]) if has_index else None
        end, resumed = (len(world.log), 20) if resumes_at is None else (resumes_at, positions.index(resumes_at))

        offsets, bad = skipped(world, has_index=has_index)

        assert offsets == offsets_without(world, *range(4, resumed))
        assert [(entry.position, entry.end, entry.is_rest) for entry in bad] == [(positions[4], end, not has_index)]


def test_a_length_that_leads_over_an_index_entry_is_not_believed() -> None:
    world = OneSegment(filled_segment(interval_bytes=0))
    size = len(world.segment.batches[5])
    # Twice the size of equal batches: what follows is a batch, but another lies between.
    struct.pack_into(">i", world.log, world.segment.batch_positions[4] + 8, 2 * size - 12)

    offsets, _ = skipped(world)

    assert offsets == offsets_without(world, 4)
    struct.pack_into(">i", world.log, world.segment.batch_positions[4] + 8, 12 * size - 12)
    assert skipped(world, batch_bytes_max=10 * size)[0] == offsets


def test_between_two_windows_that_do_not_ascend_one_batch_is_lost() -> None:
    world = OneSegment(filled_segment(interval_bytes=0))
    raise_offset(world, 9)

    offsets, bad = skipped(world, window_bytes=60)  # less than a header

    assert len(offsets) == 19
    assert [entry.position for entry in bad] == [world.segment.batch_positions[10]]


def test_a_chunk_that_does_not_decode_costs_the_batches_that_it_holds_bytes_of() -> None:
    for chunk in [0, 3, 7, 8]:
        world = OneSegment(filled_segment(interval_bytes=0), chunk_bytes=3000)
        world.corrupt_chunks = {chunk}
        positions = [*world.segment.batch_positions, len(world.log)]
        first, end = 3000 * chunk, 3000 * (chunk + 1)
        hurt = [number for number in range(20) if positions[number] < end and positions[number + 1] > first]

        offsets, bad = skipped(world)

        assert offsets == offsets_without(world, *hurt)
        assert [entry.position for entry in bad] == [positions[hurt[0]]]
        assert "its tag is wrong" in bad[0].error.reason
        with case(chunk), pytest.raises(CorruptObjectError, match="its tag is wrong"):
            all_of(Scan(world))


def test_of_a_truncated_object_what_is_there_is_read_and_the_gets_stay_few() -> None:
    world = OneSegment(filled_segment(batch_count=2000, interval_bytes=0))
    cut = 300 * KIB
    del world.log[cut:]
    bad: Bad = []
    index = OffsetIndex(world.segment.offset_index, 0)
    end = world.metadata.segment_size_bytes

    batches = all_of(Scan(world, end=end, bad=bad, index=index, window_bytes=256 * KIB))

    assert [batch.position for batch in batches] == [
        position for position, after in pairwise([*world.segment.batch_positions, end]) if after <= cut
    ]
    assert bad[-1].end == end
    assert "truncated" in bad[0].error.reason
    assert len(world.gets) < 20


@given(flips=st.lists(st.tuples(st.integers(0, 28_000), st.integers(0, 7)), max_size=6), has_index=st.booleans())
def test_whatever_is_flipped_all_bytes_are_read_or_reported(flips: list[tuple[int, int]], has_index: bool) -> None:
    world = OneSegment(filled_segment(interval_bytes=2000))
    for position, bit in flips:
        world.log[position % len(world.log)] ^= 1 << bit
    bad: Bad = []
    index = OffsetIndex(world.segment.offset_index, 0) if has_index else None

    batches = all_of(Scan(world, bad=bad, index=index))

    spans = [(batch.position, len(batch.data)) for batch in batches]
    spans += [(entry.position, entry.end - entry.position) for entry in bad]
    end = 0
    for position, size in sorted(spans):
        assert position == end
        end += size
    assert end == len(world.log)


LOG_BYTES = len(filled_segment().log)


def window_of(world: OneSegment, end: int = LOG_BYTES, **how: Any) -> LogWindow:
    how = {"piece_bytes": 1000, "range_bytes": 3000} | how
    return LogWindow(world, world.metadata, end, **how)


@contextmanager
def gets_ahead(gets_max: int) -> Iterator[GetsAhead]:
    with closing(GetsAhead(gets_max, BIG)) as gets:
        yield gets


@given(
    steps=st.lists(st.tuples(st.integers(-500, 3000), st.integers(1, 3000)), max_size=10),
    chunk_bytes=st.sampled_from([1, 100, 700, 4000]),
    end=st.integers(1, LOG_BYTES),
    gets_ahead_max=st.integers(0, 3),
)
def test_a_view_is_the_log(steps: list[tuple[int, int]], chunk_bytes: int, end: int, gets_ahead_max: int) -> None:
    world = OneSegment(filled_segment(), chunk_bytes=chunk_bytes)
    position, views = 0, []
    with gets_ahead(gets_ahead_max) if gets_ahead_max else nullcontext() as gets:
        window = window_of(world, end, gets=gets)
        for forwards, size_bytes in steps:
            position = max(0, position + forwards)
            if position + size_bytes <= LOG_BYTES:
                views.append((position, size_bytes, window.view(position, size_bytes)))
        window.close()
        assert gets is None or gets.has_room(), "none is counted any more"

    for at, size_bytes, view in views:  # they stay valid
        assert len(view) >= size_bytes
        assert view == world.segment.log[at : at + len(view)]
    assert world.streams_open == 0


def test_a_chunk_that_cannot_be_had_is_a_hole_behind_which_reading_goes_on() -> None:
    world = OneSegment(filled_segment(), chunk_bytes=700)
    world.corrupt_chunks = {1}
    window = window_of(world, has_holes=True)

    assert window.view(0, 700)[:700] == world.segment.log[:700]
    with pytest.raises(UnreadableBytesError, match="its tag is wrong") as hole:
        window.view(600, 200)
    assert (hole.value.start, hole.value.end) == (700, 1400)
    gets = len(world.gets)
    with pytest.raises(UnreadableBytesError):
        window.view(1399, 1)
    assert len(world.gets) == gets, "a hole is remembered"
    assert window.view(1400, 1000)[:1000] == world.segment.log[1400:2400]
    window.close()
    assert world.streams_open == 0


def test_what_is_ahead_of_a_hole_is_kept_and_not_fetched_again() -> None:
    world = OneSegment(filled_segment(), chunk_bytes=700)
    world.corrupt_chunks = {1}
    with gets_ahead(3) as gets:
        window = window_of(world, has_holes=True, piece_bytes=2100, gets=gets)

        assert window.view(0, 700)[:700] == world.segment.log[:700]
        with pytest.raises(UnreadableBytesError):
            window.view(700, 1)
        assert window.view(1400, 4000)[:4000] == world.segment.log[1400:5400]
        window.close()

    behind = sorted((start, end) for start, end in world.gets if start >= 1400)
    assert all(end <= start for (_, end), (start, _) in pairwise(behind)), "no byte twice"


def test_after_many_holes_in_a_row_the_rest_is_one() -> None:
    world = OneSegment(filled_segment(), chunk_bytes=100)
    world.corrupt_chunks = set(range(1000))
    window = window_of(world, has_holes=True)

    position, holes = 0, 0
    while position < LOG_BYTES:
        with pytest.raises(UnreadableBytesError) as hole:
            window.view(position, 1)
        position, holes = hole.value.end, holes + 1
    window.close()

    assert holes == HOLES_MAX
