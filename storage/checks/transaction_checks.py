"""A segment's transaction index and producer snapshot against its batches, in one pass beside the walk of its log.

Transaction index (docs/kafka-tier.md#transaction-index, docs/kafka-tier.md#aborted-transactions): one entry for each
ABORT marker that ended a transaction with records; a marker without records before it has none. What began before the
segment cannot be seen here:

| field | right is |
|---|---|
| last offset, producer | those of an ABORT marker |
| first offset | that of the transaction's first batch; or, if it may have begun earlier, below the segment |
| last stable offset | the first of the oldest transaction then open, else the one after the marker; or below |

A broker that appends several batches at once takes transactions for open that begin after the marker: such a batch's
offset is right as well.

Producer snapshot: its state of a producer has the last offset of that producer's last batch, unless a new epoch has
just emptied it (−1); no offset is beyond the segment. Producers may be missing: they expire.
"""

from itertools import islice

from protocol.record_batches import BatchHeader
from storage.checks.index_checks import Problems
from storage.indexes.producer_snapshot import ProducerState
from storage.indexes.transaction_index import AbortedTransaction, TransactionIndex
from storage.model import RemoteLogSegmentMetadata

PRODUCERS_MAX = 100_000
"""Producers of one segment that are followed, about 100 bytes each; those that come later are not judged."""

_ENTRY_BYTES = 34


class TransactionIndexCheck:
    """Args: index: of this segment; an empty one if it has none."""

    def __init__(self, index: TransactionIndex, segment: RemoteLogSegmentMetadata) -> None:
        self.problems = Problems()
        self._start_offset = segment.start_offset
        self._entries = enumerate(index)
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
        elif entry.first_offset != began and not may_be_older:
            seen = "no batch of it was seen" if began is None else f"its first batch is at {began}"
            self._problem(
                number, f"entry {number} has first offset {entry.first_offset} of producer {producer_id}: {seen}"
            )
        else:
            stable = min(self._open.values(), default=entry.last_offset + 1)
            if entry.last_stable_offset == stable or entry.last_stable_offset < self._start_offset:
                return
            if entry.last_stable_offset > entry.last_offset + 1 and not self._open:
                self._awaited[entry.last_stable_offset] = number
                return
            self._problem(
                number,
                f"entry {number} has last stable offset {entry.last_stable_offset}, by its batches it is {stable}",
            )

    def _no_marker(self) -> None:
        if self._next is None:
            return
        number, entry = self._next
        self._problem(number, f"entry {number} names offset {entry.last_offset}, where there is no ABORT")
        self._next = next(self._entries, None)

    def _problem(self, number: int, sentence: str) -> None:
        if self._judges:
            self.problems.add(number * _ENTRY_BYTES, sentence)


class ProducerSnapshotCheck:
    """Args: states: of the segment's snapshot."""

    def __init__(self, states: tuple[ProducerState, ...], segment: RemoteLogSegmentMetadata) -> None:
        self.problems = Problems()
        self._end_offset = segment.end_offset
        self._states = {state.producer_id: state.last_offset for state in islice(states, PRODUCERS_MAX)}
        self._seen: dict[int, int] = {}
        self._judges = True

    def batch(self, position: int, header: BatchHeader, is_valid: bool, is_abort: bool | None) -> None:
        if not is_valid:
            self._judges = False
        elif header.producer_id in self._states and not header.is_control:
            self._seen[header.producer_id] = header.last_offset

    def skip(self, end_position: int) -> None:
        self._judges = False

    def finish(self, is_complete: bool) -> None:
        for producer_id, last_offset in self._states.items():
            if last_offset > self._end_offset:
                self.problems.add(
                    0, f"producer {producer_id} is at offset {last_offset}, the segment ends at {self._end_offset}"
                )
            elif self._judges and is_complete and last_offset >= 0:
                seen = self._seen.get(producer_id, last_offset)
                if seen != last_offset:
                    self.problems.add(
                        0,
                        f"producer {producer_id} is at offset {last_offset}, its last batch in the log ends at {seen}",
                    )
