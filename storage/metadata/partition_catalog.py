"""The segments of one partition: KIP-405's RemoteLogMetadataCache over the shared columns.

The rules of states are below. Event handling and queries: docs/kafka-tier.md#events, docs/kafka-tier.md#queries.
Rows, not objects, pass between the methods; the catalog turns them into metadata. Not thread-safe, save for
`finished_segments`, which may be read at any time.
"""

import heapq
import struct
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator
from typing import Self

import structlog

from storage.errors import IllegalMetadataError, RemoteResourceNotFoundError
from storage.metadata.epoch_state import EpochState
from storage.metadata.segment_states import is_legal_transition, is_possible_when_compacted
from storage.metadata.segment_table import SegmentColumns
from storage.metadata.snapshot_stream import SnapshotReader, SnapshotWriter, UnreadableSnapshotError
from storage.model import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    TopicIdPartition,
    Uuid,
)

_HEAD = struct.Struct("<16sqqqq")
_EPOCH = struct.Struct("<i")

_KEYED_ROW_BYTES = 96
"""A segment's id and row as objects, beside their entry in the dict: 64 and 32 bytes."""

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class PartitionCatalog:
    """Rows are those of `columns`; -1 stands for none."""

    __slots__ = (
        "_columns",
        "_epoch_list",
        "_epochs",
        "_has_told",
        "_rows",
        "finished_segments",
        "generation",
        "size_bytes",
        "topic_id_partition",
    )

    def __init__(self, topic_id_partition: TopicIdPartition, columns: SegmentColumns) -> None:
        self.topic_id_partition = topic_id_partition
        self.generation = 0
        self.finished_segments = 0
        self.size_bytes = 0
        """Bytes of segments of any state."""
        self._has_told = False
        self._columns = columns
        self._rows: dict[bytes, int] = {}
        """By segment id."""
        self._epochs: dict[int, EpochState] = {}
        self._epoch_list: tuple[int, ...] | None = ()
        """Highest end offset of the FINISHED segments that may have transactions; -1 without any, None: not known."""

    def __len__(self) -> int:
        """Segments of any state."""
        return len(self._rows)

    def rows(self) -> Iterator[int]:
        """All segments, in no order."""
        return iter(self._rows.values())

    def find(self, segment_id: bytes) -> int:
        return self._rows.get(segment_id, -1)

    def add(self, metadata: RemoteLogSegmentMetadata) -> bool:
        """A segment's first record; False if it was dropped as an illegal transition.

        Raises:
            IllegalMetadataError: its state is not COPY_SEGMENT_STARTED, or a number is out of range.
        """
        if metadata.state is not RemoteLogSegmentState.COPY_SEGMENT_STARTED:
            raise IllegalMetadataError(f"{metadata.segment_id}: a new segment in state {metadata.state.name}")
        old_row = self.find(metadata.segment_id.id)
        current = None if old_row < 0 else self._columns.state(old_row)
        if not self._is_legal(metadata.segment_id, current, metadata.state):
            return False
        row = self._columns.insert(metadata)
        if old_row >= 0:
            self._drop(old_row)
        self._rows[metadata.segment_id.id] = row
        self.size_bytes += metadata.segment_size_bytes
        for epoch in metadata.segment_leader_epochs:
            state = self._epochs.get(epoch)
            if state is None:
                state = self._epochs[epoch] = EpochState()
            state.copy_started(row)
        return True

    def update(self, update: RemoteLogSegmentMetadataUpdate, *, is_keyed: bool = False) -> bool:
        """A change of state; False if it was dropped as an illegal transition.

        Args:
            is_keyed: the record has a key, so that those before it may have been compacted away.

        Raises:
            RemoteResourceNotFoundError: the segment is not known.
            IllegalMetadataError: an update to COPY_SEGMENT_STARTED, or a number is out of range.
        """
        row = self.find(update.segment_id.id)
        if row < 0:
            raise RemoteResourceNotFoundError(f"{update.segment_id}: no such segment")
        if update.state is RemoteLogSegmentState.COPY_SEGMENT_STARTED:
            raise IllegalMetadataError(f"{update.segment_id}: an update to COPY_SEGMENT_STARTED")
        current = self._columns.state(row)
        is_possible = is_keyed and is_possible_when_compacted(current, update.state)
        if not is_possible and not self._is_legal(update.segment_id, current, update.state):
            return False
        self._columns.update(row, update)
        if update.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED:
            self._copy_finished(row, is_repeated=current is update.state)
        elif update.state is RemoteLogSegmentState.DELETE_SEGMENT_STARTED:
            self._delete_started(row, was_finished=current is RemoteLogSegmentState.COPY_SEGMENT_FINISHED)
        else:
            if current is not RemoteLogSegmentState.DELETE_SEGMENT_STARTED:
                self._delete_started(row, was_finished=current is RemoteLogSegmentState.COPY_SEGMENT_FINISHED)
            self._drop(row)
        return True

    def release_rows(self) -> None:
        """Give all rows back to the columns; this object is of no use after it."""
        for row in self._rows.values():
            self._columns.release(row)
        self.finished_segments = 0

    def lookup(self, epoch: int, offset: int) -> int:
        """The FINISHED row that holds offset in that epoch, or -1. A longer earlier segment is not fallen back to."""
        state = self._epochs.get(epoch)
        row = -1 if state is None else state.floor(offset)
        if row >= 0 and offset > self._columns.last_offset_of_epoch(row, epoch):
            return -1
        return row

    def highest_offset(self, epoch: int) -> int:
        """The highest offset ever FINISHED in that epoch, or -1."""
        state = self._epochs.get(epoch)
        return -1 if state is None else state.highest_offset

    def rows_of_epoch(self, epoch: int) -> Iterable[int]:
        """The rows listed for an epoch, by start offset."""
        state = self._epochs.get(epoch)
        return [] if state is None else sorted(state.rows(), key=self._columns.start_offsets.__getitem__)

    def finished_reaching(self, epoch: int, end_offset_min: int, time_ms_min: int) -> Iterator[int]:
        """The FINISHED rows of an epoch that reach such an offset and such a time, by start offset.

        Rows that lookups by offset see are in the order of their first offset in this epoch. Those that are on one
        lineage begin in the epoch, or where the lineage has it begin, so for them that order is the same.
        """
        state, columns = self._epochs.get(epoch), self._columns
        if state is None:
            return iter(())
        end_offsets, times_ms = columns.end_offsets, columns.max_timestamps_ms
        replaced = [
            row
            for row in state.unreferenced()
            if columns.is_finished(row) and end_offsets[row] >= end_offset_min and times_ms[row] >= time_ms_min
        ]
        by_start_offset = columns.start_offsets.__getitem__
        replaced.sort(key=by_start_offset)
        seen = state.referenced_reaching(end_offsets, times_ms, end_offset_min, time_ms_min)
        return heapq.merge(seen, replaced, key=by_start_offset) if replaced else seen

    def chain_end(self, offset: int, ends: Iterable[tuple[int, int]], accepts: Callable[[int], bool]) -> int:
        """From `offset` on, the first that no accepted FINISHED row holds.

        Args:
            ends: live leader epochs, ascending, and where each ends.
        """
        for epoch, end in ends:
            if end <= offset:
                continue
            state = self._epochs.get(epoch)
            if state is not None:
                offset = state.chain_end(epoch, offset, end, self._columns, accepts)
            if offset < end:
                break
        return offset

    def epochs(self) -> tuple[int, ...]:
        """Epochs that a FINISHED segment has, ascending."""
        if self._epoch_list is None:
            self._epoch_list = tuple(sorted(e for e, state in self._epochs.items() if state.finished_segments))
        return self._epoch_list

    def epoch_starts(self) -> dict[int, int]:
        """The first offset that a FINISHED segment has of each epoch."""
        starts = ((epoch, self._epochs[epoch].start_offset) for epoch in self.epochs())
        return {epoch: start for epoch, start in starts if start is not None}

    @property
    def memory_bytes(self) -> int:
        own = (self, self.topic_id_partition, self._epochs, self._rows)
        epochs = sum(state.memory_bytes for state in self._epochs.values())
        return len(self._rows) * _KEYED_ROW_BYTES + epochs + sum(map(sys.getsizeof, own))

    def write_to(self, writer: SnapshotWriter) -> None:
        key = self.topic_id_partition
        writer.put_numbers(
            _HEAD, key.topic_id, key.partition, self.generation, self.finished_segments, len(self._epochs)
        )
        writer.put_bytes(key.topic.encode())
        writer.put_array(array("i", sorted(self._rows.values())))
        for epoch, state in self._epochs.items():
            writer.put_numbers(_EPOCH, epoch)
            state.write_to(writer)

    @classmethod
    def read_from(cls, reader: SnapshotReader, columns: SegmentColumns) -> Self:
        """Return what `write_to` wrote.

        Raises:
            UnreadableSnapshotError: rows that the columns do not have.
        """
        topic_id, partition, generation, finished_segments, epoch_count = reader.take_numbers(_HEAD)
        segments = cls(TopicIdPartition(Uuid(topic_id), partition, reader.take_bytes().decode()), columns)
        rows = reader.take_array("i")
        if rows and (min(rows) < 0 or max(rows) >= columns.row_count):
            raise UnreadableSnapshotError("a partition with a segment that there is not")
        segments.generation, segments.finished_segments = generation, finished_segments
        segments._rows = {columns.segment_id(row): row for row in rows}
        segments.size_bytes = sum(columns.sizes_bytes[row] for row in rows)
        if len(segments) != len(rows):
            raise UnreadableSnapshotError("a partition with one segment twice")
        for _ in range(epoch_count):
            epoch = reader.take_numbers(_EPOCH)[0]
            segments._epochs[epoch] = EpochState.read_from(reader, columns.row_count)
        segments._epoch_list = None
        return segments

    def _is_legal(
        self, segment_id: RemoteLogSegmentId, current: RemoteLogSegmentState | None, target: RemoteLogSegmentState
    ) -> bool:
        if is_legal_transition(current, target):
            return True
        if not self._has_told:  # a topic that was read back twice has one for each of its records
            self._has_told = True
            current_name = "none" if current is None else current.name
            _log.error("illegal_segment_transition", segment=str(segment_id), current=current_name, target=target.name)
        return False

    def _copy_finished(self, row: int, is_repeated: bool) -> None:
        for epoch, start_offset, last_offset in self._columns.epoch_ranges(row):
            state = self._epochs[epoch]
            state.copy_finished(row, start_offset, last_offset)
            state.finished_segments += not is_repeated
        if is_repeated:
            return
        self._epoch_list = None
        self.finished_segments += 1

    def _delete_started(self, row: int, was_finished: bool) -> None:
        for epoch, start_offset, _ in self._columns.epoch_ranges(row):
            state = self._epochs[epoch]
            state.delete_started(row, start_offset)
            state.finished_segments -= was_finished
        if was_finished:
            self._epoch_list = None
            self.finished_segments -= 1

    def _drop(self, row: int) -> None:
        """Forget a segment that lookups do not see. The epochs stay, for the highest offsets they remember."""
        for epoch, _, _ in self._columns.epoch_ranges(row):
            self._epochs[epoch].forget(row)
        del self._rows[self._columns.segment_id(row)]
        self.size_bytes -= self._columns.sizes_bytes[row]
        if not self._rows:
            self._rows.clear()  # it would keep the room of all that it held, and emptied partitions are remembered
        self._columns.release(row)
