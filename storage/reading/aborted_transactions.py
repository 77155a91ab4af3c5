"""Which aborted transactions concern an answer, as the tier's transaction indexes tell
(docs/kafka-tier.md#aborted-transactions).

An abort stands in the index of the segment that holds its *marker*: the answer's own segment, or any after it. So the
search walks from there on, until an entry says that nothing begun below the answer's upper bound was open any more
(its last stable offset has reached the bound), or the tier ends. What then is left has its marker in the broker's
local log, and is the caller's to find (proxy.fetch.aborted_tails).

Rule 1. A search that is not complete says up to where it has looked. It ends at the first offset that no segment on the
        lineage holds, also where segments follow: behind a hole it would miss what is in the hole.
Rule 2. Indexes that are not in memory are fetched in waves that double up to WAVE_MAX: mostly the next one has the
        answer, and brokers before 4.0 do not tell which segments have none.
Rule 3. That a run of offsets has no abort marker is true of the log for as long as its lineage stands, whatever becomes
        of the segments. Such runs are remembered, and a walk over thousands of segments is one step the next time.
Rule 4. Objects vanish when a segment is deleted. An absent index is believed to be empty, and a lost one is an error,
        only if the segment is still FINISHED afterwards.
Rule 5. A tier of our own tells it all (docs/protocol.md#standalone). What its copier left open in the producer snapshot
        at a segment's end was aborted later (standalone.copier.producers). So that counts wherever the segments end: in
        front of a hole, over which its finder leads, and at the tier's end. Nobody waits for markers which upstream may
        have deleted.
Rule 6. No format has a sum over these indexes, and a wrong bit hides an abort. So each is held against the markers and
        batches of the answer, and fetched once more before it is an error. What it says of other offsets is believed
        until these are read.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import trio

from storage.bounded_map import BoundedMap
from storage.cache.segment_parts import OpenAtEnd, OpenTransactions, TransactionIndexes
from storage.errors import CorruptObjectError, RemoteResourceNotFoundError
from storage.indexes.transaction_index import TransactionIndex
from storage.log.transaction_check import AnswerLog
from storage.metadata.epoch_history import LeaderEpochLineage
from storage.model import RemoteLogSegmentMetadata, TopicIdPartition
from storage.reading.segment_finder import SegmentFinder
from storage.steps import Steps, waited

WAVE_MAX = 16
"""Indexes of one search that are fetched side by side; the limiter of small GETs is shared by all."""

IN_THREAD_BYTES = 256 * 1024
"""The batches of larger answers are looked at in a thread."""

WALK_STEPS_MAX = 64
"""Catalog look-ups, some 10 µs each, before others get their turn."""

RUNS_MAX = 32
"""Limit for one partition. Between two runs is a marker, where most searches end."""

PARTITIONS_MAX = 10_000
"""With remembered runs, least recently used first out: some 300 bytes each, 5 KB at worst."""

IsFinished = Callable[[RemoteLogSegmentMetadata], bool]


@dataclass(frozen=True, slots=True)
class TierAborts:
    """What the tier tells of one answer's aborted transactions.

    `transactions` are (producer id, first offset), each once, by first offset. All begin below `upper_bound_offset`.
    Unless `is_complete`, those whose marker is at `searched_below` or beyond may be missing.
    """

    transactions: Sequence[tuple[int, int]]
    upper_bound_offset: int
    is_complete: bool
    searched_below: int


class AbortSearch:
    """Searches. Owned by the trio thread."""

    def __init__(
        self, indexes: TransactionIndexes, open_transactions: OpenTransactions, is_finished: IsFinished
    ) -> None:
        self._indexes = indexes
        self._open_transactions = open_transactions
        self._is_finished = is_finished
        self._runs: BoundedMap[TopicIdPartition, _MarkerlessRuns] = BoundedMap(PARTITIONS_MAX)

    def search(
        self,
        segment: RemoteLogSegmentMetadata,
        start_offset: int,
        upper_bound_offset: int,
        lineage: LeaderEpochLineage,
        finder: SegmentFinder,
        log: AnswerLog | None = None,
    ) -> Steps[TierAborts]:
        """The aborted transactions of an answer from `segment`.

        Args:
            start_offset: base offset of the first batch of the answer.
            upper_bound_offset: all offsets of the answer are below it.
            finder: may give a segment that begins above the offset.
            log: of the answer, against which indexes are held (rule 6).

        Raises:
            RemoteStorageError: an index is corrupt or cannot be read.

        Cancellation: fetches that were started go on.
        """
        found: set[tuple[int, int]] = set()
        partition = segment.topic_id_partition
        runs = self._runs_of(partition, lineage)
        wave, walked_to, wave_max = [(start_offset, segment)], segment.end_offset + 1, 1
        ends: list[int] = []
        while wave:
            for from_offset, candidate in wave:
                index = yield from self._checked(candidate, log, is_own=candidate is segment)
                if index is None:
                    return TierAborts(_in_order(found), upper_bound_offset, False, from_offset)
                searched_below = candidate.end_offset + 1
                if _collect(index, start_offset, upper_bound_offset, found):
                    return TierAborts(_in_order(found), upper_bound_offset, True, searched_below)
                if not len(index):
                    runs.add(from_offset, searched_below)
            wave, walked_to = yield from self._walk(partition, walked_to, lineage, runs, wave_max, finder, ends)
            wave_max = min(2 * wave_max, WAVE_MAX)
            for end in ends if finder.tells_all_aborts else ():
                last = finder.find(partition, end - 1, lineage)
                left_open = None if last is None else (yield from self._open_at_end(last))
                if left_open is None:
                    return TierAborts(_in_order(found), upper_bound_offset, False, end)
                found.update(each for each in left_open if each[1] < upper_bound_offset)
            ends.clear()
        return TierAborts(_in_order(found), upper_bound_offset, finder.tells_all_aborts, walked_to)

    def begin(self, segment: RemoteLogSegmentMetadata) -> None:
        """Fetch what a search for an answer from `segment` looks into first."""
        if self._indexes.at_hand(segment) is None:
            self._indexes.begin(segment)

    def _checked(
        self, segment: RemoteLogSegmentMetadata, log: AnswerLog | None, *, is_own: bool
    ) -> Steps[TransactionIndex | None]:
        """The index, which the answer's log does not contradict; None as below."""
        problem: str | None = None
        for _ in range(2):
            index = yield from self._index_of(segment)
            if index is None or not len(index) or log is None:
                return index
            check = partial(log.problem, index, is_own=is_own)
            if log.size_bytes < IN_THREAD_BYTES:
                problem = check()
            else:
                problem = yield from waited(partial(trio.to_thread.run_sync, check))
            if problem is None:
                return index
            self._indexes.distrust(segment)
        raise CorruptObjectError(f"transaction index of {segment.segment_id}: {problem}")

    def _index_of(self, segment: RemoteLogSegmentMetadata) -> Steps[TransactionIndex | None]:
        """None if the segment is being deleted (rule 4)."""
        is_sure = self._indexes.is_known_empty(segment)
        try:
            index = yield from self._indexes.in_steps(segment)
        except (CorruptObjectError, RemoteResourceNotFoundError):
            if self._is_finished(segment):
                raise
            return None
        return index if is_sure or len(index) or self._is_finished(segment) else None

    def _open_at_end(self, segment: RemoteLogSegmentMetadata) -> Steps[OpenAtEnd | None]:
        """None if the segment is being deleted."""
        try:
            return (yield from self._open_transactions.in_steps(segment))
        except (CorruptObjectError, RemoteResourceNotFoundError):
            if self._is_finished(segment):
                raise
            return None

    def _walk(
        self,
        partition: TopicIdPartition,
        offset: int,
        lineage: LeaderEpochLineage,
        runs: "_MarkerlessRuns",
        count_max: int,
        finder: SegmentFinder,
        ends: list[int],
    ) -> Steps[tuple[list[tuple[int, RemoteLogSegmentMetadata]], int]]:
        """From `offset` on, the next segments that may have aborts, each with the offset that it was found by and its
        fetch begun; and the offset behind them. `ends` gets the offsets where segments that follow on each other end.
        """
        wave: list[tuple[int, RemoteLogSegmentMetadata]] = []
        steps = 0
        while len(wave) < count_max:
            offset, run_start = runs.skip(offset), offset
            segment = finder.find(partition, offset, lineage)
            if segment is None or segment.start_offset > offset:
                ends.append(offset)
            if segment is None:
                break
            if segment.start_offset > offset:
                # Behind a hole: nothing is said of what may yet turn up in it.
                offset = run_start = segment.start_offset
            if self._indexes.is_known_empty(segment):
                runs.add(run_start, segment.end_offset + 1)
            else:
                wave.append((offset, segment))
                self.begin(segment)
            offset = segment.end_offset + 1
            steps += 1
            if steps % WALK_STEPS_MAX == 0:
                yield trio.lowlevel.checkpoint
        return wave, offset

    def _runs_of(self, partition: TopicIdPartition, lineage: LeaderEpochLineage) -> "_MarkerlessRuns":
        runs = self._runs.use(partition)
        if runs is None or runs.lineage is not lineage:
            runs = self._runs[partition] = _MarkerlessRuns(lineage)
        return runs


class _MarkerlessRuns:
    """Disjoint runs of offsets without abort markers on one lineage, ascending; ends are exclusive. The shortest is
    forgotten when there are too many."""

    __slots__ = ("_ends", "_starts", "lineage")

    def __init__(self, lineage: LeaderEpochLineage) -> None:
        self.lineage = lineage
        self._starts: list[int] = []
        self._ends: list[int] = []

    def skip(self, offset: int) -> int:
        """The first offset from `offset` on that may have a marker, as far as is known."""
        at = bisect_right(self._starts, offset) - 1
        return max(offset, self._ends[at]) if at >= 0 else offset

    def add(self, start: int, end: int) -> None:
        """One more run; those that it touches become one with it."""
        first = bisect_right(self._starts, start)
        if first and self._ends[first - 1] >= start:
            first -= 1
            start = self._starts[first]
        last = bisect_right(self._starts, end)
        if last > first:
            end = max(end, self._ends[last - 1])
        self._starts[first:last], self._ends[first:last] = [start], [end]
        if len(self._starts) > RUNS_MAX:
            shortest = min(range(len(self._starts)), key=lambda at: self._ends[at] - self._starts[at])
            del self._starts[shortest], self._ends[shortest]


def _collect(index: TransactionIndex, start_offset: int, upper_bound_offset: int, found: set[tuple[int, int]]) -> bool:
    """Take what an index has; whether nothing can follow."""
    aborted, is_complete = index.collect_aborted(start_offset, upper_bound_offset)
    found.update((transaction.producer_id, transaction.first_offset) for transaction in aborted)
    return is_complete


def _in_order(found: set[tuple[int, int]]) -> list[tuple[int, int]]:
    return sorted(found, key=lambda entry: (entry[1], entry[0]))
