"""Reads of a tier of our own, which the broker's local log overlaps: where they end, and what they step over."""

import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from standalone.serving.holes import HOLES_MAX, Holes, OwnSegments
from storage.indexes.producer_snapshot import ProducerState, encode_producer_snapshot
from storage.indexes.transaction_index import AbortedTransaction
from storage.reading.reader import OffsetNotInTierError, TierRecords
from storage.reading.segment_finder import LocalLogIsNextError
from storage.steps import finish
from tests.storage.reading.test_reader_aborts import base_of, transactional_segments
from tests.support.cases import case
from tests.support.segments import ProducerFields, SyntheticSegment, build_segment, control_batch, data_batch
from tests.support.tier import PARTITION, Tier, expected_bytes, open_tier

MIB = 1024 * 1024


class OwnTier(NamedTuple):
    """Where the broker's log begins, and what is known of holes."""

    local_start: int
    holes: Holes
    is_caught_up: bool = False


async def read(tier: Tier, offset: int, own: OwnTier, *, max_bytes: int = MIB, committed: bool = False) -> TierRecords:
    return await finish(
        tier.reader.read(
            PARTITION,
            offset,
            max_bytes=max_bytes,
            minimum_one_batch=True,
            lineage=tier.lineage,
            committed=committed,
            finder=OwnSegments(tier.catalog, own.holes, own.local_start, is_caught_up=own.is_caught_up),
        )
    )


def taken(records: TierRecords) -> bytes:
    records.release()
    return b"".join(records.buffers)


# --- READ_COMMITTED ends in front of the local log ---


@given(st.data())
def test_every_abort_of_an_answer_is_told_by_the_tier(data: st.DataObject) -> None:
    """Also where its marker is in what was not copied."""
    segments, aborts = data.draw(transactional_segments())
    segments = [with_open(segment, aborts) for segment in segments]
    del segments[data.draw(st.integers(1, len(segments))) :]
    local_start = data.draw(st.integers(1, segments[-1].end_offset + 20))
    offsets = st.integers(0, min(local_start - 1, segments[-1].end_offset))
    reads = data.draw(st.lists(st.tuples(offsets, st.integers(1, 3000)), min_size=1, max_size=5))

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            tier = open_tier(nursery, segments)
            for offset, max_bytes in reads:
                own = OwnTier(local_start, Holes())
                records = await read(tier, offset, own, max_bytes=max_bytes, committed=True)
                uncut = expected_bytes(tier.logs, offset, max_bytes=max_bytes)
                assert uncut is not None
                assert taken(records) == begun_below(uncut, local_start)
                told = records.aborts
                assert told is not None
                assert told.is_complete
                known = {*told.transactions}
                assert known <= {(each.producer_id, each.first_offset) for each in aborts}
                first, last = base_of(uncut), bases_in(begun_below(uncut, local_start))[-1]
                needed = [each for each in aborts if each.first_offset <= last and each.last_offset >= first]
                assert {(each.producer_id, each.first_offset) for each in needed} <= known
            await tier.settled()
            assert tier.inflight_bytes == 0

    trio.run(main)


def with_open(segment: SyntheticSegment, aborts: Sequence[AbortedTransaction]) -> SyntheticSegment:
    """The segment as a copier leaves it: its snapshot names what is open at its end and was aborted."""
    end = segment.end_offset
    opened = [
        ProducerState(each.producer_id, 0, 0, end, 0, 0, 0, each.first_offset)
        for each in aborts
        if each.first_offset <= end < each.last_offset
    ]
    return replace(segment, producer_snapshot=encode_producer_snapshot(opened))


def begun_below(run: bytes, offset: int) -> bytes:
    """The run in front of its first batch that begins there or above."""
    position = 0
    while position + 12 <= len(run):
        base_offset, length = struct.unpack_from(">qi", run, position)
        if base_offset >= offset:
            return run[:position]
        position += 12 + length
    return run


def bases_in(run: bytes) -> list[int]:
    bases, position = [], 0
    while position + 12 <= len(run):
        base_offset, length = struct.unpack_from(">qi", run, position)
        bases.append(base_offset)
        position += 12 + length
    return bases


TENS = [data_batch(10 * number, record_count=10) for number in range(10)]


async def test_a_segment_that_begins_where_the_local_log_does_is_not_looked_at(nursery: trio.Nursery) -> None:
    """Offsets 10 to 19 are missing at the end of the segment before it."""
    tier = open_tier(nursery, [build_segment([TENS[0]], end_offset=19), build_segment(TENS[2:])])

    with pytest.raises(LocalLogIsNextError):
        await read(tier, 12, OwnTier(20, Holes()), committed=True)
    await tier.settled()
    assert tier.store.log_fetches(tier.logs[1][0]) == []


async def test_where_no_batch_begins_below_the_local_log_that_is_next(nursery: trio.Nursery) -> None:
    """Offsets 10 to 19 are missing: what holds the offset begins in the local log."""
    segment = build_segment([TENS[0], *TENS[2:]])
    tier = open_tier(nursery, [segment])

    with pytest.raises(LocalLogIsNextError):
        await read(tier, 12, OwnTier(15, Holes()), committed=True)
    await tier.settled()
    assert tier.inflight_bytes == 0
    assert taken(await read(tier, 12, OwnTier(15, Holes()))) == b"".join(TENS[2:])


# --- holes ---


def run_of(first: int, last: int) -> SyntheticSegment:
    """A segment of those batches."""
    return build_segment(TENS[first : last + 1])


async def is_missed(tier: Tier, offset: int, own: OwnTier) -> bool:
    try:
        taken(await read(tier, offset, own))
    except LocalLogIsNextError:
        return False
    except OffsetNotInTierError:
        return True
    return False


async def test_a_hole_is_stepped_over_once_it_is_found(nursery: trio.Nursery) -> None:
    tier = open_tier(nursery, [run_of(0, 2), run_of(5, 6), run_of(8, 9)])
    found: list[tuple[object, ...]] = []
    holes = Holes(lambda *hole: found.append(hole))
    before, caught_up = OwnTier(95, holes), OwnTier(95, holes, is_caught_up=True)

    assert await is_missed(tier, 30, before)
    assert not found
    assert taken(await read(tier, 35, caught_up)) == run_of(5, 6).log
    assert await is_missed(tier, 30, before), "its beginning was not asked for yet"
    assert taken(await read(tier, 30, caught_up)) == run_of(5, 6).log
    assert taken(await read(tier, 30, before)) == run_of(5, 6).log
    assert taken(await read(tier, 70, caught_up)) == run_of(8, 9).log
    assert found == [(PARTITION, 35, 50), (PARTITION, 70, 80)]
    filled = open_tier(nursery, [run_of(0, 2), run_of(3, 4), run_of(5, 6)])
    assert taken(await read(filled, 30, before)) == run_of(3, 4).log, "a segment that comes after all is read"


async def test_a_hole_up_to_the_local_log_is_told_as_such(nursery: trio.Nursery) -> None:
    for local_start in [60, 80]:
        tier = open_tier(nursery, [run_of(0, 2), run_of(8, 9)])
        holes = Holes(segment_s_max=1000.0)

        with case(local_start), pytest.raises(LocalLogIsNextError):
            await read(tier, 40, OwnTier(local_start, holes, is_caught_up=True))
        assert not await is_missed(tier, 40, OwnTier(local_start, holes))
        # Once the broker has deleted more, the segment behind is next.
        assert taken(await read(tier, 40, OwnTier(90, holes, is_caught_up=True))) == run_of(8, 9).log


@pytest.mark.autojump
async def test_without_a_segment_behind_it_takes_its_time(nursery: trio.Nursery) -> None:
    tier = open_tier(nursery, [run_of(0, 2)])
    own = OwnTier(80, Holes(segment_s_max=60.0), is_caught_up=True)

    assert await is_missed(tier, 40, own)
    await trio.sleep(59.0)
    assert await is_missed(tier, 30, own)
    await trio.sleep(1.0)
    assert not await is_missed(tier, 40, own)


async def test_aborts_are_known_in_front_of_a_hole_and_behind_it(nursery: trio.Nursery) -> None:
    """Failed before: those whose marker is in the hole counted as committed."""
    of_seven = data_batch(0, record_count=10, producer=ProducerFields(7, 0, 0, transactional=True))
    first = with_open(build_segment([of_seven]), [AbortedTransaction(8, 3, 20, 21)])
    marker = [control_batch(50, producer_id=7), data_batch(51, record_count=9)]
    behind = build_segment(marker, aborted=[AbortedTransaction(7, 0, 50, 51)])
    tier = open_tier(nursery, [first, behind])
    holes = Holes()

    async def aborts(*, is_caught_up: bool) -> tuple[Sequence[tuple[int, int]], int]:
        records = await read(tier, 0, OwnTier(60, holes, is_caught_up), committed=True)
        taken(records)
        assert records.aborts is not None
        assert records.aborts.is_complete
        return records.aborts.transactions, records.aborts.searched_below

    assert await aborts(is_caught_up=False) == ([(8, 3)], 10)
    assert await aborts(is_caught_up=True) == ([(7, 0), (8, 3)], 60)
    assert await aborts(is_caught_up=False) == ([(7, 0), (8, 3)], 60)


def test_runs_that_touch_are_one_hole_and_of_a_partition_so_many_are_remembered() -> None:
    found: list[tuple[int, int]] = []
    holes, many = Holes(lambda _partition, start, end: found.append((start, end))), Holes()
    for start, end in [(30, 50), (20, 50), (50, 60), (10, 20), (90, 95)]:
        holes.found(PARTITION, start, end)
    assert found == [(30, 50), (90, 95)]
    known = [holes.are_known(PARTITION, start, end) for start, end in ((10, 60), (10, 61), (60, 90))]
    assert known == [True, False, False]
    for number in range(HOLES_MAX + 1):
        many.found(PARTITION, 10 * number, 10 * number + 5)
    assert many.are_known(PARTITION, 10 * HOLES_MAX, 10 * HOLES_MAX + 5)
    assert not many.are_known(PARTITION, 0, 5)
