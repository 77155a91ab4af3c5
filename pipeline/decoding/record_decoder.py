"""Kafka's record batches as Arrow RecordBatches, without a Python call for a record or a field.

    decoder = RecordDecoder(options, "orders", 0, where="tiered/…/00000000000000000000.log")
    for rows in decoder.decode(batches, first_offset=0, end_offset=100):
        ...

How: batches are inflated side by side into one buffer (a group), the positions of their records are found in
lockstep (pipeline.decoding.record_starts), the fields of all records are read at once
(pipeline.decoding.record_fields), and Arrow copies keys and values out of the buffer (pipeline.decoding.arrow_columns).

Rules:
1. Memory: a group has at most a quarter of `task_bytes_max` inflated, and a record for each of its KiB (RECORDS_MAX),
   with about 200 bytes of arrays each; a produced batch an eighth and as many rows, or one record. With 64 MiB that
   was measured to be 40 MiB at most. A batch that is larger than a group is decoded piece by piece. A record that is
   larger is a RecordTooLargeError that names `taskBytes`.
2. Columns that are not wanted are not decoded. Control batches, and batches that are wholly outside the offsets or
   older than the timestamps, are not even inflated.
3. A corrupt batch is a CorruptObjectError that names `where` and the batch's position, the first one of a group. With
   `skips_bad_records` and `on_bad`, that batch alone is left out, whole, and `on_bad` gets it.
4. Rows are in order of offset as the batches are. A timestamp that Spark cannot have makes its batch corrupt, if it
   would be a row: the Kafka source fails there too.

CRCs are the scan's to check. Synchronous; a decoder belongs to one thread at a time.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import NoReturn

import numpy as np
import pyarrow as pa

from pipeline.decoding.arrow_columns import TIMESTAMP_MS_MAX, TIMESTAMP_MS_MIN, ColumnBuilder
from pipeline.decoding.inflation import Inflater, RecordTooLargeError, inflate_pieces, refuse_large
from pipeline.decoding.legacy_messages import iterate_message_tables
from pipeline.decoding.record_fields import Lanes, Problems, RecordTable, Wants, read_records
from pipeline.decoding.record_starts import read_length, walk
from pipeline.decoding.varint_lanes import PADDING_BYTES, Bytes, Flags
from pipeline.schema import HEADERS
from pipeline.tasks import ReadOptions
from protocol.record_batches import COMPRESSION_MASK, HEADER_BYTES, BatchHeader
from storage.errors import CorruptObjectError
from storage.log.batch_records import PIECE_BYTES
from storage.log.log_walk import WalkedBatch

# Which records are rows: offsets in a range, timestamps within bounds.
#
# Batches are left out by their headers where that is certain: a v2 batch and a v1 message say their largest timestamp,
# but not their smallest; the offset of a v0 or v1 message is the last one in it.


class RowSelection:
    """The bounds of one call: offsets in [first_offset, end_offset), and the options' timestamps."""

    def __init__(self, options: ReadOptions, first_offset: int, end_offset: int, *, must_fit: bool) -> None:
        """`must_fit`: timestamps will be Spark's, which end at ±292,277 years."""
        self._first_offset, self._end_offset = first_offset, end_offset
        self._min_ms, self._max_ms = options.timestamp_min_ms, options.timestamp_max_ms
        self._must_fit = must_fit

    def may_hold(self, header: BatchHeader) -> bool:
        """Return whether a batch may have rows."""
        if header.is_control or header.last_offset < self._first_offset:
            return False
        if header.magic >= 2 and header.base_offset >= self._end_offset:
            return False
        return self._min_ms is None or header.max_timestamp >= self._min_ms

    def keep(self, table: RecordTable) -> tuple[Flags | None, Problems]:
        """Which records are rows, None for all; and the batches with a row whose timestamp Spark cannot have."""
        offset, timestamp = table.offset, table.timestamp
        keep: Flags | None = None
        if offset.min() < self._first_offset or offset.max() >= self._end_offset:
            keep = (offset >= self._first_offset) & (offset < self._end_offset)
        for bound, is_within in ((self._min_ms, np.greater_equal), (self._max_ms, np.less_equal)):
            if bound is not None and timestamp is not None:
                flags = is_within(timestamp, bound)
                keep = flags if keep is None else keep & flags
        problems: Problems = {}
        if timestamp is not None and self._must_fit and not _all_fit(table):
            is_wrong = (timestamp < TIMESTAMP_MS_MIN) | (timestamp > TIMESTAMP_MS_MAX)
            for record in np.flatnonzero(is_wrong if keep is None else is_wrong & keep).tolist():
                problems.setdefault(int(table.lane[record]), f"a timestamp of {timestamp[record]} ms")
        return keep, problems


def _all_fit(table: RecordTable) -> bool:
    timestamp = table.timestamp
    return timestamp is None or bool(timestamp.min() >= TIMESTAMP_MS_MIN and timestamp.max() <= TIMESTAMP_MS_MAX)


# One batch that is too large to be inflated as a whole, or that cannot be: decoded piece by piece.
#
# A piece is as many whole records as a buffer holds; what is left of the last one is moved to the front. Checks are
# those of pipeline.decoding.record_fields, and go on from piece to piece. What storage.log.batch_records finds wrong is
# said from here.


def iterate_tables(
    header: BatchHeader, batch: memoryview, wants: Wants, data: Bytes, records_max: int
) -> Iterator[RecordTable]:
    """The records of a batch of v2, some at a time.

    Args:
        data: a buffer to work in; a table refers to it until the next one is asked for.

    Raises:
        CorruptObjectError: while iterating; says what is wrong, not where.
        RecordTooLargeError: while iterating: one has more bytes than the buffer.
    """
    buffer = _Buffer(inflate_pieces(header.attributes & COMPRESSION_MASK, batch[HEADER_BYTES:]), data)
    lanes = Lanes.of([header], [0], [0])
    done, previous_delta = 0, -1
    while done < header.record_count:
        buffer.fill()
        starts, stop = walk(buffer.view, 0, buffer.filled, min(header.record_count - done, records_max))
        if not starts:
            buffer.refuse()
        table, problems = read_records(
            data,
            replace(
                lanes, count=np.array([len(starts)]), end=np.array([stop]), previous_delta=np.array([previous_delta])
            ),
            wants,
            np.frombuffer(starts, np.int64),
        )
        if table is None:
            raise CorruptObjectError(f"{problems[0]}, counted from record {done}")
        yield table
        done += len(starts)
        previous_delta = int(table.offset[-1]) - header.base_offset
        buffer.drop(stop)
    if not buffer.is_at_end():
        raise CorruptObjectError("its records do not fill it exactly")


class _Buffer:
    """The bytes that have been inflated and not been decoded yet."""

    def __init__(self, pieces: Iterator[bytes], data: Bytes) -> None:
        self._pieces, self._data = pieces, data
        self._next = b""
        self.view = data.data
        self.filled = 0

    def fill(self) -> None:
        room = len(self._data) - PADDING_BYTES
        while True:
            self._next = self._next or next(self._pieces, b"")
            size = min(len(self._next), room - self.filled)
            if not size:
                return
            self.view[self.filled : self.filled + size] = self._next[:size]
            self.filled, self._next = self.filled + size, self._next[size:]

    def drop(self, size: int) -> None:
        self._data[: self.filled - size] = self._data[size : self.filled].copy()
        self.filled -= size

    def is_at_end(self) -> bool:
        return not self.filled and not self._next and not next(self._pieces, b"")

    def refuse(self) -> NoReturn:
        """Raise why no whole record is in the buffer, although it is full or all has been inflated."""
        self.view[self.filled : self.filled + PADDING_BYTES] = bytes(PADDING_BYTES)
        length, body = read_length(self.view, 0)
        refuse_large(body + length, self.filled + len(self._next), self._pieces)


# Batches inflated side by side into one buffer, as long as there is room.
#
# The buffer is used again for the next group, so nothing may refer to it when `clear` is called. Its first pages are
# the operating system's zeros until they are written: a group that stays small costs little.


class BatchGroup:
    """At most `bytes_max` of inflated records, and `records_max` of them."""

    def __init__(self, bytes_max: int, records_max: int) -> None:
        self._bytes_max, self._records_max = bytes_max, records_max
        self.data = np.zeros(bytes_max + PADDING_BYTES, np.uint8)
        self._inflater = Inflater()
        self.batches: list[WalkedBatch] = []
        self._first: list[int] = []
        self._end: list[int] = []
        self._used_bytes = self._records = 0

    def add(self, batch: WalkedBatch) -> bool:
        """Return whether there was room for a batch of v2, and its bytes could be inflated."""
        header = batch.header
        room = self.data[self._used_bytes : self._bytes_max]
        payload = batch.data[HEADER_BYTES:]
        # Hardly anything gets smaller by being inflated, and what does is tried again in a group of its own.
        if self._records + header.record_count > self._records_max or len(payload) >= len(room):
            return False
        size = self._inflater.inflate_into(header.attributes & COMPRESSION_MASK, payload, room)
        if size is None:
            return False
        if size or header.record_count:
            self.batches.append(batch)
            self._first.append(self._used_bytes)
            self._used_bytes += size
            self._end.append(self._used_bytes)
            self._records += header.record_count
        return True

    def lanes(self) -> Lanes:
        """The numbers of the batches, in order."""
        return Lanes.of([batch.header for batch in self.batches], self._first, self._end)

    def keep(self, places: list[int]) -> None:
        """Leave out all batches but these."""
        self.batches = [self.batches[place] for place in places]
        self._first = [self._first[place] for place in places]
        self._end = [self._end[place] for place in places]

    def clear(self) -> None:
        """Begin again."""
        self.keep([])
        self._used_bytes = self._records = 0


RECORDS_MAX = 65_536
"""Records in a group, and rows in a produced batch, where the task has the usual memory; fewer where it has less."""

RECORDS_MIN = 1024

GROUP_BYTES_MIN, GROUP_BYTES_MAX = 4 * PIECE_BYTES, 256 * 1024 * 1024
"""A quarter of `task_bytes_max` is kept within these; Arrow's own limit for a column is above."""

OnBad = Callable[[int, int, str], None]
"""Told of each batch that was left out: position, size in bytes, reason."""


class RecordDecoder:
    """Decodes batches of one topic partition."""

    def __init__(
        self, options: ReadOptions, topic: str, partition: int, *, where: str, on_bad: OnBad | None = None
    ) -> None:
        """
        Args:
            where: names the object in errors.
            on_bad: without it, or without `options.skips_bad_records`, a corrupt batch is an error.
        """
        columns = options.columns
        self._options = options
        self.begin_object(where, on_bad)
        self._group_bytes_max = min(max(options.task_bytes_max // 4, GROUP_BYTES_MIN), GROUP_BYTES_MAX)
        self._records_max = min(RECORDS_MAX, max(options.task_bytes_max // 1024, RECORDS_MIN))
        self._has_timestamp = "timestamp" in columns
        bounds = (options.timestamp_min_ms, options.timestamp_max_ms)
        self._wants = Wants(
            timestamp=self._has_timestamp or bounds != (None, None),
            key="key" in columns,
            value="value" in columns,
            headers=HEADERS in columns,
        )
        self._copies_bytes = self._wants.key or self._wants.value or self._wants.headers
        self._builder = ColumnBuilder(columns, topic, partition)
        self._spare_group: BatchGroup | None = None
        """Its pages are the decoder's already: a fresh one made decoding 5 to 14 % slower."""

    def begin_object(self, where: str, on_bad: OnBad | None) -> None:
        """Begin another object of the partition. The arguments are the constructor's."""
        self._where = where
        self._on_bad = on_bad if self._options.skips_bad_records else None

    def decode(self, batches: Sequence[WalkedBatch], *, first_offset: int, end_offset: int) -> Iterator[pa.RecordBatch]:
        """The rows of the batches with offsets in [first_offset, end_offset), within the options' timestamps.

        Raises:
            CorruptObjectError: while iterating; see rule 3.
            RecordTooLargeError: while iterating.
        """
        selection = RowSelection(self._options, first_offset, end_offset, must_fit=self._has_timestamp)
        # Taken, so that a call that was not iterated to its end does not share it with the next one.
        group, self._spare_group = self._spare_group, None
        if group is None:
            group = BatchGroup(self._group_bytes_max, self._records_max)
        yield from self._decode(batches, selection, group)
        self._spare_group = group

    def _decode(
        self, batches: Sequence[WalkedBatch], selection: RowSelection, group: BatchGroup
    ) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if not selection.may_hold(batch.header):
                continue
            if batch.header.magic < 2:
                yield from self._grouped(group, selection)
                tables = partial(
                    iterate_message_tables, batch.header, batch.data, self._group_bytes_max, self._records_max
                )
                yield from self._alone(batch, tables, selection)
            elif not group.add(batch):
                yield from self._grouped(group, selection)
                if not group.add(batch):
                    tables = partial(
                        iterate_tables, batch.header, batch.data, self._wants, group.data, self._records_max
                    )
                    yield from self._alone(batch, tables, selection)
        yield from self._grouped(group, selection)

    def _grouped(self, group: BatchGroup, selection: RowSelection) -> Iterator[pa.RecordBatch]:
        """The rows of a group, which is empty afterwards."""
        bad: list[tuple[WalkedBatch, str]] = []
        while group.batches:
            table, problems = read_records(group.data, group.lanes(), self._wants)
            keep = None
            if table is not None:
                keep, problems = selection.keep(table)
            if table is not None and not problems:
                yield from self._rows(table, keep)
                break
            bad += self._leave_out(group, problems)
        for batch, reason in sorted(bad, key=lambda one: one[0].position):
            self._refuse(batch, reason)
        group.clear()

    def _leave_out(self, group: BatchGroup, problems: Problems) -> list[tuple[WalkedBatch, str]]:
        """Take the bad batches out of the group; where the first one is an error, also those behind it."""
        bad = [(group.batches[place], reason) for place, reason in problems.items()]
        places = range(len(group.batches) if self._on_bad is not None else min(problems))
        group.keep([place for place in places if place not in problems])
        return bad

    def _alone(
        self, batch: WalkedBatch, iterate: Callable[[], Iterator[RecordTable]], selection: RowSelection
    ) -> Iterator[pa.RecordBatch]:
        """The rows of a batch that comes as several tables."""
        try:
            if self._on_bad is not None:
                # All of it is looked at before any of it is a row.
                for table in iterate():
                    self._select(selection, table)
            for table in iterate():
                yield from self._rows(table, self._select(selection, table))
        except CorruptObjectError as error:
            self._refuse(batch, str(error))
        except RecordTooLargeError as error:
            raise RecordTooLargeError(
                f"{self._where}: the batch at {batch.position}: {error}; with taskBytes = "
                f"{self._options.task_bytes_max} it may have {self._group_bytes_max}"
            ) from error

    def _select(self, selection: RowSelection, table: RecordTable) -> Flags | None:
        keep, problems = selection.keep(table)
        if problems:
            raise CorruptObjectError(problems[0])
        return keep

    def _rows(self, table: RecordTable, keep: Flags | None) -> Iterator[pa.RecordBatch]:
        """The records as RecordBatches, cut where they hold enough."""
        chosen = None if keep is None or keep.all() else np.flatnonzero(keep)
        sizes = table.size if chosen is None else table.size[chosen]
        until = np.cumsum(sizes)
        bytes_max = self._group_bytes_max // 2
        start = 0
        while start < len(sizes):
            end = len(sizes)
            if self._copies_bytes:
                before = int(until[start - 1]) if start else 0
                end = max(int(np.searchsorted(until, before + bytes_max, "right")), start + 1)
            end = min(end, start + self._records_max)
            rows = slice(start, end) if chosen is None else chosen[start:end]
            yield self._builder.build(table, rows, end - start)
            start = end

    def _refuse(self, batch: WalkedBatch, reason: str) -> None:
        if self._on_bad is None:
            offset = batch.header.base_offset
            raise CorruptObjectError(f"{self._where}: the batch at {batch.position}, of offset {offset}: {reason}")
        self._on_bad(batch.position, batch.header.size_bytes, reason)
