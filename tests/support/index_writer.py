"""A segment's index objects as a broker writes them (docs/kafka-tier.md#indexes); `storage.indexes` reads them.

The offset index is not here: Tidegate itself rebuilds one that was lost (`storage.indexes.offset_index`).
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple

from crc32c import crc32c

from storage.indexes.offset_index import INDEX_INTERVAL_BYTES
from storage.indexes.producer_snapshot import ProducerState
from storage.indexes.time_index import NO_TIMESTAMP_MS
from storage.indexes.transaction_index import AbortedTransaction

_INT32_MAX = 2**31 - 1


def encode_leader_epochs(epochs: Iterable[tuple[int, int]]) -> bytes:
    """The checkpoint of (leader epoch, start offset) pairs in ascending order."""
    entries = [f"{epoch} {start_offset}\n" for epoch, start_offset in epochs]
    return f"0\n{len(entries)}\n{''.join(entries)}".encode("ascii")


def encode_producer_snapshot(states: Sequence[ProducerState]) -> bytes:
    """The snapshot's bytes, with its checksum."""
    entries = [struct.pack(">qhiqiqiq", *astuple(state)) for state in states]
    checked = struct.pack(">i", len(entries)) + b"".join(entries)
    return struct.pack(">hI", 1, crc32c(checked)) + checked


def encode_transaction_index(transactions: Iterable[AbortedTransaction]) -> bytes:
    """The index bytes; the transactions must ascend by last offset, as abort markers do in the log."""
    return b"".join(struct.pack(">hqqqq", 0, *astuple(transaction)) for transaction in transactions)


def encode_time_index(base_offset: int, entries: Iterable[tuple[int, int]]) -> bytes:
    """The index bytes of (timestamp, offset) pairs; timestamps ascend strictly, offsets do not descend.

    Raises:
        ValueError: an offset beyond int32 from the base offset, or a descending pair.
    """
    encoded = bytearray()
    previous_timestamp_ms, previous_relative_offset = -1, 0
    for timestamp_ms, offset in entries:
        relative_offset = offset - base_offset
        if timestamp_ms <= previous_timestamp_ms:
            raise ValueError(f"timestamp {timestamp_ms} does not follow {previous_timestamp_ms}")
        if not previous_relative_offset <= relative_offset <= _INT32_MAX:
            raise ValueError(f"offset {offset} does not follow in an index with base offset {base_offset}")
        encoded += struct.pack(">qi", timestamp_ms, relative_offset)
        previous_timestamp_ms, previous_relative_offset = timestamp_ms, relative_offset
    return bytes(encoded)


def build_time_index(
    base_offset: int, batches: Iterable[tuple[int, int, int]], interval_bytes: int = INDEX_INTERVAL_BYTES
) -> bytes:
    """The index from every batch of a segment: (position, last offset, maximum timestamp) in log order.

    As Kafka does: where a batch gets an offset index entry, the largest timestamp so far gets one too if it is
    new, with the last offset of the batch it first appeared in; and once more at the end, when the segment rolls.

    Raises:
        ValueError: the batches' offsets descend, or lie beyond int32 from the base offset.
    """

    def entries() -> Iterator[tuple[int, int]]:
        indexed_position = 0
        indexed_timestamp_ms = NO_TIMESTAMP_MS
        newest_ms, newest_offset = NO_TIMESTAMP_MS, base_offset
        for position, last_offset, max_timestamp_ms in batches:
            if max_timestamp_ms > newest_ms:
                newest_ms, newest_offset = max_timestamp_ms, last_offset
            if position - indexed_position > interval_bytes:
                indexed_position = position
                if newest_ms > indexed_timestamp_ms:
                    indexed_timestamp_ms = newest_ms
                    yield newest_ms, newest_offset
        if newest_ms > indexed_timestamp_ms:
            yield newest_ms, newest_offset

    return encode_time_index(base_offset, entries())
