"""Reading a task's parts of segments: where a scan begins, what it leaves out, what it holds.

`table.decoding.record_decoder` makes rows of the batches. With `badRecords=skip` a batch that cannot be used is
counted and left out (`bad_records`).

A task has the batches that begin in [start_position, end_position), wherever these positions lie: neighbours give
each batch just once, whatever the indexes say. Indexes only tell where to begin reading:
1. The scan begins at an entry of the offset index. That is safe if a good batch stands there that does not begin
   behind start_position, or has no offset behind the first that is wanted. Otherwise it begins at the segment's
   start, which costs time and nothing else. The same goes for an index that is absent or corrupt.
2. A lower bound of timestamps raises the first offset that is wanted, by the time index: no record up to an entry's
   offset is newer than the entry's timestamp.
What the scan comes by before start_position is not the task's: neither its batches nor its bad ones.

While a segment is read, threads open the next one and fetch its first pieces, as soon as all of this one is under way:
a store's time to the first byte is waited for once a task, not once a segment.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Self, TypeAlias, TypeVar

import pyarrow as pa
import structlog

from protocol.record_batches import BatchHeader
from storage.errors import CorruptObjectError, RemoteResourceNotFoundError, RemoteStoreNotFoundError
from storage.indexes.offset_index import OffsetIndex
from storage.indexes.time_index import TimeIndex
from storage.log.log_walk import BatchTooLargeError, Depth, LogWalk, PassedOver, WalkedBatch
from storage.log.segment_scan import GetsAhead, LogWindow
from storage.model import IndexType, TopicIdPartition, uuid_to_text
from storage.object_store.retries import call_with_retries
from storage.remote_storage_manager import OpenedSegment, SegmentOpener
from table.decoding.inflated_batches import RecordDecoder
from table.planning.partition_view import OffsetRange
from table.reading.left_out import BadBatch, BadRecords
from table.reading.lost_to_retention import LostToRetention
from table.tasks import AbortedTransaction, ReadOptions, SegmentTask

if TYPE_CHECKING:
    from concurrent.futures import Future

T = TypeVar("T")

KIB = 1024
PIECE_BYTES_MIN = 64 * KIB
GETS_AHEAD_MAX = 8

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


def read_segments(
    manager: SegmentOpener,
    parts: Sequence[SegmentTask],
    options: ReadOptions,
    log_start: Callable[[TopicIdPartition], int] | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows of a task's parts, which are of one partition, in order of offset. Closing it ends the GETs under way.

    Let go of an Arrow batch before asking for the next: both would count towards options.task_bytes_max.

    Args:
        log_start: asks where the log starts now, when an object is missing; None: that is an error.

    Raises:
        OffsetBoundsError: retention took a segment meanwhile; only if options.fails_on_data_loss.
        CorruptObjectError: a batch or the object is corrupt; names segment and position. Only unless
            options.skips_bad_records.
        RemoteStorageError: a segment cannot be read, a batch is too large for the task's memory, or the bad records
            cannot be written.
        RecordTooLargeError: so is a record.
    """
    if not parts:
        return
    partition = parts[0].segment.topic_id_partition
    # One for all: it keeps memory that it has touched.
    decoder = RecordDecoder(options, partition.topic, partition.partition, where=str(partition))
    lost = log_start and LostToRetention(
        f"{partition.topic}-{partition.partition}",
        partial(log_start, partition),
        fails_on_data_loss=options.fails_on_data_loss,
    )
    with closing(GetsAhead(GETS_AHEAD_MAX, options.task_bytes_max // 4)) as gets:
        for segment, opening in SegmentsInTurn(manager, parts, options, gets):
            try:
                opening.result()
                yield from _rows_of(segment, decoder, options)
            except RemoteResourceNotFoundError as error:
                if lost is None or isinstance(error, RemoteStoreNotFoundError):
                    raise
                behind = segment.task.segment.end_offset + 1
                rest = OffsetRange(segment.reached_offset, min(segment.task.end_offset, behind))
                lost.skip(rest, error, deleted_below=behind)


def _rows_of(segment: "SegmentBatches", decoder: RecordDecoder, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    task, bad = segment.task, segment.bad
    decoder.begin_object(
        f"segment {task.segment.segment_id}",
        lambda position, size_bytes, reason: bad.add(BadBatch(position, size_bytes, reason)),
        uuid_to_text(task.segment.segment_id.id),
    )
    try:
        for batches in segment:
            yield from decoder.decode(batches, first_offset=task.first_offset, end_offset=task.end_offset)
            segment.reached_offset = batches[-1].header.last_offset + 1
            batches.clear()
    finally:
        bad.finish(options.bad_records_path)


class SegmentsInTurn:
    """Iterates the parts of a task, each with its opening, whose result is waited for before it is read. While one is
    read, those behind it are begun where `gets` has room.
    """

    def __init__(
        self, manager: SegmentOpener, parts: Sequence[SegmentTask], options: ReadOptions, gets: GetsAhead
    ) -> None:
        self._gets = gets
        self._unopened = deque(
            SegmentBatches(manager, part, options, BadRecords(part), gets, self._fetch_ahead) for part in parts
        )
        self._opening: deque[_Opening] = deque()

    def __iter__(self) -> Iterator["_Opening"]:
        while self._opening or self._unopened:
            if not self._opening:
                self._open_next()
            yield self._opening.popleft()

    def _fetch_ahead(self) -> None:
        """All of the segment that is read is under way. What is wrong with another one is raised in its turn."""
        begun_soon = 0
        for part, opening in self._opening:
            if not opening.done():
                begun_soon += part.gets_expected
            elif opening.exception() is not None or not part.fetch_ahead():
                return
        while self._unopened and self._gets.has_room(begun_soon):
            part, opening = self._open_next()
            begun_soon += 0 if opening.done() else part.gets_expected

    def _open_next(self) -> "_Opening":
        part = self._unopened.popleft()
        self._opening.append((part, self._gets.run(part.open)))
        return self._opening[-1]


_Opening: TypeAlias = "tuple[SegmentBatches, Future[SegmentBatches]]"


class SegmentBatches:
    """One part of a task. Once it is `open`, iterates groups of its batches, in order. What may have no row is left
    out.

    Drop a group before asking for the next one. A window of the log takes 1/16 of `options.task_bytes_max`, the GETs
    ahead of it (and of the segments behind it) 1/4 with what a format's decoder holds (or one GET with its two chunks,
    if these are more), the largest batch up to 1/4; the rest is for decoding a group.

    Args:
        on_all_begun: called while it is read, when GETs for all of it have begun.

    Raises, while iterating:
        CorruptObjectError: a batch or the object is corrupt; only unless options.skips_bad_records.
        RemoteStorageError: the segment cannot be read, or a batch is too large for options.task_bytes_max.
    """

    def __init__(
        self,
        manager: SegmentOpener,
        task: SegmentTask,
        options: ReadOptions,
        bad: BadRecords,
        gets: GetsAhead,
        on_all_begun: Callable[[], None] | None = None,
    ) -> None:
        self.task, self.bad = task, bad
        self.reached_offset = max(task.first_offset, task.segment.start_offset)
        """What is before it has been read."""
        self._manager = manager
        self._options = options
        self._gets, self._on_all_begun = gets, on_all_begun
        self._piece_bytes = max(options.task_bytes_max // 16, PIECE_BYTES_MIN)
        self._found: _Found | None = None

    @property
    def gets_expected(self) -> int:
        """At most, for all of it."""
        return max(1, (self.task.end_position - self.task.start_position) // self._piece_bytes)

    def open(self) -> Self:
        """Ask the store for what must be known before the log is read, and begin to fetch that. In any thread.

        Raises:
            CorruptObjectError, RemoteStorageError: it cannot be read.
        """
        if self._may_match():
            opened = self._retried(lambda: self._manager.open_log_segment(self.task.segment))
            first_offset = self._first_offset(opened)
            if first_offset < self.task.end_offset:
                index = self._offset_index(opened)
                start = max(index.position_at_or_below(self.task.start_position), index.lookup(first_offset)[1])
                self._found = _Found(first_offset, start, index, self._window(opened, start, index))
                self.fetch_ahead()
        return self

    def fetch_ahead(self) -> bool:
        """Begin GETs of it before its turn; whether all have begun."""
        return self._found is None or self._found.window.fetch_ahead()

    def __iter__(self) -> Iterator[list[WalkedBatch]]:
        if self._found is None:
            return
        task, found = self.task, self._found
        selection = BatchSelection(found.first_offset, task.end_offset, task.aborted, self._options.timestamp_min_ms)
        with closing(found.window) as window:
            walk = self._walk_from(self._safe_start(found), found.index)
            for batches in self._scanned(window, walk):
                is_last = selection.ends_before(batches[-1].header)
                wanted = [
                    batch
                    for batch in batches
                    if batch.position >= task.start_position and selection.wants(batch.header)
                ]
                del batches
                if wanted:
                    yield wanted
                # What is yet to be fetched takes the room of what was just read.
                wanted.clear()
                if is_last:
                    return

    def _may_match(self) -> bool:
        task, timestamp_min_ms = self.task, self._options.timestamp_min_ms
        if task.start_position >= min(task.end_position, task.segment.segment_size_bytes):
            return False
        if task.first_offset > task.segment.end_offset or task.end_offset <= task.segment.start_offset:
            return False
        return timestamp_min_ms is None or task.segment.max_timestamp_ms >= timestamp_min_ms

    def _window(self, opened: OpenedSegment, start: int, index: OffsetIndex) -> LogWindow:
        task = self.task
        ends = (index.position_above(task.end_position - 1), index.position_after_offset(task.end_offset - 1))
        # Where the last batch that is wanted probably ends: what is behind it is not fetched ahead.
        fetch_end = min(end for end in (*ends, task.segment.segment_size_bytes) if end is not None)
        decoding_bytes = 0
        if (chunk_bytes := opened.chunk_bytes) > 1:
            decoding_bytes = 2 * opened.stored_bytes(0, min(chunk_bytes, task.segment.segment_size_bytes))
        return LogWindow(
            opened,
            task.segment,
            fetch_end,
            start=min(start, task.segment.segment_size_bytes),
            piece_bytes=self._piece_bytes,
            gets=self._gets,
            decoding_bytes=decoding_bytes,
            on_all_begun=self._on_all_begun,
            has_holes=self._options.skips_bad_records,
        )

    def _walk_from(self, start: int, index: OffsetIndex) -> LogWalk:
        return LogWalk(
            self.task.segment,
            start,
            self.task.end_position,
            Depth.BATCHES,
            index=index,
            recovers=self._options.skips_bad_records,
            batch_bytes_max=self._options.task_bytes_max // 4,
        )

    def _safe_start(self, found: "_Found") -> int:
        """Return where the scan begins (rule 1)."""
        start, start_position = found.start, self.task.start_position

        def is_safe(header: BatchHeader) -> bool:
            return start <= start_position or header.base_offset <= found.first_offset

        is_inside = 0 < start < self.task.segment.segment_size_bytes
        if is_inside and found.window.answer(self._walk_from(start, found.index).begins_with(is_safe)):
            return start
        if start:
            self._warn_of_index("offset", f"there is no batch at {start} that it says is there")
        return 0

    def _scanned(self, window: LogWindow, walk: LogWalk) -> Iterator[list[WalkedBatch]]:
        """Lists of batches, about one a piece; what was passed over is reported."""
        try:
            for found in window.drive(walk.steps()):
                if isinstance(found, PassedOver):
                    self._on_bad(found)
                else:
                    yield found
                del found
        except BatchTooLargeError as error:
            raise BatchTooLargeError(f"{error}; taskBytes is {self._options.task_bytes_max}") from error

    def _on_bad(self, bad: PassedOver) -> None:
        # If a walk ends before the task's own range, all of that range is lost.
        start = max(bad.position, self.task.start_position) if bad.is_rest else bad.position
        if start >= self.task.start_position:
            self.bad.add(BadBatch(start, bad.end - start, bad.error.reason, bad.is_rest))

    def _offset_index(self, opened: OpenedSegment) -> OffsetIndex:
        """The offset index; an empty one if there is none to be had, or nobody would look into it."""
        task, segment = self.task, self.task.segment
        is_whole = task.start_position == 0 and task.end_position >= segment.segment_size_bytes
        has_all = task.first_offset <= segment.start_offset and task.end_offset > segment.end_offset
        if is_whole and has_all and not self._options.skips_bad_records and self._options.timestamp_min_ms is None:
            return OffsetIndex(b"", segment.start_offset)
        name = f"offset index of {segment.segment_id}"
        try:
            return self._retried(lambda: OffsetIndex(opened.fetch_index(IndexType.OFFSET), segment.start_offset, name))
        except (RemoteResourceNotFoundError, CorruptObjectError) as error:
            self._warn_of_index("offset", str(error))
        return OffsetIndex(b"", segment.start_offset)

    def _first_offset(self, opened: OpenedSegment) -> int:
        """The first that may have a row."""
        segment, timestamp_min_ms = self.task.segment, self._options.timestamp_min_ms
        first_offset = max(self.task.first_offset, segment.start_offset)
        if timestamp_min_ms is None:
            return first_offset
        name = f"time index of {segment.segment_id}"
        try:
            index = self._retried(
                lambda: TimeIndex(opened.fetch_index(IndexType.TIMESTAMP), segment.start_offset, name)
            )
        except (RemoteResourceNotFoundError, CorruptObjectError) as error:
            self._warn_of_index("time", str(error))
            return first_offset
        entry_ms, entry_offset = index.lookup(timestamp_min_ms - 1)
        is_entry = entry_ms >= 0 and entry_offset < segment.end_offset
        return max(first_offset, entry_offset + 1) if is_entry else first_offset

    def _warn_of_index(self, kind: str, reason: str) -> None:
        _log.warning("index_not_used", index=kind, segment=str(self.task.segment.segment_id), reason=reason)

    def _retried(self, call: Callable[[], T]) -> T:
        return call_with_retries(call, self.task.segment, self._gets.closing.wait)


@dataclass(frozen=True, slots=True)
class _Found:
    """For an opened part: the first offset that is wanted, and where by the index the scan begins."""

    first_offset: int
    start: int
    index: OffsetIndex
    window: LogWindow


class BatchSelection:
    """The batches with offsets in [first_offset, end_offset) that may have rows, told from their headers alone.

    Control batches never do. Under READ_COMMITTED a transactional batch does not if its producer aborted the
    transaction that it belongs to. A v2 batch whose newest record is too old does not: brokers see to it that the
    header's maximum timestamp is right. (The base timestamp is the first record's, not the oldest's; what is too new
    the decoder finds.)

    Args:
        aborted: transactions to leave out.
        timestamp_min_ms: rows are at least so new; None: any.
    """

    def __init__(
        self,
        first_offset: int,
        end_offset: int,
        aborted: Sequence[AbortedTransaction] = (),
        timestamp_min_ms: int | None = None,
    ) -> None:
        self._first_offset = first_offset
        self._end_offset = end_offset
        self._timestamp_min_ms = timestamp_min_ms
        self._aborted: dict[int, list[tuple[int, int]]] = {}
        for transaction in sorted(aborted, key=lambda transaction: transaction.first_offset):
            ranges = self._aborted.setdefault(transaction.producer_id, [])
            ranges.append((transaction.first_offset, transaction.last_offset))

    def wants(self, header: BatchHeader) -> bool:
        """Return whether the batch may have rows."""
        if header.is_control or header.last_offset < self._first_offset:
            return False
        if header.magic >= 2:
            if header.base_offset >= self._end_offset:
                return False
            if self._timestamp_min_ms is not None and header.max_timestamp < self._timestamp_min_ms:
                return False
        return not (header.is_transactional and self._is_aborted(header))

    def ends_before(self, header: BatchHeader) -> bool:
        """Return whether the batches behind this one are all beyond the end."""
        return header.last_offset >= self._end_offset - 1

    def _is_aborted(self, header: BatchHeader) -> bool:
        ranges = self._aborted.get(header.producer_id)
        if ranges is None:
            return False
        # One producer's transactions follow one another, so that the last to begin is the only one that may hold it.
        last_begun = bisect_right(ranges, header.base_offset, key=lambda offsets: offsets[0]) - 1
        return last_begun >= 0 and header.base_offset <= ranges[last_begun][1]
