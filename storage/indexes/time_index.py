"""The time index of a segment: from a timestamp to an offset to start from (docs/kafka-tier.md#time-index).

An entry is 12 bytes, big-endian: int64 timestamp in milliseconds, int32 offset minus the segment's base offset.
Timestamps ascend strictly, offsets never descend. An entry says: no record up to and including this offset is
newer than this timestamp. The last entry holds the segment's maximum timestamp.
"""

import struct
from bisect import bisect_right
from collections.abc import Iterable

from storage.errors import CorruptObjectError
from storage.indexes.offset_index import INDEX_INTERVAL_BYTES

NO_TIMESTAMP_MS = -1
"""Kafka's mark for "no timestamp"."""

_ENTRY = struct.Struct(">qi")
_TIMESTAMP = struct.Struct(">q")
_INT32_MAX = 2**31 - 1


class TimeIndex:
    """A read-only view of one time index; it keeps the bytes as they are and searches them in place.

    Raises:
        CorruptObjectError: not a whole number of entries, a negative field, timestamps that do not ascend,
            or offsets that descend.
    """

    __slots__ = ("_base_offset", "_data", "_entry_count")

    def __init__(self, data: bytes | bytearray, base_offset: int, name: str = "time index") -> None:
        if len(data) % _ENTRY.size:
            raise CorruptObjectError(f"{name}: {len(data)} bytes is not a multiple of {_ENTRY.size}")
        previous_timestamp_ms, previous_relative_offset = -1, 0
        for entry_number, (timestamp_ms, relative_offset) in enumerate(_ENTRY.iter_unpack(data)):
            if timestamp_ms <= previous_timestamp_ms or relative_offset < previous_relative_offset:
                raise CorruptObjectError(f"{name}: entry does not ascend at byte {entry_number * _ENTRY.size}")
            previous_timestamp_ms, previous_relative_offset = timestamp_ms, relative_offset
        self._data = data
        self._base_offset = base_offset
        self._entry_count = len(data) // _ENTRY.size

    def __len__(self) -> int:
        return self._entry_count

    def lookup(self, timestamp_ms: int) -> tuple[int, int]:
        """The last entry at or below `timestamp_ms` as (timestamp, offset); (-1, base offset) when there is none."""
        entries_at_or_below = bisect_right(range(self._entry_count), timestamp_ms, key=self._timestamp_ms)
        if entries_at_or_below == 0:
            return NO_TIMESTAMP_MS, self._base_offset
        found_ms, relative_offset = _ENTRY.unpack_from(self._data, (entries_at_or_below - 1) * _ENTRY.size)
        return found_ms, self._base_offset + relative_offset

    def _timestamp_ms(self, entry_number: int) -> int:
        timestamp_ms: int = _TIMESTAMP.unpack_from(self._data, entry_number * _ENTRY.size)[0]
        return timestamp_ms


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
        encoded += _ENTRY.pack(timestamp_ms, relative_offset)
        previous_timestamp_ms, previous_relative_offset = timestamp_ms, relative_offset
    return bytes(encoded)


def build_time_index(
    base_offset: int, batches: Iterable[tuple[int, int, int]], interval_bytes: int = INDEX_INTERVAL_BYTES
) -> bytes:
    """Rebuild an index from every batch of a segment: (position, last offset, maximum timestamp) in log order.

    As Kafka does: where a batch gets an offset index entry, the largest timestamp so far gets one too if it is
    new, with the last offset of the batch it first appeared in; and once more at the end, when the segment rolls.

    Raises:
        CorruptObjectError: the batches' offsets descend, or lie beyond int32 from the base offset.
    """

    def entries() -> Iterable[tuple[int, int]]:
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

    try:
        return encode_time_index(base_offset, entries())
    except ValueError as error:
        raise CorruptObjectError(f"the batches of a segment cannot be indexed: {error}") from error
