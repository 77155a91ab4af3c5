"""A segment's time index for tests; the other index files' bytes are made by `storage.indexes`."""

import struct
from collections.abc import Iterable

from storage.indexes.offset_index import INDEX_INTERVAL_BYTES
from storage.indexes.sparse_indexes import SparseIndexes


def encode_time_index(base_offset: int, entries: Iterable[tuple[int, int]]) -> bytes:
    """The index bytes of (timestamp, offset) pairs, right or wrong."""
    return b"".join(struct.pack(">qi", timestamp_ms, offset - base_offset) for timestamp_ms, offset in entries)


def build_time_index(
    base_offset: int, batches: Iterable[tuple[int, int, int]], interval_bytes: int = INDEX_INTERVAL_BYTES
) -> bytes:
    """The index from every batch of a segment: (position, last offset, maximum timestamp) in log order."""
    indexes = SparseIndexes(base_offset, interval_bytes)
    for batch in batches:
        indexes.take(*batch)
    return indexes.finish()[1]
