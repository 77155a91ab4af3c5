"""The segments of one partition: KIP-405's RemoteLogMetadataCache over the shared columns.

The rules of states are below. Event handling and queries: docs/kafka-tier.md#events, docs/kafka-tier.md#queries.
Rows, not objects, pass between the methods; the catalog turns them into metadata. Not thread-safe, save for
`finished_segments`, which may be read at any time.
"""

import heapq
import struct
import sys
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Self

import structlog

from storage.errors import IllegalMetadataError, RemoteResourceNotFoundError
from storage.metadata.epoch_state import EpochState, SegmentColumns
from storage.metadata.snapshot_stream import SnapshotReader, SnapshotWriter, UnreadableSnapshotError
from storage.model import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    TopicIdPartition,
    Uuid,
)

# The states of a remote log segment and the moves between them (docs/kafka-tier.md#states).
#
#     (none) → COPY_SEGMENT_STARTED → COPY_SEGMENT_FINISHED
#                      │                       │
#                      └──────────┬────────────┘
#                                 ▼
#                      DELETE_SEGMENT_STARTED → DELETE_SEGMENT_FINISHED (forgotten)
#
# Staying in a state is legal: records may be repeated. Everything else is dropped with a log line, never raised.
#
# Records with a key come from a log that may be compacted (KIP-1266): it keeps the last record of each key, so a reader
# may miss what lay between. There every move forward is possible.


_STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
_DELETE_STARTED = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
_DELETE_FINISHED = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED

LEGAL_TRANSITIONS: frozenset[tuple[RemoteLogSegmentState | None, RemoteLogSegmentState]] = frozenset(
    {
        (None, _STARTED),
        (_STARTED, _FINISHED),
        (_STARTED, _DELETE_STARTED),
        (_FINISHED, _DELETE_STARTED),
        (_DELETE_STARTED, _DELETE_FINISHED),
    }
    | {(state, state) for state in RemoteLogSegmentState}
)


def is_legal_transition(current: RemoteLogSegmentState | None, target: RemoteLogSegmentState) -> bool:
    """Return whether a segment in `current` (None: unknown) may go to `target`."""
    return (current, target) in LEGAL_TRANSITIONS


def is_possible_when_compacted(current: RemoteLogSegmentState, target: RemoteLogSegmentState) -> bool:
    """Return whether a reader that last saw `current` may see `target` next in a log that was compacted."""
    return target >= current


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
        "topic_id_partition",
    )

    def __init__(self, topic_id_partition: TopicIdPartition, columns: SegmentColumns) -> None:
        self.topic_id_partition = topic_id_partition
        self.generation = 0
        self.finished_segments = 0
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
        if not self._rows:
            self._rows.clear()  # it would keep the room of all that it held, and emptied partitions are remembered
        self._columns.release(row)


# The history of leader epochs of one partition, as the upstream leader tells it (docs/kafka-tier.md#lineage).
#
# After an unclean leader election the tier may hold segments of dead branches beside the live ones, with the same
# offsets. What is on the lineage is decided by the broker's own answers to OffsetForLeaderEpoch: one question per
# epoch that any segment of the partition has. Rejected: the leader-epoch index object of the newest segment, which
# costs a GET and is out of date on the branch that was cut.
#
# Rule 1. An epoch is on the lineage if upstream answers with that very epoch; it then ends where upstream says.
# Rule 2. The current epoch's end is where the log ended when upstream was asked: a lineage that is too old for a
#         segment rejects it, and the reader builds another.
# Rule 3. A segment is on the lineage from an offset on if each of its epochs from that offset's on is, each but the
#         last ends where the next one begins in the segment, and the last ends after the segment does. Epochs before
#         are not looked at: once the log start has moved into the segment, the broker has forgotten their borders and
#         answers for each of them with the log start.
# Rule 4. An epoch without records (the next one begins at the same offset) does not count: the broker's own history
#         leaves it out (docs/kafka-tier.md#lineage-filter).
# Rule 5. In standalone mode (docs/protocol.md#standalone) the broker has forgotten all below its log start, and
#         answers for each epoch below its first with that very epoch and the log start. So an epoch ends, besides,
#         where any higher epoch that is not known to be dead begins in the tier; one that begins no lower than that is
#         a branch that was cut.


class LeaderEpochLineage:
    """Live epochs and where they end (exclusive). Immutable.

    Args:
        leader_epoch: the current leader epoch under which upstream was asked.
        answers: epoch asked → (epoch answered, end offset), as OffsetForLeaderEpoch gave them.
        tier_starts: in standalone mode, where each epoch begins in the tier (rule 5).
    """

    __slots__ = ("_asked", "_end_of", "_ends", "_epochs", "leader_epoch")

    def __init__(
        self, leader_epoch: int, answers: Mapping[int, tuple[int, int]], tier_starts: Mapping[int, int] | None = None
    ) -> None:
        self.leader_epoch = leader_epoch
        self._asked = frozenset(answers)
        live = sorted((asked, end) for asked, (answered, end) in answers.items() if answered == asked)
        if tier_starts is not None:
            live = _cut_by_starts(live, tier_starts)
        self._epochs = [epoch for epoch, _ in live]
        self._ends = [end for _, end in live]
        self._end_of = dict(live)

    @property
    def epochs(self) -> Sequence[int]:
        """The live epochs that were asked about, ascending."""
        return self._epochs

    def ends(self) -> Iterator[tuple[int, int]]:
        """The same, each with where it ends (exclusive)."""
        return zip(self._epochs, self._ends, strict=True)

    def knows(self, epochs: Sequence[int]) -> bool:
        """Return whether upstream was asked about all of these."""
        return self._asked.issuperset(epochs)

    def end_offset(self, epoch: int) -> int | None:
        """Return where a live epoch ends (exclusive), or None for one that is not live or was not asked about."""
        return self._end_of.get(epoch)

    def told(self, epoch: int, log_start_offset: int) -> tuple[int, int]:
        """Return what a broker says of an epoch that has kept its log from that offset on: the highest live epoch up to
        that one, and where it ends (exclusive). Below its first it says the epoch that was asked, and its log start
        (LeaderEpochFileCache.endOffsetFor)."""
        at = bisect_right(self._epochs, epoch) - 1
        if at < 0 or self._ends[at] <= log_start_offset:
            return epoch, log_start_offset
        return self._epochs[at], self._ends[at]

    def epoch_for(self, offset: int) -> int | None:
        """The live epoch that an offset was written in, among those asked about."""
        at = bisect_right(self._ends, offset)
        return self._epochs[at] if at < len(self._epochs) else None

    def holds(self, segment: RemoteLogSegmentMetadata, from_offset: int = 0) -> bool:
        """Return whether all of a segment's batches from that offset on are on the lineage (rules 3 and 4)."""
        first_epoch = self.epoch_for(from_offset)
        if first_epoch is None:
            return False
        epochs = filter_epochs(segment.segment_leader_epochs)
        starts = [(epoch, start) for epoch, start in epochs.items() if epoch >= first_epoch]
        if not starts:
            return False
        for (epoch, _), (_, next_start) in pairwise(starts):
            if self._end_of.get(epoch) != next_start:
                return False
        end = self._end_of.get(starts[-1][0])
        return end is not None and end > segment.end_offset


def _cut_by_starts(ends: Sequence[tuple[int, int]], starts: Mapping[int, int]) -> list[tuple[int, int]]:
    """Rule 5: those of the epochs, ascending and each with its end, that are on the lineage, and where they end."""
    live: list[tuple[int, int]] = []
    next_start: int | None = None
    for epoch, told_end in reversed(ends):
        end = told_end if next_start is None else min(told_end, next_start)
        start = starts.get(epoch)
        if start is not None and start >= end:
            continue
        live.append((epoch, end))
        next_start = start if start is not None else next_start
    return live[::-1]


def filter_epochs(epochs: Mapping[int, int]) -> dict[int, int]:
    """Leave out epochs without records: of consecutive epochs that start at one offset only the last stays."""
    ordered = sorted(epochs.items())
    return {
        epoch: offset
        for index, (epoch, offset) in enumerate(ordered)
        if index + 1 == len(ordered) or ordered[index + 1][1] != offset
    }
