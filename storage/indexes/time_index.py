"""The time index of a segment: from a timestamp to an offset to start from (docs/kafka-tier.md#indexes).

An entry is 12 bytes, big-endian: int64 timestamp in milliseconds, int32 offset minus the segment's base offset.
Timestamps ascend strictly, offsets never descend. An entry says: no record up to and including this offset is
newer than this timestamp. The last entry holds the segment's maximum timestamp.
"""

import struct
from bisect import bisect_right

from storage.errors import CorruptObjectError

NO_TIMESTAMP_MS = -1
"""Kafka's mark for "no timestamp"."""

ENTRY = struct.Struct(">qi")
_TIMESTAMP = struct.Struct(">q")


class TimeIndex:
    """A read-only view of one time index; it keeps the bytes as they are and searches them in place.

    Raises:
        CorruptObjectError: not a whole number of entries, a negative field, timestamps that do not ascend,
            or offsets that descend.
    """

    __slots__ = ("_base_offset", "_data", "_entry_count")

    def __init__(self, data: bytes | bytearray, base_offset: int, name: str = "time index") -> None:
        if len(data) % ENTRY.size:
            raise CorruptObjectError(f"{name}: {len(data)} bytes is not a multiple of {ENTRY.size}")
        previous_timestamp_ms, previous_relative_offset = -1, 0
        for entry_number, (timestamp_ms, relative_offset) in enumerate(ENTRY.iter_unpack(data)):
            if timestamp_ms <= previous_timestamp_ms or relative_offset < previous_relative_offset:
                raise CorruptObjectError(f"{name}: entry does not ascend at byte {entry_number * ENTRY.size}")
            previous_timestamp_ms, previous_relative_offset = timestamp_ms, relative_offset
        self._data = data
        self._base_offset = base_offset
        self._entry_count = len(data) // ENTRY.size

    def __len__(self) -> int:
        return self._entry_count

    def lookup(self, timestamp_ms: int) -> tuple[int, int]:
        """The last entry at or below `timestamp_ms` as (timestamp, offset); (-1, base offset) when there is none."""
        entries_at_or_below = bisect_right(range(self._entry_count), timestamp_ms, key=self._timestamp_ms)
        if entries_at_or_below == 0:
            return NO_TIMESTAMP_MS, self._base_offset
        found_ms, relative_offset = ENTRY.unpack_from(self._data, (entries_at_or_below - 1) * ENTRY.size)
        return found_ms, self._base_offset + relative_offset

    def first_above(self, timestamp_ms: int) -> int | None:
        """Return the offset of the first entry above `timestamp_ms`: a record up to there is newer, and none up to the
        entry before it. None when there is no such entry."""
        number = bisect_right(range(self._entry_count), timestamp_ms, key=self._timestamp_ms)
        if number == self._entry_count:
            return None
        _, relative_offset = ENTRY.unpack_from(self._data, number * ENTRY.size)
        return self._base_offset + int(relative_offset)

    def _timestamp_ms(self, entry_number: int) -> int:
        timestamp_ms: int = _TIMESTAMP.unpack_from(self._data, entry_number * ENTRY.size)[0]
        return timestamp_ms
