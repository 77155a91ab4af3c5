"""Which of a segment's batches hold rows of a task, told from their headers alone. Pure.

Control batches never do. Under READ_COMMITTED a transactional batch does not if its producer aborted the transaction
that it belongs to. A v2 batch whose newest record is too old does not: brokers see to it that the header's maximum
timestamp is right. (The base timestamp is the first record's, not the oldest's: there is no such rule for too new.)
"""

from bisect import bisect_right
from collections.abc import Sequence

from pipeline.tasks import AbortedTransaction
from protocol.record_batches import BatchHeader


class BatchSelection:
    """The batches with offsets in [first_offset, end_offset) that may have rows.

    Args:
        aborted: transactions to leave out.
        timestamp_min_ms: rows are at least so new; None: any.
    """

    def __init__(
        self,
        first_offset: int,
        end_offset: int,
        aborted: Sequence[AbortedTransaction] = (),
        timestamp_min_ms: int | None = None,
    ) -> None:
        self._first_offset = first_offset
        self._end_offset = end_offset
        self._timestamp_min_ms = timestamp_min_ms
        self._aborted: dict[int, list[tuple[int, int]]] = {}
        for transaction in sorted(aborted, key=lambda transaction: transaction.first_offset):
            ranges = self._aborted.setdefault(transaction.producer_id, [])
            ranges.append((transaction.first_offset, transaction.last_offset))

    def wants(self, header: BatchHeader) -> bool:
        """Whether the batch may have rows."""
        if header.is_control or header.last_offset < self._first_offset:
            return False
        if header.magic >= 2:
            if header.base_offset >= self._end_offset:
                return False
            if self._timestamp_min_ms is not None and header.max_timestamp < self._timestamp_min_ms:
                return False
        return not (header.is_transactional and self._is_aborted(header))

    def ends_before(self, header: BatchHeader) -> bool:
        """Whether the batches behind this one are all beyond the end."""
        return header.last_offset >= self._end_offset - 1

    def _is_aborted(self, header: BatchHeader) -> bool:
        ranges = self._aborted.get(header.producer_id)
        if ranges is None:
            return False
        # One producer's transactions follow one another, so that the last to begin is the only one that may hold it.
        last_begun = bisect_right(ranges, header.base_offset, key=lambda offsets: offsets[0]) - 1
        return last_begun >= 0 and header.base_offset <= ranges[last_begun][1]
