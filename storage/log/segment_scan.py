"""Every batch of a range of a segment, for readers that want all of it: synchronous, in bounded memory.

- A batch belongs to the range in which it begins: ranges that meet give each batch just once.
- What is handed out passed its CRC, lies inside its segment in bytes and offsets, and its offsets ascend. A message
  of v0 or v1 is a batch of its own, also one that wraps others.
- A batch is a view into the piece of the log that was fetched; one that straddles two pieces is a copy.
- A batch that fails is an error, or is reported and stepped over: by its own length, if its header makes sense, no
  index entry lies inside it and a later batch follows; else to the next entry of the offset index; else to the end
  of the range. So every walk comes by every entry of an index that is right, wherever it began: neighbours meet.

Unlike `storage.log.batch_walk` nothing is kept here, and nothing is walked twice.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Self

from protocol.record_batches import HEADER_BYTES, BatchHeader, CorruptBatchError, check_crc, read_header
from storage.errors import CorruptObjectError, RemoteStorageError
from storage.indexes.offset_index import OffsetIndex
from storage.log.batch_placement import order_fault, placement_fault
from storage.log.segment_window import LogWindow, UnreadableBytesError
from storage.model import RemoteLogSegmentMetadata
from storage.remote_storage_manager import OpenedSegment

MIB = 1024 * 1024
WINDOW_BYTES = 8 * MIB
BATCH_BYTES_MAX = 128 * MIB
"""A little more than the largest request that a broker takes by default (socket.request.max.bytes)."""


@dataclass(frozen=True, slots=True)
class ScannedBatch:
    """A whole batch, its CRC checked. `position`: where it begins in the segment's log."""

    position: int
    header: BatchHeader
    data: memoryview
    """The whole batch, header included, contiguous; stays valid as long as it is referenced."""


@dataclass(frozen=True, slots=True)
class BadBatch:
    """Bytes of the log that were stepped over, and why."""

    position: int
    size_bytes: int
    reason: str
    is_rest: bool = False
    """Nothing told where the next batch begins: these are all that was left of the range."""


class BadBatchError(CorruptObjectError):
    """A batch of the log cannot be used; the message names segment and position.

    `header`: the batch's, if that makes sense by itself. `unreadable_end`: bytes below it cannot be had at all.
    """

    def __init__(
        self,
        segment: RemoteLogSegmentMetadata,
        position: int,
        reason: str,
        *,
        header: BatchHeader | None = None,
        unreadable_end: int = 0,
    ) -> None:
        super().__init__(f"segment {segment.segment_id}: batch at {position}: {reason}")
        self.position = position
        self.reason = reason
        self.header = header
        self.unreadable_end = unreadable_end


class BatchTooLargeError(RemoteStorageError):
    """A batch has more bytes than its reader may hold; the message names segment, position, size and limit."""


class SegmentScan:
    """Iterates lists of the batches that begin in [start_position, end_position): about one list a window of the log.

    A list refers to the window that it came from: drop it before asking for the next to hold no more than two.
    Belongs to one thread. A context manager: leaving it ends the GET under way.

    Args:
        start_position: where a batch begins.
        end_position: any position; the last batch may reach beyond it.
        fetch_end: where the last batch that is wanted probably ends: what is behind it is not fetched ahead.
        window_bytes: of the log in memory, about; twice as much while the next is fetched.
        range_bytes: of one GET, about; window_bytes if it is None.
        batch_bytes_max: a larger one is an error.
        on_bad: what is done about a bad batch instead of raising.
        index: tells where to go on behind a bad batch.

    Raises, while iterating:
        BadBatchError: see there; only without `on_bad`.
        CorruptObjectError: the store's bytes break their format; only without `on_bad`.
        BatchTooLargeError: a batch is larger than batch_bytes_max.
        RemoteStorageError: as the store answers.
    """

    def __init__(
        self,
        opened: OpenedSegment,
        segment: RemoteLogSegmentMetadata,
        start_position: int,
        end_position: int,
        *,
        fetch_end: int | None = None,
        window_bytes: int = WINDOW_BYTES,
        range_bytes: int | None = None,
        batch_bytes_max: int = BATCH_BYTES_MAX,
        on_bad: Callable[[BadBatch], None] | None = None,
        index: OffsetIndex | None = None,
    ) -> None:
        size_bytes = segment.segment_size_bytes
        self._segment = segment
        self._position = start_position
        self._end = min(end_position, size_bytes)
        self._batch_bytes_max = batch_bytes_max
        self._on_bad = on_bad
        self._index = index
        self._last_offset = self._offset_before_last = -1
        self._last_follows = False  # the last good batch follows without a gap, so that its offset is beyond doubt
        self._window = LogWindow(
            opened,
            segment,
            start_position,
            min(self._end if fetch_end is None else fetch_end, size_bytes),
            piece_bytes=window_bytes,
            range_bytes=range_bytes or window_bytes,
            has_holes=on_bad is not None,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[list[ScannedBatch]]:
        return self

    def __next__(self) -> list[ScannedBatch]:
        while self._position < self._end:
            if batches := self._read_list():
                return batches
        raise StopIteration

    def close(self) -> None:
        """End the GET under way. Idempotent."""
        self._window.close()

    def begins_with(self, is_expected: Callable[[BatchHeader], bool]) -> bool:
        """Whether a good and expected batch stands where the scan begins: for a start that someone else told.

        Ask before iterating. Nothing is reported.

        Raises:
            RemoteStorageError: as the store answers.
        """
        try:
            header = self._read_header(self._position)
            if header.size_bytes > self._batch_bytes_max or not is_expected(header):
                return False
            self._read_batch(self._position, header)
        except BadBatchError:
            return False
        return True

    def _read_list(self) -> list[ScannedBatch]:
        """Batches up to the first that is not whole in the window; that one too if it is the only one."""
        batches: list[ScannedBatch] = []
        while self._position < self._end:
            position = self._position
            if batches and not self._window.holds(position, self._header_bytes(position)):
                break
            try:
                header = self._read_header(position)
                self._check_order(position, header)
                if batches and not self._window.holds(position, header.size_bytes):
                    break
                self._check_size(position, header)
                batches.append(self._read_batch(position, header))
            except BadBatchError as error:
                if self._on_bad is None:
                    raise
                self._step_over(error, batches)
            else:
                self._advance(header)
        return batches

    def _advance(self, header: BatchHeader) -> None:
        expected_offset = self._segment.start_offset if self._last_offset < 0 else self._last_offset + 1
        self._last_follows = header.base_offset == expected_offset
        self._offset_before_last, self._last_offset = self._last_offset, header.last_offset
        self._position += header.size_bytes

    def _header_bytes(self, position: int) -> int:
        """Of a header, less where the log ends in it: a v0 message may be shorter."""
        return min(HEADER_BYTES, self._segment.segment_size_bytes - position)

    def _read_header(self, position: int) -> BatchHeader:
        try:
            header = read_header(self._window.view(position, self._header_bytes(position)), 0)
        except CorruptBatchError as error:
            raise BadBatchError(self._segment, position, str(error)) from error
        except UnreadableBytesError as error:
            raise BadBatchError(self._segment, position, str(error), unreadable_end=error.end) from error
        fault = placement_fault(header, position, self._segment)
        if fault is not None:
            raise BadBatchError(self._segment, position, fault, header=header)
        return header

    def _read_batch(self, position: int, header: BatchHeader) -> ScannedBatch:
        try:
            data = self._window.view(position, header.size_bytes)
        except UnreadableBytesError as error:
            raise BadBatchError(self._segment, position, str(error), header=header, unreadable_end=error.end) from error
        if not check_crc([data]):
            raise BadBatchError(self._segment, position, "its CRC is wrong", header=header)
        return ScannedBatch(position, header, data)

    def _check_order(self, position: int, header: BatchHeader) -> None:
        fault = order_fault(header.base_offset, self._last_offset)
        if fault is not None:
            raise BadBatchError(self._segment, position, fault, header=header)

    def _check_size(self, position: int, header: BatchHeader) -> None:
        if header.size_bytes <= self._batch_bytes_max:
            return
        if self._on_bad is not None and not self._is_free_of_entries(position, position + header.size_bytes):
            raise BadBatchError(self._segment, position, f"its {header.size_bytes} bytes hold an entry of the index")
        raise BatchTooLargeError(
            f"segment {self._segment.segment_id}: the batch at {position} has {header.size_bytes} bytes, and at most "
            f"{self._batch_bytes_max} can be held (unless its length is corrupt)"
        )

    def _step_over(self, error: BadBatchError, batches: list[ScannedBatch]) -> None:
        assert self._on_bad is not None
        header = error.header
        is_in_doubt = header is not None and not self._last_follows
        if header is not None and is_in_doubt and self._offset_before_last < header.base_offset <= self._last_offset:
            # Of two that do not ascend the former may be the bad one: no CRC covers a base offset. The latter fits.
            self._last_offset = self._offset_before_last
            if batches:
                culprit = batches.pop()
                reason = f"offset {culprit.header.last_offset} is followed by offset {header.base_offset}"
                self._on_bad(BadBatch(culprit.position, culprit.header.size_bytes, reason))
                return
        resume_position = self._resume_position(error)
        end = self._end if resume_position is None else resume_position
        self._on_bad(BadBatch(error.position, end - error.position, error.reason, is_rest=resume_position is None))
        self._position = end

    def _resume_position(self, error: BadBatchError) -> int | None:
        """Where the next batch begins; None if nothing tells it."""
        if error.header is not None:
            end = error.position + error.header.size_bytes
            is_whole = end >= error.unreadable_end and self._is_free_of_entries(error.position, end)
            if is_whole and (end == self._segment.segment_size_bytes or self._is_followed(end)):
                return end
        if self._index is None:
            return None
        entry_position = self._index.position_above(max(error.position, error.unreadable_end - 1))
        return None if entry_position is None or entry_position >= self._segment.segment_size_bytes else entry_position

    def _is_followed(self, position: int) -> bool:
        """Whether what stands at `position` looks like a batch behind the last good one."""
        if position > self._segment.segment_size_bytes:
            return False
        try:
            return self._read_header(position).base_offset > self._last_offset
        except BadBatchError:
            return False

    def _is_free_of_entries(self, position: int, end: int) -> bool:
        entry_position = None if self._index is None else self._index.position_above(position)
        return entry_position is None or end <= entry_position
