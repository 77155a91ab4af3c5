"""A segment's index files as a broker writes them (docs/kafka-tier.md#indexes); `storage.indexes` reads them."""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import astuple

from crc32c import crc32c

from storage.indexes.offset_index import INDEX_INTERVAL_BYTES
from storage.indexes.producer_snapshot import ProducerState
from storage.indexes.time_index import NO_TIMESTAMP_MS
from storage.indexes.transaction_index import AbortedTransaction

INDEX_BYTES_MAX = 10 * 1024 * 1024
"""Kafka's `segment.index.bytes`: a segment whose index is full is rolled."""

_INT32_MAX = 2**31 - 1
_OFFSET_ENTRY = struct.Struct(">ii")
_TIME_ENTRY = struct.Struct(">qi")
_SNAPSHOT_ENTRY = struct.Struct(">qhiqiqiq")
_TRANSACTION_ENTRY = struct.Struct(">hqqqq")


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
            len(self._offsets) + _OFFSET_ENTRY.size > INDEX_BYTES_MAX
            or len(self._times) + 2 * _TIME_ENTRY.size > INDEX_BYTES_MAX
        )

    def holds(self, last_offset: int) -> bool:
        """Return whether the offset is near enough to the segment's first one."""
        return last_offset - self._base_offset <= _INT32_MAX

    def take(self, position: int, last_offset: int, max_timestamp_ms: int) -> None:
        """The next batch."""
        if max_timestamp_ms > self._newest_ms:
            self._newest_ms, self._newest_offset = max_timestamp_ms, last_offset
        if position - self._indexed_position > self._interval_bytes:
            self._offsets += _OFFSET_ENTRY.pack(last_offset - self._base_offset, position)
            self._indexed_position = position
            self._add_newest()

    def finish(self) -> tuple[bytes, bytes]:
        """The offset index and the time index. No more batches after this."""
        self._add_newest()
        return bytes(self._offsets), bytes(self._times)

    def _add_newest(self) -> None:
        if self._newest_ms > self._indexed_timestamp_ms:
            self._times += _TIME_ENTRY.pack(self._newest_ms, self._newest_offset - self._base_offset)
            self._indexed_timestamp_ms = self._newest_ms


def encode_leader_epochs(epochs: Iterable[tuple[int, int]]) -> bytes:
    """The checkpoint of (leader epoch, start offset) pairs in ascending order."""
    entries = [f"{epoch} {start_offset}\n" for epoch, start_offset in epochs]
    return f"0\n{len(entries)}\n{''.join(entries)}".encode("ascii")


def encode_producer_snapshot(states: Sequence[ProducerState]) -> bytes:
    """The snapshot's bytes, with its checksum."""
    entries = [_SNAPSHOT_ENTRY.pack(*astuple(state)) for state in states]
    checked = struct.pack(">i", len(entries)) + b"".join(entries)
    return struct.pack(">hI", 1, crc32c(checked)) + checked


def encode_transaction_index(transactions: Iterable[AbortedTransaction]) -> bytes:
    """The index bytes; the transactions must ascend by last offset, as abort markers do in the log."""
    return b"".join(_TRANSACTION_ENTRY.pack(0, *astuple(transaction)) for transaction in transactions)
