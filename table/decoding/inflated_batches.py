"""Batches inflated side by side into one buffer, as long as there is room.

The buffer is used again for the next group, so nothing may refer to it when `clear` is called. Its first pages are
the operating system's zeros until they are written: a group that stays small costs little.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby

import numpy as np
import pyarrow as pa

from protocol.record_batches import COMPRESSION_MASK, HEADER_BYTES, BatchHeader
from storage.errors import CorruptObjectError
from storage.log.inflating import PIECE_BYTES
from storage.log.log_walk import WalkedBatch
from table.decoding.arrow_columns import ColumnBuilder
from table.decoding.inflation import NONE, Inflater, RecordTooLargeError
from table.decoding.large_batch import iterate_tables
from table.decoding.legacy_messages import iterate_message_tables
from table.decoding.record_decoder import RowSelection
from table.decoding.record_fields import Lanes, Problems, RecordTable, Wants, read_records, told_records
from table.decoding.varint_lanes import PADDING_BYTES, Flags
from table.schema import HEADERS
from table.tasks import ReadOptions


class BatchGroup:
    """At most `bytes_max` of inflated records, and `records_max` of them."""

    def __init__(self, bytes_max: int, records_max: int) -> None:
        self._bytes_max, self._records_max = bytes_max, records_max
        self.data = np.zeros(bytes_max + PADDING_BYTES, np.uint8)
        self._view = self.data.data
        self._inflater = Inflater()
        self.batches: list[WalkedBatch] = []
        self._first: list[int] = []
        self._end: list[int] = []
        self._used_bytes = self._records = 0

    def add(self, batch: WalkedBatch) -> bool:
        """Return whether there was room for a batch of v2, and its bytes could be inflated."""
        header = batch.header
        records, used = self._records + header.record_count, self._used_bytes
        payload = batch.data[HEADER_BYTES:]
        size = len(payload)
        # Hardly anything gets smaller by being inflated, and what does is tried again in a group of its own.
        if records > self._records_max or used + size >= self._bytes_max:
            return False
        codec = header.attributes & COMPRESSION_MASK
        if codec == NONE:
            self._view[used : used + size] = payload
        else:
            inflated = self._inflater.inflate_into(codec, payload, self.data[used : self._bytes_max])
            if inflated is None:
                return False
            size = inflated
        if size or header.record_count:
            self.batches.append(batch)
            self._first.append(used)
            self._used_bytes = used + size
            self._end.append(used + size)
            self._records = records
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
        self._builder = ColumnBuilder(columns, topic, partition)
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
        self._needs_records = self._wants.timestamp or self._copies_bytes or "size_bytes" in columns
        self._spare_group: BatchGroup | None = None
        """Its pages are the decoder's already: a fresh one made decoding 5 to 14 % slower."""

    def begin_object(self, where: str, on_bad: OnBad | None, segment_id: str | None = None) -> None:
        """Begin another object of the partition; None: it is no segment. The other arguments are the constructor's."""
        self._builder.begin_segment(segment_id)
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
        held = (batch for batch in batches if selection.may_hold(batch.header))
        if self._needs_records:
            yield from self._inflated(held, selection, group)
            return
        for is_told, run in groupby(held, self._is_told):
            if is_told:
                headers = [batch.header for batch in run]
                for table in told_records(headers, self._records_max):
                    yield from self._rows(table, self._select(selection, table), headers)
            else:
                yield from self._inflated(run, selection, group)

    def _is_told(self, batch: WalkedBatch) -> bool:
        """Return whether its header tells all that is wanted of its records."""
        header = batch.header
        return header.magic >= 2 and 0 < header.record_count == header.last_offset_delta + 1

    def _inflated(
        self, batches: Iterable[WalkedBatch], selection: RowSelection, group: BatchGroup
    ) -> Iterator[pa.RecordBatch]:
        for batch in batches:
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
                yield from self._rows(table, keep, [batch.header for batch in group.batches])
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
                yield from self._rows(table, self._select(selection, table), [batch.header])
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

    def _rows(self, table: RecordTable, keep: Flags | None, headers: Sequence[BatchHeader]) -> Iterator[pa.RecordBatch]:
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
            yield self._builder.build(table, rows, end - start, headers)
            start = end

    def _refuse(self, batch: WalkedBatch, reason: str) -> None:
        if self._on_bad is None:
            offset = batch.header.base_offset
            raise CorruptObjectError(f"{self._where}: the batch at {batch.position}, of offset {offset}: {reason}")
        self._on_bad(batch.position, batch.header.size_bytes, reason)
