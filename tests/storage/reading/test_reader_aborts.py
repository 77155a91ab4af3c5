"""READ_COMMITTED reads: the records come with what the tier knows of their aborted transactions."""

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import CorruptObjectError, IndexLostError, RemoteResourceNotFoundError
from storage.indexes.offset_index import encode_offset_index
from storage.indexes.transaction_index import AbortedTransaction
from storage.model import IndexType
from storage.reading.aborted_transactions import TierAborts
from storage.reading.reader import TierRecords
from storage.steps import finish
from tests.support.cases import case
from tests.support.checked_tier import SEGMENTS, aiven_tier
from tests.support.faults import Gate
from tests.support.segments import ProducerFields, SyntheticSegment, build_segment, control_batch, data_batch
from tests.support.tier import PARTITION, Tier, expected_bytes, open_reader, open_tier

TRANSACTION = IndexType.TRANSACTION
MIB = 1024 * 1024


async def read_committed(tier: Tier, offset: int, *, max_bytes: int = MIB) -> TierRecords:
    steps = tier.reader.read(
        PARTITION, offset, max_bytes=max_bytes, lineage=tier.lineage, committed=True, minimum_one_batch=True
    )
    return await finish(steps)


# --- the oracle ---


@st.composite
def transactional_segments(draw: st.DrawFn) -> tuple[list[SyntheticSegment], list[AbortedTransaction]]:
    """Neighbouring segments with records and markers of a few producers; all aborts."""
    opened: dict[int, int] = {}
    batches: list[bytes] = []
    aborts: list[AbortedTransaction] = []
    offset = 0
    for _ in range(draw(st.integers(3, 25))):
        producer_id = draw(st.integers(1, 3))
        if producer_id in opened and draw(st.booleans()):
            first_offset, commits = opened.pop(producer_id), draw(st.booleans())
            batches.append(control_batch(offset, producer_id=producer_id, commit=commits))
            if not commits:
                stable = min(opened.values(), default=offset + 1)
                aborts.append(AbortedTransaction(producer_id, first_offset, offset, stable))
            offset += 1
            continue
        opened.setdefault(producer_id, offset)
        count = draw(st.integers(1, 3))
        producer = ProducerFields(producer_id, 0, 0, transactional=True)
        size = draw(st.sampled_from([1, 100, 700]))
        batches.append(data_batch(offset, record_count=count, value_bytes=size, producer=producer))
        offset += count
    cuts = sorted(draw(st.sets(st.integers(1, len(batches)), max_size=3)) | {len(batches)})
    segments, begin, interval = [], 0, draw(st.sampled_from([0, 300, 4096]))
    for cut in cuts:
        run = batches[begin:cut]
        start, end = base_of(run[0]), base_of(batches[cut]) if cut < len(batches) else offset
        aborted = [each for each in aborts if start <= each.last_offset < end]
        segments.append(build_segment(run, aborted=aborted, interval_bytes=interval))
        begin = cut
    return segments, aborts


def base_of(batch: bytes) -> int:
    (base_offset,) = struct.unpack_from(">q", batch)
    return int(base_offset)


def listed_by_the_broker(
    segments: Sequence[SyntheticSegment], aborts: Sequence[AbortedTransaction], records: bytes
) -> tuple[set[tuple[int, int]], int]:
    """The rule of docs/kafka-tier.md#aborted-transactions over raw bytes: what is listed, and the upper bound."""
    start = base_of(records)
    segment = next(each for each in segments if each.base_offset <= start <= each.end_offset)
    position = segment.batch_positions[[base_of(batch) for batch in segment.batches].index(start)]
    entries: Iterator[tuple[int, int]] = struct.iter_unpack(">ii", segment.offset_index)
    end = position + len(records)
    beyond = [segment.base_offset + relative for n, (relative, at) in enumerate(entries) if at > end - (n > 0)]
    upper = beyond[0] if beyond else segment.end_offset + 1
    return {(each.producer_id, each.first_offset) for each in aborts if each.last_offset >= start > -1} & {
        (each.producer_id, each.first_offset) for each in aborts if each.first_offset < upper
    }, upper


@given(st.data())
def test_the_aborted_transactions_are_the_oracles(data: st.DataObject) -> None:
    segments, aborts = data.draw(transactional_segments())
    wanted = st.tuples(st.integers(0, segments[-1].end_offset), st.integers(1, 3000))
    reads = data.draw(st.lists(wanted, min_size=1, max_size=6))

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            tier = open_tier(nursery, segments)
            for offset, max_bytes in reads:
                records = await read_committed(tier, offset, max_bytes=max_bytes)
                given_bytes = b"".join(records.buffers)
                records.release()
                assert given_bytes == expected_bytes(tier.logs, offset, max_bytes=max_bytes)
                expected, upper = listed_by_the_broker(segments, aborts, given_bytes)
                assert records.aborts is not None
                assert ({*records.aborts.transactions}, records.aborts.upper_bound_offset) == (expected, upper)
                assert records.aborts.is_complete or records.aborts.searched_below == segments[-1].end_offset + 1
            await tier.settled()
            assert tier.inflight_bytes == 0

    trio.run(main)


# --- by example ---

BATCHES = [data_batch(10 * number, record_count=10, producer=ProducerFields(7, 0, 0, True)) for number in range(4)]
ABORTED = [AbortedTransaction(7, 0, 39, 40)]
SEGMENT = build_segment(BATCHES, aborted=ABORTED, interval_bytes=0)
AT = SEGMENT.batch_positions


@pytest.fixture
def tier(nursery: trio.Nursery) -> Tier:
    return open_tier(nursery, [SEGMENT])


def aborts_of(records: TierRecords) -> TierAborts:
    records.release()
    assert records.aborts is not None
    return records.aborts


async def test_a_cut_tail_counts_for_the_upper_bound(tier: Tier) -> None:
    """The index has an entry for each batch but the first, with its last offset; the first entry is never met."""
    bounds = [
        aborts_of(await read_committed(tier, 0, max_bytes=max_bytes)).upper_bound_offset
        for max_bytes in (AT[1], AT[1] + 1, AT[2], AT[3], AT[3] + 1)
    ]
    assert bounds == [29, 29, 29, 39, 40]


async def test_the_upper_bound_goes_by_the_first_batch_not_by_its_index_entry(nursery: trio.Nursery) -> None:
    entries = encode_offset_index(0, [(19, AT[1]), (39, AT[3])])
    tier = open_tier(nursery, [SEGMENT])
    tier.store.replace(entries, index_type=IndexType.OFFSET)
    # Found from the entry at 19 on, one batch behind it.
    assert aborts_of(await read_committed(tier, 20, max_bytes=AT[3] - AT[2] + 1)).upper_bound_offset == 40


async def test_no_records_without_a_named_abort_index(nursery: trio.Nursery, tmp_path: Path) -> None:
    """READ_COMMITTED readers got aborted records: an `.indexes` object that was lost was taken for "no aborts"."""
    number, aborting = next((n, each) for n, each in enumerate(SEGMENTS) if each.transaction_index)
    for encryption in (False, True):
        checked = aiven_tier(tmp_path / str(encryption), encryption=encryption)
        logs = [(metadata, segment.log) for metadata, segment in zip(checked.metadatas, SEGMENTS, strict=True)]
        tier = open_reader(nursery, checked.manager, logs)
        path = checked.path(checked.metadatas[number], "indexes")
        content = path.read_bytes()
        path.unlink()
        with case(encryption), pytest.raises(CorruptObjectError, match=r"transaction index of .*\.indexes"):
            await read_committed(tier, aborting.base_offset)
        await tier.settled()
        assert tier.inflight_bytes == 0
        path.write_bytes(content)
        assert aborts_of(await read_committed(tier, aborting.base_offset)).transactions


async def test_a_segment_deleted_during_the_search_leaves_it_incomplete_whatever_it_lacks(
    nursery: trio.Nursery,
) -> None:
    following = build_segment([data_batch(40, record_count=10)], aborted=[AbortedTransaction(8, 30, 45, 46)])
    for error in (RemoteResourceNotFoundError("gone"), IndexLostError("gone"), None):
        tier = open_tier(nursery, [build_segment(BATCHES), following])
        with tier.store.held(index_type=TRANSACTION) as gate:
            if error is not None:
                tier.store.fail(error, index_type=TRANSACTION, times=None)
            nursery.start_soon(delete_while_it_waits, tier, gate)
            aborts = aborts_of(await read_committed(tier, 0))
        assert (aborts.is_complete, aborts.searched_below) == (False, 40), error


async def delete_while_it_waits(tier: Tier, gate: Gate) -> None:
    await trio.to_thread.run_sync(gate.wait_for_callers, 1)
    tier.delete(1)
    tier.store.inner.delete_log_segment_data(tier.logs[1][0])
    gate.release()
