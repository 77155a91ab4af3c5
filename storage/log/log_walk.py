"""The one walk over a segment's log, from batch to batch. It does no I/O.

`LogWalk.steps` is a generator. It yields `Wanted` when it needs bytes, and is sent a view of them and of all that
follows there; `UnreadableBytesError` is thrown into it where they cannot be had. Besides it yields what it has found:
lists of batches, and what it has passed over. `storage.log.segment_scan` drives it over a stream. Readers that hold
blocks, which remember what has passed, walk by `storage.log.batch_walk`; rules and errors are the same.

- Every header makes sense and its batch ends inside the segment. What else is looked at is the walk's `Depth`.
- A CRC covers neither a batch's base offset nor its length, so these are checked against what the metadata says.
- A message of v0 or v1 is a batch of its own, also one that wraps others.
- A batch that fails is an error, or it is passed over (`recovers`): by its own length, if its header makes sense, no
  index entry lies inside it and a batch that fits follows; else to the next entry of the offset index that a batch
  which fits stands at; else to the end of the range. So every walk comes by every entry of an index that is right,
  wherever it began: neighbours meet.
"""

import enum
import zlib
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, TypeVar

from crc32c import crc32c

from protocol.record_batches import (
    BATCH_BYTES_MAX,
    CRC_START,
    HEADER_BYTES,
    LEGACY_CRC_START,
    BatchHeader,
    CorruptBatchError,
    iterate_batches,
    read_header,
    verify_run,
)
from storage.errors import CorruptObjectError, RemoteStorageError
from storage.indexes.offset_index import OffsetIndex
from storage.log.transaction_marker import MARKER_BYTES, read_transaction_marker
from storage.model import RemoteLogSegmentMetadata

R = TypeVar("R")

_NOTHING = memoryview(b"")


class CorruptLogError(CorruptObjectError):
    """Bytes of a segment's log are no batch, or the wrong one; the message names segment and position.

    `position` and `end` bound the bytes that failed, `reason` is the message without its place. `header` is the
    batch's if that makes sense by itself. Bytes below `unreadable_end` cannot be had at all. `follows_verified` says
    that the batch before them passed its CRC; otherwise the walk that led to `position` is in doubt as well.
    """

    def __init__(self, message: str, position: int, end: int) -> None:
        super().__init__(message)
        self.position = position
        self.end = end
        self.reason = message
        self.header: BatchHeader | None = None
        self.unreadable_end = 0
        self.follows_verified = False


class UnreadableBytesError(CorruptObjectError):
    """Bytes of the log cannot be had. `start` and `end` bound them; reading may go on at `end`."""

    def __init__(self, message: str, start: int, end: int) -> None:
        super().__init__(message)
        self.start = start
        self.end = end


class BatchTooLargeError(RemoteStorageError):
    """A batch has more bytes than its reader may hold; the message names segment, position, size and limit."""


class Depth(enum.Enum):
    """What a walk looks at, beside the headers."""

    HEADERS = enum.auto()
    """Nothing: what is inside batches is not even wanted."""
    CHECKSUMS = enum.auto()
    """CRCs, piece by piece: a batch need not be in memory as a whole. Its offsets are the caller's to judge."""
    BATCHES = enum.auto()
    """CRCs, and that offsets ascend and are the segment's. Batches are handed out whole."""


class Wanted(NamedTuple):
    """Contiguous bytes that a walk needs: from `position` on, at least `size_bytes`.

    `can_wait`: it has batches to hand out before these are fetched. Who has not got them yet sends None.
    """

    position: int
    size_bytes: int
    can_wait: bool


class WalkedBatch(NamedTuple):
    """A batch that has passed. `position`: where it begins in the segment's log.

    `data` stays valid as long as it is referenced. It is all of the batch, header included and contiguous, of a walk
    in BATCHES; in CHECKSUMS it has the beginning of a control batch, and is empty otherwise.
    """

    position: int
    header: BatchHeader
    data: memoryview


@dataclass(frozen=True, slots=True)
class PassedOver:
    """Bytes from `position` to `end` that were passed over, and why. `is_rest`: nothing told where the next batch
    begins, so these are all that was left of the range."""

    position: int
    end: int
    error: CorruptLogError
    is_rest: bool = False


Found: TypeAlias = list[WalkedBatch] | PassedOver
Steps: TypeAlias = Generator[Wanted | Found, memoryview | None, R]


def corrupt_batch(
    segment: RemoteLogSegmentMetadata,
    position: int,
    end: int,
    reason: str,
    *,
    header: BatchHeader | None = None,
    unreadable_end: int = 0,
) -> CorruptLogError:
    """The error for the batch at `position`."""
    error = CorruptLogError(f"segment {segment.segment_id}: batch at {position}: {reason}", position, end)
    error.reason, error.header, error.unreadable_end = reason, header, unreadable_end
    return error


def header_of(
    data: bytes | memoryview, position: int, segment: RemoteLogSegmentMetadata, *, judges_offsets: bool = True
) -> BatchHeader:
    """The header of the batch at `position` of the segment's log.

    Args:
        data: begins with it; no more than HEADER_BYTES.

    Raises:
        CorruptLogError: it makes no sense, or its batch does not lie inside the segment.
    """
    try:
        header = read_header(data, 0)
    except CorruptBatchError as error:
        raise corrupt_batch(segment, position, position + len(data), str(error)) from error
    fault = None
    if position + header.size_bytes > segment.segment_size_bytes:
        fault = f"its {header.size_bytes} bytes reach beyond the segment's {segment.segment_size_bytes}"
    elif judges_offsets:
        fault = offsets_fault(header, segment)
    if fault is not None:
        raise corrupt_batch(segment, position, position + len(data), fault, header=header)
    return header


def offsets_fault(header: BatchHeader, segment: RemoteLogSegmentMetadata) -> str | None:
    """Return what is wrong with a batch of these offsets in this segment; None: nothing."""
    if segment.start_offset <= header.base_offset <= header.last_offset <= segment.end_offset:
        return None
    return (
        f"offsets {header.base_offset} to {header.last_offset} in a segment of "
        f"{segment.start_offset} to {segment.end_offset}"
    )


def order_fault(base_offset: int, last_offset: int) -> str | None:
    """Return what is wrong with a batch that begins at `base_offset` behind one that ends at `last_offset`; None:
    nothing."""
    return f"offset {base_offset} follows offset {last_offset}" if base_offset <= last_offset else None


def is_abort_marker(batch: WalkedBatch) -> bool | None:
    """Return whether a transaction marker is an ABORT; None for any other batch."""
    marker = read_transaction_marker(batch.header, batch.data)
    return None if marker is None else marker.is_abort


class LogWalk:
    """One walk over the batches that begin in [start, end).

    Args:
        start: where a batch begins.
        end: any position; the last batch may reach beyond it.
        index: tells where to go on behind what is corrupt.
        recovers: what is corrupt is passed over.
        batch_bytes_max: a larger batch is not asked for whole, but is an error.
    """

    def __init__(
        self,
        segment: RemoteLogSegmentMetadata,
        start: int,
        end: int,
        depth: Depth,
        *,
        index: OffsetIndex | None = None,
        recovers: bool = False,
        batch_bytes_max: int = BATCH_BYTES_MAX,
    ) -> None:
        self._segment = segment
        self._position = start
        self._end = min(end, segment.segment_size_bytes)
        self._depth = depth
        self._index = index
        self._recovers = recovers
        self._batch_bytes_max = batch_bytes_max
        self._data, self._data_start = _NOTHING, start
        self._found: list[WalkedBatch] = []
        """Yet to be handed out."""
        self._last_offset = self._offset_before_last = -1
        self._last_follows = False  # the last good batch follows without a gap, so that its offset is beyond doubt

    def steps(self) -> Steps[None]:
        """All of it. Drop a list before asking for the next.

        Raises:
            CorruptLogError: unless it `recovers`.
            BatchTooLargeError: a batch is larger than `batch_bytes_max`.
        """
        while self._position < self._end:
            if self._depth is Depth.BATCHES and self._take_run():
                continue
            position, header = self._position, None
            try:
                header = yield from self._header_at(position)
                if self._depth is Depth.HEADERS:
                    batch = WalkedBatch(position, header, _NOTHING)
                else:
                    self._check_place(position, header)
                    batch = yield from self._batch_at(position, header)
                    self._note_offsets(header)
            except CorruptLogError as error:
                fault = error
            except UnreadableBytesError as error:
                fault = corrupt_batch(
                    self._segment, position, error.end, str(error), header=header, unreadable_end=error.end
                )
                fault.__cause__ = error
            else:
                self._found.append(batch)
                self._position += header.size_bytes
                del batch  # or its piece would be held while the next one comes
                continue
            if not self._recovers:
                raise fault
            yield from self._pass_over(fault)
        yield from self._hand_out()

    def begins_with(self, is_expected: Callable[[BatchHeader], bool]) -> Steps[bool]:
        """Return whether a good and expected batch stands where the walk begins: for a start that someone else told.

        Ask before the steps.
        """
        position = self._position
        try:
            header = yield from self._header_at(position)
            if header.size_bytes > self._batch_bytes_max or not is_expected(header):
                return False
            yield from self._batch_at(position, header)
        except (CorruptLogError, UnreadableBytesError):
            return False
        return True

    def _take_run(self) -> bool:
        """Take the good batches of v2 that are at hand, as far as nothing has to be judged; whether there are any."""
        segment, data, base = self._segment, self._data, self._data_start
        start = self._position - base
        if start < 0:
            return False
        last_offset = max(self._last_offset, segment.start_offset - 1)
        run_end, _, _ = verify_run(data, start, min(len(data), self._end - base), last_offset, segment.end_offset)
        taken = len(self._found)
        for at, header in iterate_batches([data[:run_end]], start):
            size_bytes = header.size_bytes
            if size_bytes > self._batch_bytes_max:
                break
            self._position = base + at + size_bytes
            self._found.append(WalkedBatch(base + at, header, data[at : at + size_bytes]))
        for batch in self._found[taken:][-2:]:
            self._note_offsets(batch.header)
        return len(self._found) > taken

    def _header_at(self, position: int) -> Steps[BatchHeader]:
        # Less where the log ends in it: a v0 message may be shorter.
        size_bytes = min(HEADER_BYTES, self._segment.segment_size_bytes - position)
        if not self._holds(position, size_bytes):
            yield from self._want(position, size_bytes)
        at = position - self._data_start
        data = self._data[at : at + size_bytes]
        return header_of(data, position, self._segment, judges_offsets=self._depth is Depth.BATCHES)

    def _batch_at(self, position: int, header: BatchHeader) -> Steps[WalkedBatch]:
        size_bytes, data = 0, _NOTHING
        if self._depth is Depth.BATCHES:
            size_bytes = header.size_bytes
        elif header.is_control:
            size_bytes = min(header.size_bytes, HEADER_BYTES + MARKER_BYTES)
        if size_bytes:
            if not self._holds(position, size_bytes):
                yield from self._want(position, size_bytes)
            at = position - self._data_start
            data = self._data[at : at + size_bytes]
        yield from self._check_crc(position, header)
        return WalkedBatch(position, header, data)

    def _check_crc(self, position: int, header: BatchHeader) -> Steps[None]:
        end, checksum = position + header.size_bytes, 0
        counted = position + (CRC_START if header.magic >= 2 else LEGACY_CRC_START)
        while counted < end:
            if not self._holds(counted, 1):
                yield from self._want(counted, 1)
            at = counted - self._data_start
            part = self._data[at : at + end - counted]
            checksum = crc32c(part, checksum) if header.magic >= 2 else zlib.crc32(part, checksum)
            counted += len(part)
            del part  # before the next piece comes
        if checksum != header.crc:
            raise corrupt_batch(self._segment, position, end, "its CRC is wrong", header=header)

    def _check_place(self, position: int, header: BatchHeader) -> None:
        """Check whether a batch of this header may stand here, and be asked for whole."""
        if self._depth is not Depth.BATCHES:
            return
        fault = order_fault(header.base_offset, self._last_offset)
        if fault is not None:
            raise corrupt_batch(self._segment, position, position + HEADER_BYTES, fault, header=header)
        if header.size_bytes <= self._batch_bytes_max:
            return
        if self._recovers and not self._is_free_of_entries(position, position + header.size_bytes):
            reason = f"its {header.size_bytes} bytes hold an entry of the index"
            raise corrupt_batch(self._segment, position, position + HEADER_BYTES, reason)
        raise BatchTooLargeError(
            f"segment {self._segment.segment_id}: the batch at {position} has {header.size_bytes} bytes, and at most "
            f"{self._batch_bytes_max} can be held (unless its length is corrupt)"
        )

    def _note_offsets(self, header: BatchHeader) -> None:
        """Compare the offsets of a batch that has passed."""
        expected_offset = self._segment.start_offset if self._last_offset < 0 else self._last_offset + 1
        self._last_follows = header.base_offset == expected_offset
        self._offset_before_last, self._last_offset = self._last_offset, header.last_offset

    def _pass_over(self, error: CorruptLogError) -> Steps[None]:
        header = error.header
        is_in_doubt = header is not None and not self._last_follows and self._depth is Depth.BATCHES
        if header is not None and is_in_doubt and self._offset_before_last < header.base_offset <= self._last_offset:
            # If two do not ascend, the former may be the bad one: no CRC covers a base offset. The latter fits.
            self._last_offset = self._offset_before_last
            if self._found:
                culprit = self._found.pop()
                end = culprit.position + culprit.header.size_bytes
                reason = f"offset {culprit.header.last_offset} is followed by offset {header.base_offset}"
                yield from self._hand_out()
                yield PassedOver(
                    culprit.position,
                    end,
                    corrupt_batch(self._segment, culprit.position, end, reason, header=culprit.header),
                )
                return
        resume_position = yield from self._resume_position(error)
        end = self._end if resume_position is None else resume_position
        yield from self._hand_out()
        yield PassedOver(error.position, end, error, is_rest=resume_position is None)
        self._position = end

    def _resume_position(self, error: CorruptLogError) -> Steps[int | None]:
        """Return where the next batch begins; None if nothing tells it."""
        size_bytes = self._segment.segment_size_bytes
        if error.header is not None:
            end = error.position + error.header.size_bytes
            if error.unreadable_end <= end <= size_bytes and self._is_free_of_entries(error.position, end):
                is_followed = end == size_bytes or (yield from self._fits(end, is_next=True))
                if is_followed:
                    return end
        if self._index is None:
            return None
        entry_position = self._index.position_above(max(error.position, error.unreadable_end - 1))
        while entry_position is not None and entry_position < size_bytes:
            if (yield from self._fits(entry_position)):
                return entry_position
            entry_position = self._index.position_above(entry_position)
        return None

    def _fits(self, position: int, *, is_next: bool = False) -> Steps[bool]:
        """Return whether what stands at `position` looks like a batch of the segment; `is_next`: one behind the last
        good one.

        What cannot be read is a fault of its own, told of when the walk comes there; it only proves no length.
        """
        try:
            header = yield from self._header_at(position)
        except CorruptLogError:
            return False
        except UnreadableBytesError:
            return not is_next
        is_ordered = not is_next or self._depth is not Depth.BATCHES or header.base_offset > self._last_offset
        return is_ordered and offsets_fault(header, self._segment) is None

    def _is_free_of_entries(self, position: int, end: int) -> bool:
        entry_position = None if self._index is None else self._index.position_above(position)
        return entry_position is None or end <= entry_position

    def _holds(self, position: int, size_bytes: int) -> bool:
        at = position - self._data_start
        return at >= 0 and at + size_bytes <= len(self._data)

    def _want(self, position: int, size_bytes: int) -> Steps[None]:
        """Get these bytes into `_data`. What is there is let go of before."""
        self._data = _NOTHING
        data = None
        if self._found:
            data = yield Wanted(position, size_bytes, can_wait=True)
        if data is None:
            yield from self._hand_out()
            data = yield Wanted(position, size_bytes, can_wait=False)
        assert data is not None, "who drives a walk sends the bytes that it wants"
        self._data, self._data_start = data, position

    def _hand_out(self) -> Steps[None]:
        found, self._found = self._found, []
        if found:
            yield found
