"""The offset and the time index of a segment as a broker writes them, while the segment grows
(docs/kafka-tier.md#indexes)."""

from storage.indexes.offset_index import ENTRY as OFFSET_ENTRY
from storage.indexes.offset_index import INDEX_INTERVAL_BYTES, INT32_MAX
from storage.indexes.time_index import ENTRY as TIME_ENTRY
from storage.indexes.time_index import NO_TIMESTAMP_MS

INDEX_BYTES_MAX = 10 * 1024 * 1024
"""Kafka's `segment.index.bytes`: a segment whose index is full is rolled."""


class SparseIndexes:
    """The offset and the time index of a segment that grows batch by batch.

    As Kafka does: a batch that begins more than `interval_bytes` after the last one with an entry, or after the
    segment's start, gets an entry in the offset index: its last offset. There the largest timestamp so far gets one in
    the time index, if it is new, with the last offset of the batch that had it first; and once more at the end.
    """

    def __init__(self, base_offset: int, interval_bytes: int = INDEX_INTERVAL_BYTES) -> None:
        self._base_offset = base_offset
        self._interval_bytes = interval_bytes
        self._offsets = bytearray()
        self._times = bytearray()
        self._indexed_position = 0
        self._indexed_timestamp_ms = NO_TIMESTAMP_MS
        self._newest_ms = NO_TIMESTAMP_MS
        self._newest_offset = base_offset

    @property
    def max_timestamp_ms(self) -> int:
        """NO_TIMESTAMP_MS while no batch had one."""
        return self._newest_ms

    @property
    def is_full(self) -> bool:
        """Return whether the next entry might not fit; Kafka keeps one place in the time index for the end."""
        return (
            len(self._offsets) + OFFSET_ENTRY.size > INDEX_BYTES_MAX
            or len(self._times) + 2 * TIME_ENTRY.size > INDEX_BYTES_MAX
        )

    def holds(self, last_offset: int) -> bool:
        """Return whether the offset is near enough to the segment's first one."""
        return last_offset - self._base_offset <= INT32_MAX

    def take(self, position: int, last_offset: int, max_timestamp_ms: int) -> None:
        """The next batch."""
        if max_timestamp_ms > self._newest_ms:
            self._newest_ms, self._newest_offset = max_timestamp_ms, last_offset
        if position - self._indexed_position > self._interval_bytes:
            self._offsets += OFFSET_ENTRY.pack(last_offset - self._base_offset, position)
            self._indexed_position = position
            self._add_newest()

    def finish(self) -> tuple[bytes, bytes]:
        """The offset index and the time index. No more batches after this."""
        self._add_newest()
        return bytes(self._offsets), bytes(self._times)

    def _add_newest(self) -> None:
        if self._newest_ms > self._indexed_timestamp_ms:
            self._times += TIME_ENTRY.pack(self._newest_ms, self._newest_offset - self._base_offset)
            self._indexed_timestamp_ms = self._newest_ms
