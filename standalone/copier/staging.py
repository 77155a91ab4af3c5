"""Segments under way: batches as a broker gave them go into a file, and their indexes grow beside it.

    staged = PartitionStaging(folder, limits, state)
    finished = staged.take(data, now_ms=...)      # bytes of a Fetch: whole batches in log order
    finished += staged.roll_if_due(now_ms=...)    # a partition that has gone quiet

Rules:
- A batch is taken as it is, once its CRC was right. Data are never looked into, only headers and markers.
- A segment ends before a batch that would make it larger than `segment_bytes`, is more than `segment_ms` newer than its
  first one, or has an offset that no index can hold; when an index is full; and `segment_ms` after it was begun. Kafka
  rolls its segments so.
- Records older than `segment_ms` are caught up with: nobody waits for them, and a segment may span a day of them. Else
  a year of a quiet topic would be thousands of small objects.
- A record whose time lies far in the future counts as of now: it ends no segment.
- Files are named as a broker names them. What has not been copied is fetched again after a restart, from the last
  finished segment's end (docs/kafka-tier.md); where upstream has deleted it meanwhile it is read from what is left here
  (standalone.copier.kept_logs). Nothing is synced.
- Memory: the indexes of one segment (at most 20 MiB, some KiB as a rule) and its producers.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from protocol.record_batches import BatchHeader, CorruptBatchError, batch_crc, iterate_batches
from standalone.copier.kept_logs import ABORTED_NAME, KeptLogs, write_aborted
from standalone.copier.producers import ProducerStates
from storage.indexes.leader_epochs import encode_leader_epochs
from storage.indexes.offset_index import INDEX_INTERVAL_BYTES
from storage.indexes.producer_snapshot import encode_producer_snapshot
from storage.indexes.sparse_indexes import SparseIndexes
from storage.indexes.time_index import NO_TIMESTAMP_MS
from storage.indexes.transaction_index import encode_transaction_index
from storage.log.transaction_marker import read_transaction_marker
from storage.model import LogSegmentData

if TYPE_CHECKING:
    from storage.indexes.transaction_index import AbortedTransaction


CAUGHT_UP_SPAN_MS = 86_400_000
"""A day of records that are old already. Retention goes by the newest: it keeps the oldest a day more at most."""

FUTURE_MS_MAX = 3_600_000
"""So far may a record's time lie ahead of the clock. One that lies further counts as of now."""


def believed_ms(record_ms: int, seen_ms: int) -> int:
    """A record's time; when it was seen, if that lies far behind."""
    return record_ms if record_ms <= seen_ms + FUTURE_MS_MAX else seen_ms


class UncopyableBatchError(CorruptBatchError):
    """A batch that can never be part of a remote segment: magic 0 or 1, or bytes that are no batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RollLimits:
    """When a segment ends; bytes of the log, and milliseconds of records' timestamps and of the clock."""

    segment_bytes: int = 1024**3
    segment_ms: int = 7 * 86_400_000
    index_interval_bytes: int = INDEX_INTERVAL_BYTES


@dataclass(slots=True, kw_only=True)
class PartitionState:
    """Where a partition's copying goes on: what the last finished segment left.

    `lineage`: (leader epoch, its start offset) in ascending order, up to `next_offset`. Batches below `replay_until`
    are in the tier already: they are taken for what they say of epochs and producers, and not staged.
    """

    next_offset: int
    lineage: list[tuple[int, int]] = field(default_factory=list)
    producers: ProducerStates = field(default_factory=ProducerStates)
    replay_until: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedSegment:
    """A segment that is ready to be copied. `segment_leader_epochs` as RemoteLogSegmentMetadata has them.

    `first_timestamp_ms`: the largest of its first batch; NO_TIMESTAMP_MS if that has none. `staged_ms`: when it ended.
    """

    files: LogSegmentData
    start_offset: int
    end_offset: int
    max_timestamp_ms: int
    size_bytes: int
    segment_leader_epochs: dict[int, int]
    first_timestamp_ms: int = NO_TIMESTAMP_MS
    staged_ms: int = 0

    @property
    def newest_record_ms(self) -> int:
        """The time of its newest record; when it was staged, if that lies far behind."""
        return believed_ms(self.max_timestamp_ms, self.staged_ms)

    def check(self) -> None:
        """Raises OSError if its files are not as they were written."""
        for path in self._paths():
            size_bytes = path.stat().st_size
            if path == self.files.log_segment and size_bytes != self.size_bytes:
                raise OSError(f"{path.name}: {size_bytes} bytes where {self.size_bytes} were written")

    def discard(self) -> None:
        """Remove its files. Idempotent."""
        for path in self._paths():
            path.unlink(missing_ok=True)

    def _paths(self) -> list[Path]:
        files = self.files
        named = (files.log_segment, files.offset_index, files.time_index, files.producer_snapshot_index)
        return [path for path in (*named, files.transaction_index) if path is not None]


class PartitionStaging:
    """One partition's segments, one after another. Blocking: files are written. Not thread-safe.

    Args:
        folder: of this partition alone; made if missing. Logs that are in it are kept, in `kept`.
        state: is carried on; it belongs to this object from now on.
    """

    def __init__(self, folder: Path, limits: RollLimits, state: PartitionState) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.kept = KeptLogs(folder)
        self.kept.drop_below(state.next_offset)
        self._noted_aborted: list[tuple[int, int]] = []
        self._folder = folder
        self._limits = limits
        self._state = state
        self._open: _OpenSegment | None = None
        self._ended: list[StagedSegment] = []

    @property
    def next_offset(self) -> int:
        """From where batches are wanted."""
        return self._state.next_offset

    @property
    def lineage(self) -> Sequence[tuple[int, int]]:
        """(leader epoch, start offset) up to `next_offset`."""
        return self._state.lineage

    @property
    def staged_bytes(self) -> int:
        """Bytes of the segment under way."""
        return 0 if self._open is None else self._open.size_bytes

    @property
    def open_offset(self) -> int | None:
        """The first of the segment under way; None: there is none."""
        return None if self._open is None else self._open.start_offset

    @property
    def first_timestamp_ms(self) -> int:
        """First timestamp of the segment under way; NO_TIMESTAMP_MS if there is none, or none in its first batch."""
        return NO_TIMESTAMP_MS if self._open is None else self._open.first_timestamp_ms

    def take(
        self, data: bytes | memoryview, *, now_ms: int, aborted: Iterable[tuple[int, int]] | None = None
    ) -> list[StagedSegment]:
        """Batches as a Fetch gave them; what is incomplete at the end, or lies below `next_offset`, is left out.

        Args:
            aborted: of all transactions that touch them, those that were aborted, as (producer id, first offset).
                None: not told.

        Returns:
            the segments that ended, oldest first.

        Raises:
            UncopyableBatchError: a batch that cannot be copied; those before it were taken, and what ended with them
                comes with the next call.
            CorruptBatchError: a wrong CRC, which another Fetch may get right; likewise.
        """
        if aborted is not None:
            self._state.producers.learn_aborted(aborted)
        try:
            self._take(memoryview(data).toreadonly(), now_ms)
        finally:
            # Also what came before a batch that is refused; and nothing may point into the caller's data any more.
            if self._open is not None:
                self._open.write()
            self._note_aborted()
        return self._taken_out()

    def roll_if_due(self, *, now_ms: int) -> list[StagedSegment]:
        """End the segment that was begun `segment_ms` ago."""
        if self._open is not None and now_ms - self._open.begun_ms >= self._limits.segment_ms:
            self._finish(now_ms)
        return self._taken_out()

    def roll(self, *, now_ms: int) -> list[StagedSegment]:
        """End the segment under way, whatever its age."""
        if self._open is not None:
            self._finish(now_ms)
        return self._taken_out()

    def skip_to(self, offset: int, *, now_ms: int) -> list[StagedSegment]:
        """Go on at an offset, as upstream has nothing before it any more. The segment under way ends, so that none has
        a hole in it. Producers are forgotten, as Kafka forgets them where a log restarts: what became of their
        transactions meanwhile nobody can tell.
        """
        if self._open is not None:
            self._finish(now_ms)
        self._state.producers = ProducerStates()
        self._state.next_offset = offset
        return self._taken_out()

    def discard(self) -> None:
        """Remove the segment under way, and what is kept. Idempotent."""
        self.kept.clear()
        (self._folder / ABORTED_NAME).unlink(missing_ok=True)
        if self._open is not None:
            self._open.path.unlink(missing_ok=True)
            self._open = None

    def _note_aborted(self) -> None:
        """Note for `kept` what the logs here do not say themselves."""
        aborted = sorted({*self._state.producers.undecided_aborted(), *self.kept.aborted})
        path = self._folder / ABORTED_NAME
        if not aborted:
            path.unlink(missing_ok=True)
        elif aborted != self._noted_aborted:
            write_aborted(self._folder, aborted)
        self._noted_aborted = aborted

    def _taken_out(self) -> list[StagedSegment]:
        ended, self._ended = self._ended, []
        return ended

    def _take(self, view: memoryview, now_ms: int) -> None:
        for position, header in _whole_batches(view):
            if header.magic < 2:
                raise UncopyableBatchError(
                    f"batch at offset {header.base_offset} has format version {header.magic}: Kafka copies only "
                    "version 2"
                )
            if header.last_offset < self._state.next_offset:
                continue
            if batch_crc([view[position : position + header.size_bytes]], header.magic) != header.crc:
                raise CorruptBatchError(f"batch at offset {header.base_offset}: its CRC is wrong")
            if self._open is not None and self._open.ends_before(header, self._limits, now_ms):
                self._finish(now_ms)
            self._append(view, position, header, now_ms)

    def _append(self, view: memoryview, position: int, header: BatchHeader, now_ms: int) -> None:
        state = self._state
        if self._open is None and header.base_offset >= state.replay_until:
            path = self._folder / f"{header.base_offset:020}.log"
            self._open = _OpenSegment(path, header, self._limits, now_ms)
        segment = self._open
        epoch = header.partition_leader_epoch
        if epoch >= 0 and (not state.lineage or epoch > state.lineage[-1][0]):
            state.lineage.append((epoch, header.base_offset))
        marker = read_transaction_marker(header, view[position : position + header.size_bytes])
        if marker is None:
            if not header.is_control:
                state.producers.take_data(header)
        else:
            aborted = state.producers.take_marker(header, marker)
            if aborted is not None and segment is not None:
                segment.aborted.append(aborted)
        if segment is not None:
            segment.append(view, position, header)
        state.next_offset = header.last_offset + 1

    def _finish(self, now_ms: int) -> None:
        segment, self._open = self._open, None
        assert segment is not None, "only when there is one"
        segment.write()
        state = self._state
        state.producers.expire(now_ms)
        offset_index, time_index = segment.indexes.finish()
        newest_ms = segment.indexes.max_timestamp_ms
        snapshot = encode_producer_snapshot(state.producers.snapshot())
        transactions = encode_transaction_index(segment.aborted)
        files = LogSegmentData(
            log_segment=segment.path,
            offset_index=self._write(segment.start_offset, "index", offset_index),
            time_index=self._write(segment.start_offset, "timeindex", time_index),
            leader_epoch_index=encode_leader_epochs(state.lineage),
            transaction_index=self._write(segment.start_offset, "txnindex", transactions) if transactions else None,
            # named by the offset behind the segment, as a broker does
            producer_snapshot_index=self._write(segment.end_offset + 1, "snapshot", snapshot),
        )
        self._ended.append(
            StagedSegment(
                files=files,
                start_offset=segment.start_offset,
                end_offset=segment.end_offset,
                max_timestamp_ms=now_ms if newest_ms == NO_TIMESTAMP_MS else newest_ms,
                size_bytes=segment.size_bytes,
                segment_leader_epochs=_within(state.lineage, segment.start_offset, segment.end_offset),
                first_timestamp_ms=segment.first_timestamp_ms,
                staged_ms=now_ms,
            )
        )

    def _write(self, offset: int, suffix: str, content: bytes) -> Path:
        path = self._folder / f"{offset:020}.{suffix}"
        path.write_bytes(content)
        return path


class _OpenSegment:
    """The segment under way."""

    def __init__(self, path: Path, first: BatchHeader, limits: RollLimits, now_ms: int) -> None:
        self.path = path
        path.write_bytes(b"")
        self._written_bytes = 0
        self.begun_ms = now_ms
        self.start_offset = first.base_offset
        self.end_offset = first.base_offset
        self.size_bytes = 0
        self.indexes = SparseIndexes(first.base_offset, limits.index_interval_bytes)
        self.aborted: list[AbortedTransaction] = []
        self._unwritten: memoryview | None = None
        """What holds the bytes from `_begin` to `_end`, batches one behind the other."""
        self._begin = self._end = 0
        self.first_timestamp_ms = min(first.max_timestamp, now_ms + FUTURE_MS_MAX)

    def ends_before(self, header: BatchHeader, limits: RollLimits, now_ms: int) -> bool:
        time_ms = believed_ms(header.max_timestamp, now_ms)
        is_old = time_ms < now_ms - limits.segment_ms
        span_ms = max(limits.segment_ms, CAUGHT_UP_SPAN_MS) if is_old else limits.segment_ms
        is_later = self.first_timestamp_ms > NO_TIMESTAMP_MS and time_ms - self.first_timestamp_ms > span_ms
        return (
            self.size_bytes + header.size_bytes > limits.segment_bytes
            or is_later
            or self.indexes.is_full
            or not self.indexes.holds(header.last_offset)
        )

    def append(self, view: memoryview, position: int, header: BatchHeader) -> None:
        if self._unwritten is None or position != self._end:
            self.write()
            self._unwritten, self._begin = view, position
        self._end = position + header.size_bytes
        self.indexes.take(self.size_bytes, header.last_offset, header.max_timestamp)
        self.size_bytes += header.size_bytes
        self.end_offset = header.last_offset

    def write(self) -> None:
        """Write what was appended, straight from where it is. The file is not kept open: there may be one for each of
        thousands of partitions."""
        if self._unwritten is None:
            return
        left = self._unwritten[self._begin : self._end]
        with self.path.open("r+b", buffering=0) as log:  # which makes no file where this one was removed
            if log.seek(0, os.SEEK_END) != self._written_bytes:
                raise OSError(f"{self.path.name}: it is not as it was written")
            while left:
                left = left[log.write(left) :]
            self._written_bytes = log.tell()
        self._unwritten = None


def _whole_batches(view: memoryview) -> Iterator[tuple[int, BatchHeader]]:
    try:
        yield from iterate_batches([view])
    except CorruptBatchError as error:
        raise UncopyableBatchError(str(error)) from error


def _within(lineage: Iterable[tuple[int, int]], start_offset: int, end_offset: int) -> dict[int, int]:
    """The epochs of a segment: those that begin in it, and the one that holds its start."""
    epochs = [(epoch, start) for epoch, start in lineage if start <= end_offset]
    holding = max((number for number, (_, start) in enumerate(epochs) if start <= start_offset), default=0)
    return {epoch: max(start, start_offset) for epoch, start in epochs[holding:]}
