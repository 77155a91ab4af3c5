"""READ_COMMITTED in the tier: which transactions were aborted, and up to where the tier alone can tell.

Rule 1. An abort stands in the transaction index of the segment with its *marker*, which may come after the segments
        with the data (docs/kafka-tier.md#indexes). So later indexes are read too, as long as a transaction
        begun below the wanted end is still open: the producer snapshot at a segment's end says which are.
Rule 2. The tier's last stable offset. A broker copies a segment only when every transaction begun below its end is
        decided, but the decision (the marker) may lie behind that end, in what is not copied yet: the broker knows it,
        the tier does not. The producer snapshot of the last segment names the transactions that are open at its end;
        the first offset of the earliest of them is where READ_COMMITTED reading of the tier ends. What follows is
        read through Kafka (`tail=kafka`), or when the segment with the marker has been tiered.
Rule 3. An absent transaction index is an empty one, but only of a segment that is there, and only if no manifest says
        that the index has bytes: the manifest, where the format has one, is read first.
Rule 4. A hole in the chain may have held markers. Where a transaction is open at a hole nothing is guessed.

Objects are fetched in a few threads. A segment never changes, so what its index and snapshot say is kept for the reads
that follow, up to KEPT_BYTES_MAX of them.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from typing import TypeVar, cast

from storage.errors import RemoteResourceNotFoundError, RemoteStorageError
from storage.indexes.producer_snapshot import parse_producer_snapshot
from storage.indexes.transaction_index import TransactionIndex, absent_transaction_index, segment_transaction_index
from storage.model import IndexType, RemoteLogSegmentMetadata, Uuid
from storage.remote_storage_manager import SegmentOpener
from table.planning.partition_view import PartitionView, ServedSegment, WantedOffsets
from table.tasks import AbortedTransaction

THREADS = 16
"""Small GETs at once, each mostly waiting."""

KEPT_BYTES_MAX = 64 * 1024 * 1024
"""Bytes of objects, as they lie in the store."""

KEPT_BYTES_EACH = 200
"""What it takes to remember one, whatever its size."""

T = TypeVar("T")


class UndecidedTransactionError(RemoteStorageError):
    """Nobody can say whether a transaction was aborted: its marker may be in a hole, or a snapshot is missing."""


class TierTransactions:
    """Asks the tier. Used by one thread; its GETs run in a few of its own. `manager`: a meter may be put there."""

    def __init__(self, manager: SegmentOpener, threads: int = THREADS) -> None:
        self.manager = manager
        self._threads = threads
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[Uuid, IndexType], tuple[object, int]] = OrderedDict()  # oldest first
        self._kept_bytes = 0

    def with_last_stable_offsets(self, views: Sequence[PartitionView]) -> list[PartitionView]:
        """The views, each with the tier's last stable offset (rule 2).

        Raises:
            UndecidedTransactionError: a last segment has no producer snapshot.
            RemoteStorageError: one cannot be read.
        """
        with ThreadPoolExecutor(self._threads) as pool:
            stable = pool.map(self.last_stable_offset, views)
            return [replace(view, last_stable_offset=offset) for view, offset in zip(views, stable, strict=True)]

    def last_stable_offset(self, view: PartitionView) -> int:
        """Return where READ_COMMITTED reading of the tier ends (rule 2); errors as above."""
        if not view.segments:
            return view.tier_end_offset
        segment = view.segments[-1].segment
        still_open = self._open_transactions(segment)
        if still_open is None:
            raise UndecidedTransactionError(
                f"{segment.segment_id} has no producer snapshot: whether all its transactions are decided cannot be "
                "told; isolation=read_uncommitted reads it"
            )
        return max(view.log_start_offset, min([view.tier_end_offset, *still_open]))

    def with_aborted(self, wanted: Sequence[WantedOffsets]) -> tuple[WantedOffsets, ...]:
        """All of them, each with the aborted transactions of what it wants from the tier.

        Raises:
            UndecidedTransactionError: a transaction is open where a hole begins (rule 4).
            RemoteStorageError: an index or a snapshot cannot be read.
        """
        with ThreadPoolExecutor(self._threads) as pool:
            return tuple(
                replace(want, aborted=self._aborted(pool, want.view, want.first_offset, want.tier_end_offset))
                for want in wanted
            )

    def aborted(self, view: PartitionView, first_offset: int, end_offset: int) -> tuple[AbortedTransaction, ...]:
        """The aborted transactions that touch [first_offset, end_offset), by first offset; errors as above.

        Args:
            end_offset: at most the tier's last stable offset.
        """
        with ThreadPoolExecutor(self._threads) as pool:
            return self._aborted(pool, view, first_offset, end_offset)

    def _aborted(
        self, pool: ThreadPoolExecutor, view: PartitionView, first_offset: int, end_offset: int
    ) -> tuple[AbortedTransaction, ...]:
        segments = view.segments
        touched = [
            number
            for number, served in enumerate(segments)
            if served.end_offset > first_offset and served.first_offset < end_offset
        ]
        if not touched or first_offset >= end_offset:
            return ()
        found: set[AbortedTransaction] = set()
        is_complete = False
        within = segments[touched[0] : touched[-1] + 1]
        for index in pool.map(self._transaction_index, (served.segment for served in within)):
            is_complete |= _collect(index, first_offset, end_offset, found)
        for before, after in pairwise(within):
            if after.first_offset > before.end_offset:
                self._check_hole(before, after, end_offset)
        if not is_complete:
            self._search_behind(segments[touched[-1] :], first_offset, end_offset, found)
        return tuple(sorted(found, key=lambda aborted: (aborted.first_offset, aborted.producer_id)))

    def _search_behind(
        self, segments: Sequence[ServedSegment], first_offset: int, end_offset: int, found: set[AbortedTransaction]
    ) -> None:
        """Add the aborts whose marker lies behind the first of these segments (rule 1)."""
        for number, served in enumerate(segments):
            if number and _collect(self._transaction_index(served.segment), first_offset, end_offset, found):
                return
            following = segments[number + 1 :]
            is_hole_next = bool(following) and following[0].first_offset > served.end_offset
            if not is_hole_next and all(later.segment.txn_index_empty for later in following):
                return
            still_open = self._open_transactions(served.segment)
            if still_open is not None and all(offset >= end_offset for offset in still_open):
                return
            if is_hole_next:
                raise _undecided(served, following[0])

    def _check_hole(self, before: ServedSegment, after: ServedSegment, end_offset: int) -> None:
        still_open = self._open_transactions(before.segment)
        if still_open is None or any(offset < end_offset for offset in still_open):
            raise _undecided(before, after)

    def _transaction_index(self, segment: RemoteLogSegmentMetadata) -> TransactionIndex:
        if segment.txn_index_empty:
            return TransactionIndex(b"")

        def fetch() -> tuple[TransactionIndex, int]:
            opened = self.manager.open_log_segment(segment)
            try:
                data = opened.fetch_index(IndexType.TRANSACTION)
            except RemoteResourceNotFoundError as error:
                return absent_transaction_index(error, segment), 0
            return segment_transaction_index(data, segment), len(data)

        return self._known(segment, IndexType.TRANSACTION, fetch)

    def _open_transactions(self, segment: RemoteLogSegmentMetadata) -> list[int] | None:
        """First offsets of the transactions that are open at the segment's end; None without a snapshot."""

        def fetch() -> tuple[list[int] | None, int]:
            opened = self.manager.open_log_segment(segment)
            try:
                data = opened.fetch_index(IndexType.PRODUCER_SNAPSHOT)
            except RemoteResourceNotFoundError:
                return None, 0
            states = parse_producer_snapshot(data, f"producer snapshot of {segment.segment_id}")
            firsts = (state.current_transaction_first_offset for state in states)
            return [first for first in firsts if first >= 0], len(data)

        return self._known(segment, IndexType.PRODUCER_SNAPSHOT, fetch)

    def _known(self, segment: RemoteLogSegmentMetadata, kind: IndexType, fetch: Callable[[], tuple[T, int]]) -> T:
        """Return what was fetched before, or now. Two threads that want the same may both fetch it."""
        key = (segment.segment_id.id, kind)
        with self._lock:
            if (kept := self._kept.get(key)) is not None:
                self._kept.move_to_end(key)
                return cast("T", kept[0])
        value, size_bytes = fetch()
        with self._lock:
            if key not in self._kept:
                self._kept[key] = (value, size_bytes + KEPT_BYTES_EACH)
                self._kept_bytes += size_bytes + KEPT_BYTES_EACH
            while self._kept_bytes > KEPT_BYTES_MAX:
                self._kept_bytes -= self._kept.popitem(last=False)[1][1]
        return value


def _collect(index: TransactionIndex, first_offset: int, end_offset: int, found: set[AbortedTransaction]) -> bool:
    """Take what an index has; whether nothing can follow."""
    transactions, is_complete = index.collect_aborted(first_offset, end_offset)
    found.update(AbortedTransaction(each.producer_id, each.first_offset, each.last_offset) for each in transactions)
    return is_complete


def _undecided(before: ServedSegment, after: ServedSegment) -> UndecidedTransactionError:
    return UndecidedTransactionError(
        f"{before.segment.topic_id_partition}: a transaction is open at offset {before.end_offset}, and the offsets up "
        f"to {after.first_offset - 1}, which may have its marker, are not in the tier; isolation=read_uncommitted "
        "reads the others"
    )
