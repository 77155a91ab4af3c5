"""A segment's transaction index against its batches, in one pass beside a walk of its log (docs/kafka-tier.md).

One entry for each ABORT marker that ended a transaction with records; a marker without records before it has none. What
began before the first batch cannot be seen here:

| field | right is |
|---|---|
| last offset, producer | those of an ABORT marker |
| first offset | that of the transaction's first batch; or, if it may have begun earlier, below the first batch |
| last stable offset | the first of the oldest transaction then open, else the one after the marker; or below |

A broker that appends several batches at once takes transactions for open that begin after the marker: such a batch's
offset is right as well. So is one in a hole: compaction may have taken what was there.
"""

from bisect import bisect_right
from collections.abc import Iterable

from protocol.record_batches import HEADER_BYTES, BatchHeader
from storage.indexes.transaction_index import AbortedTransaction, TransactionIndex
from storage.log.batch_walk import SegmentWindow, end_offset, next_header
from storage.log.transaction_marker import MARKER_BYTES, read_transaction_marker

PRODUCERS_MAX = 100_000
"""Producers of one segment that are followed, about 100 bytes each; those that come later are not judged."""

_ENTRY_BYTES = 34


class Problems:
    """The first of several problems, and how many there are. `entry_bytes`: of the index."""

    def __init__(self, entry_bytes: int = 0) -> None:
        self.first: tuple[int, str] | None = None
        self._count = 0
        self._entry_bytes = entry_bytes

    def add(self, position: int, sentence: str) -> None:
        """`position`: bytes in the index."""
        if self.first is None:
            self.first = position, sentence
        self._count += 1

    def add_entry(self, number: int, verb_phrase: str) -> None:
        """Add a problem with the entry of that number."""
        self.add(number * self._entry_bytes, f"entry {number} {verb_phrase}")

    def sentence(self) -> str:
        """All of them in one; only when there is one."""
        if self.first is None:
            return ""
        others = self._count - 1
        return self.first[1] + (f"; and {others} more" if others else "")


class TransactionIndexCheck:
    """Follows a walk over a segment's batches, or over some that follow on each other.

    Args:
        entries: whose markers are in these, ascending.
        start_offset: where they begin.
    """

    def __init__(self, entries: Iterable[AbortedTransaction], start_offset: int) -> None:
        self.problems = Problems()
        self._start_offset = self._end = start_offset
        """`_end`: of the batches so far."""
        self._holes: list[tuple[int, int]] = []
        self._entries = enumerate(entries)
        self._next = next(self._entries, None)
        self._open: dict[int, int] = {}
        """First offset in this segment of the transaction that a producer has open, by producer id."""
        self._ended: set[int] = set()
        """Producers of which a marker was seen: what they have open began in this segment."""
        self._awaited: dict[int, int] = {}
        """Last stable offsets that only a later transaction explains, with their entries' numbers."""
        self._judges = True

    def batch(self, position: int, header: BatchHeader, is_valid: bool, is_abort: bool | None) -> None:
        if not is_valid:
            self._judges = False
            return
        if header.base_offset > self._end:
            self._holes.append((self._end, header.base_offset))
        self._end = header.last_offset + 1
        while self._next is not None and self._next[1].last_offset < header.base_offset:
            self._no_marker()
        if is_abort is not None:
            self._marker(header, is_abort)
        elif header.is_transactional and not header.is_control:
            self._awaited.pop(header.base_offset, None)
            if len(self._open) < PRODUCERS_MAX:
                self._open.setdefault(header.producer_id, header.base_offset)
            else:
                self._judges = False
        while self._next is not None and self._next[1].last_offset <= header.last_offset:
            self._no_marker()

    def skip(self, end_position: int) -> None:
        self._judges = False

    def problem_of_open(self, entry: AbortedTransaction) -> str | None:
        """A sentence if an entry is wrong that began before the end of these batches, and whose marker is behind it."""
        began, first_offset = self._open.get(entry.producer_id), entry.first_offset
        if first_offset < self._start_offset:
            is_right = entry.producer_id not in self._ended
        else:
            is_right = began == first_offset or self._is_in_hole(first_offset)
        return None if is_right or not self._judges else f"{entry}, and at {self._end} its producer has {began} open"

    def finish(self, is_complete: bool) -> None:
        self._judges = self._judges and is_complete
        while self._next is not None:
            self._no_marker()
        for offset, number in self._awaited.items():
            self._problem(number, f"entry {number} has last stable offset {offset}, where no transaction begins")

    def _marker(self, header: BatchHeader, is_abort: bool) -> None:
        producer_id = header.producer_id
        began = self._open.pop(producer_id, None)
        if is_abort and self._next is not None and self._next[1].last_offset == header.base_offset:
            number, entry = self._next
            self._compare(number, entry, producer_id, began)
            self._next = next(self._entries, None)
        elif is_abort and began is not None:
            self._problem(
                self._next[0] if self._next is not None else 0,
                f"it has no entry for the ABORT at offset {header.base_offset} of producer {producer_id}",
            )
        if len(self._ended) < PRODUCERS_MAX:
            self._ended.add(producer_id)

    def _compare(self, number: int, entry: AbortedTransaction, producer_id: int, began: int | None) -> None:
        may_be_older = producer_id not in self._ended and entry.first_offset < self._start_offset
        if entry.producer_id != producer_id:
            self._problem(
                number, f"entry {number} names producer {entry.producer_id}, the ABORT there is of {producer_id}"
            )
        elif entry.first_offset != began and not may_be_older and not self._is_in_hole(entry.first_offset):
            seen = "no batch of it was seen" if began is None else f"its first batch is at {began}"
            self._problem(
                number, f"entry {number} has first offset {entry.first_offset} of producer {producer_id}: {seen}"
            )
        else:
            stable = min(self._open.values(), default=entry.last_offset + 1)
            if entry.last_stable_offset == stable or entry.last_stable_offset < self._start_offset:
                return
            if self._is_in_hole(entry.last_stable_offset):
                return
            if entry.last_stable_offset > entry.last_offset + 1 and not self._open:
                self._awaited[entry.last_stable_offset] = number
                return
            self._problem(
                number,
                f"entry {number} has last stable offset {entry.last_stable_offset}, by its batches it is {stable}",
            )

    def _is_in_hole(self, offset: int) -> bool:
        at = bisect_right(self._holes, (offset, offset)) - 1
        return any(start <= offset < end for start, end in self._holes[max(at, 0) : at + 2])

    def _no_marker(self) -> None:
        if self._next is None:
            return
        number, entry = self._next
        self._problem(number, f"entry {number} names offset {entry.last_offset}, where there is no ABORT")
        self._next = next(self._entries, None)

    def _problem(self, number: int, sentence: str) -> None:
        if self._judges:
            self.problems.add(number * _ENTRY_BYTES, sentence)


class AnswerLog:
    """The whole batches of [start, end) in a window, which have passed, against what transaction indexes say."""

    def __init__(self, window: SegmentWindow, start: int, end: int) -> None:
        self._window = window
        self._start = start
        self._end = end
        self.size_bytes = end - start
        self.behind = end_offset(window, start, end)
        self._first_offset = window.header_at(start).base_offset
        self._check: TransactionIndexCheck | None = None

    def problem(self, index: TransactionIndex, *, is_own: bool) -> str | None:
        """A sentence if they tell otherwise than an index; None: nothing does. The own segment's comes first.

        Args:
            is_own: the index is their segment's, otherwise one that follows.
        """
        touching, _ = index.collect_aborted(self._first_offset, self.behind)
        if is_own:
            self._check = self._walked(each for each in touching if each.last_offset < self.behind)
            if self._check.problems.first is not None:
                return self._check.problems.sentence()
        going_on = [each for each in touching if each.last_offset >= self.behind]
        if not going_on:
            return None
        check = self._check = self._check or self._walked(())
        return next((problem for each in going_on if (problem := check.problem_of_open(each)) is not None), None)

    def _walked(self, entries: Iterable[AbortedTransaction]) -> TransactionIndexCheck:
        check, window, position = TransactionIndexCheck(entries, self._first_offset), self._window, self._start
        while position < self._end and (header := next_header(window, position, self._end)) is not None:
            is_abort: bool | None = None
            if header.is_control:
                body_end = position + min(header.size_bytes, HEADER_BYTES + MARKER_BYTES)
                marker = read_transaction_marker(header, b"".join(window.views(position, body_end)))
                is_abort = None if marker is None else marker.is_abort
            check.batch(position, header, True, is_abort)
            position += header.size_bytes
        return check
