"""The segments of one leader epoch of one partition (docs/kafka-tier.md#states, docs/kafka-tier.md#overlap).

- Referenced: first offset in this epoch → row, FINISHED segments only, ascending. What lookups see.
- Unreferenced: rows that lookups do not see: being copied, being deleted, or replaced by a longer segment.
- `highest_offset`: the highest last offset ever FINISHED here; deletion does not lower it. -1: none yet.

A row overwritten at its own first offset by a shorter segment is in neither, as in Kafka.

Look-ups by time pass over the referenced rows in blocks, by an upper bound of each block's times and end offsets. The
bounds are made when they are first asked for. A change in the middle has them made again from there on; a row that
leaves at either end does not: a bound that is too high is still one.

The seams say whether rows follow on each other without a hole: where a row begins that does not simply go on
where the one before it ended, or that has another epoch besides. They are few, and kept as the bounds are.
"""

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Self

from storage.metadata.snapshot_stream import SnapshotReader, SnapshotWriter, UnreadableSnapshotError

if TYPE_CHECKING:
    from storage.metadata.segment_table import SegmentColumns

_COUNTERS = struct.Struct("<qq")

BLOCK_ROWS = 256
"""Rows with one bound: of 100,000 segments, 400 bounds are looked at and then a block or two of rows."""


class EpochState:
    """Not thread-safe."""

    __slots__ = ("_bounds", "_rows", "_seams", "_start_offsets", "_unreferenced", "finished_segments", "highest_offset")

    def __init__(self) -> None:
        self._start_offsets = array("q")
        self._rows = array("i")
        self._unreferenced: set[int] | None = None
        self._bounds: _Bounds | None = None
        self._seams: _Seams | None = None
        self.highest_offset = -1
        self.finished_segments = 0
        """Segments in COPY_SEGMENT_FINISHED that have this epoch, referenced or not. The owner counts them."""

    def floor(self, offset: int) -> int:
        """The referenced row with the greatest first offset ≤ offset, or -1."""
        index = bisect_right(self._start_offsets, offset) - 1
        return self._rows[index] if index >= 0 else -1

    @property
    def start_offset(self) -> int | None:
        """The first offset in this epoch of any FINISHED segment; None without one."""
        return self._start_offsets[0] if self._start_offsets else None

    def rows(self) -> Iterator[int]:
        """Referenced rows in order, then the others in theirs: a set's own order does not outlive a restart."""
        yield from self._rows
        if self._unreferenced is not None:
            yield from sorted(self._unreferenced)

    def referenced_reaching(
        self, end_offsets: Sequence[int], times_ms: Sequence[int], end_offset_min: int, time_ms_min: int
    ) -> Iterator[int]:
        """The referenced rows, in order, that reach both. The sequences are by row; a row's entry never changes."""
        if self._bounds is None:
            self._bounds = _Bounds()
        for first, end in self._bounds.blocks_reaching(self._rows, end_offsets, times_ms, end_offset_min, time_ms_min):
            for row in self._rows[first:end]:
                if end_offsets[row] >= end_offset_min and times_ms[row] >= time_ms_min:
                    yield row

    def chain_end(
        self, epoch: int, offset: int, end: int, columns: "SegmentColumns", accepts: Callable[[int], bool]
    ) -> int:
        """Up to where, `end` at most, accepted rows hold every offset from `offset` on; `offset` if none holds it."""
        row = self.floor(offset)
        if row < 0 or columns.last_offset_of_epoch(row, epoch) < offset or not accepts(row):
            return offset
        if self._seams is None:
            self._seams = _Seams()
        for start in self._seams.between(offset, end, epoch, self._start_offsets, self._rows, columns):
            index = bisect_left(self._start_offsets, start)
            reached = columns.last_offset_of_epoch(self._rows[index - 1], epoch) + 1
            if reached < start or not accepts(self._rows[index]):
                return min(reached, start)
        index = bisect_left(self._start_offsets, end) - 1
        if not accepts(self._rows[index]):
            return max(offset, self._start_offsets[index])
        return min(columns.last_offset_of_epoch(self._rows[index], epoch) + 1, end)

    def unreferenced(self) -> Iterator[int]:
        """The other rows, in no order."""
        return iter(self._unreferenced or ())

    @property
    def memory_bytes(self) -> int:
        parts = (self, self._start_offsets, self._rows, self._unreferenced)
        made = (self._bounds, self._seams)
        return sum(map(sys.getsizeof, parts)) + sum(each.memory_bytes for each in made if each is not None)

    def write_to(self, writer: SnapshotWriter) -> None:
        writer.put_numbers(_COUNTERS, self.highest_offset, self.finished_segments)
        writer.put_array(self._start_offsets)
        writer.put_array(self._rows)
        writer.put_array(array("i", sorted(self._unreferenced or ())))

    @classmethod
    def read_from(cls, reader: SnapshotReader, row_count: int) -> Self:
        """Return what `write_to` wrote.

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
            self._changed_at(len(rows))
        index = bisect_left(start_offsets, start_offset)
        if index < len(start_offsets) and start_offsets[index] == start_offset:
            rows[index] = row
        else:
            start_offsets.insert(index, start_offset)
            rows.insert(index, row)
        self._changed_at(index)
        self.forget(row)
        self.highest_offset = max(self.highest_offset, last_offset)

    def delete_started(self, row: int, start_offset: int) -> None:
        """Lookups no longer see the segment."""
        index = bisect_left(self._start_offsets, start_offset)
        if index < len(self._rows) and self._start_offsets[index] == start_offset and self._rows[index] == row:
            del self._start_offsets[index]
            del self._rows[index]
            if index == 0:
                self._first_row_left()
            else:
                self._changed_at(index)
        self._unreference(row)

    def forget(self, row: int) -> None:
        """Take a row out of the unreferenced ones."""
        if self._unreferenced is not None:
            self._unreferenced.discard(row)
            if not self._unreferenced:
                self._unreferenced = None  # an emptied set keeps its room, and nearly every epoch has none

    def _first_row_left(self) -> None:
        if self._bounds is not None:
            self._bounds.first_row_left()

    def _changed_at(self, index: int) -> None:
        if self._bounds is not None:
            self._bounds.rows_changed_from(index)
        if self._seams is not None:
            self._seams.forget_above(self._start_offsets[index - 1] if index else -1)

    def _unreference(self, row: int) -> None:
        if self._unreferenced is None:
            self._unreferenced = set()
        self._unreferenced.add(row)


class _Bounds:
    """Upper bounds for blocks of BLOCK_ROWS rows; the first block has lost `_gone` of its rows since it was made."""

    __slots__ = ("_covered", "_end_offsets", "_gone", "_times_ms")

    def __init__(self) -> None:
        self._end_offsets = array("q")
        self._times_ms = array("q")
        self._gone = 0
        self._covered = 0
        """How many rows are in the blocks, those that are gone among them."""

    @property
    def memory_bytes(self) -> int:
        return sum(map(sys.getsizeof, (self, self._end_offsets, self._times_ms)))

    def first_row_left(self) -> None:
        if not self._covered:
            return
        self._gone += 1
        if self._gone == BLOCK_ROWS:
            del self._end_offsets[0], self._times_ms[0]
            self._gone = 0
            self._covered -= BLOCK_ROWS

    def rows_changed_from(self, index: int) -> None:
        self._covered = min(self._covered, self._gone + index)

    def blocks_reaching(
        self,
        rows: Sequence[int],
        end_offsets: Sequence[int],
        times_ms: Sequence[int],
        end_offset_min: int,
        time_ms_min: int,
    ) -> Iterator[tuple[int, int]]:
        """The first index and the end of each block that may have a row which reaches both."""
        self._cover(rows, end_offsets, times_ms)
        for number, (end_offset, time_ms) in enumerate(zip(self._end_offsets, self._times_ms, strict=True)):
            if end_offset >= end_offset_min and time_ms >= time_ms_min:
                first = number * BLOCK_ROWS - self._gone
                yield max(first, 0), first + BLOCK_ROWS

    def _cover(self, rows: Sequence[int], end_offsets: Sequence[int], times_ms: Sequence[int]) -> None:
        whole_blocks, rest = divmod(self._covered, BLOCK_ROWS)
        kept = whole_blocks + (rest > 0)
        del self._end_offsets[kept:], self._times_ms[kept:]
        while self._covered < self._gone + len(rows):
            number, within = divmod(self._covered, BLOCK_ROWS)
            first = self._covered - self._gone
            block = rows[first : first + BLOCK_ROWS - within]
            end_offset = max(map(end_offsets.__getitem__, block))
            time_ms = max(map(times_ms.__getitem__, block))
            if within:
                self._end_offsets[number] = max(self._end_offsets[number], end_offset)
                self._times_ms[number] = max(self._times_ms[number], time_ms)
            else:
                self._end_offsets.append(end_offset)
                self._times_ms.append(time_ms)
            self._covered += len(block)


class _Seams:
    """First offsets of the rows that do not simply follow on the row before; of rows up to `_known_to`. Those of rows
    that have left at the beginning do no harm."""

    __slots__ = ("_known_to", "_offsets")

    def __init__(self) -> None:
        self._offsets = array("q")
        self._known_to = -1

    @property
    def memory_bytes(self) -> int:
        return sum(map(sys.getsizeof, (self, self._offsets)))

    def forget_above(self, offset: int) -> None:
        if offset < self._known_to:
            self._known_to = offset
            del self._offsets[bisect_right(self._offsets, offset) :]

    def between(
        self,
        offset: int,
        end: int,
        epoch: int,
        start_offsets: Sequence[int],
        rows: Sequence[int],
        columns: "SegmentColumns",
    ) -> Sequence[int]:
        """Those above `offset` and below `end`."""
        for index in range(bisect_right(start_offsets, self._known_to), len(rows)):
            start, row = start_offsets[index], rows[index]
            if columns.has_more_epochs(row) or (
                index and columns.last_offset_of_epoch(rows[index - 1], epoch) + 1 < start
            ):
                self._offsets.append(start)
            self._known_to = start
        return self._offsets[bisect_right(self._offsets, offset) : bisect_left(self._offsets, end)]
