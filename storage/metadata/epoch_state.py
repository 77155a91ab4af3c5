"""The segments of one leader epoch of one partition (spec/kafka-remote.md §2, §2.3).

- Referenced: first offset in this epoch → row, FINISHED segments only, ascending. What lookups see.
- Unreferenced: rows that lookups do not see: being copied, being deleted, or replaced by a longer segment.
- `highest_offset`: the highest last offset ever FINISHED here; deletion does not lower it. -1: none yet.

A row overwritten at its own first offset by a shorter segment is in neither, as in Kafka.
"""

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Self

from storage.metadata.snapshot_stream import SnapshotReader, SnapshotWriter, UnreadableSnapshotError

_COUNTERS = struct.Struct("<qq")


class EpochState:
    """Not thread-safe."""

    __slots__ = ("_rows", "_start_offsets", "_unreferenced", "finished_segments", "highest_offset")

    def __init__(self) -> None:
        self._start_offsets = array("q")
        self._rows = array("i")
        self._unreferenced: set[int] | None = None
        self.highest_offset = -1
        self.finished_segments = 0
        """Segments in COPY_SEGMENT_FINISHED that have this epoch, referenced or not. The owner counts them."""

    def floor(self, offset: int) -> int:
        """The referenced row with the greatest first offset ≤ offset, or -1."""
        index = bisect_right(self._start_offsets, offset) - 1
        return self._rows[index] if index >= 0 else -1

    def rows(self) -> Iterator[int]:
        """Referenced rows in order, then the others in theirs: a set's own order does not outlive a restart."""
        yield from self._rows
        if self._unreferenced is not None:
            yield from sorted(self._unreferenced)

    @property
    def memory_bytes(self) -> int:
        parts = (self, self._start_offsets, self._rows, self._unreferenced)
        return sum(map(sys.getsizeof, parts))

    def write_to(self, writer: SnapshotWriter) -> None:
        writer.put_numbers(_COUNTERS, self.highest_offset, self.finished_segments)
        writer.put_array(self._start_offsets)
        writer.put_array(self._rows)
        writer.put_array(array("i", sorted(self._unreferenced or ())))

    @classmethod
    def read_from(cls, reader: SnapshotReader, row_count: int) -> Self:
        """What `write_to` wrote.

        Raises:
            UnreadableSnapshotError: rows that are not among row_count, or offsets without rows.
        """
        state = cls()
        state.highest_offset, state.finished_segments = reader.take_numbers(_COUNTERS)
        state._start_offsets = reader.take_array("q")
        state._rows = reader.take_array("i")
        unreferenced = reader.take_array("i")
        state._unreferenced = set(unreferenced) or None
        if len(state._start_offsets) != len(state._rows):
            raise UnreadableSnapshotError("an epoch with offsets that have no segment")
        for rows in (state._rows, unreferenced):
            if rows and (min(rows) < 0 or max(rows) >= row_count):
                raise UnreadableSnapshotError("an epoch with a segment that there is not")
        return state

    def copy_started(self, row: int) -> None:
        """A segment appeared; lookups do not see it yet."""
        self._unreference(row)

    def copy_finished(self, row: int, start_offset: int, last_offset: int) -> None:
        """A segment may be looked up. Those that it covers to the end of the epoch give way to it."""
        start_offsets, rows = self._start_offsets, self._rows
        while start_offsets and start_offsets[-1] >= start_offset and self.highest_offset <= last_offset:
            start_offsets.pop()
            self._unreference(rows.pop())
        index = bisect_left(start_offsets, start_offset)
        if index < len(start_offsets) and start_offsets[index] == start_offset:
            rows[index] = row
        else:
            start_offsets.insert(index, start_offset)
            rows.insert(index, row)
        self.forget(row)
        self.highest_offset = max(self.highest_offset, last_offset)

    def delete_started(self, row: int, start_offset: int) -> None:
        """Lookups no longer see the segment."""
        index = bisect_left(self._start_offsets, start_offset)
        if index < len(self._rows) and self._start_offsets[index] == start_offset and self._rows[index] == row:
            del self._start_offsets[index]
            del self._rows[index]
        self._unreference(row)

    def forget(self, row: int) -> None:
        """Take a row out of the unreferenced ones."""
        if self._unreferenced is not None:
            self._unreferenced.discard(row)
            if not self._unreferenced:
                self._unreferenced = None  # an emptied set keeps its room, and nearly every epoch has none

    def _unreference(self, row: int) -> None:
        if self._unreferenced is None:
            self._unreferenced = set()
        self._unreferenced.add(row)
