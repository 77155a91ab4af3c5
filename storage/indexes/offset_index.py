"""The offset index of a segment: from a Kafka offset to the position of its batch (docs/kafka-tier.md#indexes).

An entry is 8 bytes, big-endian: int32 last offset of a batch minus the segment's base offset, int32 byte position
where that batch begins. Entries are sparse and ascending in both. The first batch usually has none: below the
first entry a search starts at position 0. An empty index is legal.
"""

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from functools import lru_cache
from itertools import islice
from operator import lt
from typing import NoReturn

from storage.errors import CorruptObjectError

INDEX_INTERVAL_BYTES = 4096
"""Kafka's default of `index.interval.bytes`."""

ENTRY = struct.Struct(">ii")
INT32_MAX = 2**31 - 1
_COMPARED_BYTES = 512 * ENTRY.size
"""Entries that are compared at once: some 50 µs."""


class OffsetIndex:
    """One offset index, kept as two columns.

    Offsets in the interface are Kafka offsets, not relative ones. `is_rebuilt`: Tidegate made it from the log.

    Args:
        is_checked: these very bytes were an index before.

    Raises:
        CorruptObjectError: not a whole number of entries, a negative field, or entries that do not ascend.
    """

    __slots__ = ("_base_offset", "_positions", "_relative_offsets", "is_rebuilt")

    def __init__(
        self,
        data: bytes | bytearray,
        base_offset: int,
        name: str = "offset index",
        *,
        is_rebuilt: bool = False,
        is_checked: bool = False,
    ) -> None:
        if len(data) % ENTRY.size:
            raise CorruptObjectError(f"{name}: {len(data)} bytes is not a multiple of {ENTRY.size}")
        if not is_checked and not _ascends(data):
            _raise_fault(data, name)
        self._relative_offsets, self._positions = _columns(data)
        self._base_offset = base_offset
        self.is_rebuilt = is_rebuilt

    def __len__(self) -> int:
        return len(self._positions)

    def lookup(self, offset: int) -> tuple[int, int]:
        """The last entry at or below `offset` as (its offset, its position); (base offset, 0) when there is none.

        The batch that holds `offset` begins at that position or after it.
        """
        entries_at_or_below = bisect_right(self._relative_offsets, offset - self._base_offset)
        if entries_at_or_below == 0:
            return self._base_offset, 0
        return self._entry(entries_at_or_below - 1)

    def position_at_or_below(self, position: int) -> int:
        """The position of the last entry at or below `position`; 0 when there is none."""
        entries_at_or_below = bisect_right(self._positions, position)
        return self._positions[entries_at_or_below - 1] if entries_at_or_below else 0

    def position_above(self, position: int) -> int | None:
        """The position of the first entry beyond `position`; None when there is none."""
        entries_at_or_below = bisect_right(self._positions, position)
        return self._positions[entries_at_or_below] if entries_at_or_below < len(self) else None

    def batch_start_at_or_above(self, position: int) -> int | None:
        """The first position at or beyond `position` where a batch is known to begin: an entry's, or the log's start;
        None when no entry tells one."""
        if position <= 0:
            return 0
        entries_below = bisect_left(self._positions, position)
        return self._positions[entries_below] if entries_below < len(self) else None

    def position_after_offset(self, offset: int) -> int | None:
        """A position at or behind the end of the batch that holds `offset`; None when no entry tells one."""
        entries_below = bisect_left(self._relative_offsets, offset - self._base_offset)
        return self._positions[entries_below + 1] if entries_below + 1 < len(self) else None

    def fetch_upper_bound_offset(self, end_position: int) -> int | None:
        """Return what bounds the offsets of a fetched range that ends at `end_position` (exclusive) from above, for
        READ_COMMITTED (docs/kafka-tier.md#aborted-transactions): the offset of the first entry at or beyond it, or
        None.

        As in Kafka, whose binary search never compares with the first entry, that one does not count if it is exactly
        there: the next does. A broker lists aborted transactions by this, so it must stay as it is.
        """
        entries_below = bisect_left(self._positions, end_position)
        if entries_below == 0 and len(self) and self._positions[0] == end_position:
            entries_below = 1
        return self._entry(entries_below)[0] if entries_below < len(self) else None

    def _entry(self, entry_number: int) -> tuple[int, int]:
        return self._base_offset + self._relative_offsets[entry_number], self._positions[entry_number]


def encode_offset_index(base_offset: int, entries: Iterable[tuple[int, int]]) -> bytes:
    """The index bytes of (offset, position) pairs, which must ascend in both.

    Raises:
        ValueError: an offset or a position beyond int32 from its base, or a descending pair.
    """
    encoded = bytearray()
    previous_relative_offset, previous_position = -1, -1
    for offset, position in entries:
        relative_offset = offset - base_offset
        if not previous_relative_offset < relative_offset <= INT32_MAX:
            raise ValueError(f"offset {offset} does not follow in an index with base offset {base_offset}")
        if not previous_position < position <= INT32_MAX:
            raise ValueError(f"position {position} does not follow position {previous_position}")
        encoded += ENTRY.pack(relative_offset, position)
        previous_relative_offset, previous_position = relative_offset, position
    return bytes(encoded)


def build_offset_index(
    base_offset: int, batches: Iterable[tuple[int, int]], interval_bytes: int = INDEX_INTERVAL_BYTES
) -> bytes:
    """Rebuild an index from every batch of a segment, given as (position, last offset) in log order.

    As Kafka does: a batch gets an entry when it begins more than `interval_bytes` after the last batch
    with one, or after the segment's start.

    Raises:
        CorruptObjectError: the batches' offsets or positions do not ascend, or lie beyond int32 from their base.
    """

    def entries() -> Iterable[tuple[int, int]]:
        indexed_position = 0
        for position, last_offset in batches:
            if position - indexed_position > interval_bytes:
                indexed_position = position
                yield last_offset, position

    try:
        return encode_offset_index(base_offset, entries())
    except ValueError as error:
        raise CorruptObjectError(f"the batches of a segment cannot be indexed: {error}") from error


def _ascends(data: bytes | bytearray) -> bool:
    """Return whether no field is negative, and each is above the same field of the entry before.

    The index of 1 GiB may have 262,144 entries, and to compare them one by one holds the GIL for some 40 ms. So some
    hundred entries are compared at once: their fields are lanes of 32 bits in one large integer, and the topmost bit of
    a lane is free. Set in the later entry, it is still there after `later - earlier - 1` just if later > earlier.
    """
    view = memoryview(data)
    for at in range(0, len(data), _COMPARED_BYTES):
        part = view[at : at + _COMPARED_BYTES + ENTRY.size]
        fields, later = int.from_bytes(part, "big"), int.from_bytes(part[ENTRY.size :], "big")
        free_bits = _topmost_bits(2 * len(part) // ENTRY.size)
        if fields & free_bits:
            return False
        free_bits >>= 8 * ENTRY.size
        earlier, ones = fields >> 8 * ENTRY.size, free_bits >> 31
        if ((later | free_bits) - earlier - ones) & free_bits != free_bits:
            return False
    return True


@lru_cache(maxsize=8)
def _topmost_bits(fields: int) -> int:
    return int.from_bytes(b"\x80\0\0\0" * fields, "big")


def _columns(data: bytes | bytearray) -> "tuple[array[int], array[int]]":
    """Return the relative offsets, and the positions."""
    fields = array("i", data)
    if sys.byteorder == "little":
        fields.byteswap()
    return fields[0::2], fields[1::2]


def _raise_fault(data: bytes | bytearray, name: str) -> NoReturn:
    relative_offsets, positions = _columns(data)
    _check_column(relative_offsets, "relative offset", 0, name)
    _check_column(positions, "position", ENTRY.size // 2, name)
    raise AssertionError("some field does not ascend, and each by itself does")


def _check_column(values: "array[int]", field: str, field_offset: int, name: str) -> None:
    if values and values[0] < 0:
        raise CorruptObjectError(f"{name}: negative {field} at byte {field_offset}")
    if all(map(lt, values, islice(values, 1, None))):
        return
    culprit = next(number for number in range(1, len(values)) if values[number - 1] >= values[number])
    at_byte = culprit * ENTRY.size + field_offset
    raise CorruptObjectError(f"{name}: {field} does not ascend at byte {at_byte}")
