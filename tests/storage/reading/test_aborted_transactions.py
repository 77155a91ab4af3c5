"""The search for aborted transactions, against an oracle that knows the whole log."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import CorruptObjectError, RemoteResourceNotFoundError
from storage.indexes.transaction_index import AbortedTransaction
from storage.metadata.epoch_history import LeaderEpochLineage
from storage.model import IndexType, RemoteLogSegmentMetadata, TopicIdPartition
from storage.reading import aborted_transactions as module
from storage.reading.aborted_transactions import AbortSearch, TierAborts
from storage.reading.segment_finder import SegmentFinder
from storage.steps import finish
from tests.support.segments import build_segment, data_batch, metadata_of
from tests.support.tier import PARTITION, MemoryStore, Tier, open_reader

TRANSACTION = IndexType.TRANSACTION


@dataclass(frozen=True)
class TieredLog:
    """Segments from offset 0 on, `ends` exclusive, and every abort of the log, also those behind the tier."""

    ends: Sequence[int]
    aborts: Sequence[AbortedTransaction]
    unflagged: frozenset[int] = frozenset()
    """Segments without aborts that do not say so."""

    @property
    def end(self) -> int:
        return self.ends[-1]

    def open(self, nursery: trio.Nursery) -> "Searched":
        store, logs, start = MemoryStore(), [], 0
        for number, end in enumerate(self.ends):
            aborted = [each for each in self.aborts if start <= each.last_offset < end]
            segment = build_segment([data_batch(start, last_offset_delta=end - 1 - start)], aborted=aborted)
            metadata = metadata_of(PARTITION, segment)
            if number in self.unflagged:
                metadata = replace(metadata, txn_index_empty=False)
            store.objects[metadata.segment_id.id] = segment.objects()
            logs.append((metadata, segment.log))
            start = end
        return Searched(open_reader(nursery, store, logs))

    def expected(self, start: int, upper: int, *, marker_below: int = 2**62) -> set[tuple[int, int]]:
        """Return what the broker lists, which has all indexes."""
        return {
            (each.producer_id, each.first_offset)
            for each in self.aborts
            if start <= each.last_offset < marker_below and each.first_offset < upper
        }


class Searched:
    """A tier and the search over it, which finds segments by this; `lookups` counts what was asked of the catalog."""

    tells_all_aborts = False

    def __init__(self, tier: Tier) -> None:
        self.tier = tier
        self.lookups = 0
        self.missing: set[int] = set()
        """Numbers of segments that the catalog does not know."""
        self.deleted: set[int] = set()
        parts = tier.storage.parts
        self.search = AbortSearch(parts.transaction_indexes, parts.open_transactions, self._is_finished)

    def segment(self, number: int) -> RemoteLogSegmentMetadata:
        return self.tier.logs[number][0]

    async def at(self, number: int, *, upper: int | None = None, start: int | None = None) -> TierAborts:
        """For an answer that begins and ends with a segment, or where it is said."""
        segment = self.segment(number)
        upper = segment.end_offset + 1 if upper is None else upper
        start = segment.start_offset if start is None else start
        return await finish(self.search.search(segment, start, upper, self.tier.lineage, cast(SegmentFinder, self)))

    @property
    def fetches(self) -> int:
        return self.tier.store.index_fetches(TRANSACTION)

    def find(
        self, partition: TopicIdPartition, offset: int, lineage: LeaderEpochLineage
    ) -> RemoteLogSegmentMetadata | None:
        self.lookups += 1
        for number, (segment, _) in enumerate(self.tier.logs):
            if segment.start_offset <= offset <= segment.end_offset and number not in self.missing:
                return segment
        return None

    def _is_finished(self, segment: RemoteLogSegmentMetadata) -> bool:
        return segment.segment_id.id not in {self.segment(number).segment_id.id for number in self.deleted}


# --- the oracle ---


@st.composite
def tiered_logs(draw: st.DrawFn) -> TieredLog:
    """Transactions of a few producers, each record and each marker an offset, cut into segments and a local log."""
    opened: dict[int, int] = {}
    aborts = []
    offsets = draw(st.integers(4, 40))
    for offset in range(offsets):
        producer_id, does = draw(st.tuples(st.integers(1, 3), st.sampled_from(["write", "write", "abort", "commit"])))
        if does == "write":
            opened.setdefault(producer_id, offset)
        elif producer_id in opened:
            first_offset = opened.pop(producer_id)
            if does == "abort":
                stable = min(opened.values(), default=offset + 1)
                aborts.append(AbortedTransaction(producer_id, first_offset, offset, stable))
    cuts = draw(st.sets(st.integers(1, offsets), min_size=1, max_size=8))
    return TieredLog(sorted(cuts), aborts, frozenset(draw(st.sets(st.integers(0, 7)))))


@given(st.data())
def test_what_the_search_finds_and_what_the_local_log_adds_is_what_the_broker_lists(data: st.DataObject) -> None:
    log = data.draw(tiered_logs())
    numbers = data.draw(st.lists(st.integers(0, len(log.ends) - 1), min_size=1, max_size=6))

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            searched = log.open(nursery)
            for number in numbers:
                segment = searched.segment(number)
                start = data.draw(st.integers(segment.start_offset, segment.end_offset))
                upper = data.draw(st.integers(start + 1, segment.end_offset + 1))
                found = await searched.at(number, start=start, upper=upper)
                listed = {*found.transactions}
                assert len(listed) == len(found.transactions)
                assert listed == log.expected(start, upper, marker_below=log.end)
                assert found.upper_bound_offset == upper
                if found.is_complete:
                    assert listed == log.expected(start, upper)
                else:
                    assert found.searched_below == log.end

    trio.run(main)


# --- where the search goes ---

FAR_MARKER = TieredLog([10, 20, 30, 40, 50], [AbortedTransaction(7, 3, 45, 46)], frozenset(range(5)))
NO_ABORTS = TieredLog(range(10, 410, 10), [], frozenset(range(40)))


@pytest.fixture
def searched(nursery: trio.Nursery) -> Searched:
    return NO_ABORTS.open(nursery)


async def test_a_marker_in_a_later_segment_is_found(nursery: trio.Nursery) -> None:
    searched = FAR_MARKER.open(nursery)
    found = await searched.at(0)
    assert found == TierAborts([(7, 3)], 10, is_complete=True, searched_below=50)
    assert (await searched.at(0, upper=3)).transactions == []
    assert (await searched.at(1)).transactions == [(7, 3)]


async def test_an_entry_whose_stable_offset_has_reached_the_bound_ends_the_search(nursery: trio.Nursery) -> None:
    aborts = [AbortedTransaction(7, 3, 5, 6), AbortedTransaction(8, 12, 15, 16)]
    searched = TieredLog([10, 20, 30], aborts).open(nursery)
    assert (await searched.at(0, upper=6)).searched_below == 10
    assert searched.fetches == 1
    assert (await searched.at(0)) == TierAborts([(7, 3)], 10, is_complete=True, searched_below=20)
    assert searched.fetches == 2


async def test_a_search_that_is_not_complete_says_how_far_it_has_looked(nursery: trio.Nursery) -> None:
    searched = TieredLog([10, 20, 30], [AbortedTransaction(7, 3, 15, 8)]).open(nursery)
    assert await searched.at(0) == TierAborts([(7, 3)], 10, is_complete=False, searched_below=30)
    searched = FAR_MARKER.open(nursery)
    searched.missing = {2}
    assert await searched.at(0) == TierAborts([], 10, is_complete=False, searched_below=20), "up to a hole"
    searched.missing = set()
    assert (await searched.at(0)).transactions == [(7, 3)]
    for number in (0, 1):
        searched = FAR_MARKER.open(nursery)
        searched.deleted = {number}
        found = await searched.at(0)
        assert (found.is_complete, found.searched_below) == (False, 10 * number), "absent, but not empty"


async def test_no_bad_index_is_skipped(nursery: trio.Nursery) -> None:
    for fault, error in [
        (None, CorruptObjectError),
        (RemoteResourceNotFoundError("no manifest"), RemoteResourceNotFoundError),
    ]:
        searched = FAR_MARKER.open(nursery)
        if fault is None:
            searched.tier.store.replace(b"x", index_type=TRANSACTION)
        else:
            searched.tier.store.fail(fault, segment=searched.segment(3), manifest=True, times=None)
        with pytest.raises(error):
            await searched.at(0)


# --- what it costs ---


async def test_indexes_are_fetched_in_waves(searched: Searched) -> None:
    with searched.tier.store.held(index_type=TRANSACTION) as gate:
        async with trio.open_nursery() as searches:
            searches.start_soon(searched.at, 0)
            await trio.testing.wait_all_tasks_blocked()
            await trio.to_thread.run_sync(gate.wait_for_callers, 1)
            assert searched.fetches == 1
            gate.release()
    assert searched.fetches == 40


async def test_a_search_ends_without_the_fetches_of_its_last_wave(nursery: trio.Nursery) -> None:
    aborts = [AbortedTransaction(7, 3, 25, 26)]
    searched = TieredLog(range(10, 210, 10), aborts, frozenset(range(20))).open(nursery)
    assert (await searched.at(0)).is_complete
    assert searched.fetches <= 4


async def test_what_was_walked_over_once_is_one_step_from_then_on(
    searched: Searched, monkeypatch: pytest.MonkeyPatch
) -> None:
    await searched.at(0)
    assert searched.fetches == 40
    searched.lookups = 0
    for number in range(40):
        assert await searched.at(number) == TierAborts([], 10 * number + 10, is_complete=False, searched_below=400)
    assert searched.lookups <= 40
    searched.lookups, searched.tier.lineage = 0, LeaderEpochLineage(1, {0: (0, 2**62)})
    await searched.at(0)
    assert (searched.lookups, searched.fetches) == (40, 40), "another lineage is walked once more, without a fetch"
    monkeypatch.setattr(module, "PARTITIONS_MAX", 0)
    searched = Searched(searched.tier)
    searched.tier.lineage = LeaderEpochLineage(2, {0: (0, 2**62)})
    for _ in range(2):
        searched.lookups = 0
        await searched.at(0)
        assert (searched.lookups, searched.fetches) == (40, 40), "few partitions walked over are kept"


# --- runs ---


def test_too_many_runs_forget_the_shortest() -> None:
    runs = module._MarkerlessRuns(LeaderEpochLineage(0, {}))
    runs.add(0, 3)
    for number in range(1, module.RUNS_MAX + 1):
        runs.add(100 * number, 100 * number + (2 if number == 5 else 50))
    assert [runs.skip(offset) for offset in (0, 500, 600)] == [3, 500, 650]
