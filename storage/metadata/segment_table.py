"""The segments of all partitions, a column for each field and a row for each segment.

About 100 bytes a row plus its epochs (12 bytes each) and custom metadata in one arena, and 140 for its key in the
partition's dict: a fifth of what objects take.
A RemoteLogSegmentMetadata is made when somebody asks for one. Rows of released segments are used again.
Not thread-safe: the catalog's lock guards it.
"""

import struct
import sys
from array import array
from collections.abc import Mapping
from typing import Self

from storage.errors import IllegalMetadataError
from storage.metadata.snapshot_stream import IntTypecode, SnapshotReader, SnapshotWriter, UnreadableSnapshotError
from storage.model import (
    CustomMetadata,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    TopicIdPartition,
    Uuid,
)

_EPOCH = struct.Struct("<iq")
_NO_CUSTOM_METADATA = -1

_COLUMNS: Mapping[str, IntTypecode] = {
    "start_offsets": "q",
    "end_offsets": "q",
    "sizes_bytes": "q",
    "states": "b",
    "txn_index_empty": "b",
    "max_timestamps_ms": "q",
    "_event_timestamps_ms": "q",
    "_broker_ids": "i",
    "_blob_positions": "q",
    "_epoch_counts": "i",
    "_custom_lengths": "i",
}
"""In the snapshot's order: another order or type is another format version."""

_FINISHED = int(RemoteLogSegmentState.COPY_SEGMENT_FINISHED)


class SegmentColumns:
    """Rows are small ints. Public columns are read-only to others."""

    def __init__(self) -> None:
        self.ids = bytearray()
        self.start_offsets = array("q")
        self.end_offsets = array("q")
        self.sizes_bytes = array("q")
        self.states = array("b")
        self.txn_index_empty = array("b")
        self.max_timestamps_ms = array("q")
        self._event_timestamps_ms = array("q")
        self._broker_ids = array("i")
        self._blob_positions = array("q")
        self._epoch_counts = array("i")
        self._custom_lengths = array("i")
        self._arena = Arena()
        self._free_rows = array("i")

    def insert(self, metadata: RemoteLogSegmentMetadata) -> int:
        """Keep a segment; its row.

        Raises:
            IllegalMetadataError: a number does not fit its field, or the id is not 16 bytes.
        """
        if len(metadata.segment_id.id) != 16:
            raise IllegalMetadataError(f"segment id of {len(metadata.segment_id.id)} bytes")
        row = self._free_rows.pop() if self._free_rows else self._grow()
        try:
            self._write(row, metadata)
            blob = _pack_epochs(metadata.segment_leader_epochs) + (metadata.custom_metadata or b"")
        except (OverflowError, struct.error) as error:
            self._free_rows.append(row)
            raise IllegalMetadataError(f"{metadata.segment_id}: a number is out of range") from error
        self._blob_positions[row] = self._arena.put(blob)
        self._epoch_counts[row] = len(metadata.segment_leader_epochs)
        self._custom_lengths[row] = _length(metadata.custom_metadata)
        return row

    def update(self, row: int, update: RemoteLogSegmentMetadataUpdate) -> None:
        """State, event time, broker and custom metadata become the update's; an absent custom metadata too."""
        try:
            self._event_timestamps_ms[row] = update.event_timestamp_ms
            self._broker_ids[row] = update.broker_id
        except OverflowError as error:
            raise IllegalMetadataError(f"{update.segment_id}: a number is out of range") from error
        self.states[row] = update.state
        if update.custom_metadata != self._custom_metadata(row):
            epochs = self._arena.get(self._blob_positions[row], self._epoch_counts[row] * _EPOCH.size)
            self._arena.release(self._blob_positions[row], self._blob_length(row))
            self._blob_positions[row] = self._arena.put(epochs + (update.custom_metadata or b""))
            self._custom_lengths[row] = _length(update.custom_metadata)

    def release(self, row: int) -> None:
        """Forget a segment; its row will be another's."""
        self._arena.release(self._blob_positions[row], self._blob_length(row))
        self._free_rows.append(row)

    def segment_id(self, row: int) -> Uuid:
        return Uuid(bytes(self.ids[row * 16 : row * 16 + 16]))

    def state(self, row: int) -> RemoteLogSegmentState:
        return RemoteLogSegmentState(self.states[row])

    def is_finished(self, row: int) -> bool:
        return self.states[row] == _FINISHED

    def epoch_ranges(self, row: int) -> list[tuple[int, int, int]]:
        """(epoch, first offset, last offset) of each epoch in the segment, ascending (docs/kafka-tier.md#overlap)."""
        epochs = self._epochs(row)
        last_offsets = [start_offset - 1 for _, start_offset in epochs[1:]]
        last_offsets.append(self.end_offsets[row])
        return [(epoch, start, last) for (epoch, start), last in zip(epochs, last_offsets, strict=True)]

    def has_more_epochs(self, row: int) -> bool:
        return self._epoch_counts[row] > 1

    def last_offset_of_epoch(self, row: int, epoch: int) -> int:
        """The segment's last offset in that epoch: before its next higher epoch, or its end."""
        if self._epoch_counts[row] > 1:
            for other_epoch, start_offset in self._epochs(row):
                if other_epoch > epoch:
                    return start_offset - 1
        return self.end_offsets[row]

    def metadata(self, row: int, partition: TopicIdPartition) -> RemoteLogSegmentMetadata:
        """The row as KIP-405's object."""
        return RemoteLogSegmentMetadata(
            segment_id=RemoteLogSegmentId(partition, self.segment_id(row)),
            start_offset=self.start_offsets[row],
            end_offset=self.end_offsets[row],
            max_timestamp_ms=self.max_timestamps_ms[row],
            broker_id=self._broker_ids[row],
            event_timestamp_ms=self._event_timestamps_ms[row],
            segment_size_bytes=self.sizes_bytes[row],
            segment_leader_epochs=dict(self._epochs(row)),
            state=self.state(row),
            custom_metadata=self._custom_metadata(row),
            txn_index_empty=bool(self.txn_index_empty[row]),
        )

    @property
    def row_count(self) -> int:
        """Rows in use and free ones."""
        return len(self.states)

    @property
    def free_rows(self) -> "array[int]":
        return self._free_rows

    @property
    def memory_bytes(self) -> int:
        parts = (self.ids, self._free_rows, *(getattr(self, name) for name in _COLUMNS))
        return self._arena.memory_bytes + sum(map(sys.getsizeof, parts))

    def write_to(self, writer: SnapshotWriter) -> None:
        writer.put_bytes(self.ids)
        for name in _COLUMNS:
            writer.put_array(getattr(self, name))
        writer.put_array(self._free_rows)
        self._arena.write_to(writer)

    @classmethod
    def read_from(cls, reader: SnapshotReader) -> Self:
        """Return what `write_to` wrote. Numbers that would lead outside of the columns are looked for; offsets are not.

        Raises:
            UnreadableSnapshotError: columns of different lengths, unknown states, blobs outside of the arena.
        """
        columns = cls()
        columns.ids = reader.take_buffer()
        for name, typecode in _COLUMNS.items():
            setattr(columns, name, reader.take_array(typecode))
        columns._free_rows = reader.take_array("i")
        columns._arena = Arena.read_from(reader)
        columns._check()
        return columns

    def _check(self) -> None:
        count = self.row_count
        if len(self.ids) != 16 * count or any(len(getattr(self, name)) != count for name in _COLUMNS):
            raise UnreadableSnapshotError("columns of different lengths")
        if count and not (0 <= min(self.states) <= max(self.states) <= max(RemoteLogSegmentState)):
            raise UnreadableSnapshotError("a segment in an unknown state")
        lengths = (self._blob_positions, self._epoch_counts, self._custom_lengths)
        end, free = self._arena.size_bytes, set(self._free_rows)
        for row, (position, epochs, custom) in enumerate(zip(*lengths, strict=True)):
            blob_end = position + epochs * _EPOCH.size + max(custom, 0)
            if (position < 0 or epochs < 1 or blob_end > end) and row not in free:
                raise UnreadableSnapshotError(f"segment {row}'s epochs lie outside of the arena")

    def _grow(self) -> int:
        row = len(self.states)
        self.ids += bytes(16)
        for name in _COLUMNS:
            getattr(self, name).append(0)
        return row

    def _write(self, row: int, metadata: RemoteLogSegmentMetadata) -> None:
        self.ids[row * 16 : row * 16 + 16] = metadata.segment_id.id
        self.start_offsets[row] = metadata.start_offset
        self.end_offsets[row] = metadata.end_offset
        self.sizes_bytes[row] = metadata.segment_size_bytes
        self.states[row] = metadata.state
        self.txn_index_empty[row] = metadata.txn_index_empty
        self.max_timestamps_ms[row] = metadata.max_timestamp_ms
        self._event_timestamps_ms[row] = metadata.event_timestamp_ms
        self._broker_ids[row] = metadata.broker_id

    def _epochs(self, row: int) -> list[tuple[int, int]]:
        packed = self._arena.get(self._blob_positions[row], self._epoch_counts[row] * _EPOCH.size)
        return list(_EPOCH.iter_unpack(packed))

    def _custom_metadata(self, row: int) -> CustomMetadata | None:
        length = self._custom_lengths[row]
        if length == _NO_CUSTOM_METADATA:
            return None
        position = self._blob_positions[row] + self._epoch_counts[row] * _EPOCH.size
        return CustomMetadata(self._arena.get(position, length))

    def _blob_length(self, row: int) -> int:
        return self._epoch_counts[row] * _EPOCH.size + max(self._custom_lengths[row], 0)


def _pack_epochs(epochs: Mapping[int, int]) -> bytes:
    return b"".join([_EPOCH.pack(epoch, start_offset) for epoch, start_offset in epochs.items()])


def _length(custom_metadata: bytes | None) -> int:
    return _NO_CUSTOM_METADATA if custom_metadata is None else len(custom_metadata)


_COUNT = struct.Struct("<q")
_STEP_BYTES = 16


class Arena:
    """Short byte strings of many lengths in one bytearray.

    A string takes its length rounded up to 16. Freed room is kept by size and given to the next string of that size, so
    nothing is ever moved: the metadata of one cluster has few different lengths, and a compaction of a large catalog
    would stall the loop. The arena does not shrink; its size is bounded by the most that was ever held of each size.

    Not thread-safe; the catalog's lock guards it.
    """

    __slots__ = ("_content", "_free")

    def __init__(self) -> None:
        self._content = bytearray()
        self._free: dict[int, array[int]] = {}

    def put(self, blob: bytes) -> int:
        """Keep a string; its position."""
        size_bytes = _room(len(blob))
        free = self._free.get(size_bytes)
        if free:
            position = free.pop()
            self._content[position : position + len(blob)] = blob
        else:
            position = len(self._content)
            self._content += blob.ljust(size_bytes, b"\0")
        return position

    def get(self, position: int, length_bytes: int) -> bytes:
        """A copy of the first length_bytes of the string at position."""
        return bytes(self._content[position : position + length_bytes])

    def release(self, position: int, length_bytes: int) -> None:
        """Give back the room of a string of this length."""
        size_bytes = _room(length_bytes)
        if size_bytes:
            self._free.setdefault(size_bytes, array("q")).append(position)

    @property
    def size_bytes(self) -> int:
        """The end of the last string's room."""
        return len(self._content)

    @property
    def memory_bytes(self) -> int:
        return sys.getsizeof(self._content) + sum(map(sys.getsizeof, self._free.values()))

    def write_to(self, writer: SnapshotWriter) -> None:
        writer.put_bytes(self._content)
        writer.put_numbers(_COUNT, len(self._free))
        for size_bytes, positions in self._free.items():
            writer.put_numbers(_COUNT, size_bytes)
            writer.put_array(positions)

    @classmethod
    def read_from(cls, reader: SnapshotReader) -> Self:
        """Return what `write_to` wrote.

        Raises:
            UnreadableSnapshotError: lengths or free positions that no arena has.
        """
        arena = cls()
        arena._content = reader.take_buffer()
        for _ in range(reader.take_numbers(_COUNT)[0]):
            size_bytes = reader.take_numbers(_COUNT)[0]
            positions = arena._free[size_bytes] = reader.take_array("q")
            if size_bytes < 1 or (positions and (min(positions) < 0 or max(positions) + size_bytes > arena.size_bytes)):
                raise UnreadableSnapshotError("free room outside of the arena")
        return arena


def _room(length_bytes: int) -> int:
    return (length_bytes + _STEP_BYTES - 1) // _STEP_BYTES * _STEP_BYTES
