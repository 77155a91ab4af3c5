"""The rows of one partition by segment id: open addressing over 4-byte slots.

A dict would take about 150 bytes a segment (key, value and entry); this takes 6 to 16. Probing is linear; ids are
drawn at random, and Python's keyed hash keeps a peer from choosing colliding ones.
"""

import sys
from array import array
from collections.abc import Iterator
from typing import Self

_EMPTY = -1
_DELETED = -2
_SLOTS_MIN = 8


class SegmentTable:
    """`ids` is the id column: 16 bytes a row. Not thread-safe."""

    __slots__ = ("_ids", "_occupied", "_slots", "_used")

    def __init__(self, ids: bytearray) -> None:
        self._ids = ids
        self._slots = array("i", [_EMPTY]) * _SLOTS_MIN
        self._used = 0
        self._occupied = 0
        """Slots that are not empty: `_used` and the deleted ones. Kept at two thirds of the table at most."""

    def __len__(self) -> int:
        return self._used

    def __iter__(self) -> Iterator[int]:
        """The rows, in no order."""
        return (row for row in self._slots if row >= 0)

    @classmethod
    def of_rows(cls, ids: bytearray, rows: "array[int]") -> Self:
        """A table of these rows, made in one go: the hash is another in each process, so it cannot be kept."""
        table = cls(ids)
        table._fill(rows)
        return table

    @property
    def memory_bytes(self) -> int:
        return sys.getsizeof(self) + sys.getsizeof(self._slots)

    def find(self, segment_id: bytes) -> int:
        """The row with this id, or -1."""
        slot = self._slot_of(segment_id)
        return self._slots[slot] if slot >= 0 else -1

    def add(self, segment_id: bytes, row: int) -> None:
        """Add a row whose id is not in the table yet."""
        if (self._occupied + 1) * 3 > len(self._slots) * 2:
            self._rebuild()
        mask = len(self._slots) - 1
        slot = hash(segment_id) & mask
        while self._slots[slot] >= 0:
            slot = (slot + 1) & mask
        self._occupied += self._slots[slot] == _EMPTY
        self._slots[slot] = row
        self._used += 1

    def remove(self, segment_id: bytes) -> None:
        """Remove the row with this id, if there is one."""
        slot = self._slot_of(segment_id)
        if slot >= 0:
            self._slots[slot] = _DELETED
            self._used -= 1

    def _slot_of(self, segment_id: bytes) -> int:
        slots = self._slots
        mask = len(slots) - 1
        slot = hash(segment_id) & mask
        while (row := slots[slot]) != _EMPTY:
            if row >= 0 and self._ids[row * 16 : row * 16 + 16] == segment_id:
                return slot
            slot = (slot + 1) & mask
        return -1

    def _rebuild(self) -> None:
        """Drop the deleted slots; the next table is at most half full, and smaller if much was deleted."""
        self._fill(array("i", self))

    def _fill(self, rows: "array[int]") -> None:
        size = _SLOTS_MIN
        while size < (len(rows) + 1) * 2:
            size *= 2
        ids, mask = self._ids, size - 1
        self._slots = slots = array("i", [_EMPTY]) * size
        for row in rows:
            slot = hash(bytes(ids[row * 16 : row * 16 + 16])) & mask
            while slots[slot] >= 0:
                slot = (slot + 1) & mask
            slots[slot] = row
        self._used = self._occupied = len(rows)
